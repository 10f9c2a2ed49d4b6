// EpollWaiter is how the node's owner waits: for its queue, for descriptors, and for memory that
// other processes write. Each Poll() is one task of the owner: it handles one descriptor, or lets
// one Polled do a little. Only Wake() may be called from another thread.
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

// An object that the owner polls again and again while it is awake.
class Polled {
 public:
  // Does a little work. Returns false if there was none.
  virtual bool Poll() = 0;
  // Returns true if there is no work, and a watched descriptor will report the next.
  virtual bool PrepareToSleep() = 0;
  virtual void WokeUp() = 0;

 protected:
  ~Polled() = default;
};

class EpollWaiter final : public Waiter {
 public:
  static Result<std::unique_ptr<EpollWaiter>> New();

  // Calls `on_ready(events)` on the owner while the descriptor is ready (epoll's events). Returns
  // the number of the watch, never 0. Returns kUnavailable if the system allows this user no more
  // watches.
  Result<uint64_t> Watch(int descriptor, uint32_t events, std::function<void(uint32_t)> on_ready);
  void Change(uint64_t watch, uint32_t events);
  void Unwatch(uint64_t watch);  // Call before the descriptor is closed.

  void Add(Polled* polled) { polled_.push_back(polled); }
  void Remove(Polled* polled);

  bool Poll() override;
  void Sleep(int64_t nanos) override;
  void Wake() override;

  uint64_t sleeps() const { return sleeps_; }
  uint64_t heard() const { return heard_; }  // How many ready descriptors were handled.

 private:
  struct Watched {
    int descriptor = -1;
    // Shared, because it may end its own watch and runs on.
    std::shared_ptr<std::function<void(uint32_t)>> on_ready;
  };

  EpollWaiter(Descriptor epoll, Descriptor wake);
  // Asks epoll which descriptors are ready.
  void Look(int64_t nanos);
  // Handles the next ready descriptor. Returns false if there is none.
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
  std::vector<Ready> ready_;  // Ready descriptors to handle, the next one last.
  uint32_t polls_ = 0;
  int64_t looked_nanos_ = 0;  // When epoll was last asked.
  uint64_t sleeps_ = 0;
  uint64_t heard_ = 0;
};

}  // namespace aquifer
