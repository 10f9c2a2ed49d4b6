// What must be true of durable tiers, which nodes share: what an acknowledged flush promises of
// them, what a deletion on one node means for the others, and what the end of a tenant's key does.
#include <algorithm>
#include <utility>

#include "sim/world/truth.h"

namespace aquifer {
namespace {

// What was not there is believed for a second, that a tenant has no key for ten.
constexpr int64_t kAbsentNanos = 12'000'000'000;

}  // namespace

void Truth::Touched(std::span<const BlockNumber> blocks, uint32_t node) {
  for (const BlockNumber number : blocks) {
    uint64_t& touched = blocks_[number].touched[node];
    if (touched == 0) touched = Moment();
  }
}

void Truth::NodeReplaced(uint32_t node) {
  for (Block& block : blocks_) {
    const uint64_t touched = std::exchange(block.touched[node], 0);
    for (Version& version : block.versions) {
      version.safe = version.safe && version.node != node;
      // It may have brought that one back before it went.
      if (touched != 0 && version.deleted_by != node && touched < version.deleted) {
        version.deleted = 0;
      }
    }
  }
}

void Truth::StoresDamaged(int64_t until_nanos) {
  stores_damaged_ = true;
  for (uint32_t tenant = 0; tenant < options_.tenants.size(); ++tenant) ForgetSessions(tenant);
  for (Block& block : blocks_) {
    block.doubted_until_nanos = std::max(block.doubted_until_nanos, until_nanos);
    for (Version& version : block.versions) version.durable = false;
  }
}

// A deletion empties its own node and the stores. Another node that may have had a copy by then may
// serve it, and bring it back to the stores.
bool Truth::Deleted(const Block& block, const Version& version, const OpenRequest& request) const {
  if (version.deleted == 0 || version.deleted >= request.asked) return false;
  for (uint32_t node = 0; node < clocks_.size(); ++node) {
    const uint64_t touched = block.touched[node];
    if (node != version.deleted_by && touched != 0 && touched < version.deleted) return false;
  }
  return true;
}

bool Truth::AnyBelowIsThere(BlockNumber number, const OpenRequest& request) const {
  return std::any_of(
      blocks_[number].children.begin(), blocks_[number].children.end(), [&](BlockNumber child) {
        return WhyNotThere(child, request) == nullptr || AnyBelowIsThere(child, request);
      });
}

// ---- Keys ----

void Truth::KeyDestroyed(uint32_t tenant) {
  ForgetSessions(tenant);
  for (BlockNumber number = 0; number < blocks_.size(); ++number) {
    if (blocks_[number].tenant == tenant) Spoil(number);
  }
}

void Truth::KeyIsGone(uint32_t tenant, uint64_t destroyed, uint32_t node) {
  KeyDestroyed(tenant);  // What was stored meanwhile was sealed with it, too.
  key_gone_[PlaceOf(tenant, node)] = {.destroyed = destroyed, .gone = Moment()};
}

bool Truth::KeyGone(const Block& block, const Version& version, const OpenRequest& request) const {
  const EndOfKey& end = key_gone_[PlaceOf(block.tenant, request.node)];
  return end.destroyed != 0 && request.asked > end.gone && version.state == State::kAcked &&
         version.acked < end.destroyed;
}

// ---- Flushes ----

void Truth::FlushedDurable(uint32_t tenant, uint64_t attached, uint64_t sent, uint32_t node) {
  // Of no class: what was evicted before somebody asked for it is lost without a word.
  if (!options_.tenants[tenant].durable) return;
  const uint64_t lost_before = durable_lost_before_[PlaceOf(tenant, node)];
  for (Block& block : blocks_) {
    if (block.tenant != tenant || block.versions.empty()) continue;
    Version& version = block.versions.back();
    const uint64_t since = std::max({attached, lost_before, block.spoiled});
    const bool promised = version.state == State::kAcked && version.life == lives_[node] &&
                          version.acked > since && version.acked < sent &&
                          version.reserved_nanos > block.doubted_until_nanos;
    if (!promised || version.durable) continue;
    version.durable = true;
    version.durable_since = Moment();
    version.durable_nanos = clocks_[node]->NowNanos();
  }
  SessionsFlushed(tenant, sent, node);
}

bool Truth::MustBeDurable(BlockNumber number, RequestNumber request) const {
  const OpenRequest& asked = requests_.at(request);
  int64_t unix_high = std::max(asked.unix_high, UnixSeconds(asked.node));
  if (options_.store_clock != nullptr) {
    unix_high = std::max(unix_high, options_.store_clock->UnixSeconds());
  }
  for (; number != kNoParent; number = blocks_[number].parent) {
    const Block& block = blocks_[number];
    if (block.evictions > 0 || evictions_[block.tenant] > 0 || block.hinted_until > 0) return false;
    const auto durable = std::find_if(block.versions.rbegin(), block.versions.rend(),
                                      [](const Version& version) { return version.durable; });
    if (durable == block.versions.rend() || durable->durable_since > asked.asked) return false;
    // Another node may have asked just before, and believes for a while that it is not there.
    const bool heard =
        asked.node == durable->node || asked.asked_nanos > durable->durable_nanos + kAbsentNanos;
    if (!heard) return false;
    if (unix_high >= durable->lasts_until) return false;
  }
  return true;
}

}  // namespace aquifer
