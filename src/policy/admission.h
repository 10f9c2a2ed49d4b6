// Which blocks deserve a place: on NVMe when they are stored, in DRAM when they are fetched from
// below. Writing wears the device out and competes with reads, so what will not return should not
// be written; the rules say how that is guessed.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/block_features.h"

namespace aquifer {

enum class WriteDownRule : uint8_t {
  kAlways,       // To begin with: nothing that DRAM gives up is lost.
  kNever,        // The tier serves what is on it.
  kSecondTouch,  // Once it has been used after it was stored.
  kWorth,        // Where reading it back saves enough time over recomputing it.
};

struct WriteDownOptions {
  WriteDownRule rule = WriteDownRule::kAlways;
  // kWorth: milliseconds saved by one later load, for each MiB written.
  double min_saved_ms_per_mebibyte = 0.1;
  // kSecondTouch and kWorth: the first blocks of a chain are shared by everything below them, and
  // are always written.
  uint32_t always_below_position = 0;
};

struct WriteDownCase {
  BlockFeatures features{};
  bool durable_wanted = false;  // A durability class overrides every rule.
  // What one block costs to recompute and to load again; none: unknown, and then it is worth it.
  std::optional<double> recompute_ms{};
  std::optional<double> load_ms{};
};

bool ShouldWriteDown(const WriteDownOptions& options, const WriteDownCase& block);

enum class RechargeRule : uint8_t {
  kAlways,       // What was fetched stays in DRAM as if it had been stored just now.
  kNever,        // It leaves DRAM with its last lease.
  kSecondTouch,  // It stays from its second use on, or while there is free room.
};

struct RechargeOptions {
  RechargeRule rule = RechargeRule::kAlways;
};

// Whether a block that was fetched from a lower tier is kept in DRAM after its last lease.
// `room_is_free`: keeping it evicts nothing.
bool ShouldKeepInDram(const RechargeOptions& options, const BlockFeatures& features,
                      bool room_is_free);

}  // namespace aquifer
