#include "store/redis/resp.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace aquifer {
namespace {

using Kind = RespReply::Kind;

// Gives the reader the text, so many bytes at a time, and returns its answers.
std::vector<RespReply> ReadAll(RespReader* reader, std::string_view text, size_t step,
                               Status* status) {
  std::vector<RespReply> replies;
  while (true) {
    RespReply reply;
    const auto whole = reader->Next(&reply);
    if (!whole.ok()) {
      *status = whole.status();
      return replies;
    }
    if (*whole) {
      replies.push_back(std::move(reply));
      continue;
    }
    if (text.empty()) return replies;
    std::array<iovec, RespReader::kMostTargets + 1> room;
    const size_t count = reader->Room(room);
    size_t given = 0;
    for (size_t i = 0; i < count && given < step && !text.empty(); ++i) {
      const size_t bytes = std::min({room[i].iov_len, step - given, text.size()});
      std::memcpy(room[i].iov_base, text.data(), bytes);
      text.remove_prefix(bytes);
      given += bytes;
    }
    reader->Arrived(given);
  }
}

std::span<std::byte> BytesOf(std::string& text) { return std::as_writable_bytes(std::span(text)); }

TEST(RespTest, CommandsAreArraysOfStrings) {
  EXPECT_EQ(RespCommand({"GET", "a b"}), "*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
}

TEST(RespTest, EveryKindOfAnswerIsReadHoweverItIsCut) {
  const std::string text =
      "+OK\r\n-ERR "
      "no\r\n:-12\r\n$5\r\na\r\nbc\r\n$-1\r\n*2\r\n:1\r\n*1\r\n$2\r\nxy\r\n*-1\r\n$0\r\n\r\n";
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
    RespReader reader;
    Status status;
    const auto replies = ReadAll(&reader, text, step, &status);
    ASSERT_TRUE(status.ok());
    ASSERT_EQ(replies.size(), 8u) << step;
    EXPECT_EQ(replies[0].text, "OK");
    EXPECT_EQ(replies[1].kind, Kind::kError);
    EXPECT_EQ(replies[2].integer, -12);
    EXPECT_EQ(replies[3].text, "a\r\nbc");
    EXPECT_EQ(replies[4].kind, Kind::kNil);
    ASSERT_EQ(replies[5].items.size(), 2u);
    EXPECT_EQ(replies[5].items[1].items[0].text, "xy");
    EXPECT_EQ(replies[6].kind, Kind::kNil);
    EXPECT_EQ(replies[7].kind, Kind::kBulk);
  }
}

TEST(RespTest, AnAimedAnswerIsSpreadOverItsTargetAndTheRestIsDropped) {
  for (const size_t step : {size_t{1}, size_t{4}, size_t{9}, size_t{1000}}) {
    RespReader reader;
    Status status;
    std::string first(3, '.');
    std::string second(4, '.');
    reader.Aim({BytesOf(first), BytesOf(second)});
    const auto replies = ReadAll(&reader, "$10\r\n0123456789\r\n+OK\r\n", step, &status);
    ASSERT_EQ(replies.size(), 2u) << step;
    EXPECT_EQ(replies[0].bytes, 10u);
    EXPECT_EQ(first + second, "0123456");
    EXPECT_EQ(replies[1].text, "OK");
  }
}

TEST(RespTest, ATargetThatWasDroppedIsNotWrittenAnyMore) {
  RespReader reader;
  Status status;
  std::string target(8, '.');
  reader.Aim({BytesOf(target)});
  EXPECT_TRUE(ReadAll(&reader, "$8\r\n012", 100, &status).empty());
  reader.Drop();
  const auto replies = ReadAll(&reader, "34567\r\n", 100, &status);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(target, "012.....");
}

TEST(RespTest, AnErrorOrNothingInPlaceOfAnAimedAnswerIsInTheReply) {
  for (const std::string text : {"-OOM no\r\n", "$-1\r\n"}) {
    RespReader reader;
    Status status;
    std::string target(4, '.');
    reader.Aim({BytesOf(target)});
    const auto replies = ReadAll(&reader, text, 1, &status);
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_NE(replies[0].kind, Kind::kBulk);
    EXPECT_EQ(target, "....");
  }
}

TEST(RespTest, BytesThatAreNotRespAreRefused) {
  for (const std::string text :
       {"hello\r\n", "$x\r\n", "$3\r\nabcd\r\n", ":1x\r\n", "*9999999999\r\n", "$-2\r\n",
        "$99999999999\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"}) {
    for (const bool aimed : {false, true}) {
      RespReader reader;
      Status status;
      std::string target(4, '.');
      if (aimed) reader.Aim({BytesOf(target)});
      ReadAll(&reader, text, 1000, &status);
      EXPECT_EQ(status.code(), Code::kUnavailable) << text;
    }
  }
}

}  // namespace
}  // namespace aquifer
