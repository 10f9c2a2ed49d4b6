#include "cli/raw_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "cli/size_text.h"

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
  explicit ThreadRawEngine(const RawTransfer& transfer) : transfer_(transfer) {}

  Status Run() override {
    std::atomic<uint64_t> next{0};
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    threads.reserve(transfer_.depth);
    for (uint32_t i = 0; i < transfer_.depth; ++i) {
      threads.emplace_back([&, i] {
        std::byte* const buffer = transfer_.buffers.data() + i * transfer_.block_bytes;
        for (uint64_t block = next++; block < transfer_.blocks && error == 0; block = next++) {
          const auto offset = static_cast<off_t>(block * transfer_.block_bytes);
          errno = EIO;  // What a short transfer counts as.
          const ssize_t moved =
              transfer_.write ? pwrite(transfer_.descriptor, buffer, transfer_.block_bytes, offset)
                              : pread(transfer_.descriptor, buffer, transfer_.block_bytes, offset);
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
};

}  // namespace

std::unique_ptr<RawEngine> NewThreadRawEngine(const RawTransfer& transfer) {
  return std::make_unique<ThreadRawEngine>(transfer);
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
  AQ_ASSIGN_OR_RETURN(disk->buffers_, BenchMemory::New(options.block_bytes * options.depth));
  FillFromSeed(disk->buffers_.bytes(), options.blocks);

  RawTransfer transfer{.descriptor = disk->descriptor_,
                       .write = true,
                       .block_bytes = options.block_bytes,
                       .blocks = options.blocks,
                       .depth = options.depth,
                       .buffers = disk->buffers_.bytes()};
  AQ_RETURN_IF_ERROR(NewThreadRawEngine(transfer)->Run());
  transfer.write = options.write;
  Result<std::unique_ptr<RawEngine>> uring = NewUringRawEngine(transfer);
  disk->engine_ = uring.ok() ? *std::move(uring) : NewThreadRawEngine(transfer);
  return disk;
}

RawDisk::~RawDisk() {
  engine_.reset();
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(path_.c_str());
}

Result<double> RawDisk::Run() {
  const Stopwatch watch;
  AQ_RETURN_IF_ERROR(engine_->Run());
  return GigabytesPerSecond(options_.block_bytes * options_.blocks, watch.Seconds());
}

}  // namespace aquifer
