#include "node/config/secret_environment.h"

#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>

#include "base/crypto/secret_key.h"
#include "tenant/keys/master_keys.h"

namespace aquifer {

SecretEnvironment::~SecretEnvironment() {
  for (auto& [name, value] : taken_) WipeSecret(std::as_writable_bytes(std::span(value)));
}

SecretEnvironment SecretEnvironment::Take() {
  SecretEnvironment environment;
  for (const char* const name :
       {kMasterKeyVariable, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}) {
    std::string value = TakeFromEnvironment(name);
    if (!value.empty()) environment.taken_.emplace(name, std::move(value));
  }
  return environment;
}

const char* SecretEnvironment::Get(const char* name) const {
  const auto found = taken_.find(name);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets any once there are threads.
  return found == taken_.end() ? std::getenv(name) : found->second.c_str();
}

}  // namespace aquifer
