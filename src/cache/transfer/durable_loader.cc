#include "cache/transfer/durable_loader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// Each is a request of its own at the store. Small batches let the first blocks of a chain go on
// while the last are being read.
constexpr size_t kMaxBatchOps = 4;
constexpr size_t kMaxReadingOps = 64;
constexpr size_t kPumpSlice = 64;
constexpr size_t kMaxStarved = 8;  // Looking for a slot in vain may take long.
constexpr int64_t kRetryNanos = 1'000'000;
constexpr int64_t kBusyNanos = 5'000'000;

// To begin with: a store across a network.
constexpr TierSpeedOptions kSpeed{.prior_latency_nanos = 10'000'000, .prior_bytes_per_second = 5e8};

}  // namespace

DurableLoader::DurableLoader(const DurableLoaderParts& parts) : parts_(parts), speed_(kSpeed) {}

void DurableLoader::Load(const WantedBlock& block, int64_t deadline_nanos,
                         const LoadTicket& ticket) {
  const BlockId id{.tenant = parts_.catalog->tenant(block.name.tenant).id,
                   .key = block.name.key,
                   .group = block.name.group,
                   .part = block.name.part};
  const auto [known, added] = loads_.try_emplace(id);
  OneLoad& load = known->second;
  if (added) {
    load.id = id;
    load.block = block;
    load.bytes = RoundUpToPage(parts_.catalog->layout(block.layout).groups[id.group].block_bytes);
    load.asked_nanos = parts_.clock->NowNanos();
    parts_.catalog->Hold(block.name.tenant, block.layout);
    queue_.push_back(id);
  } else {
    ++stats_.shared_loads;
    std::erase_if(load.waiters,
                  [](const LoadTicket& other) { return !other.waiter->Waits(other.run); });
  }
  load.deadline_nanos = std::max(load.deadline_nanos, deadline_nanos);
  load.waiters.push_back(ticket);
}

bool DurableLoader::Wanted(OneLoad* load) {
  return std::any_of(load->waiters.begin(), load->waiters.end(),
                     [](const LoadTicket& ticket) { return ticket.waiter->Waits(ticket.run); });
}

void DurableLoader::Forget(const BlockId& id) {
  const auto found = loads_.find(id);
  if (found != loads_.end()) found->second.forgotten = true;
}

void DurableLoader::ForgetTenant(const TenantId& tenant) {
  for (auto load = loads_.lower_bound({.tenant = tenant, .key = {}});
       load != loads_.end() && load->first.tenant == tenant; ++load) {
    load->second.forgotten = true;
  }
}

void DurableLoader::Pump() {
  if (pumping_ || parts_.clock->NowNanos() < busy_until_nanos_) return;
  pumping_ = true;
  std::set<uint16_t> starved;  // Tenants.
  std::deque<BlockId> wait;
  for (size_t left = kPumpSlice;
       left > 0 && !queue_.empty() && starved.size() < kMaxStarved && reading_ops_ < kMaxReadingOps;
       --left) {
    const BlockId id = queue_.front();
    queue_.pop_front();
    OneLoad& load = loads_.at(id);
    const bool waits = starved.contains(load.block.name.tenant);
    if (waits || StartOne(&load) == Turn::kNoSlot) {
      starved.insert(load.block.name.tenant);
      wait.push_back(id);
    }
  }
  if (filling_ != nullptr) Submit(std::exchange(filling_, nullptr));
  pumping_ = false;
  const bool more = !queue_.empty() && starved.empty() && reading_ops_ < kMaxReadingOps;
  queue_.insert(queue_.begin(), wait.begin(), wait.end());  // Nobody overtakes.
  if (!starved.empty()) RetrySoon();
  if (!more) return;
  again_.Post(&tasks_, [this] { Pump(); });
}

DurableLoader::Turn DurableLoader::StartOne(OneLoad* load) {
  const auto settle = [this, load](Status status) {
    Settle(load->id, kNoBlock, status);
    return Turn::kEnded;
  };
  if (load->forgotten) return settle(Status(Code::kNotFound));
  if (!Wanted(load) || load->deadline_nanos <= parts_.clock->NowNanos()) {
    return settle(Status(Code::kLate));
  }
  if (parts_.tier == nullptr || !parts_.tier->in_service()) {
    return settle(Status(Code::kUnavailable, "the durable tier is out of service"));
  }
  // A read of it hangs: it is not read a second time before that has ended.
  if (load->stuck) return Turn::kNoSlot;
  if (reading_bytes_ != 0 && reading_bytes_ + load->bytes > parts_.max_bytes) return Turn::kNoSlot;
  const uint16_t tenant = load->block.name.tenant;
  const Result<SlotId> slot = parts_.residency->TakeSlot(tenant, load->bytes);
  if (!slot.ok()) {
    // What is being read may leave again soon; what its engines hold may be theirs for long.
    if (slot.status().code() != Code::kInvalid || reading_ops_ > 0) return Turn::kNoSlot;
    return settle(Status(Code::kNoSpace, slot.status().message()));
  }
  if (filling_ == nullptr) filling_ = TakeBatch();
  load->reading = true;
  filling_->ids.push_back(load->id);
  filling_->tenants.push_back(tenant);
  filling_->slots.push_back(*slot);
  ReadOp& op = filling_->batch.ops.emplace_back();
  op.id = load->id;
  op.target = parts_.residency->SlotBytes(*slot);
  op.meta = &filling_->metas[filling_->ids.size() - 1];
  filling_->batch.deadline_nanos = std::max(filling_->batch.deadline_nanos, load->deadline_nanos);
  filling_->bytes += load->bytes;
  reading_bytes_ += load->bytes;
  ++reading_ops_;
  if (filling_->ids.size() == kMaxBatchOps) Submit(std::exchange(filling_, nullptr));
  return Turn::kReading;
}

DurableLoader::ReadBatch* DurableLoader::TakeBatch() {
  if (free_batches_.empty()) {
    ReadBatch* const read = batches_.emplace_back(std::make_unique<ReadBatch>()).get();
    read->metas.resize(kMaxBatchOps);
    read->batch.deadline_nanos = 0;
    read->batch.on_done = [this, read](Batch<ReadOp>&) { OnDone(read); };
    read->batch.on_quiescent = [this, read](Batch<ReadOp>&, size_t i) { OnQuiescent(read, i); };
    free_batches_.push_back(read);
  }
  ReadBatch* const read = free_batches_.back();
  free_batches_.pop_back();
  return read;
}

void DurableLoader::Submit(ReadBatch* read) {
  const int64_t now = parts_.clock->NowNanos();
  read->submitted_nanos = now;
  for (const BlockId& id : read->ids) stats_.wait.Add(now - loads_.at(id).asked_nanos);
  read->queued_bytes = speed_.queued_bytes();
  speed_.Submitted(now, read->bytes, static_cast<uint32_t>(read->ids.size()));
  parts_.tier->Read(&read->batch);
}

void DurableLoader::OnDone(ReadBatch* read) {
  const int64_t now = parts_.clock->NowNanos();
  const auto ops = static_cast<uint32_t>(read->ids.size());
  const SpeedSample sample{.bytes = read->bytes,
                           .ops = ops,
                           .queued_bytes = read->queued_bytes,
                           .elapsed_nanos = now - read->submitted_nanos};
  const auto all = [read](Code code) {
    return std::all_of(read->batch.ops.begin(), read->batch.ops.end(),
                       [code](const ReadOp& op) { return op.status.code() == code; });
  };
  if (all(Code::kOk)) {
    speed_.Completed(now, sample);
  } else if (all(Code::kLate)) {
    speed_.Late(now, sample);
  } else {
    speed_.Failed(now, read->bytes, ops);
  }
  reading_ops_ -= ops;
  for (size_t i = 0; i < ops; ++i) OnRead(read, i);
  if (read->unquiet == 0) Recycle(read);
  Pump();
}

void DurableLoader::OnRead(ReadBatch* read, size_t i) {
  const ReadOp& op = read->batch.ops[i];
  const BlockId id = read->ids[i];
  OneLoad& load = loads_.at(id);
  load.reading = false;
  if (op.status.ok() && !load.forgotten) {
    bool used = false;
    const Result<BlockRef> ref = Arrive(load, read->metas[i], read->slots[i], &used);
    if (used) {
      reading_bytes_ -= load.bytes;
    } else {
      FreeSlot(read, i);
    }
    if (!ref.ok()) ++stats_.failed_loads;
    // It does not fit into the chains that are known here: a miss like any other.
    const bool misfit = ref.status().code() == Code::kInvalid;
    return Settle(id, ref.ok() ? *ref : BlockRef{kNoBlock},
                  misfit ? Status(Code::kNotFound) : ref.status());
  }
  if (op.in_flight) {
    parts_.residency->QuarantineSlot(read->slots[i]);
    ++read->unquiet;
    load.stuck = true;
  } else {
    FreeSlot(read, i);
  }
  const bool again = load.deadline_nanos > parts_.clock->NowNanos() && Wanted(&load);
  switch (op.status.code()) {
    case Code::kBusy:
      busy_until_nanos_ = parts_.clock->NowNanos() + kBusyNanos;
      queue_.push_front(id);
      return RetrySoon();
    case Code::kLate:
      ++stats_.late_loads;
      if (!again) break;
      queue_.push_front(id);  // Someone with more time joined after it was submitted.
      return RetrySoon();
    case Code::kUnavailable:  // Nor is it promised to the next request.
    case Code::kNotFound:
    case Code::kCorrupt:
      parts_.presence->Remember(id, false);
      [[fallthrough]];
    default:
      ++stats_.failed_loads;
  }
  Settle(id, kNoBlock, load.forgotten ? Status(Code::kNotFound) : op.status);
}

// It is what was asked for, by all that the request and the store say.
Status DurableLoader::CheckMeta(const OneLoad& load, const BlockMeta& meta) const {
  const LayoutRecord& layout = parts_.catalog->layout(load.block.layout);
  const bool fits = meta.id == load.id && meta.layout_fingerprint == layout.fingerprint &&
                    meta.raw_bytes == layout.groups[load.id.group].block_bytes;
  if (!fits) return Status(Code::kCorrupt, "the store has another block under this name");
  const int64_t expiry = meta.expiry_unix_seconds;
  const bool over = expiry != 0 && expiry <= parts_.clock->UnixSeconds();
  return over || expiry > UINT32_MAX ? Status(Code::kNotFound) : Status();
}

Result<BlockRef> DurableLoader::Arrive(const OneLoad& load, const BlockMeta& meta, SlotId slot,
                                       bool* used) {
  AQ_RETURN_IF_ERROR(CheckMeta(load, meta));
  Residency& residency = *parts_.residency;
  stats_.load.Add(parts_.clock->NowNanos() - load.asked_nanos);
  ++stats_.loads;
  stats_.loaded_bytes += load.bytes;
  const BlockRef known = residency.index().Find(load.block.name);
  if (known != kNoBlock) {
    const BlockEntry& entry = residency.at(known);
    if (entry.state != BlockState::kResident || entry.layout != load.block.layout) {
      return Status(Code::kNotFound);  // It is being stored right now.
    }
    if (entry.in_tier(kTierDram)) return known;
    // NVMe has it and could not serve it. A read there that hangs ends beside this one.
    if (entry.checksum == meta.checksum) {
      residency.ArriveInDram(known, slot);
    } else {
      residency.StoreAgain(known, slot, meta.checksum);  // The tier has another computation of it.
    }
    residency.SetDurable(known, parts_.number, true);
    *used = true;
    return known;
  }
  AQ_ASSIGN_OR_RETURN(
      const BlockRef ref,
      residency.AddLoaded(
          {.name = load.block.name,
           .parent = meta.parent,
           .position = meta.position,
           .layout = load.block.layout,
           .state = BlockState::kResident,
           .expiry_unix_seconds = Planted(PlantedBug::kStoreExpiryIgnored)
                                      ? 0
                                      : static_cast<uint32_t>(meta.expiry_unix_seconds),
           .checksum = meta.checksum,
           .engine_hash = meta.engine_hash,
           .now_nanos = parts_.clock->NowNanos()},
          slot));
  residency.SetDurable(ref, parts_.number, true);
  if (parts_.on_arrived) parts_.on_arrived(ref);
  *used = true;
  return ref;
}

void DurableLoader::FreeSlot(ReadBatch* read, size_t i) {
  reading_bytes_ -= read->batch.ops[i].target.size();
  parts_.residency->FreeSlot(read->tenants[i], read->slots[i]);
}

void DurableLoader::OnQuiescent(ReadBatch* read, size_t i) {
  FreeSlot(read, i);
  const auto load = loads_.find(read->ids[i]);
  if (load != loads_.end()) load->second.stuck = false;
  AQ_CHECK(read->unquiet > 0);
  if (--read->unquiet == 0) Recycle(read);
  Pump();
}

void DurableLoader::Recycle(ReadBatch* read) {
  read->batch.ops.clear();
  read->batch.deadline_nanos = 0;
  read->ids.clear();
  read->tenants.clear();
  read->slots.clear();
  read->bytes = 0;
  free_batches_.push_back(read);
}

// They may ask for others from inside, and for this one again.
void DurableLoader::Settle(const BlockId& id, BlockRef ref, const Status& status) {
  const auto ended = loads_.extract(id);
  const OneLoad& load = ended.mapped();
  for (const LoadTicket& ticket : load.waiters) {
    if (ticket.waiter->Waits(ticket.run)) ticket.waiter->OnLoaded(ticket.op, ref, status);
  }
  parts_.catalog->Release(load.block.name.tenant, load.block.layout);
}

void DurableLoader::RetrySoon() {
  const int64_t at = std::max(parts_.clock->NowNanos() + kRetryNanos, busy_until_nanos_);
  retry_.PostAt(&tasks_, at, [this] { Pump(); });
}

}  // namespace aquifer
