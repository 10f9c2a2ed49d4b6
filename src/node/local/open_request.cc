#include "node/local/open_request.h"

#include <algorithm>
#include <string>

#include "base/request_progress.h"

namespace aquifer {
namespace {

// The keys of a request, as they arrive.
class Chain {
 public:
  Status Begin(const ChainCall& call, bool keep) {
    total_ = call.total;
    keep_ = keep;
    slice_.layout = call.layout;
    slice_.group = call.group;
    slice_.part = call.part;
    named_ = !call.items.engine_hashes.empty();
    if (keep_) keys_.reserve(total_);  // Costs nothing until they are there.
    return Add(call.items);
  }

  Status Add(const KeyItems& items) {
    if (arrived_ + items.keys.size() > total_) {
      return Status(Code::kInvalid, "more keys than were announced");
    }
    if (!items.keys.empty() && items.engine_hashes.empty() == named_) {
      return Status(Code::kInvalid, "names for some keys and not for others");
    }
    arrived_ += items.keys.size();
    if (!keep_) return Status();
    keys_.insert(keys_.end(), items.keys.begin(), items.keys.end());
    for (size_t i = 0; named_ && i < items.keys.size(); ++i) names_.push_back(items.engine_hash(i));
    return Status();
  }

  size_t total() const { return total_; }
  size_t arrived() const { return arrived_; }
  // For the trace. Requests of one engine for its other groups and parts are the same request.
  RecordedCall TakeRecorded(RecordedCall::Kind kind, LayoutHandle* layout) {
    *layout = slice_.layout;
    if (slice_.group != 0 || slice_.part != 0) return {};
    return {.kind = kind, .keys = std::move(keys_)};
  }
  std::span<const uint64_t> names() const { return names_; }
  ChainSlice Slice() {
    slice_.keys = keys_;
    return slice_;
  }

 private:
  uint32_t total_ = 0;
  size_t arrived_ = 0;
  bool keep_ = true;
  bool named_ = false;
  ChainSlice slice_;
  std::vector<Key> keys_;
  std::vector<uint64_t> names_;
};

// How many of `count` from `first` on, in a row.
template <class Predicate>
size_t CountWhile(size_t first, size_t count, Predicate holds) {
  size_t counted = 0;
  while (counted < count && holds(first + counted)) ++counted;
  return counted;
}

template <class R, auto kCall>
class Typed : public OpenRequest {
 public:
  Request* request() final { return &request_; }
  void Submit(Core* core, ClientNumber client) final {
    Complete();
    // The room for the answers grew as the keys arrived: a long chain's takes longer to make than a
    // task of the owner's may.
    RequestProgress::Begin(static_cast<Request*>(&request_));
    RequestProgress::SetCalled(&request_, this->begun_nanos);
    (core->*kCall)(client, &request_);
  }

 protected:
  // Everything has arrived.
  virtual void Complete() {}

  R request_;
};

template <class R, auto kCall, class Call>
class ChainRequest : public Typed<R, kCall> {
 public:
  Status Begin(FrameReader* frame, size_t max_items) final {
    Call call;
    AQ_RETURN_IF_ERROR(Decode(frame, &call));
    this->refused = this->refused || call.chain.total > max_items;
    Take(call);
    AQ_RETURN_IF_ERROR(chain_.Begin(call.chain, !this->refused));
    if (!this->refused) Grow();
    return Status();
  }
  Status More(FrameReader* frame) final {
    KeyItems items;
    AQ_RETURN_IF_ERROR(Decode(frame, &items));
    AQ_RETURN_IF_ERROR(chain_.Add(items));
    if (!this->refused) Grow();
    return Status();
  }
  size_t announced() const final { return chain_.total(); }
  size_t arrived() const final { return chain_.arrived(); }

 protected:
  virtual void Take(const Call& call) = 0;
  virtual void Grow() {}
  template <class Op>
  void GrowOps(std::vector<Op>* ops) const {
    ops->reserve(chain_.total());
    ops->resize(chain_.arrived());
  }
  void Complete() override { this->request_.chain = chain_.Slice(); }

  Chain chain_;
};

class RegisterLayoutOpen final : public Typed<RegisterLayoutRequest, &Core::RegisterLayout> {
 public:
  Status Begin(FrameReader* frame, size_t) override { return Decode(frame, &request_.layout); }
  size_t items(size_t, bool) const override { return 0; }
  bool for_observers() const override { return true; }
  bool announces_stores() const override { return true; }
  void EncodeSummary(FrameWriter* to) override {
    Encode(CountsAnswer{.first = request_.handle}, to);
  }
};

class MatchOpen final : public ChainRequest<MatchRequest, &Core::Match, MatchCall> {
 public:
  void AnswerObserver() override {}  // Nothing matches.
  RecordedCall TakeRecorded(LayoutHandle* layout) override {
    return chain_.TakeRecorded(RecordedCall::Kind::kAsked, layout);
  }
  size_t items(size_t, bool done) const override { return done ? request_.runs.size() : 0; }
  void EncodeItems(size_t first, size_t count, SlotLocator*, FrameWriter* to) override {
    for (size_t i = first; i < first + count; ++i) Encode(request_.runs[i], to);
  }
  void EncodeSummary(FrameWriter* to) override {
    Encode(MatchAnswer{.matched = request_.matched,
                       .pays = request_.pays,
                       .load_ms = request_.load_ms,
                       .recompute_ms = request_.recompute_ms},
           to);
  }

 private:
  void Take(const MatchCall& call) override { request_.have = call.have; }
};

class FetchOpen final : public ChainRequest<FetchRequest, &Core::Fetch, FetchCall> {
 public:
  void AnswerObserver() override {
    for (FetchOp& op : request_.ops) op.status = Status(Code::kNotFound);
    ready = request_.ops.size();
  }
  size_t CanTell(size_t first, size_t count, SlotLocator* locator) override {
    return CountWhile(first, count, [&](size_t i) {
      const LeaseId lease = request_.ops[i].lease;
      return lease == 0 || locator->CanLocate(lease, false);
    });
  }
  void EncodeItems(size_t first, size_t count, SlotLocator* locator, FrameWriter* to) override {
    for (size_t i = first; i < first + count; ++i) {
      const FetchOp& op = request_.ops[i];
      FetchAnswer answer{.code = op.status.code(),
                         .tier = op.tier,
                         .slot = {},
                         .lease = op.lease,
                         .checksum = op.checksum};
      if (op.lease != 0) answer.slot = locator->Locate(op.lease, false, op.bytes.size());
      Encode(answer, to);
    }
  }
  size_t lending() const override { return request_.ops.size(); }
  void Forget(size_t first, size_t count, Undelivered* left) override {
    for (size_t i = first; i < first + count; ++i) {
      if (request_.ops[i].lease != 0) left->leases.push_back({.lease = request_.ops[i].lease});
    }
  }

 private:
  void Take(const FetchCall& call) override { request_.timeout_nanos = call.timeout_nanos; }
  void Grow() override { GrowOps(&request_.ops); }
};

class ReserveOpen final : public ChainRequest<ReserveRequest, &Core::Reserve, ReserveCall> {
 public:
  RecordedCall TakeRecorded(LayoutHandle* layout) override {
    RecordedCall call = chain_.TakeRecorded(RecordedCall::Kind::kStored, layout);
    call.parent = request_.parent;
    return call;
  }
  void AnswerObserver() override { ready = request_.ops.size(); }
  size_t CanTell(size_t first, size_t count, SlotLocator* locator) override {
    return CountWhile(first, count, [&](size_t i) {
      const ReservationId reservation = request_.ops[i].reservation;
      return reservation == 0 || locator->CanLocate(reservation, true);
    });
  }
  void EncodeItems(size_t first, size_t count, SlotLocator* locator, FrameWriter* to) override {
    for (size_t i = first; i < first + count; ++i) {
      const ReserveOp& op = request_.ops[i];
      ReserveAnswer answer{.outcome = op.outcome,
                           .refusal = op.refusal,
                           .wait_ms = op.wait_ms,
                           .slot = {},
                           .reservation = op.reservation};
      if (op.reservation != 0) {
        answer.slot = locator->Locate(op.reservation, true, op.slot.size());
      }
      Encode(answer, to);
    }
  }
  size_t lending() const override { return request_.ops.size(); }
  void Forget(size_t first, size_t count, Undelivered* left) override {
    for (size_t i = first; i < first + count; ++i) {
      if (request_.ops[i].reservation != 0) {
        left->reservations.push_back(request_.ops[i].reservation);
      }
    }
  }

 private:
  void Take(const ReserveCall& call) override {
    request_.parent = call.parent;
    request_.position = call.position;
  }
  void Grow() override { GrowOps(&request_.ops); }
  void Complete() override {
    ChainRequest::Complete();
    request_.engine_hashes = chain_.names();
  }
};

class CommitOpen final : public Typed<CommitRequest, &Core::Commit> {
 public:
  Status Begin(FrameReader* frame, size_t max_items) override {
    CommitCall call;
    AQ_RETURN_IF_ERROR(Decode(frame, &call));
    total_ = call.total;
    refused = refused || total_ > max_items;
    return Add(call.ops);
  }
  Status More(FrameReader* frame) override {
    std::span<const std::byte> ops;
    AQ_RETURN_IF_ERROR(DecodeOps(frame, &ops));
    return Add(ops);
  }
  size_t announced() const override { return total_; }
  size_t arrived() const override { return arrived_; }
  void AnswerObserver() override {
    for (CommitOp& op : request_.ops) op.status = Status(Code::kInvalid);
    ready = request_.ops.size();
  }
  void EncodeItems(size_t first, size_t count, SlotLocator* locator, FrameWriter* to) override {
    for (size_t i = first; i < first + count; ++i) {
      const CommitOp& op = request_.ops[i];
      Encode(CommitAnswer{.code = op.status.code(),
                          .published = op.published,
                          .over = !locator->Holds(op.reservation, true)},
             to);
    }
  }

 private:
  Status Add(std::span<const std::byte> ops) {
    const size_t count = ops.size() / kCommitOpBytes;
    if (arrived_ + count > total_) {
      return Status(Code::kInvalid, "more operations than were announced");
    }
    arrived_ += count;
    if (refused) return Status();
    for (size_t i = 0; i < count; ++i) {
      request_.ops.push_back(
          DecodeCommitOp(ops.subspan(i * kCommitOpBytes).first<kCommitOpBytes>()));
    }
    return Status();
  }

  uint32_t total_ = 0;
  size_t arrived_ = 0;
};

class FlushOpen final : public Typed<FlushRequest, &Core::Flush> {
 public:
  Status Begin(FrameReader* frame, size_t) override {
    FlushCall call;
    AQ_RETURN_IF_ERROR(Decode(frame, &call));
    request_.tier = call.tier;
    request_.timeout_nanos = call.timeout_nanos;
    return Status();
  }
  size_t items(size_t, bool) const override { return 0; }
};

class PinOpen final : public ChainRequest<PinRequest, &Core::Pin, PinCall> {
 public:
  size_t items(size_t, bool) const override { return 0; }
  void EncodeSummary(FrameWriter* to) override {
    Encode(CountsAnswer{.first = request_.pinned}, to);
  }

 private:
  void Take(const PinCall& call) override { request_.seconds = call.seconds; }
};

class PrestageOpen final : public ChainRequest<PrestageRequest, &Core::Prestage, PrestageCall> {
 public:
  size_t items(size_t, bool) const override { return 0; }
  void EncodeSummary(FrameWriter* to) override {
    Encode(CountsAnswer{.first = request_.found, .second = request_.staged}, to);
  }

 private:
  void Take(const PrestageCall& call) override {
    request_.session = call.session;
    request_.timeout_nanos = call.timeout_nanos;
  }
};

class EvictOpen final : public ChainRequest<EvictRequest, &Core::Evict, EvictCall> {
 public:
  size_t items(size_t, bool) const override { return 0; }
  void EncodeSummary(FrameWriter* to) override {
    Encode(CountsAnswer{.first = request_.evicted}, to);
  }

 private:
  void Take(const EvictCall& call) override {
    request_.session = call.session;
    request_.everything = call.everything;
  }
};

class DrainOpen final : public Typed<DrainRequest, &Core::Drain> {
 public:
  Status Begin(FrameReader* frame, size_t) override {
    DrainCall call;
    AQ_RETURN_IF_ERROR(Decode(frame, &call));
    request_.timeout_nanos = call.timeout_nanos;
    return Status();
  }
  size_t items(size_t, bool) const override { return 0; }
  void EncodeSummary(FrameWriter* to) override { Encode(CountsAnswer{.first = request_.left}, to); }
};

class StatsOpen final : public Typed<StatsRequest, &Core::Stats> {
 public:
  Status Begin(FrameReader* frame, size_t) override { return frame->End(); }
  bool for_observers() const override { return true; }
  size_t items(size_t, bool) const override { return 0; }
  void EncodeSummary(FrameWriter* to) override { Encode(request_.stats, to); }
};

}  // namespace

Status OpenRequest::More(FrameReader* /*frame*/) {
  return Status(Code::kInvalid, "a request that cannot go on");
}

void OpenRequest::AnswerObserver() {
  request()->status = Status(Code::kInvalid, "a client that observes changes nothing");
}

std::unique_ptr<OpenRequest> OpenRequest::New(FrameKind kind) {
  switch (kind) {
    case FrameKind::kRegisterLayout:
      return std::make_unique<RegisterLayoutOpen>();
    case FrameKind::kMatch:
      return std::make_unique<MatchOpen>();
    case FrameKind::kFetch:
      return std::make_unique<FetchOpen>();
    case FrameKind::kReserve:
      return std::make_unique<ReserveOpen>();
    case FrameKind::kCommit:
      return std::make_unique<CommitOpen>();
    case FrameKind::kFlush:
      return std::make_unique<FlushOpen>();
    case FrameKind::kPin:
      return std::make_unique<PinOpen>();
    case FrameKind::kPrestage:
      return std::make_unique<PrestageOpen>();
    case FrameKind::kEvict:
      return std::make_unique<EvictOpen>();
    case FrameKind::kDrain:
      return std::make_unique<DrainOpen>();
    case FrameKind::kStats:
      return std::make_unique<StatsOpen>();
    default:
      return nullptr;
  }
}

}  // namespace aquifer
