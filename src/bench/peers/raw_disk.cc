#include "bench/peers/raw_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/text/size_text.h"

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
        for (uint64_t block = next++; block < transfer_.blocks.size() && error == 0;
             block = next++) {
          std::byte* const place = places_[block % places_.size()];
          const auto [descriptor, from] = transfer_.blocks[block];
          const auto offset = static_cast<off_t>(from);
          errno = EIO;  // A short transfer counts as this.
          const ssize_t moved = transfer_.write
                                    ? pwrite(descriptor, place, transfer_.block_bytes, offset)
                                    : pread(descriptor, place, transfer_.block_bytes, offset);
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

Result<std::unique_ptr<RawDisk>> RawDisk::New(const std::string& directory, uint64_t blocks,
                                              const Options& options) {
  std::unique_ptr<RawDisk> disk(new RawDisk(options));
  const std::string path = directory + "/raw";
  AQ_RETURN_IF_ERROR(disk->Open(path, O_CREAT));
  disk->own_file_ = path;
  const uint64_t bytes = options.block_bytes * blocks;
  const int error = posix_fallocate(disk->files_.back().get(), 0, static_cast<off_t>(bytes));
  if (error != 0) return Failed("allocate " + SizeText(bytes) + " for", path, error);
  disk->AddBlocks(0, bytes);
  AQ_RETURN_IF_ERROR(disk->Init());
  return disk;
}

Result<std::unique_ptr<RawDisk>> RawDisk::Over(const std::vector<std::string>& paths,
                                               uint64_t margin, const Options& options) {
  std::unique_ptr<RawDisk> disk(new RawDisk(options));
  for (const std::string& path : paths) {
    AQ_RETURN_IF_ERROR(disk->Open(path, 0));
    const off_t bytes = lseek(disk->files_.back().get(), 0, SEEK_END);
    if (bytes < 0) return Failed("look at", path, errno);
    disk->AddBlocks(margin, static_cast<uint64_t>(bytes) - margin);
  }
  AQ_RETURN_IF_ERROR(disk->Init());
  return disk;
}

Status RawDisk::Open(const std::string& path, int flags) {
  Descriptor file(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC | flags, 0600));
  if (!file.valid()) return Failed("open (past the page cache)", path, errno);
  files_.push_back(std::move(file));
  return Status();
}

void RawDisk::AddBlocks(uint64_t from, uint64_t to) {
  for (; from + options_.block_bytes <= to; from += options_.block_bytes) {
    blocks_.push_back({.descriptor = files_.back().get(), .offset = from});
  }
}

Status RawDisk::Init() {
  constexpr uint64_t kHugeBytes = uint64_t{256} << 20;  // Beyond the processor's caches.
  const uint64_t memory_bytes = std::max(kHugeBytes, options_.block_bytes * options_.depth);
  AQ_ASSIGN_OR_RETURN(huge_memory_, BenchMemory::New(memory_bytes));
  FillFromSeed(huge_memory_.bytes(), blocks_.size());
  RawTransfer transfer = TransferOn({huge_memory_.bytes()});
  huge_engine_ = NewEngine(transfer);
  transfer.write = true;
  return NewThreadRawEngine(transfer)->Run();
}

RawTransfer RawDisk::TransferOn(std::vector<std::span<std::byte>> memory) const {
  return {.write = options_.write,
          .block_bytes = options_.block_bytes,
          .blocks = blocks_,
          .depth = options_.depth,
          .memory = std::move(memory)};
}

RawDisk::~RawDisk() {
  huge_engine_.reset();
  if (!own_file_.empty()) unlink(own_file_.c_str());
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
  return GigabytesPerSecond(options_.block_bytes * blocks_.size(), watch.Seconds());
}

}  // namespace aquifer
