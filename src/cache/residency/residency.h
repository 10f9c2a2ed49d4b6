// Which block is where. Index, DRAM slots, eviction orders and quotas say the same thing in four
// ways; this is the one place that changes them, so that they always agree.
//
// A block that is dropped while someone still leases it, or while a device still reads or writes
// its slot, is gone for everyone else at once; its slot stays in quarantine until the last of them
// has let go.
//
// Runs on the owner. Touches no payload.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "block/block_meta.h"
#include "cache/residency/catalog.h"
#include "cache/residency/lost_links.h"
#include "index/index.h"
#include "policy/admission/pin_table.h"
#include "policy/admission/quota.h"
#include "policy/cost/prefill_model.h"
#include "policy/cost/tier_speed.h"
#include "policy/eviction/eviction_order.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {

// Why a block left; each is a counter.
enum class Leave : uint8_t {
  kPressure,
  kQuota,
  kExpired,
  kCorrupt,
  kAsked,
  kOrphaned,
  kLostByTier,
  kToDurable,  // No room here, and a durable tier has it: what hangs below it is of use as before.
};
inline constexpr size_t kLeaveReasons = 8;

struct ResidencyParts {
  Catalog* catalog = nullptr;
  DramPool* dram = nullptr;
  Clock* clock = nullptr;
  const PrefillModels* prefill = nullptr;  // What computing blocks takes; null: nobody knows.
  std::unique_ptr<Index> index;
  std::unique_ptr<EvictionOrder> dram_order;  // Its "tenants" are the catalog's pools.
  std::unique_ptr<EvictionOrder> nvme_order;
  Quota dram_quota;
  Quota nvme_quota;
  uint64_t extent_bytes = 0;  // Of DRAM.
  uint64_t name_seed = 0;     // Of the names that the orders know blocks by.
  uint8_t lasting_tiers = 0;  // TierBit() of the durable tiers that count as durable.
};

class Residency {
 public:
  explicit Residency(ResidencyParts parts);

  const Index& index() const { return *index_; }
  const BlockEntry& at(BlockRef ref) const { return index_->at(ref); }

  // Identity and everything that must travel with the block's bytes.
  BlockMeta MetaOf(BlockRef ref) const;
  BlockId IdOf(BlockRef ref) const;
  BlockName NameOf(BlockRef ref) const;
  uint64_t RawBytes(BlockRef ref) const;
  // Bytes, where no engine has registered its layout yet.
  DType DTypeOf(BlockRef ref) const;
  BlockRef Find(const BlockId& id) const;

  // --- Slots

  // A slot for the tenant, at the expense of what is worth less. An extent is one tenant's alone,
  // so that a ceiling bounds extents too: there are never more than it takes to hold that many
  // bytes of blocks of one size. kBusy: memory is on its way. kNoSpace: nothing may be evicted now.
  // kInvalid: the tenant's ceiling does not allow it at all.
  //
  // Whoever has to wait for an extent is served in turn: nobody else grows meanwhile, however many
  // of them ask, as long as it asks again now and then. And it keeps the first that it gets for a
  // while: tenants that are too many for the memory take turns, instead of pushing each other out
  // before anything is recalled.
  Result<SlotId> TakeSlot(uint16_t tenant, uint64_t block_bytes);
  // Of a slot that no entry refers to.
  void FreeSlot(uint16_t tenant, SlotId slot);
  // Nobody may use it until it is freed.
  void QuarantineSlot(SlotId slot) { dram_->Quarantine(slot); }
  std::span<std::byte> SlotBytes(SlotId slot) { return dram_->SlotBytes(slot); }

  // --- A block's life

  // A new block whose bytes are about to be written into `slot`. Where the index is full, another
  // is forgotten for it; kNoSpace: all of them are in use.
  Result<BlockRef> AddFilling(const NewBlock& block, SlotId slot);
  // A block that NVMe holds, found at start. kNoSpace, kBusy: the index cannot take it now.
  // kInvalid: the tenant's ceiling, or the block itself, does not allow it.
  Result<BlockRef> AddOnNvme(const NewBlock& block);
  // Its bytes are complete: it is served from here on.
  void Publish(BlockRef ref, const Checksum& checksum);
  // It was read from a lower tier into `slot`.
  void ArriveInDram(BlockRef ref, SlotId slot);
  // Its write has completed; ChargeNvme() came before.
  void ArriveOnNvme(BlockRef ref);
  // NVMe alone has it, and could not serve it: `slot` has other bytes of it, computed again or from
  // a durable tier. These count until it leaves DRAM, then those of NVMe again.
  void StoreAgain(BlockRef ref, SlotId slot, const Checksum& checksum);
  // A drive came with a record of what is in DRAM, and it is not the same: as after StoreAgain().
  void SetMayDiffer(BlockRef ref) { may_differ_.insert(ref); }
  // Its bytes in DRAM and on NVMe may not be the same.
  bool MayDiffer(BlockRef ref) const { return may_differ_.contains(ref); }

  // As ArriveInDram(), for one that nobody here knew of: it was read from a durable tier. The index
  // may be full, or the block not fit into its chain.
  Result<BlockRef> AddLoaded(const NewBlock& block, SlotId slot);

  // Out of DRAM; a block that no other tier has is dropped, and so is one that only durable tiers
  // have: the index knows what is on this host. It is not held.
  void LeaveDram(BlockRef ref, Leave why);
  // NVMe has it no more (the tier said so, or was told to erase it); dropped if DRAM has it not.
  void LeaveNvme(BlockRef ref, Leave why);
  // Out of every tier and unfindable. What was below it in its chain is of no use any more and
  // follows, a slice at a time (DropOrphans); but not when it was lost to a fault, for then an
  // engine will store it again soon and the rest is whole once more. The same where that was given
  // up half way.
  void Drop(BlockRef ref, Leave why);

  // Drops up to `max_blocks` that hang below dropped ones; false when none are left.
  bool DropOrphans(size_t max_blocks);
  // Drops up to `max_blocks` whose time is over, looking at a slice of the index.
  bool DropExpired(size_t max_steps);  // True: there was some.

  // --- Holding on

  // The block has a slot. False: 65 535 are out already.
  [[nodiscard]] bool Lease(BlockRef ref);
  void Unlease(BlockRef ref);
  // A device reads or writes it.
  void BeginIo(BlockRef ref, uint8_t tier);
  // It may be gone after that: nothing else may have held it where it is.
  void EndIo(BlockRef ref, uint8_t tier);
  // Keeps it in DRAM until it is written down. False: it is held for that already.
  [[nodiscard]] bool HoldDirty(BlockRef ref);
  void UnholdDirty(BlockRef ref);
  // The record that NVMe has of it is out of date, and to be replaced. False: it was already.
  [[nodiscard]] bool SetStale(BlockRef ref);
  void ClearStale(BlockRef ref) { index_->SetFlags(ref, 0, kFlagStale); }
  bool stale(BlockRef ref) const { return (at(ref).flags & kFlagStale) != 0; }
  // NVMe has it not, and is not to have it as things are.
  void SetAside(BlockRef ref, bool aside) {
    index_->SetFlags(ref, aside ? kFlagSetAside : 0, kFlagSetAside);
  }
  // The ref still names the block of that OrderName(), wherever it is.
  bool IsStill(BlockRef ref, uint64_t order_name) const {
    return index_->Exists(ref) && at(ref).state == BlockState::kResident &&
           OrderName(ref) == order_name;
  }
  bool InDramAndNotOnNvme(BlockRef ref) const {
    return index_->Exists(ref) && at(ref).state == BlockState::kResident &&
           at(ref).in_tier(kTierDram) && !at(ref).in_tier(kTierNvme);
  }
  bool set_aside(BlockRef ref) const {
    return (at(ref).flags & kFlagSetAside) != 0 && !at(ref).in_tier(kTierNvme);
  }

  // --- Durable tiers, by their numbers from 0

  // The tier has it, as far as is known, or has it no more.
  void SetDurable(BlockRef ref, uint8_t durable, bool there);
  bool in_durable(BlockRef ref, uint8_t durable) const {
    return at(ref).in_tier(static_cast<uint8_t>(kTierFirstDurable + durable));
  }
  // One that counts as durable has it.
  bool in_lasting(BlockRef ref) const { return (at(ref).residency & lasting_tiers_) != 0; }
  // It is to be durable: lost before it is, it counts as lost.
  void WantDurable(BlockRef ref) { index_->SetFlags(ref, kFlagDurableWanted); }
  bool durable_wanted(BlockRef ref) const { return (at(ref).flags & kFlagDurableWanted) != 0; }
  // Keeps it in DRAM while it waits to be written to one. False: it is kept on that account
  // already.
  [[nodiscard]] bool HoldForDurable(BlockRef ref);
  void UnholdForDurable(BlockRef ref);
  // It is in DRAM, and its slot is being read by the tier.
  void BeginDurableIo(BlockRef ref, uint8_t durable);
  // It may be gone after that.
  void EndDurableIo(BlockRef ref, uint8_t durable);
  // It is gone because somebody asked for that.
  bool deleted(BlockRef ref) const { return (at(ref).flags & kFlagDeleted) != 0; }
  // How many of the tenant's that were to be durable were dropped before they were.
  uint64_t lost_undurable(uint16_t tenant) const;
  void CountLostUndurable(uint16_t tenant);

  // Nobody has stored it in this life: NVMe held it over a restart.
  bool found(BlockRef ref) const { return (at(ref).flags & kFlagFound) != 0; }
  // False: too many pins.
  [[nodiscard]] bool Pin(BlockRef ref, uint64_t owner, int64_t until_unix_seconds);
  void Unpin(BlockRef ref, uint64_t owner);
  bool ExpirePins(size_t max_pins);  // True: there were some.

  // What the orders call a block. Seeded: nobody can make two of them fall together.
  uint64_t OrderName(const BlockName& name) const;
  uint64_t OrderName(BlockRef ref) const { return OrderName(NameOf(ref)); }
  // Tells the orders of a request, up to `max_blocks` at a time: one after the other. False when
  // that was all.
  struct AskedOrders {
    AskProgress dram{};
    AskProgress nvme{};
    bool dram_done = false;
  };
  bool Ask(const AskedChain& chain, size_t max_blocks, AskedOrders* asked);
  // What such a chain's blocks save when DRAM has them.
  ChainSaving SavingInDram(uint16_t tenant, uint16_t layout, uint16_t group) const;
  // What loading from NVMe takes as it is now.
  void SetReload(const TierCost& nvme) { reload_ = nvme; }
  // How likely it is that the block is asked for after it has left DRAM; nothing: it is not known.
  std::optional<double> ReuseProbability(BlockRef ref) const {
    return nvme_order_->ReuseProbability(OrderName(ref));
  }
  void Touch(BlockRef ref);
  void SetOwnerData(BlockRef ref, uint32_t data) { index_->SetOwnerData(ref, data); }
  void SetExpiry(BlockRef ref, uint32_t unix_seconds) { index_->SetExpiry(ref, unix_seconds); }
  // A session ends with this block, which may be there or not.
  void WantLink(const BlockName& end) { lost_links_.Want(end); }
  // What came before a block that is gone; null: not known. A client may store keys below others
  // than before, but positions fall with each step, so that no walk goes round in circles.
  const LostLink* LinkAbove(const BlockName& gone) const;
  // Up to `max` that hang right below it and which durable tiers alone have, as far as is known.
  std::vector<Key> DurableBelow(const BlockName& name, size_t max) const {
    return lost_links_.DurableBelow(name, max);
  }
  void OnDeletedInDurable(const BlockName& name) { lost_links_.OnDeleted(name); }
  // Of all of the tenant's, up to `max`. False when none is left.
  bool ForgetDurableBelow(uint16_t tenant, size_t max) {
    return lost_links_.ForgetDurable(tenant, max);
  }
  void SetForecast(BlockRef ref, int8_t priority, SessionHint session);

  // --- Making room

  // Empties the extent that holds the least valuable block, so that its memory can serve another
  // tenant or size. Takes nothing from `for_pool`. False: nothing may be taken.
  bool ReclaimExtent(uint16_t for_pool);
  // A slice of emptying; false when nothing is left to do.
  bool ContinueReclaim(size_t max_blocks);
  // Takes the block's bytes on NVMe out of its tenant's share, before it is written there; at the
  // ceiling the tenant's least valuable blocks there make room. kBusy: more of them have to go than
  // one task drops; ask again. kNoSpace: they cannot make enough.
  Status ChargeNvme(BlockRef ref);
  // The write failed. `bytes` as charged, for a block that may be gone by now.
  void UnchargeNvme(uint16_t tenant, uint64_t bytes) { nvme_quota_.Uncharge(tenant, bytes); }
  uint64_t SlotBytesOf(BlockRef ref) const;

  double DramValue(BlockRef ref) const { return dram_order_->Value(ref); }
  double NvmeValue(BlockRef ref) const { return nvme_order_->Value(ref); }
  // What the tenant has on NVMe above its floor.
  uint64_t NvmeOverFloor(uint16_t tenant) const { return nvme_quota_.OverFloor(tenant); }

  // How many were dropped, from every tier, for that reason.
  uint64_t left(Leave why) const { return left_[static_cast<size_t>(why)]; }
  // The same, and where its blocks are, of one tenant.
  struct TenantBlocks {
    std::array<uint64_t, kLeaveReasons> left{};
    uint64_t in_dram = 0;
    uint64_t on_nvme = 0;
    uint64_t being_written = 0;     // To a lower tier, also those that are gone otherwise.
    uint64_t unfetched_bytes = 0;   // Prestaged, and not fetched since.
    uint64_t prestaging_bytes = 0;  // Charged, and not there yet.
  };
  TenantBlocks blocks_of(uint16_t tenant) const {
    return tenant < blocks_of_.size() ? blocks_of_[tenant] : TenantBlocks{};
  }
  Status SetQuota(uint16_t tenant, const TenantQuota& dram, const TenantQuota& nvme) {
    AQ_RETURN_IF_ERROR(dram_quota_.SetTenant(tenant, dram));
    return nvme_quota_.SetTenant(tenant, nvme);
  }
  const Quota& dram_quota() const { return dram_quota_; }
  const Quota& nvme_quota() const { return nvme_quota_; }
  uint64_t DramCeiling(uint16_t tenant) const {
    return std::min(dram_quota_.quota(tenant).ceiling_bytes, dram_quota_.capacity_bytes());
  }
  uint64_t NvmeCeiling(uint16_t tenant) const {
    return std::min(nvme_quota_.quota(tenant).ceiling_bytes, nvme_quota_.capacity_bytes());
  }
  // --- Prestaging: a guess. It may take what is free, and beyond that half of its tenant's DRAM.

  // Before a load. Refunded, unless it is noted then.
  [[nodiscard]] bool ChargePrestage(uint16_t tenant, uint64_t bytes);
  void RefundPrestage(uint16_t tenant, uint64_t bytes);
  // False: it is gone again, or somebody has fetched it.
  [[nodiscard]] bool NotePrestaged(BlockRef ref);
  uint64_t unfetched_bytes() const;
  // What left DRAM without having been fetched, ever.
  uint64_t prestaged_in_vain_bytes() const { return prestaged_in_vain_bytes_; }

  // How many left DRAM for a lower tier that had them.
  uint64_t demoted() const { return demoted_; }
  // How many of the tenant's were dropped from DRAM before any other tier had them, for want of
  // room or because they were damaged there.
  uint64_t lost_unwritten(uint16_t tenant) const;
  // The most that the tenant could have, as the pool is now.
  uint64_t DramLimit(uint16_t tenant) const {
    return std::min(dram_quota_.quota(tenant).ceiling_bytes, dram_->usage().extent_bytes);
  }
  // An extent without blocks that other processes do not give back: its tenant pays for all of it.
  void Withhold(uint32_t extent);
  void EndWithholding(uint32_t extent);
  uint64_t withheld_bytes() const { return withheld_bytes_; }

  uint64_t dram_bytes(uint16_t tenant) const { return dram_quota_.charged(tenant); }
  uint64_t nvme_bytes(uint16_t tenant) const { return nvme_quota_.charged(tenant); }
  uint64_t nvme_blocks() const { return nvme_order_->size(); }
  uint64_t dram_blocks() const { return dram_order_->size(); }
  uint64_t only_in_dram() const { return static_cast<uint64_t>(only_in_dram_); }
  uint64_t metadata_bytes() const;
  EvictionStats dram_stats() const { return dram_order_->stats(); }

  // What NVMe has of the block, as far as is known there.
  std::function<std::optional<Checksum>(const BlockId&)> checksum_on_nvme;
  // Called with the identity of every block that NVMe still has when it is dropped: to be erased.
  std::function<void(const BlockId&, Leave)> on_erase;
  // The same with what a durable tier has, of a block that is deleted.
  std::function<void(const BlockId&)> on_erase_durable;

 private:
  // In the index's flags.
  static constexpr uint8_t kFlagDirtyHeld = 0x80;  // Waits in DRAM to be written down.
  static constexpr uint8_t kFlagStale = 0x40;
  static constexpr uint8_t kFlagFound = 0x20;  // NVMe had it at a start; not stored since.
  static constexpr uint8_t kFlagDurableHeld =
      0x10;                                        // Waits in DRAM to be written to a durable tier.
  static constexpr uint8_t kFlagUnfetched = 0x08;  // Prestaged, and not fetched since.
  static constexpr uint8_t kFlagSetAside = 0x04;
  static constexpr uint8_t kWaitsInDram = kFlagDirtyHeld | kFlagDurableHeld;
  static constexpr uint8_t kDurableTiers = 0xFF & ~((1u << kTierFirstDurable) - 1);
  static constexpr uint32_t kNoReclaim = UINT32_MAX;
  static constexpr uint32_t kNoExtent = UINT32_MAX;

  // A pool that waits for an extent.
  struct Claim {
    uint16_t pool = 0;
    int64_t asked_nanos = 0;  // The last time.
  };

  struct Forecast {
    int8_t priority = 0;
    SessionHint session = SessionHint::kNone;
  };

  static uint16_t PayerOf(uint16_t tenant);
  TenantBlocks& MutableBlocksOf(uint16_t tenant);
  void CountLostUnwritten(uint16_t tenant);
  // It is no guess any more. False: it was none.
  bool ClearUnfetched(BlockRef ref);
  void LeaveDurable(BlockRef ref, Leave why);
  BlockFeatures Features(BlockRef ref, uint8_t tier) const;
  // What computing such a chain's blocks takes.
  ChainSaving ComputingOf(uint16_t tenant, uint16_t layout, uint16_t group) const;
  double ReloadMs(uint64_t bytes) const {
    return reload_.ms_per_op + reload_.ms_per_byte * static_cast<double>(bytes);
  }
  // Another tier has it, or has it no more: what DRAM saves is another.
  void ReweighInDram(BlockRef ref);
  void SetTier(BlockRef ref, uint8_t tier, bool resident);
  // Someone reads or writes its slot. A read from NVMe does not: it has one of its own.
  bool SlotInUse(BlockRef ref) const;
  // Someone needs it in DRAM.
  bool HeldInDram(BlockRef ref) const;
  EvictionOrder* order(uint8_t tier) {
    return tier == kTierDram ? dram_order_.get() : nvme_order_.get();
  }
  // Makes room in the index for that block. False: nothing may go.
  bool ForgetOne(const NewBlock& sake);
  bool MayForget(BlockRef ref, uint16_t sake) const;
  BlockRef TailBelow(BlockRef ref) const;
  bool DropFalseSibling(const NewBlock& first);
  // Of an entry that nobody holds.
  void Remove(BlockRef ref);
  // Forgets a gone block once nobody holds it.
  void Settle(BlockRef ref);
  void ReleaseSlot(BlockRef ref);
  // Nothing of the tenant's may go now: whether that is worth waiting for.
  Status AllInUse(uint16_t tenant, const char* why) const;
  // Makes room below the ceiling of the pool's tenant.
  bool EvictForQuota(uint16_t pool);
  // The tenant's ceiling, in whole extents, allows it one more.
  bool MayGrow(uint16_t tenant) const;
  // Nobody waits for an extent before it.
  bool HasTurn(uint16_t pool);
  void ClaimExtent(uint16_t pool);
  void EndClaim(uint16_t pool);
  Result<SlotId> AllocateFor(uint16_t pool, bool may_grow);
  // It has one extent, and that for so short a time that nobody may have it yet.
  bool JustCame(uint16_t tenant) const;
  // Empties one of the tenant's own extents for slots of another size, which it may then have.
  // False: nothing of them may go.
  bool ReclaimOwn(uint16_t for_pool);
  uint32_t EmptyExtentOf(uint16_t for_pool) const;
  void BeginReclaim(uint32_t extent);
  bool Retiring(SlotId slot) const;
  // Of the tenant's, in extents that are being emptied: what is held leaves later.
  uint64_t RetiringBytes(const TenantId& tenant) const;
  // Nothing holds it any more: if its extent is being emptied, it goes.
  void LeaveIfRetiring(BlockRef ref);
  void UnholdPin(BlockRef ref);
  // Extents that were emptied and closed are of no interest any more.
  void ForgetClosedExtents();

  Catalog* const catalog_;
  DramPool* const dram_;
  Clock* const clock_;
  const PrefillModels* const prefill_;
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<EvictionOrder> dram_order_;
  const std::unique_ptr<EvictionOrder> nvme_order_;
  Quota dram_quota_;
  const uint64_t extent_bytes_;
  const uint64_t name_seed_;
  const uint8_t lasting_tiers_;
  std::vector<Claim> claims_;              // In the order in which they came.
  std::vector<int64_t> came_nanos_;        // By tenant: when it got its first extent.
  std::map<uint32_t, uint16_t> withheld_;  // Who pays for which extent.
  uint64_t withheld_bytes_ = 0;
  Quota nvme_quota_;
  TierCost reload_;
  PinTable pins_;
  std::set<BlockRef> may_differ_;           // In DRAM and on NVMe, with bytes that may differ.
  std::map<BlockRef, Forecast> forecasts_;  // Of the few blocks that a caller spoke of.
  LostLinks lost_links_;
  std::deque<BlockName> orphaned_;      // Names whose children are to be dropped.
  std::vector<uint32_t> retiring_;      // Extents being emptied.
  uint32_t reclaim_extent_ = 0;         // Of those, the one whose blocks are being moved out.
  uint32_t reclaim_slot_ = kNoReclaim;  // Its next slot to look at.
  std::vector<std::pair<uint32_t, BlockRef>> reclaim_;  // Its blocks by position: a heap.
  BlockRef expiry_cursor_ = 0;
  std::array<uint64_t, kLeaveReasons> left_{};
  std::vector<TenantBlocks> blocks_of_;  // By tenant.
  uint64_t demoted_ = 0;
  uint64_t prestaged_in_vain_bytes_ = 0;
  int64_t only_in_dram_ = 0;
  std::vector<uint64_t> lost_unwritten_;  // By tenant.
  std::vector<uint64_t> lost_undurable_;  // By tenant.
};

}  // namespace aquifer
