// A node's answers, for people to read. Pure: JSON in, text out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace aquifer {

std::string StatusText(const nlohmann::json& status);
std::string TiersText(const nlohmann::json& answer);
// The findings of a check of a durable tier's store.
std::string StoreReportText(const nlohmann::json& report);
std::string TenantsText(const nlohmann::json& answer);
std::string TenantDeletedText(const nlohmann::json& answer);
std::string SessionsText(const nlohmann::json& answer);

// "2h 3m", "45s"
std::string SpanText(int64_t seconds);
// "87.3 %"; "-" of nothing.
std::string PartText(double part, double whole);

}  // namespace aquifer
