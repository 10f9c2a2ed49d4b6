#include "node/process.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "net/local/default_socket.h"
#include "node/config/admin_socket.h"
#include "node/config/encryption.h"
#include "node/local/insider.h"
#include "tenant/token.h"

namespace aquifer {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr uint32_t kReadyExtents = 4;  // 256 MiB; two workers make 13 GB/s.
// A store of keys that this node has not used before may be made by a tier that is still opening.
constexpr int64_t kNewKeyStoreNanos = 5 * kNanosPerSecond;

// What clients ask for is kept outside of the pool, in some of the memory that is left to the rest
// of the host: a quarter.
void BoundItems(const CacheOptions& cache, ServerOptions* server) {
  constexpr uint64_t kBytesPerItem = 128;
  constexpr uint64_t kLeastItems = uint64_t{1} << 18;
  const uint64_t items = cache.keep_available_bytes / 4 / kBytesPerItem;
  server->max_items = std::clamp<uint64_t>(items, kLeastItems, server->max_items);
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

std::string DrainedText(const DrainRequest& request, bool has_nvme, bool has_tiers) {
  if (has_tiers && request.left == 0) return "drained: every block is in a lower tier";
  if (!has_nvme && !has_tiers) return "drained: there is no NVMe, so nothing outlives this process";
  if (request.left == 0) return "drained: every block is on NVMe";
  return fmt::format("drained in part: {} blocks are lost with this process ({})", request.left,
                     request.status.ToString());
}

// A process that holds keys is not for others to look into, and leaves no core file with them.
bool HideMemory() { return ::prctl(PR_SET_DUMPABLE, 0) == 0; }

}  // namespace

void NotifySupervisor(const std::string& state) {
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

NodeProcess::NodeProcess(NodeProcessOptions options, NodePlan plan, SecretEnvironment environment)
    : options_(std::move(options)),
      environment_(std::move(environment)),
      plan_(std::move(plan)),
      recorder_({.log = options_.log->sink()}),
      dropper_(options_.log->sink()) {}

NodeProcess::~NodeProcess() {
  if (api_ != nullptr) api_->Stop();
  http_.reset();
  api_.reset();
  dropper_.Stop();
}

Status NodeProcess::Start() {
  AQ_ASSIGN_OR_RETURN(tenants_, ReadTenants(plan_));
  AQ_ASSIGN_OR_RETURN(const std::vector<SecretKey> masters,
                      MasterKeysFor(plan_.config, environment_, plan_.uid));
  plan_.encrypted = !masters.empty();
  options_.log->WriteTable("This node uses",
                           DescribePlan(plan_, options_.overrides.config.value_or("")));
  AQ_RETURN_IF_ERROR(StartKeys(masters));
  AQ_ASSIGN_OR_RETURN(
      stores_, NodeStores::New(
                   plan_.config.tiers, environment_, keys_.get(),
                   plan_.config.tiers.empty() ? std::string() : StateDirectoryOf(options_.host)));
  AQ_RETURN_IF_ERROR(StartHttp());
  return StartNode();
}

Status NodeProcess::StartNode() {
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
    return Admit(hello, peer);
  };
  options.server.max_connections = MostConnections(options.server.max_connections);
  BoundItems(options.cache, &options.server);
  options.server.log = [log = options_.log](std::optional<uid_t> user, const std::string& line) {
    log->WriteFor(user, line);
  };
  options.server.recorder = &recorder_;
  if (!plan_.config.record_file.empty()) AQ_RETURN_IF_ERROR(StartRecording(plan_.config));
  AQ_ASSIGN_OR_RETURN(node_, Node::Start(options));
  KnowTenants();
  dropper_.Serve(node_->running());
  watch_ = std::make_unique<StorageWatch>(node_->running(), options_.log->sink());
  if (api_ != nullptr) api_->Serve(node_.get());
  return Status();
}

// What is left of the descriptors when the pool has its own.
uint32_t NodeProcess::MostConnections(uint32_t wanted) {
  constexpr uint64_t kPerConnection = 8;
  constexpr uint64_t kOthers = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const uint64_t taken = plan_.cache.dram_bytes / CoreOptions{}.extent_bytes + kOthers;
  const uint64_t left = limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, taken);
  const auto most = static_cast<uint32_t>(std::clamp<uint64_t>(left / kPerConnection, 1, wanted));
  if (most < wanted) {
    Log(fmt::format("warning: at most {} clients at a time: the limit on open files is {}", most,
                    limit.rlim_cur));
  }
  return most;
}

Result<Admission> NodeProcess::Admit(const Hello& hello, const PeerCredentials& peer) {
  Denial denial = Denial::kNone;
  const Result<const Tenant*> tenant =
      tenants_->Authenticate(hello.tenant, hello.token, peer.uid, &denial);
  if (!tenant.ok()) {
    options_.log->WriteFor(
        peer.uid, fmt::format("audit: denied a client of process {}, user {}: {}", peer.pid,
                              peer.uid, DenialName(denial)));
    return tenant.status();
  }
  return Admission{
      .client = {.tenant = (*tenant)->options.name, .engine = std::string(hello.engine)},
      .may_drain = !tenants_->from_file(),
      .token_digest = DigestOfToken(hello.token)};
}

Status NodeProcess::Reload() {
  NotifySupervisor("RELOADING=1");
  const Status status = TryReload();
  if (!status.ok()) {
    std::string why = status.message();
    std::replace(why.begin(), why.end(), '\n', ';');
    Log("error: reload: nothing was changed: " + why);
  }
  NotifySupervisor("READY=1");
  return status;
}

void NodeProcess::Drain() {
  NotifySupervisor("STOPPING=1");
  StopRecording();
  if (api_ != nullptr) api_->SetStopping();
  const int64_t seconds = plan_.config.drain_seconds;
  Log(fmt::format("draining, for at most {} s", seconds));
  Result<std::unique_ptr<Insider>> insider = Insider::New(node_->running(), {});
  if (!insider.ok()) return Log("error: cannot drain: " + insider.status().message());
  DrainRequest request;
  request.timeout_nanos = std::max<int64_t>(1, seconds * kNanosPerSecond);
  (*insider)->Drain(&request);
  Log(DrainedText(request, !plan_.cache.nvme_directories.empty(), !plan_.config.tiers.empty()));
}

Status NodeProcess::StartKeys(const std::vector<SecretKey>& masters) {
  if (masters.empty()) return Status();
  if (!HideMemory()) Log("warning: a core file of this process may hold keys");
  AQ_ASSIGN_OR_RETURN(const KeyPlace place, PlaceOfKeys(plan_.config, options_.host));
  Result<std::unique_ptr<KeyStore>> store =
      OpenKeys(plan_.config, place, MemoryOfKeys(options_.host, plan_.socket), environment_,
               options_.log->sink());
  if (!store.ok()) return AtKey(plan_.config.places, "key_store", store.status());
  KeyServiceOptions options;
  const auto before = MemoryOfKeys(options_.host, plan_.socket).Recall();
  if (before.ok() && !before->has_value()) options.patience_nanos = kNewKeyStoreNanos;
  options.log = options_.log->sink();
  options.on_forgotten = [this](const TenantId& tenant, std::function<void()> on_dropped) {
    dropper_.Drop(tenant, std::move(on_dropped));
  };
  AQ_ASSIGN_OR_RETURN(keys_, KeyService::Start(*std::move(store), masters, options));
  Log("what leaves DRAM is encrypted; data keys are " + place.Describe());
  return Status();
}

// Keys are looked for before a tenant's first block wants one.
void NodeProcess::KnowTenants() {
  dropper_.AddTenants(TenantNames());
  if (keys_ == nullptr) return;
  for (const std::string& name : TenantNames()) keys_->KeyOf(TenantIdOf(name));
}

Status NodeProcess::StartRecording(const NodeConfig& config) {
  const Result<std::string> file = recorder_.Start(config.record_file);
  if (!file.ok()) return AtKey(config.places, "record", file.status());
  Log("recording what is asked for, without its content, to " + *file);
  return Status();
}

void NodeProcess::StopRecording() {
  if (!recorder_.wanted()) return;
  const Status stopped = recorder_.Stop();
  const RecordingStatus status = recorder_.status();
  Log(fmt::format("recorded {} requests to {}, {} left out{}", status.requests, status.file,
                  status.left_out, stopped.ok() ? "" : ": " + stopped.message()));
}

// False: it cannot begin, which is no reason to be without the rest of the reload; the next one
// tries it again.
bool NodeProcess::ChangeRecording(const NodeConfig& next) {
  if (next.record_file == plan_.config.record_file) return true;
  StopRecording();
  plan_.config.record_file.clear();
  if (next.record_file.empty()) return true;
  if (const Status status = StartRecording(next); !status.ok()) {
    Log("warning: reload: nothing is recorded: " + status.message());
    return false;
  }
  plan_.config.record_file = next.record_file;
  return true;
}

HttpRules NodeProcess::Rules() const {
  return {.admin_token_sha256 = plan_.config.admin_token_sha256,
          .has_tenants_file = tenants_->from_file(),
          .address = plan_.http.value_or(HttpAddress{})};
}

std::vector<std::string> NodeProcess::TenantNames() const {
  std::vector<std::string> names;
  for (const Tenant& tenant : tenants_->all()) names.push_back(tenant.options.name);
  return names;
}

// Before the node, so that whoever asks hears that it is starting.
Status NodeProcess::StartHttp() {
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
                                                  .version = options_.version,
                                                  .socket = plan_.socket,
                                                  .rules = Rules(),
                                                  .tenants = tenants_->Options(),
                                                  .log = options_.log->sink()});
  Result<std::unique_ptr<HttpServer>> server = StartHttpServer(options, api_.get());
  if (!server.ok() && options.address && !plan_.config.http_asked) {
    options.address.reset();
    plan_.http.reset();
    const std::string why = server.status().message();
    server = StartHttpServer(options, api_.get());
    if (server.ok()) Log("warning: there is no HTTP but for aquifer ctl: " + why);
  }
  if (!server.ok() && options.address) {
    return Status(
        server.status().code(),
        server.status().message() + "; choose another address with --http, or --http off");
  }
  if (!server.ok()) return server.status();
  http_ = std::move(*server);
  api_->SetAddress(http_->address());
  if (http_->address()) Log("HTTP on " + http_->address()->Text());
  return Status();
}

Status NodeProcess::TryReload() {
  AQ_ASSIGN_OR_RETURN(const NodeConfig next, LoadNodeConfig(options_.overrides));
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
  const std::string recorded = plan_.config.record_file;
  CopyReloadable(next, &plan_.config);
  plan_.config.record_file = recorded;
  options_.log->Set(next.log_level, next.log_format);
  KnowTenants();
  if (!ChangeRecording(next)) std::erase(changes.applied, "record");
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
Status NodeProcess::SetTenants(std::shared_ptr<const Tenants> tenants) {
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

}  // namespace aquifer
