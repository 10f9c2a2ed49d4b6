// For the tests that read and write layouts and chains as docs/formats/key.md and tools/derive-keys
// do. The names are the ones in those vectors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/layout.h"
#include "base/check.h"
#include "testing/doc_vectors.h"

namespace aquifer {

inline constexpr const char* kKindNames[] = {"full", "window", "latent", "state"};
inline constexpr const char* kDTypeNames[] = {"float32",     "float16", "bfloat16", "float8_e4m3",
                                              "float8_e5m2", "int8",    "uint8"};

inline std::string HexOf(const Digest& digest) { return Key{digest}.ToHex(); }

inline Digest DigestFromHex(const std::string& hex) {
  const Result<Key> key = KeyFromHex(hex);
  AQ_CHECK(key.ok());
  return key->bytes;
}

// The number of `name` in `names`, counted from 1, as the formats do.
template <class Enum, size_t count>
Enum EnumFromName(const char* const (&names)[count], const std::string& name) {
  for (size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<Enum>(i + 1);
  }
  CheckFailed(name.c_str(), __FILE__, __LINE__);
}

inline nlohmann::json ToJson(const Layout& layout) {
  nlohmann::json groups = nlohmann::json::array();
  for (const KvGroup& group : layout.groups) {
    groups.push_back({{"kind", kKindNames[static_cast<int>(group.kind) - 1]},
                      {"dtype", kDTypeNames[static_cast<int>(group.dtype) - 1]},
                      {"layers", group.layers},
                      {"kv_heads", group.kv_heads},
                      {"key_dim", group.key_dim},
                      {"value_dim", group.value_dim},
                      {"window_tokens", group.window_tokens},
                      {"opaque_bytes", group.opaque_bytes}});
  }
  return {{"model", HexOf(layout.model)},
          {"tokens_per_block", layout.tokens_per_block},
          {"kv_format", layout.kv_format},
          {"groups", groups}};
}

inline Layout LayoutFromJson(const nlohmann::json& json) {
  Layout layout;
  layout.model = DigestFromHex(json.at("model"));
  layout.tokens_per_block = json.at("tokens_per_block");
  layout.kv_format = json.at("kv_format");
  for (const auto& group : json.at("groups")) {
    layout.groups.push_back({.kind = EnumFromName<KvKind>(kKindNames, group.at("kind")),
                             .dtype = EnumFromName<DType>(kDTypeNames, group.at("dtype")),
                             .layers = group.at("layers"),
                             .kv_heads = group.at("kv_heads"),
                             .key_dim = group.at("key_dim"),
                             .value_dim = group.at("value_dim"),
                             .window_tokens = group.at("window_tokens"),
                             .opaque_bytes = group.at("opaque_bytes")});
  }
  return layout;
}

// The root and the keys that our code derives for one entry of "chains", in hexadecimal.
struct DerivedChain {
  std::string root;
  std::vector<std::string> keys;
};

inline DerivedChain DeriveFromJson(const nlohmann::json& chain) {
  const std::string tenant = TextOrHex(chain, "tenant");
  const std::string salt = TextOrHex(chain, "cache_salt");
  const Result<Key> root = DeriveRoot(
      {.tenant = tenant,
       .layout_fingerprint = DigestFromHex(chain.at("layout_fingerprint")),
       .adapter_digest = DigestFromHex(chain.value("adapter_digest", std::string(64, '0'))),
       .cache_salt = salt});
  AQ_CHECK(root.ok());

  const std::vector<uint32_t> tokens = chain.contains("tokens")
                                           ? chain.at("tokens").get<std::vector<uint32_t>>()
                                           : FromFormula(chain.at("token_formula"));
  const nlohmann::json extras_json = chain.value("extras", nlohmann::json::array());
  std::vector<std::string> values;
  for (const auto& extra : extras_json) values.push_back(TextOrHex(extra, "value"));
  std::vector<Extra> extras;
  extras.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    extras.push_back(
        {.block = extras_json[i].at("block"), .tag = extras_json[i].at("tag"), .value = values[i]});
  }
  const uint32_t tokens_per_block = chain.at("tokens_per_block");
  std::vector<Key> keys(tokens.size() / tokens_per_block);
  AQ_CHECK(DeriveChain(*root, tokens, tokens_per_block, extras, keys).ok());

  DerivedChain derived = {.root = root->ToHex(), .keys = {}};
  for (const Key& key : keys) derived.keys.push_back(key.ToHex());
  return derived;
}

}  // namespace aquifer
