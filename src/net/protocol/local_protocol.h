// The messages between a client and the node of its host: docs/formats/local.md. Each message is a
// struct here, with one function that writes it into a frame and one that reads it from a frame.
// Decoding distrusts every byte: every accepted value is within the bounds below. The node then
// checks whether a handle, a lease or an extent exists.
//
// A request with more keys or operations than fit in a frame goes on in frames of kind kMore with
// the same number. An answer comes in as many frames as it needs; the last of them is marked
// `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/checksum.h"
#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "aquifer/status.h"
#include "net/protocol/frame.h"

namespace aquifer {

inline constexpr uint16_t kLocalVersion = 2;         // The newest version that we speak.
inline constexpr uint16_t kOldestLocalVersion = 1;   // The oldest version that we speak.
inline constexpr uint32_t kMaxItemsPerFrame = 1024;  // Keys, operations or runs in one frame.
inline constexpr uint32_t kMaxItems = 1u << 20;      // Keys or operations of one request.
// Of names of tenants, engines and sessions, and of tokens.
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxMessageBytes = 1024;
// The answer to kStats. An encoder leaves out what is beyond these bounds. The node's configuration
// uses the same constants, so that nothing is left out.
inline constexpr size_t kMaxStatsTiers = 8;
inline constexpr size_t kMaxStatsDrives = 16;  // Of one tier.
inline constexpr size_t kMaxStatsCounters = 256;

enum class FrameKind : uint16_t {
  // On the socket.
  kHello = 1,         // Client: its tenant, engine and token.
  kWelcome = 2,       // Node: yes; with the descriptors of the rings.
  kRefused = 3,       // Node: no, and the reason. It closes the socket.
  kExtent = 4,        // Node: memory that later answers refer to; with its descriptor.
  kReturnExtent = 5,  // Node: unmap the extent as soon as nothing in it is in use.

  // From client to node, in the ring. Requests with an answer come first.
  kRegisterLayout = 16,
  kMatch = 17,
  kFetch = 18,
  kReserve = 19,
  kCommit = 20,
  kFlush = 21,
  kPin = 22,
  kPrestage = 23,
  kEvict = 24,
  kDrain = 25,
  kStats = 26,
  kMore = 32,  // The rest of a request with this number.
  kCancel = 33,
  kRelease = 34,
  kAbort = 35,
  kHint = 36,
  kReportPrefill = 37,
  kExtentReturned = 38,  // The client has unmapped the extent.
  kGoodbye = 39,         // The client's last frame: it touches nothing any more.

  // From node to client, in the ring.
  kAnswer = 64,
};

// ---- On the socket ----

struct Hello {
  uint16_t oldest_version = kOldestLocalVersion;
  uint16_t newest_version = kLocalVersion;
  std::string_view tenant{};
  std::string_view token{};
  std::string_view engine{};
  bool observe = false;  // Every lookup is a miss, and every change is refused.
};

struct Welcome {
  uint16_t version = kLocalVersion;
  uint32_t max_requests = 0;     // How many may be open at once; further ones are kBusy.
  uint64_t ring_data_bytes = 0;  // Of each of the two rings.
};

struct Refused {
  Code code = Code::kInvalid;
  std::string_view message;
};

struct ExtentOffer {
  uint32_t extent = 0;  // The node's number for the extent, never used again.
  uint64_t bytes = 0;
};

// ---- Requests ----

// A run of keys, and the engine's own 64-bit hashes of the blocks or none. They lie in the frame.
struct KeyItems {
  std::span<const Key> keys;
  std::span<const std::byte> engine_hashes;  // 8 bytes for each key, or empty.

  uint64_t engine_hash(size_t i) const { return GetU64(engine_hashes.data() + 8 * i); }
};

struct ChainCall {
  LayoutHandle layout = 0;
  uint16_t group = 0;
  uint16_t part = 0;
  uint32_t total = 0;  // How many keys the request has.
  KeyItems items;      // The first of its keys.
};

struct MatchCall {
  ChainCall chain;
  uint64_t have = 0;
};

struct FetchCall {
  ChainCall chain;
  int64_t timeout_nanos = 0;
};

struct ReserveCall {
  ChainCall chain;
  Key parent;
  uint32_t position = 0;
};

struct CommitCall {
  uint32_t total = 0;
  std::span<const std::byte> ops;  // kCommitOpBytes each.
};
inline constexpr size_t kCommitOpBytes = 32;

struct FlushCall {
  TierKind tier = TierKind::kNvme;
  int64_t timeout_nanos = 0;
};

struct PinCall {
  ChainCall chain;
  int64_t seconds = 0;
};

struct PrestageCall {
  ChainCall chain;
  std::string_view session;
  int64_t timeout_nanos = 0;
};

struct EvictCall {
  ChainCall chain;
  std::string_view session;
  bool everything = false;
};

struct DrainCall {
  int64_t timeout_nanos = 0;
};

struct HintCall {
  LayoutHandle layout = 0;
  uint16_t group = 0;
  uint16_t part = 0;
  Key head;
  std::string_view session;
  SessionState state = SessionState::kUnknown;
  int8_t priority = 0;
  int64_t ttl_seconds = 0;
  // Sent from version 2 on. An older client means these defaults.
  Durability durability = Durability::kNone;
  int64_t return_seconds = 0;
};

void Encode(const Hello& hello, FrameWriter* to);
void Encode(const Welcome& welcome, FrameWriter* to);
void Encode(const Refused& refused, FrameWriter* to);
void Encode(const ExtentOffer& offer, FrameWriter* to);
void Encode(const Layout& layout, FrameWriter* to);
void Encode(const MatchCall& call, FrameWriter* to);
void Encode(const FetchCall& call, FrameWriter* to);
void Encode(const ReserveCall& call, FrameWriter* to);
void Encode(const CommitCall& call, FrameWriter* to);
void Encode(const FlushCall& call, FrameWriter* to);
void Encode(const PinCall& call, FrameWriter* to);
void Encode(const PrestageCall& call, FrameWriter* to);
void Encode(const EvictCall& call, FrameWriter* to);
void Encode(const DrainCall& call, FrameWriter* to);
void Encode(const HintCall& call, uint16_t version, FrameWriter* to);
void Encode(const PrefillReport& report, FrameWriter* to);
// The bodies of kMore: keys, or operations of a commit.
void Encode(const KeyItems& items, FrameWriter* to);
void EncodeCommitOp(const CommitOp& op, std::span<std::byte, kCommitOpBytes> to);
void EncodeOps(std::span<const std::byte> ops, FrameWriter* to);
void Encode(std::span<const ReleaseOp> leases, FrameWriter* to);
void Encode(std::span<const ReservationId> reservations, FrameWriter* to);
void EncodeExtent(uint32_t extent, FrameWriter* to);

// Each returns ok if the whole frame was understood, else kInvalid with a reason. Texts, keys and
// operations point into the frame.
Status Decode(FrameReader* from, Hello* hello);
Status Decode(FrameReader* from, Welcome* welcome);
Status Decode(FrameReader* from, Refused* refused);
Status Decode(FrameReader* from, ExtentOffer* offer);
Status Decode(FrameReader* from, Layout* layout);
Status Decode(FrameReader* from, MatchCall* call);
Status Decode(FrameReader* from, FetchCall* call);
Status Decode(FrameReader* from, ReserveCall* call);
Status Decode(FrameReader* from, CommitCall* call);
Status Decode(FrameReader* from, FlushCall* call);
Status Decode(FrameReader* from, PinCall* call);
Status Decode(FrameReader* from, PrestageCall* call);
Status Decode(FrameReader* from, EvictCall* call);
Status Decode(FrameReader* from, DrainCall* call);
Status Decode(FrameReader* from, uint16_t version, HintCall* call);
Status Decode(FrameReader* from, PrefillReport* report);
Status Decode(FrameReader* from, KeyItems* items);
Status DecodeOps(FrameReader* from, std::span<const std::byte>* ops);
CommitOp DecodeCommitOp(std::span<const std::byte, kCommitOpBytes> from);
// Appends to the list.
Status Decode(FrameReader* from, std::vector<ReleaseOp>* leases);
Status Decode(FrameReader* from, std::vector<ReservationId>* reservations);
Status DecodeExtent(FrameReader* from, uint32_t* extent);

// ---- Answers ----

// Every answer begins with this. A frame that is not `done` contains operations only.
struct AnswerHead {
  bool done = false;
  Code code = Code::kOk;  // Outcome of the whole request.
  std::string_view message;
  uint32_t first = 0;  // Index of the first operation (or run) that follows.
  uint32_t count = 0;
};

struct LentSlot {
  uint32_t extent = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct FetchAnswer {
  Code code = Code::kOk;
  TierKind tier = TierKind::kDram;
  LentSlot slot;
  LeaseId lease = 0;
  Checksum checksum;
};

struct ReserveAnswer {
  ReserveOutcome outcome = ReserveOutcome::kRefused;
  Refusal refusal = Refusal::kNone;
  double wait_ms = 0;
  LentSlot slot;
  ReservationId reservation = 0;
};

struct CommitAnswer {
  Code code = Code::kOk;
  bool published = false;
  bool over = false;  // The reservation has ended.
};

// The summary of a Match; the runs follow as operations.
struct MatchAnswer {
  uint64_t matched = 0;
  uint64_t pays = 0;
  double load_ms = 0;
  double recompute_ms = 0;
};

// The counts have a meaning for each kind. Pin: pinned. Prestage: found, staged. Evict: evicted.
// Drain: left. RegisterLayout: the handle.
struct CountsAnswer {
  uint64_t first = 0;
  uint64_t second = 0;
};

void Encode(const AnswerHead& head, FrameWriter* to);
void Encode(const FetchAnswer& op, FrameWriter* to);
void Encode(const ReserveAnswer& op, FrameWriter* to);
void Encode(const CommitAnswer& op, FrameWriter* to);
void Encode(const MatchAnswer& answer, FrameWriter* to);
void Encode(const MatchRun& run, FrameWriter* to);
void Encode(const CountsAnswer& answer, FrameWriter* to);
void Encode(const CacheStats& stats, FrameWriter* to);

// These leave the frame open: the caller reads the rest and then calls End().
void Decode(FrameReader* from, AnswerHead* head);
void Decode(FrameReader* from, FetchAnswer* op);
void Decode(FrameReader* from, ReserveAnswer* op);
void Decode(FrameReader* from, CommitAnswer* op);
void Decode(FrameReader* from, MatchAnswer* answer);
void Decode(FrameReader* from, MatchRun* run);
void Decode(FrameReader* from, CountsAnswer* answer);
void Decode(FrameReader* from, CacheStats* stats);

}  // namespace aquifer
