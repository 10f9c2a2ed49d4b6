#include "cache/transfer/drive_records.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kDetachSlice = 256;

}  // namespace

DriveRecords::DriveRecords(const DriveRecordsParts& parts)
    : parts_(parts), tasks_(parts.executor) {}

void DriveRecords::Find() {
  if (std::exchange(finding_, true)) {
    find_again_ = true;
    return;
  }
  finding_all_ = tier_->AllRead();
  tier_->EnumerateInSlices([this](const BlockMeta& meta) { Reconcile(meta); },
                           [this] { EndFinding(); });
}

void DriveRecords::EndFinding() {
  finding_ = false;
  parts_.eraser->Pump();
  if (std::exchange(find_again_, false)) return Find();
  known_ = finding_all_ && tier_->AllRead();
  if (known_) forgotten_.clear();
  on_found();
}

// Nobody can read the blocks of a detached drive, and engines are to store them again. The drive
// brings them back as one does that opens late.
void DriveRecords::Detach() {
  known_ = false;
  detach_cursor_ = 0;
  if (!std::exchange(detaching_, true)) DetachSome();
}

void DriveRecords::DetachSome() {
  Residency& residency = *parts_.residency;
  const Index& index = residency.index();
  const size_t end = std::min<size_t>(detach_cursor_ + kDetachSlice, index.ref_limit());
  for (; detach_cursor_ < end; ++detach_cursor_) {
    const auto ref = static_cast<BlockRef>(detach_cursor_);
    if (!index.Exists(ref) || index.at(ref).state != BlockState::kResident) continue;
    if (!index.at(ref).in_tier(kTierNvme) || !tier_->Detached(residency.IdOf(ref))) continue;
    residency.LeaveNvme(ref, Leave::kLostByTier);
    if (residency.InDramAndNotOnNvme(ref)) parts_.write_down->Add(ref);
  }
  parts_.write_down->PumpSoon();
  detaching_ = detach_cursor_ < index.ref_limit();
  if (detaching_) tasks_.Post([this] { DetachSome(); });
}

bool DriveRecords::MayHave(const BlockName& name) const {
  return !known() || (tier_ != nullptr && tier_->Probe(IdOf(name)).code() != Code::kNotFound);
}

BlockId DriveRecords::IdOf(const BlockName& name) const {
  return {.tenant = parts_.catalog->tenant(name.tenant).id,
          .key = name.key,
          .group = name.group,
          .part = name.part};
}

void DriveRecords::Reconcile(const BlockMeta& meta) {
  if (parts_.eraser->Owes(meta.id)) return;  // Deleted before it came to light.
  bool wanted = false;
  const Result<uint16_t> tenant = parts_.catalog->Tenant(meta.id.tenant);
  if (tenant.ok()) {
    const Result<uint16_t> layout =
        parts_.catalog->Learn(*tenant, meta.layout_fingerprint, meta.id.group, meta.raw_bytes);
    if (layout.ok()) {
      wanted = ReconcileAs(*tenant, *layout, meta);
      parts_.catalog->Release(*tenant, *layout);  // The block holds it now.
    }
  }
  // Over a ceiling, not understood, or deleted before it came to light: nothing will ever ask for
  // this record. (One that the index has no room for is another matter.)
  if (!wanted) parts_.eraser->Add(meta.id);
}

bool DriveRecords::ReconcileAs(uint16_t tenant, uint16_t layout, const BlockMeta& meta) {
  Residency& residency = *parts_.residency;
  const BlockRef known = residency.Find(meta.id);
  if (known != kNoBlock) {
    const BlockEntry& entry = residency.at(known);
    // What was stored before a record came to light may differ from the record, unless that is of
    // before all of the tenant's was deleted; both are right.
    const bool may_differ =
        residency.MayDiffer(known) || (!entry.in_tier(kTierNvme) && !forgotten_.contains(tenant));
    const bool agrees =
        entry.state == BlockState::kResident && (entry.checksum == meta.checksum || may_differ);
    const bool writing = parts_.write_down->Writes(meta.id);
    const bool nowhere_else = entry.residency == TierBit(kTierNvme);
    if (!agrees && !writing && (residency.found(known) || nowhere_else)) {
      // Both are of earlier lives, and what the tier has of it now was stored last. Or the tier had
      // the same bytes from an earlier life when they were stored again, and these are later.
      residency.Drop(known, Leave::kLostByTier);
      return Add(tenant, layout, meta);
    }
    return ReconcileKnown(known, agrees, meta);
  }
  // Dropped while it is being written: what is there now, that record or one which it replaces, is
  // deleted when that has ended.
  if (forgotten_.contains(tenant) || parts_.write_down->Writes(meta.id)) return false;
  return Add(tenant, layout, meta);
}

bool DriveRecords::ReconcileKnown(BlockRef known, bool agrees, const BlockMeta& meta) {
  Residency& residency = *parts_.residency;
  const BlockEntry& entry = residency.at(known);
  const auto expiry = static_cast<uint32_t>(meta.expiry_unix_seconds);
  if (entry.state == BlockState::kFilling && !forgotten_.contains(entry.tenant)) {
    // It may be given up, and then this is what there is of it.
    busy_.insert(residency.NameOf(known));
    return true;
  }
  if (agrees && entry.in_tier(kTierNvme)) {
    // A later record than the one that was found first, with another time to live.
    const bool renewed = residency.stale(known) || entry.io_tiers != 0;
    if (residency.found(known) && !renewed) residency.SetExpiry(known, expiry);
    return true;
  }
  // Being written right now: that will end as it should, and replaces this one.
  if (parts_.write_down->Writes(meta.id)) {
    parts_.write_down->NoteOlderRecord(meta.id, forgotten_.contains(entry.tenant));
    return true;
  }
  if (agrees && residency.ChargeNvme(known).ok()) {
    residency.ArriveOnNvme(known);
    if (entry.checksum != meta.checksum) residency.SetMayDiffer(known);
    // It was stored anew, and with that got another time than an earlier life had given it.
    if (entry.expiry_unix_seconds != expiry) parts_.write_down->Renew(known);
    return true;
  }
  if (entry.in_tier(kTierNvme)) {
    // What was stored in this life is gone from the tier. What DRAM has is written once more.
    const bool in_dram = entry.in_tier(kTierDram);
    residency.LeaveNvme(known, Leave::kLostByTier);
    if (in_dram) parts_.write_down->Add(known);
  }
  return false;
}

bool DriveRecords::Add(uint16_t tenant, uint16_t layout, const BlockMeta& meta) {
  const Result<BlockRef> added = parts_.residency->AddOnNvme(
      {.name = {.tenant = tenant, .group = meta.id.group, .part = meta.id.part, .key = meta.id.key},
       .parent = meta.parent,
       .position = meta.position,
       .layout = layout,
       .state = BlockState::kResident,
       .expiry_unix_seconds = static_cast<uint32_t>(meta.expiry_unix_seconds),
       .checksum = meta.checksum,
       .engine_hash = meta.engine_hash,
       .now_nanos = parts_.clock->NowNanos()});
  if (added.ok()) return true;
  // Flushed is flushed: the record stays, for a start whose index has room for it.
  const Code why = added.status().code();
  if (why != Code::kNoSpace && why != Code::kBusy) return false;
  unindexed_.insert(tenant);
  return true;
}

void DriveRecords::OnNotBusy(const BlockName& name) {
  if (!busy_.contains(name)) return;
  tasks_.Post([this, name] {
    if (busy_.erase(name) == 0) return;
    const std::optional<BlockMeta> meta = tier_->MetaOf(IdOf(name));
    if (meta && sweeping_.contains(name.tenant)) {  // The sweep may be past it.
      EraseFound(name);
    } else if (meta) {
      Reconcile(*meta);
    }
    parts_.eraser->Pump();
  });
}

void DriveRecords::OnOlderLeft(const BlockName& name) {
  busy_.insert(name);
  OnNotBusy(name);
}

void DriveRecords::EraseFound(const BlockName& name) {
  const BlockId id = IdOf(name);
  parts_.write_down->Writes(id) ? parts_.write_down->NoteOlderRecord(id, true)
                                : parts_.eraser->Add(id);
}

bool DriveRecords::EraseWaiting(uint16_t tenant, size_t max) {
  auto next = busy_.lower_bound({.tenant = tenant});
  for (size_t step = 0; next != busy_.end() && next->tenant == tenant; ++step) {
    if (step == max) return true;
    EraseFound(*next);
    next = busy_.erase(next);
  }
  return false;
}

void DriveRecords::EraseUnindexed(uint16_t tenant, const std::function<void()>& on_done) {
  const TenantId id = parts_.catalog->tenant(tenant).id;
  tier_->EnumerateInSlices(
      [this, id](const BlockMeta& meta) {
        if (meta.id.tenant != id || parts_.residency->Find(meta.id) != kNoBlock) return;
        parts_.eraser->Add(meta.id);
      },
      [this, tenant, on_done] {
        unindexed_.erase(tenant);
        parts_.eraser->Pump();
        on_done();
      });
}

}  // namespace aquifer
