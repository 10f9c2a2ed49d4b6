#include "sim/world/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "aquifer/status.h"
#include "sim/world/fault.h"

namespace aquifer {
namespace {

// {0} is who; {1}, {2} and {3} are a, b and c.
constexpr auto kTexts = std::to_array<const char*>({
    "the node starts, life {0}",
    "the node serves",
    "{1} dies with {2} requests at the drives",
    "fault: {1}, {2}",
    "fault ends: {1}",
    "engine {0} is there, as client {1} of tenant {2}",
    "engine {0} dies with {1} leases and {2} reservations",
    "engine {0} matches {1} blocks of conversation {2}",
    "engine {0} has {1} of {2} blocks matched",
    "engine {0} fetches {1} blocks of conversation {2} within {3} us",
    "engine {0} gets {1} blocks, misses {2}, {3} late or failed",
    "engine {0} cancels",
    "engine {0} releases {1} leases, {2} as corrupt",
    "engine {0} reserves {1} blocks of conversation {2} from {3} on",
    "engine {0} gets {1} slots; {2} are there or being filled, {3} refused",
    "engine {0} reserves the {1} blocks of conversation {2} for its second rank too",
    "engine {0} has both ranks in {1} of {2} slots",
    "engine {0} commits {1} blocks, as rank {2}",
    "engine {0} has {1} blocks published, {2} refused",
    "engine {0} gives {1} reservations up",
    "engine {0} flushes within {1} us",
    "engine {0} flushed: {1}",
    "engine {0} pins {1} blocks of conversation {2} for {3} s",
    "engine {0} has {1} of {2} blocks pinned",
    "engine {0} prestages conversation {2} within {3} us",
    "engine {0} has {1} of {2} blocks staged",
    "engine {0} evicts {1} blocks of conversation {2} (way {3})",
    "engine {0} evicted {1} blocks: {2}",
    "engine {0} gives a hint on conversation {2}, ttl {1} s",
    "engine {0} reports a prefill of {1} tokens",
    "engine {0} drains",
    "engine {0} drained: {1}, {2} left",
    "every fault is over and the engines finish",
    "the audit asks for {1} blocks of tenant {0}",
});
static_assert(kTexts.size() == static_cast<size_t>(TraceKind::kLast) + 1);

// Codes, faults and ways to die travel as numbers.
std::string NameOf(const TraceLine& line, char field, uint64_t value) {
  const auto code = [value] { return std::string(CodeName(static_cast<Code>(value))); };
  switch (line.kind) {
    case TraceKind::kFault:
    case TraceKind::kFaultEnds:
      if (field == 'a') return std::string(FaultName(static_cast<FaultKind>(value)));
      return std::to_string(static_cast<int64_t>(value));  // It may be a step back.
    case TraceKind::kNodeDies:
      if (field == 'a') return value == 0 ? "its process" : "its machine";
      break;
    case TraceKind::kFlushed:
    case TraceKind::kDrained:
      if (field == 'a') return code();
      break;
    case TraceKind::kEvicted:
      if (field == 'b') return code();
      break;
    default:
      break;
  }
  return std::to_string(value);
}

// Which node it was, where there is more than one.
std::string NodeOf(const TraceLine& line) {
  uint64_t node = 0;
  if (line.kind == TraceKind::kNodeStarts) node = line.a;
  if (line.kind == TraceKind::kNodeDies) node = line.c;
  const bool by_who = line.kind == TraceKind::kNodeServes || line.kind == TraceKind::kFault ||
                      line.kind == TraceKind::kFaultEnds;
  if (by_who) node = line.who;
  return node == 0 ? "" : fmt::format(" (node {})", node + 1);
}

}  // namespace

std::string TextOf(const TraceLine& line) {
  // Not as a floating-point number: every compiler is to print the same.
  const int64_t micros = line.nanos / 1000;
  return fmt::format(
      "{:>8} {:>8}.{:06} s  {}{}", line.step, micros / 1'000'000, micros % 1'000'000,
      fmt::format(fmt::runtime(kTexts[static_cast<size_t>(line.kind)]), line.who,
                  NameOf(line, 'a', line.a), NameOf(line, 'b', line.b), NameOf(line, 'c', line.c)),
      NodeOf(line));
}

void Trace::Mix(uint64_t value) {
  digest_ = (digest_ ^ value) * 0x9E3779B97F4A7C15u;
  digest_ ^= digest_ >> 32;
}

void Trace::Step(int64_t nanos, uint64_t step) {
  nanos_ = nanos;
  step_ = step;
  Mix(static_cast<uint64_t>(nanos));
}

void Trace::Add(TraceKind kind, uint32_t who, uint64_t a, uint64_t b, uint64_t c) {
  const TraceLine line{
      .nanos = nanos_, .step = step_, .kind = kind, .who = who, .a = a, .b = b, .c = c};
  Mix(static_cast<uint64_t>(kind) << 32 | who);
  Mix(a);
  Mix(b);
  Mix(c);
  if (on_line) on_line(TextOf(line));
  if (kept_.size() < kKept) {
    kept_.push_back(line);
    return;
  }
  kept_[next_] = line;
  next_ = (next_ + 1) % kKept;
}

std::vector<std::string> Trace::Last(size_t lines) const {
  std::vector<std::string> texts;
  const size_t count = std::min(lines, kept_.size());
  for (size_t i = kept_.size() - count; i < kept_.size(); ++i) {
    texts.push_back(TextOf(kept_[(next_ + i) % kept_.size()]));
  }
  return texts;
}

}  // namespace aquifer
