#include "cache/session_ends.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr size_t kMaxEnds = size_t{1} << 16;
constexpr size_t kMaxAsked = 1024;
constexpr size_t kMaxFollowing = size_t{1} << 16;  // Blocks below ends that are asked about.
constexpr int64_t kAgainNanos = 2'000'000'000;
constexpr int kMostTries = 30;

}  // namespace

BlockName SessionEnds::ParentOf(BlockRef ref) const {
  BlockName name = parts_.residency->NameOf(ref);
  name.key = parts_.residency->index().ParentKey(ref);
  return name;
}

void SessionEnds::Insert(const BlockName& name, const Session& session, bool hinted) {
  Erase(name);
  ends_[name] = {.session = session, .hinted = hinted, .order = next_};
  by_order_[next_++] = name;
  of_session_[session].insert(name);
  if (ends_.size() > kMaxEnds) Erase(BlockName(by_order_.begin()->second));
}

void SessionEnds::Erase(const BlockName& name) {
  const auto found = ends_.find(name);
  if (found == ends_.end()) return;
  const auto own = of_session_.find(found->second.session);
  own->second.erase(name);
  if (own->second.empty()) of_session_.erase(own);
  by_order_.erase(found->second.order);
  ends_.erase(found);
}

void SessionEnds::Add(const std::string& session, const BlockName& head) {
  Insert(head, {head.tenant, session}, /*hinted=*/true);
}

void SessionEnds::Forget(uint16_t tenant, const std::string& session) {
  const Session name(tenant, session);
  SettleAll(tenant);  // What is on its way may be of before.
  moved_.erase(name);
  const auto own = of_session_.find(name);
  if (own == of_session_.end()) return;
  for (const BlockName& end : std::set<BlockName>(own->second)) Erase(end);
}

void SessionEnds::ForgetTenant(uint16_t tenant) {
  SettleAll(tenant);
  for (auto next = of_session_.lower_bound({tenant, ""});
       next != of_session_.end() && next->first.first == tenant;
       next = of_session_.lower_bound({tenant, ""})) {
    Forget(tenant, std::string(next->first.second));
  }
}

bool SessionEnds::Continue(BlockRef ref) {
  const auto end = ends_.find(ParentOf(ref));
  if (end == ends_.end()) return false;
  const Session session = end->second.session;
  if (!end->second.hinted) Erase(BlockName(end->first));
  const BlockName name = parts_.residency->NameOf(ref);
  Insert(name, session, /*hinted=*/false);
  if (session.second.empty()) return true;
  parts_.residency->WantDurable(ref);
  moved_[session] = name;
  return true;
}

void SessionEnds::Follow(BlockRef ref, bool ask) {
  if (parts_.residency->at(ref).position == 0 || Continue(ref)) return;
  const BlockName parent = ParentOf(ref);
  const auto known = asked_of_.find(parent);
  if (asked_of_.size() >= kMaxFollowing) return;
  const BlockName name = parts_.residency->NameOf(ref);
  if (known != asked_of_.end()) {
    asked_.at(known->second).blocks.push_back(name);
    asked_of_[name] = known->second;
    return;
  }
  if (!ask || asked_.size() >= kMaxAsked) return;
  const uint64_t number = next_++;
  asked_[number] = {.end = parent, .blocks = {name}};
  asked_of_[parent] = asked_of_[name] = number;
  Ask(number);
}

void SessionEnds::Ask(uint64_t number) {
  Asked& asked = asked_.at(number);
  asked.under_way = true;
  ++asked.tries;
  parts_.notes->ReadEnd(asked.end,
                        [this, number, alive = alive_](const Result<std::string>& session) {
                          if (*alive) OnAnswer(number, session);
                        });
}

void SessionEnds::OnAnswer(uint64_t number, const Result<std::string>& session) {
  const auto found = asked_.find(number);
  if (found == asked_.end()) return;
  Asked& asked = found->second;
  asked.under_way = false;
  if (session.ok()) {
    Insert(asked.end, {asked.end.tenant, *session}, /*hinted=*/true);
    for (const BlockName& name : asked.blocks) {
      const BlockRef ref = parts_.residency->index().Find(name);
      if (ref == kNoBlock || parts_.residency->at(ref).state != BlockState::kResident) continue;
      if (Continue(ref)) parts_.want(ref);  // This one has a name.
    }
    Settle(number);
    Pump();
  } else if (session.status().code() == Code::kNotFound || asked.tries == kMostTries) {
    Insert(asked.blocks.back(), {asked.end.tenant, ""}, /*hinted=*/false);
    Settle(number);
  } else {
    asked.again_nanos = parts_.clock->NowNanos() + kAgainNanos;
  }
  TellAnswered();
}

void SessionEnds::Settle(uint64_t number) {
  const Asked& asked = asked_.at(number);
  asked_of_.erase(asked.end);
  for (const BlockName& name : asked.blocks) asked_of_.erase(name);
  asked_.erase(number);
}

void SessionEnds::SettleAll(uint16_t tenant) {
  std::vector<uint64_t> all;
  for (const auto& [number, asked] : asked_) {
    if (asked.end.tenant == tenant) all.push_back(number);
  }
  for (const uint64_t number : all) Settle(number);
  if (!all.empty()) TellAnswered();
}

void SessionEnds::Pump() {
  for (const auto& [session, head] : std::exchange(moved_, {})) {
    parts_.notes->Want(session.second, head, /*own_class=*/true);
  }
  const int64_t now = parts_.clock->NowNanos();
  std::vector<uint64_t> due;
  for (const auto& [number, asked] : asked_) {
    if (!asked.under_way && asked.again_nanos <= now) due.push_back(number);
  }
  for (const uint64_t number : due) Ask(number);
}

bool SessionEnds::asking(uint16_t tenant) const {
  return std::any_of(asked_.begin(), asked_.end(), [tenant](const auto& one) {
    return one.second.under_way && one.second.end.tenant == tenant;
  });
}

void SessionEnds::WhenAnswered(uint16_t tenant, std::function<void()> on_done) {
  waiting_.emplace_back(tenant, std::move(on_done));
}

void SessionEnds::TellAnswered() {
  std::vector<std::function<void()>> through;
  std::erase_if(waiting_, [&](auto& one) {
    if (asking(one.first)) return false;
    through.push_back(std::move(one.second));
    return true;
  });
  for (const auto& on_done : through) on_done();
}

}  // namespace aquifer
