#include "tier/durable/durable_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/crypto/hmac_sha256.h"
#include "base/crypto/sha256.h"
#include "base/text/hex.h"
#include "block/record.h"

namespace aquifer {
namespace {

constexpr std::string_view kNoteDomain = "aquifer.note.v1";
constexpr uint16_t kNoteGroup = UINT16_MAX;  // A layout has 16 groups at most.

}  // namespace

std::string GenerationOf(const TenantId& tenant, const DataKey* key) {
  return key != nullptr ? GenerationOf(key->id) : HexOf(tenant.bytes);
}

std::string GenerationOf(const DataKeyId& key) { return HexOf(key); }

std::optional<DataKeyId> KeyIdOf(std::string_view blob_name) {
  DataKeyId id;
  if (!FromHex(blob_name.substr(0, blob_name.find('/')), id)) return std::nullopt;
  return id;
}

std::string BlobNameOf(const BlockId& id, const DataKey* key) {
  return BlobNameOf(id, GenerationOf(id.tenant, key));
}

std::string BlobNameOf(const BlockId& id, std::string_view generation) {
  const std::string name = id.key.ToHex();
  return fmt::format("{}/{}/{}-{}-{}", generation, name.substr(0, 2), name, id.group, id.part);
}

BlockId NoteIdOf(const TenantId& tenant, const DataKey* key, std::string_view name) {
  std::string message(kNoteDomain);
  message.append(reinterpret_cast<const char*>(tenant.bytes.data()), tenant.bytes.size());
  message.append(name);
  const Sha256Digest digest = key != nullptr ? HmacSha256(key->secret.bytes(), message)
                                             : Sha256Of(std::as_bytes(std::span(message)));
  BlockId id{.tenant = tenant, .key = {}, .group = kNoteGroup, .part = 0};
  std::ranges::copy(digest, id.key.bytes.begin());
  return id;
}

std::string NoteBlobNameOf(const BlockId& note, const DataKey* key) {
  return fmt::format("{}/notes/{}", GenerationOf(note.tenant, key), note.key.ToHex());
}

void EncodeHead(const BlockMeta& meta, uint64_t sequence,
                std::span<std::byte, kBlobHeadBytes> head) {
  std::memset(head.data(), 0, head.size());
  const Record record{.meta = meta,
                      .age = {.origin = sequence, .sequence = sequence},
                      .payload_offset = kBlobHeadBytes,
                      .generation = 0};
  EncodeRecord(record, head.first<kRecordBytes>());
}

Result<BlockMeta> DecodeHead(std::span<const std::byte, kBlobHeadBytes> head) {
  Record record;
  switch (DecodeRecord(head.first<kRecordBytes>(), &record)) {
    case RecordVerdict::kOk:
      break;
    case RecordVerdict::kDamaged:
      return Status(Code::kCorrupt, "its header is damaged");
    case RecordVerdict::kNewerVersion:
      return Status(Code::kCorrupt, "its header is of a later release");
    case RecordVerdict::kUnknownCodec:
      return Status(Code::kCorrupt, "it has a codec of a later release");
  }
  const auto rest = head.subspan<kRecordBytes>();
  const bool zero = std::ranges::all_of(rest, [](std::byte one) { return one == std::byte{0}; });
  if (!zero || record.payload_offset != kBlobHeadBytes || record.generation != 0) {
    return Status(Code::kCorrupt, "its header is damaged");
  }
  return record.meta;
}

}  // namespace aquifer
