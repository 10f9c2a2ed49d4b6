#include "cli/raw_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "settings/size_text.h"

namespace aquifer {
namespace {

Status Failed(std::string_view what, const std::string& path, int error) {
  const Code code = error == ENOSPC ? Code::kNoSpace : Code::kUnavailable;
  return Status(code, fmt::format("cannot {} {}: {}; name a directory on another disk with "
                                  "--directory",
                                  what, path, std::strerror(error)));
}

class ThreadRawEngine final : public RawEngine {
 public:
  explicit ThreadRawEngine(const RawTransfer& transfer)
      : transfer_(transfer), places_(PlacesIn(transfer)) {}

  Status Run() override {
    std::atomic<uint64_t> next{0};
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    threads.reserve(transfer_.depth);
    for (uint32_t i = 0; i < transfer_.depth; ++i) {
      threads.emplace_back([&] {
        for (uint64_t block = next++; block < transfer_.blocks && error == 0; block = next++) {
          std::byte* const place = places_[block % places_.size()];
          const auto offset = static_cast<off_t>(block * transfer_.block_bytes);
          errno = EIO;  // What a short transfer counts as.
          const ssize_t moved =
              transfer_.write ? pwrite(transfer_.descriptor, place, transfer_.block_bytes, offset)
                              : pread(transfer_.descriptor, place, transfer_.block_bytes, offset);
          if (moved != static_cast<ssize_t>(transfer_.block_bytes)) error = errno;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (error != 0) return Failed("read or write", "the raw file", error);
    return Status();
  }

  std::string_view name() const override { return "pread/pwrite threads"; }

 private:
  const RawTransfer transfer_;
  const std::vector<std::byte*> places_;
};

std::unique_ptr<RawEngine> NewEngine(const RawTransfer& transfer) {
  Result<std::unique_ptr<RawEngine>> uring = NewUringRawEngine(transfer);
  return uring.ok() ? *std::move(uring) : NewThreadRawEngine(transfer);
}

}  // namespace

std::unique_ptr<RawEngine> NewThreadRawEngine(const RawTransfer& transfer) {
  return std::make_unique<ThreadRawEngine>(transfer);
}

std::vector<std::byte*> PlacesIn(const RawTransfer& transfer) {
  std::vector<std::byte*> places;
  for (const std::span<std::byte> memory : transfer.memory) {
    for (uint64_t at = 0; at + transfer.block_bytes <= memory.size(); at += transfer.block_bytes) {
      places.push_back(memory.data() + at);
    }
  }
  return places;
}

Result<std::unique_ptr<RawDisk>> RawDisk::New(const Options& options) {
  std::unique_ptr<RawDisk> disk(new RawDisk);
  disk->options_ = options;
  disk->path_ = options.directory + "/raw";
  disk->descriptor_ = open(disk->path_.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (disk->descriptor_ < 0) return Failed("open (past the page cache)", disk->path_, errno);
  const uint64_t bytes = options.block_bytes * options.blocks;
  const int error = posix_fallocate(disk->descriptor_, 0, static_cast<off_t>(bytes));
  if (error != 0) return Failed("allocate " + SizeText(bytes) + " for", disk->path_, error);
  constexpr uint64_t kHugeBytes = uint64_t{256} << 20;  // Beyond the processor's caches.
  const uint64_t memory_bytes = std::max(kHugeBytes, options.block_bytes * options.depth);
  AQ_ASSIGN_OR_RETURN(disk->huge_memory_, BenchMemory::New(memory_bytes));
  FillFromSeed(disk->huge_memory_.bytes(), options.blocks);
  RawTransfer transfer = disk->TransferOn({disk->huge_memory_.bytes()});
  disk->huge_engine_ = NewEngine(transfer);
  transfer.write = true;
  AQ_RETURN_IF_ERROR(NewThreadRawEngine(transfer)->Run());
  return disk;
}

RawTransfer RawDisk::TransferOn(std::vector<std::span<std::byte>> memory) const {
  return {.descriptor = descriptor_,
          .write = options_.write,
          .block_bytes = options_.block_bytes,
          .blocks = options_.blocks,
          .depth = options_.depth,
          .memory = std::move(memory)};
}

RawDisk::~RawDisk() {
  huge_engine_.reset();
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(path_.c_str());
}

Result<double> RawDisk::Run(std::vector<std::span<std::byte>> slots) const {
  // Neighbours become one piece, so that there are few to register.
  std::sort(slots.begin(), slots.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  std::vector<std::span<std::byte>> memory;
  for (const std::span<std::byte> slot : slots) {
    if (!memory.empty() && memory.back().data() + memory.back().size() == slot.data()) {
      memory.back() = {memory.back().data(), memory.back().size() + slot.size()};
    } else {
      memory.push_back(slot);
    }
  }
  return Run(NewEngine(TransferOn(std::move(memory))).get());
}

Result<double> RawDisk::RunInHugePages() const { return Run(huge_engine_.get()); }

Result<double> RawDisk::Run(RawEngine* engine) const {
  const Stopwatch watch;
  AQ_RETURN_IF_ERROR(engine->Run());
  return GigabytesPerSecond(options_.block_bytes * options_.blocks, watch.Seconds());
}

}  // namespace aquifer
