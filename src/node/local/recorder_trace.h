// A trace of requests as it is recorded: docs/formats/trace.md. Takes what clients ask for and
// makes lines of it, in the order asked, once it is known how long the answers became. Holds salted
// ids and numbers, never a key. Knows no thread, clock or file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "aquifer/key.h"
#include "base/crypto/sha256.h"

namespace aquifer {

// Whose request it is, without a name.
struct RecordedClient {
  Sha256Digest tenant{};  // Of its name.
  uint64_t engine = 0;    // All ranks of an engine have the same.
};

struct RecordedTraceOptions {
  Sha256Digest salt{};  // Random.
  int64_t start_nanos = 0;
  int64_t hold_nanos = 120'000'000'000;  // So long a request waits for its output to be known.
  int64_t again_nanos = 1'000'000'000;   // The same asked again so soon is the same request.
  size_t max_waiting = 65'536;
  size_t max_waiting_ids = size_t{1} << 22;
};

class RecordedTrace {
 public:
  explicit RecordedTrace(const RecordedTraceOptions& options) : options_(options) {}

  // A prompt, of so many whole blocks. Times never go back.
  void Asked(int64_t now_nanos, const RecordedClient& client, uint32_t tokens_per_block,
             std::span<const Key> keys);
  // Blocks that the client has computed, behind `parent`.
  void Stored(const RecordedClient& client, uint32_t tokens_per_block, const Key& parent,
              std::span<const Key> keys);

  // Appends the lines that are due; with `all`, those too that could still wait. Returns how many.
  size_t TakeLines(int64_t now_nanos, bool all, std::string* lines);

  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    int64_t asked_nanos = 0;
    int64_t again_nanos = 0;  // When it was asked last.
    uint64_t input_tokens = 0;
    uint64_t output_tokens = 0;
    std::vector<uint64_t> ids{};
    uint64_t engine = 0;
    uint64_t end = 0;    // The id of the last block, of the output if there is some.
    bool ended = false;  // Nothing more is counted.
  };

  uint64_t IdOf(const RecordedClient& client, const Key& key);
  Waiting* FindEndingAt(uint64_t engine, uint64_t id);
  void EndAt(uint64_t engine, uint64_t end);
  bool IsDue(const Waiting& first, int64_t now_nanos) const;

  const RecordedTraceOptions options_;
  Sha256 hash_;
  std::deque<Waiting> waiting_;  // In the order asked.
  uint64_t first_ = 0;           // The number of waiting_[0]; numbers go on.
  size_t waiting_ids_ = 0;
  // Those that have not ended, by engine and end: its number.
  std::unordered_map<uint64_t, uint64_t> by_end_;
};

}  // namespace aquifer
