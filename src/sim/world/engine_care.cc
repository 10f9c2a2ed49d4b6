// What an engine does beside recalling and storing.
#include <algorithm>
#include <utility>

#include "sim/world/engine.h"

namespace aquifer {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

void Engine::Care() {
  switch (random_.Below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return Flush();
    case 5:
    case 6:
      return Pin();
    case 7:
    case 8:
    case 9:
      return Prestage();
    case 10:
    case 11:
    case 12:
      return Evict();
    case 13:
    case 14:
      return Hint();
    default:
      return OneIn(8) ? Drain() : Flush();
  }
}

void Engine::Flush() {
  doing_ = Doing::kFlushing;
  flush_.tier = options_.stores && OneIn(2) ? TierKind::kDurable : TierKind::kNvme;
  flush_.timeout_nanos = Timeout();
  sent_moment_ = world_.truth->Moment();
  world_.trace->Add(TraceKind::kFlush, options_.number,
                    static_cast<uint64_t>(flush_.timeout_nanos / kMicro));
  Submit(&Core::Flush, &flush_, "flush", flush_.timeout_nanos);
}

void Engine::Pin() {
  doing_ = Doing::kPinning;
  pin_.chain = Slice(0, 1 + random_.Below(keys_.size()));
  pinned_.assign(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(pin_.chain.keys.size()));
  pin_.seconds = OneIn(4) ? 0 : static_cast<int64_t>(1 + random_.Below(120));
  world_.counts->block_operations += pin_.chain.keys.size();
  world_.trace->Add(TraceKind::kPin, options_.number, pin_.chain.keys.size(), conversation_,
                    static_cast<uint64_t>(pin_.seconds));
  Submit(&Core::Pin, &pin_, "pin", kSecond);
  Touch(pinned_);
  world_.truth->PinSent(pinned_, pin_.seconds, world_.node->number());
}

void Engine::Prestage() {
  doing_ = Doing::kPrestaging;
  const bool by_session = OneIn(3);
  Touch(blocks_);
  prestage_.chain = Slice(0, by_session ? 0 : keys_.size());
  prestage_.session = by_session ? world_.conversations->at(conversation_).session : std::string();
  prestage_.timeout_nanos = Timeout();
  world_.counts->block_operations += prestage_.chain.keys.size();
  world_.trace->Add(TraceKind::kPrestage, options_.number, by_session ? 1 : 0, conversation_,
                    static_cast<uint64_t>(prestage_.timeout_nanos / kMicro));
  Submit(&Core::Prestage, &prestage_, "prestage", prestage_.timeout_nanos);
  if (OneIn(12)) PlanCancel(&prestage_);
}

void Engine::Evict() {
  doing_ = Doing::kEvicting;
  const uint64_t way = random_.Below(8);
  evict_.everything = way == 0;
  evict_.session.clear();
  evict_.chain = {};
  evicted_.clear();
  if (way == 0) {
    evicted_ = world_.conversations->BlocksOf(options_.tenant);
  } else if (way == 1) {
    evict_.session = world_.conversations->at(conversation_).session;
  } else {
    const size_t first = random_.Below(keys_.size());
    const size_t count = OneIn(2) ? keys_.size() - first : 1;
    evict_.chain = Slice(first, count);
    evicted_.assign(blocks_.begin() + static_cast<ptrdiff_t>(first),
                    blocks_.begin() + static_cast<ptrdiff_t>(first + count));
  }
  world_.counts->block_operations += evict_.chain.keys.size();
  world_.trace->Add(TraceKind::kEvict, options_.number, evict_.chain.keys.size(), conversation_,
                    way);
  Submit(&Core::Evict, &evict_, "evict", INT64_MAX);
  if (evict_.chain.keys.empty()) {
    world_.truth->EvictAllSent(request_, options_.tenant);  // A session may name any of them.
  } else {
    world_.truth->EvictSent(request_, evicted_);
  }
}

void Engine::Drain() {
  doing_ = Doing::kDraining;
  drain_.timeout_nanos = Timeout();
  sent_moment_ = world_.truth->Moment();
  world_.trace->Add(TraceKind::kDrain, options_.number);
  Submit(&Core::Drain, &drain_, "drain", drain_.timeout_nanos);
}

void Engine::Hint() {
  SessionForecast forecast;
  forecast.session = world_.conversations->at(conversation_).session;
  forecast.state = static_cast<SessionState>(random_.Below(3));
  forecast.priority = static_cast<int8_t>(random_.Below(16)) - 8;
  forecast.ttl_seconds = OneIn(2) ? 0 : static_cast<int64_t>(1 + random_.Below(600));
  if (forecast.ttl_seconds > 0) {
    const int64_t now = world_.node->clock()->UnixSeconds();
    keeps_until_ = std::min(keeps_until_, now + forecast.ttl_seconds);
  }
  if (options_.stores) forecast.durability = NextDurability();
  const size_t length = 1 + random_.Below(keys_.size());
  // Only the last key is looked at, and it travels beside the forecast.
  forecast.chain = {.layout = handles_[0][layout_], .group = group_, .part = 0, .keys = {}};
  std::vector<BlockNumber> blocks(blocks_.begin(),
                                  blocks_.begin() + static_cast<ptrdiff_t>(length));
  world_.trace->Add(TraceKind::kHint, options_.number, static_cast<uint64_t>(forecast.ttl_seconds),
                    conversation_);
  world_.node->Post([this, forecast, head = keys_[length - 1], blocks = std::move(blocks)] {
    world_.node->core()->Hint(clients_[0], forecast, head);
    const uint32_t node = world_.node->number();
    if (forecast.ttl_seconds > 0) world_.truth->Hinted(blocks, forecast.ttl_seconds, node);
    if (options_.stores) {
      const bool durable = forecast.durability == Durability::kDurable;
      world_.truth->SessionNamed(options_.tenant, forecast.session, blocks, node, durable);
    }
  });
  if (OneIn(2)) {
    const PrefillReport report{.layout = handles_[0][layout_],
                               .tokens = static_cast<uint32_t>(16 * length),
                               .context_tokens = static_cast<uint32_t>(random_.Below(4096)),
                               .milliseconds = static_cast<double>(1 + random_.Below(200))};
    world_.trace->Add(TraceKind::kPrefill, options_.number, report.tokens);
    world_.node->Post([this, report] { world_.node->core()->ReportPrefill(clients_[0], report); });
  }
  EndTurn();
}

// Now and then a session is to be durable though its tenant's class is not.
Durability Engine::NextDurability() { return OneIn(3) ? Durability::kDurable : Durability::kNone; }

void Engine::SeeSession() {
  const Code code = prestage_.status.code();
  const bool answered = code == Code::kOk || code == Code::kNotFound;
  if (!options_.stores || !prestage_.chain.keys.empty() || !answered) return;
  world_.truth->SessionFound(prestage_.session, prestage_.found, request_, options_.tenant,
                             stores_were_calm_ && world_.stores_calm());
}

void Engine::SeeCare() {
  Trace& trace = *world_.trace;
  const uint32_t who = options_.number;
  switch (doing_) {
    case Doing::kFlushing:
      if (flush_.status.ok()) ++world_.counts->flushed;
      trace.Add(TraceKind::kFlushed, who, static_cast<uint64_t>(flush_.status.code()));
      break;
    case Doing::kPinning:
      trace.Add(TraceKind::kPinned, who, pin_.pinned, pin_.chain.keys.size());
      break;
    case Doing::kPrestaging:
      trace.Add(TraceKind::kPrestaged, who, prestage_.staged, prestage_.found);
      break;
    case Doing::kEvicting:
      world_.counts->evicted += evict_.evicted;
      trace.Add(TraceKind::kEvicted, who, evict_.evicted,
                static_cast<uint64_t>(evict_.status.code()));
      break;
    case Doing::kDraining:
      trace.Add(TraceKind::kDrained, who, static_cast<uint64_t>(drain_.status.code()), drain_.left);
      break;
    default:
      break;
  }
  EndTurn();
}

}  // namespace aquifer
