// Our keys, fingerprints and checksums against tools/derive-keys, which was written from the
// descriptions in docs/formats/ and shares no code with us.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "aquifer/checksum.h"
#include "block/block_id.h"
#include "testing/key_json.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using Json = nlohmann::json;

std::string RandomHex(SeededRandom* random, size_t bytes) {
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) hex += fmt::format("{:02x}", random->Below(256));
  return hex;
}

Layout RandomLayout(SeededRandom* random) {
  Layout layout;
  random->Fill(layout.model);
  layout.tokens_per_block = static_cast<uint32_t>(1 + random->Below(300));
  layout.kv_format = RandomHex(random, 1 + random->Below(64));
  layout.groups.resize(1 + random->Below(16));
  for (KvGroup& group : layout.groups) {
    group = {.kind = static_cast<KvKind>(1 + random->Below(4)),
             .dtype = static_cast<DType>(1 + random->Below(7)),
             .layers = static_cast<uint32_t>(random->Below(128)),
             .kv_heads = static_cast<uint32_t>(random->Below(64)),
             .key_dim = static_cast<uint32_t>(random->Below(600)),
             .value_dim = static_cast<uint32_t>(random->Below(600)),
             .window_tokens = static_cast<uint32_t>(random->Below(1 << 20)),
             .opaque_bytes = random->Below(2) == 0 ? 0 : random->Next() >> 16};
  }
  return layout;
}

Json RandomChain(SeededRandom* random) {
  const uint64_t tokens_per_block = 1 + random->Below(random->Below(10) == 0 ? 600 : 40);
  std::vector<uint32_t> tokens(random->Below(tokens_per_block * 6));
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random->Next());
  Json extras = Json::array();
  const size_t begun_blocks = (tokens.size() + tokens_per_block - 1) / tokens_per_block;
  for (size_t block = 0; block < begun_blocks; ++block) {
    while (random->Below(3) == 0) {
      extras.push_back({{"block", block},
                        {"tag", 1 + random->Below(UINT32_MAX)},
                        {"value_hex", RandomHex(random, random->Below(100))}});
    }
  }
  Json chain = {{"tenant_hex", RandomHex(random, 1 + random->Below(64))},
                {"layout_fingerprint", RandomHex(random, 32)},
                {"tokens_per_block", tokens_per_block},
                {"tokens", tokens},
                {"extras", extras}};
  if (random->Below(2) == 0) chain["adapter_digest"] = RandomHex(random, 32);
  if (random->Below(2) == 0) chain["cache_salt_hex"] = RandomHex(random, random->Below(257));
  return chain;
}

// The tool's answer to `request`.
Json Ask(const Json& request) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("aquifer-derive-keys-{}", getpid());
  std::ofstream(path) << request;
  const std::string command =
      fmt::format("python3 '{}/tools/derive-keys' < '{}'", AQUIFER_SOURCE_DIR, path.string());
  FILE* pipe = popen(command.c_str(), "r");
  AQ_CHECK(pipe != nullptr);
  std::string output;
  std::array<char, 65536> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  EXPECT_EQ(pclose(pipe), 0);
  std::filesystem::remove(path);
  return Json::parse(output, nullptr, false);
}

class DeriveKeysTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  }

  SeededRandom random_{20'261'115};
};

TEST_F(DeriveKeysTest, ChainsOfRandomPromptsAgree) {
  Json request = {{"chains", Json::array()}};
  for (int i = 0; i < 300; ++i) request["chains"].push_back(RandomChain(&random_));
  const Json answer = Ask(request);
  ASSERT_TRUE(answer.is_object());
  for (size_t i = 0; i < request["chains"].size(); ++i) {
    const DerivedChain ours = DeriveFromJson(request["chains"][i]);
    EXPECT_EQ(ours.root, answer["chains"][i]["root"].get<std::string>()) << request["chains"][i];
    EXPECT_EQ(ours.keys, answer["chains"][i]["keys"].get<std::vector<std::string>>())
        << request["chains"][i];
  }
}

TEST_F(DeriveKeysTest, FingerprintsAndSizesOfRandomLayoutsAgree) {
  Json request = {{"layouts", Json::array()}};
  std::vector<Layout> layouts;
  for (int i = 0; i < 200; ++i) {
    layouts.push_back(RandomLayout(&random_));
    request["layouts"].push_back(ToJson(layouts.back()));
  }
  const Json answer = Ask(request);
  ASSERT_TRUE(answer.is_object());
  for (size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_EQ(HexOf(LayoutFingerprint(layouts[i])),
              answer["layouts"][i]["fingerprint"].get<std::string>());
    for (size_t group = 0; group < layouts[i].groups.size(); ++group) {
      EXPECT_EQ(BlockBytes(layouts[i], group),
                answer["layouts"][i]["block_bytes"][group].get<uint64_t>());
    }
  }
}

TEST_F(DeriveKeysTest, ChecksumsOfRandomBlocksAgree) {
  Json request = {{"checksums", Json::array()}};
  std::vector<std::string> blocks;
  for (int i = 0; i < 100; ++i) {
    const std::string hex = RandomHex(&random_, random_.Below(i < 50 ? 64 : 3000));
    blocks.push_back(BytesFromHex(hex));
    request["checksums"].push_back({{"bytes_hex", hex}});
  }
  const Json answer = Ask(request);
  ASSERT_TRUE(answer.is_object());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Checksum ours = ChecksumOf(std::as_bytes(std::span(blocks[i])));
    EXPECT_EQ(fmt::format("{:016x}", ours.low), answer["checksums"][i]["low"].get<std::string>())
        << i;
    EXPECT_EQ(fmt::format("{:016x}", ours.high), answer["checksums"][i]["high"].get<std::string>())
        << i;
  }
}

TEST_F(DeriveKeysTest, TheToolAgreesWithTheVectorsInTheDescriptions) {
  for (const char* page : {"key", "checksum"}) {
    const std::string command =
        fmt::format("python3 '{0}/tools/derive-keys' --check '{0}/docs/formats/{1}.md'",
                    AQUIFER_SOURCE_DIR, page);
    EXPECT_EQ(std::system(command.c_str()), 0) << page;
  }
}

}  // namespace
}  // namespace aquifer
