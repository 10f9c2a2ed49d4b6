// A disk in memory whose every fault is at a test's command. It comes in two parts, as real ones
// do: the MemoryMedia is what survives a crash, a MemoryDisk is one mount of it. To restart, a test
// destroys (or crashes) the disk and makes a new one over the same media.
//
// Nothing happens by itself: each group takes effect and completes in one task of the executor, so
// with a ManualExecutor and a SeededRandom every run is the same. Any thread may call any method of
// MemoryDisk. The media may be touched directly only while no task of its disk can run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "io/disk/disk.h"
#include "testing/seeded_random.h"

namespace aquifer {

inline constexpr size_t kSectorBytes = 512;  // The pieces of a torn write.

// Sparse files: what was never written, or only with zeros, costs no memory.
class MemoryMedia {
 public:
  // ---- What a disk does. ----

  bool Exists(uint32_t file) const { return files_.contains(file); }
  uint64_t Size(uint32_t file) const;  // 0 when it is not there.
  std::vector<DiskFile> List() const;
  Status Create(uint32_t file, uint64_t bytes);  // kNoSpace beyond the capacity.
  void Remove(uint32_t file);
  Status Read(uint32_t file, uint64_t offset, std::span<std::byte> target) const;
  Status Write(uint32_t file, uint64_t offset, std::span<const std::byte> source);
  void Sync(uint32_t file);  // Bytes written to it can no longer be lost.

  uint64_t used_bytes() const { return used_bytes_; }  // The sum of the files' sizes.
  uint64_t resident_bytes() const;                     // The memory that holds them.

  // ---- What a test does to it. ----

  // Create() fails beyond it. Files that are there already stay.
  void set_capacity_bytes(uint64_t bytes) { capacity_bytes_ = bytes; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }

  // As on a copy-on-write file system, a write then needs free space of its own size even where it
  // overwrites; without it the write is kNoSpace.
  void set_copy_on_write(bool on) { copy_on_write_ = on; }

  // From now on writes are remembered until Sync(), and LoseUnsynced() may undo each of them
  // wholly, in some sectors, or not at all. Costs memory for the old bytes until the file is
  // synced.
  void set_reorder_until_sync(bool on) { reorder_until_sync_ = on; }
  void LoseUnsynced(SeededRandom* random);

  // `source` is applied wholly, in some sectors, or not at all.
  void WriteTorn(uint32_t file, uint64_t offset, std::span<const std::byte> source,
                 SeededRandom* random);

  // These take any offset and length within the file; a file that is too short is the test's error.
  std::vector<std::byte> Bytes(uint32_t file, uint64_t offset, size_t length) const;
  void SetBytes(uint32_t file, uint64_t offset, std::span<const std::byte> bytes);
  void FlipBit(uint32_t file, uint64_t offset, int bit);
  void Truncate(uint32_t file, uint64_t bytes);  // Cuts or grows, whatever the capacity.
  void SwapRanges(uint32_t file_a, uint64_t offset_a, uint32_t file_b, uint64_t offset_b,
                  size_t length);

  // A copy that shares memory with this one until either changes. The unsynced writes go with it.
  std::shared_ptr<MemoryMedia> Clone() const { return std::make_shared<MemoryMedia>(*this); }

 private:
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  using Chunk = std::array<std::byte, kChunkBytes>;

  struct Undo {
    uint64_t offset = 0;
    size_t length = 0;
    std::vector<std::byte> old_bytes;  // Empty: they were zero.
  };

  struct File {
    uint64_t bytes = 0;
    std::map<uint64_t, std::shared_ptr<Chunk>> chunks;  // By index. Shared between clones.
    std::vector<Undo> unsynced;                         // Oldest first.
  };

  static void Load(const File& file, uint64_t offset, std::span<std::byte> target);
  static void Store(File* file, uint64_t offset, std::span<const std::byte> source);
  void Resize(File* file, uint64_t bytes);
  File* Find(uint32_t file, uint64_t offset, size_t length);

  uint64_t capacity_bytes_ = std::numeric_limits<uint64_t>::max();
  uint64_t used_bytes_ = 0;
  bool copy_on_write_ = false;
  bool reorder_until_sync_ = false;
  std::map<uint32_t, File> files_;
};

struct MemoryDiskOptions {
  std::string name = "memory";  // For Describe().
  uint32_t max_queued = 4096;
  int64_t latency_nanos = 0;      // From Submit() to completion, if nothing is queued before.
  uint64_t bytes_per_second = 0;  // Of reads and writes together; 0: no limit.

  // These need `random`.
  bool shuffle = false;             // The requests of a group take effect in random order.
  bool tear_failed_writes = false;  // A write that fails by injection leaves torn bytes behind.
  int64_t jitter_nanos = 0;         // Up to so much is added to each group's latency.
  SeededRandom* random = nullptr;
};

class MemoryDisk final : public Disk {
 public:
  // `clock` is the executor's, and is needed only with a latency, a jitter or a bandwidth. The
  // media is shared because it outlives each of its mounts and tests look into it meanwhile.
  MemoryDisk(std::shared_ptr<MemoryMedia> media, const MemoryDiskOptions& options,
             Executor* executor, const Clock* clock = nullptr);
  ~MemoryDisk()
      override;  // Requests that can complete take effect now; their on_done is still to run.

  void Submit(IoGroup* group) override;
  void Remember(std::span<std::byte>) override {}
  void Forget(std::span<std::byte>) override {}
  Result<std::vector<DiskFile>> List() override;
  std::string Describe() const override;
  DiskStats stats() const override;

  // ---- Faults. All take hold at once, for requests that wait as well as for new ones. ----

  void FailNext(IoKind kind, uint64_t count, Code code);  // A failed request has no effect.
  void FailAll(IoKind kind, Code code);                   // kOk ends it.

  // Asked for every request that is about to take effect; an error is the request's outcome. It
  // must not call the disk. Null ends it.
  void SetFault(std::function<Status(const IoRequest&)> fault);

  // Requests neither take effect nor complete until Hang(false); then they do both.
  void Hang(bool on);
  // Hanging requests go on hanging until Hang(false); requests from now on do not.
  void HangNoMore();

  // Writes, creates and removes are kUnavailable.
  void SetReadOnly(bool on);

  // A crash point: once `count` requests (of all since the disk was made) have taken effect, no
  // further one takes effect or completes. To try every step, run once without, read
  // requests_done(), then run again for each number up to it.
  void StopAfter(uint64_t count);
  uint64_t requests_done() const;
  uint64_t requests_pending() const;
  // A request of that kind waits that will still read or write some of this memory.
  bool Uses(IoKind kind, std::span<const std::byte> memory) const;

  // The process dies: each request that has not taken effect does so wholly, in part (writes by
  // sector, creates by page), or not at all. No group completes any more, and the disk ignores what
  // is submitted from now on. Buffers of waiting writes must still be there. Returns the groups
  // that will not complete, for who wants to free them once whoever submitted them is gone.
  std::vector<IoGroup*> Crash(SeededRandom* random);

  // The machine dies: as Crash(), and then writes that were not synced may be lost as well, if the
  // media is set to reorder_until_sync.
  std::vector<IoGroup*> PowerLoss(SeededRandom* random);

 private:
  struct State;
  // Shared with tasks that wait in the executor, which may outlive the disk.
  const std::shared_ptr<State> state_;
};

}  // namespace aquifer
