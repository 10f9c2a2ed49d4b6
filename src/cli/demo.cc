// aquifer demo: conversations are stored, the cache is restarted, everything is recalled and
// compared byte by byte; then one bit is flipped on the disk, and that block alone is refused.
// With --socket: a few blocks through a node that runs (demo_node.h).
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "cli/bench_memory.h"
#include "cli/cache_caller.h"
#include "cli/commands.h"
#include "cli/demo_node.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/temporary_directory.h"
#include "settings/size_text.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSegmentBytes = 64 * kMiB;
constexpr uint64_t kSpareSegments = 4;  // The log keeps some free, and one is being filled.
constexpr size_t kConversationBlocks = 8;

struct DemoOptions {
  std::string directory;
  std::string dram;
  std::string nvme;
  std::string socket;
};

// How large everything is.
struct Plan {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
  size_t conversations = 0;
};

// Llama-3-8B's KV: 32 layers, 8 KV heads of 128 elements, bf16.
Layout DemoLayout() {
  Layout layout{.groups = {{.layers = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128}},
                .kv_format = "demo"};
  layout.tokens_per_block = TokensPerBlock(layout);
  return layout;
}

Result<Plan> MakePlan(const DemoOptions& options, const Machine& machine,
                      const std::string& directory, uint64_t block_bytes) {
  constexpr uint64_t kUsualDram = 256 * kMiB;
  constexpr uint64_t kLeastDram = 128 * kMiB;
  constexpr uint64_t kDataPerDram = 4;
  const uint64_t conversation_bytes = kConversationBlocks * block_bytes;
  const uint64_t disk_free = FreeDiskBytes(directory);
  Plan plan;
  plan.dram_bytes = machine.memory_available_bytes / 8 >= kUsualDram ? kUsualDram : kLeastDram;
  if (!options.dram.empty()) {
    AQ_ASSIGN_OR_RETURN(plan.dram_bytes, ParseSize(options.dram));
    if (plan.dram_bytes < kLeastDram) {
      return Status(Code::kInvalid, fmt::format("--dram is {}; the demo needs {}", options.dram,
                                                SizeText(kLeastDram)));
    }
  }
  uint64_t data_bytes = kDataPerDram * plan.dram_bytes;
  if (!options.nvme.empty()) {
    AQ_ASSIGN_OR_RETURN(plan.nvme_bytes, ParseSize(options.nvme));
    const uint64_t spare = kSpareSegments * kSegmentBytes;
    data_bytes = std::min(data_bytes, plan.nvme_bytes - std::min(plan.nvme_bytes, spare));
  } else {
    data_bytes = std::min(data_bytes, disk_free / 2);
    plan.nvme_bytes = data_bytes + data_bytes / 8 + kSpareSegments * kSegmentBytes;
  }
  plan.conversations = data_bytes / conversation_bytes;
  if (plan.conversations * conversation_bytes <= plan.dram_bytes) {
    return Status(
        Code::kNoSpace,
        fmt::format("the data must not fit in {} of DRAM, and {} on disk hold too little; "
                    "{}",
                    SizeText(plan.dram_bytes), SizeText(plan.nvme_bytes),
                    options.nvme.empty() ? "name a directory with more free space with "
                                           "--directory"
                                         : "give --nvme at least twice as much as --dram"));
  }
  if (plan.nvme_bytes > disk_free) {
    return Status(Code::kNoSpace,
                  fmt::format("{} has {} free and {} are needed; name another directory with "
                              "--directory",
                              directory, SizeText(disk_free), SizeText(plan.nvme_bytes)));
  }
  return plan;
}

struct Recalled {
  size_t from_dram = 0;
  size_t from_nvme = 0;
  size_t refused = 0;  // Corrupt.
  size_t missed = 0;
  double seconds = 0;  // Spent on fetching; comparing is not counted.

  size_t blocks() const { return from_dram + from_nvme; }
};

class Demo {
 public:
  Demo(const Plan& plan, std::string directory)
      : plan_(plan),
        directory_(std::move(directory)),
        layout_(DemoLayout()),
        block_bytes_(BlockBytes(layout_, 0)) {}

  Status Run() {
    AQ_ASSIGN_OR_RETURN(expected_, BenchMemory::New(block_bytes_));
    AQ_RETURN_IF_ERROR(Open().status());
    AQ_RETURN_IF_ERROR(Store());
    AQ_RETURN_IF_ERROR(RecallWarm());
    AQ_RETURN_IF_ERROR(Restart());
    AQ_RETURN_IF_ERROR(RecallCold());
    return Corrupt();
  }

 private:
  static void Step(std::string_view title) {
    fmt::print("\n{}\n", title);
    std::fflush(stdout);
  }
  void Say(std::string_view what, const std::string& text) {
    progress_.Clear();
    fmt::print("  {:<10} {}\n", what, text);
    std::fflush(stdout);
  }

  // Seconds.
  Result<double> Open() {
    CacheOptions options;
    options.dram_bytes = plan_.dram_bytes;
    options.nvme_directories = {directory_};
    options.nvme_bytes = plan_.nvme_bytes;
    options.nvme_segment_bytes = kSegmentBytes;
    const Stopwatch watch;
    AQ_ASSIGN_OR_RETURN(caller_, CacheCaller::Open(options, layout_));
    return watch.Seconds();
  }

  uint64_t BytesOf(size_t blocks) const { return blocks * block_bytes_; }

  // A block's bytes follow from its key, so whoever has the key can tell whether they are right.
  void Generate(const Key& key, std::span<std::byte> bytes) const {
    FillFromSeed(bytes, key.Prefix64());
  }

  Status Store() {
    Step(fmt::format("1. Store {} conversations of {} tokens", plan_.conversations,
                     kConversationBlocks * layout_.tokens_per_block));
    conversations_.resize(plan_.conversations);
    size_t stored = 0;
    const Stopwatch watch;
    for (size_t i = 0; i < conversations_.size(); ++i) {
      progress_.Show(fmt::format("  storing {} of {}", i + 1, conversations_.size()));
      AQ_ASSIGN_OR_RETURN(conversations_[i],
                          MakeChain(layout_, ClientOptions{}.tenant,
                                    fmt::format("conversation {}", i), kConversationBlocks));
      const NamedChain& chain = conversations_[i];
      AQ_ASSIGN_OR_RETURN(const size_t blocks,
                          caller_->Store(chain, [&](size_t block, std::span<std::byte> slot) {
                            Generate(chain.keys[block], slot);
                            return SumLanes(slot, 0);
                          }));
      stored += blocks;
      // What is stored faster than the disk takes it is dropped unwritten. An engine can live with
      // that; a demonstration waits.
      AQ_RETURN_IF_ERROR(caller_->Flush());
    }
    const double seconds = watch.Seconds();
    Say("stored", fmt::format("{} blocks, {}, through {} of DRAM and down to disk: {:.1f} s, "
                              "{:.1f} GB/s",
                              stored, SizeText(BytesOf(stored)), SizeText(plan_.dram_bytes),
                              seconds, GigabytesPerSecond(BytesOf(stored), seconds)));
    return Status();
  }

  // Where a match says that the conversations are: what an engine asks before it decides.
  Status ShowMatches() {
    size_t in_dram = 0;
    size_t on_nvme = 0;
    const Stopwatch watch;
    for (const NamedChain& chain : conversations_) {
      match_.chain = caller_->Slice(chain.keys);
      caller_->cache()->Match(&match_);
      AQ_RETURN_IF_ERROR(caller_->Finish(match_));
      for (const MatchRun& run : match_.runs) {
        if (run.state == RunState::kReady) {
          (run.tier == TierKind::kDram ? in_dram : on_nvme) += run.count;
        }
      }
    }
    Say("matched",
        fmt::format("{} blocks in DRAM, {} on NVMe; {:.0f} us a conversation", in_dram, on_nvme,
                    watch.Seconds() * 1e6 / static_cast<double>(conversations_.size())));
    return Status();
  }

  // Newest first, so that what is still in DRAM is used before it is displaced.
  Result<Recalled> Recall() {
    Recalled recalled;
    for (size_t i = conversations_.size(); i-- > 0;) {
      progress_.Show(fmt::format("  recalling, {} left", i));
      AQ_RETURN_IF_ERROR(RecallOne(conversations_[i], &recalled));
    }
    return recalled;
  }

  Status RecallOne(const NamedChain& chain, Recalled* recalled) {
    fetch_.chain = caller_->Slice(chain.keys);
    fetch_.timeout_nanos = 60 * kDefaultTimeoutNanos;
    const Stopwatch watch;
    caller_->cache()->Fetch(&fetch_);
    AQ_RETURN_IF_ERROR(caller_->Finish(fetch_));
    recalled->seconds += watch.Seconds();
    std::vector<ReleaseOp> releases;
    Status wrong;
    for (size_t i = 0; i < fetch_.ops.size(); ++i) {
      const FetchOp& op = fetch_.ops[i];
      if (op.status.code() == Code::kCorrupt) {
        ++recalled->refused;
      } else if (!op.status.ok()) {
        ++recalled->missed;
      } else {
        ++(op.tier == TierKind::kDram ? recalled->from_dram : recalled->from_nvme);
        Generate(chain.keys[i], expected_.bytes());
        if (std::memcmp(expected_.data(), op.bytes.data(), block_bytes_) != 0) {
          wrong = Status(Code::kCorrupt, "the cache served wrong bytes; please report this");
        }
      }
      if (op.lease != 0) releases.push_back({.lease = op.lease});
    }
    caller_->cache()->Release(releases);
    return wrong;
  }

  std::string Text(const Recalled& recalled) const {
    return fmt::format("{} blocks, {}: {} from DRAM, {} from NVMe; {:.1f} GB/s", recalled.blocks(),
                       SizeText(BytesOf(recalled.blocks())), recalled.from_dram, recalled.from_nvme,
                       GigabytesPerSecond(BytesOf(recalled.blocks()), recalled.seconds));
  }

  size_t all_blocks() const { return conversations_.size() * kConversationBlocks; }

  Status ExpectAll(const Recalled& recalled) const {
    if (recalled.blocks() == all_blocks()) return Status();
    return Status(Code::kNotFound, fmt::format("{} of {} blocks were not recalled",
                                               all_blocks() - recalled.blocks(), all_blocks()));
  }

  Status RecallWarm() {
    Step("2. Recall them");
    AQ_RETURN_IF_ERROR(ShowMatches());
    AQ_ASSIGN_OR_RETURN(const Recalled recalled, Recall());
    Say("recalled", Text(recalled));
    AQ_RETURN_IF_ERROR(ExpectAll(recalled));
    Say("verified", "every byte");
    return Status();
  }

  Status Restart() {
    Step("3. Restart");
    const Stopwatch watch;
    caller_.reset();
    const double closing = watch.Seconds();
    AQ_ASSIGN_OR_RETURN(const double opening, Open());
    AQ_ASSIGN_OR_RETURN(const CacheStats stats, caller_->Stats());
    size_t found = 0;
    for (const TierStats& tier : stats.tiers) {
      if (tier.tier == TierKind::kNvme) found = tier.blocks;
    }
    Say("closed", fmt::format("in {:.0f} ms", closing * 1e3));
    Say("reopened", fmt::format("in {:.0f} ms; {} blocks found again without reading them",
                                opening * 1e3, found));
    return Status();
  }

  Status RecallCold() {
    Step("4. Recall everything after the restart");
    AQ_RETURN_IF_ERROR(ShowMatches());
    AQ_ASSIGN_OR_RETURN(const Recalled recalled, Recall());
    Say("recalled", Text(recalled));
    AQ_RETURN_IF_ERROR(ExpectAll(recalled));
    Say("verified", "every byte");
    return Status();
  }

  Status Corrupt() {
    Step("5. Flip one bit on the disk");
    caller_.reset();
    const size_t conversation = conversations_.size() / 2;
    const size_t block = kConversationBlocks / 2;
    progress_.Show("  looking for the block");
    AQ_ASSIGN_OR_RETURN(const std::string where,
                        FlipBitOf(conversations_[conversation].keys[block]));
    Say("flipped", fmt::format("{} (conversation {}, block {})", where, conversation, block));
    AQ_RETURN_IF_ERROR(Open().status());
    AQ_ASSIGN_OR_RETURN(const Recalled recalled, Recall());
    AQ_ASSIGN_OR_RETURN(const CacheStats stats, caller_->Stats());
    Say("refused", fmt::format("{} block; corrupt_blocks = {}", recalled.refused,
                               stats.Counter("corrupt_blocks")));
    Say("recalled", Text(recalled));
    Say("verified", "every byte");
    if (recalled.refused != 1 || recalled.blocks() + 1 != all_blocks() ||
        stats.Counter("corrupt_blocks") != 1) {
      return Status(Code::kCorrupt,
                    "exactly one block should have been refused and counted; please report this");
    }
    return Status();
  }

  // Finds the block by its content, whatever the format around it is. Says where it was.
  Result<std::string> FlipBitOf(const Key& key) const {
    Generate(key, expected_.bytes());
    const std::string_view begin(reinterpret_cast<const char*>(expected_.data()), 64);
    std::vector<char> buffer(16 * kMiB);
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      const int file = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      if (file < 0) continue;
      // Payloads begin on a page, so none straddles two reads.
      off_t at = 0;
      ssize_t got = 0;
      while ((got = pread(file, buffer.data(), buffer.size(), at)) > 0) {
        const size_t found = std::string_view(buffer.data(), static_cast<size_t>(got)).find(begin);
        if (found != std::string_view::npos) {
          const off_t target = at + static_cast<off_t>(found) + 12'345;
          unsigned char byte = 0;
          const bool flipped = pread(file, &byte, 1, target) == 1 &&
                               (byte ^= 1, pwrite(file, &byte, 1, target) == 1) && fsync(file) == 0;
          const int error = errno;
          posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
          close(file);
          if (!flipped) return Status(Code::kUnavailable, std::strerror(error));
          return fmt::format("bit 0 of byte {} of {}", target, entry.path().filename().string());
        }
        at += got;
      }
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      close(file);
    }
    return Status(Code::kNotFound, "the block is not on the disk");
  }

  const Plan plan_;
  const std::string directory_;
  const Layout layout_;
  const uint64_t block_bytes_;
  BenchMemory expected_;
  std::unique_ptr<CacheCaller> caller_;
  std::vector<NamedChain> conversations_;
  MatchRequest match_;
  FetchRequest fetch_;
  Progress progress_;
};

int Refuse(const Status& status) {
  fmt::print(stderr, "aquifer demo: {}\n", status.message());
  return status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
}

int RunDemo(const DemoOptions& options) {
  const auto directory = TemporaryDirectory::New(options.directory, "aquifer-demo-");
  if (!directory.ok()) return Refuse(directory.status());
  const std::string& path = (*directory)->path();
  const Layout layout = DemoLayout();
  const Machine machine = DescribeMachine();
  const Result<Plan> plan = MakePlan(options, machine, path, BlockBytes(layout, 0));
  if (!plan.ok()) return Refuse(plan.status());

  fmt::print(
      "Aquifer demo: conversations whose KV cache outlives the process\n"
      "  model      Llama-3-8B's shape: {} tokens a block, {} each\n"
      "  memory     {} of DRAM\n"
      "  disk       {} in {} ({}), removed at the end\n",
      layout.tokens_per_block, SizeText(BlockBytes(layout, 0)), SizeText(plan->dram_bytes),
      SizeText(plan->nvme_bytes), path, FileSystemOf(path));
  const Stopwatch watch;
  Demo demo(*plan, path);
  if (const Status status = demo.Run(); !status.ok()) return Refuse(status);
  fmt::print("\nDone in {:.1f} s. Next step: aquifer bench --quick\n", watch.Seconds());
  return kExitOk;
}

int RunNodeDemo(const std::string& socket) {
  fmt::print("A few blocks through the node on {}\n", socket);
  const Status status = DemonstrateNode(socket);
  return status.ok() ? kExitOk : Refuse(status);
}

constexpr const char* kFooter = R"(
Sizes are written like 512MiB or 2GiB. All files are removed at the end.

Examples:
  aquifer demo
  aquifer demo --directory /mnt/nvme0 --dram 1GiB --nvme 8GiB
  aquifer demo --socket /run/aquifer/node.sock     a few blocks through a node that runs)";

}  // namespace

void AddDemoCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command =
      app->add_subcommand("demo", "Fill a cache, restart it, and recall everything");
  const auto options = std::make_shared<DemoOptions>();  // The callback's, and CLI11's targets.
  command
      ->add_option("--directory", options->directory,
                   "Where to make a temporary directory (default: /var/tmp)")
      ->type_name("DIR");
  command->add_option("--dram", options->dram,
                      "DRAM to use (default: 256MiB, less on small hosts)");
  command->add_option("--nvme", options->nvme,
                      "Disk space to use (default: a bit more than four times the DRAM)");
  command
      ->add_option("--socket", options->socket,
                   "Instead: store and recall a few blocks through the node on this socket")
      ->type_name("PATH");
  command->footer(kFooter);
  command->callback([options, exit_status] {
    *exit_status = options->socket.empty() ? RunDemo(*options) : RunNodeDemo(options->socket);
  });
}

}  // namespace aquifer
