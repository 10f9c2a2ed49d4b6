#include "net/protocol/local_protocol.h"

#include <algorithm>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kKeyBytes = sizeof(Key::bytes);
constexpr size_t kHashBytes = 8;
constexpr size_t kReleaseOpBytes = 16;
constexpr size_t kMaxGroups = 16;
constexpr size_t kMaxFormatBytes = 128;
constexpr size_t kMaxDriveTextBytes = 256;  // Longer texts are cut.
constexpr size_t kMaxCounterNameBytes = 64;
// Of all tiers together: the NVMe tier has many, a durable tier has one.
constexpr size_t kMaxStatsAllDrives = kMaxStatsDrives + kMaxStatsTiers;
static_assert(kMaxStatsTiers * 64 + kMaxStatsAllDrives * 2 * (kMaxDriveTextBytes + 4) +
                  kMaxStatsCounters * (kMaxCounterNameBytes + 10) + kMaxMessageBytes + 64 <=
              kMaxFrameBytes);

// ---- Pieces that several messages have ----

std::span<const Key> KeysIn(std::span<const std::byte> bytes) {
  static_assert(sizeof(Key) == kKeyBytes && alignof(Key) == 1);
  return {reinterpret_cast<const Key*>(bytes.data()), bytes.size() / kKeyBytes};
}

void PutItems(const KeyItems& items, FrameWriter* to) {
  AQ_CHECK(items.keys.size() <= kMaxItemsPerFrame);
  AQ_CHECK(items.engine_hashes.empty() ||
           items.engine_hashes.size() == items.keys.size() * kHashBytes);
  to->U32(static_cast<uint32_t>(items.keys.size()));
  to->U8(items.engine_hashes.empty() ? 0 : 1);
  to->Bytes(std::as_bytes(items.keys));
  to->Bytes(items.engine_hashes);
}

uint32_t TakeCount(FrameReader* from) {
  const uint32_t count = from->U32();
  if (count > kMaxItemsPerFrame) from->Bad("too many items for one frame");
  return std::min(count, kMaxItemsPerFrame);
}

KeyItems TakeItems(FrameReader* from) {
  const uint32_t count = TakeCount(from);
  const bool hashes = from->Flag();
  if (hashes && count == 0) from->Bad("engine hashes without keys");
  KeyItems items;
  items.keys = KeysIn(from->Array(count, kKeyBytes));
  if (hashes) items.engine_hashes = from->Array(count, kHashBytes);
  return items;
}

uint32_t TakeTotal(FrameReader* from) {
  const uint32_t total = from->U32();
  if (total > kMaxItems) from->Bad("too many items for one request");
  return total;
}

void PutChain(const ChainCall& chain, FrameWriter* to) {
  to->U32(chain.layout);
  to->U16(chain.group);
  to->U16(chain.part);
  to->U32(chain.total);
  PutItems(chain.items, to);
}

ChainCall TakeChain(FrameReader* from) {
  ChainCall chain;
  chain.layout = from->U32();
  chain.group = from->U16();
  chain.part = from->U16();
  chain.total = TakeTotal(from);
  chain.items = TakeItems(from);
  if (chain.items.keys.size() > chain.total) from->Bad("more keys than the request has");
  return chain;
}

void PutSlot(const LentSlot& slot, FrameWriter* to) {
  to->U32(slot.extent);
  to->U64(slot.offset);
  to->U64(slot.bytes);
}

LentSlot TakeSlot(FrameReader* from) {
  LentSlot slot;
  slot.extent = from->U32();
  slot.offset = from->U64();
  slot.bytes = from->U64();
  if (slot.bytes > kMaxBlockBytes || slot.offset > UINT64_MAX - kMaxBlockBytes) {
    from->Bad("an impossible slot");
  }
  return slot;
}

template <class Enum>
void PutChoice(Enum value, FrameWriter* to) {
  to->U8(static_cast<uint8_t>(value));
}

// For enumerations that begin with 1.
template <class Enum>
Enum TakeChoiceFromOne(Enum last, FrameReader* from) {
  const Enum value = from->Choice(last);
  if (static_cast<uint8_t>(value) == 0) from->Bad("an unknown value");
  return value;
}

Code TakeCode(FrameReader* from) { return from->Choice(Code::kInvalid); }
TierKind TakeTier(FrameReader* from) { return from->Choice(TierKind::kDurable); }

void PutGroup(const KvGroup& group, FrameWriter* to) {
  PutChoice(group.kind, to);
  PutChoice(group.dtype, to);
  to->U32(group.layers);
  to->U32(group.kv_heads);
  to->U32(group.key_dim);
  to->U32(group.value_dim);
  to->U32(group.window_tokens);
  to->U64(group.opaque_bytes);
}

KvGroup TakeGroup(FrameReader* from) {
  KvGroup group;
  group.kind = TakeChoiceFromOne(KvKind::kState, from);
  group.dtype = TakeChoiceFromOne(DType::kUInt8, from);
  group.layers = from->U32();
  group.kv_heads = from->U32();
  group.key_dim = from->U32();
  group.value_dim = from->U32();
  group.window_tokens = from->U32();
  group.opaque_bytes = from->U64();
  return group;
}

// Returns how many drives were written: at most `most`.
size_t PutDrives(const std::vector<DriveStats>& drives, size_t most, FrameWriter* to) {
  const size_t count = std::min({drives.size(), kMaxStatsDrives, most});
  to->U8(static_cast<uint8_t>(count));
  for (const DriveStats& drive : std::span(drives).first(count)) {
    to->Text(std::string_view(drive.directory).substr(0, kMaxDriveTextBytes));
    to->U8(drive.in_service ? 1 : 0);
    to->U8(drive.writable ? 1 : 0);
    to->Text(std::string_view(drive.why).substr(0, kMaxDriveTextBytes));
  }
  return count;
}

void TakeDrives(FrameReader* from, std::vector<DriveStats>* drives) {
  const size_t count = from->U8();
  if (count > kMaxStatsDrives) from->Bad("too many drives");
  for (size_t i = 0; i < std::min(count, kMaxStatsDrives); ++i) {
    DriveStats& drive = drives->emplace_back();
    drive.directory = from->Text(kMaxDriveTextBytes);
    drive.in_service = from->Flag();
    drive.writable = from->Flag();
    drive.why = from->Text(kMaxDriveTextBytes);
  }
}

}  // namespace

// ---- On the socket ----

void Encode(const Hello& hello, FrameWriter* to) {
  to->U16(hello.oldest_version);
  to->U16(hello.newest_version);
  to->Text(hello.tenant);
  to->Text(hello.token);
  to->Text(hello.engine);
  to->U8(hello.observe ? 1 : 0);
}

Status Decode(FrameReader* from, Hello* hello) {
  hello->oldest_version = from->U16();
  hello->newest_version = from->U16();
  hello->tenant = from->Text(kMaxNameBytes);
  hello->token = from->Text(kMaxNameBytes);
  hello->engine = from->Text(kMaxNameBytes);
  hello->observe = from->Flag();
  if (hello->oldest_version > hello->newest_version) from->Bad("versions in the wrong order");
  return from->End();
}

void Encode(const Welcome& welcome, FrameWriter* to) {
  to->U16(welcome.version);
  to->U32(welcome.max_requests);
  to->U64(welcome.ring_data_bytes);
}

Status Decode(FrameReader* from, Welcome* welcome) {
  welcome->version = from->U16();
  welcome->max_requests = from->U32();
  welcome->ring_data_bytes = from->U64();
  return from->End();
}

void Encode(const Refused& refused, FrameWriter* to) {
  PutChoice(refused.code, to);
  to->Text(refused.message.substr(0, kMaxMessageBytes));
}

Status Decode(FrameReader* from, Refused* refused) {
  refused->code = TakeCode(from);
  refused->message = from->Text(kMaxMessageBytes);
  return from->End();
}

void Encode(const ExtentOffer& offer, FrameWriter* to) {
  to->U32(offer.extent);
  to->U64(offer.bytes);
}

Status Decode(FrameReader* from, ExtentOffer* offer) {
  offer->extent = from->U32();
  offer->bytes = from->U64();
  return from->End();
}

// ---- Requests ----

void Encode(const Layout& layout, FrameWriter* to) {
  AQ_CHECK(layout.groups.size() <= kMaxGroups && layout.kv_format.size() <= kMaxFormatBytes);
  to->Bytes(layout.model);
  to->U32(layout.tokens_per_block);
  to->Text(layout.kv_format);
  to->U8(static_cast<uint8_t>(layout.groups.size()));
  for (const KvGroup& group : layout.groups) PutGroup(group, to);
}

Status Decode(FrameReader* from, Layout* layout) {
  const std::span<const std::byte> model = from->Bytes(layout->model.size());
  std::copy(model.begin(), model.end(), layout->model.begin());
  layout->tokens_per_block = from->U32();
  layout->kv_format = from->Text(kMaxFormatBytes);
  const size_t groups = from->U8();
  if (groups > kMaxGroups) from->Bad("too many kv groups");
  layout->groups.clear();
  for (size_t i = 0; i < std::min(groups, kMaxGroups); ++i) {
    layout->groups.push_back(TakeGroup(from));
  }
  return from->End();
}

void Encode(const MatchCall& call, FrameWriter* to) {
  to->U64(call.have);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, MatchCall* call) {
  call->have = from->U64();
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const FetchCall& call, FrameWriter* to) {
  to->I64(call.timeout_nanos);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, FetchCall* call) {
  call->timeout_nanos = from->I64();
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const ReserveCall& call, FrameWriter* to) {
  to->KeyBytes(call.parent);
  to->U32(call.position);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, ReserveCall* call) {
  call->parent = from->KeyBytes();
  call->position = from->U32();
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const CommitCall& call, FrameWriter* to) {
  to->U32(call.total);
  EncodeOps(call.ops, to);
}

Status Decode(FrameReader* from, CommitCall* call) {
  call->total = TakeTotal(from);
  AQ_RETURN_IF_ERROR(DecodeOps(from, &call->ops));
  if (call->ops.size() / kCommitOpBytes > call->total) {
    return Status(Code::kInvalid, "a commit with more operations than announced");
  }
  return Status();
}

void EncodeOps(std::span<const std::byte> ops, FrameWriter* to) {
  AQ_CHECK(ops.size() % kCommitOpBytes == 0 && ops.size() / kCommitOpBytes <= kMaxItemsPerFrame);
  to->U32(static_cast<uint32_t>(ops.size() / kCommitOpBytes));
  to->Bytes(ops);
}

Status DecodeOps(FrameReader* from, std::span<const std::byte>* ops) {
  *ops = from->Array(TakeCount(from), kCommitOpBytes);
  return from->End();
}

void EncodeCommitOp(const CommitOp& op, std::span<std::byte, kCommitOpBytes> to) {
  std::byte* at = PutU64(to.data(), op.reservation);
  at = PutU32(at, op.head_begin);
  at = PutU32(at, op.head_end);
  at = PutU64(at, op.sums.a);
  PutU64(at, op.sums.b);
}

CommitOp DecodeCommitOp(std::span<const std::byte, kCommitOpBytes> from) {
  CommitOp op;
  op.reservation = GetU64(from.data());
  op.head_begin = GetU32(from.data() + 8);
  op.head_end = GetU32(from.data() + 12);
  op.sums = {GetU64(from.data() + 16), GetU64(from.data() + 24)};
  return op;
}

void Encode(const FlushCall& call, FrameWriter* to) {
  PutChoice(call.tier, to);
  to->I64(call.timeout_nanos);
}

Status Decode(FrameReader* from, FlushCall* call) {
  call->tier = TakeTier(from);
  call->timeout_nanos = from->I64();
  return from->End();
}

void Encode(const PinCall& call, FrameWriter* to) {
  to->I64(call.seconds);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, PinCall* call) {
  call->seconds = from->I64();
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const PrestageCall& call, FrameWriter* to) {
  to->I64(call.timeout_nanos);
  to->Text(call.session);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, PrestageCall* call) {
  call->timeout_nanos = from->I64();
  call->session = from->Text(kMaxNameBytes);
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const EvictCall& call, FrameWriter* to) {
  to->U8(call.everything ? 1 : 0);
  to->Text(call.session);
  PutChain(call.chain, to);
}

Status Decode(FrameReader* from, EvictCall* call) {
  call->everything = from->Flag();
  call->session = from->Text(kMaxNameBytes);
  call->chain = TakeChain(from);
  return from->End();
}

void Encode(const DrainCall& call, FrameWriter* to) { to->I64(call.timeout_nanos); }

Status Decode(FrameReader* from, DrainCall* call) {
  call->timeout_nanos = from->I64();
  return from->End();
}

void Encode(const HintCall& call, uint16_t version, FrameWriter* to) {
  to->U32(call.layout);
  to->U16(call.group);
  to->U16(call.part);
  to->KeyBytes(call.head);
  to->Text(call.session);
  PutChoice(call.state, to);
  to->U8(static_cast<uint8_t>(call.priority));
  to->I64(call.ttl_seconds);
  if (version < 2) return;
  PutChoice(call.durability, to);
  to->I64(call.return_seconds);
}

Status Decode(FrameReader* from, uint16_t version, HintCall* call) {
  call->layout = from->U32();
  call->group = from->U16();
  call->part = from->U16();
  call->head = from->KeyBytes();
  call->session = from->Text(kMaxNameBytes);
  call->state = from->Choice(SessionState::kFinished);
  call->priority = static_cast<int8_t>(from->U8());
  call->ttl_seconds = from->I64();
  if (version < 2) return from->End();
  call->durability = from->Choice(Durability::kDurable);
  call->return_seconds = from->I64();
  return from->End();
}

void Encode(const PrefillReport& report, FrameWriter* to) {
  to->U32(report.layout);
  to->U32(report.tokens);
  to->U32(report.context_tokens);
  to->F64(report.milliseconds);
}

Status Decode(FrameReader* from, PrefillReport* report) {
  report->layout = from->U32();
  report->tokens = from->U32();
  report->context_tokens = from->U32();
  report->milliseconds = from->F64();
  return from->End();
}

void Encode(const KeyItems& items, FrameWriter* to) { PutItems(items, to); }

Status Decode(FrameReader* from, KeyItems* items) {
  *items = TakeItems(from);
  return from->End();
}

void Encode(std::span<const ReleaseOp> leases, FrameWriter* to) {
  AQ_CHECK(leases.size() <= kMaxItemsPerFrame);
  to->U32(static_cast<uint32_t>(leases.size()));
  for (const ReleaseOp& op : leases) {
    to->U64(op.lease);
    to->U64(op.corrupt ? 1 : 0);
  }
}

Status Decode(FrameReader* from, std::vector<ReleaseOp>* leases) {
  const std::span<const std::byte> ops = from->Array(TakeCount(from), kReleaseOpBytes);
  for (size_t at = 0; at < ops.size(); at += kReleaseOpBytes) {
    const uint64_t flags = GetU64(ops.data() + at + 8);
    if (flags > 1) from->Bad("a flag that is neither 0 nor 1");
    leases->push_back({.lease = GetU64(ops.data() + at), .corrupt = flags == 1});
  }
  return from->End();
}

void Encode(std::span<const ReservationId> reservations, FrameWriter* to) {
  AQ_CHECK(reservations.size() <= kMaxItemsPerFrame);
  to->U32(static_cast<uint32_t>(reservations.size()));
  for (const ReservationId id : reservations) to->U64(id);
}

Status Decode(FrameReader* from, std::vector<ReservationId>* reservations) {
  const std::span<const std::byte> ids = from->Array(TakeCount(from), sizeof(ReservationId));
  for (size_t at = 0; at < ids.size(); at += sizeof(ReservationId)) {
    reservations->push_back(GetU64(ids.data() + at));
  }
  return from->End();
}

void EncodeExtent(uint32_t extent, FrameWriter* to) { to->U32(extent); }

Status DecodeExtent(FrameReader* from, uint32_t* extent) {
  *extent = from->U32();
  return from->End();
}

// ---- Answers ----

void Encode(const AnswerHead& head, FrameWriter* to) {
  AQ_CHECK(head.count <= kMaxItemsPerFrame);
  to->U8(head.done ? 1 : 0);
  PutChoice(head.code, to);
  to->Text(head.message.substr(0, kMaxMessageBytes));
  to->U32(head.first);
  to->U32(head.count);
}

void Decode(FrameReader* from, AnswerHead* head) {
  head->done = from->Flag();
  head->code = TakeCode(from);
  head->message = from->Text(kMaxMessageBytes);
  head->first = from->U32();
  head->count = TakeCount(from);
}

void Encode(const FetchAnswer& op, FrameWriter* to) {
  PutChoice(op.code, to);
  PutChoice(op.tier, to);
  PutSlot(op.slot, to);
  to->U64(op.lease);
  to->U64(op.checksum.low);
  to->U64(op.checksum.high);
}

void Decode(FrameReader* from, FetchAnswer* op) {
  op->code = TakeCode(from);
  op->tier = TakeTier(from);
  op->slot = TakeSlot(from);
  op->lease = from->U64();
  op->checksum.low = from->U64();
  op->checksum.high = from->U64();
}

void Encode(const ReserveAnswer& op, FrameWriter* to) {
  PutChoice(op.outcome, to);
  PutChoice(op.refusal, to);
  to->F64(op.wait_ms);
  PutSlot(op.slot, to);
  to->U64(op.reservation);
}

void Decode(FrameReader* from, ReserveAnswer* op) {
  op->outcome = from->Choice(ReserveOutcome::kSlot);
  op->refusal = from->Choice(Refusal::kTooMany);
  op->wait_ms = from->F64();
  op->slot = TakeSlot(from);
  op->reservation = from->U64();
}

void Encode(const CommitAnswer& op, FrameWriter* to) {
  PutChoice(op.code, to);
  to->U8(op.published ? 1 : 0);
  to->U8(op.over ? 1 : 0);
}

void Decode(FrameReader* from, CommitAnswer* op) {
  op->code = TakeCode(from);
  op->published = from->Flag();
  op->over = from->Flag();
}

void Encode(const MatchAnswer& answer, FrameWriter* to) {
  to->U64(answer.matched);
  to->U64(answer.pays);
  to->F64(answer.load_ms);
  to->F64(answer.recompute_ms);
}

void Decode(FrameReader* from, MatchAnswer* answer) {
  answer->matched = from->U64();
  answer->pays = from->U64();
  answer->load_ms = from->F64();
  answer->recompute_ms = from->F64();
}

void Encode(const MatchRun& run, FrameWriter* to) {
  to->U64(run.first);
  to->U64(run.count);
  PutChoice(run.tier, to);
  PutChoice(run.state, to);
  to->F64(run.estimated_ms);
}

void Decode(FrameReader* from, MatchRun* run) {
  run->first = from->U64();
  run->count = from->U64();
  run->tier = TakeTier(from);
  run->state = from->Choice(RunState::kPending);
  run->estimated_ms = from->F64();
}

void Encode(const CountsAnswer& answer, FrameWriter* to) {
  to->U64(answer.first);
  to->U64(answer.second);
}

void Decode(FrameReader* from, CountsAnswer* answer) {
  answer->first = from->U64();
  answer->second = from->U64();
}

void Encode(const CacheStats& stats, FrameWriter* to) {
  const size_t tiers = std::min(stats.tiers.size(), kMaxStatsTiers);
  const size_t counters = std::min(stats.counters.size(), kMaxStatsCounters);
  size_t drives = 0;
  to->U8(static_cast<uint8_t>(tiers));
  for (const TierStats& tier : std::span(stats.tiers).first(tiers)) {
    PutChoice(tier.tier, to);
    to->U8(tier.in_service ? 1 : 0);
    to->U64(tier.capacity_bytes);
    to->U64(tier.used_bytes);
    to->U64(tier.blocks);
    to->U64(tier.tenant_bytes);
    to->F64(tier.read_gbps);
    drives += PutDrives(tier.drives, kMaxStatsAllDrives - drives, to);
  }
  to->U16(static_cast<uint16_t>(counters));
  for (const auto& [name, value] : std::span(stats.counters).first(counters)) {
    to->Text(std::string_view(name).substr(0, kMaxCounterNameBytes));
    to->U64(value);
  }
}

void Decode(FrameReader* from, CacheStats* stats) {
  *stats = {};
  const size_t tiers = from->U8();
  if (tiers > kMaxStatsTiers) from->Bad("too many tiers");
  for (size_t i = 0; i < std::min(tiers, kMaxStatsTiers); ++i) {
    TierStats& tier = stats->tiers.emplace_back();
    tier.tier = TakeTier(from);
    tier.in_service = from->Flag();
    tier.capacity_bytes = from->U64();
    tier.used_bytes = from->U64();
    tier.blocks = from->U64();
    tier.tenant_bytes = from->U64();
    tier.read_gbps = from->F64();
    TakeDrives(from, &tier.drives);
  }
  const size_t counters = from->U16();
  if (counters > kMaxStatsCounters) from->Bad("too many counters");
  for (size_t i = 0; i < std::min(counters, kMaxStatsCounters); ++i) {
    const std::string_view name = from->Text(kMaxCounterNameBytes);
    stats->counters.emplace_back(name, from->U64());
  }
}

}  // namespace aquifer
