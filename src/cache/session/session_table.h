// What tenants said of their sessions: each name, and the block with which the session ends. Of too
// many, the oldest of the tenant that has most is forgotten.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "cache/residency/residency.h"

namespace aquifer {

// A name is listed, typed and paged by as text. Returns true if it is fit for that: other names are
// not remembered.
bool IsSessionName(const std::string& name);

struct NamedSession {
  BlockName head;
  uint64_t order = 0;
  bool deleted = false;  // Since it was named; it may be that not all of it is gone yet.
};

class SessionTable {
 public:
  SessionTable(size_t max_sessions, Residency* residency)
      : max_sessions_(max_sessions), residency_(residency) {}

  // The session ends with that block now.
  void Remember(const std::string& name, const BlockName& head);
  // Null: there is no such session.
  const NamedSession* Find(uint16_t tenant, const std::string& name) const;
  // It is being deleted: its blocks are nobody's because of it.
  void ForgetHead(uint16_t tenant, const std::string& name);
  // Returns true if a session that is not deleted ends there.
  bool IsHead(const BlockName& name) const;
  // Forgets up to `max` of a tenant's. Returns true if there are more.
  bool ForgetSome(uint16_t tenant, size_t max);

  // A tenant's, by name; null: it has none.
  using ByName = std::map<std::string, NamedSession>;
  const ByName* SessionsOf(uint16_t tenant) const;
  size_t size() const { return count_; }

 private:
  struct Tenant {
    ByName by_name;
    std::map<uint64_t, std::string> by_age;  // The oldest first.
    std::multiset<BlockName> heads;          // Of those that are not deleted.
  };

  void ForgetOldestOf(Tenant* tenant);
  void ForgetOne();

  const size_t max_sessions_;
  Residency* const residency_;
  std::map<uint16_t, Tenant> tenants_;
  size_t count_ = 0;
  uint64_t next_order_ = 1;
};

}  // namespace aquifer
