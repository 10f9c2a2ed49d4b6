#include "node/api/http_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "node/api/json_body.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr milliseconds kHealthLimit = seconds(2);  // An owner that is that late is no good.
constexpr milliseconds kReadingLimit = seconds(10);
constexpr milliseconds kActingLimit = minutes(65);  // Calls have limits of their own.
constexpr int kMaxReading = 64;
constexpr int kMaxActing = 16;
constexpr int kActors = 4;
constexpr int64_t kAuditWindowNanos = 60'000'000'000;
constexpr int kAuditLines = 60;  // Of refusals, in a window: a flood does not fill the disk.
constexpr std::string_view kHealth = "/healthz";
constexpr std::string_view kReady = "/readyz";

HttpResponse PlainText(unsigned status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(text);
  return response;
}

}  // namespace

HttpApi::HttpApi(const HttpApiOptions& options)
    : log_(options.log),
      rules_(options.rules),
      tenants_(options.tenants),
      readers_(NewThreadWorkerPool(1, "aq-http-read")),
      actors_(NewThreadWorkerPool(kActors, "aq-http-act")) {
  context_.recorder = options.recorder;
  context_.stores = options.stores;
  context_.keys = options.keys;
  context_.version = options.version;
  context_.socket = options.socket;
  context_.started_nanos = SystemClock()->NowNanos();
  context_.started_unix = SystemClock()->UnixSeconds();
  context_.tenants = [this] { return TenantNames(); };
  context_.tenant_options = [this] { return Tenants(); };
}

HttpApi::~HttpApi() { Stop(); }

void HttpApi::Serve(Node* node) {
  const MutexLock lock(&mutex_);
  context_.node = node;
  serving_ = true;
}

void HttpApi::SetRules(const HttpRules& rules, std::vector<TenantOptions> tenants) {
  const MutexLock lock(&mutex_);
  rules_ = rules;
  tenants_ = std::move(tenants);
}

void HttpApi::SetAddress(const std::optional<HttpAddress>& address) {
  context_.address = address;
  const MutexLock lock(&mutex_);
  if (address) rules_.address = *address;
}

void HttpApi::SetStopping() { context_.stopping = true; }

void HttpApi::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopped_ = true;
  }
  SetStopping();
  {
    const MutexLock lock(&context_.mutex);
    for (Insider* const insider : context_.waiting) insider->Cancel();
  }
  readers_.reset();
  actors_.reset();
}

HttpRules HttpApi::rules() const {
  const MutexLock lock(&mutex_);
  return rules_;
}

std::vector<TenantOptions> HttpApi::Tenants() const {
  const MutexLock lock(&mutex_);
  return tenants_;
}

std::vector<std::string> HttpApi::TenantNames() const {
  std::vector<std::string> names;
  for (const TenantOptions& tenant : Tenants()) names.push_back(tenant.name);
  return names;
}

void HttpApi::Finished(bool reads) {
  const MutexLock lock(&mutex_);
  --(reads ? reading_ : acting_);
}

const HttpRoute* HttpApi::Find(const HttpRequest& request, std::string* allowed) const {
  for (const HttpRoute& route : HttpRoutes()) {
    if (route.path != request.path) continue;
    if (route.method == request.method) return &route;
    *allowed = route.method;
  }
  return nullptr;
}

std::optional<HttpResponse> HttpApi::Screen(const HttpRequest& request) {
  const HttpRules rules = this->rules();
  const bool health = request.path == kHealth || request.path == kReady;
  std::optional<HttpResponse> refused =
      RefuseCrossSite(request, health ? HttpNeed::kNothing : HttpNeed::kReading, rules);
  std::string allowed = health ? "GET, HEAD" : "";
  const HttpRoute* const route = health ? nullptr : Find(request, &allowed);
  const bool asks = request.method == "GET" || request.method == "HEAD";
  if (!refused && (health ? !asks : route == nullptr && !allowed.empty())) {
    refused = HttpError(405, "wrong_method",
                        fmt::format("{} is asked for with {}", request.path, allowed));
    refused->allow = allowed;
  }
  if (!refused && !health && route == nullptr) {
    return HttpError(404, "not_found", "there is no such path; /openapi.json lists all");
  }
  if (!refused) {
    refused = RefuseAccess(request, health ? HttpNeed::kNothing : route->need, rules);
  }
  if (refused && (refused->status == 401 || refused->status == 403)) {
    AuditRefusal(request, *refused);
  }
  return refused;
}

void HttpApi::AuditRefusal(const HttpRequest& request, const HttpResponse& response) {
  if (!log_) return;
  int number = 0;
  {
    const MutexLock lock(&mutex_);
    const int64_t now = SystemClock()->NowNanos();
    if (now - refusals_since_ > kAuditWindowNanos || refusals_since_ == 0) {
      refusals_since_ = now;
      refusals_ = 0;
    }
    number = ++refusals_;
  }
  if (number > kAuditLines) return;
  // Nothing of the request but what is known to be harmless.
  log_(fmt::format("audit: refused HTTP of {} with {}{}", request.peer, response.status,
                   number == kAuditLines ? "; more of this minute are not logged" : ""));
}

milliseconds HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  if (request.path == kHealth || request.path == kReady) {
    AnswerHealth(request.path == kReady, answer);
    return kHealthLimit;
  }
  std::string allowed;
  const HttpRoute& route = *Find(request, &allowed);  // Screen() has seen it.
  Run(route, std::move(request), std::move(answer));
  return route.place == HttpPlace::kReading ? kReadingLimit : kActingLimit;
}

// The owner itself answers: a node whose owner hangs is not healthy.
void HttpApi::AnswerHealth(bool readiness, const std::shared_ptr<HttpAnswer>& answer) {
  const MutexLock lock(&mutex_);
  if (stopped_) return answer->Reply(PlainText(503, "ending\n"));
  if (!serving_) return answer->Reply(PlainText(readiness ? 503 : 200, "starting\n"));
  Core* const core = context_.node->running()->core();
  context_.node->running()->owner()->Post(
      [core, readiness, answer, stopping = context_.stopping.load()] {
        const bool draining = stopping || core->draining();
        if (readiness && draining) return answer->Reply(PlainText(503, "draining\n"));
        answer->Reply(PlainText(200, readiness ? "ready\n" : "ok\n"));
      });
}

void HttpApi::Run(const HttpRoute& route, HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  const bool reads = route.place == HttpPlace::kReading;
  const MutexLock lock(&mutex_);
  int& running = reads ? reading_ : acting_;
  if (stopped_ || !serving_) {
    return answer->Reply(
        HttpError(503, "unavailable",
                  stopped_ ? "the node is ending" : "the node is starting; ask again in a moment"));
  }
  if (running == (reads ? kMaxReading : kMaxActing)) {
    return answer->Reply(
        HttpError(503, "busy", "too many calls are under way; ask again in a moment"));
  }
  ++running;
  (reads ? readers_ : actors_)
      ->Run([this, &route, reads, request = std::move(request), answer = std::move(answer)] {
        const HttpResponse response = route.call(request, &context_);
        if (route.need == HttpNeed::kAdministration && route.method == "POST" && log_) {
          log_(fmt::format("audit: {}{} for {}: {}", route.path, DescribeBody(request.body),
                           request.peer, response.status));
        }
        Finished(reads);
        answer->Reply(response);
      });
}

}  // namespace aquifer
