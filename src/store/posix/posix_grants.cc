#include "store/posix/posix_grants.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/descriptor.h"
#include "io/disk/errno_status.h"

namespace aquifer {
namespace {

constexpr std::string_view kNone = "none";
constexpr std::string_view kFull = "full";
constexpr std::string_view kGone = "gone";
constexpr std::string_view kSpare = "spare";
constexpr std::string_view kUsedFile = "used";
// What is left of a grant is worth taking up from this share of it on.
constexpr uint64_t kLeastShareLeft = 16;

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

Result<BlobLabel> ReadLabel(int file) {
  alignas(kPageBytes) std::array<std::byte, kPageBytes> page;
  ::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);  // What follows is not wanted.
  if (::pread(file, page.data(), page.size(), 0) != ssize_t{kPageBytes}) {
    return Status(Code::kCorrupt);
  }
  return DecodeLabel(page);
}

uint64_t ReadUsed(const std::string& folder) {
  const Descriptor file(
      ::open(PathIn(folder, kUsedFile).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char text[16];
  uint64_t used = 0;
  if (!file.valid() || ::pread(file.get(), text, sizeof(text), 0) != ssize_t{sizeof(text)}) {
    return 0;
  }
  return ParseHex({text, sizeof(text)}, &used) ? used : 0;
}

// A lost one costs nothing but an earlier end.
void WriteUsed(const std::string& folder, uint64_t sequence) {
  const Descriptor file(
      ::open(PathIn(folder, kUsedFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0660));
  if (!file.valid()) return;
  const std::string text = fmt::format("{:016x}", sequence);
  [[maybe_unused]] const ssize_t written = ::pwrite(file.get(), text.data(), text.size(), 0);
}

// Of a file that we have locked exclusively.
void TakeItsName(const PosixPaths& paths, int file) {
  struct stat ours = {};
  const Result<BlobLabel> label = ReadLabel(file);
  if (!label.ok() || ::fstat(file, &ours) != 0) return;
  const std::string name = paths.Blob(label->name);
  struct stat named = {};
  // Nobody else takes a name from a file without a lock on it: it stays this file's until then.
  if (::lstat(name.c_str(), &named) == 0 && SameFile(ours, named)) ::unlink(name.c_str());
  RemoveEmptyBlobFolders(paths, label->name);
}

// Of a file that we have locked: whether it is where it was found, or somebody took it over before
// we had the lock.
bool IsStillAt(const std::string& path, int file) {
  struct stat ours = {};
  struct stat there = {};
  return ::fstat(file, &ours) == 0 && ::lstat(path.c_str(), &there) == 0 && SameFile(ours, there);
}

}  // namespace

bool RetireDataFile(const PosixPaths& paths, const std::string& data_file, const BlobLabel* only) {
  const Descriptor file(::open(data_file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return IsGone(errno);
  // Readers and writers hold it shared. Where there are no locks, readers keep what they opened.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  if (only != nullptr) {
    const Result<BlobLabel> label = ReadLabel(file.get());
    if (!label.ok() || label->id != only->id) return true;
  } else if (!IsStillAt(data_file, file.get())) {
    return false;
  }
  TakeItsName(paths, file.get());
  // Last, so that whoever comes after a crash finds it and does all of this again. And before the
  // bytes go, so that a writer that was taken for dead cannot make a blob of what remains.
  if (::unlink(data_file.c_str()) != 0 && !IsGone(errno)) return false;
  return ::ftruncate(file.get(), 0) == 0 || IsGone(errno);
}

bool SpareDataFile(const PosixPaths& paths, const std::string& data_file) {
  const Descriptor file(::open(data_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  // Without locks nobody could be sure that it is not read while it is written over.
  if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  if (!IsStillAt(data_file, file.get())) return false;
  TakeItsName(paths, file.get());
  struct stat stat = {};
  return ::fstat(file.get(), &stat) == 0 && stat.st_nlink == 1 && stat.st_size > 0;
}

std::string FindDataFile(const PosixPaths& paths, const BlobLabel& label) {
  const std::string grant = paths.Grant(label.grant);
  for (int attempt = 0; attempt < 3; ++attempt) {  // Its folder may be renamed meanwhile.
    const Result<std::vector<std::string>> folders = ListFolder(grant);
    if (!folders.ok()) return {};
    for (const std::string& folder : *folders) {
      std::string path = fmt::format("{}/{}/{}", grant, folder, DataFileName(label));
      if (::access(path.c_str(), F_OK) == 0) return path;
    }
  }
  return {};
}

PosixGrants::PosixGrants(Options options)
    : options_(std::move(options)),
      paths_(options_.root),
      most_grants_(MostGrants(options_.capacity_bytes, options_.grant_bytes)),
      counts_(options_.counts) {}

uint64_t PosixGrants::MostGrants(uint64_t capacity_bytes, uint64_t grant_bytes) {
  if (capacity_bytes <= kPosixOverheadBytes || grant_bytes == 0) return 0;
  constexpr uint64_t kMostNumbers = 100'000'000;  // Eight digits.
  return std::min((capacity_bytes - kPosixOverheadBytes) / grant_bytes, kMostNumbers);
}

// --- Looking -------------------------------------------------------------------------------------

Result<PosixGrants::Found> PosixGrants::LookAt(uint32_t number) const {
  const std::string path = paths_.Grant(number);
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListFolder(path));
  Found found{.number = number};
  for (const std::string& folder : folders) {
    const std::string_view view = folder;
    if (view.size() < 18 || view[16] != '-' || !ParseHex(view.substr(0, 16), &found.sequence)) {
      continue;
    }
    const std::string_view state = view.substr(17);
    found.folder = PathIn(path, folder);
    found.state = state == kNone    ? State::kNone
                  : state == kFull  ? State::kFull
                  : state == kGone  ? State::kGone
                  : state == kSpare ? State::kSpare
                                    : State::kOpen;
    if (found.state == State::kOpen) found.owner = state;
    break;
  }
  return found;
}

Result<std::vector<PosixGrants::Found>> PosixGrants::Survey() {
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> entries, ListFolder(paths_.Grants()));
  std::vector<Found> grants;
  grants_there_ = 0;
  for (const std::string& entry : entries) {
    uint32_t number = 0;
    if (!ParseNumber(entry, 8, &number)) continue;
    Result<Found> found = LookAt(number);
    if (!found.ok() && found.status().code() == Code::kNotFound) continue;
    if (!found.ok()) return found.status();
    highest_sequence_ = std::max(highest_sequence_, found->sequence);
    if (found->state != State::kEmpty) ++grants_there_;
    grants.push_back(*std::move(found));
    if (options_.meanwhile) options_.meanwhile();
  }
  return grants;
}

std::optional<uint32_t> PosixGrants::FreeNumber(const std::vector<Found>& grants) const {
  std::vector<uint32_t> used;
  for (const Found& found : grants) {
    if (found.state != State::kEmpty) used.push_back(found.number);
  }
  std::sort(used.begin(), used.end());
  uint32_t number = 0;
  for (const uint32_t other : used) {
    if (other != number) break;
    ++number;
  }
  return number < most_grants_ ? std::optional(number) : std::nullopt;
}

bool PosixGrants::HasRoom(const std::vector<Found>& grants) const {
  const auto spare = [this](const Found& found) {
    return found.state == State::kSpare && found.number < most_grants_;
  };
  return FreeNumber(grants).has_value() || std::any_of(grants.begin(), grants.end(), spare);
}

bool PosixGrants::IsAbandoned(const Found& found) {
  if (found.state != State::kOpen) return found.state == State::kNone;
  if (found.owner == options_.member->name()) return !open_.contains(found.folder);
  return options_.member->IsDead(found.owner);
}

// --- Taking and giving up ------------------------------------------------------------------------

std::string PosixGrants::FolderIn(uint32_t number, uint64_t sequence,
                                  std::string_view state) const {
  return fmt::format("{}/{:016x}-{}", paths_.Grant(number), sequence, state);
}

Result<PosixGrant> PosixGrants::Take(uint64_t least_bytes) {
  Result<PosixGrant> grant = TakeOnce(least_bytes);
  if (grant.ok() || grant.status().code() != Code::kNoSpace) return grant;
  AQ_RETURN_IF_ERROR(MakeRoom());
  return TakeOnce(least_bytes);
}

Result<PosixGrant> PosixGrants::TakeOnce(uint64_t least_bytes) {
  AQ_ASSIGN_OR_RETURN(std::vector<Found> grants, Survey());
  for (const bool spare : {false, true}) {
    for (const Found& found : grants) {
      const bool can = spare ? found.state == State::kSpare : IsAbandoned(found);
      if (found.number >= most_grants_ || !can) continue;
      AQ_ASSIGN_OR_RETURN(std::optional<PosixGrant> grant, Adopt(found, least_bytes));
      if (grant) return *std::move(grant);
    }
  }
  for (std::optional<uint32_t> free = FreeNumber(grants); free; free = FreeNumber(grants)) {
    AQ_ASSIGN_OR_RETURN(std::optional<PosixGrant> grant, TakeNumber(*free));
    if (grant) return *std::move(grant);
    grants.push_back({.number = *free, .state = State::kFull});  // Somebody was faster.
  }
  return Status(Code::kNoSpace, fmt::format("{}: all of its {} grants of {} bytes are in use",
                                            paths_.root(), most_grants_, options_.grant_bytes));
}

Result<std::optional<PosixGrant>> PosixGrants::Adopt(const Found& found, uint64_t least_bytes) {
  PosixGrant grant;
  grant.number = found.number;
  grant.sequence = found.state == State::kSpare ? ++highest_sequence_ : found.sequence;
  grant.folder = FolderIn(grant.number, grant.sequence, options_.member->name());
  if (found.folder != grant.folder &&
      std::rename(found.folder.c_str(), grant.folder.c_str()) != 0) {
    if (IsGone(errno) || errno == ENOTEMPTY || errno == EEXIST) return std::optional<PosixGrant>();
    return ErrnoStatus(errno, "take up", found.folder);
  }
  // A dead owner's files are what it was writing; others have left theirs to be written over.
  const bool keep = options_.reuse_files && found.state != State::kOpen;
  const uint64_t used =
      kPosixGrantOverheadBytes + Tidy(grant.folder, keep ? &grant.spares : nullptr);
  grant.left_bytes = options_.grant_bytes - std::min(used, options_.grant_bytes);
  const uint64_t worth = std::max(least_bytes, options_.grant_bytes / kLeastShareLeft);
  uint64_t room = grant.left_bytes;
  for (const auto& [what, file] : grant.spares) room += BlobCharge(what.second, what.first);
  if (room < worth) {
    GiveUp(grant, true);
    return std::optional<PosixGrant>();
  }
  open_.insert(grant.folder);
  ++(found.state == State::kSpare ? counts_.taken : counts_.adopted);
  return std::optional(std::move(grant));
}

// The folder comes to its place with the inner one in it, so that a grant never has no owner. A
// rename replaces a folder only if that is empty, which is one that somebody has just given back.
Result<std::optional<PosixGrant>> PosixGrants::TakeNumber(uint32_t number) {
  const uint64_t sequence = ++highest_sequence_;
  const std::string outer = fmt::format("{}/new-{:x}", options_.member->folder(), sequence);
  const std::string inner = fmt::format("{}/{:016x}-{}", outer, sequence, options_.member->name());
  AQ_RETURN_IF_ERROR(MakeFolder(outer));
  AQ_RETURN_IF_ERROR(MakeFolder(inner));
  if (std::rename(outer.c_str(), paths_.Grant(number).c_str()) != 0) {
    const int error = errno;
    ::rmdir(inner.c_str());
    ::rmdir(outer.c_str());
    if (error == EEXIST || error == ENOTEMPTY) return std::optional<PosixGrant>();
    return ErrnoStatus(error, "take", paths_.Grant(number));
  }
  PosixGrant grant{.number = number,
                   .sequence = sequence,
                   .folder = FolderIn(number, sequence, options_.member->name()),
                   .left_bytes = options_.grant_bytes - kPosixGrantOverheadBytes};
  open_.insert(grant.folder);
  ++counts_.taken;
  ++grants_there_;
  return std::optional(std::move(grant));
}

void PosixGrants::GiveUp(const PosixGrant& grant, bool full) {
  open_.erase(grant.folder);
  const std::string to = FolderIn(grant.number, grant.sequence, full ? kFull : kNone);
  // Where it fails, it is ours and not open: the next one to look sees that it is abandoned.
  [[maybe_unused]] const int result = std::rename(grant.folder.c_str(), to.c_str());
}

// What is there counts for. Files that hold no blob are removed, or else noted in `spares`.
uint64_t PosixGrants::Tidy(const std::string& folder, SpareFiles* spares) {
  const Result<std::vector<std::string>> entries = ListFolder(folder);
  if (!entries.ok()) return options_.grant_bytes;  // Nothing is to be written there.
  for (const std::string& entry : *entries) {
    if (entry.ends_with(kReplacementEnding)) ::unlink(PathIn(folder, entry).c_str());
  }
  uint64_t bytes = 0;
  for (const std::string& entry : *entries) {
    uint64_t folders = 0;
    const std::string path = PathIn(folder, entry);
    struct stat stat = {};
    if (!ParseDataFileName(entry, &folders) || ::lstat(path.c_str(), &stat) != 0) continue;
    const bool has_blob = stat.st_nlink > 1;
    if (!has_blob && spares == nullptr && RetireDataFile(paths_, path)) {
      ++counts_.leftovers_removed;
      continue;
    }
    const auto size = static_cast<uint64_t>(stat.st_size);
    if (!has_blob && spares != nullptr) spares->emplace(std::pair(folders, size), entry);
    bytes += BlobCharge(size, folders);
    if (options_.meanwhile) options_.meanwhile();
  }
  return bytes;
}

// --- Making room ---------------------------------------------------------------------------------

// A link to the file that shows whether we live. It keeps two from doing the same work; were there
// two, for a moment, they would do no harm: each file's lock has one holder, and is unlinked once.
bool PosixGrants::HoldReclaim() {
  const std::string path = paths_.Reclaim();
  const std::string ours = options_.member->alive_file();
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (::link(ours.c_str(), path.c_str()) == 0) return true;
    if (errno != EEXIST) return false;
    struct stat there = {};
    struct stat own = {};
    if (::stat(path.c_str(), &there) == 0 && ::stat(ours.c_str(), &own) == 0 &&
        SameFile(there, own)) {
      return true;
    }
    const Result<bool> dead = options_.member->HolderIsDead(path);
    if (dead.ok() && !*dead) return false;
    if (dead.ok()) ::unlink(path.c_str());
  }
  return false;
}

void PosixGrants::LetReclaim() {
  struct stat there = {};
  struct stat own = {};
  const std::string path = paths_.Reclaim();
  if (::stat(path.c_str(), &there) == 0 &&
      ::stat(options_.member->alive_file().c_str(), &own) == 0 && SameFile(there, own)) {
    ::unlink(path.c_str());
  }
}

Status PosixGrants::MakeRoom() {
  if (!HoldReclaim()) return Status(Code::kBusy, "another process is making room");
  Status status = MakeRoomHeld();
  LetReclaim();
  return status;
}

uint64_t PosixGrants::RankOf(const Found& found) const {
  // What somebody began to empty comes first, then what a smaller cap has no number for.
  if (found.state == State::kGone || found.number >= most_grants_) return 0;
  return std::max(found.sequence, ReadUsed(found.folder));
}

Status PosixGrants::MakeRoomHeld() {
  AQ_ASSIGN_OR_RETURN(std::vector<Found> grants, Survey());
  const auto too_many = [this](const Found& found) {
    return found.state != State::kEmpty && found.number >= most_grants_;
  };
  starved_ = false;
  if (HasRoom(grants) && std::none_of(grants.begin(), grants.end(), too_many)) return Status();
  std::vector<std::pair<uint64_t, Found*>> victims;
  for (Found& found : grants) {
    if (found.state == State::kFull || found.state == State::kGone || IsAbandoned(found) ||
        (found.state == State::kSpare && too_many(found))) {
      victims.emplace_back(RankOf(found), &found);
      if (options_.meanwhile) options_.meanwhile();
    }
  }
  std::sort(victims.begin(), victims.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [rank, victim] : victims) {
    // Those that the cap has no room for all go, of the others as many as are needed.
    if (HasRoom(grants) && victim->number < most_grants_) continue;
    if (Empty(victim)) ++counts_.reclaimed;
  }
  starved_ = !HasRoom(grants);
  return Status();
}

// False: some of it is being read, and stays until the next time.
bool PosixGrants::Empty(Found* victim) {
  const bool reuse = options_.reuse_files && victim->number < most_grants_;
  const std::string gone = FolderIn(victim->number, victim->sequence, kGone);
  if (victim->folder != gone) {
    if (std::rename(victim->folder.c_str(), gone.c_str()) != 0) return false;
    victim->folder = gone;
    victim->state = State::kGone;
  }
  const Result<std::vector<std::string>> entries = ListFolder(gone);
  if (!entries.ok()) return false;
  for (const std::string& entry : *entries) {
    if (entry.ends_with(kReplacementEnding)) ::unlink(PathIn(gone, entry).c_str());
  }
  bool all = true;
  for (const std::string& entry : *entries) {
    all = EmptyFile(gone, entry, reuse) && all;
    if (options_.meanwhile) options_.meanwhile();
  }
  if (!all) return false;
  ::unlink(PathIn(gone, kUsedFile).c_str());
  if (::rmdir(gone.c_str()) == 0 || IsGone(errno)) {
    ::rmdir(paths_.Grant(victim->number).c_str());  // Not if somebody has just taken it.
    victim->state = State::kEmpty;
    --grants_there_;
    return true;
  }
  const std::string spare = FolderIn(victim->number, victim->sequence, kSpare);
  if (!reuse || std::rename(gone.c_str(), spare.c_str()) != 0) return false;
  victim->folder = spare;
  victim->state = State::kSpare;
  return true;
}

bool PosixGrants::EmptyFile(const std::string& folder, const std::string& entry, bool reuse) {
  uint64_t folders = 0;
  if (!ParseDataFileName(entry, &folders)) return true;
  const std::string path = PathIn(folder, entry);
  if (reuse && SpareDataFile(paths_, path)) {
    ++counts_.files_spared;
  } else if (!RetireDataFile(paths_, path)) {
    return false;
  }
  ++counts_.blobs_reclaimed;
  return true;
}

void PosixGrants::CleanUp() {
  if (!HoldReclaim()) return;
  const Result<std::vector<Found>> grants = Survey();
  if (grants.ok()) {
    for (const Found& found : *grants) {
      if (found.state != State::kOpen || !IsAbandoned(found)) continue;
      const std::string none = FolderIn(found.number, found.sequence, kNone);
      if (std::rename(found.folder.c_str(), none.c_str()) == 0) Tidy(none, nullptr);
    }
    counts_.dead_processes += options_.member->RemoveTheDead();
    [[maybe_unused]] const Status room = MakeRoomHeld();
  }
  LetReclaim();
}

void PosixGrants::MarkUsed(const std::set<uint32_t>& numbers) {
  // Soon is as good as at once: what matters is who is far behind.
  const uint64_t slack = most_grants_ / kLeastShareLeft;
  for (const uint32_t number : numbers) {
    const Result<Found> found = LookAt(number);
    if (!found.ok() || found->state == State::kEmpty || found->state == State::kGone) continue;
    const uint64_t now = highest_sequence_;
    if (std::max(found->sequence, ReadUsed(found->folder)) + slack < now) {
      WriteUsed(found->folder, now);
    }
  }
}

}  // namespace aquifer
