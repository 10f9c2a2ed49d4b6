// How the node's owner waits: for its queue, for descriptors, and for memory that other processes
// write. Each Poll() does one thing, which is a task of the owner's: it hears one descriptor, or
// lets one Polled do a little. Only Wake() may be called from another thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "base/executor.h"

namespace aquifer {

// Something that is looked at again and again while the owner is awake.
class Polled {
 public:
  // Does a little of what there is to do; false when there was nothing.
  virtual bool Poll() = 0;
  // True: there is nothing to do, and a watched descriptor will tell when there is.
  virtual bool PrepareToSleep() = 0;
  virtual void WokeUp() = 0;

 protected:
  ~Polled() = default;
};

class EpollWaiter final : public Waiter {
 public:
  static Result<std::unique_ptr<EpollWaiter>> New();

  // Calls `on_ready(events)` on the owner while the descriptor is ready (epoll's events). The
  // result names the watch and is never 0. kUnavailable: the system watches no more for this user.
  Result<uint64_t> Watch(int descriptor, uint32_t events, std::function<void(uint32_t)> on_ready);
  void Change(uint64_t watch, uint32_t events);
  void Unwatch(uint64_t watch);  // Before the descriptor is closed.

  void Add(Polled* polled) { polled_.push_back(polled); }
  void Remove(Polled* polled);

  bool Poll() override;
  void Sleep(int64_t nanos) override;
  void Wake() override;

  uint64_t sleeps() const { return sleeps_; }
  uint64_t heard() const { return heard_; }  // Descriptors that were ready, each time.

 private:
  struct Watched {
    int descriptor = -1;
    std::shared_ptr<std::function<void(uint32_t)>> on_ready;  // Runs on after Unwatch().
  };

  EpollWaiter(Descriptor epoll, Descriptor wake);
  // Asks which descriptors are ready.
  void Look(int64_t nanos);
  // The next of those; false when there is none.
  bool HearOne();

  const Descriptor epoll_;
  const Descriptor wake_;
  std::map<uint64_t, Watched> watched_;
  uint64_t next_watch_ = 1;
  std::vector<Polled*> polled_;
  size_t next_polled_ = 0;
  struct Ready {
    uint64_t watch = 0;
    uint32_t events = 0;
  };
  std::vector<Ready> ready_;  // Those still to be heard, the next one last.
  uint32_t polls_ = 0;
  int64_t looked_nanos_ = 0;  // When descriptors were looked at.
  uint64_t sleeps_ = 0;
  uint64_t heard_ = 0;
};

}  // namespace aquifer
