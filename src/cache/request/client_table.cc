#include "cache/request/client_table.h"

#include <algorithm>
#include <utility>

namespace aquifer {

ClientNumber ClientTable::Add(const ClientOptions& options, uint16_t tenant, ClientSink* sink,
                              bool sees_all) {
  std::string engine = options.engine;
  if (engine.empty()) {  // A name that no engine can have.
    engine = '\0' + ('#' + std::to_string(next_nameless_++));
  }
  // Engines of two tenants are different engines, whatever they call themselves.
  engine = options.tenant + '\0' + engine;
  Engine& known = engines_[engine];
  if (known.clients++ == 0) known.number = next_engine_++;
  auto free = std::find_if(clients_.begin(), clients_.end(), [](const Client& client) {
    return !client.attached && !client.leaving;
  });
  if (free == clients_.end()) free = clients_.emplace(clients_.end());
  *free = {.attached = true,
           .sees_all = sees_all,
           .tenant = tenant,
           .engine = known.number,
           .engine_name = std::move(engine),
           .sink = sink};
  return static_cast<ClientNumber>(free - clients_.begin());
}

std::optional<uint32_t> ClientTable::Leave(ClientNumber client) {
  Client& leaving = clients_[client];
  leaving.attached = false;
  leaving.leaving = true;
  const auto engine = engines_.find(leaving.engine_name);
  if (--engine->second.clients > 0) return std::nullopt;
  const uint32_t number = engine->second.number;
  engines_.erase(engine);
  return number;
}

void ClientTable::Progress(ClientNumber client, Request* request, size_t completed, bool done) {
  Client& caller = clients_[client];
  if (!caller.attached) return;
  if (done) --caller.requests;
  caller.sink->OnProgress(request, completed, done);
}

LayoutHandle ClientTable::HandleOf(ClientNumber client, uint16_t layout, bool* had) {
  std::vector<uint16_t>& layouts = clients_[client].layouts;
  const auto known = std::find(layouts.begin(), layouts.end(), layout);
  const auto handle = static_cast<LayoutHandle>(known - layouts.begin()) + 1;
  *had = known != layouts.end();
  if (!*had) layouts.push_back(layout);
  return handle;
}

uint32_t ClientTable::RanksOf(ClientNumber client) const {
  const auto engine = engines_.find(clients_[client].engine_name);
  return engine == engines_.end() ? 0 : engine->second.clients;
}

size_t ClientTable::attached() const {
  return static_cast<size_t>(std::ranges::count_if(
      clients_, [](const Client& client) { return client.attached && !client.administrator; }));
}

}  // namespace aquifer
