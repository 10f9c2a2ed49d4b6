#include "block/tensor/head_range.h"

#include <fmt/format.h>

namespace aquifer {

Result<RankHeads> HeadsOfRank(uint32_t kv_heads, uint32_t ranks, uint32_t rank) {
  if (kv_heads == 0) return Status(Code::kInvalid, "kv_heads is zero");
  if (rank >= ranks) {
    return Status(Code::kInvalid, fmt::format("rank {} is not one of {} ranks", rank, ranks));
  }
  if (ranks <= kv_heads && kv_heads % ranks == 0) {
    const uint32_t share = kv_heads / ranks;
    return RankHeads{.heads = {rank * share, (rank + 1) * share}, .writes = true};
  }
  if (ranks > kv_heads && ranks % kv_heads == 0) {
    const uint32_t holders = ranks / kv_heads;
    const uint32_t head = rank / holders;
    return RankHeads{.heads = {head, head + 1}, .writes = rank % holders == 0};
  }
  return Status(Code::kInvalid,
                fmt::format("{} kv heads cannot be dealt out evenly to {} ranks; set the tensor "
                            "parallel size to a divisor or a multiple of {}",
                            kv_heads, ranks, kv_heads));
}

}  // namespace aquifer
