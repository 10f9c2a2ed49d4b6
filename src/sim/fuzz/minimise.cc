#include "sim/fuzz/minimise.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace aquifer {
namespace {

class Minimiser {
 public:
  Minimiser(uint64_t seed, const RunOutcome& outcome, const MinimiseOptions& options)
      : seed_(seed), options_(options), kind_(KindOfViolation(outcome.violation)) {
    best_.outcome = outcome;
  }

  Minimised Run() {
    const Scenario whole = MakeScenario(seed_);
    ShortenSteps(whole.steps);
    Reduction before;
    do {
      before = best_.reduction;
      LeaveOut(whole.engines.size(), &Reduction::left_out_engines);
      LeaveOut(whole.faults.size(), &Reduction::left_out_faults);
      ShortenSteps(best_.reduction.steps == 0 ? whole.steps : best_.reduction.steps);
    } while (before != best_.reduction && runs_ < options_.most_runs);
    best_.runs = runs_;
    return std::move(best_);
  }

 private:
  bool Try(const Reduction& reduction) {
    if (runs_ >= options_.most_runs) return false;
    ++runs_;
    const Result<Scenario> scenario = Reduce(seed_, reduction);
    if (!scenario.ok()) return false;
    RunOutcome outcome = options_.run(*scenario);
    if (KindOfViolation(outcome.violation) != kind_) return false;
    best_.reduction = reduction;
    best_.outcome = std::move(outcome);
    return true;
  }

  // From the last on: what comes late explains least.
  void LeaveOut(size_t count, std::vector<size_t> Reduction::* list) {
    for (size_t i = count; i-- > 0;) {
      Reduction smaller = best_.reduction;
      std::vector<size_t>& left_out = smaller.*list;
      if (std::ranges::find(left_out, i) != left_out.end()) continue;
      left_out.push_back(i);
      std::ranges::sort(left_out);
      Try(smaller);
    }
  }

  // A run that fails at a step needs none behind it; one that fails at the end may need fewer.
  void ShortenSteps(uint64_t steps) {
    if (best_.outcome.steps < steps) {
      Reduction shorter = best_.reduction;
      shorter.steps = best_.outcome.steps;
      if (Try(shorter)) steps = shorter.steps;
    }
    for (uint64_t cut = steps / 2; cut > 0; cut /= 2) {
      Reduction shorter = best_.reduction;
      shorter.steps = steps - cut;
      if (Try(shorter)) steps = shorter.steps;
    }
  }

  const uint64_t seed_;
  const MinimiseOptions& options_;
  const std::string kind_;
  Minimised best_;
  size_t runs_ = 0;
};

}  // namespace

std::string KindOfViolation(const std::string& violation) {
  std::string kind = violation;
  std::erase_if(kind, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
  return kind;
}

Minimised Minimise(uint64_t seed, const RunOutcome& outcome, const MinimiseOptions& options) {
  return Minimiser(seed, outcome, options).Run();
}

}  // namespace aquifer
