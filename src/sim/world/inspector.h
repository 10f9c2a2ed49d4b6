// Looks at the node from outside: caps and deadlines after every step, and now and then accounts
// and the memory that is lent as well. What it finds goes to the truth as a violation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/core.h"
#include "sim/world/node.h"
#include "sim/world/truth.h"

namespace aquifer {

// What the cache says of itself, as one tenant sees it, beside what is known without it.
struct Accounts {
  CacheStats stats;
  uint64_t lent_bytes = 0;  // To the tenant's engines, by the truth.
  uint64_t dram_ceiling_bytes = UINT64_MAX;
  uint64_t nvme_ceiling_bytes = UINT64_MAX;
};

// Each tenant within its ceilings, nobody charged for another, no tier over its capacity. Returns
// what is wrong, or nothing.
std::string FindWrongAccounts(const std::vector<Accounts>& tenants);

// When nothing is under way: the drives hold what the cache believes to be on them. They may hold
// more, whose time is over.
std::string FindDisagreement(const std::vector<Accounts>& tenants);

// After everything was deleted and given back: nothing may be left.
std::string FindLeftovers(const std::vector<Accounts>& tenants);

class Inspector final : private ClientSink {
 public:
  Inspector(SimulatedNode* node, Truth* truth) : node_(node), truth_(truth) {}

  // Cheap, and after every step.
  void CheckStep();
  // The node is alive.
  void CheckAll();
  // The same, with nothing under way.
  void CheckAtRest();
  // The same, and nothing may be left.
  void CheckEmpty();

 private:
  void OnProgress(Request*, size_t, bool) override {}
  std::vector<Accounts> TakeAccounts();

  SimulatedNode* const node_;
  Truth* const truth_;
  uint32_t life_ = 0;                  // Of the node, in which it has these clients.
  std::vector<ClientNumber> clients_;  // One for each tenant.
};

}  // namespace aquifer
