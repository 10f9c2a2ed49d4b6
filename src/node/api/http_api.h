// Answers a node's HTTP: /healthz, /readyz, /metrics and the JSON API (http_routes.h). It says who
// may ask (http_guard.h), runs each call on a thread that may wait for the owner, and writes the
// audit lines of what was done and what was refused.
//
// Handle() and Screen() run on the HTTP server's thread and wait for nothing; all else may be
// called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "net/http/http_server.h"
#include "node/api/http_guard.h"
#include "node/api/http_routes.h"
#include "node/local/node.h"

namespace aquifer {

struct HttpApiOptions {
  Recorder* recorder = nullptr;  // These outlive it, and may be null.
  NodeStores* stores = nullptr;
  KeyService* keys = nullptr;
  std::string version{};
  std::string socket{};
  HttpRules rules{};
  std::vector<TenantOptions> tenants{};
  std::function<void(const std::string&)> log{};  // Any thread; may be empty.
};

class HttpApi final : public HttpHandler {
 public:
  explicit HttpApi(const HttpApiOptions& options);
  ~HttpApi() override;

  // Until then it only says that the node is starting. The node outlives Stop().
  void Serve(Node* node);
  // After a reload.
  void SetRules(const HttpRules& rules, std::vector<TenantOptions> tenants);
  // Where HTTP came to be; before the first request.
  void SetAddress(const std::optional<HttpAddress>& address);
  // The node ends: from now on it is not ready.
  void SetStopping();
  // Ends what waits, answers nothing more, and returns when no call runs. Before the server and the
  // node go.
  void Stop();

  std::optional<HttpResponse> Screen(const HttpRequest& request) override;
  std::chrono::milliseconds Handle(HttpRequest request,
                                   std::shared_ptr<HttpAnswer> answer) override;
  HttpResponse Refusal(unsigned status, std::string_view code, std::string_view message) override {
    return HttpError(status, code, message);
  }

 private:
  HttpRules rules() const;
  std::vector<TenantOptions> Tenants() const;
  std::vector<std::string> TenantNames() const;
  void Finished(bool reads);
  const HttpRoute* Find(const HttpRequest& request, std::string* allowed) const;
  void AnswerHealth(bool readiness, const std::shared_ptr<HttpAnswer>& answer);
  void Run(const HttpRoute& route, HttpRequest request, std::shared_ptr<HttpAnswer> answer);
  void AuditRefusal(const HttpRequest& request, const HttpResponse& response);

  const std::function<void(const std::string&)> log_;
  HttpContext context_;
  mutable Mutex mutex_;
  HttpRules rules_ AQ_GUARDED_BY(mutex_);
  std::vector<TenantOptions> tenants_ AQ_GUARDED_BY(mutex_);
  bool serving_ AQ_GUARDED_BY(mutex_) = false;
  bool stopped_ AQ_GUARDED_BY(mutex_) = false;
  int reading_ AQ_GUARDED_BY(mutex_) = 0;  // Calls that wait or run.
  int acting_ AQ_GUARDED_BY(mutex_) = 0;
  int64_t refusals_since_ AQ_GUARDED_BY(mutex_) = 0;
  int refusals_ AQ_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<WorkerPool> readers_;
  std::unique_ptr<WorkerPool> actors_;
};

}  // namespace aquifer
