// Callers that wait until everything up to a number is over: batches, or deletions, are numbered in
// the order in which they begin. There may be thousands: they are told a slice at a time.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace aquifer {

class Barriers {
 public:
  void Add(uint64_t last, std::function<void()> on_done) {
    waits_.emplace(last, std::move(on_done));
  }

  // Everything before `oldest` is over. Whoever waited for no more than that is told, or some of
  // them: true when it is to be called again, by another task.
  [[nodiscard]] bool Settle(uint64_t oldest) {
    for (size_t told = 0; !waits_.empty() && waits_.begin()->first < oldest; ++told) {
      if (told == kSlice) return true;
      const auto first = waits_.extract(waits_.begin());
      first.mapped()();
    }
    return false;
  }

 private:
  static constexpr size_t kSlice = 16;  // Each is an answer to a caller: one to three us.

  std::multimap<uint64_t, std::function<void()>> waits_;  // By what they wait for.
};

}  // namespace aquifer
