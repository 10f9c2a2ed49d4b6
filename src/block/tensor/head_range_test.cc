#include "block/tensor/head_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace aquifer {
namespace {

using testing::HasSubstr;

TEST(HeadRangeTest, EveryHeadIsWrittenOnceAndHeldByAsManyRanksAsItNeeds) {
  for (const uint32_t kv_heads : {1u, 2u, 4u, 6u, 8u, 96u}) {
    for (const uint32_t ranks : {1u, 2u, 3u, 4u, 6u, 8u, 16u, 96u}) {
      if (kv_heads % ranks != 0 && ranks % kv_heads != 0) continue;
      std::vector<uint32_t> written(kv_heads);
      std::vector<uint32_t> held(kv_heads);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto result = HeadsOfRank(kv_heads, ranks, rank);
        ASSERT_TRUE(result.ok()) << kv_heads << " heads, " << ranks << " ranks";
        for (uint32_t head = result->heads.begin; head < result->heads.end; ++head) {
          if (result->writes && held.at(head) != 0) ADD_FAILURE() << "not the lowest rank";
          held.at(head) += 1;
          written.at(head) += result->writes ? 1 : 0;
        }
      }
      EXPECT_THAT(written, testing::Each(1u));
      EXPECT_THAT(held, testing::Each(ranks > kv_heads ? ranks / kv_heads : 1u));
    }
  }
}

TEST(HeadRangeTest, LatentsAreHeldByAllAndWrittenByTheFirst) {
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const auto result = HeadsOfRank(1, 8, rank);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->heads, (HeadRange{0, 1}));
    EXPECT_EQ(result->writes, rank == 0);
  }
}

TEST(HeadRangeTest, HeadsThatCannotBeDealtOutAreRefusedByName) {
  EXPECT_THAT(HeadsOfRank(0, 1, 0).status().message(), HasSubstr("kv_heads is zero"));
  EXPECT_THAT(HeadsOfRank(8, 0, 0).status().message(), HasSubstr("rank 0 is not one of 0"));
  EXPECT_THAT(HeadsOfRank(8, 4, 4).status().message(), HasSubstr("rank 4 is not one of 4"));
  for (const uint32_t ranks : {3u, 12u}) {
    const Status status = HeadsOfRank(8, ranks, 0).status();
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("to a divisor or a multiple of 8"));
  }
}

}  // namespace
}  // namespace aquifer
