#include "trace/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"

namespace aquifer {
namespace {

constexpr std::array<char, 2> kGzipMagic = {'\x1f', '\x8b'};

class FileBytes final : public ByteSource {
 public:
  FileBytes(Descriptor file, std::string path, uint64_t bytes_total)
      : file_(std::move(file)), path_(std::move(path)), bytes_total_(bytes_total) {}

  // Looks at the first bytes; Read() gives them again.
  Result<bool> IsGzip() {
    while (peeked_ < first_.size()) {
      AQ_ASSIGN_OR_RETURN(const size_t count, ReadFile(std::span(first_).subspan(peeked_)));
      if (count == 0) break;
      peeked_ += count;
    }
    return peeked_ == first_.size() && first_ == kGzipMagic;
  }

  Result<size_t> Read(std::span<char> buffer) override {
    if (given_ == peeked_) return ReadFile(buffer);
    const size_t count = std::min(buffer.size(), peeked_ - given_);
    std::copy_n(first_.begin() + static_cast<ptrdiff_t>(given_), count, buffer.begin());
    given_ += count;
    return count;
  }

  uint64_t bytes_read() const override { return bytes_read_; }
  uint64_t bytes_total() const override { return bytes_total_; }

 private:
  Result<size_t> ReadFile(std::span<char> buffer) {
    ssize_t count = 0;
    do {
      count = read(file_.get(), buffer.data(), buffer.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      return Status(Code::kUnavailable,
                    fmt::format("cannot read '{}': {}", path_, std::strerror(errno)));
    }
    bytes_read_ += static_cast<uint64_t>(count);
    return static_cast<size_t>(count);
  }

  const Descriptor file_;
  const std::string path_;
  const uint64_t bytes_total_;
  uint64_t bytes_read_ = 0;
  std::array<char, kGzipMagic.size()> first_{};
  size_t peeked_ = 0;
  size_t given_ = 0;
};

class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::span<const char> bytes) : bytes_(bytes) {}

  Result<size_t> Read(std::span<char> buffer) override {
    const size_t count = std::min(buffer.size(), bytes_.size() - read_);
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(read_), count, buffer.begin());
    read_ += count;
    return count;
  }

  uint64_t bytes_read() const override { return read_; }
  uint64_t bytes_total() const override { return bytes_.size(); }

 private:
  const std::span<const char> bytes_;
  size_t read_ = 0;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> OpenBytes(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
    return Status(code, fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  }
  struct stat facts = {};
  if (fstat(file.get(), &facts) != 0) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot look at '{}': {}", path, std::strerror(errno)));
  }
  if (S_ISDIR(facts.st_mode)) {
    return Status(Code::kInvalid, fmt::format("'{}' is a directory: name a file in it", path));
  }
  const uint64_t total = S_ISREG(facts.st_mode) ? static_cast<uint64_t>(facts.st_size) : 0;
  auto bytes = std::make_unique<FileBytes>(std::move(file), path, total);
  AQ_ASSIGN_OR_RETURN(const bool gzip, bytes->IsGzip());
  if (gzip) return Gunzip(std::move(bytes));
  return std::unique_ptr<ByteSource>(std::move(bytes));
}

std::unique_ptr<ByteSource> BytesInMemory(std::span<const char> bytes) {
  return std::make_unique<MemoryBytes>(bytes);
}

}  // namespace aquifer
