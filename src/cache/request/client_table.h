// Who is attached: each client's tenant and engine, the handles that it knows layouts by, and how
// much it has under way. Ranks of one engine are clients of one name.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/residency/loan_book.h"
#include "policy/cost/prefill_model.h"

namespace aquifer {

class ClientSink {
 public:
  // On the owner. `completed` operations are answered; with `done` the cache has forgotten the
  // request.
  virtual void OnProgress(Request* request, size_t completed, bool done) = 0;
  // A lease or a reservation of the client has been held for longer than overdue_nanos.
  virtual void OnOverdue() {}

 protected:
  ~ClientSink() = default;
};

struct Client {
  bool attached = false;
  bool administrator = false;
  bool leaving = false;  // Detached, and what it holds is being given back.
  bool sees_all = false;
  uint16_t tenant = 0;
  uint32_t engine = 0;
  std::string engine_name{};
  ClientSink* sink = nullptr;
  uint32_t requests = 0;
  uint32_t hints = 0;  // Being carried out.
  // The layouts that it has registered; it knows them by their places here, and never by numbers of
  // the whole cache, which would tell it what other tenants have.
  std::vector<uint16_t> layouts{};
};

class ClientTable {
 public:
  // The number is an earlier client's once Free() has run for that.
  ClientNumber Add(const ClientOptions& options, uint16_t tenant, ClientSink* sink, bool sees_all);
  Client& at(ClientNumber client) { return clients_[client]; }
  const Client& at(ClientNumber client) const { return clients_[client]; }

  // The client's sink hears of nothing any more.
  void Silence(ClientNumber client) { clients_[client].sink = &nobody_; }
  // The client is detached; its number stays its own until Free(). Returns its engine's number when
  // it was the last of the engine's clients.
  std::optional<uint32_t> Leave(ClientNumber client);
  void Free(ClientNumber client) { clients_[client].leaving = false; }

  // Tells the client how its request comes along, if it is still attached.
  void Progress(ClientNumber client, Request* request, size_t completed, bool done);
  void TellOverdue(ClientNumber client) {
    if (clients_[client].attached) clients_[client].sink->OnOverdue();
  }

  // The client's handle for the layout; `had`: it had one already.
  LayoutHandle HandleOf(ClientNumber client, uint16_t layout, bool* had);
  // Returns true if the handle is this client's.
  bool HasLayout(ClientNumber client, LayoutHandle handle) const {
    return handle != 0 && handle <= clients_[client].layouts.size();
  }
  // Of a handle that it has, or had.
  uint16_t LayoutOf(ClientNumber client, LayoutHandle handle) const {
    return clients_[client].layouts[handle - 1];
  }
  PrefillName PrefillNameOf(ClientNumber client, uint16_t layout) const {
    const Client& caller = clients_[client];
    return {.tenant = caller.tenant, .layout = layout, .engine = caller.engine};
  }

  // How many clients the client's engine has.
  uint32_t RanksOf(ClientNumber client) const;
  size_t engines() const { return engines_.size(); }
  // Those that are attached, but for administrators.
  size_t attached() const;

 private:
  struct Engine {
    uint32_t number = 0;
    uint32_t clients = 0;
  };
  struct Nobody final : ClientSink {
    void OnProgress(Request*, size_t, bool) override {}
  };

  std::vector<Client> clients_;
  std::map<std::string, Engine> engines_;  // Those that have clients.
  uint32_t next_engine_ = 1;
  uint64_t next_nameless_ = 1;
  Nobody nobody_;
};

}  // namespace aquifer
