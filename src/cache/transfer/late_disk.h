// A drive that may not be open yet, or not any more: until it is, every request fails with the
// reason, and the tier above tries again as it does with any drive that fails. So each drive
// starts, fails and comes back on its own.
//
// Runs on the owner.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/executor.h"
#include "io/disk/disk.h"

namespace aquifer {

// What opening a directory brought, off the owner: listing the files may hang as opening may.
struct OpenedDisk {
  std::unique_ptr<Disk> disk;
  std::vector<DiskFile> files;
};

class LateDisk final : public Disk {
 public:
  LateDisk(std::string directory, Executor* executor)
      : directory_(std::move(directory)),
        executor_(executor),
        why_not_(Code::kUnavailable, directory_ + " is being opened") {}

  const std::string& directory() const { return directory_; }
  bool open() const { return opened_.disk != nullptr; }
  void SetOpen(OpenedDisk opened) { opened_ = std::move(opened); }
  void SetFailed(Status why) { why_not_ = std::move(why); }
  // Waits for what is at the drive.
  void Close() { opened_ = {}; }

  void Submit(IoGroup* group) override {
    if (open()) return opened_.disk->Submit(group);
    for (IoRequest& request : group->requests) request.status = why_not_;
    executor_->Post([group] { group->on_done(*group); });
  }
  void Remember(std::span<std::byte> memory) override {
    if (open()) opened_.disk->Remember(memory);
  }
  void Forget(std::span<std::byte> memory) override {
    if (open()) opened_.disk->Forget(memory);
  }
  // As they were when it was opened: they are asked for before anything changes.
  Result<std::vector<DiskFile>> List() override {
    if (!open()) return why_not_;
    return opened_.files;
  }
  std::string Describe() const override { return open() ? opened_.disk->Describe() : directory_; }
  DiskStats stats() const override { return open() ? opened_.disk->stats() : DiskStats{}; }

 private:
  const std::string directory_;
  Executor* const executor_;
  OpenedDisk opened_;
  Status why_not_;
};

}  // namespace aquifer
