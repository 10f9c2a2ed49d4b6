#include "net/protocol/frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace aquifer {
namespace {

std::vector<std::byte> Copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(FrameTest, WrittenFieldsAreRead) {
  FrameWriter writer;
  writer.Begin(17, 42);
  writer.U8(1);
  writer.U16(2);
  writer.U32(3);
  writer.U64(4);
  writer.I64(-5);
  writer.F64(6.5);
  writer.Text("seven");
  const Key key{{std::byte{8}}};
  writer.KeyBytes(key);
  FrameReader reader(writer.Finish());
  EXPECT_EQ(reader.header().kind, 17);
  EXPECT_EQ(reader.header().number, 42u);
  EXPECT_EQ(reader.U8(), 1);
  EXPECT_EQ(reader.U16(), 2);
  EXPECT_EQ(reader.U32(), 3u);
  EXPECT_EQ(reader.U64(), 4u);
  EXPECT_EQ(reader.I64(), -5);
  EXPECT_EQ(reader.F64(), 6.5);
  EXPECT_EQ(reader.Text(5), "seven");
  EXPECT_EQ(reader.KeyBytes(), key);
  EXPECT_TRUE(reader.End().ok());
}

TEST(FrameTest, FramesAreWholeMultiplesOfEightBytes) {
  FrameWriter writer;
  for (size_t body = 0; body < 20; ++body) {
    writer.Begin(1, 0);
    for (size_t i = 0; i < body; ++i) writer.U8(0xff);
    const std::span<const std::byte> frame = writer.Finish();
    EXPECT_TRUE(IsFrameLength(frame.size()));
    EXPECT_LT(frame.size(), kFrameHeaderBytes + body + kFrameAlignment);
  }
}

TEST(FrameTest, AMissingFieldReadsAsZeroAndMakesTheFrameBad) {
  FrameWriter writer;
  writer.Begin(1, 0);
  writer.U32(7);
  FrameReader reader(writer.Finish());
  EXPECT_EQ(reader.U64(), 7u);  // The reader takes the padding for a field.
  EXPECT_EQ(reader.U64(), 0u);
  EXPECT_EQ(reader.Text(10), "");
  EXPECT_EQ(reader.KeyBytes(), Key{});
  const Status status = reader.End();
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("fields missing at its end"), std::string::npos)
      << status.message();
}

TEST(FrameTest, BytesBehindTheEndAreBad) {
  FrameWriter writer;
  writer.Begin(1, 0);
  writer.U64(0);
  FrameReader too_long(writer.Finish());
  EXPECT_EQ(too_long.End().code(), Code::kInvalid);
  writer.Begin(1, 0);
  writer.U32(1);
  writer.U8(1);
  FrameReader not_zero(writer.Finish());
  EXPECT_EQ(not_zero.U32(), 1u);
  EXPECT_EQ(not_zero.End().code(), Code::kInvalid);
}

TEST(FrameTest, ValuesThatThereAreNotAreBad) {
  const auto bad = [](auto write, auto read) {
    FrameWriter writer;
    writer.Begin(1, 0);
    write(&writer);
    FrameReader reader(writer.Finish());
    read(&reader);
    return reader.End().code() == Code::kInvalid;
  };
  EXPECT_TRUE(bad([](FrameWriter* w) { w->U8(2); }, [](FrameReader* r) { r->Flag(); }));
  EXPECT_TRUE(bad([](FrameWriter* w) { w->U8(8); },
                  [](FrameReader* r) { EXPECT_EQ(r->Choice(Code::kInvalid), Code::kOk); }));
  EXPECT_FALSE(bad([](FrameWriter* w) { w->U8(7); },
                   [](FrameReader* r) { EXPECT_EQ(r->Choice(Code::kInvalid), Code::kInvalid); }));
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(bad([value](FrameWriter* w) { w->F64(value); },
                    [](FrameReader* r) { EXPECT_EQ(r->F64(), 0); }));
  }
  EXPECT_TRUE(
      bad([](FrameWriter* w) { w->Text("too long"); }, [](FrameReader* r) { (void)r->Text(7); }));
}

TEST(FrameTest, AnArrayLongerThanTheFrameIsBadAndOverflowsNothing) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{1} << 61, UINT64_MAX}) {
    FrameWriter writer;
    writer.Begin(1, 0);
    writer.U64(0);
    FrameReader reader(writer.Finish());
    EXPECT_TRUE(reader.Array(count, 8).empty());
    EXPECT_EQ(reader.End().code(), Code::kInvalid);
  }
}

TEST(FrameTest, AHeaderThatLiesIsBad) {
  FrameWriter writer;
  writer.Begin(1, 0);
  std::vector<std::byte> frame = Copy(writer.Finish());
  frame[0] = std::byte{24};
  EXPECT_EQ(FrameReader(frame).End().code(), Code::kInvalid);
  frame = Copy(writer.Finish());
  frame[6] = std::byte{1};
  EXPECT_EQ(FrameReader(frame).End().code(), Code::kInvalid);
}

}  // namespace
}  // namespace aquifer
