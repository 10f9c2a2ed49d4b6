// How room is made: whose blocks leave which tier, for whom.
#include <algorithm>
#include <utility>

#include "cache/residency/residency.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// How many blocks one TakeSlot() may evict: room for one slot never takes more than a few, and the
// owner's tasks stay short.
constexpr int kMaxEvictions = 16;
constexpr int kMaxDescent = 64;
constexpr uint32_t kSlotsPerStep = 4;  // Looked at, for one that is moved out.
constexpr size_t kMaxClaims = 64;      // More than these come again.
// Who has not asked for so long has given up. Engines ask as often as they compute a block.
constexpr int64_t kClaimNanos = 500'000'000;
// Long enough to recall what was stored, short enough for others' deadlines.
constexpr int64_t kStayNanos = 250'000'000;

}  // namespace

// --- A slot

Result<SlotId> Residency::TakeSlot(uint16_t tenant, uint64_t block_bytes) {
  const uint64_t slot_bytes = RoundUpToPage(block_bytes);
  AQ_ASSIGN_OR_RETURN(const uint16_t pool, catalog_->Pool(tenant, slot_bytes));
  for (int evictions = 0; evictions < kMaxEvictions; ++evictions) {
    const QuotaTake take = dram_quota_.CanTake(tenant, slot_bytes);
    if (take == QuotaTake::kNever) return Status(Code::kInvalid, "over the tenant's DRAM ceiling");
    if (take == QuotaTake::kOwnPays) {
      if (!EvictForQuota(pool)) {
        return AllInUse(tenant, "at the tenant's DRAM ceiling, and all of it is in use");
      }
      continue;
    }
    const bool may_grow = MayGrow(tenant);
    const bool has_turn = HasTurn(pool);
    Result<SlotId> slot = AllocateFor(pool, may_grow && has_turn);
    if (slot.ok()) {
      if (dram_quota_.Charge(PayerOf(tenant), slot_bytes)) return slot;
      dram_->Free(*slot);  // The slots of other tenants fill the cap; evict and try again.
    } else if (slot.status().code() != Code::kNoSpace) {
      return slot;
    }
    const uint32_t own = dram_order_->Victim(pool);
    if (own == kNoVictim && may_grow) ClaimExtent(pool);
    if (own == kNoVictim && may_grow && !has_turn) return Status(Code::kBusy);
    const uint32_t other = dram_order_->Victim([this, pool, tenant, may_grow](uint16_t candidate) {
      const uint16_t payer = catalog_->pool(candidate).tenant;
      if (candidate == pool) return false;
      return may_grow ? dram_quota_.OverFloor(payer) > 0 && !JustCame(payer) : payer == tenant;
    });
    const bool others_first =
        other != kNoVictim &&
        (own == kNoVictim || dram_order_->Value(other) < dram_order_->Value(own));
    const bool reclaiming = may_grow ? others_first && has_turn && ReclaimExtent(pool)
                                     : (others_first || own == kNoVictim) && ReclaimOwn(pool);
    if (own == kNoVictim && reclaiming) return Status(Code::kBusy);
    if (own == kNoVictim && !may_grow) {
      return AllInUse(tenant, "the tenant's DRAM ceiling allows no further extent");
    }
    if (own == kNoVictim) return Status(Code::kNoSpace);
    LeaveDram(own, may_grow ? Leave::kPressure : Leave::kQuota);
  }
  return Status(Code::kNoSpace);
}

// What the tenant's engines hold may be theirs for long. What is only being written is not.
Status Residency::AllInUse(uint16_t tenant, const char* why) const {
  return blocks_of(tenant).being_written > 0 ? Status(Code::kBusy) : Status(Code::kInvalid, why);
}

Result<SlotId> Residency::AllocateFor(uint16_t pool, bool may_grow) {
  const PoolRecord& record = catalog_->pool(pool);
  const TenantId& id = catalog_->tenant(record.tenant).id;
  if (!may_grow) return dram_->AllocateOwned(id, record.slot_bytes);
  const bool had_none = dram_->ExtentsOf(id) == 0;
  Result<SlotId> slot = dram_->Allocate(id, record.slot_bytes);
  if (!slot.ok()) {
    if (!claims_.empty()) ClaimExtent(pool);  // It has the turn, and asks again.
    return slot;
  }
  EndClaim(pool);
  if (had_none) {
    if (came_nanos_.size() <= record.tenant) {
      came_nanos_.resize(size_t{record.tenant} + 1, INT64_MIN / 2);
    }
    came_nanos_[record.tenant] = clock_->NowNanos();
  }
  return slot;
}

// --- Taking turns

bool Residency::HasTurn(uint16_t pool) {
  const int64_t given_up = clock_->NowNanos() - kClaimNanos;
  while (!claims_.empty() && claims_.front().asked_nanos < given_up) claims_.erase(claims_.begin());
  return claims_.empty() || claims_.front().pool == pool;
}

void Residency::ClaimExtent(uint16_t pool) {
  const auto known = std::find_if(claims_.begin(), claims_.end(),
                                  [pool](const Claim& claim) { return claim.pool == pool; });
  if (known != claims_.end()) {
    known->asked_nanos = clock_->NowNanos();
  } else if (claims_.size() < kMaxClaims) {
    claims_.push_back({pool, clock_->NowNanos()});
  }
}

void Residency::EndClaim(uint16_t pool) {
  std::erase_if(claims_, [pool](const Claim& claim) { return claim.pool == pool; });
}

bool Residency::JustCame(uint16_t tenant) const {
  return tenant < came_nanos_.size() && clock_->NowNanos() - came_nanos_[tenant] < kStayNanos &&
         dram_->ExtentsOf(catalog_->tenant(tenant).id) == 1;
}

// --- Evicting

// Its own size first: that slot can be used at once. But a ceiling is over all of them.
bool Residency::EvictForQuota(uint16_t pool) {
  uint32_t victim = dram_order_->Victim(pool);
  if (victim == kNoVictim) {
    victim = dram_order_->Victim([this, pool](uint16_t other) {
      return catalog_->pool(other).tenant == catalog_->pool(pool).tenant;
    });
  }
  if (victim == kNoVictim) return false;
  LeaveDram(victim, Leave::kQuota);
  return true;
}

// --- An extent

bool Residency::Retiring(SlotId slot) const {
  if (retiring_.empty()) return false;
  const uint32_t extent = dram_->SlotExtent(slot);
  return std::find(retiring_.begin(), retiring_.end(), extent) != retiring_.end();
}

bool Residency::ReclaimExtent(uint16_t for_pool) {
  if (reclaim_slot_ != kNoReclaim || !reclaim_.empty()) return true;
  std::vector<uint16_t> spared = {for_pool};
  uint32_t extent = 0;
  for (;;) {
    const uint32_t victim = dram_order_->Victim([this, for_pool, &spared](uint16_t pool) {
      const uint16_t payer = catalog_->pool(pool).tenant;
      const bool may_stay =
          for_pool != UINT16_MAX && JustCame(payer);  // Not where memory is short.
      return std::find(spared.begin(), spared.end(), pool) == spared.end() &&
             dram_quota_.OverFloor(payer) > 0 && !may_stay;
    });
    if (victim == kNoVictim) return false;
    extent = dram_->SlotExtent(at(victim).slot);
    if (std::find(retiring_.begin(), retiring_.end(), extent) != retiring_.end()) {
      // It was held when its turn came, and is not any more.
      reclaim_.emplace_back(at(victim).position, victim);
      return true;
    }
    // A whole extent goes; nobody is pushed below its floor by that.
    const ExtentInfo info = dram_->ExtentOf(extent);
    const uint64_t leaving = RetiringBytes(info.tenant) + info.used_slots * info.slot_bytes;
    if (dram_quota_.OverFloor(at(victim).tenant) >= leaving) break;
    spared.push_back(*catalog_->Pool(at(victim).tenant, SlotBytesOf(victim)));
  }
  BeginReclaim(extent);
  return true;
}

void Residency::BeginReclaim(uint32_t extent) {
  ForgetClosedExtents();
  retiring_.push_back(extent);
  reclaim_extent_ = extent;
  reclaim_slot_ = 0;
  dram_->Retire(extent);
}

bool Residency::MayGrow(uint16_t tenant) const {
  const uint64_t ceiling = dram_quota_.quota(tenant).ceiling_bytes;
  if (ceiling >= dram_quota_.capacity_bytes()) return true;
  const uint64_t extents = std::max<uint64_t>((ceiling + extent_bytes_ - 1) / extent_bytes_, 1);
  return dram_->ExtentsOf(catalog_->tenant(tenant).id) < extents;
}

uint32_t Residency::EmptyExtentOf(uint16_t for_pool) const {
  const PoolRecord& pool = catalog_->pool(for_pool);
  for (const ExtentInfo& info : dram_->Extents()) {
    const bool empty = info.used_slots == 0 && !info.retired;
    const bool other_size = info.slot_bytes != pool.slot_bytes;
    if (empty && other_size && info.tenant == catalog_->tenant(pool.tenant).id) return info.extent;
  }
  return kNoExtent;
}

bool Residency::ReclaimOwn(uint16_t for_pool) {
  if (reclaim_slot_ != kNoReclaim || !reclaim_.empty()) return true;
  ForgetClosedExtents();
  const uint16_t tenant = catalog_->pool(for_pool).tenant;
  const TenantId& id = catalog_->tenant(tenant).id;
  if (std::any_of(retiring_.begin(), retiring_.end(),
                  [&](uint32_t extent) { return dram_->ExtentOf(extent).tenant == id; })) {
    return true;  // It closes when the last of its blocks is let go.
  }
  uint32_t extent = EmptyExtentOf(for_pool);
  if (extent == kNoExtent) {
    const uint32_t victim = dram_order_->Victim([this, tenant, for_pool](uint16_t pool) {
      return pool != for_pool && catalog_->pool(pool).tenant == tenant;
    });
    if (victim == kNoVictim) return false;
    extent = dram_->SlotExtent(at(victim).slot);
  }
  BeginReclaim(extent);
  return true;
}

uint64_t Residency::RetiringBytes(const TenantId& tenant) const {
  uint64_t bytes = 0;
  for (const uint32_t extent : retiring_) {
    const ExtentInfo info = dram_->ExtentOf(extent);
    if (info.tenant == tenant) bytes += info.used_slots * info.slot_bytes;
  }
  return bytes;
}

void Residency::ForgetClosedExtents() {
  std::erase_if(retiring_, [this](uint32_t old) { return dram_->ExtentOf(old).slots == 0; });
}

// First all of its blocks are found, then they leave: tails before heads, so that what is left are
// whole prefixes.
bool Residency::ContinueReclaim(size_t max_blocks) {
  for (; max_blocks > 0 && reclaim_slot_ != kNoReclaim; --max_blocks) {
    const uint32_t end = reclaim_slot_ + kSlotsPerStep;
    const bool more =
        dram_->VisitSlots(reclaim_extent_, reclaim_slot_, end, [this](SlotId, BlockRef ref) {
          reclaim_.emplace_back(at(ref).position, ref);
          std::push_heap(reclaim_.begin(), reclaim_.end());
        });
    reclaim_slot_ = more ? end : kNoReclaim;
  }
  for (; max_blocks > 0 && !reclaim_.empty(); --max_blocks) {
    std::pop_heap(reclaim_.begin(), reclaim_.end());
    const BlockRef ref = reclaim_.back().second;
    reclaim_.pop_back();
    if (!index_->Exists(ref) || !at(ref).in_tier(kTierDram) || !Retiring(at(ref).slot)) continue;
    // It leaves when the last lease ends, or when it has been written down.
    if (HeldInDram(ref)) continue;
    LeaveDram(ref, Leave::kPressure);
  }
  return reclaim_slot_ != kNoReclaim || !reclaim_.empty();
}

Status Residency::ChargeNvme(BlockRef ref) {
  const uint16_t tenant = at(ref).tenant;
  const uint64_t bytes = SlotBytesOf(ref);
  if (nvme_quota_.CanTake(tenant, bytes) == QuotaTake::kNever) {
    return Status(Code::kNoSpace);
  }
  for (int evictions = 0; evictions < kMaxEvictions; ++evictions) {
    if (nvme_quota_.Charge(tenant, bytes)) return Status();
    const uint32_t victim = nvme_order_->Victim(tenant);
    if (victim == kNoVictim) return Status(Code::kNoSpace);
    const BlockId id = IdOf(victim);
    const bool elsewhere = at(victim).in_tier(kTierDram);
    LeaveNvme(victim, Leave::kQuota);
    if (elsewhere && on_erase) on_erase(id, Leave::kQuota);
  }
  return nvme_quota_.Charge(tenant, bytes) ? Status() : Status(Code::kBusy);
}

// --- An entry of the index

// The end of a chain that runs through it, if nothing holds that; kNoBlock otherwise.
BlockRef Residency::TailBelow(BlockRef ref) const {
  for (int step = 0; step < kMaxDescent; ++step) {
    const BlockEntry& entry = at(ref);
    if (entry.first_child != kNoBlock) {
      ref = entry.first_child;
      continue;
    }
    const bool held = entry.held() || (entry.flags & kWaitsInDram) != 0;
    return held || entry.state != BlockState::kResident ? BlockRef{kNoBlock} : ref;
  }
  return kNoBlock;
}

// For another's sake nobody is pushed below its floor in any tier, wherever the block counts as
// old.
bool Residency::MayForget(BlockRef ref, uint16_t sake) const {
  const BlockEntry& entry = at(ref);
  const uint64_t bytes = SlotBytesOf(ref);
  const bool dram = !entry.in_tier(kTierDram) || dram_quota_.OverFloor(entry.tenant) >= bytes;
  const bool nvme = !entry.in_tier(kTierNvme) || nvme_quota_.OverFloor(entry.tenant) >= bytes;
  return entry.tenant == sake || (dram && nvme);
}

// The index is full: what was used longest ago goes, from every tier. Of its own, if not of others.
bool Residency::ForgetOne(const NewBlock& sake) {
  const uint16_t tenant = sake.name.tenant;
  const BlockRef parent = index_->Find(
      {.tenant = tenant, .group = sake.name.group, .part = sake.name.part, .key = sake.parent});
  for (const bool own_only : {false, true}) {
    uint32_t first = nvme_order_->Victim([this, tenant, own_only](uint16_t other) {
      return other == tenant || (!own_only && nvme_quota_.OverFloor(other) > 0);
    });
    uint32_t second = dram_order_->Victim([this, tenant, own_only](uint16_t pool) {
      const uint16_t other = catalog_->pool(pool).tenant;
      return other == tenant || (!own_only && dram_quota_.OverFloor(other) > 0);
    });
    if (first != kNoVictim && second != kNoVictim &&
        at(second).last_used_nanos < at(first).last_used_nanos) {
      std::swap(first, second);
    }
    for (const uint32_t victim : {first, second}) {
      const BlockRef tail = victim == kNoVictim ? BlockRef{kNoBlock} : TailBelow(victim);
      if (tail == kNoBlock || tail == parent || !MayForget(tail, tenant)) continue;
      if (!at(tail).in_tier(kTierNvme)) CountLostUnwritten(at(tail).tenant);
      Drop(tail, Leave::kPressure);
      return true;
    }
  }
  return false;
}

}  // namespace aquifer
