// What an administrator asks about stores and keys over HTTP: whether a durable tier works, how the
// data keys are, and to wrap them anew. For the table in http_routes.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "node/api/http_message.h"
#include "node/api/http_routes.h"
#include "store/store_check.h"

namespace aquifer {

HttpResponse TierTestCall(const HttpRequest& request, HttpContext* context);
HttpResponse KeysCall(const HttpRequest& request, HttpContext* context);
HttpResponse KeysRewrapCall(const HttpRequest& request, HttpContext* context);

// What a check of a store found. `place` is where that is, for people.
nlohmann::json StoreReportJson(const std::string& tier, const std::string& place,
                               const StoreReport& report);

}  // namespace aquifer
