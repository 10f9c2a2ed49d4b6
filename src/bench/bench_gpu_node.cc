// A long prompt's KV between a GPU and a node, by the C ABI as an engine uses it: match, leases,
// checksums, the copies and all that is around them, against the time that the link alone takes.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_row.h"
#include "bench/gpu_engine.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/server_process.h"
#include "cuda/cuda_device.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// An engine and a node of its own, with the engine's chain stored in it.
class ServedEngine {
 public:
  uint32_t tokens() const { return tokens_; }
  GpuEngine* engine() { return engine_.get(); }
  double pin_seconds() const { return pin_seconds_; }

  Status Start(uint32_t tokens) {
    engine_.reset();
    tokens_ = 0;
    const uint64_t bytes = tokens * GpuEngine::kTokenBytes;
    AQ_ASSIGN_OR_RETURN(node_, ServerProcess::Start([&](const std::string& directory) {
                          return NodeCommand(directory, bytes / kMiB + 1024);
                        }));
    AQ_RETURN_IF_ERROR(node_->Await([&]() -> Status {
      AQ_ASSIGN_OR_RETURN(
          engine_, GpuEngine::New({.socket = node_->directory() + "/node.sock", .tokens = tokens}));
      return Status();
    }));
    AQ_RETURN_IF_ERROR(engine_->Store());
    AQ_ASSIGN_OR_RETURN(pin_seconds_, engine_->AwaitPinsSeconds());
    tokens_ = tokens;
    return Status();
  }

 private:
  uint32_t tokens_ = 0;
  std::unique_ptr<ServerProcess> node_;
  std::unique_ptr<GpuEngine> engine_;
  double pin_seconds_ = 0;
};

class NodeContest final : public Contest {
 public:
  NodeContest(ServedEngine* served, bool load)
      : served_(served), engine_(served->engine()), load_(load) {}

  Result<double> Limit() override {
    AQ_ASSIGN_OR_RETURN(const double rate, engine_->Link(load_));
    return static_cast<double>(engine_->bytes()) / 1e6 / rate;
  }

  Result<double> Ours() override {
    if (!load_) AQ_RETURN_IF_ERROR(engine_->Evict());
    const Stopwatch watch;
    AQ_RETURN_IF_ERROR(load_ ? engine_->Load() : engine_->Store());
    return watch.Seconds() * 1000;
  }

  std::string Note() const override {
    return fmt::format("the extents were pinned {:.1f} s after the first store",
                       served_->pin_seconds());
  }

 private:
  ServedEngine* const served_;
  GpuEngine* const engine_;
  const bool load_;
};

}  // namespace

void AddGpuNodeRows(std::vector<Row>* rows) {
  if (!DescribeCudaDevice(0).ok()) return;
  // The engine of the last row that was measured; the next row of the same size goes on with it.
  const auto shared = std::make_shared<ServedEngine>();
  for (const uint32_t thousands : {8, 32, 128}) {
    for (const bool load : {true, false}) {
      rows->push_back(
          {.name = fmt::format("gpu.node.{}/{}K-tokens", load ? "load" : "store", thousands),
           .unit = "ms",
           .limit_is = "the same bytes at the speed of one long copy between the GPU and pinned "
                       "memory",
           .goal = load ? 1 / 1.15 : 0,
           .higher_is_better = false,
           .prepare =
               [=](const BenchEnvironment& /*environment*/) -> Result<std::unique_ptr<Contest>> {
             if (shared->tokens() != thousands * 1024) {
               AQ_RETURN_IF_ERROR(shared->Start(thousands * 1024));
             }
             return std::unique_ptr<Contest>(std::make_unique<NodeContest>(shared.get(), load));
           },
           .rounds = 5,
           .quick_rounds = 3});
    }
  }
}

}  // namespace aquifer
