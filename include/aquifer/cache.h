// The cache, as an engine sees it. Open() runs it inside this process; Connect() reaches the
// node's, which every engine of the host shares. Both give this interface.
//
// A Cache object is one client: one tenant and one engine (or one rank of one). Use it from one
// thread at a time; give each thread its own with Join().
//
// Every call takes a request that the caller owns, returns at once, and answers by filling the
// request in. done() and completed() change only inside Poll() and Wait(), on the caller's thread,
// so no lock is needed. Until done() the caller leaves the request, and what its spans point to,
// where they are, and reads no answer but those of the first completed() operations. Operations of
// one request complete in the order given, so that a caller can copy the first blocks while the
// last are still being read.
//
//     Cache::  Match ─► Fetch ─► (copy or use in place) ─► Release          recall
//              Reserve ─► (write KV into the slots) ─► Commit               store
//
// The cache may always answer "miss". It never answers with wrong bytes, and never later than the
// deadline that a request carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/checksum.h"
#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "aquifer/status.h"

namespace aquifer {

// Where a block is. The order is from near to far. Peers are to come.
enum class TierKind : uint8_t { kDram = 0, kNvme = 1, kPeer = 2, kDurable = 3 };

// Given by RegisterLayout; good for this client only.
using LayoutHandle = uint32_t;

// Names a lent slot: a lease to read, or a reservation to fill. Never reused by one client; 0 names
// nothing.
using LeaseId = uint64_t;
using ReservationId = uint64_t;

inline constexpr int64_t kDefaultTimeoutNanos = 1'000'000'000;

// What every request has. Make a request once and use it again and again: its vectors keep their
// memory.
class Request {
 public:
  virtual ~Request() = default;
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bool done() const { return done_; }
  // How many operations are answered, from the front. The answers behind them are not to be read.
  size_t completed() const { return completed_; }

  // About the request as a whole: kInvalid and a reason when it was refused unread, kBusy when this
  // client has too much under way, kUnavailable when the cache is closed. Otherwise ok, even when
  // every operation in it failed.
  Status status;

 private:
  friend class RequestProgress;  // The implementations' door.
  bool done_ = true;
  bool cancelled_ = false;
  size_t completed_ = 0;
  int64_t called_nanos_ = 0;
};

// Which blocks a request speaks of: a run of a chain, in one kv group.
struct ChainSlice {
  LayoutHandle layout = 0;
  uint16_t group = 0;
  uint16_t part = 0;  // 0 unless the ranks of one engine span hosts.
  std::span<const Key> keys{};
};

struct RegisterLayoutRequest : Request {
  Layout layout;
  LayoutHandle handle = 0;  // Answer.
};

// --- Recall ------------------------------------------------------------------------------------

enum class RunState : uint8_t {
  kReady = 0,        // Fetch will find it.
  kBeingFilled = 1,  // Another engine computes it right now. Ask again after about `estimated_ms`.
  kPending = 2,      // A durable tier has been asked and has not answered yet. Ask again.
};

// Neighbouring blocks in the same state and tier.
struct MatchRun {
  size_t first = 0;  // Index into keys.
  size_t count = 0;
  TierKind tier = TierKind::kDram;
  RunState state = RunState::kReady;
  double estimated_ms = 0;  // To load this run alone, as things are now.
};

// A match ends where there would be more runs than this: ask for the rest with `have`.
inline constexpr size_t kMaxMatchRuns = 16'384;

// How much of a chain is there. Answered from memory; reads nothing and lends nothing. Where there
// are durable tiers and memory does not know all of the chain, they are asked for the rest, for no
// longer than that could gain, and 100 ms at most.
struct MatchRequest : Request {
  ChainSlice chain;
  size_t have = 0;  // The engine holds this many blocks of the chain itself and wants none of them.

  size_t matched = 0;          // Blocks that can be fetched, from keys[have] on without a gap.
  std::vector<MatchRun> runs;  // Of those, and then at most one that is not ready.
  // Loading beats recomputing for keys[have, have + pays); what lies behind is better recomputed.
  size_t pays = 0;
  double load_ms = 0;       // For keys[have, have + pays).
  double recompute_ms = 0;  // For the same blocks; 0 while nothing was reported (ReportPrefill).
};

struct FetchOp {
  // kNotFound: a miss. kLate: not by the deadline. kCorrupt: it was there, and is no more.
  Status status;
  std::span<const std::byte> bytes;  // The block, in place, until the lease is released.
  LeaseId lease = 0;
  Checksum checksum;  // Of `bytes`. A reader may check it in the pass that copies.
  TierKind tier = TierKind::kDram;
};

// Lends blocks, bringing them to DRAM first where needed. Each operation has its own status; one
// block's failure is its own.
struct FetchRequest : Request {
  ChainSlice chain;
  int64_t timeout_nanos = kDefaultTimeoutNanos;  // From the call on. Every operation is answered.

  std::vector<FetchOp> ops;  // One for each key, made by Fetch().
};

struct ReleaseOp {
  LeaseId lease = 0;
  bool corrupt = false;  // The reader's own check failed: the block is dropped and counted.
};

// --- Store -------------------------------------------------------------------------------------

enum class Refusal : uint8_t {
  kNone = 0,
  kFull = 1,      // No memory that could be freed now. Not an error: this block is not kept.
  kQuota = 2,     // The tenant's own ceiling.
  kWarming = 3,   // Memory is being prepared; a later block may fit.
  kDraining = 4,  // The node is shutting down.
  kTooMany = 5,   // This client holds too many reservations.
};

std::string_view RefusalName(Refusal refusal);

enum class ReserveOutcome : uint8_t {
  kRefused = 0,  // See `refusal`.
  // It is there already. Write nothing. (What only a drive has that is out of service does not
  // count: it has to be computed, and may be stored again.)
  kHave = 1,
  kBeingFilled = 2,  // Another engine fills it, for about `wait_ms` more.
  kSlot = 3,         // Write the block into `slot`, then Commit or Abort.
};

struct ReserveOp {
  ReserveOutcome outcome = ReserveOutcome::kRefused;
  Refusal refusal = Refusal::kNone;
  double wait_ms = 0;
  ReservationId reservation = 0;
  std::span<std::byte> slot;  // Exactly one block.
};

// Asks for slots to store blocks in. Ranks of one engine that reserve the same key get the same
// slot, and each writes its own heads.
struct ReserveRequest : Request {
  ChainSlice chain;
  Key parent;                               // Of keys[0]: the key before it, or the root.
  uint32_t position = 0;                    // Which block of its chain keys[0] is.
  std::span<const uint64_t> engine_hashes;  // The engine's own names, one a key; or empty.

  std::vector<ReserveOp> ops;  // One for each key, made by Reserve().
};

struct CommitOp {
  ReservationId reservation = 0;
  // The heads that this client wrote, and the sums over their bytes at their places in the block.
  // A client that wrote the whole block leaves {0, 0}: all heads.
  uint32_t head_begin = 0;
  uint32_t head_end = 0;
  LaneSums sums;

  // Answer. kInvalid: unknown, void or overlapping. kNoSpace: it was deleted meanwhile, and the
  // index has no place for it.
  Status status;
  bool published = false;  // Answer. Every head is there: from now on the block is served.
};

// Publishes what was written, each block at once and whole.
struct CommitRequest : Request {
  std::vector<CommitOp> ops;
};

// --- Care --------------------------------------------------------------------------------------

// Everything that this client's tenant committed before the call has reached the tier, and so have
// the times to live that this client hinted: with ok, it survives what the tier survives. Otherwise
// kLate, or what kept it from getting there. Blocks of durable class (Durability) have reached a
// durable tier too, whatever `tier` says but kDram; with kDurable all blocks have, of any class.
//
// In a cache without NVMe, kNvme waits for what is to be durable: ok where that is all that the
// tenant has, else kUnavailable, and the message says how many blocks are in memory alone. The same
// where a durable tier has to say, after a restart, whether some are of a session that is to be
// durable, and none can.
//
// In a cache with NVMe, kUnavailable also where blocks were stored again that a drive has which is
// out of service, until all drives are in service.
struct FlushRequest : Request {
  TierKind tier = TierKind::kNvme;
  int64_t timeout_nanos = 10 * kDefaultTimeoutNanos;
};

inline constexpr int8_t kLeastPriority = -8;  // First to go.
inline constexpr int8_t kMostPriority = 7;    // Last.

enum class SessionState : uint8_t { kUnknown = 0, kWillContinue = 1, kFinished = 2 };

// What is to outlive the node. Of a tenant's blocks, or of a session's in spite of its tenant's.
enum class Durability : uint8_t {
  kNone = 0,     // What the node holds is lost with it.
  kDurable = 1,  // Written to the durable tiers, which other nodes read too.
};

// What the caller knows about the future. Improves what is kept; never needed.
struct SessionForecast {
  std::string session{};  // The caller's name for a chain that grows; 1 to 256 bytes.
  ChainSlice chain{};     // The chain's last key is enough.
  SessionState state = SessionState::kUnknown;
  int8_t priority = 0;      // kLeastPriority to kMostPriority; 0: as usual for the tenant.
  int64_t ttl_seconds = 0;  // The chain's blocks go after that, or by the tenant's rule if sooner.
  // kNone: as the tenant's. kDurable: the chain's blocks are durable, and so is what it goes on
  // with from its last one; a later kNone does not undo that.
  Durability durability = Durability::kNone;
  int64_t return_seconds = 0;  // When it goes on, of kWillContinue; 0: nobody knows.
};

// How long the engine took to compute, so that the cache can tell what is worth loading.
struct PrefillReport {
  LayoutHandle layout = 0;
  uint32_t tokens = 0;          // Computed.
  uint32_t context_tokens = 0;  // In front of them.
  double milliseconds = 0;
};

// Keeps blocks from being evicted for some time. Pins count against the tenant's ceiling.
struct PinRequest : Request {
  ChainSlice chain;
  int64_t seconds = 0;  // 0 takes the pin away.

  size_t pinned = 0;  // How many of the keys were there.
};

// Brings blocks to DRAM ahead of a Fetch and lends nothing. By chain, or by session. kNoSpace: no
// DRAM is free, and half of the tenant's holds what was prestaged and not fetched yet.
struct PrestageRequest : Request {
  ChainSlice chain;
  std::string session;  // Used when chain.keys is empty.
  int64_t timeout_nanos = 10 * kDefaultTimeoutNanos;

  size_t found = 0;   // Blocks known under that name.
  size_t staged = 0;  // Of those, in DRAM when the request completed.
};

// Deletes: when it completes with ok, the blocks are gone from every tier, for good. Whoever still
// leases one keeps the bytes until the release. kUnavailable: a drive is out of service, and what
// it may hold is deleted when it is back. kBusy: so much waits for it already that some of these
// blocks are not remembered; evict them again once it is back. kNotFound: there is no such session,
// or it is not known any more which blocks its chain had above those that are gone; give the keys.
//
// A session's blocks are those of its chain, and what followed its last one since it was named.
// What another session has, or another chain hangs below, stays.
struct EvictRequest : Request {
  ChainSlice chain;
  std::string session{};    // Used when chain.keys is empty: the session's whole chain.
  bool everything = false;  // All that the tenant has, and how it named its sessions.

  size_t evicted = 0;
};

// Before the process that holds the cache ends: writes everything not yet safe to the lower tiers,
// hottest first, and takes no new blocks from then on. It is of the cache, not of one tenant: the
// blocks of every tenant are written, and nobody stores any more (Refusal::kDraining). A tenant
// that only wants to know its own blocks safe calls Flush().
struct DrainRequest : Request {
  int64_t timeout_nanos = 30 * kDefaultTimeoutNanos;

  size_t left = 0;  // Blocks that are still only in DRAM.
};

struct DriveStats {
  std::string directory{};
  bool in_service = true;
  bool writable = true;
  // Why it is not in service, or not writable; or what could not be read of it at the start.
  std::string why{};
};

struct TierStats {
  TierKind tier = TierKind::kDram;
  bool in_service = true;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t blocks = 0;
  uint64_t tenant_bytes = 0;  // Of the asking tenant.
  double read_gbps = 0;       // Observed; 0: nothing yet.
  // NVMe: one a directory, in the order of the options. A durable tier: one, which has its name.
  std::vector<DriveStats> drives{};
};

struct CacheStats {
  std::vector<TierStats> tiers;
  // By name, in a fixed order: "fetch_hits_dram", "corrupt_blocks", "owner_longest_task_us", ...
  // docs/operating/metrics.md lists them.
  std::vector<std::pair<std::string, uint64_t>> counters;

  uint64_t Counter(std::string_view name) const;  // 0 when there is none of that name.
};

struct StatsRequest : Request {
  CacheStats stats;
};

struct ClientOptions {
  std::string tenant = "local";  // 1 to 64 bytes.
  // One id for all ranks of an engine; a restarted engine takes a new one. Empty: a random one.
  std::string engine{};
};

class Cache {
 public:
  // Releases what this client still holds: nobody may touch its slots any more.
  virtual ~Cache() = default;

  // Another client of the same cache.
  virtual Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) = 0;

  virtual void RegisterLayout(RegisterLayoutRequest* request) = 0;
  virtual void Match(MatchRequest* request) = 0;
  virtual void Fetch(FetchRequest* request) = 0;
  virtual void Reserve(ReserveRequest* request) = 0;
  virtual void Commit(CommitRequest* request) = 0;
  virtual void Flush(FlushRequest* request) = 0;
  virtual void Pin(PinRequest* request) = 0;
  virtual void Prestage(PrestageRequest* request) = 0;
  virtual void Evict(EvictRequest* request) = 0;
  virtual void Drain(DrainRequest* request) = 0;
  virtual void Stats(StatsRequest* request) = 0;

  // These need no answer: what they name and is not there is ignored. Hints and reports are
  // dropped, and counted ("dropped_notes"), while this client has too many of them under way.
  virtual void Release(std::span<const ReleaseOp> leases) = 0;
  virtual void Abort(std::span<const ReservationId> reservations) = 0;
  virtual void Hint(const SessionForecast& forecast) = 0;
  virtual void ReportPrefill(const PrefillReport& report) = 0;

  // Settles what is open of the request with kLate, soon. It still completes through Poll().
  virtual void Cancel(Request* request) = 0;

  // Applies what has arrived. Returns how many requests moved on.
  virtual size_t Poll() = 0;

  // For select, poll and epoll: readable when there is something new since Poll() last returned 0.
  virtual int event_fd() const = 0;

  // Polls until the request is done or the time is over; true when it is done.
  virtual bool Wait(const Request& request, int64_t timeout_nanos = INT64_MAX) = 0;
};

// --- In this process ---------------------------------------------------------------------------

struct TenantOptions {
  std::string name{};
  uint64_t dram_floor_bytes = 0;  // Never evicted below this for another tenant's sake.
  // Memory goes to a tenant by extents of 64 MiB that hold blocks of one size: it has at most as
  // many as this takes, rounded up.
  uint64_t dram_ceiling_bytes = UINT64_MAX;
  uint64_t nvme_floor_bytes = 0;
  uint64_t nvme_ceiling_bytes = UINT64_MAX;
  int64_t ttl_seconds = 0;  // 0: blocks do not expire.
  int8_t priority = 0;  // Of blocks of which no hint says another; kLeastPriority to kMostPriority.
  Durability durability = Durability::kNone;  // Of blocks of which no hint says more.
};

enum class NvmeEngine : uint8_t { kAuto, kUring, kThreads };

// Which blocks go first when there is no room.
enum class EvictionPolicy : uint8_t {
  kLearned =
      0,  // Those least likely to be asked for again soon, as it has learned from what was asked.
  kLru = 1,  // Those used longest ago.
};

inline constexpr uint32_t kMaxWorkerThreads = 1024;

struct CacheOptions {
  uint64_t dram_bytes = uint64_t{1} << 30;
  // Left free for the rest of the host, whatever dram_bytes says.
  uint64_t keep_available_bytes = uint64_t{512} << 20;

  // One directory a drive; blocks are striped over them. Empty: no NVMe tier.
  std::vector<std::string> nvme_directories;
  uint64_t nvme_bytes = uint64_t{8} << 30;  // Over all of them, metadata included.
  bool nvme_sync = false;                   // Survive power loss too.
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
  uint64_t nvme_segment_bytes = 0;  // 0: chosen from nvme_bytes.
  // How fast NVMe is written to, what it rewrites to make room included; 0: no limit. Only what a
  // Flush() or Drain() waits for is written beyond it, and slows down what comes later. Where more
  // is stored than that, kLearned writes the blocks most likely to be asked for again; with kLru
  // they are written in the order of their storing, those that DRAM still has.
  uint64_t write_bytes_per_second = 0;
  // How much of what is stored is written to NVMe, to make drives last: above 0, at most 1. Less
  // than 1 needs kLearned: the blocks most likely to be asked for again are written. What a Flush()
  // or Drain() waits for, and what is pinned or to be durable, is written in any case.
  double nvme_written_part = 1;

  std::vector<TenantOptions> tenants;  // Others get the defaults.
  EvictionPolicy eviction = EvictionPolicy::kLearned;

  uint32_t worker_threads = 2;  // 1 to kMaxWorkerThreads.
  // Reservations held longer are void, and counted; leases held longer are only counted
  // ("overdue_reservations", "overdue_leases"). A node also cuts their holder off: see Connect().
  int64_t overdue_nanos = 60 * kDefaultTimeoutNanos;
  // Milliseconds to prefill one token, used until an engine has reported; 0: loading always pays.
  double assumed_prefill_ms_per_token = 0;
};

// Returns when the cache serves; what NVMe held before is found again by then. A drive that cannot
// be used (a read-only directory, one that another process has, one that hangs) stops neither the
// cache nor the other drives: Stats() shows it out of service and why, it is tried again, and its
// blocks come when it does. Wrong options are kInvalid, with what to change.
Result<std::unique_ptr<Cache>> Open(const CacheOptions& options, const ClientOptions& client);

// --- The node's ----------------------------------------------------------------------------------

struct ConnectOptions {
  // Empty: $AQUIFER_SOCKET, else the first of /run/aquifer/node.sock, $XDG_RUNTIME_DIR/aquifer.sock
  // and /tmp/aquifer-<uid>/node.sock that is there.
  std::string socket{};
  std::string token{};  // Where the node has a tenants file.
  // Store and load nothing: all is a miss, and the node only records what is asked for. Flush,
  // Evict and Drain are kInvalid.
  bool observe = false;
  int64_t timeout_nanos = 5 * kDefaultTimeoutNanos;  // For the first connection.
};

// The cache of the host's node, which must be there. When it goes away later, everything that is
// asked for is missing (kUnavailable) until it is back; the client finds it again by itself. Bytes
// that were leased stay what they were until they are released; a commit into slots that were
// reserved from a node that is gone is refused.
//
// A node that hangs keeps nobody waiting: a request is done at its deadline, or a twentieth of a
// second later, and a node that takes nothing for five to seven seconds counts as gone.
//
// Whoever holds one lease or reservation for longer than the node's `overdue` (a minute, where its
// configuration says nothing else) is cut off: all of its open requests are kUnavailable, and all
// of its reservations are void, for the other ranks of its engine too. It connects again by itself
// and at once; its leases stay good until they are released. Who reads for longer copies the
// blocks, or releases them and fetches them again in time.
Result<std::unique_ptr<Cache>> Connect(const ConnectOptions& options, const ClientOptions& client);

}  // namespace aquifer
