// What an administrator does to a node over HTTP: pin, unpin, prestage, evict, delete a tenant,
// record, drain. Each
// reads its JSON, waits for the cache, and says what became of it. For the table in http_routes.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "aquifer/status.h"
#include "node/api/http_message.h"
#include "node/api/http_routes.h"

namespace aquifer {

// The longest times that may be asked for.
constexpr int64_t kMaxPinSeconds = 10 * 365 * 86'400LL;
constexpr int64_t kMaxTimeoutMs = 3'600'000;

HttpResponse PinCall(const HttpRequest& request, HttpContext* context);
HttpResponse UnpinCall(const HttpRequest& request, HttpContext* context);
HttpResponse PrestageCall(const HttpRequest& request, HttpContext* context);
HttpResponse EvictCall(const HttpRequest& request, HttpContext* context);
HttpResponse RecordCall(const HttpRequest& request, HttpContext* context);
HttpResponse RecordStartCall(const HttpRequest& request, HttpContext* context);
HttpResponse RecordStopCall(const HttpRequest& request, HttpContext* context);
HttpResponse DrainCall(const HttpRequest& request, HttpContext* context);
HttpResponse UndrainCall(const HttpRequest& request, HttpContext* context);
HttpResponse TenantDeleteCall(const HttpRequest& request, HttpContext* context);

// Nothing was done, and why.
HttpResponse Refuse(const Status& status);
// What was done is told whether or not that was all.
HttpResponse Tell(const Status& status, nlohmann::json result);

}  // namespace aquifer
