// Reads test vectors out of a format's description, so that the page cannot drift from the code.
// They are JSON in a code block that begins with "```json vectors".
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace aquifer {

inline nlohmann::json ReadDocVectors(const std::string& path) {
  constexpr std::string_view kBegin = "\n```json vectors\n";
  constexpr std::string_view kEnd = "\n```";
  std::ifstream file(path);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = page.find(kBegin);
  AQ_CHECK(begin != std::string::npos);
  const size_t end = page.find(kEnd, begin + kBegin.size());
  AQ_CHECK(end != std::string::npos);
  return nlohmann::json::parse(page.substr(begin + kBegin.size(), end - begin - kBegin.size()));
}

inline std::string BytesFromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// `name`, or the bytes of `name`_hex, or nothing.
inline std::string TextOrHex(const nlohmann::json& item, const std::string& name) {
  if (item.contains(name + "_hex")) return BytesFromHex(item.at(name + "_hex"));
  return item.value(name, std::string());
}

// The numbers `i * factor mod modulus` of a [count, factor, modulus].
inline std::vector<uint32_t> FromFormula(const nlohmann::json& formula) {
  std::vector<uint32_t> numbers(formula.at(0).get<size_t>());
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] =
        static_cast<uint32_t>(i * formula.at(1).get<uint64_t>() % formula.at(2).get<uint64_t>());
  }
  return numbers;
}

}  // namespace aquifer
