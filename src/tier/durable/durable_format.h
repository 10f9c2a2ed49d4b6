// What a blob is called and what it begins with (docs/formats/durable.md): the one place that both
// ends of a durable tier agree in. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "aquifer/key.h"
#include "aquifer/status.h"
#include "block/block_id.h"
#include "block/block_meta.h"
#include "block/seal.h"

namespace aquifer {

inline constexpr size_t kBlobHeadBytes = 4096;

// The first part of all names of a tenant: its data key's id, or its own where nothing is sealed
// (`key` is null).
std::string GenerationOf(const TenantId& tenant, const DataKey* key);

std::string GenerationOf(const DataKeyId& key);
// Nothing for what is not the name of a blob that a key of its own seals.
std::optional<DataKeyId> KeyIdOf(std::string_view blob_name);

std::string BlobNameOf(const BlockId& id, const DataKey* key);
std::string BlobNameOf(const BlockId& id, std::string_view generation);

// A note travels as a block does, under an identity that no block has. Its key stands for tenant
// and name, and only who has the data key can tell for which.
BlockId NoteIdOf(const TenantId& tenant, const DataKey* key, std::string_view name);
std::string NoteBlobNameOf(const BlockId& note, const DataKey* key);

// `sequence` is for people only: the time of writing, in microseconds.
void EncodeHead(const BlockMeta& meta, uint64_t sequence,
                std::span<std::byte, kBlobHeadBytes> head);

// kCorrupt, and why, for whatever EncodeHead() did not make.
Result<BlockMeta> DecodeHead(std::span<const std::byte, kBlobHeadBytes> head);

}  // namespace aquifer
