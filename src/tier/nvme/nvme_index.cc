#include "tier/nvme/nvme_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr uint32_t kSegmentBits = 24;

uint32_t Pack(const RecordPlace& place) {
  AQ_CHECK(place.drive < 256 && place.segment < (1u << kSegmentBits));
  return place.drive << kSegmentBits | place.segment;
}

}  // namespace

NvmeIndex::EntryId NvmeIndex::Find(const BlockId& id) const {
  return table_.Find(hash_(id), [&](uint32_t entry) { return Holds(entry, id); });
}

bool NvmeIndex::Holds(EntryId entry, const BlockId& id) const {
  const Entry& found = At(entry);
  return found.record != kUnused && found.key == id.key && tenants_[found.tenant] == id.tenant &&
         found.group == id.group && found.part == id.part;
}

NvmeIndex::EntryId NvmeIndex::Insert(const BlockMeta& meta, const RecordAge& age,
                                     const RecordPlace& place) {
  EntryId entry = kNone;
  if (!free_.empty()) {
    entry = free_.back();
    free_.pop_back();
  } else {
    entry = next_++;
    if (entry / kChunkEntries == chunks_.size()) chunks_.push_back(std::make_unique<Chunk>());
  }
  Fill(&At(entry), meta);
  At(entry).stored = false;
  Move(entry, age, place);
  table_.Reserve(++size_);
  table_.Insert(hash_(meta.id), entry);
  return entry;
}

void NvmeIndex::Fill(Entry* at, const BlockMeta& meta) {
  at->key = meta.id.key;
  at->parent = meta.parent;
  at->checksum = meta.checksum;
  at->expiry_unix_seconds = meta.expiry_unix_seconds;
  at->engine_hash = meta.engine_hash;
  at->raw_bytes = static_cast<uint32_t>(meta.raw_bytes);
  at->position = meta.position;
  at->tenant = tenants_.Take(meta.id.tenant);
  at->form = forms_.Take(Form(meta.layout_fingerprint, meta.codec, meta.data_key_id));
  at->seal = NewSeal(meta);
  at->group = meta.id.group;
  at->part = meta.id.part;
}

void NvmeIndex::Replace(EntryId entry, const BlockMeta& meta, const RecordAge& age,
                        const RecordPlace& place) {
  Entry& at = At(entry);
  Clear(at);
  Fill(&at, meta);
  Move(entry, age, place);
}

void NvmeIndex::Clear(const Entry& at) {
  if (at.seal != kPlain) free_seals_.push_back(at.seal);
  tenants_.Return(at.tenant);
  forms_.Return(at.form);
}

uint32_t NvmeIndex::NewSeal(const BlockMeta& meta) {
  const Seal seal{meta.nonce, meta.tag, static_cast<uint32_t>(meta.stored_bytes)};
  const bool sealed = seal.nonce != Seal{}.nonce || seal.tag != Seal{}.tag;
  if (!sealed && meta.stored_bytes == meta.raw_bytes) return kPlain;
  if (free_seals_.empty()) {
    seals_.push_back(seal);
    return static_cast<uint32_t>(seals_.size() - 1);
  }
  const uint32_t number = free_seals_.back();
  free_seals_.pop_back();
  seals_[number] = seal;
  return number;
}

void NvmeIndex::Remove(EntryId entry) {
  table_.Erase(hash_(Id(entry)), entry);
  Entry& at = At(entry);
  Clear(at);
  at.record = kUnused;
  free_.push_back(entry);
  --size_;
}

void NvmeIndex::Move(EntryId entry, const RecordAge& age, const RecordPlace& place) {
  AQ_CHECK(place.record != kUnused);
  Entry& at = At(entry);
  at.age = age;
  at.drive_segment = Pack(place);
  at.page = place.page;
  at.record = place.record;
}

BlockId NvmeIndex::Id(EntryId entry) const {
  const Entry& at = At(entry);
  return {.tenant = tenants_[at.tenant], .key = at.key, .group = at.group, .part = at.part};
}

BlockMeta NvmeIndex::Meta(EntryId entry) const {
  const Entry& at = At(entry);
  BlockMeta meta;
  meta.id = Id(entry);
  meta.parent = at.parent;
  meta.position = at.position;
  std::tie(meta.layout_fingerprint, meta.codec, meta.data_key_id) = forms_[at.form];
  meta.raw_bytes = at.raw_bytes;
  meta.stored_bytes = StoredBytes(at);
  if (at.seal != kPlain) {
    meta.nonce = seals_[at.seal].nonce;
    meta.tag = seals_[at.seal].tag;
  }
  meta.checksum = at.checksum;
  meta.expiry_unix_seconds = at.expiry_unix_seconds;
  meta.engine_hash = at.engine_hash;
  return meta;
}

RecordPlace NvmeIndex::Place(EntryId entry) const {
  const Entry& at = At(entry);
  return {.drive = at.drive_segment >> kSegmentBits,
          .segment = at.drive_segment & ((1u << kSegmentBits) - 1),
          .page = at.page,
          .record = at.record};
}

NvmeIndex::EntryId NvmeIndex::Collect(EntryId first, size_t max,
                                      std::vector<OrderKey>* keys) const {
  const EntryId end = static_cast<EntryId>(std::min<uint64_t>(uint64_t{first} + max, next_));
  for (EntryId entry = first; entry < end; ++entry) {
    const Entry& at = At(entry);
    if (at.record == kUnused) continue;
    keys->push_back({.position = at.position, .entry = entry, .sequence = at.age.sequence});
  }
  return end < next_ ? end : kNone;
}

uint64_t NvmeIndex::memory_bytes() const {
  // IndexTable keeps at most four buckets of eight bytes for each value it has seen at once.
  return chunks_.size() * sizeof(Chunk) + next_ * uint64_t{32} +
         free_.capacity() * sizeof(EntryId) + seals_.capacity() * sizeof(Seal) +
         free_seals_.capacity() * sizeof(uint32_t) + tenants_.size() * 2 * sizeof(TenantId) +
         forms_.size() * 2 * sizeof(Form);
}

}  // namespace aquifer
