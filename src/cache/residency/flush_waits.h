// Callers that flush, each until the blocks that were stored before are written. There may be
// thousands of them: nothing here looks at more than it hands out.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class FlushWaits {
 public:
  static constexpr uint16_t kEveryone = UINT16_MAX;  // No tenant has this number.

  struct Wait {
    uint16_t tenant = 0;
    uint32_t client = 0;
    std::function<void(Status)> on_done;
  };
  struct Id {
    uint16_t of = 0;
    uint64_t number = 0;
  };

  // For what `of` has stored up to that sequence, which never falls from one to the next.
  Id Add(uint16_t of, uint64_t sequence, Wait wait);
  // It waits no more.
  void End(const Id& id);

  bool empty() const { return for_blocks_.empty(); }
  // Whose blocks are waited for.
  std::vector<uint16_t> Whose() const;
  // The last of the sequences that are waited for; 0: nobody waits.
  uint64_t LastOf(uint16_t of) const;
  // Somebody waits for that one of the tenant's.
  bool WaitsFor(uint16_t tenant, uint64_t sequence) const {
    return LastOf(kEveryone) > 0 || sequence <= LastOf(tenant);
  }
  // All who are here now wait for everything up to there.
  void WaitUntil(uint64_t sequence);

  // The first that waits for `of`, if its blocks are all written; `oldest_unwritten` is the first
  // block of `of` that is not.
  std::optional<Wait> TakeWritten(uint16_t of, uint64_t oldest_unwritten);

 private:
  struct ForBlocks {
    uint64_t sequence = 0;
    Wait wait;
  };
  using ByNumber = std::map<uint64_t, ForBlocks>;

  uint64_t SequenceOf(const ByNumber::value_type& waiting) const;

  std::map<uint16_t, ByNumber> for_blocks_;  // By whose they wait for; none is empty.
  uint64_t next_ = 1;
  // Whoever has a number below this waits at least for that.
  uint64_t postponed_number_ = 0;
  uint64_t postponed_sequence_ = 0;
};

}  // namespace aquifer
