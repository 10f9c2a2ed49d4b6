#include "net/protocol/local_protocol.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

// Every message: how it is written, and how it is read and written once more.
struct Sample {
  std::string name;
  std::function<void(FrameWriter*)> encode;
  std::function<Status(FrameReader*, FrameWriter*)> again;
};

template <class Message>
Sample SampleOf(const std::string& name, const Message& message) {
  return {.name = name,
          .encode = [message](FrameWriter* to) { Encode(message, to); },
          .again =
              [](FrameReader* from, FrameWriter* to) {
                Message decoded;
                if constexpr (std::is_void_v<decltype(Decode(from, &decoded))>) {
                  Decode(from, &decoded);
                  AQ_RETURN_IF_ERROR(from->End());
                } else {
                  AQ_RETURN_IF_ERROR(Decode(from, &decoded));
                }
                Encode(decoded, to);
                return Status();
              }};
}

// Data that the samples point to.
struct Material {
  Material() {
    SeededRandom random(3);
    for (Key& key : keys) random.Fill(key.bytes);
    random.Fill(hashes);
    for (uint64_t i = 0; i < 3; ++i) {
      CommitOp op;
      op.reservation = 70 + i;
      op.head_begin = static_cast<uint32_t>(i);
      op.head_end = static_cast<uint32_t>(i + 1);
      op.sums = {i * 3, i * 5};
      EncodeCommitOp(op, std::span(ops).subspan(i * kCommitOpBytes).first<kCommitOpBytes>());
    }
  }

  std::vector<Key> keys{5};
  std::vector<std::byte> hashes{40};
  std::vector<std::byte> ops{3 * kCommitOpBytes};
};

const Material& TheMaterial() {
  static const Material material;
  return material;
}

ChainCall AChain(bool hashes) {
  return {.layout = 3,
          .group = 1,
          .part = 2,
          .total = 9,
          .items = {.keys = TheMaterial().keys,
                    .engine_hashes = hashes ? std::span<const std::byte>(TheMaterial().hashes)
                                            : std::span<const std::byte>()}};
}

Layout ALayout() {
  Layout layout;
  layout.model[0] = std::byte{1};
  layout.tokens_per_block = 16;
  layout.groups = {{.layers = 2, .kv_heads = 4, .key_dim = 64, .value_dim = 64},
                   {.kind = KvKind::kWindow, .layers = 1, .window_tokens = 128}};
  layout.kv_format = "vllm-1";
  return layout;
}

CacheStats SomeStats() {
  CacheStats stats;
  stats.tiers.resize(2);
  stats.tiers[0].capacity_bytes = 10;
  stats.tiers[1].tier = TierKind::kNvme;
  stats.tiers[1].in_service = false;
  stats.tiers[1].read_gbps = 2.5;
  stats.tiers[1].drives = {{.directory = "/nvme0", .in_service = false, .why = "it hangs"}};
  stats.counters = {{"fetch_hits_dram", 3}, {"corrupt_blocks", 0}};
  return stats;
}

std::vector<Sample> Samples() {
  const LentSlot slot{.extent = 7, .offset = 4096, .bytes = 65536};
  const Key key = TheMaterial().keys[0];
  std::vector<Sample> samples = {
      SampleOf("hello", Hello{.tenant = "a", .token = "secret", .engine = "e", .observe = true}),
      SampleOf("welcome", Welcome{.version = 1, .max_requests = 64, .ring_data_bytes = 1 << 20}),
      SampleOf("refused", Refused{.code = Code::kUnavailable, .message = "draining"}),
      SampleOf("extent", ExtentOffer{.extent = 9, .bytes = 64 << 20}),
      SampleOf("register", ALayout()),
      SampleOf("match", MatchCall{.chain = AChain(false), .have = 2}),
      SampleOf("fetch", FetchCall{.chain = AChain(false), .timeout_nanos = -1}),
      SampleOf("reserve", ReserveCall{.chain = AChain(true), .parent = key, .position = 4}),
      SampleOf("commit", CommitCall{.total = 8, .ops = TheMaterial().ops}),
      SampleOf("flush", FlushCall{.tier = TierKind::kNvme, .timeout_nanos = 5}),
      SampleOf("pin", PinCall{.chain = AChain(false), .seconds = 60}),
      SampleOf("prestage", PrestageCall{.chain = {}, .session = "s", .timeout_nanos = 1}),
      SampleOf("evict", EvictCall{.chain = AChain(false), .session = "", .everything = true}),
      SampleOf("drain", DrainCall{.timeout_nanos = 9}),
      SampleOf("prefill", PrefillReport{.layout = 1, .tokens = 8, .milliseconds = 2.5}),
      SampleOf("more keys", AChain(true).items),
      SampleOf("answer",
               AnswerHead{
                   .done = true, .code = Code::kBusy, .message = "later", .first = 4, .count = 2}),
      SampleOf("fetched", FetchAnswer{.code = Code::kOk,
                                      .tier = TierKind::kNvme,
                                      .slot = slot,
                                      .lease = 11,
                                      .checksum = {1, 2}}),
      SampleOf(
          "reserved",
          ReserveAnswer{
              .outcome = ReserveOutcome::kSlot, .wait_ms = 1.5, .slot = slot, .reservation = 12}),
      SampleOf("committed", CommitAnswer{.code = Code::kInvalid, .published = true}),
      SampleOf("matched", MatchAnswer{.matched = 3, .pays = 2, .load_ms = 1}),
      SampleOf("run", MatchRun{.first = 1, .count = 2, .state = RunState::kPending}),
      SampleOf("counts", CountsAnswer{.first = 1, .second = 2}),
      SampleOf("stats", SomeStats()),
  };
  for (const uint16_t version : {uint16_t{1}, uint16_t{2}}) {
    samples.push_back({.name = "hint " + std::to_string(version),
                       .encode =
                           [=](FrameWriter* to) {
                             Encode(HintCall{.layout = 1,
                                             .head = key,
                                             .session = "s",
                                             .state = SessionState::kFinished,
                                             .priority = -8,
                                             .ttl_seconds = 3,
                                             .durability = Durability::kDurable,
                                             .return_seconds = 60},
                                    version, to);
                           },
                       .again =
                           [=](FrameReader* from, FrameWriter* to) {
                             HintCall call;
                             AQ_RETURN_IF_ERROR(Decode(from, version, &call));
                             Encode(call, version, to);
                             return Status();
                           }});
  }
  samples.push_back({.name = "more operations",
                     .encode = [](FrameWriter* to) { EncodeOps(TheMaterial().ops, to); },
                     .again =
                         [](FrameReader* from, FrameWriter* to) {
                           std::span<const std::byte> ops;
                           AQ_RETURN_IF_ERROR(DecodeOps(from, &ops));
                           EncodeOps(ops, to);
                           return Status();
                         }});
  samples.push_back({.name = "release",
                     .encode =
                         [](FrameWriter* to) {
                           const ReleaseOp ops[] = {{.lease = 5}, {.lease = 6, .corrupt = true}};
                           Encode(std::span<const ReleaseOp>(ops), to);
                         },
                     .again =
                         [](FrameReader* from, FrameWriter* to) {
                           std::vector<ReleaseOp> ops;
                           AQ_RETURN_IF_ERROR(Decode(from, &ops));
                           Encode(std::span<const ReleaseOp>(ops), to);
                           return Status();
                         }});
  samples.push_back({.name = "abort",
                     .encode =
                         [](FrameWriter* to) {
                           const ReservationId ids[] = {5, 6};
                           Encode(std::span<const ReservationId>(ids), to);
                         },
                     .again =
                         [](FrameReader* from, FrameWriter* to) {
                           std::vector<ReservationId> ids;
                           AQ_RETURN_IF_ERROR(Decode(from, &ids));
                           Encode(std::span<const ReservationId>(ids), to);
                           return Status();
                         }});
  samples.push_back({.name = "return extent",
                     .encode = [](FrameWriter* to) { EncodeExtent(5, to); },
                     .again =
                         [](FrameReader* from, FrameWriter* to) {
                           uint32_t extent = 0;
                           AQ_RETURN_IF_ERROR(DecodeExtent(from, &extent));
                           EncodeExtent(extent, to);
                           return Status();
                         }});
  return samples;
}

std::vector<std::byte> FrameOf(const Sample& sample) {
  FrameWriter writer;
  writer.Begin(1, 2);
  sample.encode(&writer);
  const std::span<const std::byte> frame = writer.Finish();
  return {frame.begin(), frame.end()};
}

class LocalProtocolTest : public ::testing::TestWithParam<Sample> {};

TEST_P(LocalProtocolTest, MessagesAreReadAsTheyWereWritten) {
  const std::vector<std::byte> frame = FrameOf(GetParam());
  FrameReader reader(frame);
  FrameWriter writer;
  writer.Begin(1, 2);
  const Status status = GetParam().again(&reader, &writer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::span<const std::byte> twice = writer.Finish();
  EXPECT_EQ(std::vector<std::byte>(twice.begin(), twice.end()), frame);
}

TEST_P(LocalProtocolTest, AFrameThatIsCutIsRefused) {
  const std::vector<std::byte> frame = FrameOf(GetParam());
  for (size_t bytes = kFrameHeaderBytes; bytes < frame.size(); bytes += kFrameAlignment) {
    std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(bytes));
    PutU32(cut.data(), static_cast<uint32_t>(bytes));
    FrameReader reader(cut);
    FrameWriter writer;
    writer.Begin(1, 2);
    EXPECT_EQ(GetParam().again(&reader, &writer).code(), Code::kInvalid) << bytes;
  }
}

TEST_P(LocalProtocolTest, AFrameThatIsTooLongIsRefused) {
  std::vector<std::byte> frame = FrameOf(GetParam());
  frame.resize(frame.size() + kFrameAlignment);
  PutU32(frame.data(), static_cast<uint32_t>(frame.size()));
  FrameReader reader(frame);
  FrameWriter writer;
  writer.Begin(1, 2);
  EXPECT_EQ(GetParam().again(&reader, &writer).code(), Code::kInvalid);
}

// An accepted frame means the same to both sides, byte for byte.
TEST_P(LocalProtocolTest, ChangedBytesAreRefusedOrTakenAsTheyAre) {
  const std::vector<std::byte> frame = FrameOf(GetParam());
  SeededRandom random(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> changed = frame;
    for (uint64_t i = 1 + random.Below(3); i > 0; --i) {
      if (frame.size() == kFrameHeaderBytes) break;
      changed[kFrameHeaderBytes + random.Below(frame.size() - kFrameHeaderBytes)] =
          static_cast<std::byte>(random.Next());
    }
    FrameReader reader(changed);
    FrameWriter writer;
    writer.Begin(1, 2);
    if (!GetParam().again(&reader, &writer).ok()) continue;
    const std::span<const std::byte> twice = writer.Finish();
    EXPECT_EQ(std::vector<std::byte>(twice.begin(), twice.end()), changed);
  }
}

INSTANTIATE_TEST_SUITE_P(Messages, LocalProtocolTest, ::testing::ValuesIn(Samples()),
                         [](const ::testing::TestParamInfo<Sample>& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

template <class Message>
Status DecodeEncoded(const std::function<void(FrameWriter*)>& body) {
  FrameWriter writer;
  writer.Begin(1, 0);
  body(&writer);
  FrameReader reader(writer.Finish());
  Message message;
  return Decode(&reader, &message);
}

TEST(LocalProtocolBoundsTest, MoreKeysThanTheRequestSaidAreRefused) {
  const Status status = DecodeEncoded<FetchCall>([](FrameWriter* to) {
    ChainCall chain = AChain(false);
    chain.total = 4;  // There are five keys.
    Encode(FetchCall{.chain = chain, .timeout_nanos = 0}, to);
  });
  EXPECT_NE(status.message().find("more keys"), std::string::npos) << status.message();
}

TEST(LocalProtocolBoundsTest, ARequestOfMoreThanAMillionItemsIsRefused) {
  EXPECT_FALSE(DecodeEncoded<FetchCall>([](FrameWriter* to) {
                 ChainCall chain = AChain(false);
                 chain.total = kMaxItems + 1;
                 Encode(FetchCall{.chain = chain, .timeout_nanos = 0}, to);
               }).ok());
  EXPECT_FALSE(DecodeEncoded<CommitCall>([](FrameWriter* to) {
                 Encode(CommitCall{.total = kMaxItems + 1, .ops = {}}, to);
               }).ok());
  EXPECT_FALSE(DecodeEncoded<CommitCall>([](FrameWriter* to) {
                 Encode(CommitCall{.total = 2, .ops = TheMaterial().ops}, to);
               }).ok());
}

TEST(LocalProtocolBoundsTest, AFullFrameOfItemsFits) {
  const std::vector<Key> keys(kMaxItemsPerFrame);
  const std::vector<std::byte> hashes(kMaxItemsPerFrame * 8);
  FrameWriter writer;
  writer.Begin(1, 0);
  Encode(
      PrestageCall{.chain = {.total = kMaxItems, .items = {.keys = keys, .engine_hashes = hashes}},
                   .session = std::string(kMaxNameBytes, 's'),
                   .timeout_nanos = 0},
      &writer);
  EXPECT_TRUE(IsFrameLength(writer.Finish().size()));
  writer.Begin(1, 0);
  Encode(AnswerHead{.message = std::string(2 * kMaxMessageBytes, 'm'), .count = kMaxItemsPerFrame},
         &writer);
  for (uint32_t i = 0; i < kMaxItemsPerFrame; ++i) Encode(FetchAnswer{}, &writer);
  EXPECT_TRUE(IsFrameLength(writer.Finish().size()));
}

// Returns what a client reads of these statistics.
Result<CacheStats> Received(const CacheStats& stats) {
  FrameWriter writer;
  writer.Begin(1, 0);
  Encode(AnswerHead{.done = true, .message = std::string(2000, 'm')}, &writer);
  Encode(stats, &writer);
  FrameReader reader(writer.Finish());
  AnswerHead head;
  Decode(&reader, &head);
  CacheStats received;
  Decode(&reader, &received);
  AQ_RETURN_IF_ERROR(reader.End());
  return received;
}

TEST(LocalProtocolBoundsTest, TheLargestStatsFit) {
  CacheStats stats;
  const std::string text(1000, 't');
  stats.tiers.resize(kMaxStatsTiers);
  for (TierStats& tier : stats.tiers) {
    tier.drives.assign(20, {.directory = text, .why = text});
  }
  stats.counters.assign(kMaxStatsCounters, {text.substr(0, 64), 1});
  const Result<CacheStats> received = Received(stats);
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(received->tiers.size(), kMaxStatsTiers);
  EXPECT_EQ(received->tiers.front().drives.size(), kMaxStatsDrives);
  EXPECT_EQ(received->counters, stats.counters);
}

// The node may not end because of what it has to tell.
TEST(LocalProtocolBoundsTest, StatsBeyondTheBoundsAreCutAndStillUnderstood) {
  CacheStats stats;
  stats.tiers.resize(kMaxStatsTiers + 300);
  stats.counters.assign(kMaxStatsCounters + 70'000, {std::string(100'000, 'n'), 1});
  const Result<CacheStats> received = Received(stats);
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(received->tiers.size(), kMaxStatsTiers);
  EXPECT_EQ(received->counters.size(), kMaxStatsCounters);
}

TEST(LocalProtocolBoundsTest, ASlotThatCannotBeIsRefused) {
  const auto decode = [](const LentSlot& slot) {
    FrameWriter writer;
    writer.Begin(1, 0);
    FetchAnswer sent;
    sent.slot = slot;
    Encode(sent, &writer);
    FrameReader reader(writer.Finish());
    FetchAnswer op;
    Decode(&reader, &op);
    return reader.End();
  };
  EXPECT_TRUE(decode({.extent = 1, .offset = 1, .bytes = kMaxBlockBytes}).ok());
  EXPECT_FALSE(decode({.extent = 1, .offset = 1, .bytes = kMaxBlockBytes + 1}).ok());
  EXPECT_FALSE(decode({.extent = 1, .offset = UINT64_MAX, .bytes = 1}).ok());
}

}  // namespace
}  // namespace aquifer
