#include "tier/dram/dram_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

uint64_t SlotsIn(uint64_t extent_bytes) { return extent_bytes / kPageBytes; }

uint32_t SlotBitsFor(uint64_t extent_bytes) {
  return static_cast<uint32_t>(std::bit_width(SlotsIn(extent_bytes) - 1));
}

uint64_t ShelfHash(const TenantId& tenant, uint64_t slot_bytes) {
  uint64_t tenant_bits = 0;
  std::memcpy(&tenant_bits, tenant.bytes.data(), sizeof(tenant_bits));
  return tenant_bits ^ slot_bytes * 0x9E3779B97F4A7C15u;
}

}  // namespace

Status DramPool::Validate(const DramPoolOptions& options) {
  if (options.extent_bytes == 0 || options.extent_bytes % kPageBytes != 0) {
    return Status(Code::kInvalid, "extent_bytes must be a multiple of 4096");
  }
  if (options.capacity_bytes < options.extent_bytes) {
    return Status(Code::kInvalid, "capacity_bytes must hold at least one extent");
  }
  // The last extent's numbers are left out: kNoSlot is among them.
  const uint64_t max_extents = options.capacity_bytes / options.extent_bytes;
  const uint32_t slot_bits = SlotBitsFor(options.extent_bytes);
  if (slot_bits >= 32 || max_extents >= uint64_t{1} << (32 - slot_bits)) {
    return Status(Code::kInvalid, "capacity_bytes is more than slots can be numbered in");
  }
  return Status();
}

DramPool::DramPool(const DramPoolOptions& options, ExtentSource* source, WorkerPool* workers,
                   Executor* executor)
    : options_(options),
      source_(source),
      workers_(workers),
      executor_(executor),
      max_extents_(options.capacity_bytes / options.extent_bytes),
      slot_bits_(SlotBitsFor(options.extent_bytes)),
      extents_(max_extents_),
      ready_wanted_(options.ready_extents) {
  static_assert(std::is_trivially_copyable_v<SlotRecord>, "its arrays come from calloc");
  for (uint64_t i = max_extents_; i > 0; --i) {
    empty_places_.push_back(static_cast<uint32_t>(i - 1));
  }
}

DramPool::~DramPool() {
  for (const auto& [name, index] : by_name_) {
    if (extents_[index].mappers > 0) extents_[index].extent->KeepContents();
  }
}

// --- Slots

Result<SlotId> DramPool::Allocate(const TenantId& tenant, uint64_t bytes) {
  if (bytes == 0 || bytes > options_.extent_bytes) return Status(Code::kInvalid);
  const uint64_t slot_bytes = RoundUpToPage(bytes);
  const uint32_t shelf = FindShelf(tenant, slot_bytes);
  uint32_t index = shelf == kNone ? kNone : FullestOpen(shelves_[shelf]);
  if (index == kNone) {
    if (ready_.empty()) {
      wanted_ = true;
      StartMaking();
      if (!OnTheirWay()) RetireAnEmptyOne(/*huge_pages_too=*/true);
      return Status(OnTheirWay() ? Code::kBusy : Code::kNoSpace);
    }
    index = AssignReady(tenant, slot_bytes);
  }
  return TakeFrom(index);
}

Result<SlotId> DramPool::AllocateOwned(const TenantId& tenant, uint64_t bytes) {
  if (bytes == 0 || bytes > options_.extent_bytes) return Status(Code::kInvalid);
  const uint32_t shelf = FindShelf(tenant, RoundUpToPage(bytes));
  const uint32_t index = shelf == kNone ? kNone : FullestOpen(shelves_[shelf]);
  if (index == kNone) return Status(Code::kNoSpace);
  return TakeFrom(index);
}

uint32_t DramPool::ExtentsOf(const TenantId& tenant) const {
  const auto found = owned_.find(tenant);
  return found == owned_.end() ? 0 : found->second;
}

// It has a free slot.
SlotId DramPool::TakeFrom(uint32_t index) {
  AssignedExtent& extent = extents_[index];
  uint32_t number = extent.first_free;
  if (number != kNone) {
    extent.first_free = extent.records[number].number;
  } else {
    number = extent.touched++;
  }
  SlotRecord& record = extent.records[number];
  AQ_CHECK(record.state == SlotState::kFree);
  record.state = SlotState::kTaken;
  if (extent.used++ == 0) --empty_;
  Relist(index);
  usage_.slot_bytes += extent.slot_bytes;
  ++counters_.slots_allocated;
  return SlotAt(index, number);
}

void DramPool::Publish(SlotId slot, const TenantId& tenant, uint64_t bytes, uint32_t block) {
  SlotRecord& record = Record(slot);
  const AssignedExtent& extent = extents_[IndexOf(slot)];
  AQ_CHECK(record.state == SlotState::kTaken);
  AQ_CHECK(tenant == shelves_[extent.shelf].tenant);
  AQ_CHECK(bytes > 0 && bytes <= extent.slot_bytes);
  record = {.state = SlotState::kPublished, .number = block};
}

void DramPool::Retract(SlotId slot) {
  SlotRecord& record = Record(slot);
  AQ_CHECK(record.state == SlotState::kPublished);
  record.state = SlotState::kTaken;
}

void DramPool::Quarantine(SlotId slot) {
  SlotRecord& record = Record(slot);
  AQ_CHECK(record.state == SlotState::kTaken);
  record.state = SlotState::kQuarantined;
  usage_.quarantined_bytes += extents_[IndexOf(slot)].slot_bytes;
}

void DramPool::Free(SlotId slot) {
  SlotRecord& record = Record(slot);
  AQ_CHECK(record.state != SlotState::kPublished);
  const uint32_t index = IndexOf(slot);
  AssignedExtent& extent = extents_[index];
  if (record.state == SlotState::kQuarantined) usage_.quarantined_bytes -= extent.slot_bytes;
  usage_.slot_bytes -= extent.slot_bytes;
  record = {.state = SlotState::kFree, .number = extent.first_free};
  extent.first_free = NumberOf(slot);
  if (--extent.used == 0) {
    ++empty_;
    extent.touched = 0;  // In order again: neighbours go to a drive together.
    extent.first_free = kNone;
  }
  ++counters_.slots_freed;
  if (!extent.retired) return Relist(index);
  if (extent.used == 0) CloseOrAskBack(index);
}

std::span<std::byte> DramPool::SlotBytes(SlotId slot) {
  Record(slot);  // Checks that it is allocated.
  const AssignedExtent& extent = extents_[IndexOf(slot)];
  return {extent.memory + NumberOf(slot) * extent.slot_bytes, extent.slot_bytes};
}

const DramPool::SlotRecord& DramPool::Record(SlotId slot) const {
  AQ_CHECK(IndexOf(slot) < extents_.size());
  const AssignedExtent& extent = extents_[IndexOf(slot)];
  AQ_CHECK(NumberOf(slot) < extent.touched);
  const SlotRecord& record = extent.records[NumberOf(slot)];
  AQ_CHECK(record.state != SlotState::kFree);
  return record;
}

// --- Shelves

uint32_t DramPool::FindShelf(const TenantId& tenant, uint64_t slot_bytes) const {
  return shelf_table_.Find(ShelfHash(tenant, slot_bytes), [&](uint32_t shelf) {
    return shelves_[shelf].slot_bytes == slot_bytes && shelves_[shelf].tenant == tenant;
  });
}

uint32_t DramPool::MakeShelf(const TenantId& tenant, uint64_t slot_bytes) {
  uint32_t place = static_cast<uint32_t>(shelves_.size());
  if (empty_shelves_.empty()) {
    shelves_.emplace_back();
    shelf_table_.Reserve(shelves_.size());
  } else {
    place = empty_shelves_.back();
    empty_shelves_.pop_back();
  }
  Shelf& shelf = shelves_[place];
  shelf = {.tenant = tenant, .slot_bytes = slot_bytes};
  shelf.first.fill(kNone);
  shelf_table_.Insert(ShelfHash(tenant, slot_bytes), place);
  return place;
}

void DramPool::LeaveShelf(AssignedExtent& extent) {
  Shelf& shelf = shelves_[extent.shelf];
  if (--shelf.extents > 0) return;
  shelf_table_.Erase(ShelfHash(shelf.tenant, shelf.slot_bytes), extent.shelf);
  empty_shelves_.push_back(extent.shelf);
}

uint32_t DramPool::FullestOpen(const Shelf& shelf) const {
  for (uint32_t level = kFillLevels; level > 0; --level) {
    if (shelf.first[level - 1] != kNone) return shelf.first[level - 1];
  }
  return kNone;
}

// Puts the extent into the list that its fill calls for.
void DramPool::Relist(uint32_t index) {
  AssignedExtent& extent = extents_[index];
  uint32_t level = kNone;  // A full or retired one is in no list.
  if (!extent.retired && extent.used < extent.slots) {
    level = static_cast<uint32_t>(uint64_t{extent.used} * kFillLevels / extent.slots);
  }
  if (level == extent.level) return;
  Unlist(extent);
  if (level == kNone) return;
  uint32_t& first = shelves_[extent.shelf].first[level];
  extent.level = level;
  extent.next = first;
  extent.previous = kNone;
  if (first != kNone) extents_[first].previous = index;
  first = index;
}

void DramPool::Unlist(AssignedExtent& extent) {
  if (extent.level == kNone) return;
  if (extent.previous != kNone) {
    extents_[extent.previous].next = extent.next;
  } else {
    shelves_[extent.shelf].first[extent.level] = extent.next;
  }
  if (extent.next != kNone) extents_[extent.next].previous = extent.previous;
  extent.level = extent.next = extent.previous = kNone;
}

// --- Extents

uint32_t DramPool::AssignReady(const TenantId& tenant, uint64_t slot_bytes) {
  uint32_t shelf = FindShelf(tenant, slot_bytes);
  if (shelf == kNone) shelf = MakeShelf(tenant, slot_bytes);
  ++shelves_[shelf].extents;

  AQ_CHECK(!empty_places_.empty());
  const uint32_t index = empty_places_.back();
  empty_places_.pop_back();
  AssignedExtent& extent = extents_[index];
  extent = AssignedExtent();
  extent.name = ready_.front().name;
  extent.extent = std::move(ready_.front().extent);
  ready_.pop_front();
  extent.memory = extent.extent->bytes().data();
  extent.shelf = shelf;
  extent.slot_bytes = slot_bytes;
  extent.slots = static_cast<uint32_t>(options_.extent_bytes / slot_bytes);
  // calloc: 16384 slots of 4 KiB need 128 KiB of records, whose pages are touched slot by slot.
  extent.records.reset(static_cast<SlotRecord*>(std::calloc(extent.slots, sizeof(SlotRecord))));
  AQ_CHECK(extent.records != nullptr);
  ++empty_;
  by_name_.emplace(extent.name, index);
  ++owned_[tenant];
  Relist(index);
  StartMaking();  // The stock has one less.
  return index;
}

void DramPool::Retire(uint32_t name) {
  AQ_CHECK(name < next_name_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;  // Closed already.
  const uint32_t index = found->second;
  AssignedExtent& extent = extents_[index];
  if (extent.retired) return;
  extent.retired = true;
  ++retired_;
  Relist(index);
  if (extent.used == 0) CloseOrAskBack(index);
}

// Nobody's blocks are in it, so there is nothing to decide: the oldest will do.
bool DramPool::RetireAnEmptyOne(bool huge_pages_too) {
  if (empty_ == 0) return false;
  for (const auto& [name, index] : by_name_) {
    const AssignedExtent& extent = extents_[index];
    if (extent.used > 0 || extent.retired || (!huge_pages_too && extent.extent->huge_pages()))
      continue;
    Retire(name);
    return true;
  }
  return false;
}

void DramPool::CloseOrAskBack(uint32_t index) {
  AssignedExtent& extent = extents_[index];
  if (extent.mappers == 0) return CloseAssigned(index);
  if (extent.returning_ticks > 0) return;
  extent.returning_ticks = 1;
  ++returning_;
  if (on_wanted_back) on_wanted_back(extent.name);
}

SlotPlace DramPool::PlaceOf(SlotId slot) const {
  const AssignedExtent& extent = extents_[IndexOf(slot)];
  return {.extent = extent.name, .offset = NumberOf(slot) * extent.slot_bytes};
}

void DramPool::AddMapper(uint32_t extent) { ++extents_[by_name_.at(extent)].mappers; }

void DramPool::RemoveMapper(uint32_t name) {
  const uint32_t index = by_name_.at(name);
  AssignedExtent& extent = extents_[index];
  AQ_CHECK(extent.mappers > 0);
  if (--extent.mappers == 0 && extent.retired && extent.used == 0) CloseAssigned(index);
}

void DramPool::CloseAssigned(uint32_t index) {
  AssignedExtent& extent = extents_[index];
  AQ_CHECK(extent.retired && extent.used == 0 && extent.mappers == 0);
  if (extent.returning_ticks > 0 && extent.returning_ticks <= kPatienceTicks) --returning_;
  if (extent.returning_ticks > 0 && on_returned) on_returned(extent.name);
  --retired_;
  --empty_;
  by_name_.erase(extent.name);
  const auto owner = owned_.find(shelves_[extent.shelf].tenant);
  if (--owner->second == 0) owned_.erase(owner);
  LeaveShelf(extent);
  std::shared_ptr<Extent> closing = std::move(extent.extent);
  extent = AssignedExtent();
  empty_places_.push_back(index);
  Destroy(std::move(closing));
}

void DramPool::Destroy(std::shared_ptr<Extent> extent) {
  ++destroys_begun_;
  TellOfExtent(extent->bytes(), false);
  workers_->Run([this, executor = executor_, at_workers = at_workers_,
                 alive = std::weak_ptr(alive_), extent = std::move(extent)]() mutable {
    extent.reset();
    ++at_workers->destroyed;
    executor->Post([this, alive] {
      if (!alive.expired()) OnDestroyed();
    });
  });
}

void DramPool::OnDestroyed() {
  usage_.extent_bytes -= options_.extent_bytes;
  ++counters_.extents_closed;
  backing_off_ = false;
  StartMaking();
}

void DramPool::SetReadyExtents(uint32_t count) {
  ready_wanted_ = count;
  StartMaking();
}

void DramPool::StartMaking() {
  const uint32_t stock = std::max<uint32_t>(ready_wanted_, wanted_ ? 1 : 0);
  while (!backing_off_ && making_ < kMaxMaking && ready_.size() + making_ < stock &&
         usage_.extent_bytes + options_.extent_bytes <= options_.capacity_bytes && TakeCredit()) {
    ++making_;
    usage_.making_bytes += options_.extent_bytes;
    usage_.extent_bytes += options_.extent_bytes;
    workers_->Run([this, source = source_, executor = executor_, options = options_,
                   at_workers = at_workers_, alive = std::weak_ptr(alive_)] {
      // Others at work may take up to an extent each of what still looks available.
      const Clock* const clock = options.pace_clock;
      const int64_t begun = clock == nullptr ? 0 : clock->NowNanos();
      const uint64_t others = at_workers->makers.fetch_add(1);
      const uint64_t available = source->AvailableBytes();
      const bool enough =
          available >= options.keep_available_bytes &&
          available - options.keep_available_bytes >= (others + 1) * options.extent_bytes;
      std::shared_ptr<Extent> made;
      if (enough) {
        auto extent = source->New(options.extent_bytes);
        if (extent.ok() && (*extent)->bytes().size() >= options.extent_bytes) {
          made = *std::move(extent);
        }
      }
      at_workers->makers.fetch_sub(1);
      const int64_t took = clock == nullptr ? 0 : clock->NowNanos() - begun;
      executor->Post([this, alive, made, enough, alone = others == 0, took] {
        if (!alive.expired()) OnMade(made, enough, alone, took);
      });
    });
  }
}

// Making a whole pool took two cores for seconds. An engine on two cores computed its first prompt
// in 8.6 s, where 6.2 s are needed.
bool DramPool::TakeCredit() {
  if (options_.paced_by_cores == 0 || ready_.size() + making_ < kReadyAtOnce) return true;
  if (credit_nanos_ < kLeastCostNanos) return false;
  credit_nanos_ -= kLeastCostNanos;
  return true;
}

// An extent that took longer than the least is paid for afterwards.
void DramPool::Charge(int64_t nanos) {
  const int64_t more = std::max<int64_t>(nanos - kLeastCostNanos, 0);
  credit_nanos_ = std::max(credit_nanos_ - more, -kMostDebtNanos);
}

bool DramPool::PacedByTicks() const {
  return options_.paced_by_cores > 0 && !backing_off_ && ready_.size() + making_ < ready_wanted_ &&
         usage_.extent_bytes + options_.extent_bytes <= options_.capacity_bytes;
}

void DramPool::OnMade(std::shared_ptr<Extent> extent, bool tried, bool alone, int64_t took_nanos) {
  --making_;
  Charge(took_nanos);
  usage_.making_bytes -= options_.extent_bytes;
  if (extent != nullptr) {
    wanted_ = false;
    ++counters_.extents_made;
    TellOfExtent(extent->bytes(), true);
    ready_.push_back({.name = next_name_++, .extent = std::move(extent)});
    return StartMaking();
  }
  usage_.extent_bytes -= options_.extent_bytes;
  ++(tried ? counters_.extents_failed : counters_.extents_short);
  // One that left room for others may have been too careful: what they find decides.
  if (tried || alone) backing_off_ = true;
  if (making_ == 0) StartMaking();
}

ExtentInfo DramPool::ExtentOf(uint32_t extent) const {
  const auto found = by_name_.find(extent);
  if (found == by_name_.end()) return {.extent = extent, .tenant = {}};
  const AssignedExtent& assigned = extents_[found->second];
  return {.extent = extent,
          .tenant = shelves_[assigned.shelf].tenant,
          .slot_bytes = assigned.slot_bytes,
          .slots = assigned.slots,
          .used_slots = assigned.used,
          .retired = assigned.retired,
          .bytes = options_.extent_bytes,
          .descriptor = assigned.extent->descriptor()};
}

std::vector<ExtentInfo> DramPool::Extents() const {
  std::vector<ExtentInfo> infos;
  infos.reserve(by_name_.size());
  for (const auto& [name, index] : by_name_) infos.push_back(ExtentOf(name));
  return infos;
}

// --- Memory pressure

uint64_t DramPool::Tick() {
  backing_off_ = false;
  const int64_t earned = options_.paced_by_cores * kCreditNanos;
  credit_nanos_ = std::min(credit_nanos_ + earned, std::max(earned, kLeastCostNanos));
  for (const auto& [name, index] : by_name_) {
    uint32_t& ticks = extents_[index].returning_ticks;
    if (ticks == 0) continue;
    if (ticks == kPatienceTicks) --returning_;
    ++ticks;
  }
  uint64_t shortage = Shortage();
  if (shortage == 0) StartMaking();
  // First what nobody uses. Huge pages are in a pool of their own: closing them relieves nobody.
  for (size_t i = ready_.size(); i > 0 && shortage > 0; --i) {
    if (ready_[i - 1].extent->huge_pages()) continue;
    std::shared_ptr<Extent> closing = std::move(ready_[i - 1].extent);
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    Destroy(std::move(closing));
    shortage -= std::min(shortage, options_.extent_bytes);
  }
  while (shortage > 0 && RetireAnEmptyOne(/*huge_pages_too=*/false)) {
    shortage -= std::min(shortage, options_.extent_bytes);
  }
  SampleAvailable();
  if (shortage == 0) return 0;
  uint64_t helpful = 0;
  for (const auto& [name, index] : by_name_) {
    const AssignedExtent& extent = extents_[index];
    helpful += extent.retired || extent.extent->huge_pages() ? 0 : 1;
  }
  const uint64_t extents = (shortage + options_.extent_bytes - 1) / options_.extent_bytes;
  return std::min(extents, helpful) * options_.extent_bytes;
}

// What the host lacks, less what is on its way back to it already.
uint64_t DramPool::Shortage() const {
  if (!available_bytes_.has_value()) return 0;
  const uint64_t returning = destroys_begun_ - destroyed_at_sample_ + retired_;
  const uint64_t expected = *available_bytes_ + returning * options_.extent_bytes;
  return options_.keep_available_bytes - std::min(options_.keep_available_bytes, expected);
}

int64_t DramPool::EaseNanos() const {
  if (!available_bytes_.has_value() || making_ > 0 || returning_ > 0 || backing_off_ ||
      PacedByTicks()) {
    return 0;
  }
  const uint64_t spare =
      *available_bytes_ - std::min(*available_bytes_, options_.keep_available_bytes);
  return static_cast<int64_t>(spare / kMostTakenPerNano / 2);
}

void DramPool::SampleAvailable() {
  if (sampling_) return;
  sampling_ = true;
  workers_->Run([this, source = source_, executor = executor_, at_workers = at_workers_,
                 alive = std::weak_ptr(alive_)] {
    const uint64_t destroyed = at_workers->destroyed;
    executor->Post([this, alive, destroyed, available = source->AvailableBytes()] {
      if (alive.expired()) return;
      sampling_ = false;
      available_bytes_ = available;
      destroyed_at_sample_ = destroyed;
    });
  });
}

std::vector<std::pair<std::string, uint64_t>> DramPool::Counters() const {
  return {
      {"extents_made", counters_.extents_made},       {"extents_closed", counters_.extents_closed},
      {"extents_failed", counters_.extents_failed},   {"extents_short", counters_.extents_short},
      {"slots_allocated", counters_.slots_allocated}, {"slots_freed", counters_.slots_freed}};
}

Result<std::unique_ptr<DramPool>> NewDramPool(const DramPoolOptions& options, ExtentSource* source,
                                              WorkerPool* workers, Executor* executor) {
  AQ_RETURN_IF_ERROR(DramPool::Validate(options));
  return std::make_unique<DramPool>(options, source, workers, executor);
}

}  // namespace aquifer
