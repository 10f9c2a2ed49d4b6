// The time by which blocks of a tier grow old. Ages are told apart from a few seconds on
// (reuse_model.h). Where a tier gives up all that it has within less, or where time stands still,
// as in a burst or in a trace without times, nothing would grow older before it is gone, and
// nothing could be learned. So for as much as a tier holds and gives up, a few of those ages go by
// at least.
//
// Pure numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace aquifer {

class TurnoverClock {
 public:
  // Never goes back, and is at most by what was given up ahead of what it is told.
  int64_t At(int64_t now_nanos) {
    if (told_nanos_ == INT64_MIN) told_nanos_ = nanos_ = marked_nanos_ = now_nanos;
    nanos_ += std::max(now_nanos - told_nanos_, static_cast<int64_t>(owed_nanos_));
    told_nanos_ = std::max(told_nanos_, now_nanos);
    owed_nanos_ = 0;
    const int64_t passed = (told_nanos_ - marked_nanos_) / kMarkNanos;
    for (int64_t i = 0; i < std::min<int64_t>(passed, kMarks); ++i) {
      marks_[next_mark_] = nanos_;
      next_mark_ = (next_mark_ + 1) % kMarks;
    }
    marked_nanos_ += passed * kMarkNanos;
    return nanos_;
  }

  // Whether what was used by this clock then was used within about a second of the caller's.
  bool IsWithinSecond(int64_t used_nanos) const { return used_nanos >= marks_[next_mark_]; }

  // One of so many blocks is given up.
  void NoteGivenUp(uint32_t of_blocks) {
    owed_nanos_ += kTurnoverNanos / of_blocks;
    gave_up_ = true;
  }
  bool gave_up() const { return gave_up_; }  // Anything so far.

 private:
  // 8 s and 60 s were as good, on loads of all kinds.
  static constexpr double kTurnoverNanos = 20e9;

  static constexpr size_t kMarks = 8;
  static constexpr int64_t kMarkNanos = 1'000'000'000 / int64_t{kMarks};

  int64_t told_nanos_ = INT64_MIN;
  int64_t nanos_ = 0;
  double owed_nanos_ = 0;  // Since the last look.
  bool gave_up_ = false;
  // What this clock said at the beginning of each eighth of the caller's last second.
  std::array<int64_t, kMarks> marks_ = [] {
    std::array<int64_t, kMarks> none{};
    none.fill(INT64_MIN);
    return none;
  }();
  size_t next_mark_ = 0;      // The oldest.
  int64_t marked_nanos_ = 0;  // When the newest was made, by the caller's.
};

}  // namespace aquifer
