// What a policy may know of a block: numbers only, filled in by the cache from its index. The
// recency policy reads few of them; a learned one reads them all.
#pragma once

#include <cstdint>

namespace aquifer {

enum class SessionHint : uint8_t {
  kNone,      // Nothing is known.
  kExpected,  // The session is likely to go on: an agent in mid-loop, a chat on screen.
  kEnded,     // The caller said that it will not come back.
  // The same as kExpected, and the caller said when.
  kWithinMinute,
  kWithinTenMinutes,
  kWithinHour,
  kLater,
};

// Of a session that goes on in about so long; 0: nobody knows when.
SessionHint ExpectedIn(int64_t seconds);

struct BlockFeatures {
  // Bits of the block's name, well mixed: equal for one block over its lives, and hardly ever for
  // two. 0: not known.
  uint64_t name = 0;
  uint64_t parent_name = 0;  // Of the block before it in its chain.
  // Whose share it counts against: in DRAM one of the tenant's pools (cache/residency/catalog.h).
  uint16_t tenant = 0;
  uint16_t layout = 0;
  int8_t priority = 0;  // 0 is usual; lower ones go first. A caller's hint, or the tenant's.
  SessionHint session = SessionHint::kNone;
  uint32_t position = 0;  // Which block of its chain it is.
  uint32_t children = 0;  // How many chains go on from here.
  uint32_t turns = 0;     // How often it was used since it was stored: 0 is new.
  uint64_t bytes = 0;
  int64_t born_nanos = 0;  // When it was stored.
  // What having it in the tier saves when it is asked for, as its owner's engines say; 0: not
  // known.
  double saved_ms = 0;
  uint16_t owner = 0;  // The tenant itself, where `tenant` is one of its pools.
};

}  // namespace aquifer
