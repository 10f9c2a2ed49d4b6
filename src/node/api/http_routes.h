// What a node answers over HTTP: one line for each path, and a function for each line. To add a
// call, write the function, put it into the table in http_routes.cc and describe it in
// docs/api/openapi.json; a test holds the two together. `aquifer ctl` has a table of its own
// (cli/ctl.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "base/mutex.h"
#include "node/api/http_guard.h"
#include "node/api/http_message.h"
#include "node/local/insider.h"
#include "node/local/node.h"
#include "node/local/recorder.h"

namespace aquifer {

class KeyService;
class NodeStores;

// What the calls work on. They run on threads of their own and may wait for the owner.
struct HttpContext {
  Node* node = nullptr;
  Recorder* recorder = nullptr;  // May be null.
  NodeStores* stores = nullptr;  // Null: there are no durable tiers.
  KeyService* keys = nullptr;    // Null: nothing is encrypted.
  std::string version{};
  std::string socket{};                  // The node's.
  std::optional<HttpAddress> address{};  // Of HTTP over TCP.
  int64_t started_nanos = 0;             // Of the system's clock.
  int64_t started_unix = 0;
  // The tenants that there are, and what is configured for them; any thread.
  std::function<std::vector<std::string>()> tenants{};
  std::function<std::vector<TenantOptions>()> tenant_options{};
  // The node is told to end: nothing that waits is worth it any more.
  std::atomic<bool> stopping = false;

  // Insiders that wait for the cache, so that they can be told to stop.
  Mutex mutex;
  std::set<Insider*> waiting AQ_GUARDED_BY(mutex);
};

// Where a call runs.
enum class HttpPlace : uint8_t {
  kReading,  // Quick: a task or a few of the owner's.
  kActing,   // May wait for drives; there are few of these at a time.
};

struct HttpRoute {
  std::string_view method;  // "GET" or "POST".
  std::string_view path;
  HttpNeed need = HttpNeed::kAdministration;
  HttpPlace place = HttpPlace::kActing;
  HttpResponse (*call)(const HttpRequest& request, HttpContext* context) = nullptr;
};

// The most that one call lists.
constexpr size_t kMaxHttpPage = 1000;

// All but /healthz and /readyz, which http_api.h answers by itself.
std::span<const HttpRoute> HttpRoutes();

// The description that is served at /openapi.json.
std::string_view OpenApiText();

}  // namespace aquifer
