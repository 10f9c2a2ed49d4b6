// The half of RedisLoop that knows servers: which one gets a command, how to connect to it, and
// what its answers say about the places of slots.
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/detached_task.h"
#include "store/redis/redis_loop.h"

namespace aquifer {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kFirstPauseNanos = 50 * kMillisecond;
constexpr int64_t kMostPauseNanos = 2000 * kMillisecond;
constexpr int64_t kMapPauseNanos = 200 * kMillisecond;
constexpr int64_t kMemoryPauseNanos = 10'000 * kMillisecond;
constexpr uint32_t kMostSendings = 3;  // After connections were lost.
// While a slot moves, servers may disagree for a moment about its owner, or each have a part of a
// blob. After a few redirections a command waits a little before each further one, for five seconds
// in all. Slots of many large blobs move slowly.
constexpr int64_t kDetourNanos = 20 * kMillisecond;
constexpr uint32_t kQuickDetours = 4;
constexpr uint32_t kMostDetours = 250;

using Stage = RedisConnection::Stage;

// Advice to add to an error message that does not give any itself.
std::string_view NextStepAfter(std::string_view why, Stage stage, bool tls) {
  if (why.find("; next step: ") != std::string_view::npos) return "";
  if (why.find("certificate") != std::string_view::npos) {
    return "; next step: name the authority that signed it as ca_file, and the server as its "
           "certificate does";
  }
  if (why.find("not Redis's protocol") != std::string_view::npos) {
    return tls ? "; next step: name the port of a Redis or Valkey server"
               : "; next step: name the port of a Redis or Valkey server, and if that is for TLS "
                 "write tls = true";
  }
  if (stage == Stage::kTls) {
    return "; next step: if that port is not for TLS, write tls = false or name the one that is; "
           "else see the server's log";
  }
  if (stage == Stage::kUnheard && !tls) {
    return "; next step: if that port is for TLS, write tls = true; else see the server's log";
  }
  return "; next step: see that the server runs and that this host may reach it";
}

// Finds a number in INFO's answer, such as "used_memory:1234\r
// ".
uint64_t InfoNumber(const std::string& text, std::string_view name) {
  const size_t at = text.find(fmt::format("\n{}:", name));
  uint64_t value = 0;
  if (at == std::string::npos) return 0;
  const char* begin = text.data() + at + name.size() + 2;
  std::from_chars(begin, text.data() + text.size(), value);
  return value;
}

}  // namespace

RedisAddress RedisLoop::AddressFor(const RedisCommand& command) {
  if (command.server.has_value()) return *command.server;
  if (map_ != nullptr) {
    if (std::optional<RedisAddress> owner = map_->Find(command.slot)) return *owner;
    map_wanted_ = true;
  }
  // The first server that has no trouble stands in for the others.
  for (size_t i = 0; i < seeds_.size(); ++i) {
    const RedisAddress& seed = seeds_[(seed_ + i) % seeds_.size()];
    if (ServerAt(seed)->pause_until_nanos <= Now()) return seed;
  }
  return seeds_[seed_];
}

RedisLoop::Server* RedisLoop::ServerAt(const RedisAddress& address) {
  std::unique_ptr<Server>& server = servers_[address];
  if (server == nullptr) {
    server = std::make_unique<Server>();
    server->address = address;
    server->connections.resize(options_.connections);
  }
  return server.get();
}

void RedisLoop::Route(RedisCommand command) {
  Server* server = ServerAt(AddressFor(command));
  Connection* connection = ConnectionTo(server);
  if (connection == nullptr) return FailCommand(command, server->trouble);
  if (command.asking) {
    RedisCommand asking;
    asking.text = RespCommand({"ASKING"});
    connection->link->Enqueue(std::move(asking), Now());
  }
  connection->link->Enqueue(std::move(command), Now());
  connection->stirred = connection->link->begun();
}

RedisLoop::Connection* RedisLoop::ConnectionTo(Server* server) {
  if (Now() < server->pause_until_nanos) return nullptr;
  for (size_t i = 0; i < server->connections.size(); ++i) {
    std::unique_ptr<Connection>& slot =
        server->connections[server->next++ % server->connections.size()];
    if (slot != nullptr && slot->doomed) continue;
    if (slot == nullptr) {
      slot = std::make_unique<Connection>();
      slot->server = server;
      slot->link = std::make_unique<RedisConnection>(
          RedisLogin{options_.user, options_.password}, Now(),
          [this, server](RedisCommand command, RespReply reply) {
            HearReply(server->address, std::move(command), std::move(reply));
          });
      OpenConnection(server, slot.get());  // This may lose the connection at once.
    }
    return slot.get();
  }
  server->trouble = Status(Code::kUnavailable, fmt::format("{}: the connections are being renewed",
                                                           server->address.ToString()));
  return nullptr;
}

void RedisLoop::OpenConnection(Server* server, Connection* connection) {
  if (server->addresses.empty()) {
    const auto numeric = NumericAddress(server->address.host, server->address.port);
    if (!numeric.ok()) return Resolve(server);
    server->addresses = {*numeric};
  }
  const SocketAddress& address = server->addresses[server->next_address % server->addresses.size()];
  auto stream = Stream::Connect(
      address, tls_, options_.tls_name.empty() ? server->address.host : options_.tls_name);
  if (!stream.ok()) return Lose(connection, stream.status(), /*send_again=*/true);
  ++counters_->connections_opened;
  connection->link->Begin(*std::move(stream));
  connection->number = next_connection_++;
  connection->stirred = true;
  watched_[connection->number] = connection;
  epoll_event event{};
  event.data.u64 = connection->number;
  AQ_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->link->descriptor(), &event) == 0);
  Watch(connection);
}

void RedisLoop::Watch(Connection* connection) {
  const uint32_t events = EPOLLIN | (connection->link->WantsRoom() ? EPOLLOUT : 0u);
  if (events == connection->watched_events) return;
  connection->watched_events = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = connection->number;
  AQ_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection->link->descriptor(), &event) == 0);
}

// The resolver may hang for as long as it likes; the connections that wait for it time out.
void RedisLoop::Resolve(Server* server) {
  if (server->resolving) return;
  const RedisAddress address = server->address;
  server->resolving = RunDetached("aq-resolve", [this, address, mailbox = mailbox_] {
    auto found = ResolveAddresses(address.host, address.port);
    [[maybe_unused]] const bool heard =
        mailbox->Post([this, address, found = std::move(found)] { Resolved(address, found); });
  });
  if (!server->resolving) {
    Pause(server, Status(Code::kUnavailable,
                         fmt::format("{}: the system has no thread to resolve a name with",
                                     server->address.ToString())));
  }
}

void RedisLoop::Resolved(const RedisAddress& address,
                         const Result<std::vector<SocketAddress>>& found) {
  Server* server = ServerAt(address);
  server->resolving = false;
  if (found.ok()) server->addresses = *found;
  for (size_t i = 0; i < server->connections.size(); ++i) {
    Connection* connection = server->connections[i].get();
    if (connection == nullptr || connection->link->begun()) continue;
    if (found.ok()) {
      OpenConnection(server, connection);
    } else {
      Lose(connection, found.status(), /*send_again=*/true);
    }
  }
}

std::string RedisLoop::Silence(const RedisConnection& link) const {
  const int64_t millis = options_.timeout_nanos / kMillisecond;
  switch (link.stage()) {
    case Stage::kNaming:
      return fmt::format(
          "the name server says nothing for {} ms; next step: see which addresses "
          "this host resolves the name to (getent hosts)",
          millis);
    case Stage::kConnecting:
      return fmt::format("there is no connection after {} ms", millis);
    case Stage::kTls:
      return fmt::format("the server says nothing to a TLS handshake for {} ms", millis);
    case Stage::kUnheard:
      if (tls_ == nullptr) return fmt::format("the server has said nothing for {} ms", millis);
      [[fallthrough]];
    case Stage::kHeard:
      break;
  }
  return fmt::format(
      "the server says nothing for {} ms; next step: see what holds it up (redis-cli --latency, "
      "SLOWLOG GET)",
      millis);
}

void RedisLoop::Pause(Server* server, const Status& trouble) {
  server->trouble = trouble;
  if (++server->next_address < server->addresses.size()) return;  // The name has another address.
  server->next_address = 0;
  // A name may resolve to new addresses; a numeric address stays.
  if (server->addresses.size() != 1) server->addresses.clear();
  server->pause_nanos = std::clamp(2 * server->pause_nanos, kFirstPauseNanos, kMostPauseNanos);
  // Up to a quarter less, so that many clients do not return at the same moment.
  const auto jitter = static_cast<int64_t>(options_.random->Next64() %
                                           static_cast<uint64_t>(server->pause_nanos / 4));
  server->pause_until_nanos = Now() + server->pause_nanos - jitter;
  if (map_ != nullptr) map_wanted_ = true;  // Another server may have taken its place.
}

void RedisLoop::Pump(Connection* connection) {
  connection->stirred = false;
  if (connection->doomed) return;
  const Status status = connection->link->Pump(Now());
  if (!status.ok()) return Lose(connection, status, /*send_again=*/true);
  if (connection->link->ready()) connection->server->pause_nanos = 0;
  connection->stirred = connection->link->HasMore();
  Watch(connection);
}

void RedisLoop::Lose(Connection* connection, const Status& why, bool send_again) {
  Server* server = connection->server;
  const auto slot =
      std::find_if(server->connections.begin(), server->connections.end(),
                   [connection](const auto& other) { return other.get() == connection; });
  AQ_CHECK(slot != server->connections.end());
  const std::unique_ptr<Connection> gone = std::move(*slot);
  if (gone->link->begun()) {
    watched_.erase(gone->number);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, gone->link->descriptor(), nullptr);
  }
  const Status said(
      Code::kUnavailable,
      fmt::format("{}: {}{}", server->address.ToString(), why.message(),
                  NextStepAfter(why.message(), gone->link->stage(), tls_ != nullptr)));
  if (!gone->link->ready() || !send_again) Pause(server, said);
  if (gone->link->commands() > 0) ++counters_->connections_lost;
  for (RedisCommand& command : gone->link->TakeCommands()) {
    if (send_again) {
      SendAgain(std::move(command), said);
    } else {
      FailCommand(command, said);
    }
  }
}

void RedisLoop::SendAgain(RedisCommand command, const Status& why) {
  // If the operation has ended, its memory may be gone. A command that nobody waits for is not
  // repeated.
  if (command.operation >= kFirstOperation && !active_.contains(command.operation)) return;
  if (command.operation == 0) return;
  if (++command.losses >= kMostSendings) return FailCommand(command, why);
  ++counters_->commands_sent_again;
  Route(std::move(command));
}

void RedisLoop::Delay(RedisCommand command, int64_t nanos) {
  delayed_.push_back({.at_nanos = Now() + nanos, .command = std::move(command)});
}

void RedisLoop::FailCommand(const RedisCommand& command, const Status& status) {
  if (command.operation == kMapOperation) {
    map_asked_ = false;
    map_after_nanos_ = Now() + kMapPauseNanos;
    return;
  }
  const auto found = active_.find(command.operation);
  if (found == active_.end()) return;
  found->second.operation->Fail(status);
  AfterStep(command.operation);
}

void RedisLoop::HearReply(const RedisAddress& from, RedisCommand command, RespReply reply) {
  if (reply.kind == RespReply::Kind::kError) return HearError(from, std::move(command), reply.text);
  if (command.operation == kMapOperation) return HearMap(from, reply);
  if (command.operation == kMemoryOperation) return HearMemory(from, reply.text);
  const auto found = active_.find(command.operation);
  if (found == active_.end()) return;
  found->second.operation->Hear(command.tag, from, std::move(reply));
  AfterStep(command.operation);
}

void RedisLoop::HearError(const RedisAddress& from, RedisCommand command, const std::string& text) {
  if (command.operation == 0) return;
  if (const std::optional<RedisRedirect> redirect = ParseRedirect(text, from)) {
    return Follow(*redirect, std::move(command));
  }
  if (text.starts_with("TRYAGAIN") && ++command.detours < kMostDetours) {
    command.server.reset();  // By then the slot may have moved.
    command.asking = false;
    return Delay(std::move(command), kDetourNanos);
  }
  if (text.starts_with("CLUSTERDOWN") || (map_ != nullptr && text.starts_with("READONLY"))) {
    map_wanted_ = true;
  } else if (text.starts_with("READONLY")) {
    seed_ = (seed_ + 1) % seeds_.size();  // Another server may be the master now.
  }
  FailCommand(command, StatusOfRedisError(text, from));
}

void RedisLoop::Follow(const RedisRedirect& redirect, RedisCommand command) {
  ++counters_->redirections;
  if (++command.detours > kMostDetours) {
    return FailCommand(
        command, Status(Code::kUnavailable,
                        "the cluster's servers disagree; next step: redis-cli --cluster check"));
  }
  if (redirect.once) {
    command.server = redirect.to;
  } else {
    if (map_ == nullptr) map_ = std::make_unique<RedisSlotMap>();
    map_->Move(redirect.slot, redirect.to);
    map_wanted_ = true;
    command.server.reset();
  }
  command.asking = redirect.once;
  if (command.detours <= kQuickDetours) return Route(std::move(command));
  Delay(std::move(command), kDetourNanos);
}

std::vector<RedisAddress> RedisLoop::KnownServers() const {
  std::vector<RedisAddress> known = seeds_;
  if (map_ != nullptr) {
    known.insert(known.end(), map_->masters().begin(), map_->masters().end());
  }
  return known;
}

void RedisLoop::AskForMap() {
  const std::vector<RedisAddress> known = KnownServers();
  map_asked_ = true;
  RedisCommand command;
  command.text = RespCommand({"CLUSTER", "SLOTS"});
  command.operation = kMapOperation;
  command.server = known[map_turn_++ % known.size()];
  Route(std::move(command));
}

void RedisLoop::HearMap(const RedisAddress& from, const RespReply& reply) {
  map_asked_ = false;
  map_after_nanos_ = Now() + kMapPauseNanos;
  auto map = RedisSlotMap::Parse(reply, from);
  if (!map.ok()) return;  // The next server is asked.
  map_wanted_ = false;
  map_ = std::make_unique<RedisSlotMap>(*std::move(map));
  ++counters_->slot_maps_read;
}

void RedisLoop::AskForMemory() {
  memory_after_nanos_ = Now() + kMemoryPauseNanos;
  const std::vector<RedisAddress> asked =
      map_ != nullptr ? map_->masters() : std::vector<RedisAddress>{AddressFor({})};
  std::erase_if(memory_, [&asked](const auto& known) {
    return std::find(asked.begin(), asked.end(), known.first) == asked.end();
  });
  for (const RedisAddress& address : asked) {
    RedisCommand command;
    command.text = RespCommand({"INFO", "memory"});
    command.operation = kMemoryOperation;
    command.server = address;
    Route(std::move(command));
  }
}

void RedisLoop::HearMemory(const RedisAddress& from, const std::string& text) {
  memory_[from] = {InfoNumber(text, "used_memory"), InfoNumber(text, "maxmemory")};
  uint64_t used = 0;
  uint64_t most = 0;
  bool bounded = true;
  for (const auto& [address, figures] : memory_) {
    used += figures.first;
    most += figures.second;
    bounded = bounded && figures.second > 0;
  }
  used_bytes_ = used;
  capacity_bytes_ = bounded ? most : 0;
}

}  // namespace aquifer
