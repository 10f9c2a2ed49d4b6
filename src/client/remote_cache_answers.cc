// Reads answers from the ring, and completes requests whose node is gone. All of this runs on the
// caller's thread.
#include <utility>

#include "base/clock.h"
#include "base/request_progress.h"
#include "client/remote_cache.h"
#include "client/wake_event.h"

namespace aquifer {
namespace {

constexpr size_t kFramesPerPoll = 64;
constexpr std::string_view kDroppedNotes = "dropped_notes";

const Status kNoNode(Code::kUnavailable, "the node is away; the client looks for it");
const Status kTooLate(Code::kLate, "the node does not answer");

bool HasOps(FrameKind kind) {
  return kind == FrameKind::kFetch || kind == FrameKind::kReserve || kind == FrameKind::kCommit;
}

}  // namespace

size_t RemoteCache::Apply() {
  size_t moved = 0;
  if (session_ != nullptr) {
    const bool flushed = session_->link()->Flush();
    const size_t answers = ReadAnswers(session_.get());
    moved += answers;
    if (answers < kFramesPerPoll) SettleLate(session_.get());  // No answer waits to be read.
    if (!flushed || session_->link()->over()) EndSession();
  }
  for (const std::unique_ptr<Session>& ended : ended_) {
    if (!ended->settled()) moved += SettleAll(ended.get());
  }
  for (const Settled& settled : settled_) {
    RequestProgress::Advance(settled.request, settled.completed, true);
  }
  moved += settled_.size();
  settled_.clear();
  return moved;
}

size_t RemoteCache::ReadAnswers(Session* session) {
  size_t moved = 0;
  for (; moved < kFramesPerPoll; ++moved) {
    Status status = session->link()->Receive(&frame_);
    if (status.code() == Code::kNotFound) break;
    if (status.ok()) status = TakeAnswer(session, frame_);
    if (!status.ok()) {
      session->link()->SetOver();
      break;
    }
  }
  return moved;
}

Status RemoteCache::TakeAnswer(Session* session, std::span<const std::byte> frame) {
  FrameReader reader(frame);
  if (reader.header().kind != static_cast<uint16_t>(FrameKind::kAnswer)) {
    return Status(Code::kInvalid, "the node sent a frame of an unknown kind");
  }
  AnswerHead head;
  Decode(&reader, &head);
  SentRequest* const sent = session->Find(reader.header().number);
  if (sent == nullptr)
    return Status(Code::kInvalid, "the node answered a request that is not open");
  // The next node must know a layout that the last node took: the client asks the next node
  // instead.
  if (sent->kind == FrameKind::kRegisterLayout && session != session_.get()) return Status();
  if (head.first != sent->received)
    return Status(Code::kInvalid, "the node's answers are out of order");
  if (sent->request == nullptr) return TakeTooLate(session, sent, head, &reader);
  if (head.done) TakeSummary(sent, head.code, &reader);
  AQ_RETURN_IF_ERROR(TakeItems(session, sent, head, &reader));
  AQ_RETURN_IF_ERROR(reader.End());
  sent->received += head.count;
  Request* const request = sent->request;
  const bool ok = head.done && head.code == Code::kOk;
  const size_t completed = HasOps(sent->kind) ? sent->received : (ok ? 1 : 0);
  if (head.done) {
    request->status = ok ? Status() : Status(head.code, std::string(head.message));
    session->End(sent);
  }
  RequestProgress::Advance(request, completed, head.done);
  return Status();
}

Status RemoteCache::TakeItems(Session* session, SentRequest* sent, const AnswerHead& head,
                              FrameReader* frame) {
  const auto room = [&head](size_t ops) {
    return head.first <= ops && head.count <= ops - head.first;
  };
  switch (sent->kind) {
    case FrameKind::kMatch: {
      auto* const match = static_cast<MatchRequest*>(sent->request);
      if (head.first == 0) match->runs.clear();
      for (uint32_t i = 0; i < head.count && frame->left() > 0; ++i) {
        Decode(frame, &match->runs.emplace_back());
      }
      return Status();
    }
    case FrameKind::kFetch: {
      auto* const fetch = static_cast<FetchRequest*>(sent->request);
      if (!room(fetch->ops.size())) break;
      TakeFetched(session->link(), fetch, head, frame);
      return Status();
    }
    case FrameKind::kReserve: {
      auto* const reserve = static_cast<ReserveRequest*>(sent->request);
      if (!room(reserve->ops.size())) break;
      TakeReserved(session->link(), reserve, head, frame);
      return Status();
    }
    case FrameKind::kCommit: {
      auto* const commit = static_cast<CommitRequest*>(sent->request);
      if (!room(commit->ops.size())) break;
      TakeCommitted(commit, head, frame);
      return Status();
    }
    default:
      if (head.count == 0) return Status();
  }
  return Status(Code::kInvalid, "the node sent more answers than operations");
}

void RemoteCache::TakeFetched(Link* link, FetchRequest* request, const AnswerHead& head,
                              FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    FetchAnswer answer;
    Decode(frame, &answer);
    FetchOp& op = request->ops[head.first + i];
    op.status = Status(answer.code);
    op.tier = answer.tier;
    op.checksum = answer.checksum;
    if (answer.lease == 0) continue;
    const Result<std::span<std::byte>> bytes = link->Find(answer.slot);
    if (!bytes.ok()) {  // This process cannot map the block: the lease goes back unread.
      op.status = bytes.status();
      const ReleaseOp release{.lease = answer.lease};
      SendBack(std::span(&release, 1), FrameKind::kRelease, link);
      continue;
    }
    op.bytes = *bytes;
    op.lease = loans_.Add({.node_id = answer.lease, .link = link, .extent = answer.slot.extent});
  }
}

void RemoteCache::TakeReserved(Link* link, ReserveRequest* request, const AnswerHead& head,
                               FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    ReserveAnswer answer;
    Decode(frame, &answer);
    ReserveOp& op = request->ops[head.first + i];
    op.outcome = answer.outcome;
    op.refusal = answer.refusal;
    op.wait_ms = answer.wait_ms;
    if (answer.reservation == 0) continue;
    const Result<std::span<std::byte>> bytes = link->Find(answer.slot);
    if (!bytes.ok()) {
      op.outcome = ReserveOutcome::kRefused;
      op.refusal = Refusal::kFull;
      SendBack(std::span<const ReservationId>(&answer.reservation, 1), FrameKind::kAbort, link);
      continue;
    }
    op.slot = *bytes;
    op.reservation = loans_.Add({.node_id = answer.reservation,
                                 .link = link,
                                 .extent = answer.slot.extent,
                                 .reservation = true});
  }
}

void RemoteCache::TakeCommitted(CommitRequest* request, const AnswerHead& head,
                                FrameReader* frame) {
  for (uint32_t i = 0; i < head.count; ++i) {
    CommitAnswer answer;
    Decode(frame, &answer);
    CommitOp& op = request->ops[head.first + i];
    op.published = answer.published;
    op.status = answer.code == Code::kOk
                    ? Status()
                    : Status(answer.code, "the reservation is unknown, void or overlapping");
    if (answer.over) EndReservation(op.reservation);
  }
}

void RemoteCache::TakeSummary(SentRequest* sent, Code code, FrameReader* frame) {
  switch (sent->kind) {
    case FrameKind::kMatch: {
      MatchAnswer answer;
      Decode(frame, &answer);
      auto* const match = static_cast<MatchRequest*>(sent->request);
      match->matched = answer.matched;
      match->pays = answer.pays;
      match->load_ms = answer.load_ms;
      match->recompute_ms = answer.recompute_ms;
      return;
    }
    case FrameKind::kStats: {
      CacheStats& stats = static_cast<StatsRequest*>(sent->request)->stats;
      Decode(frame, &stats);
      for (auto& [name, value] : stats.counters) {
        if (name == kDroppedNotes) value += dropped_notes_;
      }
      return;
    }
    case FrameKind::kFetch:
    case FrameKind::kReserve:
    case FrameKind::kCommit:
    case FrameKind::kFlush:
      return;
    default:
      return TakeCounts(sent, code, frame);
  }
}

void RemoteCache::TakeCounts(SentRequest* sent, Code code, FrameReader* frame) {
  CountsAnswer counts;
  Decode(frame, &counts);
  switch (sent->kind) {
    case FrameKind::kRegisterLayout: {
      auto* const request = static_cast<RegisterLayoutRequest*>(sent->request);
      if (code != Code::kOk) return;
      request->handle = Know(request->layout, static_cast<LayoutHandle>(counts.first));
      return;
    }
    case FrameKind::kPin:
      static_cast<PinRequest*>(sent->request)->pinned = counts.first;
      return;
    case FrameKind::kPrestage:
      static_cast<PrestageRequest*>(sent->request)->found = counts.first;
      static_cast<PrestageRequest*>(sent->request)->staged = counts.second;
      return;
    case FrameKind::kEvict:
      static_cast<EvictRequest*>(sent->request)->evicted = counts.first;
      return;
    case FrameKind::kDrain:
      static_cast<DrainRequest*>(sent->request)->left = counts.first;
      return;
    default:
      return;
  }
}

// ---- Without the node ----

Status RemoteCache::TakeTooLate(Session* session, SentRequest* sent, const AnswerHead& head,
                                FrameReader* frame) {
  std::vector<ReleaseOp> leases;
  std::vector<ReservationId> reservations;
  if (sent->kind == FrameKind::kFetch) {
    for (uint32_t i = 0; i < head.count && frame->left() > 0; ++i) {
      FetchAnswer answer;
      Decode(frame, &answer);
      if (answer.lease != 0) leases.push_back({.lease = answer.lease});
    }
  }
  if (sent->kind == FrameKind::kReserve) {
    for (uint32_t i = 0; i < head.count && frame->left() > 0; ++i) {
      ReserveAnswer answer;
      Decode(frame, &answer);
      if (answer.reservation != 0) reservations.push_back(answer.reservation);
    }
  }
  SendBack(std::span<const ReleaseOp>(leases), FrameKind::kRelease, session->link());
  SendBack(std::span<const ReservationId>(reservations), FrameKind::kAbort, session->link());
  const bool was_read = sent->kind == FrameKind::kFetch || sent->kind == FrameKind::kReserve;
  if (was_read) AQ_RETURN_IF_ERROR(frame->End());
  sent->received += head.count;
  if (head.done) session->End(sent);
  return Status();
}

void RemoteCache::SettleLate(Session* session) {
  if (session->settle_nanos() == INT64_MAX) return;
  const int64_t now = SystemClock()->NowNanos();
  if (now < session->settle_nanos()) return;
  for (SentRequest& sent : session->sent()) {
    if (sent.request == nullptr || sent.settle_nanos > now) continue;
    SettleUnanswered(sent, kTooLate, kTooLate);
    session->Leave(&sent);
  }
  session->UpdateSettle();
}

size_t RemoteCache::SettleAll(Session* session) {
  // Answers that came before the session's end still count, unless their memory is unmapped by now.
  size_t answers = 0;
  size_t moved = 0;
  do {
    answers = ReadAnswers(session);
    moved += answers;
  } while (answers == kFramesPerPoll);
  for (SentRequest& sent : session->sent()) {
    if (!sent.open) continue;
    if (sent.kind == FrameKind::kRegisterLayout) {
      SendLayout(static_cast<RegisterLayoutRequest*>(sent.request));
    } else if (sent.request != nullptr) {
      SettleUnavailable(sent, kNoNode);
    }
    session->End(&sent);
  }
  session->SetSettled();
  Signal(changed_event_);
  return moved;
}

void RemoteCache::SettleUnavailable(const SentRequest& sent, const Status& commits) {
  SettleUnanswered(sent, kNoNode, commits);
}

void RemoteCache::SettleUnanswered(const SentRequest& sent, const Status& why,
                                   const Status& commits) {
  size_t completed = 0;
  switch (sent.kind) {
    case FrameKind::kMatch: {
      auto* const match = static_cast<MatchRequest*>(sent.request);
      match->matched = match->pays = 0;
      match->load_ms = match->recompute_ms = 0;
      match->runs.clear();
      break;
    }
    case FrameKind::kFetch: {
      auto* const fetch = static_cast<FetchRequest*>(sent.request);
      completed = fetch->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        // The lease of an answer that made no sense.
        const ReleaseOp release{.lease = fetch->ops[i].lease};
        GiveBack(std::span(&release, 1), FrameKind::kRelease);
        fetch->ops[i] = FetchOp{};
        fetch->ops[i].status = why;
      }
      break;
    }
    case FrameKind::kReserve: {
      auto* const reserve = static_cast<ReserveRequest*>(sent.request);
      completed = reserve->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        EndReservation(reserve->ops[i].reservation);
        reserve->ops[i] = ReserveOp{};
        reserve->ops[i].refusal = Refusal::kFull;
      }
      break;
    }
    case FrameKind::kCommit: {
      auto* const commit = static_cast<CommitRequest*>(sent.request);
      completed = commit->ops.size();
      for (size_t i = sent.received; i < completed; ++i) {
        commit->ops[i].status = commits;
        commit->ops[i].published = false;
        // The node may take the commit after all. By then it no longer knows the reservation.
        GiveBack(std::span<const ReservationId>(&commit->ops[i].reservation, 1), FrameKind::kAbort);
      }
      break;
    }
    default:
      break;
  }
  // Blocks of a late fetch are late one by one, as the node would report them.
  const bool late_blocks = sent.kind == FrameKind::kFetch && why.code() == Code::kLate;
  Settle(sent.request, late_blocks ? Status() : why, completed);
}

}  // namespace aquifer
