// An engine of the benchmark and of tests on a GPU: one sequence of Llama-3-8B in vLLM's pages, and
// its chain at a node, all by the C ABI. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/aquifer.h"
#include "aquifer/status.h"
#include "cuda/gpu_device.h"

namespace aquifer {

struct GpuEngineOptions {
  std::string socket;
  uint32_t tokens = 0;
  uint32_t token = 42;  // All of the prompt: another one is another chain.
};

class GpuEngine {
 public:
  static constexpr uint64_t kTokenBytes = uint64_t{128} << 10;  // bf16.

  static Result<std::unique_ptr<GpuEngine>> New(const GpuEngineOptions& options);
  ~GpuEngine();
  GpuEngine(const GpuEngine&) = delete;
  GpuEngine& operator=(const GpuEngine&) = delete;

  uint64_t bytes() const { return options_.tokens * kTokenBytes; }

  // Stores the whole chain; kInvalid unless every block is new and published.
  Status Store();
  // Matches and loads it; kInvalid unless it is all there.
  Status Load();
  Status Evict();  // The chain.

  // The tensors' contents: from a seed, all zeros, or compared with the seed's.
  Status Fill(uint64_t seed);
  Status Clear();
  Result<bool> Holds(uint64_t seed);

  // GB/s of one long copy between the tensors and pinned memory.
  Result<double> Link(bool load);
  // How long it takes until what is mapped of the node is pinned.
  Result<double> AwaitPinsSeconds();

 private:
  explicit GpuEngine(const GpuEngineOptions& options) : options_(options) {}
  Status Connect();
  Status MakeTensors();
  Status MapTensors();
  template <class Args>
  Args Transfer() const;
  Status MakeChain();
  Status Wait(aquifer_code begun);
  Status CopyPart(uint64_t at, bool to_device);

  const GpuEngineOptions options_;
  std::unique_ptr<GpuDevice> device_;
  GpuDevice::Queue queue_ = 0;
  std::span<std::byte> pinned_;
  uint64_t memory_ = 0;  // All tensors, one after the other.
  aquifer_kv_group group_{};
  aquifer_layout layout_{};
  aquifer_cache* cache_ = nullptr;
  aquifer_request* request_ = nullptr;
  aquifer_tensor_map* map_ = nullptr;
  aquifer_key root_{};
  std::vector<aquifer_key> keys_;
  std::vector<uint32_t> pages_;
  aquifer_chain chain_{};
};

}  // namespace aquifer
