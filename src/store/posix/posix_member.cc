#include "store/posix/posix_member.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

constexpr size_t kIdDigits = 16;
constexpr size_t kBootCharacters = 36;
constexpr size_t kSignBytes = kIdDigits + 1 + kBootCharacters + 1 + 16 + 1;
constexpr size_t kMaxSigns = 4 * kMaxPosixProcesses;
// Where locks do not work, nobody may conclude anything from ours.
const std::string kNoBoot(kBootCharacters, '-');

std::string BootId() {
  const Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[kBootCharacters];
  if (!file.valid() || ::read(file.get(), text, sizeof(text)) != ssize_t{sizeof(text)}) {
    return kNoBoot;
  }
  return std::string(text, sizeof(text));
}

struct AliveText {
  std::string id;
  std::string boot;
  uint64_t beat = 0;
};

// False for what is being written for the first time.
bool ReadAlive(int file, AliveText* alive) {
  char text[kSignBytes];
  if (::pread(file, text, sizeof(text), 0) != ssize_t{sizeof(text)}) return false;
  const std::string_view view(text, sizeof(text));
  alive->id = view.substr(0, kIdDigits);
  alive->boot = view.substr(kIdDigits + 1, kBootCharacters);
  return ParseHex(view.substr(kIdDigits + 1 + kBootCharacters + 1, 16), &alive->beat);
}

}  // namespace

PosixMember::PosixMember(const Options& options)
    : paths_(options.root),
      dead_after_nanos_(options.dead_after_nanos),
      clock_(options.clock),
      random_(options.random),
      boot_(BootId()) {}

Status PosixMember::Join() {
  bool cleaned = false;
  for (uint32_t slot = 0; slot < kMaxPosixProcesses; ++slot) {
    bool taken = false;
    AQ_RETURN_IF_ERROR(JoinAt(slot, &taken));
    if (!taken) return Status();
    if (slot + 1 == kMaxPosixProcesses && !cleaned && RemoveTheDead() > 0) {
      cleaned = true;
      slot = UINT32_MAX;  // Once more from the start.
    }
  }
  return Unusable(paths_.root(), fmt::format("{} processes share it", kMaxPosixProcesses),
                  "use another directory for some of them");
}

Status PosixMember::JoinAt(uint32_t slot, bool* taken) {
  const std::string folder = paths_.Process(slot);
  if (::mkdir(folder.c_str(), 0770) != 0) {
    *taken = errno == EEXIST;
    if (*taken) return Status();
    return Unusable(paths_.root(), fmt::format("cannot be written to: {}", ErrnoText(errno)),
                    "make it writable for this user, or free some space");
  }
  slot_ = slot;
  id_ = fmt::format("{:016x}", random_->Next64());
  name_ = fmt::format("{:03}-{}", slot, id_);
  Descriptor file(
      ::open(alive_file().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0660));
  if (!file.valid()) {
    *taken = IsGone(errno);  // Somebody took us for dead: next place.
    if (*taken) return Status();
    return Unusable(paths_.root(), fmt::format("cannot be written to: {}", ErrnoText(errno)),
                    "make it writable for this user, or free some space");
  }
  locked_ = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  file_ = std::move(file);
  beat_ = 0;
  Status status = WriteSign();
  if (status.ok()) status = CheckLinks();
  if (!status.ok()) Leave();
  return status;
}

// All that we do stands on hard links, so it is better to know at once.
Status PosixMember::CheckLinks() const {
  const std::string second = folder() + "/check";
  struct stat stat = {};
  const bool linked = ::link(alive_file().c_str(), second.c_str()) == 0;
  const bool counted = linked && ::stat(second.c_str(), &stat) == 0 && stat.st_nlink == 2;
  if (linked) ::unlink(second.c_str());
  if (counted) return Status();
  return Unusable(paths_.root(), "its file system has no hard links",
                  "use a directory on one that has (ext4, XFS, NFS, Lustre, CephFS, GPFS)");
}

Status PosixMember::WriteSign() {
  const std::string text = fmt::format("{} {} {:016x}\n", id_, locked_ ? boot_ : kNoBoot, beat_++);
  if (::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "write", alive_file());
  }
  struct stat written = {};
  if (::fstat(file_.get(), &written) == 0) {
    clock_ahead_seconds_ = written.st_mtim.tv_sec - clock_->UnixSeconds();
  }
  return Status();
}

Status PosixMember::Beat() {
  struct stat ours = {};
  struct stat there = {};
  const bool same = ::fstat(file_.get(), &ours) == 0 && ::stat(alive_file().c_str(), &there) == 0 &&
                    ours.st_ino == there.st_ino;
  if (!same) {
    file_ = Descriptor();
    return Status(Code::kNotFound, fmt::format("{} is gone", alive_file()));
  }
  return WriteSign();
}

void PosixMember::Leave() {
  if (!joined()) return;
  RemoveFolder(folder());
  file_ = Descriptor();  // After that: who finds the file unlocked may remove it.
}

bool PosixMember::IsDead(std::string_view member) {
  uint32_t slot = 0;
  if (member.size() != 4 + kIdDigits || !ParseNumber(member.substr(0, 3), 3, &slot)) return true;
  const std::string id(member.substr(4));
  const Descriptor file(
      ::open((paths_.Process(slot) + "/alive").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return IsGone(errno);
  AliveText alive;
  if (ReadAlive(file.get(), &alive) && alive.id != id) return true;
  const Result<bool> dead = HolderIsDead(paths_.Process(slot) + "/alive");
  return dead.ok() ? *dead : dead.status().code() == Code::kNotFound;
}

Result<bool> PosixMember::HolderIsDead(const std::string& alive_file) {
  const Descriptor file(::open(alive_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && IsGone(errno)) return Status(Code::kNotFound);
  if (!file.valid()) return ErrnoStatus(errno, "open", alive_file);
  AliveText alive;
  if (!ReadAlive(file.get(), &alive)) return Watch(alive_file, 0);
  if (alive.boot == boot_ && boot_ != kNoBoot) {
    return ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
  }
  return Watch(alive.id, alive.beat);
}

bool PosixMember::Watch(const std::string& id, uint64_t beat) {
  const int64_t now = clock_->NowNanos();
  if (signs_.size() > kMaxSigns) signs_.clear();
  const auto [sign, first] = signs_.try_emplace(id, Sign{beat, now});
  if (first || sign->second.beat != beat) {
    sign->second = {beat, now};
    return false;
  }
  return now - sign->second.since_nanos >= dead_after_nanos_;
}

uint64_t PosixMember::RemoveTheDead() {
  const Result<std::vector<std::string>> entries = ListFolder(paths_.Processes());
  if (!entries.ok()) return 0;
  uint64_t removed = 0;
  for (const std::string& entry : *entries) {
    uint32_t slot = 0;
    if (!ParseNumber(entry, 3, &slot) || (joined() && slot == slot_)) continue;
    const std::string folder = paths_.Process(slot);
    const Result<bool> dead = HolderIsDead(folder + "/alive");
    // A folder without a file: whoever made it is about to write one, or died.
    const bool gone =
        dead.ok() ? *dead : dead.status().code() == Code::kNotFound && Watch(folder, 0);
    if (!gone) continue;
    RemoveFolder(folder);
    ++removed;
  }
  return removed;
}

// Besides the file there may be a grant in the making: folders in folders.
void PosixMember::RemoveFolder(const std::string& folder) {
  const Result<std::vector<std::string>> entries = ListFolder(folder);
  if (!entries.ok()) return;
  for (const std::string& entry : *entries) {
    const std::string path = PathIn(folder, entry);
    if (::unlink(path.c_str()) != 0 && (errno == EISDIR || errno == EPERM)) RemoveFolder(path);
  }
  ::rmdir(folder.c_str());
}

}  // namespace aquifer
