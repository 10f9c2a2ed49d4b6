#include "io/disk/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {

OpenFiles::OpenFiles(const DiskDirectory* directory, size_t max_open, OnChange on_change)
    : directory_(directory), on_change_(std::move(on_change)), files_(max_open) {
  for (size_t i = 0; i < files_.size(); ++i) files_[i].slot = i;
}

OpenFiles::~OpenFiles() {
  for (OpenFile& file : files_) {
    AQ_CHECK(file.users == 0);
    if (file.descriptor.valid()) Close(&file);
  }
}

size_t OpenFiles::MaxOpen(uint32_t queue_depth) {
  rlimit limit = {};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const size_t wanted = known ? std::min<size_t>(limit.rlim_cur / 8, 1024) : 128;
  return std::max<size_t>(wanted, queue_depth + 1);
}

Result<OpenFile*> OpenFiles::Acquire(uint32_t number) {
  ++now_;
  auto found = by_number_.find(number);
  if (found == by_number_.end()) {
    if (open_ == files_.size()) AQ_CHECK(CloseOneIdle());
    auto opened = directory_->OpenFile(number);
    // Other parts of the process may have used up the descriptors: make room out of our own.
    while (!opened.ok() && opened.status().code() == Code::kBusy && CloseOneIdle()) {
      opened = directory_->OpenFile(number);
    }
    if (!opened.ok()) return opened.status();
    OpenFile& file = *std::find_if(files_.begin(), files_.end(),
                                   [](const OpenFile& f) { return !f.descriptor.valid(); });
    file.number = number;
    file.descriptor = std::move(opened->descriptor);
    file.bytes = opened->bytes;
    file.dropped = false;
    ++open_;
    if (on_change_) on_change_(file, Change::kOpened);
    found = by_number_.emplace(number, &file).first;
  }
  OpenFile* file = found->second;
  ++file->users;
  file->last_used = now_;
  return file;
}

void OpenFiles::Release(OpenFile* file) {
  AQ_CHECK(file->users > 0);
  if (--file->users == 0 && file->dropped) Close(file);
}

void OpenFiles::Drop(uint32_t number) {
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  OpenFile* file = found->second;
  by_number_.erase(found);
  file->dropped = true;
  if (file->users == 0) Close(file);
}

bool OpenFiles::CloseOneIdle() {
  OpenFile* oldest = nullptr;
  for (OpenFile& file : files_) {
    if (!file.descriptor.valid() || file.users > 0) continue;
    if (oldest == nullptr || file.last_used < oldest->last_used) oldest = &file;
  }
  if (oldest == nullptr) return false;
  Drop(oldest->number);
  return true;
}

void OpenFiles::Close(OpenFile* file) {
  if (on_change_) on_change_(*file, Change::kClosing);
  file->descriptor = Descriptor();
  --open_;
}

}  // namespace aquifer
