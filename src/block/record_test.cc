#include "block/record.h"

#include <array>
#include <cstring>

#include "aquifer/checksum.h"
#include "aquifer/layout.h"
#include "gtest/gtest.h"

namespace aquifer {
namespace {

using Bytes = std::array<std::byte, kRecordBytes>;

template <size_t N>
std::array<std::byte, N> Filled(uint8_t first) {
  std::array<std::byte, N> bytes;
  for (size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

Record Example() {
  Record record;
  record.meta.id.tenant.bytes = Filled<16>(1);
  record.meta.id.key.bytes = Filled<32>(2);
  record.meta.id.group = 3;
  record.meta.id.part = 4;
  record.meta.parent.bytes = Filled<32>(5);
  record.meta.position = 6;
  record.meta.layout_fingerprint = Filled<32>(7);
  record.meta.raw_bytes = 5000;
  record.meta.stored_bytes = 5000;
  record.meta.data_key_id = Filled<16>(8);
  record.meta.nonce = Filled<24>(9);
  record.meta.tag = Filled<16>(10);
  record.meta.checksum = {11, 12};
  record.meta.expiry_unix_seconds = 13;
  record.meta.engine_hash = 14;
  record.age = {.origin = 9, .sequence = 15};
  record.payload_offset = 4096;
  record.generation = 16;
  return record;
}

Bytes Encode(const Record& record) {
  Bytes bytes;
  EncodeRecord(record, bytes);
  return bytes;
}

// As a writer would that sums its header in our way.
void Resum(Bytes* bytes) {
  const Checksum sum = ChecksumOf(std::span(*bytes).first(kRecordBytes - 16));
  std::memcpy(bytes->data() + kRecordBytes - 16, &sum.low, 8);
  std::memcpy(bytes->data() + kRecordBytes - 8, &sum.high, 8);
}

template <class T>
void Poke(Bytes* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(value));
  Resum(bytes);
}

RecordVerdict Verdict(const Bytes& bytes) {
  Record record;
  return DecodeRecord(bytes, &record);
}

TEST(RecordTest, EveryFieldComesBackAsItWas) {
  const Record in = Example();
  const Bytes bytes = Encode(in);
  Record out;
  ASSERT_EQ(DecodeRecord(bytes, &out), RecordVerdict::kOk);
  EXPECT_EQ(out.meta.id, in.meta.id);
  EXPECT_EQ(out.meta.parent, in.meta.parent);
  EXPECT_EQ(out.meta.position, in.meta.position);
  EXPECT_EQ(out.meta.layout_fingerprint, in.meta.layout_fingerprint);
  EXPECT_EQ(out.meta.raw_bytes, in.meta.raw_bytes);
  EXPECT_EQ(out.meta.stored_bytes, in.meta.stored_bytes);
  EXPECT_EQ(out.meta.codec, in.meta.codec);
  EXPECT_EQ(out.meta.data_key_id, in.meta.data_key_id);
  EXPECT_EQ(out.meta.nonce, in.meta.nonce);
  EXPECT_EQ(out.meta.tag, in.meta.tag);
  EXPECT_EQ(out.meta.checksum, in.meta.checksum);
  EXPECT_EQ(out.meta.expiry_unix_seconds, in.meta.expiry_unix_seconds);
  EXPECT_EQ(out.meta.engine_hash, in.meta.engine_hash);
  EXPECT_EQ(out.age, in.age);
  EXPECT_EQ(out.payload_offset, in.payload_offset);
  EXPECT_EQ(out.generation, in.generation);
}

TEST(RecordTest, FieldsLieWhereTheFormatSaysTheyDo) {
  const Bytes bytes = Encode(Example());
  EXPECT_EQ(std::memcmp(bytes.data(), "AQR1", 4), 0);
  const auto at = [&](size_t offset) { return std::to_integer<int>(bytes[offset]); };
  EXPECT_EQ(at(4), 1);       // Version.
  EXPECT_EQ(at(8), 3);       // Group.
  EXPECT_EQ(at(10), 4);      // Part.
  EXPECT_EQ(at(12), 6);      // Position.
  EXPECT_EQ(at(16), 2);      // Key.
  EXPECT_EQ(at(48), 5);      // Parent.
  EXPECT_EQ(at(80), 1);      // Tenant.
  EXPECT_EQ(at(96), 7);      // Layout.
  EXPECT_EQ(at(128), 0x88);  // Raw length, 5000 = 0x1388.
  EXPECT_EQ(at(137), 0x13);  // Stored length.
  EXPECT_EQ(at(144), 8);     // Data key.
  EXPECT_EQ(at(160), 9);     // Nonce.
  EXPECT_EQ(at(184), 10);    // Tag.
  EXPECT_EQ(at(200), 11);    // Checksum, low and high.
  EXPECT_EQ(at(208), 12);
  EXPECT_EQ(at(216), 13);  // Expiry.
  EXPECT_EQ(at(224), 15);  // Sequence.
  EXPECT_EQ(at(232), 14);  // Engine hash.
  EXPECT_EQ(at(241), 16);  // Payload offset, 4096.
  EXPECT_EQ(at(248), 16);  // Generation.
  EXPECT_EQ(at(256), 9);   // Origin.
}

TEST(RecordTest, WithoutAnOriginARecordIsItsOwn) {
  Record in = Example();
  in.age.origin = in.age.sequence;
  const Bytes bytes = Encode(in);
  EXPECT_EQ(std::to_integer<int>(bytes[256]), 0);
  Record out;
  ASSERT_EQ(DecodeRecord(bytes, &out), RecordVerdict::kOk);
  EXPECT_EQ(out.age, in.age);
}

TEST(RecordTest, AnyFlippedBitIsNoticed) {
  const Bytes good = Encode(Example());
  for (size_t bit = 0; bit < kRecordBytes * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(Verdict(bytes), RecordVerdict::kOk) << "bit " << bit;
  }
}

TEST(RecordTest, ZerosAreNoRecord) { EXPECT_EQ(Verdict(Bytes{}), RecordVerdict::kDamaged); }

TEST(RecordTest, ALaterVersionIsRecognisedAsSuch) {
  Bytes bytes = Encode(Example());
  Poke<uint16_t>(&bytes, 4, kRecordVersion + 1);
  EXPECT_EQ(Verdict(bytes), RecordVerdict::kNewerVersion);
}

TEST(RecordTest, AnUnknownCodecIsRecognisedAsSuch) {
  Bytes bytes = Encode(Example());
  Poke<uint16_t>(&bytes, 6, 999);
  EXPECT_EQ(Verdict(bytes), RecordVerdict::kUnknownCodec);
}

TEST(RecordTest, LengthsAndOffsetsOutOfBoundsAreRefusedThoughTheSumHolds) {
  for (const uint64_t length : {uint64_t{0}, kMaxBlockBytes + 1, UINT64_MAX}) {
    Bytes bytes = Encode(Example());
    Poke<uint64_t>(&bytes, 128, length);
    Poke<uint64_t>(&bytes, 136, length);
    EXPECT_EQ(Verdict(bytes), RecordVerdict::kDamaged) << length;
  }
  Bytes later = Encode(Example());
  Poke<uint64_t>(&later, 256, 16);
  EXPECT_EQ(Verdict(later), RecordVerdict::kDamaged);
  Bytes mismatch = Encode(Example());
  Poke<uint64_t>(&mismatch, 136, 4999);
  EXPECT_EQ(Verdict(mismatch), RecordVerdict::kDamaged);
  for (const uint64_t stored : {0, 5000, 5001}) {  // A codec's output is smaller.
    Bytes bytes = Encode(Example());
    Poke<uint16_t>(&bytes, 6, 1);
    Poke<uint64_t>(&bytes, 136, stored);
    EXPECT_EQ(Verdict(bytes), RecordVerdict::kDamaged) << stored;
  }
  Poke<uint16_t>(&mismatch, 6, 1);
  EXPECT_EQ(Verdict(mismatch), RecordVerdict::kOk);
  for (const uint64_t offset : {0, 1, 4095, 4097}) {
    Bytes bytes = Encode(Example());
    Poke<uint64_t>(&bytes, 240, offset);
    EXPECT_EQ(Verdict(bytes), RecordVerdict::kDamaged) << offset;
  }
}

}  // namespace
}  // namespace aquifer
