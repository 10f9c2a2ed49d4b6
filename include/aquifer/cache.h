// The cache, as an engine sees it. Open() runs it inside this process; Connect() reaches the
// node's, which every engine of the host shares. Both give this interface.
//
// A Cache object is one client: one tenant and one engine (or one rank of one). Use it from one
// thread at a time; give each thread its own with Join().
//
// Every call takes a request that the caller owns, returns at once, and answers by filling the
// request in. done() and completed() change only inside Poll() and Wait(), on the caller's thread,
// so no lock is needed. Until done(), the caller must not move the request or the memory that its
// spans point to. It reads only the answers of the first completed() operations. Operations of one
// request complete in the order given. A caller can therefore copy the first blocks while the last
// are still being read.
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

// Given by RegisterLayout; valid for this client only.
using LayoutHandle = uint32_t;

// Names a lent slot: a lease to read, or a reservation to fill. Never reused by one client; 0 names
// nothing.
using LeaseId = uint64_t;
using ReservationId = uint64_t;

inline constexpr int64_t kDefaultTimeoutNanos = 1'000'000'000;

// The base of every request. Make a request once and use it again and again: its vectors keep their
// memory.
class Request {
 public:
  virtual ~Request() = default;
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bool done() const { return done_; }
  // How many operations are answered, from the front. Do not read the answers behind them.
  size_t completed() const { return completed_; }

  // Outcome of the whole request. kInvalid: it was refused unread, with a reason. kBusy: this
  // client has too many requests under way. kUnavailable: the cache is closed. Otherwise ok, even
  // when every operation in it failed.
  Status status;

 private:
  friend class RequestProgress;  // For the implementations.
  bool done_ = true;
  bool cancelled_ = false;
  size_t completed_ = 0;
  int64_t called_nanos_ = 0;
};

// Which blocks a request is about: a run of a chain, in one kv group.
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
  double estimated_ms = 0;  // To load this run alone, at the present load.
};

// A match ends before it would have more runs than this: ask for the rest with `have`.
inline constexpr size_t kMaxMatchRuns = 16'384;

// How much of a chain is there. Answered from memory; reads nothing and lends nothing. If memory
// does not know all of the chain, durable tiers are asked for the rest. The request waits for them
// no longer than they could gain, and 100 ms at most.
struct MatchRequest : Request {
  ChainSlice chain;
  size_t have = 0;  // The engine holds this many blocks of the chain itself and wants none of them.

  size_t matched = 0;          // Blocks that can be fetched, from keys[have] on without a gap.
  std::vector<MatchRun> runs;  // The matched blocks, and then at most one run that is not ready.
  // Loading beats recomputing for keys[have, have + pays); the blocks behind are better recomputed.
  size_t pays = 0;
  double load_ms = 0;       // For keys[have, have + pays).
  double recompute_ms = 0;  // For the same blocks; 0 while nothing was reported (ReportPrefill).
};

struct FetchOp {
  // kNotFound: a miss. kLate: not by the deadline. kCorrupt: the block was damaged, and has been
  // dropped.
  Status status;
  std::span<const std::byte> bytes;  // The block, in place, until the lease is released.
  LeaseId lease = 0;
  Checksum checksum;  // The checksum of `bytes`. A reader may check it in the pass that copies.
  TierKind tier = TierKind::kDram;
};

// Lends blocks, bringing them to DRAM first where needed. Each operation has its own status: one
// block's failure does not affect the others.
struct FetchRequest : Request {
  ChainSlice chain;
  // From the call on. Every operation is answered by then.
  int64_t timeout_nanos = kDefaultTimeoutNanos;

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
  // The block is there already. Write nothing. (A block that only a drive has counts until that
  // drive has been out of service for a minute. Then it may be stored again.)
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
  Key parent;                               // Parent of keys[0]: the key before it, or the root.
  uint32_t position = 0;                    // The index of keys[0] in its chain.
  std::span<const uint64_t> engine_hashes;  // The engine's own hashes, one a key; or empty.

  std::vector<ReserveOp> ops;  // One for each key, made by Reserve().
};

struct CommitOp {
  ReservationId reservation = 0;
  // The heads that this client wrote, and the sums over their bytes at their places in the block. A
  // client that wrote the whole block leaves {0, 0}: all heads.
  uint32_t head_begin = 0;
  uint32_t head_end = 0;
  LaneSums sums;

  // Answer. kInvalid: the reservation is unknown, void or overlapping. kNoSpace: the block was
  // deleted meanwhile, and the index has no place for it.
  Status status;
  bool published = false;  // Answer. Every head is there: from now on the block is served.
};

// Publishes blocks that were written, each one at once and whole.
struct CommitRequest : Request {
  std::vector<CommitOp> ops;
};

// --- Care --------------------------------------------------------------------------------------

// Completes with ok when every block that this client's tenant committed before the call has
// reached the tier, and so have the times to live that this client hinted. The blocks then survive
// whatever the tier survives. Otherwise kLate, or the reason why a block did not get there. Blocks
// of durable class (Durability) must reach a durable tier too, for every `tier` but kDram. With
// kDurable all blocks must, of any class.
//
// Without NVMe, kNvme waits for the blocks that are to be durable. It is ok if the tenant has no
// other blocks. Otherwise it is kUnavailable, and the message says how many blocks are in memory
// alone. It is also kUnavailable after a restart while no durable tier can say if a block belongs
// to a durable session.
//
// The blocks of a drive that has been out of service for a minute count as lost until it is back:
// DRAM's copies of them are written to other drives, for which a flush waits.
struct FlushRequest : Request {
  TierKind tier = TierKind::kNvme;
  int64_t timeout_nanos = 10 * kDefaultTimeoutNanos;
};

inline constexpr int8_t kLeastPriority = -8;  // Evicted first.
inline constexpr int8_t kMostPriority = 7;    // Evicted last.

enum class SessionState : uint8_t { kUnknown = 0, kWillContinue = 1, kFinished = 2 };

// Whether blocks outlive the node: a tenant's blocks, or those of a session that differs from its
// tenant.
enum class Durability : uint8_t {
  kNone = 0,     // The blocks are lost with the node.
  kDurable = 1,  // Written to the durable tiers, which other nodes read too.
};

// A caller's forecast of a session's future. It improves the choice of blocks to keep, and is never
// needed.
struct SessionForecast {
  std::string session{};  // The caller's name for a chain that grows; 1 to 256 bytes.
  ChainSlice chain{};     // The chain's last key is enough.
  SessionState state = SessionState::kUnknown;
  int8_t priority = 0;  // kLeastPriority to kMostPriority; 0: as usual for the tenant.
  // The chain's blocks expire after that, or by the tenant's rule if sooner.
  int64_t ttl_seconds = 0;
  // kNone: as the tenant's blocks. kDurable: the chain's blocks are durable, and so are the blocks
  // that continue it. A later kNone does not undo that.
  Durability durability = Durability::kNone;
  int64_t return_seconds = 0;  // With kWillContinue, when the session goes on; 0: not known.
};

// How long the engine took to compute, so that the cache can tell which blocks are worth loading.
struct PrefillReport {
  LayoutHandle layout = 0;
  uint32_t tokens = 0;          // Tokens computed.
  uint32_t context_tokens = 0;  // Tokens before them.
  double milliseconds = 0;
};

// Keeps blocks from being evicted for some time. Pins count against the tenant's ceiling.
struct PinRequest : Request {
  ChainSlice chain;
  int64_t seconds = 0;  // 0 removes the pin.

  size_t pinned = 0;  // How many of the keys were there.
};

// Brings blocks to DRAM ahead of a Fetch and lends nothing. By chain, or by session. kNoSpace: no
// DRAM is free, and prestaged blocks that were not fetched yet take half of the tenant's.
struct PrestageRequest : Request {
  ChainSlice chain;
  std::string session;  // Used when chain.keys is empty.
  int64_t timeout_nanos = 10 * kDefaultTimeoutNanos;

  size_t found = 0;   // Blocks known under that name.
  size_t staged = 0;  // How many of them were in DRAM when the request completed.
};

// Deletes blocks: when it completes with ok, they are gone from every tier, for good. A client that
// still leases one keeps the bytes until the release.
//
// kUnavailable: a drive is out of service; blocks that it may hold are deleted when it is back.
// kBusy: too many deletions wait for that drive, so some of these are not remembered; evict again
// once it is back. kNotFound: there is no such session, or some blocks of its chain are gone and
// those above them are not known any more; give the keys.
//
// A session's blocks are those of its chain, and the blocks that continued it since it was named. A
// block stays if another session has it, or if another chain continues from it.
struct EvictRequest : Request {
  ChainSlice chain;
  std::string session{};    // Used when chain.keys is empty: the session's whole chain.
  bool everything = false;  // All of the tenant's blocks and session names.

  size_t evicted = 0;
};

// Before the process that holds the cache ends: writes everything not yet safe to the lower tiers,
// hottest first, and takes no new blocks from then on. It affects the whole cache, not one tenant:
// blocks of every tenant are written, and no client stores any more (Refusal::kDraining). A tenant
// that only wants its own blocks safe calls Flush().
struct DrainRequest : Request {
  int64_t timeout_nanos = 30 * kDefaultTimeoutNanos;

  size_t left = 0;  // Blocks that are still only in DRAM.
};

struct DriveStats {
  std::string directory{};
  bool in_service = true;
  bool writable = true;
  // Why the drive is not in service, or not writable; or which part of it could not be read at the
  // start.
  std::string why{};
};

struct TierStats {
  TierKind tier = TierKind::kDram;
  bool in_service = true;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t blocks = 0;
  uint64_t tenant_bytes = 0;  // Bytes of the asking tenant.
  double read_gbps = 0;       // Observed; 0: nothing yet.
  // NVMe: one for each directory, in the order of the options. A durable tier: one, with its name.
  std::vector<DriveStats> drives{};
};

struct CacheStats {
  std::vector<TierStats> tiers;
  // By name, in a fixed order: "fetch_hits_dram", "corrupt_blocks", "owner_longest_task_us", ...
  // docs/operating/metrics.md lists them.
  std::vector<std::pair<std::string, uint64_t>> counters;

  uint64_t Counter(std::string_view name) const;  // 0 if there is no counter of that name.
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
  // Releases everything that this client still holds: nobody may touch its slots any more.
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

  // These calls have no answer; unknown leases, reservations and sessions are ignored. If this
  // client has too many hints and reports under way, further ones are dropped and counted
  // ("dropped_notes").
  virtual void Release(std::span<const ReleaseOp> leases) = 0;
  virtual void Abort(std::span<const ReservationId> reservations) = 0;
  virtual void Hint(const SessionForecast& forecast) = 0;
  virtual void ReportPrefill(const PrefillReport& report) = 0;

  // The open operations of the request get kLate, soon. The request still completes through Poll().
  virtual void Cancel(Request* request) = 0;

  // Applies all answers that have arrived. Returns how many requests moved on.
  virtual size_t Poll() = 0;

  // For select, poll and epoll: readable when there is news since Poll() last returned 0.
  virtual int event_fd() const = 0;

  // Polls until the request is done or the time is over. Returns true if the request is done.
  virtual bool Wait(const Request& request, int64_t timeout_nanos = INT64_MAX) = 0;
};

// --- In this process ---------------------------------------------------------------------------

struct TenantOptions {
  std::string name {  // With false no block of the tenant is written to a durable tier, whatever a
                      // hint, a flush or the
    // tier's own setting asks for.
    bool may_leave_host = true;
  };
  uint64_t dram_floor_bytes = 0;  // Never evicted below this for another tenant's sake.
  // A tenant gets memory in extents of 64 MiB that hold blocks of one size. It has at most as many
  // extents as this takes, rounded up.
  uint64_t dram_ceiling_bytes = UINT64_MAX;
  uint64_t nvme_floor_bytes = 0;
  uint64_t nvme_ceiling_bytes = UINT64_MAX;
  int64_t ttl_seconds = 0;  // 0: blocks do not expire.
  int8_t priority = 0;      // For blocks without a hint; kLeastPriority to kMostPriority.
  Durability durability = Durability::kNone;  // For blocks without a hint that says more.
};

enum class NvmeEngine : uint8_t { kAuto, kUring, kThreads };

// Which blocks go first when there is no room.
enum class EvictionPolicy : uint8_t {
  kLearned = 0,  // Blocks least likely to be requested again soon, as learned from past requests.
  kLru = 1,      // Blocks used longest ago.
};

inline constexpr uint32_t kMaxWorkerThreads = 1024;

struct CacheOptions {
  uint64_t dram_bytes = uint64_t{1} << 30;
  // Left free for the rest of the host, whatever dram_bytes says.
  uint64_t keep_available_bytes = uint64_t{512} << 20;

  // One directory a drive; blocks are striped over them. Empty: no NVMe tier.
  std::vector<std::string> nvme_directories;
  uint64_t nvme_bytes = uint64_t{8} << 30;  // Over all of them, metadata included.
  bool nvme_sync = false;                   // Blocks survive power loss too.
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
  uint64_t nvme_segment_bytes = 0;  // 0: chosen from nvme_bytes.
  // Limits writes to NVMe, including rewrites to make room; 0: no limit. Only blocks that a Flush()
  // or Drain() waits for exceed it, and they delay later writes. If more is stored than that,
  // kLearned writes the blocks most likely to be requested again. With kLru, blocks are written in
  // the order of their storing, if DRAM still has them.
  uint64_t write_bytes_per_second = 0;
  // Which part of the stored blocks is written to NVMe, to make drives last: above 0, at most 1.
  // Less than 1 needs kLearned, which writes the blocks most likely to be requested again. Blocks
  // that are pinned, that are to be durable, or that a Flush() or Drain() waits for, are always
  // written.
  double nvme_written_part = 1;

  std::vector<TenantOptions> tenants;  // Other tenants get the defaults.
  EvictionPolicy eviction = EvictionPolicy::kLearned;

  uint32_t worker_threads = 2;  // 1 to kMaxWorkerThreads.
  // Reservations held longer are void, and counted; leases held longer are only counted
  // ("overdue_reservations", "overdue_leases"). A node also cuts their holder off: see Connect().
  int64_t overdue_nanos = 60 * kDefaultTimeoutNanos;
  // Milliseconds to prefill one token, used until an engine has reported; 0: loading always pays.
  double assumed_prefill_ms_per_token = 0;
};

// Returns when the cache serves; blocks that NVMe held before are then found again. A drive may be
// unusable: its directory is read-only, another process has it, or it hangs. It stops neither the
// cache nor the other drives. Stats() shows it out of service and why. The cache tries it again,
// and its blocks come back with it. Wrong options are kInvalid, with the change to make.
Result<std::unique_ptr<Cache>> Open(const CacheOptions& options, const ClientOptions& client);

// --- The node's ----------------------------------------------------------------------------------

struct ConnectOptions {
  // Empty: $AQUIFER_SOCKET, else the first of /run/aquifer/node.sock, $XDG_RUNTIME_DIR/aquifer.sock
  // and /tmp/aquifer-<uid>/node.sock that is there.
  std::string socket{};
  std::string token{};  // Needed if the node has a tenants file.
  // Store and load nothing: every lookup is a miss, and the node only records the requests. Flush,
  // Evict and Drain are kInvalid.
  bool observe = false;
  int64_t timeout_nanos = 5 * kDefaultTimeoutNanos;  // For the first connection.
};

// Connects to the cache of the host's node, which must be there. When the node goes away later,
// every request is a miss (kUnavailable) until it is back; the client finds it again by itself.
// Leased bytes stay unchanged until they are released. A commit into slots of a node that is gone
// is refused.
//
// A node that hangs does not block the client. A request is done at its deadline, or a twentieth of
// a second later. A node that reads nothing for five to seven seconds counts as gone.
//
// A client that holds a lease or reservation for longer than the node's `overdue` (a minute by
// default) is cut off. All of its open requests are kUnavailable. All of its reservations are void,
// for the other ranks of its engine too. It connects again by itself and at once; its leases stay
// valid until they are released. A client that reads for longer copies the blocks, or releases them
// and fetches them again in time.
Result<std::unique_ptr<Cache>> Connect(const ConnectOptions& options, const ClientOptions& client);

}  // namespace aquifer
