#include "bench/peers/file_per_block.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace aquifer {
namespace {

Status Failed(const char* what, int error) {
  return Status(error == ENOSPC ? Code::kNoSpace : Code::kUnavailable,
                fmt::format("{}: {}", what, std::strerror(error)));
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags, 0600)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

}  // namespace

Result<std::unique_ptr<FilePerBlock>> FilePerBlock::New(const Options& options) {
  std::unique_ptr<FilePerBlock> files(new FilePerBlock);
  files->options_ = options;
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) return Failed("mkdir", error.value());
  AQ_ASSIGN_OR_RETURN(files->buffers_, BenchMemory::New(options.block_bytes * options.threads));
  FillFromSeed(files->buffers_.bytes(), options.blocks);
  return files;
}

FilePerBlock::~FilePerBlock() {
  std::error_code error;
  std::filesystem::remove_all(options_.directory, error);
}

Result<double> FilePerBlock::Write() { return Run(&FilePerBlock::WriteOne); }

Result<double> FilePerBlock::Read() {
  DropFromPageCache();
  return Run(&FilePerBlock::ReadOne);
}

std::string FilePerBlock::PathOf(uint64_t block) const {
  return fmt::format("{}/{:016x}", options_.directory, block);
}

Status FilePerBlock::WriteOne(uint64_t block, uint32_t thread) const {
  const std::string path = PathOf(block);
  const std::string temporary = path + ".new";
  {
    const OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (file.get() < 0) return Failed("open", errno);
    const std::byte* const from = buffers_.data() + thread * options_.block_bytes;
    for (uint64_t done = 0; done < options_.block_bytes;) {
      const ssize_t written = write(file.get(), from + done, options_.block_bytes - done);
      if (written <= 0) return Failed("write", written == 0 ? EIO : errno);
      done += static_cast<uint64_t>(written);
    }
    // To the device, as a write past the page cache is; not a flush of the device's own cache.
    if (sync_file_range(file.get(), 0, 0,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
      return Failed("sync_file_range", errno);
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return Failed("rename", errno);
  return Status();
}

Status FilePerBlock::ReadOne(uint64_t block, uint32_t thread) const {
  const OpenFile file(PathOf(block), O_RDONLY | O_CLOEXEC);
  if (file.get() < 0) return Failed("open", errno);
  std::byte* const to = buffers_.data() + thread * options_.block_bytes;
  for (uint64_t done = 0; done < options_.block_bytes;) {
    const ssize_t got = read(file.get(), to + done, options_.block_bytes - done);
    if (got <= 0) return Failed("read", got == 0 ? EIO : errno);
    done += static_cast<uint64_t>(got);
  }
  return Status();
}

void FilePerBlock::DropFromPageCache() const {
  for (uint64_t block = 0; block < options_.blocks; ++block) {
    const OpenFile file(PathOf(block), O_RDONLY | O_CLOEXEC);
    if (file.get() >= 0) posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

Result<double> FilePerBlock::Run(Status (FilePerBlock::*one)(uint64_t, uint32_t) const) const {
  std::atomic<uint64_t> next{0};
  Mutex mutex;
  Status first_error;  // Guarded by mutex.
  std::vector<std::thread> threads;
  threads.reserve(options_.threads);
  const Stopwatch watch;
  for (uint32_t thread = 0; thread < options_.threads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t block = next++; block < options_.blocks; block = next++) {
        const Status status = (this->*one)(block, thread);
        if (status.ok()) continue;
        const MutexLock lock(&mutex);
        if (first_error.ok()) first_error = status;
        return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = watch.Seconds();
  AQ_RETURN_IF_ERROR(first_error);
  return GigabytesPerSecond(options_.block_bytes * options_.blocks, seconds);
}

}  // namespace aquifer
