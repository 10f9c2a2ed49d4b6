// The test vectors of docs/formats/key.md.
#include <gtest/gtest.h>

#include "block/block_id.h"
#include "testing/doc_vectors.h"
#include "testing/key_json.h"

namespace aquifer {
namespace {

nlohmann::json Vectors() { return ReadDocVectors(AQUIFER_SOURCE_DIR "/docs/formats/key.md"); }

TEST(KeyFormatTest, TenantIdsAreAsDescribed) {
  const auto vectors = Vectors().at("tenants");
  EXPECT_GE(vectors.size(), 3u);
  for (const auto& vector : vectors) {
    Key padded;  // Only for its ToHex().
    const TenantId id = TenantIdOf(TextOrHex(vector, "name"));
    std::copy(id.bytes.begin(), id.bytes.end(), padded.bytes.begin());
    EXPECT_EQ(padded.ToHex().substr(0, 32), vector.at("id").get<std::string>());
  }
}

TEST(KeyFormatTest, LayoutFingerprintsAndSizesAreAsDescribed) {
  const auto vectors = Vectors().at("layouts");
  EXPECT_GE(vectors.size(), 3u);
  for (const auto& vector : vectors) {
    SCOPED_TRACE(vector.at("what").get<std::string>());
    const Layout layout = LayoutFromJson(vector);
    EXPECT_TRUE(ValidateLayout(layout).ok()) << ValidateLayout(layout).ToString();
    EXPECT_EQ(HexOf(LayoutFingerprint(layout)), vector.at("fingerprint").get<std::string>());
    for (size_t group = 0; group < layout.groups.size(); ++group) {
      EXPECT_EQ(BlockBytes(layout, group), vector.at("block_bytes").at(group).get<uint64_t>());
    }
  }
}

TEST(KeyFormatTest, ChainsAreAsDescribed) {
  const auto vectors = Vectors().at("chains");
  EXPECT_GE(vectors.size(), 4u);
  for (const auto& vector : vectors) {
    SCOPED_TRACE(vector.at("what").get<std::string>());
    const DerivedChain derived = DeriveFromJson(vector);
    EXPECT_EQ(derived.root, vector.at("root").get<std::string>());
    EXPECT_EQ(derived.keys, vector.at("keys").get<std::vector<std::string>>());
  }
}

}  // namespace
}  // namespace aquifer
