// The life of a node's process around the node itself: it starts what the plan names, reads its
// files again, records, drains and ends. What only a program has (its command line, its signals) is
// in cli/serve.cc.
//
// One thread calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "net/http/http_server.h"
#include "node/api/http_api.h"
#include "node/config/node_config.h"
#include "node/config/node_log.h"
#include "node/config/node_plan.h"
#include "node/config/node_stores.h"
#include "node/config/secret_environment.h"
#include "node/local/node.h"
#include "node/local/recorder.h"
#include "node/local/storage_watch.h"
#include "node/local/tenant_drop.h"
#include "tenant/keys/key_service.h"
#include "tenant/tenants.h"

namespace aquifer {

// Tells systemd of a change of state, where systemd started this process and asked for that.
void NotifySupervisor(const std::string& state);

struct NodeProcessOptions {
  NodeOverrides overrides{};  // Also for each reload.
  NodeHost host{};
  std::string version{};
  NodeLog* log = nullptr;  // Outlives the process.
};

class NodeProcess {
 public:
  // `plan` follows from the overrides and the host.
  NodeProcess(NodeProcessOptions options, NodePlan plan, SecretEnvironment environment);
  ~NodeProcess();

  // Returns when the node serves.
  Status Start();

  // Changes what can be changed while the node runs. An error changes nothing; it is in the log.
  Status Reload();

  // Stores nothing any more, and writes to the lower tiers what is in memory alone.
  void Drain();

  Node* node() { return node_.get(); }
  // Where HTTP over TCP came to be; none: nowhere.
  std::optional<HttpAddress> http() const { return plan_.http; }

 private:
  void Log(const std::string& line) { options_.log->Write(line); }
  Status StartKeys(const std::vector<SecretKey>& masters);
  Status StartHttp();
  Status StartNode();
  void KnowTenants();
  Status StartRecording(const NodeConfig& config);
  void StopRecording();
  bool ChangeRecording(const NodeConfig& next);
  HttpRules Rules() const;
  std::vector<std::string> TenantNames() const;
  Status TryReload();
  Status SetTenants(std::shared_ptr<const Tenants> tenants);
  uint32_t MostConnections(uint32_t wanted);
  Result<Admission> Admit(const Hello& hello, const PeerCredentials& peer);

  const NodeProcessOptions options_;
  const SecretEnvironment environment_;
  NodePlan plan_;
  std::shared_ptr<const Tenants> tenants_;  // Shared with nobody: it may be kept by what it gave.
  Recorder recorder_;
  // What the node stands on goes after it; the dropper, which the keys call, last of all.
  TenantDrop dropper_;
  std::unique_ptr<KeyService> keys_;  // Null: nothing is encrypted.
  std::unique_ptr<NodeStores> stores_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<StorageWatch> watch_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace aquifer
