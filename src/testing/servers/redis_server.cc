#include "testing/servers/redis_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/check.h"
#include "testing/fault_proxy.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr auto kPatience = seconds(60);
constexpr auto kPause = milliseconds(5);
constexpr int kSlots = 16384;

// Tries until the condition holds.
template <class Condition>
void Await(Condition condition) {
  const auto end = steady_clock::now() + kPatience;
  while (!condition()) {
    AQ_CHECK(steady_clock::now() < end);
    std::this_thread::sleep_for(kPause);
  }
}

bool SendAll(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool ReceiveReply(int socket, RespReader* reader, RespReply* reply) {
  while (true) {
    const auto whole = reader->Next(reply);
    if (!whole.ok()) return false;
    if (*whole) return true;
    std::array<iovec, RespReader::kMostTargets + 1> room;
    const size_t count = reader->Room(room);
    AQ_CHECK(count == 1);  // No answer has a target here.
    const ssize_t got = recv(socket, room[0].iov_base, room[0].iov_len, 0);
    if (got <= 0) return false;
    reader->Arrived(static_cast<size_t>(got));
  }
}

std::string CommandOf(const std::vector<std::string>& words) {
  std::string text;
  AppendRespCount(&text, words.size());
  for (const std::string& word : words) AppendRespArgument(&text, word);
  return text;
}

std::string Program() {
  const char* named = std::getenv("AQUIFER_TEST_REDIS");
  return named != nullptr ? named : "redis-server";
}

int RunProgram(std::vector<std::string> words) {
  const std::unique_ptr<ChildProcess> child = ChildProcess::StartCommand(std::move(words));
  child->EndInput();
  while (child->ReadLine(kPatience).has_value()) {
  }
  return child->Wait();
}

}  // namespace

bool HasRedisServer() {
  static const bool has = RunProgram({"sh", "-c", "command -v \"$0\"", Program()}) == 0;
  return has;
}

RedisServer::RedisServer(const Options& options)
    : options_(options),
      port_(FreePort()),
      plain_port_(options.tls ? FreePort() : port_),
      bus_port_(FreePort()) {
  if (options.tls && options.certificate_folder.empty()) MakeCertificate();
  Start();
}

std::string RedisServer::address() const { return fmt::format("127.0.0.1:{}", port_); }

std::string RedisServer::certificate_folder() const {
  return options_.certificate_folder.empty() ? directory_.path() : options_.certificate_folder;
}

void RedisServer::MakeCertificate() const {
  AQ_CHECK(RunProgram({"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                       "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                       "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                       "-keyout", directory_.Sub("key.pem"), "-out", ca_file()}) == 0);
}

void RedisServer::Start() {
  // Ends the server with the test, even if the test is killed.
  std::vector<std::string> words = {"setpriv", "--pdeathsig", "KILL", Program()};
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  add({"--port", std::to_string(plain_port_), "--bind", "127.0.0.1", "--save", "", "--dir",
       directory_.path(), "--logfile", directory_.Sub("log")});
  if (options_.tls) {
    add({"--tls-port", std::to_string(port_), "--tls-cert-file", ca_file(), "--tls-key-file",
         certificate_folder() + "/key.pem", "--tls-ca-cert-file", ca_file(), "--tls-auth-clients",
         "no"});
  }
  if (options_.cluster) {
    add({"--cluster-enabled", "yes", "--cluster-port", std::to_string(bus_port_),
         "--cluster-config-file", directory_.Sub("nodes.conf")});
    if (options_.tls) add({"--tls-cluster", "yes"});
  }
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  process_ = ChildProcess::StartCommand(std::move(words));
  Await([this] { return Answers(); });
}

void RedisServer::Kill() {
  process_->Kill();
  process_->Wait();
  process_.reset();
}

Descriptor RedisServer::Connect() const {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  AQ_CHECK(socket.valid());
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(plain_port_);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    return Descriptor();
  }
  return socket;
}

bool RedisServer::Answers() {
  const Descriptor socket = Connect();
  RespReader reader;
  RespReply reply;
  // A server that wants a password is up, too; one that loads its data is not.
  return socket.valid() && SendAll(socket.get(), CommandOf({"PING"})) &&
         ReceiveReply(socket.get(), &reader, &reply) && !reply.text.starts_with("LOADING");
}

RespReply RedisServer::Ask(const std::vector<std::string>& words) {
  const Descriptor socket = Connect();
  AQ_CHECK(socket.valid());
  RespReader reader;
  RespReply reply;
  if (!options_.password.empty()) {
    const std::string user = options_.user.empty() ? "default" : options_.user;
    AQ_CHECK(SendAll(socket.get(), CommandOf({"AUTH", user, options_.password})));
    AQ_CHECK(ReceiveReply(socket.get(), &reader, &reply));
  }
  AQ_CHECK(SendAll(socket.get(), CommandOf(words)));
  AQ_CHECK(ReceiveReply(socket.get(), &reader, &reply));
  return reply;
}

RedisCluster::RedisCluster(RedisServer::Options options) : options_(std::move(options)) {
  constexpr int kServers = 3;
  options_.cluster = true;
  for (int i = 0; i < kServers; ++i) {
    servers_.push_back(std::make_unique<RedisServer>(options_));
    RedisServer& server = *servers_.back();
    options_.certificate_folder = servers_[0]->certificate_folder();
    ids_.push_back(server.Ask({"CLUSTER", "MYID"}).text);
    server.Ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    server.Ask({"CLUSTER", "ADDSLOTSRANGE", std::to_string(kSlots * i / kServers),
                std::to_string(kSlots * (i + 1) / kServers - 1)});
  }
  for (size_t i = 1; i < servers_.size(); ++i) {
    servers_[0]->Ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i]->port()),
                      std::to_string(servers_[i]->bus_port())});
  }
  AwaitAgreement();
}

void RedisCluster::AwaitAgreement() {
  for (const auto& server : servers_) {
    Await([&] {
      const std::string info = server->Ask({"CLUSTER", "INFO"}).text;
      return info.find("cluster_state:ok") != std::string::npos &&
             info.find("cluster_slots_assigned:16384") != std::string::npos &&
             info.find("cluster_known_nodes:3") != std::string::npos;
    });
  }
}

size_t RedisCluster::OwnerOf(uint16_t slot) {
  const RespReply map = servers_[0]->Ask({"CLUSTER", "SLOTS"});
  for (const RespReply& range : map.items) {
    if (range.items[0].integer > slot || range.items[1].integer < slot) continue;
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (range.items[2].items[1].integer == servers_[i]->plain_port()) return i;
    }
  }
  AQ_CHECK(false);
  return 0;
}

void RedisCluster::MoveSlot(uint16_t slot, size_t to, const std::function<void()>& halfway) {
  const size_t from = OwnerOf(slot);
  const std::string number = std::to_string(slot);
  AQ_CHECK(from != to);
  RedisServer& source = *servers_[from];
  RedisServer& target = *servers_[to];
  AQ_CHECK(target.Ask({"CLUSTER", "SETSLOT", number, "IMPORTING", ids_[from]}).text == "OK");
  AQ_CHECK(source.Ask({"CLUSTER", "SETSLOT", number, "MIGRATING", ids_[to]}).text == "OK");
  while (true) {
    const RespReply keys = source.Ask({"CLUSTER", "GETKEYSINSLOT", number, "3"});
    if (keys.items.empty()) break;
    std::vector<std::string> words = {"MIGRATE", "127.0.0.1", std::to_string(target.port()),
                                      "",        "0",         "10000"};
    if (!options_.password.empty()) words.insert(words.end(), {"AUTH", options_.password});
    words.emplace_back("KEYS");
    for (const RespReply& key : keys.items) words.push_back(key.text);
    const RespReply moved = source.Ask(words);
    AQ_CHECK(moved.kind == RespReply::Kind::kText);  // OK, or NOKEY if the key went meanwhile.
  }
  halfway();
  for (const size_t told : {to, from, 3 - to - from}) {
    AQ_CHECK(servers_[told]->Ask({"CLUSTER", "SETSLOT", number, "NODE", ids_[to]}).text == "OK");
  }
}

}  // namespace aquifer
