#include "node/config/node_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"

namespace aquifer {
namespace {

using nlohmann::json;

class NodeLogTest : public testing::Test {
 protected:
  NodeLogTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    read_ = Descriptor(ends[0]);
    write_ = Descriptor(ends[1]);
    log_ = std::make_unique<NodeLog>(LineLogOptions{.descriptor = write_.get()}, SystemClock());
  }

  // Ends the log, which writes what it has first.
  std::vector<std::string> Lines() {
    log_.reset();
    write_ = Descriptor();
    std::string text;
    std::array<char, 4096> piece{};
    for (ssize_t count = 0; (count = ::read(read_.get(), piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<size_t>(count));
    }
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  Descriptor read_;
  Descriptor write_;
  std::unique_ptr<NodeLog> log_;
};

TEST_F(NodeLogTest, TextBeginsWithTheTime) {
  EXPECT_EQ(LogLine(LogFormat::kText, 86'400, std::nullopt, "warning: beware"),
            "1970-01-02T00:00:00Z warning: beware");
}

TEST_F(NodeLogTest, JsonHasTheLevelAndTheUserWhoCausedIt) {
  const json line = json::parse(LogLine(LogFormat::kJson, 86'400, 77, "audit: denied \"\xff\"\n"));
  EXPECT_EQ(line.at("time"), "1970-01-02T00:00:00Z");
  EXPECT_EQ(line.at("level"), "audit");
  EXPECT_EQ(line.at("user"), 77);
  EXPECT_EQ(line.at("message"), "denied \"\xEF\xBF\xBD\"\n");
  const json plain = json::parse(LogLine(LogFormat::kJson, 0, std::nullopt, "ready"));
  EXPECT_EQ(plain.at("level"), "info");
  EXPECT_FALSE(plain.contains("user"));
}

TEST_F(NodeLogTest, LinesBelowTheLevelAreLeftOutAndAuditLinesNeverAre) {
  log_->Set(LogLevel::kError, LogFormat::kText);
  log_->Write("ready");
  log_->Write("warning: beware");
  log_->Write("audit: denied");
  log_->WriteFor(5, "error: broken");
  log_->WriteTable("This node uses", {{"dram", "1GiB"}});
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].ends_with("Z audit: denied"));
  EXPECT_TRUE(lines[1].ends_with("Z error: broken"));
}

TEST_F(NodeLogTest, ATableIsOneLineOfJson) {
  log_->Set(LogLevel::kInfo, LogFormat::kJson);
  log_->WriteTable("This node uses", {{"dram", "1GiB"}, {"tier", "a"}, {"tier", "b"}});
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  const json line = json::parse(lines[0]);
  EXPECT_EQ(line.at("message"), "This node uses");
  EXPECT_EQ(line.at("uses").at("dram"), json({"1GiB"}));
  EXPECT_EQ(line.at("uses").at("tier"), json({"a", "b"}));
}

TEST_F(NodeLogTest, ATableInTextHasALineForEachRow) {
  log_->WriteTable("This node uses", {{"dram", "1GiB"}, {"nvme", "off"}});
  EXPECT_EQ(Lines(), (std::vector<std::string>{"This node uses", "  dram         1GiB",
                                               "  nvme         off"}));
}

TEST_F(NodeLogTest, WhatIsLeftOutOfAFloodIsToldInTheFormatOfTheLog) {
  log_->Set(LogLevel::kInfo, LogFormat::kJson);
  for (int i = 0; i < 200; ++i) log_->WriteFor(5, "again");
  const std::vector<std::string> lines = Lines();
  ASSERT_GT(lines.size(), 1u);
  for (const std::string& line : lines) EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_NE(lines.back().find("lines of the log were left out"), std::string::npos);
}

}  // namespace
}  // namespace aquifer
