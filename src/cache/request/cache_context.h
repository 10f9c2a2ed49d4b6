// What the jobs of a cache may reach. Core makes it, and everything here outlives the jobs.
//
// Runs on the owner.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "cache/request/client_table.h"
#include "cache/request/housekeeping.h"
#include "cache/request/request_scheduler.h"
#include "cache/residency/cache_meters.h"
#include "cache/residency/catalog.h"
#include "cache/residency/chain_walk.h"
#include "cache/residency/fill_table.h"
#include "cache/residency/loan_book.h"
#include "cache/residency/residency.h"
#include "cache/session/session_table.h"
#include "cache/transfer/drive_set.h"
#include "cache/transfer/durable_tiers.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/loader.h"
#include "cache/transfer/write_down.h"
#include "policy/cost/prefill_model.h"
#include "policy/cost/tier_speed.h"
#include "policy/cost/worth.h"

namespace aquifer {

// What loading and computing take, as observed.
struct CacheCosts {
  TierSpeed nvme_speed{TierSpeedOptions{}};
  PrefillModels prefill{PrefillModelsOptions{}};
  WorthOptions worth{};
};

struct CacheContext {
  Clock& clock;
  RequestScheduler& scheduler;
  CacheMeters& meters;
  ClientTable& clients;
  Catalog& catalog;
  Residency& residency;
  LoanBook& loans;
  FillTable& fills;
  SessionTable& sessions;
  Loader& loader;
  WriteDown& write_down;
  Eraser& eraser;
  DriveSet& drives;
  DurableTiers* durable;  // Null: there are none.
  TierSpeed& nvme_speed;
  PrefillModels& prefill;
  const WorthOptions& worth;
  const ChainWalk walk;
  Housekeeping housekeeping;
  bool draining = false;  // Nothing more is stored.

  int64_t NowNanos() const { return clock.NowNanos(); }
  uint32_t NowUnix() const { return static_cast<uint32_t>(clock.UnixSeconds()); }
  // So many seconds from now; a time that is too far off is the last there is.
  uint32_t UnixIn(int64_t seconds) const {
    return static_cast<uint32_t>(std::min<uint64_t>(
        uint64_t{NowUnix()} + static_cast<uint64_t>(std::max<int64_t>(seconds, 0)), UINT32_MAX));
  }

  // Returns true if DRAM has the block, or a drive that is in service.
  bool Reachable(BlockRef ref) const {
    return residency.at(ref).in_tier(kTierDram) || drives.Serves(ref);
  }
  // Returns true if somebody may read the block now: it is complete, has not expired, and is in a
  // tier that is in service.
  bool Readable(BlockRef ref) const {
    const BlockEntry& entry = residency.at(ref);
    return entry.state == BlockState::kResident && !entry.expired(NowUnix()) && Reachable(ref);
  }
  bool MayLeaveHost(uint16_t tenant) const { return catalog.tenant(tenant).options.may_leave_host; }
  bool IsDurableTenant(uint16_t tenant) const {
    return catalog.tenant(tenant).options.durability == Durability::kDurable &&
           MayLeaveHost(tenant);
  }
  // A block of the chain.
  BlockName NameOf(uint16_t tenant, const ChainSlice& chain, size_t i) const {
    return {.tenant = tenant, .group = chain.group, .part = chain.part, .key = chain.keys[i]};
  }
};

}  // namespace aquifer
