// What happened, for a person and for comparing runs: the last lines as text, and a digest over
// every step and every line. Lines are kept as numbers and become text only when someone looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace aquifer {

enum class TraceKind : uint8_t {
  kNodeStarts,
  kNodeServes,
  kNodeDies,
  kFault,
  kFaultEnds,
  kAttached,
  kClientDies,
  kMatch,
  kMatched,
  kFetch,
  kFetched,
  kCancel,
  kRelease,
  kReserve,
  kReserved,
  kJoin,
  kJoined,
  kCommit,
  kCommitted,
  kAbort,
  kFlush,
  kFlushed,
  kPin,
  kPinned,
  kPrestage,
  kPrestaged,
  kEvict,
  kEvicted,
  kHint,
  kPrefill,
  kDrain,
  kDrained,
  kSettling,
  kAudit,
  kLast = kAudit,
};

struct TraceLine {
  int64_t nanos = 0;
  uint64_t step = 0;
  TraceKind kind = TraceKind::kNodeStarts;
  uint32_t who = 0;  // An engine, a fault, a life: what the kind speaks of.
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
};
std::string TextOf(const TraceLine& line);

class Trace {
 public:
  // Every step, so that two runs which differ anywhere differ here.
  void Step(int64_t nanos, uint64_t step);
  void Add(TraceKind kind, uint32_t who, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);

  uint64_t digest() const { return digest_; }
  std::vector<std::string> Last(size_t lines) const;

  // Called with every line as it comes; may be empty.
  std::function<void(const std::string&)> on_line;

 private:
  static constexpr size_t kKept = 256;
  void Mix(uint64_t value);

  int64_t nanos_ = 0;
  uint64_t step_ = 0;
  uint64_t digest_ = 0xCBF29CE484222325u;
  std::vector<TraceLine> kept_;  // A ring, once it is full.
  size_t next_ = 0;
};

}  // namespace aquifer
