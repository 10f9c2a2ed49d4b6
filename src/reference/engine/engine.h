// The engine runs many requests at once on one model, with KV in a pool of limited size, and the
// cache behind it.
//
// Its own thread does everything but the crew's share of a step. It takes requests, asks the cache,
// and builds a batch of decoding sequences and of pieces of prompts. Then it runs the model and
// hands completed blocks to the cache. A sequence that finds no page takes the pages of the
// youngest one. The youngest then waits, and recalls its blocks when it comes back.
//
// Any thread may call. Callbacks run on the engine's thread and must not wait.
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
  size_t step_tokens = 512;  // Tokens in one batch.
  std::string tenant = "local";
  OffloadOptions offload{};
};

// Where the KV of a request's prompt came from, and how long it took.
struct RequestFigures {
  size_t prompt_tokens = 0;
  size_t resident_tokens = 0;  // Found in the engine's own pages.
  size_t dram_tokens = 0;      // Recalled from DRAM.
  size_t nvme_tokens = 0;
  size_t computed_tokens = 0;  // Of the prompt, or recomputed after a preemption.
  size_t generated_tokens = 0;
  size_t preemptions = 0;
  size_t recalled_after_preemption = 0;  // In tokens, resident ones too.
  double first_token_ms = 0;             // Since the request was submitted.

  size_t recalled_tokens() const { return dram_tokens + nvme_tokens; }
};

enum class FinishReason : uint8_t { kEnd, kLength, kCancelled };

struct GeneratedToken {
  uint32_t token = 0;
  bool silent = false;  // The token is no part of the text.
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
  std::string cache_salt{};  // Requests with different salts share no blocks.
  std::string session{};
  // Returns false if the request has enough tokens; the answer then ends here.
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
  int64_t busy_nanos = 0;  // In steps that had something to compute, with the offload's share.
  OffloadStats offload{};
};

using RequestId = uint64_t;

class Engine {
 public:
  // Cancels open requests.
  virtual ~Engine() = default;

  // kInvalid: the request can never run; the message says why. kBusy: too many requests wait.
  virtual Result<RequestId> Submit(GenerateRequest request) = 0;
  // Frees the request's pages soon. on_done is called, unless it was already.
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
