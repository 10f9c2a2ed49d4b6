#include "sim/world/truth.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

namespace aquifer {
namespace {

constexpr uint64_t kPage = 4096;
// What has no deadline of its own is answered within an hour: no fault lasts that long.
constexpr int64_t kSomeTimeNanos = int64_t{3600} * 1'000'000'000;

uint64_t WholePages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Truth::Truth(const TruthOptions& options, const Clock* clock)
    : Truth(options, std::vector<const Clock*>{clock}) {}

Truth::Truth(const TruthOptions& options, std::vector<const Clock*> clocks)
    : options_(options),
      clocks_(std::move(clocks)),
      lent_bytes_(clocks_.size() * options.tenants.size()),
      lost_before_(lent_bytes_.size()),
      durable_lost_before_(lent_bytes_.size()),
      key_gone_(lent_bytes_.size()),
      evictions_(options.tenants.size()) {
  for (size_t node = 0; node < clocks_.size(); ++node) lives_.push_back(++last_life_);
}

void Truth::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

std::string Truth::NameOf(BlockNumber block) const {
  return fmt::format("block {} of tenant {}", block, blocks_[block].tenant);
}

BlockNumber Truth::Add(uint32_t tenant, uint64_t bytes, BlockNumber parent) {
  const auto number = static_cast<BlockNumber>(blocks_.size());
  Block& block = blocks_.emplace_back();
  block.tenant = tenant;
  block.bytes = bytes;
  block.parent = parent;
  if (parent != kNoParent) blocks_[parent].children.push_back(number);
  return number;
}

// ---- Requests ----

void Truth::SetDue(RequestNumber number, OpenRequest* request, int64_t due_nanos) {
  due_.erase({request->due_nanos, number});
  request->due_nanos = due_nanos;
  due_.insert({due_nanos, number});
}

Truth::RequestNumber Truth::Asked(const char* what, int64_t timeout_nanos, uint32_t node) {
  const RequestNumber number = next_request_++;
  const int64_t unix_seconds = UnixSeconds(node);
  OpenRequest& request = requests_[number];
  request = {.what = what,
             .node = node,
             .asked = Moment(),
             .asked_nanos = clocks_[0]->NowNanos(),
             .due_nanos = 0,
             .unix_low = unix_seconds,
             .unix_high = unix_seconds,
             .evicts = {},
             .evicts_all_of = {}};
  SetDue(number, &request,
         clocks_[0]->NowNanos() + std::min(timeout_nanos, kSomeTimeNanos) + options_.grace_nanos);
  return number;
}

void Truth::Forgotten(RequestNumber number) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return;
  due_.erase({found->second.due_nanos, number});
  EndEviction(found->second);
  requests_.erase(found);
}

void Truth::Answered(RequestNumber number) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return Violate("a request was answered twice");
  if (clocks_[0]->NowNanos() > found->second.due_nanos) {
    Violate(fmt::format("a {} was answered {:.3f} ms after its deadline", found->second.what,
                        static_cast<double>(clocks_[0]->NowNanos() - found->second.due_nanos +
                                            options_.grace_nanos) /
                            1e6));
  }
  Forgotten(number);
}

void Truth::CheckDeadlines() {
  if (due_.empty() || due_.begin()->first >= clocks_[0]->NowNanos()) return;
  const OpenRequest& request = requests_.at(due_.begin()->second);
  Violate(fmt::format("a {} is not answered though its deadline has passed", request.what));
}

void Truth::Suspended(int64_t nanos) {
  // Nobody could answer meanwhile, and the time of what was not even begun starts now.
  for (auto& [number, request] : requests_) SetDue(number, &request, request.due_nanos + nanos);
}

void Truth::CalendarSet(uint32_t node) {
  const int64_t unix_seconds = UnixSeconds(node);
  for (auto& [number, request] : requests_) {
    if (request.node != node) continue;
    request.unix_low = std::min(request.unix_low, unix_seconds);
    request.unix_high = std::max(request.unix_high, unix_seconds);
  }
  UnpinAll(node);  // Their time may have been over for a moment.
}

// ---- Memory ----

void Truth::Lend(const Payload& payload, std::span<const std::byte> memory, uint64_t extent,
                 bool writing, uint32_t node) {
  const Block& block = blocks_[payload.block];
  if (memory.size() != block.bytes) {
    Violate(fmt::format("{} has {} bytes, but {} were lent", NameOf(payload.block), block.bytes,
                        memory.size()));
  }
  const auto [owner, first] = extent_tenants_.emplace(extent, block.tenant);
  if (extent == 0 || owner->second != block.tenant) {
    Violate(
        fmt::format("{} was lent in memory of tenant {}", NameOf(payload.block), owner->second));
  }
  auto next = loans_.lower_bound(memory.data());
  if (next != loans_.end() && next->first == memory.data()) {
    Loan& same = next->second;
    if (!writing && same.readers > 0 && same.payload == payload) {
      ++same.readers;
      return;
    }
    return Violate(
        fmt::format("the memory of {}, which is {}, was lent for {}", NameOf(same.payload.block),
                    same.readers > 0 ? "being read" : "being written", NameOf(payload.block)));
  }
  const bool hits_next = next != loans_.end() && next->first < memory.data() + memory.size();
  const bool hits_last = next != loans_.begin() &&
                         std::prev(next)->first + std::prev(next)->second.bytes > memory.data();
  if (hits_next || hits_last) {
    return Violate(fmt::format("{} was lent in memory that someone holds", NameOf(payload.block)));
  }
  loans_.emplace_hint(
      next, memory.data(),
      Loan{.payload = payload, .node = node, .bytes = memory.size(), .readers = writing ? 0u : 1u});
  uint64_t& lent = lent_bytes_[PlaceOf(block.tenant, node)];
  lent += WholePages(memory.size());
  if (lent > options_.tenants[block.tenant].dram_ceiling_bytes) {
    Violate(fmt::format("tenant {} holds {} bytes of DRAM, over its ceiling", block.tenant, lent));
  }
}

void Truth::Return(std::span<const std::byte> memory) {
  const auto found = loans_.find(memory.data());
  if (found == loans_.end()) return;
  if (found->second.readers > 1) {
    --found->second.readers;
    return;
  }
  const uint32_t tenant = blocks_[found->second.payload.block].tenant;
  lent_bytes_[PlaceOf(tenant, found->second.node)] -= WholePages(found->second.bytes);
  loans_.erase(found);
}

void Truth::CheckLoans() {
  for (const auto& [memory, loan] : loans_) {
    if (loan.readers == 0 || HoldsPayload(loan.payload, {memory, loan.bytes})) continue;
    Violate(fmt::format("{} changed while it was lent", NameOf(loan.payload.block)));
  }
}

// ---- Storing ----

uint32_t Truth::Reserved(BlockNumber number, std::span<const std::byte> slot, uint64_t extent,
                         RequestNumber request) {
  Block& block = blocks_[number];
  const OpenRequest& asked = requests_.at(request);
  const uint32_t node = asked.node;
  Unpin(&block, node);  // It was gone, and with it its pins.
  const bool again = !block.versions.empty();
  Version& version = block.versions.emplace_back();
  version.life = lives_[node];
  version.node = node;
  version.reserved_nanos = clocks_[0]->NowNanos();
  const int64_t unix_low = std::min(asked.unix_low, UnixSeconds(node));
  version.may_expire = again && unix_low < block.hinted_until;
  if (const int64_t ttl = options_.tenants[block.tenant].ttl_seconds; ttl > 0) {
    const int64_t now = std::max(asked.unix_high, UnixSeconds(node));
    version.expires_by = now + ttl;
    // One that a store has stays there if it lasts for half of that time.
    version.lasts_until = unix_low + ttl / 2;
  }
  const Payload payload{.block = number, .version = static_cast<uint32_t>(block.versions.size())};
  Lend(payload, slot, extent, true, node);
  Touched(std::span(&number, 1), node);
  return payload.version;
}

void Truth::CommitSent(const Payload& payload, std::span<const std::byte> slot) {
  if (!HoldsPayload(payload, slot)) {
    Violate(fmt::format("someone wrote to the slot of {}", NameOf(payload.block)));
  }
  At(payload).state = State::kSent;
  Return(slot);
}

void Truth::Committed(const Payload& payload, bool published) {
  Version& version = At(payload);
  if (version.state == State::kVoid) return;
  version.state = published ? State::kAcked : State::kVoid;
  version.acked = Moment();
}

void Truth::GaveUp(const Payload& payload, std::span<const std::byte> slot) {
  At(payload).state = State::kVoid;
  Return(slot);
}

// ---- Recalling ----

const char* Truth::WhyNotThere(BlockNumber number, const OpenRequest& asked) const {
  const Block& block = blocks_[number];
  const int64_t unix_low = std::min(asked.unix_low, UnixSeconds(asked.node));
  const char* why_not = "never stored";
  for (const Version& version : block.versions) {
    if (version.state != State::kSent && version.state != State::kAcked) continue;
    if (Deleted(block, version, asked)) {
      why_not = "deleted";
    } else if (unix_low > Expiry(version) && !options_.stores) {
      // What a durable tier has is remembered for a while, without its time to live.
      why_not = "expired";
    } else {
      return nullptr;
    }
  }
  return why_not;
}

void Truth::Had(BlockNumber number, RequestNumber request) {
  const char* const why_not = WhyNotThere(number, requests_.at(request));
  if (why_not == nullptr) return;
  Violate(fmt::format("{} is said to be there, but it was {}", NameOf(number), why_not));
}

void Truth::Matched(BlockNumber number, RequestNumber request) {
  // Who finds a block at a store takes what is above it to be there too.
  if (options_.stores && AnyBelowIsThere(number, requests_.at(request))) return;
  Had(number, request);
}

void Truth::Served(BlockNumber number, std::span<const std::byte> bytes, uint64_t extent,
                   RequestNumber request) {
  const Payload payload = ClaimedPayload(bytes);
  const Block& block = blocks_[number];
  const std::string name = NameOf(number);
  if (payload.block != number) {
    return Violate(payload.block < blocks_.size()
                       ? fmt::format("{} was served for {}", NameOf(payload.block), name)
                       : fmt::format("bytes that nobody wrote were served for {}", name));
  }
  if (payload.version == 0 || payload.version > block.versions.size()) {
    return Violate(fmt::format("bytes that nobody wrote were served for {}", name));
  }
  if (!HoldsPayload(payload, bytes)) {
    return Violate(fmt::format("{} was served with wrong bytes", name));
  }
  const Version& version = block.versions[payload.version - 1];
  if (version.state == State::kWriting) {
    return Violate(fmt::format("{} was served before it was committed", name));
  }
  if (version.state == State::kVoid) {
    return Violate(fmt::format("{} was served though it was given up", name));
  }
  const OpenRequest& asked = requests_.at(request);
  if (Deleted(block, version, asked)) {
    return Violate(fmt::format("{} was served after it was deleted", name));
  }
  if (KeyGone(block, version, asked)) {
    return Violate(fmt::format("{} was served after its tenant's key was destroyed", name));
  }
  const int64_t unix_low = std::min(asked.unix_low, UnixSeconds(asked.node));
  if (unix_low > Expiry(version)) {
    return Violate(
        fmt::format("{} was served {} s after it expired", name, unix_low - Expiry(version)));
  }
  Lend(payload, bytes, extent, false, asked.node);
}

void Truth::Released(std::span<const std::byte> bytes) {
  const auto found = loans_.find(bytes.data());
  if (found == loans_.end()) return;
  if (!HoldsPayload(found->second.payload, bytes)) {
    Violate(fmt::format("{} changed while it was lent", NameOf(found->second.payload.block)));
  }
  Return(bytes);
}

bool Truth::MustHave(BlockNumber number, uint64_t before, uint32_t node) const {
  if (!options_.keeps_what_is_safe || damaged_) return false;
  uint64_t below = UINT64_MAX;
  for (; number != kNoParent; number = blocks_[number].parent) {
    const Block& block = blocks_[number];
    if (block.evictions > 0 || evictions_[block.tenant] > 0) return false;
    // One that was stored again while its drive was away is safe as before.
    const auto safe = std::find_if(
        block.versions.rbegin(), block.versions.rend(),
        [node](const Version& version) { return version.safe && version.node == node; });
    if (safe == block.versions.rend()) return false;
    const Version& version = *safe;
    // A block that was stored after the one below it was not always there: that one may have gone
    // with it.
    if (version.safe_since > before) return false;
    const bool may_expire = version.may_expire || version.expires_by != INT64_MAX;
    if (may_expire || version.acked > below) return false;
    below = version.acked;
  }
  return true;
}

bool Truth::MustStay(BlockNumber number, const OpenRequest& request) const {
  if (damaged_) return false;
  const int64_t unix_high = std::max(request.unix_high, UnixSeconds(request.node));
  const uint64_t since = blocks_[number].pins[request.node].since;
  for (; number != kNoParent; number = blocks_[number].parent) {
    const Block& block = blocks_[number];
    const Pin& pin = block.pins[request.node];
    if (pin.pinned == 0 || pin.pinned > request.asked) return false;
    // What was pinned below it before may have gone with it meanwhile.
    if (pin.since > since) return false;
    if (unix_high >= pin.until || block.spoiled > pin.pinned) return false;
    if (block.evictions > 0 || evictions_[block.tenant] > 0) return false;
    if (block.hinted_until > 0 || options_.tenants[block.tenant].ttl_seconds > 0) return false;
  }
  return true;
}

void Truth::Missed(BlockNumber block, RequestNumber number, bool calm, bool stores_calm) {
  const OpenRequest& request = requests_.at(number);
  // What became safe since it was asked for may have been looked for before.
  if (calm && MustHave(block, request.asked, request.node)) {
    Violate(fmt::format("{} is lost, though it was flushed", NameOf(block)));
  }
  if (calm && MustStay(block, request)) {
    Violate(fmt::format("{} is gone, though it is pinned", NameOf(block)));
  }
  if (stores_calm && MustBeDurable(block, number)) {
    Violate(fmt::format("{} is lost, though a durable tier was said to have it", NameOf(block)));
  }
  Unpin(&blocks_[block], request.node);
}

void Truth::Corrupt(BlockNumber block) {
  if (damaged_ || stores_damaged_) return;
  Violate(fmt::format("{} is called corrupt, but no drive was damaged", NameOf(block)));
}

// ---- Care ----

void Truth::Spoil(BlockNumber number) {
  Block& block = blocks_[number];
  block.spoiled = Moment();
  for (Version& version : block.versions) version.safe = version.durable = false;
}

void Truth::Flushed(uint32_t tenant, uint64_t attached, uint64_t sent, Code code,
                    const FlushScope& scope) {
  uint64_t& lost_before = lost_before_[PlaceOf(tenant, scope.node)];
  if (code == Code::kNoSpace) lost_before = Moment();
  // Of what a durable tier will never have it is told once, in whatever words.
  if (code != Code::kOk && code != Code::kLate) {
    durable_lost_before_[PlaceOf(tenant, scope.node)] = Moment();
  }
  if (code != Code::kOk) return;
  if (scope.durable) FlushedDurable(tenant, attached, sent, scope.node);
  if (!scope.drives) return;
  for (Block& block : blocks_) {
    if (block.tenant != tenant || block.versions.empty()) continue;
    Version& version = block.versions.back();
    const uint64_t since = std::max({attached, lost_before, block.spoiled});
    if (version.state == State::kAcked && version.life == lives_[scope.node] &&
        version.acked > since && version.acked < sent) {
      if (!version.safe) version.safe_since = Moment();
      version.safe = true;
    }
  }
}

void Truth::SpoilBelow(std::span<const BlockNumber> blocks) {
  std::vector<BlockNumber> waiting(blocks.begin(), blocks.end());
  while (!waiting.empty()) {
    const BlockNumber number = waiting.back();
    waiting.pop_back();
    Spoil(number);
    waiting.insert(waiting.end(), blocks_[number].children.begin(), blocks_[number].children.end());
  }
}

void Truth::EvictSent(RequestNumber request, std::span<const BlockNumber> blocks) {
  requests_.at(request).evicts.assign(blocks.begin(), blocks.end());
  for (const BlockNumber number : blocks) {
    ++blocks_[number].evictions;
    ForgetSessions(blocks_[number].tenant);
  }
}

void Truth::EvictAllSent(RequestNumber request, uint32_t tenant) {
  requests_.at(request).evicts_all_of = tenant;
  ++evictions_[tenant];
  ForgetSessions(tenant);
}

void Truth::EndEviction(const OpenRequest& request) {
  for (const BlockNumber number : request.evicts) {
    --blocks_[number].evictions;
    ForgetSessions(blocks_[number].tenant);
  }
  SpoilBelow(request.evicts);
  if (!request.evicts_all_of.has_value()) return;
  --evictions_[*request.evicts_all_of];
  ForgetSessions(*request.evicts_all_of);
  for (BlockNumber number = 0; number < blocks_.size(); ++number) {
    if (blocks_[number].tenant == *request.evicts_all_of) Spoil(number);
  }
}

void Truth::Evicted(std::span<const BlockNumber> blocks, RequestNumber request) {
  const uint64_t sent = requests_.at(request).asked;
  const uint32_t node = requests_.at(request).node;
  const uint64_t now = Moment();
  for (const BlockNumber number : blocks) {
    // With the last one that was surely there, all before it.
    bool there = false;
    for (Version& version : std::views::reverse(blocks_[number].versions)) {
      there |= version.state == State::kAcked && version.acked < sent;
      if (!there || version.deleted != 0) continue;
      version.deleted = now;
      version.deleted_by = node;
    }
  }
}

void Truth::Hinted(std::span<const BlockNumber> blocks, int64_t ttl_seconds, uint32_t node) {
  const int64_t expires_by = UnixSeconds(node) + ttl_seconds;
  for (const BlockNumber number : blocks) {
    Spoil(number);
    blocks_[number].hinted_until = std::max(blocks_[number].hinted_until, expires_by);
    for (Version& version : blocks_[number].versions) {
      for (int64_t* const expiry : {&version.expires_by, &version.hinted_by}) {
        if (*expiry != INT64_MAX) *expiry = std::max(*expiry, expires_by);
      }
    }
  }
  Block& head = blocks_[blocks.back()];
  if (head.children.size() > 1 || head.versions.empty()) return;
  if (options_.stores) return;  // A durable tier has its old time to live for a while.
  // If it is ever seen in this life, it was there now.
  Version& version = head.versions.back();
  if (version.state == State::kAcked && version.life == lives_[node]) {
    version.hinted_by = expires_by;
  }
}

void Truth::PinSent(std::span<const BlockNumber> blocks, int64_t seconds, uint32_t node) {
  const int64_t until = UnixSeconds(node) + seconds;
  for (const BlockNumber number : blocks) {
    Pin& pin = blocks_[number].pins[node];
    pin.pinned = 0;
    if (seconds == 0) pin.since = 0;
    pin.until = std::min(pin.until, until);
  }
}

void Truth::Pinned(std::span<const BlockNumber> blocks, int64_t seconds, RequestNumber request,
                   bool calm) {
  const uint64_t now = Moment();
  const OpenRequest& asked = requests_.at(request);
  const int64_t unix_low = std::min(asked.unix_low, UnixSeconds(asked.node));
  const int64_t unix_high = std::max(asked.unix_high, UnixSeconds(asked.node));
  uint64_t since = 0;  // Of the one above.
  for (const BlockNumber number : blocks) {
    Block& block = blocks_[number];
    Pin& pin = block.pins[asked.node];
    const bool was_pinned = pin.since != 0 && unix_high < pin.until && block.spoiled <= pin.since;
    since = std::max(since, was_pinned ? pin.since : now);
    pin.pinned = calm ? now : 0;
    pin.since = calm ? since : 0;
    pin.until = unix_low + seconds;
  }
}

void Truth::UnpinAll(uint32_t node) {
  for (Block& block : blocks_) Unpin(&block, node);
}

// ---- Faults ----

void Truth::Died(bool lost_writes, uint32_t node) {
  const uint32_t life = std::exchange(lives_[node], ++last_life_);
  std::erase_if(loans_, [node](const auto& loan) { return loan.second.node == node; });
  std::vector<RequestNumber> open;
  for (const auto& [number, request] : requests_) {
    if (request.node == node) open.push_back(number);
  }
  for (const RequestNumber number : open) Forgotten(number);
  for (uint32_t tenant = 0; tenant < options_.tenants.size(); ++tenant) {
    lent_bytes_[PlaceOf(tenant, node)] = 0;
  }
  damaged_ |= lost_writes;
  UnpinAll(node);
  for (Block& block : blocks_) {
    for (Version& version : block.versions) {
      if (lost_writes && version.deleted_by == node) version.deleted = 0;
      if (version.life != life && version.state == State::kWriting) continue;
      version.hinted_by = INT64_MAX;  // It may not have reached the drive.
      if (version.state == State::kWriting) version.state = State::kVoid;
    }
  }
}

void Truth::Damaged() { damaged_ = true; }

void Truth::Disturbed(uint32_t node) { UnpinAll(node); }

}  // namespace aquifer
