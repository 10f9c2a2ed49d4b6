// How an engine stores: alone, or with a second rank, which reserves the same blocks, writes its
// half of their heads into the same slots, and commits it. The two commit one after the other, and
// what only one of them has committed is nobody's to see. If one gives a block up, it is void for
// both, and its memory is theirs until the other has let go as well.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/world/engine.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Where a rank's half begins and ends. Sums are over whole units.
std::pair<size_t, size_t> ShareOf(uint32_t rank, size_t block_bytes) {
  const size_t middle = block_bytes / 2 / kChecksumUnitBytes * kChecksumUnitBytes;
  return rank == 0 ? std::pair(size_t{0}, middle) : std::pair(middle, block_bytes);
}

}  // namespace

void Engine::Join() {
  doing_ = Doing::kJoining;
  join_.chain = reserve_.chain;
  join_.chain.layout = handles_[1][layout_];
  join_.parent = reserve_.parent;
  join_.position = reserve_.position;
  world_.counts->block_operations += join_.chain.keys.size();
  world_.trace->Add(TraceKind::kJoin, options_.number, join_.chain.keys.size(), conversation_);
  Submit(&Core::Reserve, &join_, "reserve", kSecond, 1);
}

void Engine::OnJoined(size_t from, size_t to) {
  // Until then nobody has taken a slot from it.
  const bool current = world_.scheduler->now() - reserved_nanos_ < options_.overdue_nanos;
  for (size_t i = from; i < to; ++i) {
    const ReserveOp& op = join_.ops[i];
    const BlockNumber block = blocks_[first_ + i];
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [block](const Slot& candidate) {
      return candidate.payload.block == block;
    });
    if (op.outcome != ReserveOutcome::kSlot) {
      if (op.outcome != ReserveOutcome::kRefused && slot != slots_.end() && current) {
        world_.truth->Violate("a rank does not get the slot that its engine has");
      }
      continue;
    }
    if (slot != slots_.end() && slot->bytes.data() == op.slot.data()) {
      slot->joined = op.reservation;
      continue;
    }
    if (slot != slots_.end() && current) {
      world_.truth->Violate("two ranks of an engine have two slots for one block");
    }
    unasked_.push_back(op.reservation);
  }
}

void Engine::SeeJoin() {
  const auto joined = static_cast<uint64_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.joined != 0; }));
  world_.trace->Add(TraceKind::kJoined, options_.number, joined, slots_.size());
  if (!unasked_.empty()) Abort(1, std::exchange(unasked_, {}));
  BeginFilling();
}

void Engine::WriteShare(const Slot& slot, uint32_t rank) {
  std::vector<std::byte> whole(slot.bytes.size());
  WritePayload(slot.payload, whole);
  const auto [begin, end] = ShareOf(rank, whole.size());
  std::memcpy(slot.bytes.data() + begin, whole.data() + begin, end - begin);
}

// What the rank has written: its share of what both have, and the first one also all of the rest.
void Engine::Commit(uint32_t rank, bool last) {
  doing_ = last ? Doing::kCommitting : Doing::kSharing;
  commit_.ops.clear();
  commits_.clear();
  for (const Slot& slot : slots_) {
    const bool shared = slot.joined != 0;
    if (!shared && rank != 0) continue;
    CommitOp& op = commit_.ops.emplace_back();
    op.reservation = rank == 0 ? slot.reservation : slot.joined;
    const auto [begin, end] =
        shared ? ShareOf(rank, slot.bytes.size()) : std::pair(size_t{0}, slot.bytes.size());
    op.sums = SumLanes(std::span(slot.bytes).subspan(begin, end - begin), begin);
    if (shared) op.head_begin = rank;
    if (shared) op.head_end = rank + 1;
    commits_.push_back({.payload = slot.payload, .last = last || !shared});
    if (commits_.back().last) world_.truth->CommitSent(slot.payload, slot.bytes);
  }
  std::erase_if(slots_,
                [rank, last](const Slot& slot) { return slot.joined != 0 ? last : rank == 0; });
  world_.counts->block_operations += commits_.size();
  world_.trace->Add(TraceKind::kCommit, options_.number, commits_.size(), rank);
  Submit(&Core::Commit, &commit_, "commit", kSecond, rank);
}

void Engine::CommitRest() {
  if (OneIn(12)) return GiveUp();
  const uint32_t rank = 1 - first_rank_;
  for (const Slot& slot : slots_) {
    if (slot.joined != 0) WriteShare(slot, rank);
  }
  Commit(rank, true);
}

void Engine::GiveUp() {
  // A rank that has committed its share has let go of the slot.
  if (doing_ == Doing::kSharing) return LetGo(1 - first_rank_);
  std::vector<ReservationId> joined;
  for (const Slot& slot : slots_) {
    if (slot.joined != 0) joined.push_back(slot.joined);
  }
  if (joined.empty()) return LetGo(0);
  doing_ = Doing::kLettingGo;
  Abort(1, std::move(joined));
  Think();
}

void Engine::LetGo(uint32_t rank) {
  std::vector<ReservationId> reservations;
  for (const Slot& slot : slots_) {
    world_.truth->GaveUp(slot.payload, slot.bytes);
    reservations.push_back(rank == 0 ? slot.reservation : slot.joined);
  }
  slots_.clear();
  Abort(rank, std::move(reservations));
  EndTurn();
}

}  // namespace aquifer
