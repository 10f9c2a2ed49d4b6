#include "trace/trace_reader.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/scratch_directory.h"
#ifdef AQUIFER_HAS_ZLIB
#include <zlib.h>
#endif

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kTraces = AQUIFER_SOURCE_DIR "/src/trace/testdata/";
constexpr const char* kLine =
    R"({"timestamp": 5, "input_length": 600, "output_length": 52, "hash_ids": [7, 8]})"
    "\n";

struct Reading {
  std::vector<TraceRequest> requests;
  Status status;
  uint64_t times_set_back = 0;
  bool last_line_cut = false;
};

Reading ReadAll(TraceReader* reader) {
  Reading reading;
  TraceRequest request;
  while (true) {
    const Result<bool> more = reader->Next(&request);
    if (!more.ok()) reading.status = more.status();
    if (!more.ok() || !*more) break;
    reading.requests.push_back(request);
  }
  EXPECT_EQ(reader->requests(), reading.requests.size());
  reading.times_set_back = reader->times_set_back();
  reading.last_line_cut = reader->last_line_cut();
  return reading;
}

Reading ReadText(const std::string& text, LineSourceOptions options = {}) {
  TraceReader reader(std::make_unique<LineSource>(options, BytesInMemory(text)), "t");
  return ReadAll(&reader);
}

std::string Wrong(const std::string& line) {
  const Reading reading = ReadText(kLine + line + "\n" + kLine);
  EXPECT_EQ(reading.requests.size(), 1u) << line;
  EXPECT_THAT(reading.status.message(), StartsWith("t:2: ")) << line;
  EXPECT_THAT(reading.status.message(), HasSubstr("Next step")) << line;
  return reading.status.message();
}

TEST(TraceReaderTest, ReadsWhatALineSays) {
  const Reading reading = ReadText(kLine);
  ASSERT_TRUE(reading.status.ok()) << reading.status.message();
  ASSERT_EQ(reading.requests.size(), 1u);
  EXPECT_EQ(reading.requests[0].timestamp_ms, 5u);
  EXPECT_EQ(reading.requests[0].input_tokens, 600u);
  EXPECT_EQ(reading.requests[0].output_tokens, 52u);
  EXPECT_THAT(reading.requests[0].block_ids, ElementsAre(7u, 8u));
}

TEST(TraceReaderTest, TakesAnyOrderSpacingLargeIdsFractionsAndMembersThatItDoesNotKnow) {
  const Reading reading = ReadText(
      "\n  \r\n"
      "{\"hash_ids\":[18446744073709551615],\"chat\":{\"a\":[1,-2.5e3,null,\"x\\\"]\"],\"b\":{}},"
      "\"input_length\":1,\"t\":true,\"timestamp\":27.482}\r\n"
      "{\"timestamp\" : 30 , \"input_length\": 0, \"output_length\": 1, \"hash_ids\" : [ ] } ");
  ASSERT_TRUE(reading.status.ok()) << reading.status.message();
  ASSERT_EQ(reading.requests.size(), 2u);
  EXPECT_EQ(reading.requests[0].timestamp_ms, 27u);
  EXPECT_EQ(reading.requests[0].output_tokens, 0u);
  EXPECT_THAT(reading.requests[0].block_ids, ElementsAre(UINT64_MAX));
  EXPECT_THAT(reading.requests[1].block_ids, IsEmpty());
  EXPECT_FALSE(reading.last_line_cut);
}

TEST(TraceReaderTest, AMistakeIsToldWithItsLine) {
  EXPECT_THAT(Wrong("{\"timestamp\": -5}"), HasSubstr("character 15 is '-'"));
  EXPECT_THAT(Wrong("{\"input_length\": -1}"), HasSubstr("a whole number of at least 0"));
  EXPECT_THAT(Wrong("{\"hash_ids\": [1, -2]}"), HasSubstr("for \"hash_ids\""));
  EXPECT_THAT(Wrong("{\"hash_ids\": [1, 2.5]}"), HasSubstr("is '.'"));
  EXPECT_THAT(Wrong("{\"hash_ids\": [1 2]}"), HasSubstr("a ',' or the closing ']'"));
  EXPECT_THAT(Wrong("{\"hash_ids\": [18446744073709551616]}"), HasSubstr("is above"));
  EXPECT_THAT(Wrong("{\"input_length\": 99999999999999999999}"), HasSubstr("is above"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1e300}"), HasSubstr("'e'"));
  EXPECT_THAT(Wrong("{\"timestamp\": 8796093022209}"), HasSubstr("8796093022208"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1.}"), HasSubstr("a digit"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1, \"timestamp\": 2}"), HasSubstr("there twice"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1, \"input_length\": 2}"),
              HasSubstr("\"hash_ids\" is missing"));
  EXPECT_THAT(Wrong("{}"), HasSubstr("\"timestamp\" is missing"));
  EXPECT_THAT(Wrong("[]"), HasSubstr("the '{' of an object"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1"), HasSubstr("the line ends"));
  EXPECT_THAT(Wrong("{\"a\": \"x\\"), HasSubstr("the line ends"));
  EXPECT_THAT(Wrong("{\"a\": \x01}"), HasSubstr("byte 0x01"));
  EXPECT_THAT(Wrong("{\"a\": }"), HasSubstr("a value"));
  EXPECT_THAT(Wrong(std::string("{\"timestamp\": 1}\0", 17)), HasSubstr("byte 0x00"));
  EXPECT_THAT(Wrong("{\"timestamp\": 1} {}"), HasSubstr("the end of the line"));
  EXPECT_THAT(Wrong("{\"a\": " + std::string(100'000, '[') + "}"), HasSubstr("levels of brackets"));
}

TEST(TraceReaderTest, ALastLineThatBrokeOffIsLeftOut) {
  const std::string line = kLine;
  for (size_t length = 1; length + 2 < line.size(); ++length) {
    const Reading reading = ReadText(line + line.substr(0, length));
    EXPECT_TRUE(reading.status.ok()) << length << reading.status.message();
    EXPECT_EQ(reading.requests.size(), 1u);
    EXPECT_TRUE(reading.last_line_cut);
  }
  // Only where it broke off: nonsense without a newline is nonsense.
  EXPECT_FALSE(ReadText(line + "nonsense").status.ok());
  // And only behind others: what has no whole line is no trace that broke off.
  EXPECT_THAT(ReadText(line.substr(0, 20)).status.message(), StartsWith("t:1: the line ends"));
}

TEST(TraceReaderTest, TimesNeverGoBack) {
  const Reading reading = ReadText(
      "{\"timestamp\": 9, \"input_length\": 1, \"hash_ids\": []}\n"
      "{\"timestamp\": 3, \"input_length\": 1, \"hash_ids\": []}\n"
      "{\"timestamp\": 12, \"input_length\": 1, \"hash_ids\": []}\n");
  ASSERT_EQ(reading.requests.size(), 3u);
  EXPECT_EQ(reading.requests[1].timestamp_ms, 9u);
  EXPECT_EQ(reading.requests[2].timestamp_ms, 12u);
  EXPECT_EQ(reading.times_set_back, 1u);
}

// A line of a terabyte, of which it is counted how much anybody wanted to see.
class EndlessLine final : public ByteSource {
 public:
  explicit EndlessLine(uint64_t* given) : given_(given) {}
  Result<size_t> Read(std::span<char> buffer) override {
    std::fill(buffer.begin(), buffer.end(), '1');
    *given_ += buffer.size();
    return buffer.size();
  }
  uint64_t bytes_read() const override { return *given_; }
  uint64_t bytes_total() const override { return 0; }

 private:
  uint64_t* const given_;
};

TEST(TraceReaderTest, ALineWithoutEndIsRefusedInBoundedMemory) {
  uint64_t given = 0;
  TraceReader reader(std::make_unique<LineSource>(LineSourceOptions{.max_line_bytes = 1 << 20},
                                                  std::make_unique<EndlessLine>(&given)),
                     "t");
  TraceRequest request;
  for (int again = 0; again < 2; ++again) {
    const Result<bool> more = reader.Next(&request);
    ASSERT_FALSE(more.ok());
    EXPECT_THAT(more.status().message(), HasSubstr("t:1: the line is longer than 1048576 bytes"));
  }
  EXPECT_LE(given, uint64_t{2} << 20);
}

TEST(TraceReaderTest, ALineMayBeAsLongAsTheLimitAndNoLonger) {
  const std::string line = kLine;
  const LineSourceOptions exact = {.max_line_bytes = line.size() - 1};
  EXPECT_EQ(ReadText(line + line, exact).requests.size(), 2u);
  std::string crlf = line + line;
  crlf.insert(line.size() - 1, "\r");
  EXPECT_EQ(ReadText(crlf, exact).requests.size(), 2u);
  EXPECT_FALSE(ReadText(line, {.max_line_bytes = line.size() - 2}).status.ok());
}

TEST(TraceReaderTest, SaysWhyAFileCannotBeRead) {
  const ScratchDirectory scratch;
  EXPECT_EQ(TraceReader::Open(scratch.Sub("none")).status().code(), Code::kNotFound);
  EXPECT_THAT(TraceReader::Open(scratch.path()).status().message(), HasSubstr("is a directory"));
  std::ofstream(scratch.Sub("empty")).close();
  auto empty = TraceReader::Open(scratch.Sub("empty"));
  ASSERT_TRUE(empty.ok());
  EXPECT_THAT(ReadAll(empty->get()).requests, IsEmpty());
}

TEST(TraceReaderTest, ReadsAPipe) {
  const ScratchDirectory scratch;
  const std::string path = scratch.Sub("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::fstream both(path);  // Open for both, so that nobody waits for anybody.
  both << kLine << kLine << std::flush;
  auto reader = TraceReader::Open(path);
  ASSERT_TRUE(reader.ok());
  TraceRequest request;
  EXPECT_TRUE(*(*reader)->Next(&request));
  EXPECT_EQ((*reader)->bytes_total(), 0u);
}

#ifdef AQUIFER_HAS_ZLIB

std::string Packed(const std::string& text) {
  const ScratchDirectory scratch;
  const std::string path = scratch.Sub("packed.gz");
  gzFile file = gzopen(path.c_str(), "wb9");
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  gzclose(file);
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Reading ReadPacked(const std::string& bytes) {
  auto unpacked = Gunzip(BytesInMemory(bytes));
  EXPECT_TRUE(unpacked.ok());
  TraceReader reader(std::make_unique<LineSource>(LineSourceOptions{}, *std::move(unpacked)), "t");
  return ReadAll(&reader);
}

TEST(TraceReaderTest, ReadsGzipInSeveralMembersAndRefusesDamagedOnes) {
  const std::string packed = Packed(kLine);
  EXPECT_EQ(ReadPacked(packed).requests.size(), 1u);
  EXPECT_EQ(ReadPacked(packed + packed + std::string(512, '\0')).requests.size(), 2u);
  const Reading cut = ReadPacked(packed.substr(0, packed.size() - 9));
  EXPECT_THAT(cut.status.message(), HasSubstr("ends too early"));
  std::string damaged = packed;
  damaged[packed.size() - 6] ^= 1;  // In the checksum.
  EXPECT_THAT(ReadPacked(damaged).status.message(), HasSubstr("is damaged"));
  EXPECT_THAT(ReadPacked(packed + "rubbish").status.message(), HasSubstr("is damaged"));
}

TEST(TraceReaderTest, ReadsThePublicTraces) {
  auto reader = TraceReader::Open(std::string(kTraces) + "mooncake_conversation.jsonl.gz");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->bytes_total(), 788'651u);
  const Reading reading = ReadAll(reader->get());
  ASSERT_TRUE(reading.status.ok()) << reading.status.message();
  EXPECT_EQ((*reader)->bytes_read(), (*reader)->bytes_total());
  EXPECT_EQ(reading.requests.size(), 12'031u);
  EXPECT_EQ(reading.times_set_back, 0u);
  std::set<uint64_t> distinct;
  uint64_t blocks = 0;
  for (const TraceRequest& request : reading.requests) {
    distinct.insert(request.block_ids.begin(), request.block_ids.end());
    blocks += request.block_ids.size();
  }
  EXPECT_EQ(blocks, 288'500u);
  EXPECT_EQ(distinct.size(), 182'790u);
}

#else

TEST(TraceReaderTest, WithoutZlibAGzipFileIsRefusedWithANextStep) {
  const auto reader = TraceReader::Open(std::string(kTraces) + "mooncake_conversation.jsonl.gz");
  ASSERT_FALSE(reader.ok());
  EXPECT_THAT(reader.status().message(), HasSubstr("gunzip"));
}

#endif

}  // namespace
}  // namespace aquifer
