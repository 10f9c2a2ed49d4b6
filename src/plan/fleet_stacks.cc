#include "plan/fleet_stacks.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash_mix.h"

namespace aquifer {
namespace {

// A node with so many times the mean gets no request for its blocks' sake.
constexpr double kMostLoad = 1.25;
// More is a mistake in the trace: a million tokens in blocks of 16.
constexpr uint64_t kMostOutputBlocks = 65'536;

// Only the fleet's stack decides how many blocks are followed.
LruStackOptions NodeStack(LruStackOptions options) {
  options.max_tracked = SIZE_MAX;
  return options;
}

// The name of an output's block before a prompt tells its own.
uint64_t OutputName(uint64_t end, uint64_t index) {
  uint64_t state = Mix(end ^ 0xA24BAED4963EE407u, 0x9FB21C651E98DF25u) + index;
  return SplitMix(&state);
}

// Blocks that are not followed are as deep as the nearest that is. False: there is none.
bool FillUnsampled(std::vector<double>* depths) {
  const size_t count = depths->size();
  size_t last = SIZE_MAX;
  for (size_t i = 0; i < count; ++i) {
    if ((*depths)[i] == LruStack::kUnsampled) continue;
    const size_t gap_begin = last == SIZE_MAX ? 0 : last + 1;
    const size_t middle = last == SIZE_MAX ? 0 : gap_begin + (i - gap_begin) / 2;
    for (size_t j = gap_begin; j < i; ++j) (*depths)[j] = (*depths)[j < middle ? last : i];
    last = i;
  }
  if (last == SIZE_MAX) return count == 0;
  for (size_t j = last + 1; j < count; ++j) (*depths)[j] = (*depths)[last];
  return true;
}

void NeverFall(std::vector<double>* depths) {
  for (size_t i = 1; i < depths->size(); ++i) {
    (*depths)[i] = std::max((*depths)[i], (*depths)[i - 1]);
  }
}

}  // namespace

FleetStacks::FleetStacks(const FleetStacksOptions& options)
    : options_(options), tokens_(options.nodes) {
  AQ_CHECK(options.nodes > 0 && options.block_tokens > 0);
  if (!single()) stacks_.assign(options.nodes, LruStack(NodeStack(options.stack)));
  stacks_.emplace_back(options.stack);
}

// A prompt goes on behind an earlier one's end, with blocks that no prompt had before: they are
// what was made there.
void FleetStacks::NameOutputs(std::span<const uint64_t> blocks) {
  size_t known = 0;
  while (known < blocks.size() && fleet().Depth(blocks[known]) != LruStack::kNever) ++known;
  if (known == 0) return;
  const uint64_t end = blocks[known - 1];
  for (size_t i = known; i < blocks.size(); ++i) {
    const uint64_t name = OutputName(end, i - known);
    const uint32_t node = fleet().Tag(name);
    if (!fleet().Rename(name, blocks[i])) return;
    if (!single()) stacks_[node].Rename(name, blocks[i]);
    named_.emplace_back(name, blocks[i]);
  }
}

void FleetStacks::AddOutputs(const TraceRequest& request) {
  const uint64_t whole = request.input_tokens / options_.block_tokens;
  const uint64_t end = (request.input_tokens + request.output_tokens) / options_.block_tokens;
  if (whole == 0 || whole > request.block_ids.size() || end == whole) return;
  const uint64_t outputs = std::min(end - whole, kMostOutputBlocks);
  for (uint64_t i = 0; i < outputs; ++i) {
    used_.push_back(OutputName(request.block_ids[whole - 1], i));
  }
}

uint32_t FleetStacks::Route(const TraceRequest& request, const std::vector<double>& fleet_depths) {
  const auto tokens = static_cast<double>(request.input_tokens + request.output_tokens);
  uint64_t state = ++requests_;
  const auto one = static_cast<uint32_t>(SplitMix(&state) % options_.nodes);
  const auto other = static_cast<uint32_t>(SplitMix(&state) % options_.nodes);
  uint32_t node = one;
  if (options_.routing == Routing::kSticky) {
    node = tokens_[one] <= tokens_[other] ? one : other;
    // The deepest block that is somewhere says where the conversation was.
    for (size_t i = fleet_depths.size(); i-- > 0;) {
      if (fleet_depths[i] == LruStack::kNever || fleet_depths[i] == LruStack::kUnsampled) continue;
      const uint32_t home = fleet().Tag(request.block_ids[i]);
      const double mean = all_tokens_ / options_.nodes;
      if (tokens_[home] <= kMostLoad * mean + tokens) node = home;
      break;
    }
  }
  tokens_[node] += tokens;
  all_tokens_ += tokens;
  return node;
}

void FleetStacks::Ask(const TraceRequest& request, RequestDepths* depths) {
  const std::span<const uint64_t> blocks = request.block_ids;
  named_.clear();
  if (options_.follow_outputs) NameOutputs(blocks);
  fleet().Look(blocks, &depths->own);
  depths->fleet = depths->own;
  uint32_t node = 0;
  if (!single()) {
    node = Route(request, depths->own);
    stacks_[node].Look(blocks, &depths->own);
    depths->peer.assign(blocks.size(), LruStack::kNever);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (depths->own[i] == LruStack::kUnsampled) {
        depths->peer[i] = LruStack::kUnsampled;
      } else if (const uint32_t last = fleet().Tag(blocks[i]); last != node) {
        depths->peer[i] = stacks_[last].Depth(blocks[i]);
      }
    }
  }
  depths->local = depths->own;
  depths->known = FillUnsampled(&depths->local);
  NeverFall(&depths->local);
  FillUnsampled(&depths->fleet);
  NeverFall(&depths->fleet);
  if (!single()) FillUnsampled(&depths->peer);

  used_.assign(blocks.begin(), blocks.end());
  if (options_.follow_outputs) AddOutputs(request);
  depths->output_blocks = used_.size() - blocks.size();
  Touch(used_, node);
}

void FleetStacks::Touch(std::span<const uint64_t> blocks, uint32_t node) {
  const uint32_t shift = fleet().rate_shift();
  fleet().Touch(blocks, node);
  if (single()) return;
  stacks_[node].Touch(blocks);
  if (fleet().rate_shift() == shift) return;
  // All follow the same blocks, else one's depth would say nothing of another's.
  for (LruStack& stack : stacks_) stack.FollowOneIn(fleet().rate_shift());
}

size_t FleetStacks::bytes() const {
  size_t bytes = 0;
  for (const LruStack& stack : stacks_) bytes += stack.bytes();
  return bytes;
}

}  // namespace aquifer
