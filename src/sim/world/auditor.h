// Asks, in the name of a tenant, for every block that must be there; and deletes everything that
// the tenant has. For the end of a run, when no fault is left to excuse anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/core.h"
#include "sim/world/conversations.h"
#include "sim/world/node.h"
#include "sim/world/trace.h"
#include "sim/world/truth.h"

namespace aquifer {

class Auditor final : private ClientSink {
 public:
  // Runs the world until it holds; false: it never did.
  using RunUntil = std::function<bool(const std::function<bool()>&)>;

  Auditor(SimulatedNode* node, Truth* truth, const Conversations* conversations, Trace* trace,
          RunUntil run_until)
      : node_(node),
        truth_(truth),
        conversations_(conversations),
        trace_(trace),
        run_until_(std::move(run_until)) {}

  // For every conversation: what must be there is, and what must not be is not.
  void FindAll();
  // Each tenant's everything.
  void DeleteAll();
  // No conversation has a block left.
  void FindNothing();

 private:
  void OnProgress(Request* request, size_t completed, bool done) override;
  template <class R>
  bool Do(void (Core::*call)(ClientNumber, R*), R* request, const char* what);
  void Wait();
  bool MemoryIsForAll() const;
  void Unpin(const Conversation& conversation);
  ClientNumber Join(uint32_t tenant);
  void Leave() { node_->core()->Detach(client_, nullptr); }
  ChainSlice SliceOf(const Conversation& conversation);

  SimulatedNode* const node_;
  Truth* const truth_;
  const Conversations* const conversations_;
  Trace* const trace_;
  const RunUntil run_until_;
  ClientNumber client_ = 0;
  Truth::RequestNumber request_ = 0;
};

}  // namespace aquifer
