// The C ABI's layouts, keys and checksums: functions of their arguments alone.
#include <algorithm>

#include "aquifer/checksum.h"
#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "client/c_api/c_api.h"

using aquifer::CheckNotNull;
using aquifer::Code;
using aquifer::Guarded;
using aquifer::Status;

// ---- Layouts ----

namespace {

constexpr size_t kMaxGroups = 16;

Status ReadGroup(const aquifer_kv_group& given, aquifer::KvGroup* group) {
  AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.kind, AQUIFER_KV_FULL, AQUIFER_KV_STATE,
                                                  "layout.groups[].kind"));
  AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.dtype, AQUIFER_FLOAT32, AQUIFER_UINT8,
                                                  "layout.groups[].dtype"));
  group->kind = static_cast<aquifer::KvKind>(given.kind);
  group->dtype = static_cast<aquifer::DType>(given.dtype);
  group->layers = given.layers;
  group->kv_heads = given.kv_heads;
  group->key_dim = given.key_dim;
  group->value_dim = given.value_dim;
  group->window_tokens = given.window_tokens;
  group->opaque_bytes = given.opaque_bytes;
  return Status();
}

aquifer::Digest DigestOf(const uint8_t (&bytes)[32]) {
  aquifer::Digest digest;
  std::memcpy(digest.data(), bytes, sizeof(bytes));
  return digest;
}

Status ReadValidLayout(const aquifer_layout* given, aquifer::Layout* layout) {
  AQ_RETURN_IF_ERROR(aquifer::ReadLayout(given, layout));
  return aquifer::ValidateLayout(*layout);
}

}  // namespace

Status aquifer::ReadLayout(const aquifer_layout* given, Layout* layout) {
  aquifer_layout known;
  AQ_RETURN_IF_ERROR(ReadStruct(given, "layout", &known));
  AQ_RETURN_IF_ERROR(CheckArray(known.groups, known.group_count, "layout.groups"));
  AQ_RETURN_IF_ERROR(CheckRange<size_t>(known.group_count, 1, kMaxGroups, "layout.group_count"));
  layout->model = DigestOf(known.model);
  layout->tokens_per_block = known.tokens_per_block;
  layout->kv_format = TextOf(known.kv_format);
  layout->groups.clear();
  for (const aquifer_kv_group& group : std::span(known.groups, known.group_count)) {
    AQ_RETURN_IF_ERROR(ReadGroup(group, &layout->groups.emplace_back()));
  }
  return Status();
}

aquifer_code aquifer_tokens_per_block(const aquifer_layout* layout, uint32_t* tokens) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(tokens, "tokens"));
    aquifer::Layout read;
    AQ_RETURN_IF_ERROR(aquifer::ReadLayout(layout, &read));
    *tokens = aquifer::TokensPerBlock(read);
    return Status();
  });
}

aquifer_code aquifer_fit_pages(uint32_t tokens_per_block, uint32_t page_tokens, int32_t can_cut,
                               uint32_t* tokens) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(tokens, "tokens"));
    AQ_ASSIGN_OR_RETURN(*tokens, aquifer::FitPages(tokens_per_block, page_tokens, can_cut != 0));
    return Status();
  });
}

aquifer_code aquifer_block_bytes(const aquifer_layout* layout, size_t group, uint64_t* bytes) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(bytes, "bytes"));
    aquifer::Layout read;
    AQ_RETURN_IF_ERROR(ReadValidLayout(layout, &read));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<size_t>(group, 0, read.groups.size() - 1, "group"));
    *bytes = aquifer::BlockBytes(read, group);
    return Status();
  });
}

aquifer_code aquifer_layout_fingerprint(const aquifer_layout* layout, uint8_t fingerprint[32]) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(fingerprint, "fingerprint"));
    aquifer::Layout read;
    AQ_RETURN_IF_ERROR(ReadValidLayout(layout, &read));
    const aquifer::Digest digest = aquifer::LayoutFingerprint(read);
    std::memcpy(fingerprint, digest.data(), digest.size());
    return Status();
  });
}

// ---- Keys ----

namespace {

Status ReadExtras(const aquifer_prompt& prompt, std::vector<aquifer::Extra>* extras) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(prompt.extras, prompt.extra_count, "prompt.extras"));
  extras->clear();
  for (const aquifer_extra& given : std::span(prompt.extras, prompt.extra_count)) {
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(static_cast<const char*>(given.value), given.value_bytes,
                                           "prompt.extras[].value"));
    extras->push_back({.block = given.block,
                       .tag = given.tag,
                       .value = {static_cast<const char*>(given.value), given.value_bytes}});
  }
  return Status();
}

Status DeriveOne(uint32_t tokens_per_block, aquifer_prompt* prompt,
                 std::vector<aquifer::Extra>* extras) {
  prompt->key_count = 0;
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(prompt->tokens, prompt->token_count, "prompt.tokens"));
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(prompt->keys, prompt->key_room, "prompt.keys"));
  AQ_RETURN_IF_ERROR(ReadExtras(*prompt, extras));
  aquifer::Key parent;
  std::memcpy(parent.bytes.data(), prompt->parent.bytes, sizeof(parent.bytes));
  AQ_ASSIGN_OR_RETURN(
      prompt->key_count,
      aquifer::DeriveChain(parent, {prompt->tokens, prompt->token_count}, tokens_per_block, *extras,
                           {reinterpret_cast<aquifer::Key*>(prompt->keys), prompt->key_room}));
  return Status();
}

}  // namespace

aquifer_code aquifer_derive_root(const aquifer_chain_root* root, aquifer_key* key) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(key, "key"));
    aquifer_chain_root known;
    AQ_RETURN_IF_ERROR(aquifer::ReadStruct(root, "root", &known));
    const std::string tenant = aquifer::TextOf(known.tenant);
    const std::string salt = aquifer::TextOf(known.cache_salt);
    AQ_ASSIGN_OR_RETURN(
        const aquifer::Key derived,
        aquifer::DeriveRoot({.tenant = tenant,
                             .layout_fingerprint = DigestOf(known.layout_fingerprint),
                             .adapter_digest = DigestOf(known.adapter_digest),
                             .cache_salt = salt}));
    std::memcpy(key->bytes, derived.bytes.data(), sizeof(key->bytes));
    return Status();
  });
}

aquifer_code aquifer_derive_chains(aquifer_prompt* prompts, size_t prompt_count,
                                   uint32_t tokens_per_block) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(prompts, prompt_count, "prompts"));
    std::vector<aquifer::Extra> extras;
    for (aquifer_prompt& prompt : std::span(prompts, prompt_count)) {
      AQ_RETURN_IF_ERROR(DeriveOne(tokens_per_block, &prompt, &extras));
    }
    return Status();
  });
}

aquifer_code aquifer_derive_chain(const aquifer_key* parent, const uint32_t* tokens,
                                  size_t token_count, uint32_t tokens_per_block, aquifer_key* keys,
                                  size_t key_room, size_t* key_count) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(parent, "parent"));
    AQ_RETURN_IF_ERROR(CheckNotNull(key_count, "key_count"));
    *key_count = 0;
    aquifer_prompt prompt{};
    prompt.parent = *parent;
    prompt.tokens = tokens;
    prompt.token_count = token_count;
    prompt.keys = keys;
    prompt.key_room = key_room;
    std::vector<aquifer::Extra> extras;
    AQ_RETURN_IF_ERROR(DeriveOne(tokens_per_block, &prompt, &extras));
    *key_count = prompt.key_count;
    return Status();
  });
}

// ---- Checksums ----

namespace {

Status CheckPiece(const void* piece, size_t bytes, uint64_t offset) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(static_cast<const std::byte*>(piece), bytes, "piece"));
  if (offset % aquifer::kChecksumUnitBytes == 0) return Status();
  return Status(Code::kInvalid, "offset is not a multiple of 16");
}

std::span<const std::byte> PieceOf(const void* piece, size_t bytes) {
  return {static_cast<const std::byte*>(piece), bytes};
}

}  // namespace

aquifer_code aquifer_sum_lanes(const void* piece, size_t bytes, uint64_t offset,
                               aquifer_lane_sums* sums) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(sums, "sums"));
    AQ_RETURN_IF_ERROR(CheckPiece(piece, bytes, offset));
    const aquifer::LaneSums sum = aquifer::SumLanes(PieceOf(piece, bytes), offset);
    *sums = {.a = sum.a, .b = sum.b};
    return Status();
  });
}

aquifer_code aquifer_copy_and_sum_lanes(const void* piece, size_t bytes, uint64_t offset,
                                        void* target, aquifer_lane_sums* sums) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(sums, "sums"));
    AQ_RETURN_IF_ERROR(CheckPiece(piece, bytes, offset));
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(static_cast<const std::byte*>(target), bytes, "target"));
    const aquifer::LaneSums sum =
        aquifer::CopyAndSumLanes(PieceOf(piece, bytes), offset, static_cast<std::byte*>(target));
    *sums = {.a = sum.a, .b = sum.b};
    return Status();
  });
}

aquifer_code aquifer_finish_checksum(const aquifer_lane_sums* sums, uint64_t block_bytes,
                                     aquifer_checksum* checksum) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(sums, "sums"));
    AQ_RETURN_IF_ERROR(CheckNotNull(checksum, "checksum"));
    const aquifer::Checksum finished =
        aquifer::FinishChecksum({.a = sums->a, .b = sums->b}, block_bytes);
    *checksum = {.low = finished.low, .high = finished.high};
    return Status();
  });
}
