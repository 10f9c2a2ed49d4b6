#include "cache/session/session_ends.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr int64_t kAgainNanos = 2'000'000'000;

}  // namespace

BlockName SessionEnds::ParentOf(BlockRef ref) const {
  BlockName name = parts_.residency->NameOf(ref);
  name.key = parts_.residency->index().ParentKey(ref);
  return name;
}

bool SessionEnds::IsStored(const BlockName& name) const {
  return parts_.residency->index().Find(name) != kNoBlock;
}

// --- Ends

SessionEnds::End& SessionEnds::At(const BlockName& name) {
  const auto [found, added] = ends_.try_emplace(name);
  if (!added) by_order_.erase(found->second.order);
  found->second.order = next_;
  by_order_[next_++] = name;
  if (ends_.size() > parts_.bounds.max_ends) Erase(BlockName(by_order_.begin()->second));
  return found->second;
}

void SessionEnds::Erase(const BlockName& name) {
  const auto found = ends_.find(name);
  if (found == ends_.end()) return;
  for (const std::string& session : found->second.sessions) {
    const auto own = of_session_.find({name.tenant, session});
    if (own->second.end == name) own->second.end.reset();
    if (own->second.named == name) own->second.named.reset();
    if (!own->second.end && !own->second.named) of_session_.erase(own);
  }
  by_order_.erase(found->second.order);
  ends_.erase(found);
}

void SessionEnds::Leave(const Session& session, const BlockName& name) {
  const auto found = ends_.find(name);
  if (found == ends_.end()) return;
  found->second.sessions.erase(session.second);
  if (found->second.sessions.empty() && !found->second.nameless) Erase(name);
}

void SessionEnds::MoveTo(const Session& session, const BlockName& name) {
  Own& own = of_session_[session];
  const std::optional<BlockName> before = std::exchange(own.end, name);
  if (before && *before != name && own.named != before) Leave(session, *before);
  At(name).sessions.insert(session.second);
}

void SessionEnds::Add(const std::string& session, const BlockName& head) {
  const Session name(head.tenant, session);
  Claim(session, head);
  if (const auto found = ends_.find(head); found != ends_.end() && found->second.sessions.empty()) {
    found->second.nameless = false;  // Now it has a name.
  }
  Own& own = of_session_[name];
  moved_.erase(name);
  if (own.named && *own.named != head && own.named != own.end) Leave(name, *own.named);
  own.named.reset();
  if (own.end && *own.end != head && !IsStored(head)) {
    own.named = head;
    At(head).sessions.insert(session);
    return;
  }
  own.hinted = head;
  MoveTo(name, head);
}

void SessionEnds::Claim(const std::string& session, const BlockName& head) {
  const auto found = ends_.find(head);
  if (found == ends_.end()) return;
  std::vector<std::pair<Session, BlockName>> back;
  for (const std::string& other : found->second.sessions) {
    Own& own = of_session_.at({head.tenant, other});
    if (own.end != head || own.hinted == head) continue;
    if (other == session) {
      own.hinted = head;
    } else {
      back.emplace_back(Session(head.tenant, other), own.hinted);
    }
  }
  if (!back.empty()) found->second.nameless = true;  // It goes on as durable, whoever it is.
  for (const auto& [other, hinted] : back) {
    MoveTo(other, hinted);
    moved_[other] = hinted;
  }
}

void SessionEnds::Forget(uint16_t tenant, const std::string& session) {
  const Session name(tenant, session);
  for (const uint64_t number : AskedOf(tenant)) asked_.at(number).outdated = true;
  moved_.erase(name);
  const auto own = of_session_.find(name);
  if (own == of_session_.end()) return;
  const Own gone = own->second;
  of_session_.erase(own);
  if (gone.end) Leave(name, *gone.end);
  if (gone.named) Leave(name, *gone.named);
}

void SessionEnds::BeginForgetting(uint16_t tenant) {
  for (const uint64_t number : AskedOf(tenant)) Settle(number);
  std::erase_if(moved_, [tenant](const auto& moved) { return moved.first.first == tenant; });
  TellAnswered();
}

bool SessionEnds::ForgetSome(uint16_t tenant, size_t max) {
  const BlockName first{.tenant = tenant, .group = 0, .part = 0, .key = {}};
  for (; max > 0; --max) {
    const auto end = ends_.lower_bound(first);
    if (end == ends_.end() || end->first.tenant != tenant) return false;
    for (const std::string& session : end->second.sessions) moved_.erase({tenant, session});
    Erase(BlockName(end->first));
  }
  return true;
}

void SessionEnds::GoOn(const Session& session, const BlockName& from, const BlockName& to) {
  Own& own = of_session_.at(session);
  if (own.named == from) {
    own.hinted = from;
    own.named.reset();
    if (own.end && *own.end != from) Leave(session, *own.end);
    own.end = from;
  }
  MoveTo(session, to);
  if (own.named == to) {
    own.hinted = to;
    own.named.reset();
  }
  if (!own.named) moved_[session] = to;  // Else its hint has said where it will be.
}

bool SessionEnds::Continue(BlockRef ref) {
  const BlockName parent = ParentOf(ref);
  const auto end = ends_.find(parent);
  if (end == ends_.end()) return false;
  const BlockName name = parts_.residency->NameOf(ref);
  const bool nameless = end->second.nameless;
  if (end->second.sessions.size() == 1 && !nameless) {
    GoOn({parent.tenant, std::string(*end->second.sessions.begin())}, parent, name);
  } else {
    const bool several = !end->second.sessions.empty();
    if (!several) Erase(parent);
    if (!several && !nameless) {
      At(name);
      return true;
    }
    At(name).nameless = true;
  }
  parts_.residency->WantDurable(ref);
  return true;
}

// --- What goes on from where

void SessionEnds::Follow(BlockRef ref, bool ask) {
  if (parts_.residency->at(ref).position == 0 || Continue(ref)) return;
  const BlockName parent = ParentOf(ref);
  const bool known = asked_of_.contains(parent);
  if (!known && !ask) return;
  if (!MakeRoom(parent.tenant, /*to_ask=*/!known)) {
    return parts_.residency->CountLostUndurable(parent.tenant);
  }
  const BlockName name = parts_.residency->NameOf(ref);
  if (known) {
    const uint64_t number = asked_of_.at(parent);
    asked_.at(number).blocks.push_back(name);
    return AddFollowing(number, name);
  }
  const uint64_t number = next_++;
  asked_[number] = {.end = parent, .blocks = {name}};
  ++shares_[parent.tenant].asked;
  AddFollowing(number, parent);
  AddFollowing(number, name);
  Ask(number);
}

void SessionEnds::AddFollowing(uint64_t number, const BlockName& name) {
  if (asked_of_.emplace(name, number).second) ++shares_[name.tenant].following;
}

bool SessionEnds::MakeRoom(uint16_t tenant, bool to_ask) {
  while (true) {
    const bool many = to_ask && asked_.size() >= parts_.bounds.max_asked;
    if (!many && asked_of_.size() + 1 < parts_.bounds.max_following) return true;
    size_t Share::* const part = many ? &Share::asked : &Share::following;
    const auto most = std::max_element(
        shares_.begin(), shares_.end(),
        [part](const auto& a, const auto& b) { return a.second.*part < b.second.*part; });
    const auto own = shares_.find(tenant);
    const size_t has = own == shares_.end() ? 0 : own->second.*part;
    if (most == shares_.end() || most->second.*part <= has + 1) return false;
    GiveUpOneOf(most->first);
  }
}

void SessionEnds::GiveUpOneOf(uint16_t tenant) {
  const uint64_t newest = AskedOf(tenant).back();
  for (size_t i = 0; i < asked_.at(newest).blocks.size(); ++i) {
    parts_.residency->CountLostUndurable(tenant);
  }
  Settle(newest);
  TellAnswered();
}

void SessionEnds::Ask(uint64_t number) {
  Asked& asked = asked_.at(number);
  asked.under_way = true;
  asked.outdated = false;
  parts_.notes->ReadEnd(asked.end,
                        [this, number, alive = alive_](const Result<SessionEnd>& answer) {
                          if (*alive) OnAnswer(number, answer);
                        });
}

void SessionEnds::OnAnswer(uint64_t number, const Result<SessionEnd>& answer) {
  const auto asked = asked_.find(number);
  if (asked == asked_.end()) return;
  if (asked->second.outdated) return Ask(number);
  asked->second.under_way = false;
  if (answer.ok() || answer.status().code() == Code::kNotFound) {
    const Asked answered = asked->second;
    Settle(number);
    OnFound(answered, answer.ok() ? StillThere(answered.end, *answer) : SessionEnd());
    Pump();
  } else {
    asked->second.again_nanos = parts_.clock->NowNanos() + kAgainNanos;
  }
  TellAnswered();
}

SessionEnd SessionEnds::StillThere(const BlockName& name, const SessionEnd& answer) const {
  SessionEnd still = answer;
  std::erase_if(still.sessions, [&](const std::string& session) {
    const auto own = of_session_.find({name.tenant, session});
    const bool elsewhere = own != of_session_.end() && own->second.end != name;
    return elsewhere || parts_.notes->forgetting(name.tenant, session);
  });
  return still;
}

void SessionEnds::OnFound(const Asked& asked, const SessionEnd& found) {
  if (found.sessions.empty() && !found.more) {
    At(asked.blocks.back());
    return;
  }
  for (const std::string& session : found.sessions) {
    const Session name(asked.end.tenant, session);
    of_session_[name].hinted = asked.end;
    MoveTo(name, asked.end);
  }
  if (found.more) At(asked.end).nameless = true;
  for (const BlockName& name : asked.blocks) {
    const BlockRef ref = parts_.residency->index().Find(name);
    if (ref == kNoBlock || parts_.residency->at(ref).state != BlockState::kResident) continue;
    if (Continue(ref) && parts_.residency->durable_wanted(ref)) parts_.want(ref);
  }
}

void SessionEnds::Settle(uint64_t number) {
  const Asked& asked = asked_.at(number);
  Share& share = shares_.at(asked.end.tenant);
  share.following -= asked_of_.erase(asked.end);
  for (const BlockName& name : asked.blocks) share.following -= asked_of_.erase(name);
  if (--share.asked == 0) shares_.erase(asked.end.tenant);
  asked_.erase(number);
}

std::vector<uint64_t> SessionEnds::AskedOf(uint16_t tenant) const {
  std::vector<uint64_t> all;
  for (const auto& [number, asked] : asked_) {
    if (asked.end.tenant == tenant) all.push_back(number);
  }
  return all;
}

void SessionEnds::Pump() {
  for (const auto& [session, head] : std::exchange(moved_, {})) {
    parts_.notes->Want(session.second, head, /*own_class=*/true);
    parts_.on_moved(session.second, head);
  }
  const int64_t now = parts_.clock->NowNanos();
  std::vector<uint64_t> due;
  for (const auto& [number, asked] : asked_) {
    if (!asked.under_way && asked.again_nanos <= now) due.push_back(number);
  }
  for (const uint64_t number : due) Ask(number);
}

void SessionEnds::AskAgain(uint16_t tenant) {
  for (const uint64_t number : AskedOf(tenant)) {
    if (!asked_.at(number).under_way) Ask(number);
  }
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
