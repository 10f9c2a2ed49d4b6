#include "node/api/http_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace aquifer {
namespace {

// That each answers as described is in tests/http_test.cc.
TEST(HttpRoutesTest, TheCallsAreThoseThatAreDescribed) {
  std::set<std::string> served = {"GET /healthz", "GET /readyz"};
  for (const HttpRoute& route : HttpRoutes()) {
    const std::string call = std::string(route.method) + " " + std::string(route.path);
    EXPECT_TRUE(served.insert(call).second) << call << " is there twice";
  }
  std::set<std::string> described;
  const nlohmann::json document = nlohmann::json::parse(OpenApiText());
  for (const auto& [path, methods] : document.at("paths").items()) {
    for (const auto& [name, call] : methods.items()) {
      std::string method = name;
      std::transform(method.begin(), method.end(), method.begin(), ::toupper);
      described.insert(method.append(" ").append(path));
    }
  }
  EXPECT_EQ(served, described);
}

}  // namespace
}  // namespace aquifer
