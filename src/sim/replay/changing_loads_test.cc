// The learned order against LRU, on loads that it cannot foresee: conversations of random kinds
// that change abruptly, again and again.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <queue>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sim/replay/replay.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

constexpr uint32_t kTokensPerBlock = 512;
constexpr uint32_t kUnseen = UINT32_MAX;

// The character of a load while it lasts.
struct Kind {
  double starts_per_second = 1;
  double gap_seconds = 1;  // Between two turns.
  bool even = false;       // With true, all gaps are the same; otherwise only their mean is.
  uint64_t most_turns = 1;
  uint64_t most_first = 1;  // Blocks of a first turn.
  uint64_t least_added = 1;
  uint64_t most_added = 1;  // Blocks of a later turn.
};

class Load {
 public:
  explicit Load(uint64_t seed) : random_(seed) {
    for (Kind& kind : kinds_) kind = AnyKind();
    lasts_seconds_ = OneOf({600, 1800, 4000});
    const auto prompts = static_cast<size_t>(OneOf({1, 5, 40}));
    for (size_t i = 0; i < prompts; ++i) system_prompts_.push_back(Fresh(1 + random_.Below(12)));
  }

  ReplayTrace Requests(size_t count) {
    double now = 0;
    while (trace_.requests.size() < count) {
      const auto phase = static_cast<size_t>(now / lasts_seconds_) % kinds_.size();
      const Kind& kind = kinds_[phase];
      now += Exponential(1 / kind.starts_per_second);
      while (!later_.empty() && later_.top().first <= now) {
        const auto [when, number] = later_.top();
        later_.pop();
        Turn(number, when);
      }
      std::vector<uint32_t> chain = system_prompts_[random_.Below(system_prompts_.size())];
      Add(&chain, Fresh(1 + random_.Below(kind.most_first)));
      talks_.push_back({std::move(chain), random_.Below(kind.most_turns), kind});
      Turn(talks_.size() - 1, now);
    }
    trace_.distinct = seen_;
    trace_.tokens_per_block = kTokensPerBlock;
    return std::move(trace_);
  }

 private:
  struct Talk {
    std::vector<uint32_t> chain;
    uint64_t turns_left = 0;
    Kind kind;
  };

  double OneOf(std::initializer_list<double> values) {
    return values.begin()[random_.Below(values.size())];
  }
  double Exponential(double mean) {
    return -mean * std::log(static_cast<double>(1 + random_.Below(1 << 20)) / (1 << 20));
  }
  Kind AnyKind() {
    Kind kind{.starts_per_second = OneOf({0.3, 1, 3, 8}),
              .gap_seconds = OneOf({2, 10, 60, 300, 1500}),
              .even = random_.Below(5) < 2,
              .most_turns = static_cast<uint64_t>(OneOf({1, 2, 5, 16})),
              .most_first = static_cast<uint64_t>(OneOf({2, 8, 30}))};
    kind.least_added = static_cast<uint64_t>(OneOf({0, 1, 3}));
    kind.most_added = 1 + 2 * kind.least_added;
    return kind;
  }
  std::vector<uint32_t> Fresh(uint64_t count) {
    std::vector<uint32_t> blocks(count);
    for (uint32_t& block : blocks) block = next_block_++;
    return blocks;
  }
  // Numbers blocks in the order in which they first come, as a trace has it.
  uint32_t NumberOf(uint32_t block) {
    if (numbers_.size() <= block) numbers_.resize(size_t{block} + 1, kUnseen);
    if (numbers_[block] == kUnseen) numbers_[block] = seen_++;
    return numbers_[block];
  }
  static void Add(std::vector<uint32_t>* chain, const std::vector<uint32_t>& more) {
    chain->insert(chain->end(), more.begin(), more.end());
  }

  void Turn(size_t number, double now) {
    Talk& talk = talks_[number];
    const auto blocks = static_cast<uint32_t>(talk.chain.size());
    trace_.requests.push_back({.at_nanos = static_cast<int64_t>(now * 1e9),
                               .input_tokens = blocks * kTokensPerBlock,
                               .output_tokens = static_cast<uint32_t>(10 + random_.Below(400)),
                               .full_blocks = blocks,
                               .first = trace_.blocks.size(),
                               .blocks = blocks});
    for (const uint32_t block : talk.chain) trace_.blocks.push_back(NumberOf(block));
    if (talk.turns_left-- == 0) return;
    const Kind& kind = talk.kind;
    Add(&talk.chain,
        Fresh(kind.least_added + random_.Below(kind.most_added - kind.least_added + 1)));
    const double gap = kind.even ? kind.gap_seconds : Exponential(kind.gap_seconds);
    later_.push({now + gap + 0.5, number});
  }

  SeededRandom random_;
  std::array<Kind, 3> kinds_;
  double lasts_seconds_ = 0;
  std::vector<std::vector<uint32_t>> system_prompts_;
  uint32_t next_block_ = 0;
  std::vector<uint32_t> numbers_;
  uint32_t seen_ = 0;
  std::deque<Talk> talks_;
  using Later = std::pair<double, size_t>;
  std::priority_queue<Later, std::vector<Later>, std::greater<>> later_;
  ReplayTrace trace_;
};

uint64_t Hits(const ReplayTrace& trace, const char* policy, uint32_t capacity,
              uint32_t nvme_blocks = 0) {
  const auto outcome = Replay(
      trace, {.policy = policy, .capacity_blocks = capacity, .nvme_blocks = nvme_blocks}, {});
  EXPECT_TRUE(outcome.ok());
  return outcome->hits;
}

// Allows a tenth of a point of all requests, and the time to notice that the order is behind. LRU
// cannot give back at once the blocks that were evicted against its advice, which are a part of the
// capacity.
TEST(ChangingLoads, LeaveTheLearnedOrderNeverFarBehindLru) {
  const auto seeds = ByTestLevel<uint64_t>(2, 4, 60);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const ReplayTrace trace = Load(seed).Requests(12'000);
    for (const uint32_t part : {100, 33, 10, 4}) {
      const uint32_t capacity = std::max<uint32_t>(trace.distinct / part, 1);
      const uint64_t lru = Hits(trace, "lru-leaf", capacity);
      const uint64_t learned = Hits(trace, "learned", capacity);
      EXPECT_GE(learned + trace.blocks.size() / 1000 + 300 + capacity / 32, lru)
          << "seed " << seed << ", " << trace.blocks.size() << " blocks, capacity " << capacity;
    }
  }
}

// Below DRAM, where the learned order is not held against LRU: one point.
TEST(ChangingLoads, LeaveTwoTiersThatLearnNeverFarBehindLru) {
  const auto seeds = ByTestLevel<uint64_t>(2, 6, 60);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const ReplayTrace trace = Load(seed).Requests(12'000);
    const uint32_t dram = std::max<uint32_t>(trace.distinct / 100, 1);
    const uint64_t lru = Hits(trace, "lru", dram, trace.distinct / 10);
    const uint64_t learned = Hits(trace, "learned", dram, trace.distinct / 10);
    EXPECT_GE(learned + trace.blocks.size() / 100, lru) << "seed " << seed;
  }
}

// Objects that all come back after the same time, for which LRU has just room. Nothing shows that
// they will, before the first one does.
TEST(SteadyLoops, LeaveTheLearnedOrderNeverFarBehindLru) {
  constexpr uint32_t kObjects = 1000, kBlocks = 4, kRounds = 4;
  ReplayTrace trace;
  trace.tokens_per_block = kTokensPerBlock;
  const auto ask = [&trace](uint32_t first) {
    const auto at = static_cast<int64_t>(trace.requests.size()) * 1'000'000'000;
    trace.requests.push_back({.at_nanos = at,
                              .input_tokens = kBlocks * kTokensPerBlock,
                              .output_tokens = 1,
                              .full_blocks = kBlocks,
                              .first = trace.blocks.size(),
                              .blocks = kBlocks});
    for (uint32_t i = 0; i < kBlocks; ++i) trace.blocks.push_back(first + i);
    trace.distinct = std::max(trace.distinct, first + kBlocks);
  };
  std::vector<uint32_t> objects;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < kObjects; ++i) {
      if (round == 0) objects.push_back(trace.distinct);
      ask(objects[i]);
      ask(trace.distinct);  // Comes once.
    }
  }
  for (const uint32_t capacity : {8000, 9000, 12'000}) {
    EXPECT_GE(Hits(trace, "learned", capacity) + capacity / 10, Hits(trace, "lru-leaf", capacity))
        << "capacity " << capacity;
  }
}

// Prompts that come back within a second, or at the same time, among others that never do. Engines
// that poll look like this, and their polls are no requests.
TEST(FastLoads, LeaveTheLearnedOrderNeverFarBehindLru) {
  constexpr uint32_t kHot = 50, kBlocks = 4, kRequests = 20'000;
  for (const int64_t nanos_between : {0, 50'000, 1'000'000, 10'000'000}) {
    SeededRandom random(1);
    std::vector<std::vector<uint32_t>> hot(kHot);
    ReplayTrace trace;
    trace.tokens_per_block = kTokensPerBlock;
    for (uint32_t i = 0; i < kRequests; ++i) {
      std::vector<uint32_t> fresh;
      std::vector<uint32_t>& chain = random.Below(2) == 0 ? hot[random.Below(kHot)] : fresh;
      while (chain.size() < kBlocks) chain.push_back(trace.distinct++);
      trace.requests.push_back({.at_nanos = i * nanos_between / 1'000'000 * 1'000'000,
                                .input_tokens = kBlocks * kTokensPerBlock,
                                .output_tokens = 1,
                                .full_blocks = kBlocks,
                                .first = trace.blocks.size(),
                                .blocks = kBlocks});
      trace.blocks.insert(trace.blocks.end(), chain.begin(), chain.end());
    }
    for (const uint32_t capacity : {300, 1000, 5000}) {
      EXPECT_GE(Hits(trace, "learned", capacity) + trace.blocks.size() / 1000,
                Hits(trace, "lru-leaf", capacity))
          << nanos_between << " ns between requests, capacity " << capacity;
    }
  }
}

}  // namespace
}  // namespace aquifer
