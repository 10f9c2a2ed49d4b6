#include "node/api/node_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "testing/node/own_node.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::set<std::string> NamesIn(const std::string& text, const std::string& pattern) {
  std::set<std::string> names;
  const std::regex name(pattern);
  for (auto it = std::sregex_iterator(text.begin(), text.end(), name); it != std::sregex_iterator();
       ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

std::string FileText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Of a node with everything that can be counted.
NodeSnapshot WholeSnapshot() {
  const ScratchDirectory scratch;
  CacheOptions options;
  options.dram_bytes = uint64_t{64} << 20;
  options.nvme_directories = {scratch.path()};
  options.nvme_bytes = uint64_t{512} << 20;
  const auto own = OwnNode::Start(options);
  EXPECT_TRUE(own.ok()) << own.status().ToString();
  NodeSnapshot snapshot;
  RunningCore* const running = (*own)->node().running();
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    snapshot.core = running->core()->Snapshot();
    snapshot.server = (*own)->node().server()->stats();
    done();
  });
  snapshot.process = OwnUsage();
  return snapshot;
}

TEST(NodeMetricsTest, TheDocumentNamesWhatIsShownAndNothingElse) {
  const std::string document = FileText(AQUIFER_SOURCE_DIR "/docs/operating/metrics.md");
  const std::set<std::string> documented = NamesIn(document, "`((?:aquifer|process)_[a-z0-9_]+)`");
  const std::set<std::string> shown = NamesIn(MetricsText(WholeSnapshot()), "# TYPE ([a-z0-9_]+) ");
  EXPECT_EQ(documented, shown);
  EXPECT_GT(shown.size(), 50u);
}

TEST(NodeMetricsTest, EveryCounterOfTheCacheIsInSomeMetric) {
  EXPECT_THAT(CountersWithoutMetric(WholeSnapshot().core.stats), IsEmpty());
  CacheStats stats;
  stats.counters = {{"made_up", 1}};
  EXPECT_THAT(CountersWithoutMetric(stats), testing::ElementsAre("made_up"));
}

TEST(NodeMetricsTest, EveryFamilyComesOnce) {
  const std::string text = MetricsText(WholeSnapshot());
  std::set<std::string> seen;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    EXPECT_TRUE(seen.insert(line).second) << line;
  }
}

TEST(NodeMetricsTest, TenantsBeyondABoundShareOneLabel) {
  NodeSnapshot snapshot;
  for (size_t i = 0; i < kMaxTenantLabels + 50; ++i) {
    TenantSnapshot tenant;
    tenant.options.name = "t" + std::to_string(i);
    tenant.counters.fetch_misses = 1;
    snapshot.tenants.push_back(tenant);
  }
  TenantSnapshot unnamed;
  unnamed.nvme_bytes = 77;
  snapshot.tenants.push_back(unnamed);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("{reason=\"not_found\",tenant=\"t255\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("t256")));
  EXPECT_THAT(text, HasSubstr("{reason=\"not_found\",tenant=\"(others)\"} 50\n"));
  EXPECT_THAT(text, HasSubstr("aquifer_tenant_bytes{tier=\"nvme\",tenant=\"(unknown)\"} 77\n"));
}

TEST(NodeMetricsTest, TheProcessIsMeasured) {
  const ProcessUsage usage = OwnUsage();
  EXPECT_GT(usage.resident_bytes, 1u << 20);
  EXPECT_GT(usage.open_files, 2u);
  EXPECT_EQ(usage.cpu_seconds.count("other"), 1u);
}

}  // namespace
}  // namespace aquifer
