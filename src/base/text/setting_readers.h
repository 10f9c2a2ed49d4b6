// Readers of one key of a file, for tables of settings: a row names the key, and the reader with
// the member that it sets.
//
//     {"sync", &ReadFlag<&NodeConfig::nvme_sync>},
//     {"overdue", &ReadSeconds<&NodeConfig::overdue_seconds, 1>},
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "base/text/toml_value.h"

namespace aquifer {

template <class Pointer>
struct MemberPointer;
template <class C, class V>
struct MemberPointer<V C::*> {
  using Class = C;
  using Value = V;
};
template <auto kMember>
using ClassOf = typename MemberPointer<decltype(kMember)>::Class;

template <auto kMember>
Status ReadFlag(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(config->*kMember, value.Flag());
  return Status();
}

template <auto kMember>
Status ReadBytes(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(config->*kMember, value.Bytes());
  return Status();
}

template <auto kMember, int64_t kLeast>
Status ReadSeconds(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(config->*kMember, value.Seconds(kLeast));
  return Status();
}

// `kNames` in the order of the enumeration's values, which begin with 0.
template <auto kMember, const auto& kNames>
Status ReadChoice(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(const size_t index, value.OneOf(kNames));
  config->*kMember = static_cast<typename MemberPointer<decltype(kMember)>::Value>(index);
  return Status();
}

// "/a//b/" as "/a/b", so that one that is named twice is seen.
std::string NormalPath(std::string_view path);

// An absolute path, normal. A message about a secret does not repeat what was written.
Result<std::string> AbsolutePathFrom(const TomlValue& value, bool of_secret = false);

template <auto kMember>
Status ReadPath(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(config->*kMember, AbsolutePathFrom(value));
  return Status();
}

// `word` stands for an empty path.
Status ReadPathOr(std::string_view word, bool of_secret, const TomlValue& value, std::string* path);

template <auto kMember, const auto& kWord, bool kOfSecret = false>
Status ReadPathOr(const TomlValue& value, ClassOf<kMember>* config) {
  return ReadPathOr(kWord, kOfSecret, value, &(config->*kMember));
}

// Bytes a second, at least 1 MiB; "unlimited" stands for 0.
Result<uint64_t> WriteBudgetFrom(const TomlValue& value);

template <auto kMember>
Status ReadWriteBudget(const TomlValue& value, ClassOf<kMember>* config) {
  AQ_ASSIGN_OR_RETURN(config->*kMember, WriteBudgetFrom(value));
  return Status();
}

}  // namespace aquifer
