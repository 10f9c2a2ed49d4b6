// What must be true of sessions of durable class: that a node which never heard of one finds it by
// its name alone, once a flush said that all is durable.
#include <fmt/format.h>

#include <algorithm>

#include "sim/world/truth.h"

namespace aquifer {

void Truth::SessionNamed(uint32_t tenant, const std::string& name,
                         std::span<const BlockNumber> blocks, uint32_t node, bool durable) {
  durable |= options_.tenants[tenant].durable;
  Session& session = sessions_[{tenant, name}];
  // By which clock two nodes' notes are compared is their own affair.
  session.by_several |= !session.blocks.empty() && session.node != node;
  session.blocks.assign(blocks.begin(), blocks.end());
  session.node = node;
  session.named = Moment();
  session.heard[node] = lives_[node];
  session.durable = durable;
  session.promised = 0;
}

// Only a chain whose blocks the node stored itself in this life is surely known there as a whole.
void Truth::SessionsFlushed(uint32_t tenant, uint64_t sent, uint32_t node) {
  for (auto& [name, session] : sessions_) {
    const bool asked = name.first == tenant && session.node == node && session.durable &&
                       session.heard[node] == lives_[node] && session.named < sent;
    if (!asked || session.promised != 0 || evictions_[tenant] > 0) continue;
    const bool whole =
        std::all_of(session.blocks.begin(), session.blocks.end(), [&](BlockNumber number) {
          const Block& block = blocks_[number];
          return block.evictions == 0 && !block.versions.empty() && block.versions.back().durable &&
                 block.versions.back().life == lives_[node];
        });
    if (whole) session.promised = Moment();
  }
}

void Truth::ForgetSessions(uint32_t tenant) {
  for (auto& [name, session] : sessions_) {
    if (name.first == tenant) session.durable = false;
  }
}

void Truth::SessionFound(const std::string& name, size_t found, RequestNumber request,
                         uint32_t tenant, bool stores_calm) {
  Session& session = sessions_[{tenant, name}];
  const OpenRequest& asked = requests_.at(request);
  // What a node once heard it believes, however the session went on elsewhere.
  const bool news = session.node == asked.node || session.heard[asked.node] != lives_[asked.node];
  session.heard[asked.node] = lives_[asked.node];
  const bool promised = session.durable && session.promised != 0 && !session.by_several &&
                        session.promised < asked.asked && !session.blocks.empty();
  if (!promised || !news || !stores_calm || found >= session.blocks.size()) return;
  if (!MustBeDurable(session.blocks.back(), request)) return;
  Violate(fmt::format("of {}'s {} blocks only {} are found by its name, by tenant {} on node {}",
                      name, session.blocks.size(), found, tenant, asked.node + 1));
}

}  // namespace aquifer
