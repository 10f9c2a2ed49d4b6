// What must be true of a cache, kept by someone who shares no code with it: which bytes were stored
// under which name, what was acknowledged, who may see what, who holds which memory, and by when
// everything must be answered. Engines tell it what they ask for and what they are told; it says
// when the two do not fit. The cache may always miss. It may never do what is checked here.
//
// A block's storings are numbered (its versions), and the bytes say which one they are. A version
// is *acked* when its commit was answered, and *safe* when a flush was. Versions that were deleted
// are never to be seen again. It is *durable* when a flush said so that promises a durable tier.
//
// Several nodes may share durable tiers: each has its own lives, pins, drives and clock; which
// bytes were stored and which are deleted is one truth for all. What it says of durable tiers is in
// truth_durable.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "sim/world/payload.h"

namespace aquifer {

inline constexpr BlockNumber kNoParent = UINT32_MAX;
inline constexpr uint32_t kMostNodes = 2;

struct TruthTenant {
  uint64_t dram_ceiling_bytes = UINT64_MAX;
  int64_t ttl_seconds = 0;  // 0: for ever.
  bool durable = false;     // Its class.
};

struct TruthOptions {
  std::vector<TruthTenant> tenants;
  // Nothing that is safe is ever given up: NVMe has room for all, and no drive is damaged.
  bool keeps_what_is_safe = false;
  // How long after its deadline a request may be answered: what the owner may be busy with.
  int64_t grace_nanos = 50'000'000;
  bool stores = false;                 // There are durable tiers.
  bool has_lasting = false;            // What is written to one of them is durable.
  const Clock* store_clock = nullptr;  // The stores' own calendar.
};

// What an answered flush promises, besides what was acked before.
struct FlushScope {
  uint32_t node = 0;
  bool drives = true;    // The node's drives have it.
  bool durable = false;  // A durable tier has it.
};

class Truth {
 public:
  Truth(const TruthOptions& options, const Clock* clock);
  // One clock for each node.
  Truth(const TruthOptions& options, std::vector<const Clock*> clocks);

  // The first thing that was wrong; empty while all is well.
  const std::string& violation() const { return violation_; }
  void Violate(std::string what);

  BlockNumber Add(uint32_t tenant, uint64_t bytes, BlockNumber parent);
  size_t blocks() const { return blocks_.size(); }
  uint32_t tenant(BlockNumber block) const { return blocks_[block].tenant; }

  // ---- Requests. ----

  using RequestNumber = uint64_t;
  // `what` outlives it. A timeout of INT64_MAX: some time.
  RequestNumber Asked(const char* what, int64_t timeout_nanos, uint32_t node = 0);
  void Answered(RequestNumber request);
  // Nobody waits for it any more.
  void Forgotten(RequestNumber request);

  // ---- Storing. ----

  // A slot was lent to be filled. Returns the version to write. `extent` names the memory's extent.
  uint32_t Reserved(BlockNumber block, std::span<const std::byte> slot, uint64_t extent,
                    RequestNumber request);
  // Before the commit: the bytes are written, and from now on nobody's.
  void CommitSent(const Payload& payload, std::span<const std::byte> slot);
  void Committed(const Payload& payload, bool published);
  // Aborted, or its client is gone; `slot` is nobody's from now on.
  void GaveUp(const Payload& payload, std::span<const std::byte> slot);

  // ---- Recalling. ----

  void Matched(BlockNumber block, RequestNumber request);
  // A reservation was answered with "it is there".
  void Had(BlockNumber block, RequestNumber request);
  void Served(BlockNumber block, std::span<const std::byte> bytes, uint64_t extent,
              RequestNumber request);
  void Released(std::span<const std::byte> bytes);
  // Asked for, and neither there nor late. `calm`: no fault could excuse it. `stores_calm`: the
  // durable tiers were asked too, and no fault of theirs could excuse it.
  void Missed(BlockNumber block, RequestNumber request, bool calm, bool stores_calm = false);
  // Read, and damaged.
  void Corrupt(BlockNumber block);

  // ---- Care. ----

  // A moment to come back to: everything acked so far lies before it.
  uint64_t Moment() { return ++moment_; }
  // With ok, what the tenant acked between the two is safe. A client knows only of what was lost
  // since it was there.
  void Flushed(uint32_t tenant, uint64_t attached, uint64_t sent, Code code,
               const FlushScope& scope = {});
  // The request deletes these blocks and all below them, or all that the tenant has. Until it is
  // answered they may or may not be there, also what is stored meanwhile; the same where it never
  // is.
  void EvictSent(RequestNumber request, std::span<const BlockNumber> blocks);
  void EvictAllSent(RequestNumber request, uint32_t tenant);
  // Before it is answered, with ok: what was acked before it was sent is gone for good.
  void Evicted(std::span<const BlockNumber> blocks, RequestNumber request);
  // A reader said that it is corrupt.
  void ReportedCorrupt(BlockNumber block) { Spoil(block); }
  // Of a chain from its root on. These blocks may expire in `ttl_seconds`, and may have got that
  // into them just now; the last one surely, if it is there and no other chain shares it.
  void Hinted(std::span<const BlockNumber> blocks, int64_t ttl_seconds, uint32_t node = 0);
  // Sent for a chain from its root on: what was promised of these is open again, until it is
  // answered. 0 seconds: their pins are taken away.
  void PinSent(std::span<const BlockNumber> blocks, int64_t seconds, uint32_t node = 0);
  // Before it is answered, and only if every one of them was there: none is evicted for so long.
  // `calm`: no fault could excuse it.
  void Pinned(std::span<const BlockNumber> blocks, int64_t seconds, RequestNumber request,
              bool calm);

  // ---- Faults. ----

  // Every client of the node is gone. `lost_writes`: what was acknowledged may be lost, too.
  void Died(bool lost_writes, uint32_t node = 0);
  // Bytes on a drive changed by themselves.
  void Damaged();
  bool damaged() const { return damaged_; }
  // A drive may lose what it cannot move out of the way.
  void Disturbed(uint32_t node = 0);
  void Suspended(int64_t nanos);
  void CalendarSet(uint32_t node = 0);

  // ---- Durable tiers. ----

  // The node asked for these, or was given them: it may have copies of its own from now on.
  void Touched(std::span<const BlockNumber> blocks, uint32_t node);
  // Another host took the node's place: it has no copy of anything.
  void NodeReplaced(uint32_t node);
  // What the stores have may be damaged or gone. Nodes may believe otherwise until `nanos`.
  void StoresDamaged(int64_t until_nanos);
  bool stores_damaged() const { return stores_damaged_; }
  // The tenant's data key is being destroyed: what was acked before is gone in the end.
  void KeyDestroyed(uint32_t tenant);
  // From now on what was acked before that moment is not to be seen on that node.
  void KeyIsGone(uint32_t tenant, uint64_t destroyed, uint32_t node);
  // Whether a flush of that tier promises a durable one.
  bool PromisesDurable(uint32_t tenant, TierKind tier) const {
    return options_.has_lasting && (tier == TierKind::kDurable || options_.tenants[tenant].durable);
  }
  // By a hint on that node: the session ends with the last of these blocks now. `durable`: its
  // class.
  void SessionNamed(uint32_t tenant, const std::string& name, std::span<const BlockNumber> blocks,
                    uint32_t node, bool durable);
  // It was asked for by its name alone, and so many of its blocks were found.
  void SessionFound(const std::string& name, size_t found, RequestNumber request, uint32_t tenant,
                    bool stores_calm);
  // A durable tier must give it to whoever asks now.
  bool MustBeDurable(BlockNumber block, RequestNumber request) const;

  // ---- Checks. ----

  // After every step.
  void CheckDeadlines();
  // Every block that is lent still holds what it should.
  void CheckLoans();
  uint64_t lent_bytes(uint32_t tenant, uint32_t node = 0) const {
    return lent_bytes_[PlaceOf(tenant, node)];
  }
  size_t loans() const { return loans_.size(); }
  // It, and everything above it, is safe: it must be found.
  // `before`: since that moment at least.
  bool MustHave(BlockNumber block, uint64_t before = UINT64_MAX, uint32_t node = 0) const;

 private:
  enum class State : uint8_t {
    kWriting,
    kSent,   // May or may not be published.
    kAcked,  // Published.
    kVoid,   // Never to be seen.
  };
  struct Version {
    State state = State::kWriting;
    uint32_t life = 0;
    uint32_t node = 0;               // That stored it.
    bool safe = false;               // On that node's drives.
    uint64_t safe_since = 0;         // A moment.
    uint64_t acked = 0;              // When: a moment.
    uint64_t deleted = 0;            // When that was answered; 0: it was not.
    int64_t expires_by = INT64_MAX;  // Unix seconds; over all that its expiry ever was.
    int64_t hinted_by = INT64_MAX;   // The same since a hint that surely reached it, in this life.
    // What is stored again while its drive is away keeps the sooner of its old time and its own.
    bool may_expire = false;
    uint64_t deleted_by = 0;  // The node whose deletion that was.
    bool durable = false;
    uint64_t durable_since = 0;  // A moment.
    int64_t durable_nanos = 0;   // The same in time.
    int64_t reserved_nanos = 0;
    int64_t lasts_until = INT64_MAX;  // Unix seconds; its expiry is no sooner.
  };
  struct Pin {
    uint64_t pinned = 0;  // Moment; 0: it is not.
    uint64_t since = 0;   // Moment: without a gap, with everything above it; 0: it is not.
    int64_t until = 0;    // Unix seconds.
  };
  struct Block {
    uint32_t tenant = 0;
    uint64_t bytes = 0;
    BlockNumber parent = kNoParent;
    std::vector<BlockNumber> children;
    std::vector<Version> versions;  // Version 1 is the first.
    uint64_t spoiled = 0;           // Moment: what was acked before may be given up.
    uint32_t evictions = 0;         // Open ones that name it.
    // It may have got an expiry by a hint, no later one than this; Unix seconds. 0: none.
    int64_t hinted_until = 0;
    std::array<Pin, kMostNodes> pins{};  // By node.
    // Moments: when each node first may have got a copy of it; 0: it has none.
    std::array<uint64_t, kMostNodes> touched{};
    int64_t doubted_until_nanos = 0;  // Only what is stored after that is durable again.
  };
  struct Session {
    std::vector<BlockNumber> blocks;  // As it was named last.
    uint32_t node = 0;                // That named it.
    uint64_t named = 0;               // A moment.
    bool by_several = false;          // Nodes.
    bool durable = false;   // Its class; false also once something of the tenant's is deleted.
    uint64_t promised = 0;  // Moment: since a flush said so, its name is enough; 0: none did.
    std::array<uint32_t, kMostNodes> heard{};  // By node: in which life it last heard of it.
  };
  // What was acked before `destroyed` is not to be seen by requests after `gone`; moments.
  struct EndOfKey {
    uint64_t destroyed = 0;  // 0: it never was.
    uint64_t gone = 0;
  };
  // Memory that an engine holds.
  struct Loan {
    Payload payload;
    uint32_t node = 0;
    uint64_t bytes = 0;
    uint32_t readers = 0;  // 0: it is being written.
  };
  struct OpenRequest {
    const char* what = nullptr;
    uint32_t node = 0;
    uint64_t asked = 0;  // A moment.
    int64_t asked_nanos = 0;
    int64_t due_nanos = 0;
    int64_t unix_low = 0;  // The calendar since it was asked.
    int64_t unix_high = 0;
    std::vector<BlockNumber> evicts;        // With all below them.
    std::optional<uint32_t> evicts_all_of;  // A tenant.
  };

  Version& At(const Payload& payload) {
    return blocks_[payload.block].versions[payload.version - 1];
  }
  std::string NameOf(BlockNumber block) const;
  // Deleted before the request was made. What is deleted later may have been lent to it by then.
  bool Deleted(const Block& block, const Version& version, const OpenRequest& request) const;
  // The same by the end of its tenant's key.
  bool KeyGone(const Block& block, const Version& version, const OpenRequest& request) const;
  // Null: it may be there.
  const char* WhyNotThere(BlockNumber block, const OpenRequest& request) const;
  bool AnyBelowIsThere(BlockNumber block, const OpenRequest& request) const;
  // Unix seconds; after that the version is not to be seen.
  static int64_t Expiry(const Version& version) {
    return std::min(version.expires_by, version.hinted_by);
  }
  // It is pinned since before the request, with everything above it, and nothing else took it.
  bool MustStay(BlockNumber block, const OpenRequest& request) const;
  static void Unpin(Block* block, uint32_t node) { block->pins[node] = {}; }
  void UnpinAll(uint32_t node);
  int64_t UnixSeconds(uint32_t node) const { return clocks_[node]->UnixSeconds(); }
  size_t PlaceOf(uint32_t tenant, uint32_t node) const {
    return node * options_.tenants.size() + tenant;
  }
  void SessionsFlushed(uint32_t tenant, uint64_t sent, uint32_t node);
  void ForgetSessions(uint32_t tenant);
  void FlushedDurable(uint32_t tenant, uint64_t attached, uint64_t sent, uint32_t node);
  void Spoil(BlockNumber block);
  void SpoilBelow(std::span<const BlockNumber> blocks);  // And these.
  void EndEviction(const OpenRequest& request);
  void Lend(const Payload& payload, std::span<const std::byte> memory, uint64_t extent,
            bool writing, uint32_t node);
  void Return(std::span<const std::byte> memory);
  void SetDue(RequestNumber number, OpenRequest* request, int64_t due_nanos);

  const TruthOptions options_;
  const std::vector<const Clock*> clocks_;  // By node.
  std::string violation_;
  std::vector<Block> blocks_;
  std::map<const std::byte*, Loan> loans_;       // By where they begin.
  std::map<uint64_t, uint32_t> extent_tenants_;  // An extent never changes its tenant.
  std::vector<uint64_t> lent_bytes_;             // By node and tenant, in whole pages.
  std::map<RequestNumber, OpenRequest> requests_;
  std::set<std::pair<int64_t, RequestNumber>> due_;               // By deadline.
  std::map<std::pair<uint32_t, std::string>, Session> sessions_;  // By tenant and name.
  RequestNumber next_request_ = 1;
  uint64_t moment_ = 0;
  // By node and tenant: what was acked before may have been lost.
  std::vector<uint64_t> lost_before_;
  std::vector<uint64_t> durable_lost_before_;
  std::vector<EndOfKey> key_gone_;   // The same.
  std::vector<uint32_t> evictions_;  // By tenant: open ones of all it has.
  std::vector<uint32_t> lives_;      // By node: which one this is, of all that there were.
  uint32_t last_life_ = 0;
  bool damaged_ = false;
  bool stores_damaged_ = false;
};

}  // namespace aquifer
