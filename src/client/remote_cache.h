// RemoteCache is what Connect() returns: the node's cache as one client sees it.
//
//   remote_cache.cc           life, Poll() and Wait()
//   remote_cache_requests.cc  the caller's requests, written to the ring
//   remote_cache_answers.cc   answers, read from the ring; requests whose node is gone
//   remote_cache_watch.cc     the link thread
//
// The caller's thread encodes requests and applies answers; no other thread touches a request. The
// link thread watches the socket: it unmaps extents and finds the node again while the caller does
// other work. When the node is gone, the link thread ends the session. It unmaps the extents that
// nobody holds and wakes the caller, who completes the open requests in Poll(). Only the link
// thread destroys links. Both threads hold the mutex, for short times only.
//
// A node that hangs does not block the caller. The link thread wakes when an answer is due, and the
// caller then completes the request in Poll(). Memory that the node lends for it later goes
// straight back. A node that reads nothing for some seconds counts as gone (liveness.h). A request
// wakes the link thread only if its deadline comes before the thread's next look. A busy caller
// does so about once a second.
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
    LayoutHandle at_node = 0;  // 0: the present node does not know the layout.
  };
  // A request that the client completed without the node.
  struct Settled {
    Request* request = nullptr;
    size_t completed = 0;
  };
  // The events and times that the link thread waits for.
  struct Watched {
    int socket = -1;                 // The session's socket; -1 if there is no session.
    bool unsent = false;             // Returns or requests wait for room in a ring.
    int64_t look_nanos = INT64_MAX;  // When to look next.
  };

  RemoteCache(const ConnectOptions& options, const ClientOptions& client);
  Status Start();

  Result<std::unique_ptr<Link>> Dial(int64_t deadline_nanos) const;
  // Begins a session on `link`: the client's event now reports its answers.
  void Adopt(std::unique_ptr<Link> link) AQ_REQUIRES(mutex_);
  // Ends the session, because the node is gone or counts as gone. Touches no request.
  void EndSession() AQ_REQUIRES(mutex_);
  void SignalSelf() AQ_REQUIRES(mutex_);

  // ---- Requests ----

  // Begins a request. Returns its number, or 0 if the request completed at once.
  uint64_t Begin(Request* request, FrameKind kind, int64_t timeout_nanos = INT64_MAX)
      AQ_REQUIRES(mutex_);
  void Settle(Request* request, const Status& status, size_t completed) AQ_REQUIRES(mutex_);
  // Returns true if the request may change the cache. An observer's request is completed with an
  // error instead.
  bool MayChange(Request* request) AQ_REQUIRES(mutex_);
  void SendLayout(RegisterLayoutRequest* request) AQ_REQUIRES(mutex_);
  // Returns our handle of the layout, which is the same for every node.
  LayoutHandle Know(const Layout& layout, LayoutHandle at_node) AQ_REQUIRES(mutex_);
  // Returns the node's handle of the layout, or 0 if the node does not know it.
  LayoutHandle AtNode(LayoutHandle handle) const AQ_REQUIRES(mutex_);
  template <class R, class Call>
  void SendChain(R* request, FrameKind kind, Call call, std::span<const uint64_t> hashes = {});
  void PackOps(std::span<const CommitOp> ops) AQ_REQUIRES(mutex_);
  bool TakeNote() AQ_REQUIRES(mutex_);
  void Transmit() AQ_REQUIRES(mutex_);

  template <class Op>
  void GiveBack(std::span<const Op> ops, FrameKind kind) AQ_REQUIRES(mutex_);
  // Sends the operations with the node's own ids; at most one frame of them.
  template <class Op>
  void SendBack(std::span<const Op> given, FrameKind kind, Link* to) AQ_REQUIRES(mutex_);
  // Ends a reservation that was committed or never will be.
  void EndReservation(ReservationId id) AQ_REQUIRES(mutex_);
  void LetGo(Link* link, std::vector<uint32_t>* extents) AQ_REQUIRES(mutex_);

  // ---- Answers ----

  // Applies all answers that have come. Returns how many requests moved on.
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
  // Applies a late answer, to a request that was completed without the node: its loans go back.
  Status TakeTooLate(Session* session, SentRequest* sent, const AnswerHead& head,
                     FrameReader* frame) AQ_REQUIRES(mutex_);
  // Completes the requests whose answers are overdue.
  void SettleLate(Session* session) AQ_REQUIRES(mutex_);
  // Completes all requests of a session whose node is gone. Answers that the node had already sent
  // are applied; the rest are misses. Returns how many answers were applied.
  size_t SettleAll(Session* session) AQ_REQUIRES(mutex_);
  // Completes a request without a node: there was none, or it went away meanwhile.
  void SettleUnavailable(const SentRequest& sent, const Status& commits) AQ_REQUIRES(mutex_);
  void SettleUnanswered(const SentRequest& sent, const Status& why, const Status& commits)
      AQ_REQUIRES(mutex_);

  // Returns true if there is no answer and the descriptor will report the next one.
  bool PrepareToSleep() AQ_REQUIRES(mutex_);
  // Polls for a while, as long as the node is awake too. Returns true if there is an answer.
  bool Spin(int64_t end_nanos);

  // ---- The link thread ----

  void Watch();
  Watched LookAtLinks();
  // Wakes the caller if an answer is overdue. Returns false if the node is lost.
  bool LookAtRequests(int64_t now_nanos) AQ_REQUIRES(mutex_);
  // Tries once to connect. Returns true if there is a session.
  bool Reconnect();
  // Sleeps until an event or the time is up. Returns true if the thread is to stop.
  bool SleepFor(int64_t nanos, int one, int other = -1);
  Status RegisterLayoutsAt(Link* link, const std::vector<Layout>& layouts,
                           std::vector<LayoutHandle>* handles);

  const ConnectOptions options_;
  const std::vector<std::string> sockets_;  // The sockets on which the node may be.
  const ClientOptions client_;
  // An epoll descriptor over self_event_ and the link's event. It stays the same from node to node.
  Descriptor event_;
  // Signalled when the client completed a request itself, or is to complete one.
  Descriptor self_event_;
  Descriptor changed_event_;  // Signalled when the link thread is to look at its links again.
  Descriptor stop_event_;

  Mutex mutex_;
  std::unique_ptr<Session> session_ AQ_GUARDED_BY(mutex_);  // Null while there is no node.
  // Ended sessions that have requests to complete, or of which the caller holds loans.
  std::vector<std::unique_ptr<Session>> ended_ AQ_GUARDED_BY(mutex_);
  Loans loans_ AQ_GUARDED_BY(mutex_);
  std::vector<KnownLayout> layouts_ AQ_GUARDED_BY(mutex_);
  std::vector<Settled> settled_ AQ_GUARDED_BY(mutex_);
  uint64_t dropped_notes_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t look_nanos_ AQ_GUARDED_BY(mutex_) = INT64_MAX;  // When the link thread should wake.
  // When the link thread will wake by itself.
  int64_t awaken_nanos_ AQ_GUARDED_BY(mutex_) = INT64_MAX;
  bool may_be_readable_ AQ_GUARDED_BY(mutex_) = false;  // The event descriptor may be readable.
  // Mappings that go when the mutex is unlocked.
  std::vector<MappedExtent> unmapped_ AQ_GUARDED_BY(mutex_);
  FrameWriter writer_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> frame_ AQ_GUARDED_BY(mutex_);
  std::vector<std::byte> ops_ AQ_GUARDED_BY(mutex_);  // The encoded operations of a commit.

  std::thread thread_;
};

}  // namespace aquifer
