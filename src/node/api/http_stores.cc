#include "node/api/http_stores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "node/api/http_actions.h"
#include "node/api/json_body.h"
#include "node/config/node_stores.h"
#include "tenant/keys/key_service.h"

namespace aquifer {
namespace {

using nlohmann::json;

constexpr size_t kMaxTierBytes = 64;

Status NoSuchTier(const std::string& name, const NodeStores* stores) {
  const std::vector<std::string> names =
      stores == nullptr ? std::vector<std::string>{} : stores->names();
  return Status(Code::kNotFound,
                names.empty()
                    ? std::string("this node has no durable tiers; see [[tier]] in its file")
                    : fmt::format("there is no durable tier '{}'; there are: {}", name,
                                  fmt::join(names, ", ")));
}

Status NoKeys() {
  return Status(Code::kInvalid,
                "this node encrypts nothing, so it has no data keys; see encryption in its file");
}

json KeysJson(const KeyFigures& figures) {
  return {{"known", figures.known},
          {"wanted", figures.wanted},
          {"forgotten", figures.forgotten},
          {"failures", figures.failures},
          {"read_unix", figures.refreshed_unix},
          {"trouble", figures.trouble}};
}

}  // namespace

json StoreReportJson(const std::string& tier, const std::string& place, const StoreReport& report) {
  json measures = json::array();
  for (const StoreMeasure& measure : report.measures) {
    measures.push_back({{"what", BlobKindName(measure.kind)},
                        {"bytes", measure.blob_bytes},
                        {"count", measure.count},
                        {"at_once", measure.at_once},
                        {"median_ms", static_cast<double>(measure.median_nanos) / 1e6},
                        {"worst_ms", static_cast<double>(measure.worst_nanos) / 1e6},
                        {"bytes_per_second", measure.bytes_per_second}});
  }
  return {{"tier", tier},
          {"place", place},
          {"works", report.status.ok()},
          {"failed", report.step},
          {"trouble", report.status.ok() ? "" : report.status.message()},
          {"measures", measures}};
}

// A store that does not work is a good answer to the question whether it does.
HttpResponse TierTestCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  const std::string name = body.Text("tier", kMaxTierBytes).value_or("");
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  BlobStore* const store = context->stores == nullptr ? nullptr : context->stores->Find(name);
  if (store == nullptr) return Refuse(NoSuchTier(name, context->stores));
  const StoreReport report = CheckStore(store, {}, SystemClock(), SystemRandom());
  return Tell(Status(), StoreReportJson(name, store->Describe(), report));
}

HttpResponse KeysCall(const HttpRequest&, HttpContext* context) {
  if (context->keys == nullptr) return Tell(Status(), {{"encryption", false}});
  json answer = KeysJson(context->keys->figures());
  answer["encryption"] = true;
  return Tell(Status(), std::move(answer));
}

HttpResponse KeysRewrapCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  if (context->keys == nullptr) return Refuse(NoKeys());
  const Result<size_t> count = context->keys->Rewrap();
  return count.ok() ? Tell(Status(), {{"rewrapped", *count}}) : Refuse(count.status());
}

}  // namespace aquifer
