// What a cache is told of each durable tier: how it is made, and what is written to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

// What a durable tier stands on. All of it outlives the tier.
struct DurableTierParts {
  Executor* owner = nullptr;  // The tier's executor.
  WorkerPool* workers = nullptr;
  Clock* clock = nullptr;
  Random* random = nullptr;
  TierListener* listener = nullptr;
};

// Which blocks are written to a durable tier.
enum class DurableWrites : uint8_t {
  kNothing,  // It serves what others wrote.
  kDurable,  // Those of durable class.
  kAll,      // All that are stored: the tier is a cache that nodes share.
};

struct DurableTierSource {
  std::string name{};  // As the configuration calls it; each once.
  // Makes the tier. A store that cannot be reached is no error: the tier is out of service then,
  // and probes it. An error keeps the cache from starting.
  std::function<Result<std::unique_ptr<DurableTier>>(const DurableTierParts&)> make;
  // Ends everything that the tier's store still does, which may touch the memory of blocks; may be
  // empty. Called when the tier is gone, before that memory is.
  std::function<void()> close{};
  DurableWrites writes = DurableWrites::kDurable;
  // Whether what it has counts as durable. Not where the store may drop it, as Redis may. A tier
  // that nothing is written to makes nothing durable all the same.
  bool lasting = true;
  uint64_t write_bytes_per_second = 0;  // 0: no limit. What is flushed is written beyond it.
};

// An entry of the index has a bit for each.
inline constexpr size_t kMaxDurableTiers = 5;

}  // namespace aquifer
