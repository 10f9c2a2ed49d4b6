// Blobs to and from a directory, against the same blocks moved to and from one plain file at the
// same depth, past the page cache both.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/blob_round.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/file_per_block.h"
#include "bench/peers/raw_disk.h"
#include "cli/temporary_directory.h"
#include "io/disk/disk.h"
#include "store/posix/posix_store.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kDepth = 16;     // Blobs under way at once, for us and for the raw file.
constexpr uint64_t kPeerShare = 4;  // The peer is slower, and its rate is the same for less.
constexpr uint64_t kCapRounds = 4;  // The cap has room for so many.
constexpr uint64_t kBlobBytes[] = {2 * kMiB, 8 * kMiB};

enum class Way : uint8_t { kRead, kWrite, kWriteSynced };

// The bytes of a round: no more than an eighth of the room on the disk.
Result<uint64_t> RoundBytes(const BenchEnvironment& environment) {
  constexpr uint64_t kLeast = 256 * kMiB;
  constexpr uint64_t kDiskShare = 8;
  const uint64_t free_bytes = FreeDiskBytes(environment.directory);
  const uint64_t bytes =
      std::min(environment.quick ? 512 * kMiB : 1024 * kMiB, free_bytes / kDiskShare) / kLeast *
      kLeast;
  if (bytes < kLeast) {
    return Status(Code::kNoSpace, fmt::format("{} of disk are free; {} are needed. Name another "
                                              "disk with --directory",
                                              SizeText(free_bytes), SizeText(kLeast * kDiskShare)));
  }
  return bytes;
}

class PosixContest final : public Contest {
 public:
  static Result<std::unique_ptr<Contest>> Prepare(Way way, uint64_t blob_bytes,
                                                  const BenchEnvironment& environment) {
    std::unique_ptr<PosixContest> contest(new PosixContest(way));
    AQ_RETURN_IF_ERROR(contest->Init(blob_bytes, environment));
    return std::unique_ptr<Contest>(std::move(contest));
  }

  Result<double> Limit() override { return raw_->Run(round_.places); }

  Result<double> Ours() override {
    if (way_ != Way::kRead) RenewNames();
    return RunBlobRound(round_);
  }

  std::vector<std::string> PeerNames() const override { return {"file-per-block"}; }
  Result<double> Peer(size_t /*peer*/) override {
    return way_ == Way::kRead ? files_->Read() : files_->Write();
  }

  std::string LimitIs() const override {
    return fmt::format(
        "one file, allocated and written before, past the page cache by {}, depth {}, to and from "
        "the same memory, not synced",
        raw_->engine_name(), kDepth);
  }

 private:
  explicit PosixContest(Way way) : way_(way) {}

  Status Init(uint64_t blob_bytes, const BenchEnvironment& environment) {
    AQ_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::New(environment.directory, "posix-"));
    AQ_ASSIGN_OR_RETURN(const uint64_t round_bytes, RoundBytes(environment));
    const uint64_t blobs = round_bytes / blob_bytes;
    AQ_ASSIGN_OR_RETURN(
        raw_,
        RawDisk::New(directory_->path(), blobs,
                     {.block_bytes = blob_bytes, .depth = kDepth, .write = way_ != Way::kRead}));
    AQ_ASSIGN_OR_RETURN(files_, FilePerBlock::New({.directory = directory_->path() + "/files",
                                                   .block_bytes = blob_bytes,
                                                   .blocks = blobs / kPeerShare}));
    AQ_ASSIGN_OR_RETURN(memory_, BenchMemory::New(kDepth * blob_bytes));
    FillFromSeed(memory_.bytes(), blob_bytes);
    PosixStoreOptions options;
    options.directory = directory_->path() + "/store";
    options.capacity_bytes = kCapRounds * round_bytes;
    options.grant_bytes = 256 * kMiB;  // A quarter of what a large directory has.
    options.sync = way_ == Way::kWriteSynced;
    AQ_ASSIGN_OR_RETURN(store_, NewPosixStore(options));
    round_.store = store_.get();
    round_.kind = way_ == Way::kRead ? BlobKind::kRead : BlobKind::kWrite;
    for (uint32_t i = 0; i < kDepth; ++i) {
      round_.places.push_back(memory_.bytes().subspan(i * blob_bytes, blob_bytes));
    }
    for (uint64_t i = 0; i < blobs; ++i) {
      round_.names.push_back(fmt::format("bench/{:02x}/{:032x}-0-0", i % 256, i));
    }
    AQ_RETURN_IF_ERROR(files_->Write().status());
    // Once around the cap, so that from then on it writes where it has written before, as the raw
    // file does.
    BlobRound fill = round_;
    fill.kind = BlobKind::kWrite;
    AQ_RETURN_IF_ERROR(RunBlobRound(fill).status());
    for (uint64_t i = 0; i < kCapRounds && way_ != Way::kRead; ++i) {
      AQ_RETURN_IF_ERROR(Ours().status());
    }
    return Status();
  }

  // Other blobs than before: the oldest make room for them.
  void RenewNames() {
    ++rounds_;
    for (size_t i = 0; i < round_.names.size(); ++i) {
      round_.names[i] = fmt::format("bench/{:02x}/{:024x}{:08x}-0-0", i % 256, i, rounds_);
    }
  }

  const Way way_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<RawDisk> raw_;
  std::unique_ptr<FilePerBlock> files_;
  BenchMemory memory_;
  std::unique_ptr<BlobStore> store_;  // Before the memory goes.
  BlobRound round_;
  uint64_t rounds_ = 0;
};

}  // namespace

void AddPosixRows(std::vector<Row>* rows) {
  struct Kind {
    Way way;
    const char* name;
    double goal;
  };
  // The cost of a synced write is the disk's business: it is shown, without a goal.
  for (const Kind kind :
       {Kind{Way::kRead, "posix.read", 0.90}, Kind{Way::kWrite, "posix.write", 0.70},
        Kind{Way::kWriteSynced, "posix.write_synced", 0}}) {
    for (const uint64_t bytes : kBlobBytes) {
      rows->push_back({.name = fmt::format("{}/{}", kind.name, SizeText(bytes)),
                       .unit = "GB/s",
                       .limit_is = "one file past the page cache, at the same depth",
                       .goal = kind.goal,
                       .prepare =
                           [way = kind.way, bytes](const BenchEnvironment& environment) {
                             return PosixContest::Prepare(way, bytes, environment);
                           },
                       .rounds = 9,
                       .quick_rounds = 5});
    }
  }
}

}  // namespace aquifer
