// The engine: many requests at once on one model, KV in a pool of limited size, and the cache
// behind it.
//
// It has a thread of its own, which does everything but the crew's share of a step: takes requests,
// asks the cache, builds a batch of the sequences that decode and of pieces of prompts, runs the
// model, and hands completed blocks to the cache. A sequence that finds no page pushes the youngest
// one out; that one waits, and recalls what it had when it comes back.
//
// Any thread may call; callbacks run on the engine's thread and must not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "reference/engine/offload.h"
#include "reference/model/model.h"
#include "reference/model/tokenizer.h"

namespace aquifer::reference {

struct EngineOptions {
  uint32_t page_tokens = 16;
  uint32_t pages = 0;  // 0: room for one and a half sequences of the greatest length.
  size_t threads = 2;
  size_t max_running = 8;
  size_t max_waiting = 256;
  size_t step_tokens = 512;  // Of a batch.
  std::string tenant = "local";
  OffloadOptions offload{};
};

// Where the KV of a request's prompt came from, and how long it took.
struct RequestFigures {
  size_t prompt_tokens = 0;
  size_t resident_tokens = 0;  // In the engine's own pages.
  size_t dram_tokens = 0;      // Recalled.
  size_t nvme_tokens = 0;
  size_t computed_tokens = 0;  // Of the prompt, and what was recomputed after a preemption.
  size_t generated_tokens = 0;
  size_t preemptions = 0;
  size_t recalled_after_preemption = 0;  // Tokens, resident ones too.
  double first_token_ms = 0;             // Since it was submitted.

  size_t recalled_tokens() const { return dram_tokens + nvme_tokens; }
};

enum class FinishReason : uint8_t { kEnd, kLength, kCancelled };

struct GeneratedToken {
  uint32_t token = 0;
  bool silent = false;  // No part of the text.
  std::span<const float> logits{};
  const RequestFigures* figures = nullptr;
};

struct GenerateRequest {
  std::vector<uint32_t> prompt{};
  size_t max_tokens = 16;
  float temperature = 0;
  float top_p = 1;
  uint64_t seed = 0;
  bool recall = true;  // False: everything is computed.
  bool store = true;
  bool ignore_end = false;
  std::string cache_salt{};  // Whoever has another one shares nothing.
  std::string session{};
  // False: that is enough; the answer ends here.
  std::function<bool(const GeneratedToken&)> on_token{};
  // The last call for this request.
  std::function<void(FinishReason, const RequestFigures&)> on_done{};
};

struct EngineFigures {
  uint64_t requests = 0;
  uint64_t cancelled = 0;
  uint64_t prompt_tokens = 0;
  uint64_t resident_tokens = 0;
  uint64_t dram_tokens = 0;
  uint64_t nvme_tokens = 0;
  uint64_t computed_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  uint64_t evicted_blocks = 0;
  size_t running = 0;
  size_t waiting = 0;
  size_t pages = 0;
  size_t pages_in_use = 0;
  int64_t busy_nanos = 0;  // In steps that had something to compute; the offload's share included.
  OffloadStats offload{};
};

using RequestId = uint64_t;

class Engine {
 public:
  // What is open is cancelled.
  virtual ~Engine() = default;

  // kInvalid: it can never run, and why. kBusy: too many wait.
  virtual Result<RequestId> Submit(GenerateRequest request) = 0;
  // Its pages are free soon. on_done is called, unless it was.
  virtual void Cancel(RequestId request) = 0;

  virtual EngineFigures figures() const = 0;
  virtual const ModelShape& shape() const = 0;
  virtual const Layout& layout() const = 0;
};

// `tokenizer` outlives the engine.
Result<std::unique_ptr<Engine>> StartEngine(const EngineOptions& options,
                                            std::shared_ptr<const Weights> weights,
                                            const Tokenizer* tokenizer);

}  // namespace aquifer::reference
