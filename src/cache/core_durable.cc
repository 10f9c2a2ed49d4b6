// The durable tiers' part of the core: how they are built into it, and who is told what of them.
#include <tuple>
#include <utility>

#include "cache/core.h"

namespace aquifer {
namespace {

constexpr int64_t kLoadToWriteNanos = 10'000'000'000;

}  // namespace

Status Core::BuildDurable() {
  if (environment_.durable_tiers.empty()) return Status();
  DurableTiersParts parts;
  parts.residency = residency_.get();
  parts.catalog = &catalog_;
  parts.dram_bytes = options_.cache.dram_bytes;
  parts.session_ends = options_.session_ends;
  parts.on_session_moved = [this](const std::string& session, const BlockName& head) {
    RememberSession(session, head);
  };
  // Read by the next tick: nobody waits for it.
  parts.load_from_nvme = [this](BlockRef ref, const LoadTicket& ticket) {
    loader_->Load(ref, DeadlineIn(kLoadToWriteNanos, environment_.clock->NowNanos()), ticket);
  };
  parts.want_on_nvme = [this](BlockRef ref) { write_down_->Want(ref); };
  parts.promote = [this](BlockRef ref) { write_down_->Promote(ref); };
  parts.walk = [this](size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) {
    return WalkKeys(max, next, keys, whole);
  };
  AQ_ASSIGN_OR_RETURN(durable_, DurableTiers::New(environment_, parts));
  residency_->on_erase_durable = [this](const BlockId& id) { std::ignore = durable_->Erase(id); };
  return Status();
}

std::vector<DurableStats> Core::DurableTierStats() const {
  return durable_ == nullptr ? std::vector<DurableStats>{} : durable_->Stats();
}

}  // namespace aquifer
