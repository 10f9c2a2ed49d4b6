#include "cache/residency/residency.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash_mix.h"
#include "base/planted_bug.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// A block and, where it is missing, the one above it take an entry of the index each.
constexpr int kMaxForgotten = 3;
constexpr double kLeastSaved = 1.0 / 64;  // Of computing it, where a drive is hardly faster.
constexpr int kMaxFalseSiblings = 64;     // In one task; whoever stores comes again for the rest.
constexpr size_t kMaxLostLinks = size_t{1} << 17;  // Some 200 bytes each.

}  // namespace

Residency::Residency(ResidencyParts parts)
    : catalog_(parts.catalog),
      dram_(parts.dram),
      clock_(parts.clock),
      prefill_(parts.prefill),
      index_(std::move(parts.index)),
      dram_order_(std::move(parts.dram_order)),
      nvme_order_(std::move(parts.nvme_order)),
      dram_quota_(std::move(parts.dram_quota)),
      extent_bytes_(parts.extent_bytes),
      name_seed_(parts.name_seed),
      lasting_tiers_(parts.lasting_tiers),
      nvme_quota_(std::move(parts.nvme_quota)),
      pins_(PinTableOptions{}),
      lost_links_(kMaxLostLinks) {}

BlockId Residency::IdOf(BlockRef ref) const {
  const BlockEntry& entry = at(ref);
  return {.tenant = catalog_->tenant(entry.tenant).id,
          .key = entry.key,
          .group = entry.group,
          .part = entry.part};
}

BlockName Residency::NameOf(BlockRef ref) const {
  const BlockEntry& entry = at(ref);
  return {.tenant = entry.tenant, .group = entry.group, .part = entry.part, .key = entry.key};
}

uint64_t Residency::RawBytes(BlockRef ref) const {
  const BlockEntry& entry = at(ref);
  return catalog_->layout(entry.layout).groups[entry.group].block_bytes;
}

DType Residency::DTypeOf(BlockRef ref) const {
  const BlockEntry& entry = at(ref);
  return catalog_->layout(entry.layout).groups[entry.group].dtype;
}

uint64_t Residency::SlotBytesOf(BlockRef ref) const { return RoundUpToPage(RawBytes(ref)); }

BlockMeta Residency::MetaOf(BlockRef ref) const {
  const BlockEntry& entry = at(ref);
  BlockMeta meta;
  meta.id = IdOf(ref);
  meta.parent = index_->ParentKey(ref);
  meta.position = entry.position;
  meta.layout_fingerprint = catalog_->layout(entry.layout).fingerprint;
  meta.raw_bytes = RawBytes(ref);
  meta.stored_bytes = meta.raw_bytes;
  meta.checksum = entry.checksum;
  meta.expiry_unix_seconds = entry.expiry_unix_seconds;
  meta.engine_hash = entry.engine_hash;
  return meta;
}

BlockRef Residency::Find(const BlockId& id) const {
  const Result<uint16_t> tenant = catalog_->Tenant(id.tenant);
  if (!tenant.ok()) return kNoBlock;
  return index_->Find({.tenant = *tenant, .group = id.group, .part = id.part, .key = id.key});
}

BlockFeatures Residency::Features(BlockRef ref, uint8_t tier) const {
  const BlockEntry& entry = at(ref);
  BlockFeatures features;
  features.name = OrderName(ref);
  features.tenant = entry.tenant;
  if (tier == kTierDram) {
    // A pool that holds a slot has been numbered.
    features.tenant = *catalog_->Pool(entry.tenant, SlotBytesOf(ref));
  }
  features.owner = entry.tenant;
  features.layout = entry.layout;
  features.position = entry.position;
  features.children = entry.children;
  features.turns = entry.uses;
  features.bytes = RawBytes(ref);
  features.priority = catalog_->tenant(entry.tenant).options.priority;
  if (const auto found = forecasts_.find(ref); found != forecasts_.end()) {
    if (found->second.priority != 0) features.priority = found->second.priority;
    features.session = found->second.session;
  }
  // What it takes to have it again, less what it takes to get it from here. (That a durable tier
  // has it is not counted: that may take as long as computing it.)
  const double compute_ms = ComputingOf(entry.tenant, entry.layout, entry.group).At(entry.position);
  const double reload_ms = ReloadMs(features.bytes);
  if (tier == kTierNvme) {
    features.saved_ms = std::max(compute_ms - reload_ms, compute_ms * kLeastSaved);
  } else {
    features.saved_ms = entry.in_tier(kTierNvme) ? std::min(compute_ms, reload_ms) : compute_ms;
  }
  return features;
}

// A block's tokens make blocks of all groups: each has its share of what they take.
ChainSaving Residency::ComputingOf(uint16_t tenant, uint16_t layout, uint16_t group) const {
  const LayoutRecord& record = catalog_->layout(layout);
  ChainSaving computing{.owner = tenant, .block_bytes = record.groups[group].block_bytes};
  const auto prefill = prefill_ == nullptr ? std::nullopt : prefill_->Latest(tenant, layout);
  if (!prefill || record.tokens_per_block == 0) return computing;
  uint64_t bytes = 0;
  for (const GroupRecord& each : record.groups) bytes += each.block_bytes;
  const double share = static_cast<double>(computing.block_bytes) / static_cast<double>(bytes);
  const double tokens = record.tokens_per_block;
  // Without the step: it is taken once, whatever of the chain is there.
  computing.first_ms = share * (prefill->Milliseconds(tokens, 0) - prefill->step_ms);
  computing.deeper_ms = share * prefill->ms_per_token_pair * tokens * tokens;
  return computing;
}

// Nearly all that is in DRAM is on NVMe, too, where there is one.
ChainSaving Residency::SavingInDram(uint16_t tenant, uint16_t layout, uint16_t group) const {
  ChainSaving saving = ComputingOf(tenant, layout, group);
  const double reload_ms = ReloadMs(saving.block_bytes);
  if (nvme_order_->size() == 0 || reload_ms >= saving.first_ms) return saving;
  saving.first_ms = reload_ms;
  saving.deeper_ms = 0;
  return saving;
}

void Residency::ReweighInDram(BlockRef ref) {
  if (at(ref).in_tier(kTierDram)) dram_order_->Reweigh(ref, Features(ref, kTierDram));
}

// --- Slots

uint16_t Residency::PayerOf(uint16_t tenant) {
  return Planted(PlantedBug::kWrongTenantCharged) ? 0 : tenant;
}

void Residency::FreeSlot(uint16_t tenant, SlotId slot) {
  dram_quota_.Uncharge(PayerOf(tenant), dram_->SlotBytes(slot).size());
  dram_->Free(slot);
}

void Residency::Withhold(uint32_t extent) {
  const ExtentInfo info = dram_->ExtentOf(extent);
  const Result<uint16_t> tenant = catalog_->Tenant(info.tenant);
  AQ_CHECK(tenant.ok());  // It has had slots.
  withheld_.emplace(extent, *tenant);
  withheld_bytes_ += info.bytes;
  dram_quota_.ChargeAnyway(*tenant, info.bytes);
}

void Residency::EndWithholding(uint32_t extent) {
  const auto found = withheld_.find(extent);
  const uint64_t bytes = dram_->ExtentOf(extent).bytes;
  dram_quota_.Uncharge(found->second, bytes);
  withheld_bytes_ -= bytes;
  withheld_.erase(found);
}

void Residency::ReleaseSlot(BlockRef ref) {
  if (!at(ref).has_slot()) return;
  FreeSlot(at(ref).tenant, at(ref).slot);
  index_->SetSlot(ref, kNoDramSlot);
}

// --- A block's life

Result<BlockRef> Residency::AddFilling(const NewBlock& block, SlotId slot) {
  Result<BlockRef> added = index_->Insert(block);
  for (int forgotten = 0; forgotten < kMaxForgotten; ++forgotten) {
    if (added.status().code() != Code::kNoSpace || !ForgetOne(block)) break;
    added = index_->Insert(block);
  }
  for (int dropped = 0; dropped < kMaxFalseSiblings; ++dropped) {
    if (added.status().code() != Code::kInvalid || !DropFalseSibling(block)) break;
    added = index_->Insert(block);
  }
  if (!added.ok()) return added;
  catalog_->Hold(block.name.tenant, block.layout);
  index_->SetSlot(*added, slot);
  return added;
}

// What begins a chain is believed before what says that it goes on behind a block which nobody has:
// one wrong position would keep all chains of the same root out.
bool Residency::DropFalseSibling(const NewBlock& first) {
  const BlockName root{.tenant = first.name.tenant,
                       .group = first.name.group,
                       .part = first.name.part,
                       .key = first.parent};
  if (first.position != 0 || index_->Find(root) != kNoBlock) return false;
  const BlockRef sibling = index_->FirstChildOf(root);
  if (sibling == kNoBlock || at(sibling).position == 0) return false;
  if (at(sibling).state != BlockState::kResident) return false;
  Drop(sibling, Leave::kOrphaned);
  return true;
}

void Residency::Remove(BlockRef ref) {
  const uint16_t tenant = at(ref).tenant;
  const uint16_t layout = at(ref).layout;
  index_->Remove(ref);
  catalog_->Release(tenant, layout);
}

Result<BlockRef> Residency::AddOnNvme(const NewBlock& block) {
  AQ_ASSIGN_OR_RETURN(const BlockRef ref, index_->Insert(block));
  catalog_->Hold(block.name.tenant, block.layout);
  if (!nvme_quota_.Charge(block.name.tenant, SlotBytesOf(ref))) {
    Remove(ref);
    return Status(Code::kInvalid, "over the tenant's NVMe ceiling");
  }
  index_->SetFlags(ref, kFlagFound);
  ArriveOnNvme(ref);
  return ref;
}

Result<BlockRef> Residency::AddLoaded(const NewBlock& block, SlotId slot) {
  AQ_ASSIGN_OR_RETURN(const BlockRef ref, AddFilling(block, slot));
  ArriveInDram(ref, slot);
  return ref;
}

// Keeps the eviction order of a tier, and the parent's place in it, in step with the index.
void Residency::SetTier(BlockRef ref, uint8_t tier, bool resident) {
  EvictionOrder* const order_of_tier = order(tier);
  if (resident) {
    BlockFeatures features = Features(ref, tier);
    BlockName parent = NameOf(ref);
    parent.key = index_->ParentKey(ref);
    features.parent_name = OrderName(parent);
    order_of_tier->Add(ref, features, clock_->NowNanos());
    order_of_tier->SetLeaf(ref, index_->IsLeaf(ref, tier));
  } else {
    if (tier == kTierDram && ClearUnfetched(ref)) prestaged_in_vain_bytes_ += SlotBytesOf(ref);
    order_of_tier->Remove(ref);
    may_differ_.erase(ref);
  }
  TenantBlocks& own = MutableBlocksOf(at(ref).tenant);
  (tier == kTierDram ? own.in_dram : own.on_nvme) += resident ? 1 : -1;
  const bool was_only_in_dram = at(ref).residency == TierBit(kTierDram);
  const BlockRef parent = index_->SetResident(ref, tier, resident);
  const bool is_only_in_dram = at(ref).residency == TierBit(kTierDram);
  only_in_dram_ += (is_only_in_dram ? 1 : 0) - (was_only_in_dram ? 1 : 0);
  if (parent != kNoBlock && order_of_tier->Contains(parent)) {
    order_of_tier->SetLeaf(parent, index_->IsLeaf(parent, tier));
  }
}

void Residency::Publish(BlockRef ref, const Checksum& checksum) {
  index_->SetComplete(ref, checksum);
  ArriveInDram(ref, at(ref).slot);
}

void Residency::ArriveInDram(BlockRef ref, SlotId slot) {
  index_->SetSlot(ref, slot);
  SetTier(ref, kTierDram, true);
  for (uint32_t lease = 0; lease < at(ref).leases; ++lease) dram_order_->Hold(ref);
  for (uint32_t pin = 0; pin < at(ref).pins; ++pin) dram_order_->Hold(ref);
  dram_->Publish(slot, catalog_->tenant(at(ref).tenant).id, RawBytes(ref), ref);
}

void Residency::ArriveOnNvme(BlockRef ref) {
  SetTier(ref, kTierNvme, true);
  ReweighInDram(ref);
  for (uint32_t pin = 0; pin < at(ref).pins; ++pin) nvme_order_->Hold(ref);
  // It was there before, and a read from then still hangs, whose end lets go of it.
  if ((at(ref).io_tiers & TierBit(kTierNvme)) != 0) nvme_order_->Hold(ref);
}

void Residency::StoreAgain(BlockRef ref, SlotId slot, const Checksum& checksum) {
  index_->SetChecksum(ref, checksum);
  index_->SetFlags(ref, 0, kFlagFound);
  may_differ_.insert(ref);
  ArriveInDram(ref, slot);
}

void Residency::LeaveDram(BlockRef ref, Leave why) {
  const BlockEntry& entry = at(ref);
  AQ_CHECK(entry.in_tier(kTierDram));
  const bool durable = (entry.residency & kDurableTiers) != 0;
  if (!entry.in_tier(kTierNvme) && !durable) {
    CountLostUnwritten(entry.tenant);
    return Drop(ref, why);
  }
  ++demoted_;
  if (!entry.in_tier(kTierNvme)) return Drop(ref, Leave::kToDurable);
  dram_->Retract(entry.slot);
  const bool may_differ = MayDiffer(ref);
  SetTier(ref, kTierDram, false);
  ReleaseSlot(ref);
  if (!may_differ) return;
  if (const auto recorded = checksum_on_nvme(IdOf(ref))) index_->SetChecksum(ref, *recorded);
}

void Residency::LeaveNvme(BlockRef ref, Leave why) {
  if (!at(ref).in_tier(kTierNvme)) return;
  const bool durable = (at(ref).residency & kDurableTiers) != 0 && why != Leave::kCorrupt;
  if (!at(ref).in_tier(kTierDram)) {
    if (!durable) return Drop(ref, why);
    // The drive may still have the record, and nothing finds it without the entry.
    if (why != Leave::kLostByTier && on_erase) on_erase(IdOf(ref), why);
    return Drop(ref, Leave::kToDurable);
  }
  SetTier(ref, kTierNvme, false);
  ReweighInDram(ref);
  ClearStale(ref);
  nvme_quota_.Uncharge(at(ref).tenant, SlotBytesOf(ref));
}

void Residency::Drop(BlockRef ref, Leave why) {
  const BlockEntry& entry = at(ref);
  // What is asked for or expires is nobody's loss.
  if (why == Leave::kCorrupt && entry.residency == TierBit(kTierDram)) {
    CountLostUnwritten(entry.tenant);
  }
  if (entry.in_tier(kTierDram)) {
    dram_->Retract(entry.slot);
    SetTier(ref, kTierDram, false);
  }
  if (entry.in_tier(kTierNvme)) {
    SetTier(ref, kTierNvme, false);
    nvme_quota_.Uncharge(entry.tenant, SlotBytesOf(ref));
    const bool lost = why == Leave::kLostByTier || why == Leave::kToDurable;
    if (!lost && on_erase) on_erase(IdOf(ref), why);
  }
  const bool left_to_durable =
      (entry.residency & kDurableTiers) != 0 && why != Leave::kAsked && why != Leave::kExpired;
  LeaveDurable(ref, why);
  for (size_t pins = pins_.RemoveAll(ref); pins > 0; --pins) index_->Unpin(ref);
  const bool keeps_children = why == Leave::kCorrupt || why == Leave::kLostByTier ||
                              why == Leave::kToDurable ||
                              entry.state == BlockState::kFilling;  // It was not there before.
  if (entry.first_child != kNoBlock && !keeps_children) {
    orphaned_.push_back(NameOf(ref));
  }
  if (!lost_links_.empty()) {
    lost_links_.OnDropped(NameOf(ref), {index_->ParentKey(ref), entry.position},
                          entry.first_child != kNoBlock, left_to_durable);
  }
  forecasts_.erase(ref);
  ++left_[static_cast<size_t>(why)];
  ++MutableBlocksOf(entry.tenant).left[static_cast<size_t>(why)];
  if (!SlotInUse(ref)) ReleaseSlot(ref);
  if (entry.leases == 0 && entry.io_tiers == 0) return Remove(ref);
  if (Planted(PlantedBug::kQuarantineIgnored)) ReleaseSlot(ref);
  if (entry.has_slot()) dram_->Quarantine(entry.slot);
  index_->Retire(ref);
}

void Residency::CountLostUndurable(uint16_t tenant) {
  if (lost_undurable_.size() <= tenant) lost_undurable_.resize(size_t{tenant} + 1);
  ++lost_undurable_[tenant];
}

// What a durable tier has outlives what is dropped here; it goes when the block is deleted. What
// has expired here another node may have been given a longer life: the tier removes what has
// expired there. A write under way ends there first.
void Residency::LeaveDurable(BlockRef ref, Leave why) {
  const BlockEntry& entry = at(ref);
  const uint8_t there = entry.residency & kDurableTiers;
  const bool deleted = why == Leave::kAsked;
  const bool to_go = deleted || why == Leave::kExpired;
  const bool lost = durable_wanted(ref) && !in_lasting(ref) && !to_go;
  if (lost && entry.state == BlockState::kResident) CountLostUndurable(entry.tenant);
  if (deleted) index_->SetFlags(ref, kFlagDeleted);
  if (there != 0 && deleted && on_erase_durable) on_erase_durable(IdOf(ref));
  for (uint8_t tier = kTierFirstDurable; tier < kMaxTiers; ++tier) {
    index_->SetResident(ref, tier, false);
  }
}

void Residency::Settle(BlockRef ref) {
  const BlockEntry& entry = at(ref);
  if (entry.state != BlockState::kGone) return;
  if (!SlotInUse(ref)) ReleaseSlot(ref);
  if (entry.leases == 0 && entry.io_tiers == 0) Remove(ref);
}

bool Residency::DropOrphans(size_t max_blocks) {
  for (; max_blocks > 0 && !orphaned_.empty(); --max_blocks) {
    const BlockName name = orphaned_.front();
    // Stored again in the meantime, it is a parent like any other.
    const BlockRef child =
        index_->Find(name) == kNoBlock ? index_->FirstChildOf(name) : BlockRef{kNoBlock};
    if (child == kNoBlock || at(child).state != BlockState::kResident) {
      orphaned_.pop_front();
      continue;
    }
    Drop(child, Leave::kOrphaned);
  }
  return !orphaned_.empty();
}

bool Residency::DropExpired(size_t max_steps) {
  std::array<BlockRef, 64> expired;
  const auto now = static_cast<uint32_t>(clock_->UnixSeconds());
  const size_t count = index_->CollectExpired(now, max_steps, &expiry_cursor_, expired);
  for (size_t i = 0; i < count; ++i) Drop(expired[i], Leave::kExpired);
  return count > 0;
}

// --- Holding on

bool Residency::ChargePrestage(uint16_t tenant, uint64_t bytes) {
  TenantBlocks& own = MutableBlocksOf(tenant);
  const uint64_t ceiling = DramCeiling(tenant);
  const uint64_t coming = own.prestaging_bytes + bytes;
  const bool free = dram_quota_.CanTake(tenant, coming) == QuotaTake::kFits;
  if (!free && own.unfetched_bytes + coming > ceiling / 2) return false;
  own.prestaging_bytes = coming;
  return true;
}

void Residency::RefundPrestage(uint16_t tenant, uint64_t bytes) {
  MutableBlocksOf(tenant).prestaging_bytes -= bytes;
}

bool Residency::NotePrestaged(BlockRef ref) {
  if (!index_->Exists(ref)) return false;
  const BlockEntry& entry = at(ref);
  if (!entry.in_tier(kTierDram) || entry.leases > 0 || (entry.flags & kFlagUnfetched) != 0) {
    return false;
  }
  index_->SetFlags(ref, kFlagUnfetched);
  MutableBlocksOf(entry.tenant).unfetched_bytes += SlotBytesOf(ref);
  RefundPrestage(entry.tenant, SlotBytesOf(ref));
  return true;
}

bool Residency::ClearUnfetched(BlockRef ref) {
  if ((at(ref).flags & kFlagUnfetched) == 0) return false;
  index_->SetFlags(ref, 0, kFlagUnfetched);
  MutableBlocksOf(at(ref).tenant).unfetched_bytes -= SlotBytesOf(ref);
  return true;
}

uint64_t Residency::unfetched_bytes() const {
  uint64_t bytes = 0;
  for (const TenantBlocks& own : blocks_of_) bytes += own.unfetched_bytes;
  return bytes;
}

bool Residency::Lease(BlockRef ref) {
  if (!index_->Lease(ref)) return false;
  ClearUnfetched(ref);
  if (at(ref).in_tier(kTierDram) && !Planted(PlantedBug::kLeasedEvicted)) dram_order_->Hold(ref);
  return true;
}

void Residency::Unlease(BlockRef ref) {
  index_->Unlease(ref);
  const BlockEntry& entry = at(ref);
  if (entry.state == BlockState::kGone) return Settle(ref);
  if (!entry.in_tier(kTierDram)) return;
  if (!Planted(PlantedBug::kLeasedEvicted)) dram_order_->Unhold(ref);
  LeaveIfRetiring(ref);
}

void Residency::LeaveIfRetiring(BlockRef ref) {
  if (!at(ref).in_tier(kTierDram) || HeldInDram(ref)) return;
  if (Retiring(at(ref).slot)) LeaveDram(ref, Leave::kPressure);
}

bool Residency::SlotInUse(BlockRef ref) const {
  return at(ref).leases != 0 || (at(ref).io_tiers & ~TierBit(kTierNvme)) != 0;
}

bool Residency::HeldInDram(BlockRef ref) const {
  return SlotInUse(ref) || at(ref).pins != 0 || (at(ref).flags & kWaitsInDram) != 0;
}

void Residency::BeginIo(BlockRef ref, uint8_t tier) {
  index_->SetIo(ref, tier, true);
  if (tier == kTierDram) ++MutableBlocksOf(at(ref).tenant).being_written;
  order(tier)->Hold(ref);
}

void Residency::EndIo(BlockRef ref, uint8_t tier) {
  index_->SetIo(ref, tier, false);
  if (tier == kTierDram) --MutableBlocksOf(at(ref).tenant).being_written;
  if (at(ref).state == BlockState::kGone) return Settle(ref);
  if (order(tier)->Contains(ref)) order(tier)->Unhold(ref);
  LeaveIfRetiring(ref);
}

bool Residency::HoldDirty(BlockRef ref) {
  if ((at(ref).flags & kFlagDirtyHeld) != 0) return false;
  index_->SetFlags(ref, kFlagDirtyHeld);
  dram_order_->Hold(ref);
  return true;
}

void Residency::UnholdDirty(BlockRef ref) {
  // The ref may name another block by now, which is held by nobody on this account.
  if (!index_->Exists(ref) || (at(ref).flags & kFlagDirtyHeld) == 0) return;
  index_->SetFlags(ref, 0, kFlagDirtyHeld);
  if (!dram_order_->Contains(ref)) return;
  dram_order_->Unhold(ref);
  LeaveIfRetiring(ref);
}

bool Residency::SetStale(BlockRef ref) {
  if (stale(ref)) return false;
  index_->SetFlags(ref, kFlagStale);
  return true;
}

void Residency::SetDurable(BlockRef ref, uint8_t durable, bool there) {
  const bool was_only_in_dram = at(ref).residency == TierBit(kTierDram);
  index_->SetResident(ref, static_cast<uint8_t>(kTierFirstDurable + durable), there);
  const bool is_only_in_dram = at(ref).residency == TierBit(kTierDram);
  only_in_dram_ += (is_only_in_dram ? 1 : 0) - (was_only_in_dram ? 1 : 0);
}

bool Residency::HoldForDurable(BlockRef ref) {
  if ((at(ref).flags & kFlagDurableHeld) != 0) return false;
  index_->SetFlags(ref, kFlagDurableHeld);
  dram_order_->Hold(ref);
  return true;
}

void Residency::UnholdForDurable(BlockRef ref) {
  if (!index_->Exists(ref) || (at(ref).flags & kFlagDurableHeld) == 0) return;
  index_->SetFlags(ref, 0, kFlagDurableHeld);
  if (!dram_order_->Contains(ref)) return;
  dram_order_->Unhold(ref);
  LeaveIfRetiring(ref);
}

void Residency::BeginDurableIo(BlockRef ref, uint8_t durable) {
  index_->SetIo(ref, static_cast<uint8_t>(kTierFirstDurable + durable), true);
  ++MutableBlocksOf(at(ref).tenant).being_written;
  dram_order_->Hold(ref);
}

void Residency::EndDurableIo(BlockRef ref, uint8_t durable) {
  index_->SetIo(ref, static_cast<uint8_t>(kTierFirstDurable + durable), false);
  --MutableBlocksOf(at(ref).tenant).being_written;
  if (at(ref).state == BlockState::kGone) return Settle(ref);
  if (dram_order_->Contains(ref)) dram_order_->Unhold(ref);
  LeaveIfRetiring(ref);
}

uint64_t Residency::lost_undurable(uint16_t tenant) const {
  return tenant < lost_undurable_.size() ? lost_undurable_[tenant] : 0;
}

bool Residency::Pin(BlockRef ref, uint64_t owner, int64_t until_unix_seconds) {
  if (Planted(PlantedBug::kPinIgnored)) return true;
  switch (pins_.Add({.ref = ref, .owner = owner}, until_unix_seconds)) {
    case PinTable::Added::kFull:
      return false;
    case PinTable::Added::kKnown:
      return true;
    case PinTable::Added::kNew:
      break;
  }
  if (!index_->Pin(ref)) {
    pins_.Remove({.ref = ref, .owner = owner});
    return false;
  }
  if (dram_order_->Contains(ref)) dram_order_->Hold(ref);
  if (nvme_order_->Contains(ref)) nvme_order_->Hold(ref);
  return true;
}

void Residency::Unpin(BlockRef ref, uint64_t owner) {
  if (!pins_.Remove({.ref = ref, .owner = owner})) return;
  UnholdPin(ref);
}

void Residency::UnholdPin(BlockRef ref) {
  index_->Unpin(ref);
  if (dram_order_->Contains(ref)) dram_order_->Unhold(ref);
  if (nvme_order_->Contains(ref)) nvme_order_->Unhold(ref);
  LeaveIfRetiring(ref);
}

bool Residency::ExpirePins(size_t max_pins) {
  std::vector<BlockPin> expired(max_pins);
  const size_t count = pins_.Expire(clock_->UnixSeconds(), expired);
  for (size_t i = 0; i < count; ++i) UnholdPin(expired[i].ref);
  return count > 0;
}

uint64_t Residency::OrderName(const BlockName& name) const {
  const uint64_t where = uint64_t{name.tenant} << 32 | uint64_t{name.group} << 16 | name.part;
  const uint64_t mixed = Mix(GetU64(name.key.bytes.data()) ^ name_seed_,
                             GetU64(name.key.bytes.data() + 8) ^ (where + name_seed_));
  return mixed | 1;  // 0 is no name.
}

bool Residency::Ask(const AskedChain& chain, size_t max_blocks, AskedOrders* asked) {
  const int64_t now = clock_->NowNanos();
  if (!asked->dram_done) {
    asked->dram_done = !dram_order_->Ask(chain, &asked->dram, max_blocks, now);
    return true;
  }
  return nvme_order_->Ask(chain, &asked->nvme, max_blocks, now);
}

void Residency::Touch(BlockRef ref) {
  const int64_t now = clock_->NowNanos();
  index_->Touch(ref, now);
  for (const uint8_t tier : {kTierDram, kTierNvme}) {
    if (at(ref).in_tier(tier)) order(tier)->Touch(ref, Features(ref, tier), now);
  }
}

void Residency::SetForecast(BlockRef ref, int8_t priority, SessionHint session) {
  forecasts_[ref] = {.priority = priority, .session = session};
  for (const uint8_t tier : {kTierDram, kTierNvme}) {
    if (at(ref).in_tier(tier)) {
      order(tier)->Touch(ref, Features(ref, tier), at(ref).last_used_nanos);
    }
  }
}

Residency::TenantBlocks& Residency::MutableBlocksOf(uint16_t tenant) {
  if (blocks_of_.size() <= tenant) blocks_of_.resize(size_t{tenant} + 1);
  return blocks_of_[tenant];
}

void Residency::CountLostUnwritten(uint16_t tenant) {
  if (lost_unwritten_.size() <= tenant) lost_unwritten_.resize(size_t{tenant} + 1);
  ++lost_unwritten_[tenant];
}

uint64_t Residency::lost_unwritten(uint16_t tenant) const {
  return tenant < lost_unwritten_.size() ? lost_unwritten_[tenant] : 0;
}

uint64_t Residency::metadata_bytes() const {
  return index_->bytes() + dram_order_->bytes() + nvme_order_->bytes();
}

const LostLink* Residency::LinkAbove(const BlockName& gone) const {
  const LostLink* const link = lost_links_.Find(gone);
  if (link == nullptr || link->position == 0) return link;
  const BlockRef parent = index_->Find(
      {.tenant = gone.tenant, .group = gone.group, .part = gone.part, .key = link->parent});
  const bool fits = parent == kNoBlock || at(parent).position + 1 == link->position;
  return fits ? link : nullptr;
}

}  // namespace aquifer
