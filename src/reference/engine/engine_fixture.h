// Shared by the engine's tests: a node in this process, engines of a small random model, and the
// outcome of a request.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "reference/engine/engine.h"
#include "testing/node/own_node.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"

namespace aquifer::reference {

inline constexpr uint64_t kMiB = 1 << 20;

struct Outcome {
  std::vector<uint32_t> tokens;
  std::vector<std::vector<float>> logits;
  FinishReason reason = FinishReason::kCancelled;
  RequestFigures figures;

  bool SameBits(const Outcome& other) const {
    if (tokens != other.tokens || logits.size() != other.logits.size()) return false;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (std::memcmp(logits[i].data(), other.logits[i].data(), logits[i].size() * sizeof(float)) !=
          0) {
        return false;
      }
    }
    return true;
  }
};

// Submits a request. The future is ready when the request is done.
inline std::future<Outcome> Begin(Engine* engine, GenerateRequest request,
                                  RequestId* id = nullptr) {
  auto outcome = std::make_shared<Outcome>();
  auto promise = std::make_shared<std::promise<Outcome>>();
  request.on_token = [outcome, then = request.on_token](const GeneratedToken& token) {
    outcome->tokens.push_back(token.token);
    outcome->logits.emplace_back(token.logits.begin(), token.logits.end());
    return !then || then(token);
  };
  request.on_done = [outcome, promise](FinishReason reason, const RequestFigures& figures) {
    outcome->reason = reason;
    outcome->figures = figures;
    promise->set_value(std::move(*outcome));
  };
  std::future<Outcome> future = promise->get_future();
  const Result<RequestId> submitted = engine->Submit(std::move(request));
  EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
  if (id != nullptr) *id = *submitted;
  return future;
}

inline Outcome Generate(Engine* engine, GenerateRequest request) {
  return Begin(engine, std::move(request)).get();
}

// Waits until the cache has stored, or refused, the blocks that the engine computed.
inline void AwaitStored(const Engine& engine, uint64_t blocks) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (engine.figures().offload.stored_blocks + engine.figures().offload.refused_blocks <
             blocks &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(engine.figures().offload.stored_blocks, blocks);
}

inline std::vector<uint32_t> RandomPrompt(size_t count, uint32_t vocabulary, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.Below(vocabulary));
  return tokens;
}

class EngineTest : public testing::Test {
 protected:
  void StartNode(bool with_nvme = true) {
    node_.reset();
    CacheOptions options;
    options.dram_bytes = 128 * kMiB;
    options.keep_available_bytes = 0;
    if (with_nvme) {
      options.nvme_directories = {scratch_.Sub("nvme")};
      options.nvme_bytes = 512 * kMiB;
    }
    auto node = OwnNode::Start(options);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *node;
    socket_ = node_->socket();
  }

  EngineOptions Options(bool with_cache = true) {
    EngineOptions options;
    options.offload.always_fetch = true;
    options.threads = 2;
    if (with_cache) {
      options.offload.connect = [this] { return Connect({.socket = socket_}, {}); };
    }
    return options;
  }

  std::unique_ptr<Engine> StartWith(const EngineOptions& options,
                                    std::shared_ptr<const Weights> weights) {
    auto engine = StartEngine(options, std::move(weights), tokenizer_.get());
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    return std::move(*engine);
  }

  static Key RootOf(const Layout& layout) {
    return *DeriveRoot({.tenant = "local", .layout_fingerprint = LayoutFingerprint(layout)});
  }

  void Flush() {
    auto client = Connect({.socket = node_->socket()}, {});
    ASSERT_TRUE(client.ok());
    FlushRequest flush;
    (*client)->Flush(&flush);
    (*client)->Wait(flush);
    ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  }

  static ModelShape SmallShape() {
    return {.vocabulary = 300,
            .hidden = 64,
            .intermediate = 96,
            .layers = 2,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 16,
            .max_positions = 4096};
  }

  static GenerateRequest Request(std::vector<uint32_t> prompt, size_t tokens) {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = tokens;
    request.ignore_end = true;
    return request;
  }

  ScratchDirectory scratch_;
  std::unique_ptr<Tokenizer> tokenizer_ = NewByteTokenizer();
  std::shared_ptr<OwnNode> node_;
  std::string socket_;  // Changes only while no engine runs.
};

}  // namespace aquifer::reference
