// Who has pinned which block, and until when. A pin keeps a block from being evicted; every pin has
// an owner (a session, a tenant's standing order) and an expiry, and several owners may pin one
// block. The cache counts pins in its index and undoes what Expire() and Remove() report.
//
// Bounded. Pins end in a fixed order: by expiry, then block, then owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace aquifer {

inline constexpr int64_t kPinnedForever = INT64_MAX;

struct BlockPin {
  uint32_t ref = 0;
  uint64_t owner = 0;

  friend auto operator<=>(const BlockPin&, const BlockPin&) = default;
};

struct PinTableOptions {
  size_t max_pins = 1 << 20;
};

class PinTable {
 public:
  explicit PinTable(const PinTableOptions& options);

  enum class Added : uint8_t {
    kNew,
    kKnown,  // The owner had pinned it already: only the expiry changed.
    kFull,
  };
  // A time in any unit, as long as Expire() gets the same: Unix seconds in the cache.
  Added Add(const BlockPin& pin, int64_t until);

  // False: there was none.
  bool Remove(const BlockPin& pin);
  // All pins on a block that is gone; returns how many there were.
  size_t RemoveAll(uint32_t ref);

  // Ends what expired by `now` and writes it to `pins`, at most as many as fit; returns how many.
  size_t Expire(int64_t now, std::span<BlockPin> pins);

  bool Contains(const BlockPin& pin) const { return until_.contains(pin); }
  size_t size() const { return until_.size(); }

 private:
  struct Ending {
    int64_t until = 0;
    BlockPin pin;
    friend auto operator<=>(const Ending&, const Ending&) = default;
  };
  void Erase(std::map<BlockPin, int64_t>::iterator found);

  const PinTableOptions options_;
  std::map<BlockPin, int64_t> until_;
  std::set<Ending> endings_;
};

}  // namespace aquifer
