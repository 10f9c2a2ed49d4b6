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
    : options_(options),
      clock_(clock),
      lent_bytes_(options.tenants.size()),
      lost_before_(options.tenants.size()),
      evictions_(options.tenants.size()) {}

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

Truth::RequestNumber Truth::Asked(const char* what, int64_t timeout_nanos) {
  const RequestNumber number = next_request_++;
  const int64_t unix_seconds = clock_->UnixSeconds();
  OpenRequest& request = requests_[number];
  request = {.what = what,
             .asked = Moment(),
             .due_nanos = 0,
             .unix_low = unix_seconds,
             .unix_high = unix_seconds,
             .evicts = {},
             .evicts_all_of = {}};
  SetDue(number, &request,
         clock_->NowNanos() + std::min(timeout_nanos, kSomeTimeNanos) + options_.grace_nanos);
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
  if (clock_->NowNanos() > found->second.due_nanos) {
    Violate(fmt::format(
        "a {} was answered {:.3f} ms after its deadline", found->second.what,
        static_cast<double>(clock_->NowNanos() - found->second.due_nanos + options_.grace_nanos) /
            1e6));
  }
  Forgotten(number);
}

void Truth::CheckDeadlines() {
  if (due_.empty() || due_.begin()->first >= clock_->NowNanos()) return;
  const OpenRequest& request = requests_.at(due_.begin()->second);
  Violate(fmt::format("a {} is not answered though its deadline has passed", request.what));
}

void Truth::Suspended(int64_t nanos) {
  // Nobody could answer meanwhile, and the time of what was not even begun starts now.
  for (auto& [number, request] : requests_) SetDue(number, &request, request.due_nanos + nanos);
}

void Truth::CalendarSet() {
  const int64_t unix_seconds = clock_->UnixSeconds();
  for (auto& [number, request] : requests_) {
    request.unix_low = std::min(request.unix_low, unix_seconds);
    request.unix_high = std::max(request.unix_high, unix_seconds);
  }
  UnpinAll();  // Their time may have been over for a moment.
}

// ---- Memory ----

void Truth::Lend(const Payload& payload, std::span<const std::byte> memory, uint64_t extent,
                 bool writing) {
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
      Loan{.payload = payload, .bytes = memory.size(), .readers = writing ? 0u : 1u});
  lent_bytes_[block.tenant] += WholePages(memory.size());
  if (lent_bytes_[block.tenant] > options_.tenants[block.tenant].dram_ceiling_bytes) {
    Violate(fmt::format("tenant {} holds {} bytes of DRAM, over its ceiling", block.tenant,
                        lent_bytes_[block.tenant]));
  }
}

void Truth::Return(std::span<const std::byte> memory) {
  const auto found = loans_.find(memory.data());
  if (found == loans_.end()) return;
  if (found->second.readers > 1) {
    --found->second.readers;
    return;
  }
  lent_bytes_[blocks_[found->second.payload.block].tenant] -= WholePages(found->second.bytes);
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
  Unpin(&block);  // It was gone, and with it its pins.
  const bool again = !block.versions.empty();
  Version& version = block.versions.emplace_back();
  version.life = life_;
  const int64_t unix_low = std::min(requests_.at(request).unix_low, clock_->UnixSeconds());
  version.may_expire = again && unix_low < block.hinted_until;
  if (const int64_t ttl = options_.tenants[block.tenant].ttl_seconds; ttl > 0) {
    const int64_t now = std::max(requests_.at(request).unix_high, clock_->UnixSeconds());
    version.expires_by = now + ttl;
  }
  const Payload payload{.block = number, .version = static_cast<uint32_t>(block.versions.size())};
  Lend(payload, slot, extent, true);
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

void Truth::Matched(BlockNumber number, RequestNumber request) {
  const Block& block = blocks_[number];
  const OpenRequest& asked = requests_.at(request);
  const int64_t unix_low = std::min(asked.unix_low, clock_->UnixSeconds());
  const bool possible =
      std::any_of(block.versions.begin(), block.versions.end(), [&](const Version& version) {
        const bool stored = version.state == State::kSent || version.state == State::kAcked;
        return stored && !Deleted(version, asked) && unix_low <= Expiry(version);
      });
  if (possible) return;
  Violate(fmt::format("{} is said to be there, but it was never stored, or deleted, or is expired",
                      NameOf(number)));
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
  if (Deleted(version, asked)) {
    return Violate(fmt::format("{} was served after it was deleted", name));
  }
  const int64_t unix_low = std::min(asked.unix_low, clock_->UnixSeconds());
  if (unix_low > Expiry(version)) {
    return Violate(
        fmt::format("{} was served {} s after it expired", name, unix_low - Expiry(version)));
  }
  Lend(payload, bytes, extent, false);
}

void Truth::Released(std::span<const std::byte> bytes) {
  const auto found = loans_.find(bytes.data());
  if (found == loans_.end()) return;
  if (!HoldsPayload(found->second.payload, bytes)) {
    Violate(fmt::format("{} changed while it was lent", NameOf(found->second.payload.block)));
  }
  Return(bytes);
}

bool Truth::MustHave(BlockNumber number, uint64_t before) const {
  if (!options_.keeps_what_is_safe || damaged_) return false;
  uint64_t below = UINT64_MAX;
  for (; number != kNoParent; number = blocks_[number].parent) {
    const Block& block = blocks_[number];
    if (block.evictions > 0 || evictions_[block.tenant] > 0) return false;
    // One that was stored again while its drive was away is safe as before.
    const auto safe = std::find_if(block.versions.rbegin(), block.versions.rend(),
                                   [](const Version& version) { return version.safe; });
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
  const int64_t unix_high = std::max(request.unix_high, clock_->UnixSeconds());
  const uint64_t since = blocks_[number].pinned_since;
  for (; number != kNoParent; number = blocks_[number].parent) {
    const Block& block = blocks_[number];
    if (block.pinned == 0 || block.pinned > request.asked) return false;
    // What was pinned below it before may have gone with it meanwhile.
    if (block.pinned_since > since) return false;
    if (unix_high >= block.pinned_until || block.spoiled > block.pinned) return false;
    if (block.evictions > 0 || evictions_[block.tenant] > 0) return false;
    if (block.hinted_until > 0 || options_.tenants[block.tenant].ttl_seconds > 0) return false;
  }
  return true;
}

void Truth::Missed(BlockNumber block, RequestNumber number, bool calm) {
  const OpenRequest& request = requests_.at(number);
  // What became safe since it was asked for may have been looked for before.
  if (calm && MustHave(block, request.asked)) {
    Violate(fmt::format("{} is lost, though it was flushed", NameOf(block)));
  }
  if (calm && MustStay(block, request)) {
    Violate(fmt::format("{} is gone, though it is pinned", NameOf(block)));
  }
  Unpin(&blocks_[block]);
}

void Truth::Corrupt(BlockNumber block) {
  if (damaged_) return;
  Violate(fmt::format("{} is called corrupt, but no drive was damaged", NameOf(block)));
}

// ---- Care ----

void Truth::Spoil(BlockNumber number) {
  Block& block = blocks_[number];
  block.spoiled = Moment();
  for (Version& version : block.versions) version.safe = false;
}

void Truth::Flushed(uint32_t tenant, uint64_t attached, uint64_t sent, Code code) {
  if (code == Code::kNoSpace) lost_before_[tenant] = Moment();
  if (code != Code::kOk) return;
  for (Block& block : blocks_) {
    if (block.tenant != tenant || block.versions.empty()) continue;
    Version& version = block.versions.back();
    const uint64_t since = std::max({attached, lost_before_[tenant], block.spoiled});
    if (version.state == State::kAcked && version.life == life_ && version.acked > since &&
        version.acked < sent) {
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
  for (const BlockNumber number : blocks) ++blocks_[number].evictions;
}

void Truth::EvictAllSent(RequestNumber request, uint32_t tenant) {
  requests_.at(request).evicts_all_of = tenant;
  ++evictions_[tenant];
}

void Truth::EndEviction(const OpenRequest& request) {
  for (const BlockNumber number : request.evicts) --blocks_[number].evictions;
  SpoilBelow(request.evicts);
  if (!request.evicts_all_of.has_value()) return;
  --evictions_[*request.evicts_all_of];
  for (BlockNumber number = 0; number < blocks_.size(); ++number) {
    if (blocks_[number].tenant == *request.evicts_all_of) Spoil(number);
  }
}

void Truth::Evicted(std::span<const BlockNumber> blocks, RequestNumber request) {
  const uint64_t sent = requests_.at(request).asked;
  const uint64_t now = Moment();
  for (const BlockNumber number : blocks) {
    // With the last one that was surely there, all before it.
    bool there = false;
    for (Version& version : std::views::reverse(blocks_[number].versions)) {
      there |= version.state == State::kAcked && version.acked < sent;
      if (there && version.deleted == 0) version.deleted = now;
    }
  }
}

void Truth::Hinted(std::span<const BlockNumber> blocks, int64_t ttl_seconds) {
  const int64_t expires_by = clock_->UnixSeconds() + ttl_seconds;
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
  // If it is ever seen in this life, it was there now.
  Version& version = head.versions.back();
  if (version.state == State::kAcked && version.life == life_) version.hinted_by = expires_by;
}

void Truth::PinSent(std::span<const BlockNumber> blocks, int64_t seconds) {
  const int64_t until = clock_->UnixSeconds() + seconds;
  for (const BlockNumber number : blocks) {
    Block& block = blocks_[number];
    block.pinned = 0;
    if (seconds == 0) Unpin(&block);
    block.pinned_until = std::min(block.pinned_until, until);
  }
}

void Truth::Pinned(std::span<const BlockNumber> blocks, int64_t seconds, RequestNumber request,
                   bool calm) {
  const uint64_t now = Moment();
  const int64_t unix_low = std::min(requests_.at(request).unix_low, clock_->UnixSeconds());
  const int64_t unix_high = std::max(requests_.at(request).unix_high, clock_->UnixSeconds());
  uint64_t since = 0;  // Of the one above.
  for (const BlockNumber number : blocks) {
    Block& block = blocks_[number];
    const bool was_pinned = block.pinned_since != 0 && unix_high < block.pinned_until &&
                            block.spoiled <= block.pinned_since;
    since = std::max(since, was_pinned ? block.pinned_since : now);
    block.pinned = calm ? now : 0;
    block.pinned_since = calm ? since : 0;
    block.pinned_until = unix_low + seconds;
  }
}

void Truth::UnpinAll() {
  for (Block& block : blocks_) Unpin(&block);
}

// ---- Faults ----

void Truth::Died(bool lost_writes) {
  ++life_;
  loans_.clear();
  extent_tenants_.clear();
  for (const auto& [number, request] : requests_) EndEviction(request);
  requests_.clear();
  due_.clear();
  std::fill(lent_bytes_.begin(), lent_bytes_.end(), 0);
  damaged_ |= lost_writes;
  UnpinAll();
  for (Block& block : blocks_) {
    for (Version& version : block.versions) {
      if (lost_writes) version.deleted = 0;
      version.hinted_by = INT64_MAX;  // It may not have reached the drive.
      if (version.state == State::kWriting) version.state = State::kVoid;
    }
  }
}

void Truth::Damaged() { damaged_ = true; }

void Truth::Disturbed() { UnpinAll(); }

}  // namespace aquifer
