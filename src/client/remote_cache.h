// Connect(): the node's cache, as one client sees it.
//
// The caller's thread encodes requests into the ring and applies answers in Poll(). A thread of its
// own watches the socket, so that extents are unmapped and the node is found again while the caller
// does something else. Both hold the mutex; nobody holds it for long.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "client/link.h"
#include "net/local_protocol.h"

namespace aquifer {

class RemoteCache final : public Cache {
 public:
  static Result<std::unique_ptr<Cache>> New(const ConnectOptions& options,
                                            const ClientOptions& client);
  ~RemoteCache() override;

  Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) override;

  void RegisterLayout(RegisterLayoutRequest* request) override;
  void Match(MatchRequest* request) override;
  void Fetch(FetchRequest* request) override;
  void Reserve(ReserveRequest* request) override;
  void Commit(CommitRequest* request) override;
  void Flush(FlushRequest* request) override;
  void Pin(PinRequest* request) override;
  void Prestage(PrestageRequest* request) override;
  void Evict(EvictRequest* request) override;
  void Drain(DrainRequest* request) override;
  void Stats(StatsRequest* request) override;
  void Release(std::span<const ReleaseOp> leases) override;
  void Abort(std::span<const ReservationId> reservations) override;
  void Hint(const SessionForecast& forecast) override;
  void ReportPrefill(const PrefillReport& report) override;
  void Cancel(Request* request) override;
  size_t Poll() override;
  int event_fd() const override { return event_.get(); }
  bool Wait(const Request& request, int64_t timeout_nanos) override;

 private:
  // A request at the node.
  struct Sent {
    Request* request = nullptr;  // Null: the place is free.
    FrameKind kind = FrameKind::kMatch;
    uint32_t generation = 1;
    size_t received = 0;  // Items.
  };
  // A lease or a reservation of the caller's.
  struct Held {
    uint64_t node_id = 0;
    Link* link = nullptr;  // Null: the place is free.
    uint32_t extent = 0;
    uint32_t place = 0;  // In held_.
    uint32_t generation = 1;
    bool reservation = false;
  };
  struct KnownLayout {
    Layout layout;
    LayoutHandle at_node = 0;  // 0: the node that is there now does not know it.
  };
  // Answered here, without the node.
  struct Settled {
    Request* request = nullptr;
    size_t completed = 0;
  };

  RemoteCache(const ConnectOptions& options, const ClientOptions& client);
  Status Start();

  Result<std::unique_ptr<Link>> Dial(int64_t deadline_nanos) const;
  // The new link is ours: the event tells of its answers.
  void Adopt(std::unique_ptr<Link> link) AQ_REQUIRES(mutex_);
  // The node is gone: what is open is settled, and what nobody holds is unmapped.
  void Lose() AQ_REQUIRES(mutex_);
  void DropOldLinks() AQ_REQUIRES(mutex_);

  // Begins a request: its number, or 0 when it was settled at once.
  uint64_t Begin(Request* request, FrameKind kind) AQ_REQUIRES(mutex_);
  void Settle(Request* request, const Status& status, size_t completed) AQ_REQUIRES(mutex_);
  // There is no node, or it went away while it had the request.
  void SettleUnavailable(const Sent& sent, const Status& commits) AQ_REQUIRES(mutex_);
  bool TakeNote() AQ_REQUIRES(mutex_);
  // The chain's layout as the node knows it; 0: as nobody does.
  LayoutHandle AtNode(LayoutHandle handle) const AQ_REQUIRES(mutex_);
  template <class R, class Call>
  void SendChain(R* request, FrameKind kind, Call call, std::span<const uint64_t> hashes = {});
  void Transmit() AQ_REQUIRES(mutex_) { link_->Send(writer_.Finish()); }

  size_t ReadAnswers() AQ_REQUIRES(mutex_);
  Status TakeAnswer(std::span<const std::byte> frame) AQ_REQUIRES(mutex_);
  Status TakeItems(Sent* sent, const AnswerHead& head, FrameReader* frame) AQ_REQUIRES(mutex_);
  void TakeFetched(FetchRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeReserved(ReserveRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeCommitted(CommitRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeSummary(Sent* sent, FrameReader* frame) AQ_REQUIRES(mutex_);

  uint64_t NewHeld(uint64_t node_id, uint32_t extent, bool reservation) AQ_REQUIRES(mutex_);
  Held* FindHeld(uint64_t id, bool reservation) AQ_REQUIRES(mutex_);
  void FreeHeld(Held* held) AQ_REQUIRES(mutex_);
  template <class Op>
  void GiveBack(std::span<const Op> ops, FrameKind kind) AQ_REQUIRES(mutex_);
  // In the node's own names for them; at most a frame of them.
  template <class Op>
  void SendBack(std::span<const Op> given, FrameKind kind, Link* to) AQ_REQUIRES(mutex_);

  void SignalSelf() AQ_REQUIRES(mutex_);
  // Applies what is there; returns how many requests moved on.
  size_t Apply() AQ_REQUIRES(mutex_);
  // True: there is nothing, and the descriptor will tell when there is.
  bool PrepareToSleep() AQ_REQUIRES(mutex_);
  // Looks for a while, as long as the node is awake too; true when there is something.
  bool Spin(int64_t end_nanos);

  // The thread.
  void Watch();
  void Reconnect();
  bool SleepFor(int64_t nanos, int descriptor);
  Status RegisterLayoutsAt(Link* link, const std::vector<Layout>& layouts,
                           std::vector<LayoutHandle>* handles);

  const ConnectOptions options_;
  const ClientOptions client_;
  Descriptor event_;       // An epoll of the two below, so that it stays the same.
  Descriptor self_event_;  // Something was settled here.
  Descriptor stop_event_;

  Mutex mutex_;
  std::unique_ptr<Link> link_ AQ_GUARDED_BY(mutex_);  // Null while there is no node.
  // Links to nodes that are gone, of which the caller still holds something.
  std::vector<std::unique_ptr<Link>> old_links_ AQ_GUARDED_BY(mutex_);
  std::vector<Sent> sent_ AQ_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_sent_ AQ_GUARDED_BY(mutex_);
  std::deque<Held> held_ AQ_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_held_ AQ_GUARDED_BY(mutex_);
  std::vector<KnownLayout> layouts_ AQ_GUARDED_BY(mutex_);
  std::vector<Settled> settled_ AQ_GUARDED_BY(mutex_);
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  uint64_t dropped_notes_ AQ_GUARDED_BY(mutex_) = 0;
  bool may_be_readable_ AQ_GUARDED_BY(mutex_) = false;        // The descriptor.
  std::vector<SharedMemory> unmapped_ AQ_GUARDED_BY(mutex_);  // To go when it is unlocked.
  FrameWriter writer_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> frame_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> ops_ AQ_GUARDED_BY(mutex_);  // Of a commit, encoded.

  std::thread thread_;
};

}  // namespace aquifer
