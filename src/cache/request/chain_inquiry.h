// What one request knows of its chain in the durable tiers: it asks where memory does not know, and
// never twice for the same.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cache/transfer/durable_tiers.h"
#include "cache/transfer/presence.h"

namespace aquifer {

class ChainInquiry {
 public:
  // Null: there are no such tiers, and nothing is there.
  void Reset(DurableTiers* tiers, const ChainNames& chain);
  // kUnknown: it is being asked for; `on_answer` runs when it is worth asking here again, unless
  // this was reset.
  DurablePlace At(size_t i, const std::function<void()>& on_answer);
  bool asking() const { return asking_; }

 private:
  DurableTiers* tiers_ = nullptr;
  ChainNames chain_;
  size_t asked_begin_ = 0;
  size_t asked_end_ = 0;
  DurableTiers::Found found_{};  // From asked_begin_ on.
  // What is not known behind this is not there: prefixes are closed.
  size_t absent_from_ = SIZE_MAX;
  bool asking_ = false;
  // Changes with every question; shared with those under way, which may outlast this use.
  std::shared_ptr<uint64_t> question_ = std::make_shared<uint64_t>(0);
};

}  // namespace aquifer
