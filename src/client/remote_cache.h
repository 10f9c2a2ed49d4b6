// Connect(): the node's cache, as one client sees it.
//
//   remote_cache.cc           life, Poll() and Wait()
//   remote_cache_requests.cc  the caller's requests, out into the ring
//   remote_cache_answers.cc   answers, in from the ring; what becomes of requests without a node
//   remote_cache_watch.cc     the link thread
//
// The caller's thread encodes requests and applies answers; nothing else touches a request. The
// link thread watches the socket, so that extents are unmapped and the node is found again while
// the caller does something else. When the node is gone it ends the session: it unmaps what nobody
// holds and wakes the caller, who settles what was open in Poll(). It alone destroys links. Both
// threads hold the mutex; nobody holds it for long.
//
// A node that hangs keeps nobody waiting: the link thread wakes when a request ought to be
// answered, and the caller then settles it in Poll(). What is lent for it later goes straight back.
// A node that takes nothing for some seconds counts as gone (pulse.h). Requests tell the link
// thread of their time only if it would wake later than that, so that a busy caller does so once a
// second.
#pragma once

#include <cstdint>
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
#include "client/loans.h"
#include "client/session.h"
#include "net/protocol/local_protocol.h"

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
  struct KnownLayout {
    Layout layout;
    Digest fingerprint{};
    LayoutHandle at_node = 0;  // 0: the node that is there now does not know it.
  };
  // Answered here, without the node.
  struct Settled {
    Request* request = nullptr;
    size_t completed = 0;
  };
  // What the link thread waits for.
  struct Watched {
    int socket = -1;                 // Of the session; -1: there is none.
    bool unsent = false;             // Something waits for room in a ring.
    int64_t look_nanos = INT64_MAX;  // When to look again.
  };

  RemoteCache(const ConnectOptions& options, const ClientOptions& client);
  Status Start();

  Result<std::unique_ptr<Link>> Dial(int64_t deadline_nanos) const;
  // A session begins: the event tells of its answers.
  void Adopt(std::unique_ptr<Link> link) AQ_REQUIRES(mutex_);
  // The node is gone, or as good as gone. Touches no request.
  void EndSession() AQ_REQUIRES(mutex_);
  void SignalSelf() AQ_REQUIRES(mutex_);

  // ---- Requests ----

  // Begins a request: its number, or 0 when it was settled at once.
  uint64_t Begin(Request* request, FrameKind kind, int64_t timeout_nanos = INT64_MAX)
      AQ_REQUIRES(mutex_);
  void Settle(Request* request, const Status& status, size_t completed) AQ_REQUIRES(mutex_);
  // False: it was refused, since an observer changes nothing.
  bool MayChange(Request* request) AQ_REQUIRES(mutex_);
  void SendLayout(RegisterLayoutRequest* request) AQ_REQUIRES(mutex_);
  // Our handle for it, which stays the same from node to node.
  LayoutHandle Know(const Layout& layout, LayoutHandle at_node) AQ_REQUIRES(mutex_);
  // The layout as the node knows it; 0: as nobody does.
  LayoutHandle AtNode(LayoutHandle handle) const AQ_REQUIRES(mutex_);
  template <class R, class Call>
  void SendChain(R* request, FrameKind kind, Call call, std::span<const uint64_t> hashes = {});
  void PackOps(std::span<const CommitOp> ops) AQ_REQUIRES(mutex_);
  bool TakeNote() AQ_REQUIRES(mutex_);
  void Transmit() AQ_REQUIRES(mutex_);

  template <class Op>
  void GiveBack(std::span<const Op> ops, FrameKind kind) AQ_REQUIRES(mutex_);
  // In the node's own names for them; at most a frame of them.
  template <class Op>
  void SendBack(std::span<const Op> given, FrameKind kind, Link* to) AQ_REQUIRES(mutex_);
  // It was committed, or never will be.
  void EndReservation(ReservationId id) AQ_REQUIRES(mutex_);
  void LetGo(Link* link, std::vector<uint32_t>* extents) AQ_REQUIRES(mutex_);

  // ---- Answers ----

  // Applies what is there; returns how many requests moved on.
  size_t Apply() AQ_REQUIRES(mutex_);
  size_t ReadAnswers(Session* session) AQ_REQUIRES(mutex_);
  Status TakeAnswer(Session* session, std::span<const std::byte> frame) AQ_REQUIRES(mutex_);
  Status TakeItems(Session* session, SentRequest* sent, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeFetched(Link* link, FetchRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeReserved(Link* link, ReserveRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeCommitted(CommitRequest* request, const AnswerHead& head, FrameReader* frame)
      AQ_REQUIRES(mutex_);
  void TakeSummary(SentRequest* sent, Code code, FrameReader* frame) AQ_REQUIRES(mutex_);
  void TakeCounts(SentRequest* sent, Code code, FrameReader* frame) AQ_REQUIRES(mutex_);
  // Of a request that was settled without the node: what it lends goes back.
  Status TakeTooLate(Session* session, SentRequest* sent, const AnswerHead& head,
                     FrameReader* frame) AQ_REQUIRES(mutex_);
  // Those that the node ought to have answered by now.
  void SettleLate(Session* session) AQ_REQUIRES(mutex_);
  // Its node is gone: everything that is open of it is missing, but for answers that it still had.
  // Returns how many those were.
  size_t SettleAll(Session* session) AQ_REQUIRES(mutex_);
  // There is no node, or it went away while it had the request.
  void SettleUnavailable(const SentRequest& sent, const Status& commits) AQ_REQUIRES(mutex_);
  void SettleUnanswered(const SentRequest& sent, const Status& why, const Status& commits)
      AQ_REQUIRES(mutex_);

  // True: there is nothing, and the descriptor will tell when there is.
  bool PrepareToSleep() AQ_REQUIRES(mutex_);
  // Looks for a while, as long as the node is awake too; true when there is something.
  bool Spin(int64_t end_nanos);

  // ---- The link thread ----

  void Watch();
  Watched LookAtLinks();
  // Wakes the caller for what is late. False: the node is lost.
  bool LookAtRequests(int64_t now_nanos) AQ_REQUIRES(mutex_);
  // One try; true: there is a session.
  bool Reconnect();
  // True: it is time to stop.
  bool SleepFor(int64_t nanos, int one, int other = -1);
  Status RegisterLayoutsAt(Link* link, const std::vector<Layout>& layouts,
                           std::vector<LayoutHandle>* handles);

  const ConnectOptions options_;
  const std::vector<std::string> sockets_;  // Where the node may be.
  const ClientOptions client_;
  Descriptor event_;          // An epoll of the next and of the link's, so that it stays the same.
  Descriptor self_event_;     // Something was settled here, or is to be.
  Descriptor changed_event_;  // The link thread is to look at its links again.
  Descriptor stop_event_;

  Mutex mutex_;
  std::unique_ptr<Session> session_ AQ_GUARDED_BY(mutex_);  // Null while there is no node.
  // Those that still have requests to settle, or of which the caller holds something.
  std::vector<std::unique_ptr<Session>> ended_ AQ_GUARDED_BY(mutex_);
  Loans loans_ AQ_GUARDED_BY(mutex_);
  std::vector<KnownLayout> layouts_ AQ_GUARDED_BY(mutex_);
  std::vector<Settled> settled_ AQ_GUARDED_BY(mutex_);
  uint64_t dropped_notes_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t look_nanos_ AQ_GUARDED_BY(mutex_) = INT64_MAX;      // When the link thread should wake,
  int64_t awaken_nanos_ AQ_GUARDED_BY(mutex_) = INT64_MAX;    // and when it will by itself.
  bool may_be_readable_ AQ_GUARDED_BY(mutex_) = false;        // The descriptor.
  std::vector<MappedExtent> unmapped_ AQ_GUARDED_BY(mutex_);  // To go when it is unlocked.
  FrameWriter writer_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> frame_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> ops_ AQ_GUARDED_BY(mutex_);  // Of a commit, encoded.

  std::thread thread_;
};

}  // namespace aquifer
