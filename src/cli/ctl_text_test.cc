#include "cli/ctl_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace aquifer {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json Measure(const char* what, uint64_t bytes, double bytes_per_second) {
  return {{"what", what},
          {"bytes", bytes},
          {"count", 8},
          {"at_once", 1},
          {"median_ms", 1.0},
          {"worst_ms", 2.0},
          {"bytes_per_second", bytes_per_second}};
}

std::string LineWith(const std::string& text, const std::string& what) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(what) != std::string::npos) return line;
  }
  ADD_FAILURE() << "no line has " << what << ":\n" << text;
  return "";
}

TEST(CtlTextTest, RequestsThatMoveNoBytesAreCountedByTheSecond) {
  const json report = {{"tier", "shared"},
                       {"place", "/mnt/shared"},
                       {"works", true},
                       {"failed", ""},
                       {"trouble", ""},
                       {"measures",
                        {Measure("write", 4096, 4096.0 * 1024), Measure("look", 4096, 4096 * 1500),
                         Measure("read", 2 << 20, 1 << 30), Measure("remove", 4096, 4096 * 20)}}};
  const std::string text = StoreReportText(report);
  EXPECT_THAT(LineWith(text, "write"), HasSubstr("4MiB/s"));
  EXPECT_THAT(LineWith(text, "read"), HasSubstr("1GiB/s"));
  EXPECT_THAT(LineWith(text, "look"), AllOf(HasSubstr("1500 a second"), Not(HasSubstr("B/s"))));
  EXPECT_THAT(LineWith(text, "remove"), AllOf(HasSubstr("20 a second"), Not(HasSubstr("B/s"))));
}

}  // namespace
}  // namespace aquifer
