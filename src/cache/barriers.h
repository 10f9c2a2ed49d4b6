// Callers that wait until everything up to a number is over: batches, or deletions, are numbered in
// the order in which they begin.
//
// Runs on the owner.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class Barriers {
 public:
  void Add(uint64_t last, std::function<void(Status)> on_done) {
    waits_.push_back({last, std::move(on_done)});
  }

  // Everything before `oldest` is over. Whoever waited for no more than that is told `status`.
  void Settle(uint64_t oldest, const Status& status) {
    std::vector<Wait> ready;
    std::erase_if(waits_, [&ready, oldest](Wait& wait) {
      if (oldest <= wait.last) return false;
      ready.push_back(std::move(wait));
      return true;
    });
    for (Wait& wait : ready) wait.on_done(status);
  }

 private:
  struct Wait {
    uint64_t last = 0;
    std::function<void(Status)> on_done;
  };

  std::vector<Wait> waits_;
};

}  // namespace aquifer
