#include "testing/cache/fake_durable_tier.h"

#include <algorithm>
#include <cstring>

#include "aquifer/checksum.h"

namespace aquifer {

FakeDurableTier::FakeDurableTier(std::string name, FakeStore* store, TierListener* listener,
                                 Executor* executor, Clock* clock)
    : name_(std::move(name)),
      store_(store),
      listener_(listener),
      executor_(executor),
      clock_(clock) {}

FakeDurableTier::~FakeDurableTier() { *alive_ = false; }

void FakeDurableTier::SetInService(bool in_service) {
  in_service_ = in_service;
  listener_->OnHealth(in_service,
                      in_service ? Status() : Status(Code::kUnavailable, "taken out by a test"));
}

void FakeDurableTier::Later(int64_t nanos, Task task) {
  executor_->PostAt(clock_->NowNanos() + nanos, [task = std::move(task), alive = alive_] {
    if (*alive) task();
  });
}

void FakeDurableTier::LetGo() {
  while (!open_.empty()) End(open_.begin()->first, false);
  for (const auto& tell : std::exchange(held_, {})) tell();
}

void FakeDurableTier::End(const void* batch, bool late) {
  const auto found = open_.find(batch);
  if (found == open_.end()) return;
  const Open open = std::move(found->second);
  open_.erase(found);
  late ? open.late() : open.finish();
}

template <>
void FakeDurableTier::SetInFlight(ReadOp* op, bool in_flight) {
  op->in_flight = in_flight;
}
template <>
void FakeDurableTier::SetInFlight(WriteOp* op, bool in_flight) {
  op->in_flight = in_flight;
}
template <class Op>
void FakeDurableTier::SetInFlight(Op* /*op*/, bool /*in_flight*/) {}

template <class Op>
void FakeDurableTier::Begin(Batch<Op>* batch, Code fail, void (FakeDurableTier::*one)(Op*)) {
  Open open;
  open.deadline_nanos = batch->deadline_nanos;
  open.finish = [this, batch, fail, one] {
    for (Op& op : batch->ops) {
      SetInFlight(&op, false);
      op.status = !in_service_        ? Status(Code::kUnavailable)
                  : fail != Code::kOk ? Status(fail, "injected")
                                      : Status();
      if (op.status.ok()) (this->*one)(&op);
    }
    batch->on_done(*batch);
  };
  open.late = [this, batch] {
    const bool held = store_->holds_on && batch->on_quiescent != nullptr;
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      batch->ops[i].status = Status(Code::kLate);
      SetInFlight(&batch->ops[i], held);
      if (held) held_.emplace_back([batch, i] { batch->on_quiescent(*batch, i); });
    }
    batch->on_done(*batch);
  };
  open_[batch] = std::move(open);
  if (!in_service_) return Later(0, [this, batch] { End(batch, false); });
  const int64_t now = clock_->NowNanos();
  if (!store_->hang && now + store_->latency_nanos <= batch->deadline_nanos) {
    return Later(store_->latency_nanos, [this, batch] { End(batch, false); });
  }
  if (batch->deadline_nanos == INT64_MAX) return;
  Later(std::max<int64_t>(batch->deadline_nanos - now, 0), [this, batch] { End(batch, true); });
}

void FakeDurableTier::Look(Batch<LookOp>* batch) {
  ++store_->look_batches;
  store_->looks += batch->ops.size();
  Begin(batch, store_->fail_looks, &FakeDurableTier::LookOne);
}
void FakeDurableTier::Read(Batch<ReadOp>* batch) {
  store_->reads += batch->ops.size();
  Begin(batch, store_->fail_reads, &FakeDurableTier::ReadOne);
}
void FakeDurableTier::Write(Batch<WriteOp>* batch) {
  Begin(batch, store_->fail_writes, &FakeDurableTier::WriteOne);
}
void FakeDurableTier::Erase(Batch<EraseOp>* batch) {
  Begin(batch, store_->fail_erasures, &FakeDurableTier::EraseOne);
}

const FakeStore::Blob* FakeDurableTier::Find(const BlockId& id) const {
  const auto found = store_->blobs.find(id);
  if (found == store_->blobs.end()) return nullptr;
  const int64_t expiry = found->second.meta.expiry_unix_seconds;
  return expiry != 0 && expiry <= clock_->UnixSeconds() ? nullptr : &found->second;
}

void FakeDurableTier::LookOne(LookOp* op) {
  const FakeStore::Blob* const blob = Find(op->id);
  if (blob != nullptr) op->meta = blob->meta;
  op->status = blob == nullptr ? Status(Code::kNotFound) : Status();
}

void FakeDurableTier::ReadOne(ReadOp* op) {
  const FakeStore::Blob* const blob = Find(op->id);
  if (blob == nullptr) {
    op->status = Status(Code::kNotFound);
    return;
  }
  std::memcpy(op->target.data(), blob->bytes.data(), blob->bytes.size());
  op->checksum = ChecksumOf(op->target.first(blob->meta.raw_bytes));
  if (op->meta != nullptr) *op->meta = blob->meta;
  if (op->checksum != blob->meta.checksum) op->status = Status(Code::kCorrupt);
}

void FakeDurableTier::WriteOne(WriteOp* op) {
  const FakeStore::Blob* const known = Find(op->meta.id);
  if (known != nullptr && !op->replace && known->meta.checksum == op->meta.checksum) return;
  ++store_->writes;
  store_->blobs[op->meta.id] = {
      .meta = op->meta, .bytes = {op->source.begin(), op->source.end()}, .dtype = op->dtype};
}

void FakeDurableTier::EraseOne(EraseOp* op) {
  ++store_->erasures;
  if (store_->blobs.erase(op->id) == 0) op->status = Status(Code::kNotFound);
}

void FakeDurableTier::PutNote(const TenantId& tenant, std::string name,
                              std::vector<std::byte> value, int64_t /*expiry_unix_seconds*/,
                              std::function<void(Status)> on_done) {
  if (store_->hang || store_->hang_notes) return;
  Later(store_->latency_nanos, [this, key = std::pair(tenant, std::move(name)),
                                value = std::move(value), on_done = std::move(on_done)] {
    if (!in_service_ || store_->fail_notes || store_->fail_writes != Code::kOk) {
      return on_done(Status(Code::kUnavailable, "injected"));
    }
    store_->notes[key] = value;
    ++store_->notes_written;
    on_done(Status());
  });
}

void FakeDurableTier::GetNote(const TenantId& tenant, std::string name,
                              std::function<void(Result<std::vector<std::byte>>)> on_done) {
  if (store_->hang || store_->hang_notes) return;
  Later(store_->latency_nanos,
        [this, key = std::pair(tenant, std::move(name)), on_done = std::move(on_done)] {
          const auto found = store_->notes.find(key);
          if (!in_service_ || store_->fail_reads != Code::kOk) {
            on_done(Status(Code::kUnavailable, "injected"));
          } else if (found == store_->notes.end()) {
            on_done(Status(Code::kNotFound));
          } else {
            on_done(found->second);
          }
        });
}

void FakeDurableTier::EraseAll(const TenantId& tenant, std::function<void(Status)> on_done) {
  Later(store_->latency_nanos, [this, tenant, on_done = std::move(on_done)] {
    if (!in_service_ || store_->fail_erasures != Code::kOk) {
      return on_done(Status(Code::kUnavailable, "injected"));
    }
    std::erase_if(store_->blobs, [&](const auto& blob) { return blob.first.tenant == tenant; });
    std::erase_if(store_->notes, [&](const auto& note) { return note.first.first == tenant; });
    on_done(Status());
  });
}

}  // namespace aquifer
