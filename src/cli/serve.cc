// `aquifer serve`: a node, with its configuration, log and signals.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/detached_task.h"
#include "base/line_log.h"
#include "cli/commands.h"
#include "net/local/default_socket.h"
#include "node/api/http_api.h"
#include "node/api/http_server.h"
#include "node/config/admin_socket.h"
#include "node/config/encryption.h"
#include "node/config/node_config.h"
#include "node/config/node_plan.h"
#include "node/config/node_stores.h"
#include "node/config/secret_environment.h"
#include "node/local/insider.h"
#include "node/local/recorder.h"
#include "node/node.h"
#include "node/storage_watch.h"
#include "node/tenant_drop.h"
#include "tenant/keys/key_service.h"
#include "tenant/tenants.h"
#include "tenant/token.h"

namespace aquifer {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr uint32_t kReadyExtents = 4;                   // 256 MiB; two workers make 13 GB/s.
constexpr auto kLeaveWithin = std::chrono::seconds(2);  // Once it has drained.

constexpr const char* kFooter = R"(
Without options it uses what this host has: a quarter of the available memory and a directory for NVMe.
It says first what it will use, and then serves until SIGTERM, which drains it. On SIGHUP it reads
its file again.

Examples:
  aquifer serve
  aquifer serve --dram 64GiB --nvme /mnt/nvme0:2TB --nvme /mnt/nvme1:2TB
  aquifer serve --config /etc/aquifer/aquifer.toml
  aquifer serve --record /var/tmp/requests.jsonl              what aquifer plan reads
  aquifer serve --socket /tmp/try.sock --http off --nvme off  beside the host's own node)";

// Never waits: the node's owner logs too.
LineLog* TheLog() {
  static LineLog log({.descriptor = STDERR_FILENO}, SystemClock());
  return &log;
}

std::string Stamped(const std::string& line) {
  const std::time_t now = SystemClock()->UnixSeconds();
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char stamp[sizeof("2026-01-01T00:00:00Z")];
  std::strftime(stamp, sizeof(stamp), "%FT%TZ", &utc);
  return fmt::format("{} {}", stamp, line);
}

void Log(const std::string& line) { TheLog()->Write(Stamped(line)); }

// What a user of the host has caused, who may do so as often as they like; none: the node itself.
void LogFor(std::optional<uid_t> user, const std::string& line) {
  if (!user) return Log(line);
  TheLog()->WriteFor(*user, Stamped(line));
}

// Every connection takes seven descriptors, and each extent of the pool one.
void RaiseOpenFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) Log("cannot raise the limit on open files");
}

// What is left of the descriptors when the pool has its own.
uint32_t MostConnections(const CacheOptions& cache, uint32_t wanted) {
  constexpr uint64_t kPerConnection = 8;
  constexpr uint64_t kOthers = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const uint64_t taken = cache.dram_bytes / CoreOptions{}.extent_bytes + kOthers;
  const uint64_t left = limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, taken);
  const auto most = static_cast<uint32_t>(std::clamp<uint64_t>(left / kPerConnection, 1, wanted));
  if (most < wanted) {
    Log(fmt::format("at most {} clients at a time: the limit on open files is {}", most,
                    limit.rlim_cur));
  }
  return most;
}

// What clients ask for is kept outside of the pool, in some of the memory that is left to the rest
// of the host: a quarter.
void BoundItems(const CacheOptions& cache, ServerOptions* server) {
  constexpr uint64_t kBytesPerItem = 128;
  constexpr uint64_t kLeastItems = uint64_t{1} << 18;
  const uint64_t items = cache.keep_available_bytes / 4 / kBytesPerItem;
  server->max_items = std::clamp<uint64_t>(items, kLeastItems, server->max_items);
}

// Tells systemd, where it asked for it. A node that it did not start says nothing.
void Notify(const std::string& state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || std::strlen(path) >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // An abstract name.
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  [[maybe_unused]] const ssize_t sent =
      ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

// Those that this program waits for; every thread started later has them blocked too.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

Result<std::shared_ptr<const Tenants>> ReadTenants(const NodePlan& plan) {
  if (plan.config.tenants_file.empty()) return Tenants::Local(plan.uid);
  Result<std::shared_ptr<const Tenants>> tenants = Tenants::Read(
      plan.config.tenants_file,
      {.dram_bytes = plan.cache.dram_bytes, .nvme_bytes = plan.cache.nvme_bytes}, plan.uid);
  if (!tenants.ok()) return AtKey(plan.config.places, "tenants", tenants.status());
  return tenants;
}

// What a node has stored so far is sealed, or it is not: that a running one cannot change.
Status CheckStaysEncrypted(bool is, bool would_be) {
  if (is == would_be) return Status();
  return Status(Code::kInvalid,
                is ? "with this configuration nothing would be encrypted, and this node encrypts "
                     "what leaves DRAM; restart it to change that"
                   : "with this configuration what leaves DRAM must be encrypted, and this node "
                     "encrypts nothing; restart it to change that");
}

Result<Admission> Admit(const Tenants& tenants, const Hello& hello, const PeerCredentials& peer) {
  Denial denial = Denial::kNone;
  const Result<const Tenant*> tenant =
      tenants.Authenticate(hello.tenant, hello.token, peer.uid, &denial);
  if (!tenant.ok()) {
    LogFor(peer.uid, fmt::format("audit: denied a client of process {}, user {}: {}", peer.pid,
                                 peer.uid, DenialName(denial)));
    return tenant.status();
  }
  return Admission{
      .client = {.tenant = (*tenant)->options.name, .engine = std::string(hello.engine)},
      .may_drain = !tenants.from_file(),
      .token_digest = DigestOfToken(hello.token)};
}

std::string DrainedText(const DrainRequest& request, bool has_nvme, bool has_tiers) {
  if (has_tiers && request.left == 0) return "drained: every block is in a lower tier";
  if (!has_nvme && !has_tiers) return "drained: there is no NVMe, so nothing outlives this process";
  if (request.left == 0) return "drained: every block is on NVMe";
  return fmt::format("drained in part: {} blocks are lost with this process ({})", request.left,
                     request.status.ToString());
}

// A drive that hangs would keep the process for ever. What it still writes is as after a crash,
// which every start can cope with.
void LeaveEvenIfADriveHangs() {
  [[maybe_unused]] const bool started = RunDetached("aq-leave", [] {
    std::this_thread::sleep_for(kLeaveWithin);
    // The log may be gone by now, and whoever reads it may not be reading.
    const std::string line = Stamped("a drive does not answer; leaving without it\n");
    pollfd reader{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&reader, 1, 0) == 1) {
      [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, line.data(), line.size());
    }
    ::_exit(EXIT_SUCCESS);
  });
}

// A process that holds keys is not for others to look into, and leaves no core file with them.
void HideMemory() {
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) Log("warning: a core file of this process may hold keys");
}

class Serving {
 public:
  Serving(const NodeOverrides& overrides, NodePlan plan, SecretEnvironment environment)
      : overrides_(overrides), environment_(std::move(environment)), plan_(std::move(plan)) {}

  ~Serving() {
    if (api_ != nullptr) api_->Stop();
    http_.reset();
    api_.reset();
    dropper_.Stop();
  }

  Status Start() {
    AQ_ASSIGN_OR_RETURN(tenants_, ReadTenants(plan_));
    AQ_ASSIGN_OR_RETURN(const std::vector<SecretKey> masters,
                        MasterKeysFor(plan_.config, environment_, plan_.uid));
    fmt::print(stderr, "{}", DescribePlan(plan_, overrides_.config.value_or("")));
    AQ_RETURN_IF_ERROR(StartKeys(masters));
    AQ_ASSIGN_OR_RETURN(
        stores_,
        NodeStores::New(plan_.config.tiers, environment_, keys_.get(),
                        plan_.config.tiers.empty() ? std::string() : StateDirectoryOf(ThisHost())));
    AQ_RETURN_IF_ERROR(StartHttp());
    Node::Options options;
    options.durable_tiers = stores_->Sources();
    options.packer = stores_->packer();
    options.cache = plan_.cache;
    options.cache.tenants = tenants_->Options();
    // Serves at once, and is small while nobody is there. The first who is going to store has all
    // of the pool made ready in the background, at a pace that leaves the cores to the engines.
    options.warm_bytes = 0;
    options.ready_extents = kReadyExtents;
    options.paced_by_cores = std::max(std::thread::hardware_concurrency(), 1u);
    options.server.socket = plan_.socket;
    options.server.private_to_user = !tenants_->from_file();
    options.server.admit = [this](const Hello& hello, const PeerCredentials& peer) {
      return Admit(*tenants_, hello, peer);
    };
    options.server.max_connections = MostConnections(options.cache, options.server.max_connections);
    BoundItems(options.cache, &options.server);
    options.server.log = LogFor;
    options.server.recorder = &recorder_;
    if (!plan_.config.record_file.empty()) AQ_RETURN_IF_ERROR(StartRecording(plan_.config));
    AQ_ASSIGN_OR_RETURN(node_, Node::Start(options));
    KnowTenants();
    dropper_.Serve(node_->running());
    watch_ = std::make_unique<StorageWatch>(node_->running(), Log);
    if (api_ != nullptr) api_->Serve(node_.get());
    return Status();
  }

  // What can be changed while it runs. A mistake in the file changes nothing.
  void Reload() {
    Notify("RELOADING=1");
    const Status status = TryReload();
    if (!status.ok()) Log("reload: nothing was changed: " + status.message());
    Notify("READY=1");
  }

  void Drain() {
    Notify("STOPPING=1");
    StopRecording();
    if (api_ != nullptr) api_->SetStopping();
    const int64_t seconds = plan_.config.drain_seconds;
    Log(fmt::format("draining, for at most {} s", seconds));
    Result<std::unique_ptr<Insider>> insider = Insider::New(node_->running(), {});
    if (!insider.ok()) return Log("cannot drain: " + insider.status().message());
    DrainRequest request;
    request.timeout_nanos = std::max<int64_t>(1, seconds * kNanosPerSecond);
    (*insider)->Drain(&request);
    Log(DrainedText(request, !plan_.cache.nvme_directories.empty(), !plan_.config.tiers.empty()));
  }

 private:
  Status StartKeys(const std::vector<SecretKey>& masters) {
    if (masters.empty()) return Status();
    HideMemory();
    AQ_ASSIGN_OR_RETURN(const KeyPlace place, PlaceOfKeys(plan_.config, ThisHost()));
    Result<std::unique_ptr<KeyStore>> store =
        OpenKeys(plan_.config, place, MemoryOfKeys(ThisHost(), plan_.socket), environment_, Log);
    if (!store.ok()) return AtKey(plan_.config.places, "key_store", store.status());
    KeyServiceOptions options;
    options.log = Log;
    options.on_forgotten = [this](const TenantId& tenant, std::function<void()> on_dropped) {
      dropper_.Drop(tenant, std::move(on_dropped));
    };
    AQ_ASSIGN_OR_RETURN(keys_, KeyService::Start(*std::move(store), masters, options));
    Log("what leaves DRAM is encrypted; data keys are " + place.Describe());
    return Status();
  }

  // Keys are looked for before a tenant's first block wants one.
  void KnowTenants() {
    dropper_.AddTenants(TenantNames());
    if (keys_ == nullptr) return;
    for (const std::string& name : TenantNames()) keys_->KeyOf(TenantIdOf(name));
  }

  Status StartRecording(const NodeConfig& config) {
    const Result<std::string> file = recorder_.Start(config.record_file);
    if (!file.ok()) return AtKey(config.places, "record", file.status());
    Log("recording what is asked for, without its content, to " + *file);
    return Status();
  }

  void StopRecording() {
    if (!recorder_.wanted()) return;
    const Status stopped = recorder_.Stop();
    const RecordingStatus status = recorder_.status();
    Log(fmt::format("recorded {} requests to {}, {} left out{}", status.requests, status.file,
                    status.left_out, stopped.ok() ? "" : ": " + stopped.message()));
  }

  // False: it cannot begin, which is no reason to be without the rest of the reload; the next one
  // tries it again.
  bool ChangeRecording(const NodeConfig& next) {
    if (next.record_file == plan_.config.record_file) return true;
    StopRecording();
    plan_.config.record_file.clear();
    if (next.record_file.empty()) return true;
    if (const Status status = StartRecording(next); !status.ok()) {
      Log("reload: nothing is recorded: " + status.message());
      return false;
    }
    plan_.config.record_file = next.record_file;
    return true;
  }

  HttpRules Rules() const {
    return {.admin_token_sha256 = plan_.config.admin_token_sha256,
            .has_tenants_file = tenants_->from_file(),
            .address = plan_.http.value_or(HttpAddress{})};
  }

  std::vector<std::string> TenantNames() const {
    std::vector<std::string> names;
    for (const Tenant& tenant : tenants_->all()) names.push_back(tenant.options.name);
    return names;
  }

  // Before the node, so that whoever asks hears that it is starting.
  Status StartHttp() {
    if (!HttpIsBuilt()) {
      Log("HTTP, aquifer ctl and aquifer top are not in this build: it lacks libboost-dev");
      return Status();
    }
    HttpServerOptions options;
    options.address = plan_.http;
    options.socket = AdminSocketBeside(plan_.socket);
    if (options.socket.size() > kMaxSocketPathBytes) {
      Log(
          fmt::format("{} is too long for a socket, so aquifer ctl cannot be used; choose a "
                      "shorter path with --socket",
                      std::exchange(options.socket, {})));
    }
    api_ = std::make_unique<HttpApi>(HttpApiOptions{.recorder = &recorder_,
                                                    .stores = stores_.get(),
                                                    .keys = keys_.get(),
                                                    .version = AQUIFER_VERSION,
                                                    .socket = plan_.socket,
                                                    .rules = Rules(),
                                                    .tenants = tenants_->Options(),
                                                    .log = Log});
    Result<std::unique_ptr<HttpServer>> server = StartHttpServer(options, api_.get());
    if (!server.ok() && options.address && !plan_.config.http_asked) {
      options.address.reset();
      plan_.http.reset();
      const std::string why = server.status().message();
      server = StartHttpServer(options, api_.get());
      if (server.ok()) Log("warning: there is no HTTP but for aquifer ctl: " + why);
    }
    if (!server.ok()) return server.status();
    http_ = std::move(*server);
    api_->SetAddress(http_->address());
    if (http_->address()) Log("HTTP on " + http_->address()->Text());
    return Status();
  }

  Status TryReload() {
    AQ_ASSIGN_OR_RETURN(const NodeConfig next, LoadNodeConfig(overrides_));
    ReloadChanges changes = CompareForReload(plan_.config, next);
    NodePlan plan = plan_;
    plan.config = next;
    AQ_ASSIGN_OR_RETURN(std::shared_ptr<const Tenants> tenants, ReadTenants(plan));
    AQ_ASSIGN_OR_RETURN(const std::vector<SecretKey> masters,
                        MasterKeysFor(next, environment_, plan_.uid));
    AQ_RETURN_IF_ERROR(CheckStaysEncrypted(keys_ != nullptr, !masters.empty()));
    Status changed;
    RunAndWait(node_->running()->owner(), [&](const std::function<void()>& done) {
      changed = SetTenants(std::move(tenants));
      done();
    });
    AQ_RETURN_IF_ERROR(changed);
    // Nothing fails from here on: "nothing was changed" must be true.
    if (keys_ != nullptr) AQ_CHECK(keys_->SetMasters(masters).ok());
    plan_.config.tenants_file = next.tenants_file;
    plan_.config.drain_seconds = next.drain_seconds;
    plan_.config.master_key_file = next.master_key_file;
    KnowTenants();
    if (!ChangeRecording(next)) std::erase(changes.applied, "record");
    plan_.config.admin_token_sha256 = next.admin_token_sha256;
    if (api_ != nullptr) api_->SetRules(Rules(), tenants_->Options());
    Log(fmt::format("reload: done, {}", tenants_->from_file()
                                            ? fmt::format("{} tenants", tenants_->all().size())
                                            : std::string("no tenants but this user")));
    for (const std::string& key : changes.applied) Log("reload: " + key + " is changed");
    for (const std::string& key : changes.need_restart) {
      Log("reload: " + key + " differs; restart the node to change it");
    }
    return Status();
  }

  // On the owner, which alone asks for them. Whoever would not be let in any more, or not as the
  // same, is cut off.
  Status SetTenants(std::shared_ptr<const Tenants> tenants) {
    AQ_RETURN_IF_ERROR(node_->running()->core()->SetTenants(tenants->Options()));
    tenants_ = std::move(tenants);
    node_->server()->KeepThose([this](const Admission& admission, const PeerCredentials& peer) {
      return admission.may_drain != tenants_->from_file() &&
             tenants_->Admits(admission.client.tenant, admission.token_digest, peer.uid);
    });
    const Status mode = node_->server()->SetPrivateToUser(!tenants_->from_file());
    if (!mode.ok()) {
      Log("warning: " + mode.message() + "; clients may not find the node until it is restarted");
    }
    return Status();
  }

  const NodeOverrides overrides_;
  const SecretEnvironment environment_;
  NodePlan plan_;
  std::shared_ptr<const Tenants> tenants_;  // Shared with nobody: it may be kept by what it gave.
  Recorder recorder_{{.log = Log}};
  // What the node stands on goes after it; the dropper, which the keys call, last of all.
  TenantDrop dropper_{Log};
  std::unique_ptr<KeyService> keys_;  // Null: nothing is encrypted.
  std::unique_ptr<NodeStores> stores_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<StorageWatch> watch_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<HttpServer> http_;
};

// The file knows more than this release, or this build, does.
Status CheckIsThere(const NodeConfig& config) {
  if (config.http.has_value() && config.http_asked && !HttpIsBuilt()) {
    return Status(Code::kInvalid,
                  "--http: this aquifer was built without HTTP; leave it out, or install "
                  "libboost-dev and build it again");
  }
  return Status();
}

Status Serve(const NodeOverrides& overrides) {
  SecretEnvironment environment = SecretEnvironment::Take();
  const sigset_t signals = BlockSignals();
  ::signal(SIGPIPE, SIG_IGN);  // Whoever reads what we write may end before we do.
  RaiseOpenFileLimit();
  AQ_ASSIGN_OR_RETURN(NodeConfig config, LoadNodeConfig(overrides));
  AQ_RETURN_IF_ERROR(CheckIsThere(config));
  if (!HttpIsBuilt()) config.http.reset();
  AQ_ASSIGN_OR_RETURN(NodePlan plan, PlanNode(config, ThisHost()));
  const std::string socket = plan.socket;
  Serving serving(overrides, std::move(plan), std::move(environment));
  AQ_RETURN_IF_ERROR(serving.Start());
  Notify("READY=1");
  Log("ready on " + socket);
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGHUP) break;
    serving.Reload();
  }
  // Whoever asks a second time gets what they ask for at once. A reload asks for nothing now.
  sigset_t ends = signals;
  sigdelset(&ends, SIGHUP);
  ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
  serving.Drain();
  LeaveEvenIfADriveHangs();
  return Status();
}

}  // namespace

void AddServeCommand(CLI::App* app, int* exit_status) {
  auto overrides = std::make_shared<NodeOverrides>();
  CLI::App* const serve = app->add_subcommand(
      "serve", "Run the node: the host's cache, which every engine of the host shares");
  serve->footer(kFooter);
  for (const NodeOption& option : NodeOptions()) {
    CLI::Option* const added =
        option.once != nullptr
            ? serve->add_option(std::string(option.name), (*overrides).*option.once,
                                std::string(option.help))
            : serve->add_option(std::string(option.name), (*overrides).*option.repeated,
                                std::string(option.help));
    added->type_name(std::string(option.value));
  }
  serve->callback([overrides, exit_status] {
    const Status status = Serve(*overrides);
    if (status.ok()) return;
    fmt::print(stderr, "aquifer serve: {}\n", status.message());
    *exit_status = status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
  });
}

}  // namespace aquifer
