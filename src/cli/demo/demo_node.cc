#include "cli/demo/demo_node.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/text/size_text.h"
#include "bench/peers/bench_layout.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/cache_caller.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // Llama-3-8B's, of 16 tokens.
constexpr size_t kBlocks = 8;

void Say(std::string_view what, const std::string& text) {
  fmt::print("  {:<10} {}\n", what, text);
  std::fflush(stdout);
}

Layout DemoLayout() {
  Layout layout = BenchLayout(kBlockBytes);
  layout.kv_format = "demo";
  return layout;
}

Result<std::unique_ptr<CacheCaller>> Join(const std::string& socket) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> cache, Connect({.socket = socket}, {}));
  return CacheCaller::New(std::move(cache), DemoLayout());
}

class NodeDemo {
 public:
  explicit NodeDemo(std::string socket) : socket_(std::move(socket)) {}

  Status Run() {
    AQ_ASSIGN_OR_RETURN(expected_, BenchMemory::New(kBlockBytes));
    // A chain of this process's own: two demonstrations at a time do not meet.
    AQ_ASSIGN_OR_RETURN(chain_,
                        MakeChain(DemoLayout(), ClientOptions{}.tenant,
                                  fmt::format("demonstration of process {}", ::getpid()), kBlocks));
    AQ_ASSIGN_OR_RETURN(writer_, Join(socket_));
    AQ_ASSIGN_OR_RETURN(reader_, Join(socket_));
    AQ_RETURN_IF_ERROR(Store());
    const Status recalled = RecallTwice();
    const Status deleted = Delete();
    return recalled.ok() ? deleted : recalled;
  }

 private:
  Status Store() {
    const Stopwatch watch;
    AQ_ASSIGN_OR_RETURN(const size_t stored,
                        writer_->Store(chain_, [&](size_t block, std::span<std::byte> slot) {
                          FillFromSeed(slot, chain_.keys[block].Prefix64());
                          return SumLanes(slot, 0);
                        }));
    Say("stored", fmt::format("{} blocks, {}, by one client, in {:.1f} ms", stored,
                              SizeText(stored * kBlockBytes), watch.Seconds() * 1e3));
    return Status();
  }

  Status RecallTwice() {
    AQ_ASSIGN_OR_RETURN(const double first, Recall());
    AQ_ASSIGN_OR_RETURN(const double again, Recall());
    Say("recalled", fmt::format("{} blocks by another, where they are: {:.1f} ms with mapping the "
                                "memory, then {:.0f} us",
                                kBlocks, first * 1e3, again * 1e6));
    Say("verified", "every byte");
    return Status();
  }

  // Seconds until all of them were there.
  Result<double> Recall() {
    FetchRequest fetch;
    fetch.chain = reader_->Slice(chain_.keys);
    fetch.timeout_nanos = 10 * kDefaultTimeoutNanos;
    const Stopwatch watch;
    reader_->cache()->Fetch(&fetch);
    AQ_RETURN_IF_ERROR(reader_->Finish(fetch));
    const double seconds = watch.Seconds();
    const Status right = Compare(fetch);
    std::vector<ReleaseOp> releases;
    for (const FetchOp& op : fetch.ops) {
      if (op.lease != 0) releases.push_back({.lease = op.lease});
    }
    reader_->cache()->Release(releases);
    if (!right.ok()) return right;
    return seconds;
  }

  Status Compare(const FetchRequest& fetch) const {
    for (size_t i = 0; i < fetch.ops.size(); ++i) {
      AQ_RETURN_IF_ERROR(fetch.ops[i].status);
      FillFromSeed(expected_.bytes(), chain_.keys[i].Prefix64());
      if (std::memcmp(expected_.data(), fetch.ops[i].bytes.data(), kBlockBytes) != 0) {
        return Status(Code::kCorrupt, "the node served wrong bytes; please report this");
      }
    }
    return Status();
  }

  Status Delete() {
    EvictRequest evict;
    evict.chain = writer_->Slice(chain_.keys);
    writer_->cache()->Evict(&evict);
    return writer_->Finish(evict);
  }

  const std::string socket_;
  NamedChain chain_;
  BenchMemory expected_;
  std::unique_ptr<CacheCaller> writer_;
  std::unique_ptr<CacheCaller> reader_;
};

}  // namespace

Status DemonstrateNode(const std::string& socket) { return NodeDemo(socket).Run(); }

}  // namespace aquifer
