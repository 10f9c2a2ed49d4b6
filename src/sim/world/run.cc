#include "sim/world/run.h"

#include "sim/world/trace.h"
#include "sim/world/world.h"

namespace aquifer {
namespace {

constexpr size_t kShownLines = 40;

const Running* run_under_way = nullptr;

class TracedRun final : public Running {
 public:
  TracedRun(uint64_t seed, const Trace* trace) : seed_(seed), trace_(trace) {
    run_under_way = this;
  }
  ~TracedRun() { run_under_way = nullptr; }
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

  uint64_t seed() const override { return seed_; }
  std::vector<std::string> Last(size_t lines) const override { return trace_->Last(lines); }

 private:
  const uint64_t seed_;
  const Trace* const trace_;
};

}  // namespace

const Running* RunUnderWay() { return run_under_way; }

RunOutcome RunScenario(const Scenario& scenario,
                       const std::function<void(const std::string&)>& on_line) {
  Trace trace;
  trace.on_line = on_line;
  const TracedRun running(scenario.seed, &trace);
  World world(scenario, &trace);
  world.Run();
  RunOutcome outcome;
  outcome.violation = world.violation();
  if (!outcome.ok()) outcome.trace = trace.Last(kShownLines);
  outcome.digest = trace.digest();
  outcome.steps = world.steps();
  outcome.simulated_nanos = world.simulated_nanos();
  outcome.counts = world.counts();
  outcome.faults = world.faults_seen();
  return outcome;
}

}  // namespace aquifer
