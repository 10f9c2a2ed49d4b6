#include "trace/request_log.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aquifer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

struct Reading {
  std::vector<TraceRequest> requests;
  std::vector<LogForm> forms;
  std::string error;
};

Reading ReadText(const std::string& text, LineSourceOptions options = {}) {
  RequestLog log(std::make_unique<LineSource>(options, BytesInMemory(text)), "t");
  Reading reading;
  TraceRequest request;
  while (true) {
    const Result<bool> more = log.Next(&request);
    if (!more.ok()) reading.error = more.status().message();
    if (!more.ok() || !*more) return reading;
    reading.requests.push_back(request);
    reading.forms.push_back(log.form());
  }
}

std::string Wrong(const std::string& line) {
  const Reading reading = ReadText("{\"timestamp\": 0, \"prompt\": \"a\"}\n" + line + "\n");
  EXPECT_THAT(reading.requests, SizeIs(1));
  EXPECT_THAT(reading.error, AllOf(StartsWith("t:2: "), HasSubstr("Next step:"))) << line;
  return reading.error;
}

TEST(RequestLogTest, MooncakesFormIsReadAsTheTraceReaderDoes) {
  const Reading reading = ReadText(
      "{\"timestamp\": 7, \"input_length\": 600, \"output_length\": 52, \"hash_ids\": [7, 8]}\n"
      "{\"timestamp\": 9, \"input_length\": 3, \"hash_ids\": []}\n");
  ASSERT_THAT(reading.requests, SizeIs(2));
  EXPECT_EQ(reading.forms[0], LogForm::kMooncake);
  EXPECT_EQ(reading.requests[0].block_ids, (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(reading.requests[1].timestamp_ms, 2u);
  EXPECT_EQ(reading.error, "");
}

TEST(RequestLogTest, AWordDeepInALineDoesNotSayWhatFormItHas) {
  const Reading reading = ReadText(R"({"created": 1, "metadata": {"hash_ids": []}, "prompt": "a"})"
                                   "\n");
  EXPECT_EQ(reading.error, "");
  ASSERT_THAT(reading.forms, SizeIs(1));
  EXPECT_EQ(reading.forms[0], LogForm::kPrompts);
  EXPECT_THAT(ReadText(R"({"hash_ids": [1], "input_length": 600})").error,
              HasSubstr("\"timestamp\" is missing"));
}

TEST(RequestLogTest, HashesMayBeTextsOrNumbersAndAreChained) {
  const Reading reading = ReadText(
      R"({"timestamp_ms": 5, "input_tokens": 40, "output_tokens": 3, "block_hashes": ["a", "b", 7]})"
      "\n"
      R"({"arrival_time": 1.5, "prompt_tokens": 32, "hashes": ["a", "b"]})"
      "\n"
      R"({"time": 2, "input_length": 32, "completion_tokens": 9, "blocks": ["b", "b"]})"
      "\n");
  ASSERT_THAT(reading.requests, SizeIs(3)) << reading.error;
  EXPECT_EQ(reading.forms[0], LogForm::kHashes);
  const auto& [one, two, three] =
      std::tie(reading.requests[0], reading.requests[1], reading.requests[2]);
  EXPECT_EQ(one.input_tokens, 40u);
  EXPECT_EQ(one.output_tokens, 3u);
  EXPECT_EQ(two.timestamp_ms, 1495u);
  EXPECT_EQ(two.output_tokens, 0u);
  EXPECT_EQ(three.output_tokens, 9u);
  EXPECT_EQ(one.block_ids[1], two.block_ids[1]);
  EXPECT_NE(one.block_ids[1], three.block_ids[1]);  // The same block behind another one.
}

TEST(RequestLogTest, PromptsAreCutAndHashedAndShareWhatTheyBeginWith) {
  const std::string system(3000, 's');
  const auto chat = [&system](const std::string& model, const std::string& user) {
    return R"({"created": 100, "model": ")" + model +
           R"(", "messages": [{"role": "system", "content": ")" + system +
           R"("}, {"role": "user", "content": [{"type": "text", "text": ")" + user +
           R"("}]}], "usage": {"prompt_tokens": 800, "completion_tokens": 17}})" + "\n";
  };
  const Reading reading = ReadText(chat("m", "one") + chat("m", "two") + chat("other", "one"));
  ASSERT_THAT(reading.requests, SizeIs(3)) << reading.error;
  EXPECT_EQ(reading.forms[0], LogForm::kPrompts);
  const TraceRequest& one = reading.requests[0];
  EXPECT_EQ(one.block_ids.size(), (one.input_tokens + 127) / 128);
  EXPECT_EQ(one.output_tokens, 17u);
  size_t shared = 0;
  while (one.block_ids[shared] == reading.requests[1].block_ids[shared]) ++shared;
  EXPECT_EQ(shared, 3000u / 512);
  EXPECT_NE(one.block_ids[0], reading.requests[2].block_ids[0]);
}

TEST(RequestLogTest, RequestsMayLieInsideALineAndPromptsMayBeTokens) {
  const Reading reading = ReadText(
      R"({"timestamp": "2026-11-15T23:00:00Z", "body": {"model": "m", "prompt": [1, 2, 3, 4, 5]},)"
      R"( "response": {"body": {"usage": {"completion_tokens": 2}}}})"
      "\n"
      R"({"timestamp": "2026-11-16T00:00:01.500+01:00", "request": {"prompt": ["text"]}})"
      "\n");
  ASSERT_THAT(reading.requests, SizeIs(2)) << reading.error;
  EXPECT_EQ(reading.requests[0].input_tokens, 5u);
  EXPECT_EQ(reading.requests[0].output_tokens, 2u);
  EXPECT_EQ(reading.requests[1].timestamp_ms, 1500u);
}

TEST(RequestLogTest, AMistakeIsToldWithItsLine) {
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"prompt\": \"a\""), HasSubstr("no JSON"));
  EXPECT_THAT(Wrong("[1]"), HasSubstr("no JSON object"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0}"), HasSubstr("\"messages\""));
  EXPECT_THAT(Wrong("{\"prompt\": \"a\"}"), HasSubstr("there is no time"));
  EXPECT_THAT(Wrong("{\"timestamp\": -1, \"prompt\": \"a\"}"), HasSubstr("at least 0"));
  EXPECT_THAT(Wrong("{\"timestamp\": 8796093022209, \"prompt\": \"a\"}"),
              HasSubstr("at most 8796093022208 "));
  EXPECT_THAT(Wrong("{\"created\": 8796093023, \"prompt\": \"a\"}"),
              HasSubstr("at most 8796093022 "));
  EXPECT_THAT(Wrong("{\"timestamp\": \"monday\", \"prompt\": \"a\"}"), HasSubstr("time"));
  EXPECT_THAT(Wrong("{\"timestamp\": \"2026-02-30T00:00:00Z\", \"prompt\": \"a\"}"),
              HasSubstr("time"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"input_tokens\": -5, \"hashes\": []}"),
              HasSubstr("input tokens"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"input_tokens\": 5, \"hashes\": [1.5]}"),
              HasSubstr("hash of a block"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"hashes\": [1]}"), HasSubstr("input_tokens"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"messages\": 5}"), HasSubstr("no list"));
  EXPECT_THAT(Wrong("{\"timestamp\": 0, \"prompt\": [-1]}"), HasSubstr("token ids"));
  EXPECT_THAT(Wrong("{\"timestamp\": 2, \"prompt\": \"x\", \"temperature\": 1e999}"),
              HasSubstr("a number in it"));
  EXPECT_THAT(Wrong("{\"a\": " + std::string(100, '[')), HasSubstr("levels of brackets"));
}

// A parser that looks at the list again after each of them would take half an hour.
TEST(RequestLogTest, ALineOfAMillionObjectsTakesNoLongerThanItsLength) {
  std::string line = R"({"timestamp": 0, "prompt": "a", "parts": [{})";
  for (int i = 1; i < 1'000'000; ++i) line += ",{}";
  const Reading reading = ReadText(line + "]}\n");
  EXPECT_EQ(reading.error, "");
  EXPECT_THAT(reading.requests, SizeIs(1));
}

TEST(RequestLogTest, BracketsInTextsAreNoLevels) {
  const std::string brackets(100, '[');
  const Reading reading =
      ReadText(R"({"timestamp": 0, "prompt": "\" \\\")" + brackets + "\"}\n" +
               R"({"timestamp": 0, "prompt": "\\", "a": [")" + brackets + "\"]}\n");
  EXPECT_EQ(reading.error, "");
  EXPECT_THAT(reading.requests, SizeIs(2));
}

TEST(RequestLogTest, LinesWithoutEndAreRefusedAndALastOneThatBrokeOffIsNot) {
  EXPECT_THAT(ReadText(std::string(5000, 'x'), {.max_line_bytes = 1000}).error,
              AllOf(StartsWith("t:1: "), HasSubstr("longer than 1000 bytes")));
  const Reading reading =
      ReadText("{\"timestamp\": 0, \"prompt\": \"a\"}\n{\"timestamp\": 5, \"pro");
  EXPECT_THAT(reading.requests, SizeIs(1));
  EXPECT_EQ(reading.error, "");
}

}  // namespace
}  // namespace aquifer
