#include "bench/sparse_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "bench/peers/bench_memory.h"
#include "block/record.h"
#include "io/disk/disk.h"
#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_writer.h"

namespace aquifer {
namespace {

Status Failed(const std::string& what, int error) {
  return Status(error == ENOSPC ? Code::kNoSpace : Code::kUnavailable,
                fmt::format("{}: {}; name a directory on another disk with --directory", what,
                            std::strerror(error)));
}

// One segment file, written through the page cache and then to the drive.
class SparseFile {
 public:
  static Result<SparseFile> New(const std::string& path, uint64_t bytes) {
    SparseFile file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.descriptor_ < 0) return Failed("open " + path, errno);
    if (ftruncate(file.descriptor_, static_cast<off_t>(bytes)) != 0) {
      return Failed("ftruncate " + path, errno);
    }
    return file;
  }
  SparseFile(SparseFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  SparseFile& operator=(SparseFile&&) = delete;
  ~SparseFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  Status Write(uint64_t offset, std::span<const std::byte> bytes) const {
    const ssize_t written =
        pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written != static_cast<ssize_t>(bytes.size())) {
      return Failed("pwrite", written < 0 ? errno : ENOSPC);
    }
    return Status();
  }

  // Starts the write-back, so that it goes on while the next file is made.
  void StartWriteBack() const { sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE); }

 private:
  explicit SparseFile(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

// Gives out records, chain after chain.
class RecordSource {
 public:
  explicit RecordSource(const SparseLogOptions& options)
      : options_(options),
        tenant_(TenantIdOf(options.tenant)),
        fingerprint_(LayoutFingerprint(options.layout)),
        block_bytes_(BlockBytes(options.layout, 0)) {}

  bool done() const { return next_ == options_.blocks; }
  uint64_t block_bytes() const { return block_bytes_; }

  Record Next(uint64_t payload_offset, uint64_t generation) {
    const auto position = static_cast<uint32_t>(next_ % options_.chain_blocks);
    if (position == 0) parent_ = KeyOf(~next_);
    Record record;
    record.meta.id = {.tenant = tenant_, .key = KeyOf(next_)};
    record.meta.parent = parent_;
    record.meta.position = position;
    record.meta.layout_fingerprint = fingerprint_;
    record.meta.raw_bytes = block_bytes_;
    record.meta.stored_bytes = block_bytes_;
    ++next_;
    record.age = {.origin = next_, .sequence = next_};
    record.payload_offset = payload_offset;
    record.generation = generation;
    parent_ = record.meta.id.key;
    return record;
  }

 private:
  // As even as the hash that a real key is.
  static Key KeyOf(uint64_t number) {
    Key key;
    FillFromSeed(std::as_writable_bytes(std::span(&key, 1)), number * 0x9E3779B97F4A7C15u);
    return key;
  }

  const SparseLogOptions& options_;
  const TenantId tenant_;
  const Digest fingerprint_;
  const uint64_t block_bytes_;
  uint64_t next_ = 0;
  Key parent_;
};

Status WriteSegment(const SparseFile& file, uint32_t number, uint64_t segment_bytes,
                    RecordSource* records) {
  const SegmentUse use{.generation = number, .salt = number * uint64_t{0x9E3779B97F4A7C15}};
  FooterBuilder footer(use);
  uint64_t cursor = DataOffset(segment_bytes);
  const uint64_t block_bytes = RoundUpToPage(records->block_bytes());
  uint32_t groups = 0;
  while (!records->done()) {
    // A group of its own for each block, as the writer makes them for large ones.
    const uint64_t payload_offset = cursor + kPageBytes;
    if (payload_offset + block_bytes + FooterBytes(footer.records() + 1) > segment_bytes) break;
    std::array<std::byte, kRecordBytes> bytes;
    EncodeRecord(records->Next(payload_offset, use.generation), bytes);
    footer.Add(bytes);
    cursor = payload_offset + block_bytes;
    ++groups;
  }

  std::vector<std::byte> header(kPageBytes);
  EncodeHeader(
      {.file = number, .segment_bytes = segment_bytes, .drive_id = {std::byte{1}}, .use = use},
      std::span(header).first<kPageBytes>());
  AQ_RETURN_IF_ERROR(file.Write(0, header));
  std::vector<std::byte> map(MapBytes(segment_bytes));
  FinishMap({.use = use, .sequence = 1, .records = footer.records()}, map);
  AQ_RETURN_IF_ERROR(file.Write(kMapsOffset, map));
  AQ_RETURN_IF_ERROR(file.Write(kMapsOffset + map.size(), map));
  std::vector<IoRequest> writes;
  std::vector<IoRequest> last;
  footer.Finish(number, segment_bytes, {.use = use, .groups = groups, .data_end = cursor}, &writes,
                &last);
  writes.insert(writes.end(), last.begin(), last.end());
  for (const IoRequest& write : writes) AQ_RETURN_IF_ERROR(file.Write(write.offset, write.data));
  file.StartWriteBack();
  return Status();
}

}  // namespace

Result<SparseLog> WriteSparseLog(const SparseLogOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) return Failed("mkdir " + options.directory, error.value());
  SparseLog log;
  RecordSource records(options);
  while (!records.done()) {
    const auto number = static_cast<uint32_t>(++log.segments);
    AQ_ASSIGN_OR_RETURN(const SparseFile file,
                        SparseFile::New(fmt::format("{}/{}{:08}.aq", options.directory,
                                                    DiskOptions{}.prefix, number),
                                        options.segment_bytes));
    AQ_RETURN_IF_ERROR(WriteSegment(file, number, options.segment_bytes, &records));
    log.bytes += options.segment_bytes;
  }
  return log;
}

void DropSparseLogFromPageCache(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const int descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    fdatasync(descriptor);  // Pages not written yet cannot be dropped.
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }
}

}  // namespace aquifer
