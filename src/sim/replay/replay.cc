#include "sim/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/check.h"
#include "policy/eviction/block_features.h"
#include "sim/replay/replay_order.h"
#include "sim/replay/replay_policy.h"

namespace aquifer {
namespace {

constexpr uint64_t kRequestsBetweenProgress = 1024;

// The same hints for every policy and on every machine.
std::vector<SessionHint> MakeHints(const ReplayTrace& trace, const ReplaySetup& setup) {
  constexpr double kLongestGuess = 3600;
  std::vector<SessionHint> hints;
  uint64_t state = 1;
  const auto draw = [](uint64_t* from) {
    *from = *from * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(*from >> 11) * 0x1p-53;
  };
  uint64_t times = 2;  // A random source of its own: return times change nothing else in the hints.
  for (const int64_t nanos : NanosToContinuation(trace)) {
    const bool said = draw(&state) < setup.hint_accuracy ? nanos > 0 : nanos == 0;
    const double drawn = draw(&times);
    const double seconds = nanos > 0 ? static_cast<double>(nanos) / 1e9 * std::exp2(2 * drawn - 1)
                                     : std::pow(kLongestGuess, drawn);
    const SessionHint expected =
        setup.hint_returns ? ExpectedIn(std::max<int64_t>(static_cast<int64_t>(seconds), 1))
                           : SessionHint::kExpected;
    hints.push_back(said ? expected : SessionHint::kEnded);
  }
  return hints;
}

Result<std::unique_ptr<ReplayPolicy>> NewPolicy(const ReplayTrace& trace,
                                                const ReplaySetup& setup) {
  if (setup.nvme_blocks == 0) {
    auto comparison = NewComparisonPolicy(setup.policy, trace, setup.capacity_blocks);
    if (comparison != nullptr) return comparison;
  }
  ReplayOrderOptions options = {.capacity_blocks = setup.capacity_blocks,
                                .nvme_blocks = setup.nvme_blocks,
                                .written_part = setup.written_part,
                                .hints = {}};
  if (setup.hint_accuracy > 0) options.hints = MakeHints(trace, setup);
  AQ_ASSIGN_OR_RETURN(auto order, NewOrderPolicy(setup.policy, trace, std::move(options)));
  AQ_CHECK(order != nullptr);  // CheckSetup() has refused unknown policies.
  return order;
}

}  // namespace

const std::vector<std::string_view>& ReplayPolicies() {
  static const std::vector<std::string_view> names = {"lru",     "lru-leaf", "learned", "lru-2",
                                                      "s3-fifo", "arc",      "lirs",    "belady"};
  return names;
}

Status CheckSetup(const ReplaySetup& setup) {
  const auto& names = ReplayPolicies();
  if (setup.capacity_blocks == 0)
    return Status(Code::kInvalid, "the capacity must be at least one block");
  if (std::find(names.begin(), names.end(), setup.policy) == names.end()) {
    return Status(Code::kInvalid, fmt::format("there is no policy '{}'", setup.policy));
  }
  if (setup.written_part < 1 && (setup.nvme_blocks == 0 || setup.policy != "learned")) {
    return Status(Code::kInvalid, fmt::format("'{}' writes all that is stored: only learned, with "
                                              "a second tier, writes a part",
                                              setup.policy));
  }
  const bool two_tiers =
      setup.policy == "lru" || setup.policy == "lru-leaf" || setup.policy == "learned";
  if (setup.nvme_blocks == 0 || two_tiers) return Status();
  return Status(Code::kInvalid, fmt::format("'{}' has no second tier: with one there are lru, "
                                            "lru-leaf and learned",
                                            setup.policy));
}

Result<ReplayOutcome> Replay(const ReplayTrace& trace, const ReplaySetup& setup,
                             const std::function<bool(uint64_t requests)>& on_progress) {
  AQ_RETURN_IF_ERROR(CheckSetup(setup));
  AQ_ASSIGN_OR_RETURN(const auto policy, NewPolicy(trace, setup));
  ReplayOutcome outcome;
  uint64_t requests = 0;
  for (const ReplayRequest& request : trace.requests) {
    outcome.hits += policy->Use(request, trace.BlocksOf(request));
    outcome.blocks += request.blocks;
    ++requests;
    if (requests % kRequestsBetweenProgress == 0 && on_progress && !on_progress(requests)) {
      return Status(Code::kLate, "interrupted");
    }
  }
  outcome.writes = policy->writes();
  return outcome;
}

}  // namespace aquifer
