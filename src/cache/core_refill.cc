// Storing again what only a drive has that is out of service. Its blocks cannot be read, and are
// computed again; but they are there: a deletion must not miss them, and what the drive brings when
// it is back is as right as it was.
//
// So the block's entry stays as it is, on NVMe, and the reservation, a refill, has a slot of its
// own beside it. Nothing looks at that before all of the block is there: whatever becomes of the
// entry meanwhile (deleted, expired, its drive is back and it was loaded), the two meet at the
// commit.
#include <utility>

#include "base/check.h"
#include "cache/core.h"

namespace aquifer {

uint32_t Core::FindRefill(const BlockName& name) const {
  if (open_refills_.empty()) return 0;
  const auto found = open_refills_.find(name);
  return found == open_refills_.end() ? 0 : found->second;
}

const Core::Filling* Core::FillingOf(const BlockName& name) const {
  if (const uint32_t refill = FindRefill(name); refill != 0) return &refill_at(refill).filling;
  const BlockRef ref = residency_->index().Find(name);
  if (ref == kNoBlock || residency_->at(ref).state != BlockState::kFilling) return nullptr;
  return &fillings_[residency_->at(ref).owner_data - 1];
}

uint32_t Core::NewRefill(const NewBlock& block, uint32_t engine, SlotId slot) {
  if (free_refills_.empty()) {
    refills_.emplace_back();
    free_refills_.push_back(static_cast<uint32_t>(refills_.size()));
  }
  const uint32_t number = free_refills_.back();
  free_refills_.pop_back();
  catalog_.Hold(block.name.tenant, block.layout);
  Refill& refill = refill_at(number);
  refill = {.filling = {}, .block = block, .slot = slot, .loans = 0, .open = true};
  BeginFilling(&refill.filling, engine);
  open_refills_.emplace(block.name, number);
  return number;
}

void Core::CloseRefill(Refill* refill) {
  refill->open = false;
  open_refills_.erase(refill->block.name);
}

// Its slot is free, or another's, once no rank may touch it any more.
void Core::EndRefillIfUnused(uint32_t number) {
  Refill& refill = refill_at(number);
  if (refill.open || refill.loans > 0) return;
  if (refill.slot != kNoSlot) residency_->FreeSlot(refill.block.name.tenant, refill.slot);
  if (refill.published != kNoBlock) residency_->Unlease(refill.published);
  catalog_.Release(refill.block.name.tenant, refill.block.layout);
  refill = {};
  free_refills_.push_back(number);
}

void Core::VoidRefill(uint32_t number) {
  Refill& refill = refill_at(number);
  CloseRefill(&refill);
  if (refill.loans > 0) residency_->QuarantineSlot(refill.slot);
  EndRefillIfUnused(number);
}

uint64_t Core::LendRefill(ClientNumber client, uint32_t number) {
  Refill& refill = refill_at(number);
  refill.filling.touched_nanos = environment_.clock->NowNanos();
  const uint64_t id = Lend(client, kNoBlock, true);
  if (id == 0) return 0;
  FindLoan(client, id, true)->refill = number;
  ++refill.loans;
  return id;
}

void Core::EndRefillLoan(uint32_t number) {
  --refill_at(number).loans;
  EndRefillIfUnused(number);
}

void Core::CommitRefill(Loan* loan, CommitOp* op) {
  Refill& refill = refill_at(loan->refill);
  const GroupRecord& group = catalog_.layout(refill.block.layout).groups[refill.block.name.group];
  if (!refill.open) {
    op->status = WhyNotOpen(refill.filling.covered_heads == group.heads);
    return EndLoan(loan);
  }
  bool complete = false;
  op->status = Cover(&refill.filling, group.heads, *op, &complete);
  if (!op->status.ok()) return;
  refill.filling.touched_nanos = environment_.clock->NowNanos();
  if (complete) {
    const uint16_t tenant = refill.block.name.tenant;
    NoteFilled(refill.filling);
    CloseRefill(&refill);
    op->status = PublishRefill(&refill, FinishChecksum(refill.filling.sums, group.block_bytes));
    op->published = op->status.ok();
    if (op->published) Count(tenant, &CoreCounters::committed);
    if (op->published) Count(tenant, &CoreCounters::committed_bytes, group.block_bytes);
    // Other ranks may still hold it.
    if (refill.slot != kNoSlot && refill.loans > 1) residency_->QuarantineSlot(refill.slot);
  }
  EndLoan(loan);
}

Status Core::PublishRefill(Refill* refill, const Checksum& checksum) {
  BlockRef ref = residency_->index().Find(refill->block.name);
  if (ref != kNoBlock && residency_->at(ref).expired(NowUnix())) {
    residency_->Drop(ref, Leave::kExpired);
    ref = kNoBlock;
  }
  if (ref == kNoBlock) {  // It was deleted, or lost.
    refill->block.now_nanos = environment_.clock->NowNanos();
    AQ_ASSIGN_OR_RETURN(ref, residency_->AddFilling(refill->block, refill->slot));
    residency_->Publish(ref, checksum);
    OnPublished(ref);
  } else if (residency_->at(ref).layout != refill->block.layout) {
    return Status(Code::kInvalid, "the key is another layout's");
  } else {
    const bool on_nvme = residency_->at(ref).in_tier(kTierNvme);
    if (on_nvme && !DriveServes(ref)) tenants_stored_again_.insert(refill->block.name.tenant);
    if (residency_->at(ref).in_tier(kTierDram)) {
      // Somebody was faster: its drive is back, or a durable tier had it. These bytes are not
      // needed; but what was committed is to be on NVMe.
      if (!on_nvme && !residency_->set_aside(ref)) write_down_->Add(ref);
      return Status();
    }
    AQ_CHECK(on_nvme);
    residency_->StoreAgain(ref, refill->slot, checksum);
    ShortenExpiry(ref, refill->block.expiry_unix_seconds);
    if (durable_ != nullptr) durable_->OnCommitted(ref);
  }
  refill->slot = kNoSlot;
  // Until no rank may touch it. Nobody else has had the time to.
  AQ_CHECK(residency_->Lease(ref));
  refill->published = ref;
  return Status();
}

// What is stored again keeps the sooner of its old time to live and the new one.
void Core::ShortenExpiry(BlockRef ref, uint32_t unix_seconds) {
  const uint32_t current = residency_->at(ref).expiry_unix_seconds;
  if (unix_seconds == 0 || (current != 0 && current <= unix_seconds)) return;
  ChangeExpiry(ref, unix_seconds);
}

Status Core::FlushedDespiteRefills(uint16_t tenant) {
  if (nvme_ == nullptr || nvme_->AllInService()) tenants_stored_again_.clear();
  const bool any = tenant == FlushWaits::kEveryone ? !tenants_stored_again_.empty()
                                                   : tenants_stored_again_.contains(tenant);
  if (!any) return Status();
  return Status(Code::kUnavailable,
                "some blocks were stored again while a drive that has them was out of service, and "
                "are in memory and there alone; flush again when Stats() shows all in service");
}

}  // namespace aquifer
