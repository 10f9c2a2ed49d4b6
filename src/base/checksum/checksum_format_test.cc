// The test vectors of docs/formats/checksum.md, on every kernel.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "aquifer/checksum.h"
#include "base/checksum/checksum_kernel.h"
#include "testing/doc_vectors.h"

namespace aquifer {
namespace {

std::string BytesOf(const nlohmann::json& vector) {
  if (!vector.contains("byte_formula")) return TextOrHex(vector, "bytes");
  std::string bytes;
  for (const uint32_t number : FromFormula(vector.at("byte_formula"))) {
    bytes.push_back(static_cast<char>(number));
  }
  return bytes;
}

TEST(ChecksumFormatTest, TheVectorsOfTheDescriptionHold) {
  const auto vectors =
      ReadDocVectors(AQUIFER_SOURCE_DIR "/docs/formats/checksum.md").at("checksums");
  EXPECT_GE(vectors.size(), 10u);
  for (const ChecksumKernel& kernel : ChecksumKernels()) {
    ForceChecksumKernel(&kernel);
    for (const auto& vector : vectors) {
      SCOPED_TRACE(vector.at("what").get<std::string>() + ", " + kernel.name);
      const std::string bytes = BytesOf(vector);
      const std::span piece = std::as_bytes(std::span(bytes));
      const LaneSums sums = SumLanes(piece, vector.value("offset", uint64_t{0}));
      EXPECT_EQ(fmt::format("{:016x}", sums.a), vector.at("a").get<std::string>());
      EXPECT_EQ(fmt::format("{:016x}", sums.b), vector.at("b").get<std::string>());
      if (vector.contains("offset")) continue;
      EXPECT_EQ(fmt::format("{:016x}", ChecksumOf(piece).low), vector.at("low").get<std::string>());
      EXPECT_EQ(fmt::format("{:016x}", ChecksumOf(piece).high),
                vector.at("high").get<std::string>());
    }
  }
  ForceChecksumKernel(nullptr);
}

}  // namespace
}  // namespace aquifer
