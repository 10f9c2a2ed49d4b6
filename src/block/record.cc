#include "block/record.h"

#include <bit>
#include <cstring>

#include "aquifer/checksum.h"
#include "aquifer/layout.h"

namespace aquifer {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr uint32_t kMagic = 0x31525141;  // "AQR1".
constexpr size_t kChecksumAt = kRecordBytes - 16;
constexpr uint64_t kPayloadAlignment = 4096;

// Walks the fields in the order in which they lie; the reserved bytes are skipped by position.
class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}

  template <class T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}

  template <class T>
  void Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(value, at_, sizeof(*value));
    at_ += sizeof(*value);
  }

 private:
  const std::byte* at_;
};

}  // namespace

void EncodeRecord(const Record& record, std::span<std::byte, kRecordBytes> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
  const BlockMeta& meta = record.meta;
  Writer writer(bytes.data());
  writer.Put(kMagic);
  writer.Put(kRecordVersion);
  writer.Put(meta.codec);
  writer.Put(meta.id.group);
  writer.Put(meta.id.part);
  writer.Put(meta.position);
  writer.Put(meta.id.key.bytes);
  writer.Put(meta.parent.bytes);
  writer.Put(meta.id.tenant.bytes);
  writer.Put(meta.layout_fingerprint);
  writer.Put(meta.raw_bytes);
  writer.Put(meta.stored_bytes);
  writer.Put(meta.data_key_id);
  writer.Put(meta.nonce);
  writer.Put(meta.tag);
  writer.Put(meta.checksum.low);
  writer.Put(meta.checksum.high);
  writer.Put(meta.expiry_unix_seconds);
  writer.Put(record.age.sequence);
  writer.Put(meta.engine_hash);
  writer.Put(record.payload_offset);
  writer.Put(record.generation);
  writer.Put(record.age.stores() ? uint64_t{0} : record.age.origin);
  const Checksum checksum = ChecksumOf(bytes.first(kChecksumAt));
  Writer end(bytes.data() + kChecksumAt);
  end.Put(checksum.low);
  end.Put(checksum.high);
}

RecordVerdict DecodeRecord(std::span<const std::byte, kRecordBytes> bytes, Record* record) {
  Reader reader(bytes.data());
  uint32_t magic = 0;
  uint16_t version = 0;
  reader.Get(&magic);
  reader.Get(&version);
  if (magic != kMagic || version == 0) return RecordVerdict::kDamaged;
  // A later release may sum its header in another way, so this is asked before the checksum.
  if (version > kRecordVersion) return RecordVerdict::kNewerVersion;

  Checksum stored;
  Reader end(bytes.data() + kChecksumAt);
  end.Get(&stored.low);
  end.Get(&stored.high);
  if (ChecksumOf(bytes.first(kChecksumAt)) != stored) return RecordVerdict::kDamaged;

  Record found;
  BlockMeta& meta = found.meta;
  uint16_t codec = 0;
  reader.Get(&codec);
  if (codec > static_cast<uint16_t>(Codec::kLossless)) return RecordVerdict::kUnknownCodec;
  meta.codec = static_cast<Codec>(codec);
  reader.Get(&meta.id.group);
  reader.Get(&meta.id.part);
  reader.Get(&meta.position);
  reader.Get(&meta.id.key.bytes);
  reader.Get(&meta.parent.bytes);
  reader.Get(&meta.id.tenant.bytes);
  reader.Get(&meta.layout_fingerprint);
  reader.Get(&meta.raw_bytes);
  reader.Get(&meta.stored_bytes);
  reader.Get(&meta.data_key_id);
  reader.Get(&meta.nonce);
  reader.Get(&meta.tag);
  reader.Get(&meta.checksum.low);
  reader.Get(&meta.checksum.high);
  reader.Get(&meta.expiry_unix_seconds);
  reader.Get(&found.age.sequence);
  reader.Get(&meta.engine_hash);
  reader.Get(&found.payload_offset);
  reader.Get(&found.generation);
  reader.Get(&found.age.origin);
  if (found.age.origin == 0) found.age.origin = found.age.sequence;

  if (meta.raw_bytes == 0 || meta.raw_bytes > kMaxBlockBytes) return RecordVerdict::kDamaged;
  const bool smaller = meta.stored_bytes > 0 && meta.stored_bytes < meta.raw_bytes;
  if (meta.codec == Codec::kNone ? meta.stored_bytes != meta.raw_bytes : !smaller) {
    return RecordVerdict::kDamaged;
  }
  if (found.age.origin > found.age.sequence) return RecordVerdict::kDamaged;
  if (found.payload_offset == 0 || found.payload_offset % kPayloadAlignment != 0) {
    return RecordVerdict::kDamaged;
  }
  *record = found;
  return RecordVerdict::kOk;
}

}  // namespace aquifer
