#include "node/local/recorder_trace.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/bytes.h"

namespace aquifer {
namespace {

constexpr uint64_t kIdMask = (uint64_t{1} << 53) - 1;  // A JSON reader's number may be a double.

// Where a chain of this engine ends. Ids are random: they mix with anything.
uint64_t EndOf(uint64_t engine, uint64_t id) { return engine * 0x9E3779B97F4A7C15u ^ id; }

}  // namespace

uint64_t RecordedTrace::IdOf(const RecordedClient& client, const Key& key) {
  hash_.Update(options_.salt);
  hash_.Update(client.tenant);
  hash_.Update(key.bytes);
  return GetU64(hash_.Finish().data()) & kIdMask;
}

RecordedTrace::Waiting* RecordedTrace::FindEndingAt(uint64_t engine, uint64_t id) {
  const auto found = by_end_.find(EndOf(engine, id));
  return found == by_end_.end() ? nullptr : &waiting_[found->second - first_];
}

void RecordedTrace::EndAt(uint64_t engine, uint64_t end) {
  Waiting* const found = FindEndingAt(engine, end);
  if (found == nullptr) return;
  found->ended = true;
  by_end_.erase(EndOf(engine, end));
}

void RecordedTrace::Asked(int64_t now_nanos, const RecordedClient& client,
                          uint32_t tokens_per_block, std::span<const Key> keys) {
  if (keys.empty()) return;
  Waiting fresh{.asked_nanos = now_nanos,
                .again_nanos = now_nanos,
                .input_tokens = uint64_t{tokens_per_block} * keys.size(),
                .engine = client.engine};
  fresh.ids.reserve(keys.size());
  for (const Key& key : keys) fresh.ids.push_back(IdOf(client, key));
  fresh.end = fresh.ids.back();
  Waiting* const same = FindEndingAt(client.engine, fresh.end);
  if (same != nullptr && same->output_tokens == 0 &&
      now_nanos - same->again_nanos < options_.again_nanos) {
    same->again_nanos = now_nanos;
    return;
  }
  // What this prompt goes on from has its whole output.
  for (const uint64_t id : fresh.ids) EndAt(client.engine, id);
  by_end_[EndOf(client.engine, fresh.end)] = first_ + waiting_.size();
  waiting_ids_ += fresh.ids.size();
  waiting_.push_back(std::move(fresh));
}

void RecordedTrace::Stored(const RecordedClient& client, uint32_t tokens_per_block,
                           const Key& parent, std::span<const Key> keys) {
  if (keys.empty() || by_end_.empty()) return;
  // The blocks behind the last of these that some request ends with are its output.
  uint64_t id = IdOf(client, parent);
  auto found = by_end_.find(EndOf(client.engine, id));
  size_t output = keys.size();
  for (size_t i = 0; i < keys.size(); ++i) {
    id = IdOf(client, keys[i]);
    const auto here = by_end_.find(EndOf(client.engine, id));
    if (here == by_end_.end()) continue;
    found = here;
    output = keys.size() - i - 1;
  }
  if (found == by_end_.end() || output == 0) return;
  const uint64_t number = found->second;
  by_end_.erase(found);
  by_end_[EndOf(client.engine, id)] = number;
  waiting_[number - first_].output_tokens += uint64_t{tokens_per_block} * output;
  waiting_[number - first_].end = id;
}

bool RecordedTrace::IsDue(const Waiting& first, int64_t now_nanos) const {
  return first.ended || now_nanos - first.asked_nanos >= options_.hold_nanos ||
         waiting_.size() > options_.max_waiting || waiting_ids_ > options_.max_waiting_ids;
}

size_t RecordedTrace::TakeLines(int64_t now_nanos, bool all, std::string* lines) {
  size_t taken = 0;
  for (; !waiting_.empty() && (all || IsDue(waiting_.front(), now_nanos)); ++taken) {
    const Waiting& first = waiting_.front();
    fmt::format_to(std::back_inserter(*lines),
                   "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, "
                   "\"hash_ids\": [{}]}}\n",
                   (first.asked_nanos - options_.start_nanos) / 1'000'000, first.input_tokens,
                   first.output_tokens, fmt::join(first.ids, ", "));
    if (!first.ended) EndAt(first.engine, first.end);
    waiting_ids_ -= first.ids.size();
    waiting_.pop_front();
    ++first_;
  }
  return taken;
}

}  // namespace aquifer
