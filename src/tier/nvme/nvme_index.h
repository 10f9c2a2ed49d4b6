// Which blocks the NVMe tier holds, and where: an open-addressing table over compact entries. A
// block costs about 180 bytes (IndexTable's slack included), everything that an enumeration must
// give back among them; what many blocks share (tenants, layouts, data keys) is kept once.
//
// An EntryId stays valid until its entry is removed, and is used again after that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/task_meter.h"
#include "block/block_meta.h"
#include "block/record.h"
#include "tier/index_table.h"

namespace aquifer {

struct RecordPlace {
  uint32_t drive = 0;    // Below 256.
  uint32_t segment = 0;  // Below 2^24: a number of ours, not the file's.
  uint32_t page = 0;     // Of the payload, in its file.
  uint32_t record = 0;   // Its number in the segment.

  friend bool operator==(const RecordPlace&, const RecordPlace&) = default;
};

// Values that many entries share, by number, while some entry has them.
template <class Value>
class Interned {
 public:
  uint32_t Take(const Value& value) {
    const auto [found, is_new] = numbers_.try_emplace(value, 0);
    if (is_new) {
      if (free_.empty()) {
        free_.push_back(static_cast<uint32_t>(values_.size()));
        values_.emplace_back();
      }
      found->second = free_.back();
      free_.pop_back();
      values_[found->second].value = value;
    }
    ++values_[found->second].users;
    return found->second;
  }
  void Return(uint32_t number) {
    if (--values_[number].users > 0) return;
    numbers_.erase(values_[number].value);
    free_.push_back(number);
  }
  const Value& operator[](uint32_t number) const { return values_[number].value; }
  size_t size() const { return numbers_.size(); }

 private:
  struct Shared {
    Value value;
    uint32_t users = 0;
  };
  std::map<Value, uint32_t> numbers_;
  std::vector<Shared> values_;
  std::vector<uint32_t> free_;
};

class NvmeIndex {
 public:
  using EntryId = uint32_t;
  static constexpr EntryId kNone = UINT32_MAX;

  // The seed is nobody else's to know.
  explicit NvmeIndex(uint64_t hash_seed = 0) : hash_(hash_seed) {}

  // Counts the entries that are looked at from now on; null: nobody does.
  void SetMeter(TaskMeter* meter) { meter_ = meter; }

  EntryId Find(const BlockId& id) const;

  // The id is not there yet.
  EntryId Insert(const BlockMeta& meta, const RecordAge& age, const RecordPlace& place);
  void Remove(EntryId entry);
  void Move(EntryId entry, const RecordAge& age, const RecordPlace& place);
  // The same block, with what travels with it as it is now.
  void Replace(EntryId entry, const BlockMeta& meta, const RecordAge& age,
               const RecordPlace& place);

  BlockId Id(EntryId entry) const;
  BlockMeta Meta(EntryId entry) const;
  RecordPlace Place(EntryId entry) const;
  bool Holds(EntryId entry, const BlockId& id) const;
  uint64_t raw_bytes(EntryId entry) const { return At(entry).raw_bytes; }
  uint64_t stored_bytes(EntryId entry) const { return StoredBytes(At(entry)); }
  const std::array<std::byte, 16>& data_key_id(EntryId entry) const {
    return std::get<2>(forms_[At(entry).form]);
  }
  Checksum checksum(EntryId entry) const { return At(entry).checksum; }
  RecordAge age(EntryId entry) const { return At(entry).age; }
  // What would be written for it is there already.
  bool HasSame(EntryId entry, const BlockMeta& meta) const {
    return At(entry).checksum == meta.checksum &&
           At(entry).expiry_unix_seconds == meta.expiry_unix_seconds;
  }
  bool Expired(EntryId entry, int64_t unix_seconds) const {
    const int64_t expiry = At(entry).expiry_unix_seconds;
    return expiry != 0 && expiry <= unix_seconds;
  }

  // It was stored since the start, and is younger than all that drives held then.
  void SetStored(EntryId entry) { At(entry).stored = true; }
  bool stored(EntryId entry) const { return At(entry).stored; }

  bool Used(EntryId entry) const { return At(entry).record != kUnused; }

  // Sorts entries by chain position and then by sequence: parents before children.
  struct OrderKey {
    uint32_t position = 0;
    EntryId entry = kNone;
    uint64_t sequence = 0;

    friend bool operator<(const OrderKey& a, const OrderKey& b) {
      return std::pair(a.position, a.sequence) < std::pair(b.position, b.sequence);
    }
  };
  // Looks at up to `max` entries from `first` on and adds those in use, unsorted. Returns where to
  // go on; kNone: that was all.
  EntryId Collect(EntryId first, size_t max, std::vector<OrderKey>* keys) const;

  size_t size() const { return size_; }
  uint64_t memory_bytes() const;

 private:
  static constexpr uint32_t kChunkEntries = 1024;
  static constexpr uint32_t kPlain = UINT32_MAX;

  struct Entry {
    Key key;
    Key parent;
    Checksum checksum;
    int64_t expiry_unix_seconds = 0;
    uint64_t engine_hash = 0;
    RecordAge age;
    uint32_t raw_bytes = 0;
    uint32_t position = 0;
    uint32_t tenant = 0;     // In tenants_.
    uint32_t form = 0;       // In forms_.
    uint32_t seal = kPlain;  // In seals_; kPlain: neither sealed nor made smaller.
    uint32_t drive_segment = 0;
    uint32_t page = 0;
    uint32_t record = kUnused;
    uint16_t group = 0;
    uint16_t part = 0;
    bool stored = false;
  };
  static constexpr uint32_t kUnused = UINT32_MAX;  // As `record`: the entry is free.

  // What blocks of one model and one data key share.
  using Form = std::tuple<Digest, Codec, std::array<std::byte, 16>>;

  struct Seal {
    std::array<std::byte, 24> nonce{};
    std::array<std::byte, 16> tag{};
    uint32_t stored_bytes = 0;
  };

  using Chunk = std::array<Entry, kChunkEntries>;

  Entry& At(EntryId entry) {
    if (meter_ != nullptr) meter_->Count();
    return (*chunks_[entry / kChunkEntries])[entry % kChunkEntries];
  }
  const Entry& At(EntryId entry) const {
    if (meter_ != nullptr) meter_->Count();
    return (*chunks_[entry / kChunkEntries])[entry % kChunkEntries];
  }
  void Fill(Entry* at, const BlockMeta& meta);
  // Gives back what the entry shares with others.
  void Clear(const Entry& at);
  uint32_t NewSeal(const BlockMeta& meta);
  uint64_t StoredBytes(const Entry& at) const {
    return at.seal == kPlain ? at.raw_bytes : seals_[at.seal].stored_bytes;
  }

  BlockHash hash_;
  TaskMeter* meter_ = nullptr;
  IndexTable table_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<EntryId> free_;
  size_t size_ = 0;
  uint32_t next_ = 0;  // Entries ever handed out.

  Interned<TenantId> tenants_;
  Interned<Form> forms_;

  std::vector<Seal> seals_;
  std::vector<uint32_t> free_seals_;
};

}  // namespace aquifer
