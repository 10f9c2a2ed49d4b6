#include "store/redis/redis_blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A write of three pieces, up to the step that publishes its manifest.
class PublishedBlobTest : public testing::Test {
 protected:
  PublishedBlobTest() {
    request_.kind = BlobKind::kWrite;
    request_.name = "a";
    request_.head = std::span(bytes_).first(8);
    request_.body = std::span(bytes_).subspan(8);
    request_.body_bytes = request_.body.size();
    request_.if_absent = false;
    blob_.Start();
    const std::vector<RedisCommand> pieces = blob_.TakeCommands();
    EXPECT_THAT(pieces, SizeIs(3));
    for (size_t i = 0; i < pieces.size(); ++i) blob_.Hear(0, {}, RespReply{});
    const std::vector<RedisCommand> publish = blob_.TakeCommands();
    EXPECT_THAT(publish, SizeIs(1));
    EXPECT_THAT(publish.front().text, HasSubstr("EVAL"));
  }

  SeededRandom random_{1};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(8 + 3 * 1024);
  BlobRequest request_;
  RedisBlob blob_{
      {.prefix = "aquifer:", .piece_bytes = 1024, .clock = SystemClock(), .random = &random_},
      &request_};
};

TEST_F(PublishedBlobTest, WithoutRoomForItsManifestItsPiecesAreTakenAway) {
  blob_.Fail(Status(Code::kNoSpace, "OOM"));
  EXPECT_EQ(blob_.status().code(), Code::kNoSpace);
  const std::vector<RedisCommand> after = blob_.Afterwards();
  ASSERT_THAT(after, SizeIs(1));
  EXPECT_THAT(after.front().text, HasSubstr("UNLINK"));
}

TEST_F(PublishedBlobTest, WhoseAnswerIsLostKeepsItsPieces) {
  blob_.Fail(Status(Code::kUnavailable, "the connection was lost"));
  EXPECT_EQ(blob_.status().code(), Code::kUnavailable);
  EXPECT_THAT(blob_.Afterwards(), IsEmpty());
}

TEST(RedisErrorTest, EveryErrorOfAServerSaysWhatToDo) {
  struct Case {
    const char* text;
    Code code;
    const char* next_step;
  };
  const Case cases[] = {
      {"OOM command not allowed", Code::kNoSpace, "more memory"},
      {"ERR Error running script: -OOM command not allowed", Code::kNoSpace, "more memory"},
      {"BUSY Redis is busy", Code::kBusy, "SCRIPT KILL"},
      {"TRYAGAIN Multiple keys", Code::kBusy, "wait"},
      {"WRONGTYPE Operation", Code::kCorrupt, "prefix"},
      {"LOADING Redis is loading", Code::kUnavailable, "wait"},
      {"CLUSTERDOWN Hash slot not served", Code::kUnavailable, "redis-cli --cluster check"},
      {"READONLY You can't write", Code::kUnavailable, "master"},
      {"MASTERDOWN Link with MASTER is down", Code::kUnavailable, "start the master"},
      {"MISCONF Redis is configured", Code::kUnavailable, "disk"},
      {"NOREPLICAS Not enough", Code::kUnavailable, "min-replicas-to-write"},
      {"NOAUTH Authentication required", Code::kUnavailable, "password_file"},
      {"NOPERM this user has no permissions", Code::kUnavailable, "docs/operating/redis.md"},
      {"ERR something new", Code::kUnavailable, "log"},
  };
  for (const Case& one : cases) {
    const Status status = StatusOfRedisError(one.text, {"host", 6379});
    EXPECT_EQ(status.code(), one.code) << one.text;
    EXPECT_THAT(status.message(), HasSubstr(one.text));
    const size_t next = status.message().find("; next step: ");
    ASSERT_NE(next, std::string::npos) << status.message();
    EXPECT_THAT(status.message().substr(next), HasSubstr(one.next_step));
  }
}

}  // namespace
}  // namespace aquifer
