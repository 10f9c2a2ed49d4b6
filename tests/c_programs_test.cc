// Runs C programs that know only libaquifer.so and its header, against a node.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <memory>
#include <string>

#include "aquifer/cache.h"
#include "testing/node/own_node.h"

extern char** environ;

namespace aquifer {
namespace {

// The exit status of the program with one argument; -1 if it did not end by itself.
int StatusOf(std::string program, std::string argument) {
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  pid_t pid = 0;
  if (::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return -1;
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

class CPrograms : public testing::Test {
 protected:
  void SetUp() override {
    CacheOptions options;
    options.dram_bytes = uint64_t{192} << 20;
    auto node = OwnNode::Start(options);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *node;
  }

  std::shared_ptr<OwnNode> node_;  // The object is not shared; OwnNode::Start returns a shared_ptr.
};

TEST_F(CPrograms, EveryCallOfTheHeaderWorksAsDescribed) {
  EXPECT_EQ(StatusOf(C_API_TEST_PROGRAM, node_->socket()), 0);
}

TEST_F(CPrograms, TheExampleEngineRecallsItsBlocks) {
  EXPECT_EQ(StatusOf(EXAMPLE_ENGINE_PROGRAM, node_->socket()), 0);
  EXPECT_EQ(StatusOf(EXAMPLE_ENGINE_PROGRAM, node_->socket()), 0);  // The blocks are there already.
  EXPECT_NE(StatusOf(EXAMPLE_ENGINE_PROGRAM, "/nowhere/node.sock"), 0);
}

}  // namespace
}  // namespace aquifer
