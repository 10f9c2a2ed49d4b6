// The cap of a posix store. A grant is a numbered folder that some process may write so many bytes
// to; there are only as many numbers as the cap has room for, so that nobody has to count what the
// others do. What state a grant is in, its inner folder's name says:
//
//   grants/00000012/<sequence>-<member>   that process writes to it
//   grants/00000012/<sequence>-none       nobody does, and it has room left
//   grants/00000012/<sequence>-full       nobody will again
//   grants/00000012/<sequence>-gone       it is being emptied
//   grants/00000012/<sequence>-spare      it was, and has files left that can be written over
//
// Every change of state is one rename, which only one can win. Whoever was taken for dead and is
// not finds that its folder is not there any more.
//
// For one thread, the keeper's. Everything here may block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "store/posix/posix_label.h"
#include "store/posix/posix_member.h"
#include "store/posix/posix_paths.h"

namespace aquifer {

// Files that hold no blob and can be written over: by the folders that their names say, which
// decide what they count for, and by size.
using SpareFiles = std::multimap<std::pair<uint64_t, uint64_t>, std::string>;

struct PosixGrant {
  uint32_t number = 0;
  uint64_t sequence = 0;  // Grants are older the lower it is.
  std::string folder;
  uint64_t left_bytes = 0;
  SpareFiles spares{};  // What they count for is not among the bytes left.
};

// Removes a blob's file from its grant; its name too, if that is still this file's, and folders
// that are empty then. With `only`, if it is still that blob's. False: it is being read or written,
// and stays.
[[nodiscard]] bool RetireDataFile(const PosixPaths& paths, const std::string& data_file,
                                  const BlobLabel* only = nullptr);

// The same, but the file stays, to be written over.
[[nodiscard]] bool SpareDataFile(const PosixPaths& paths, const std::string& data_file);

// Where a label's file is now; empty when it is not there.
std::string FindDataFile(const PosixPaths& paths, const BlobLabel& label);

class PosixGrants {
 public:
  struct Counts {
    uint64_t taken = 0;      // Free numbers, and spare grants.
    uint64_t adopted = 0;    // That others, or we in another life, had left.
    uint64_t reclaimed = 0;  // Emptied.
    uint64_t blobs_reclaimed = 0;
    uint64_t files_spared = 0;       // Of these.
    uint64_t leftovers_removed = 0;  // Files of dead writers that no blob came of.
    uint64_t dead_processes = 0;
  };
  struct Options {
    std::string root;
    uint64_t capacity_bytes = 0;
    uint64_t grant_bytes = 0;
    PosixMember* member = nullptr;  // Joined.
    Counts counts{};                // To go on from.
    bool reuse_files = false;
    std::function<void()> meanwhile;  // Runs now and then while something takes long.
  };

  explicit PosixGrants(Options options);

  // How many grants the cap has room for.
  static uint64_t MostGrants(uint64_t capacity_bytes, uint64_t grant_bytes);

  // One with room for `least_bytes`, which is what others have left, a free one, or one that is
  // emptied for it. kNoSpace: all are being written to by others. kBusy: somebody is at it.
  Result<PosixGrant> Take(uint64_t least_bytes);
  // Nothing of ours is being written to it any more.
  void GiveUp(const PosixGrant& grant, bool full);

  // Keeps one number free, emptying the grant that was used least recently.
  Status MakeRoom();
  // What dead processes have left.
  void CleanUp();
  // That blobs of these grants were read.
  void MarkUsed(const std::set<uint32_t>& numbers);

  // As of the last look.
  uint64_t grants_there() const { return grants_there_; }
  // No number is free, and no grant can be emptied: who is idle should give its own up.
  bool starved() const { return starved_; }
  const Counts& counts() const { return counts_; }

 private:
  enum class State : uint8_t { kEmpty, kOpen, kNone, kFull, kGone, kSpare };
  struct Found {
    uint32_t number = 0;
    State state = State::kEmpty;
    uint64_t sequence = 0;
    std::string owner{};   // kOpen.
    std::string folder{};  // Its path; empty for kEmpty.
  };

  Result<std::vector<Found>> Survey();
  Result<Found> LookAt(uint32_t number) const;
  std::optional<uint32_t> FreeNumber(const std::vector<Found>& grants) const;
  bool IsAbandoned(const Found& found);
  Result<std::optional<PosixGrant>> Adopt(const Found& found, uint64_t least_bytes);
  Result<std::optional<PosixGrant>> TakeNumber(uint32_t number);
  Result<PosixGrant> TakeOnce(uint64_t least_bytes);
  std::string FolderIn(uint32_t number, uint64_t sequence, std::string_view state) const;
  uint64_t Tidy(const std::string& folder, SpareFiles* spares);
  bool Empty(Found* victim);
  bool EmptyFile(const std::string& folder, const std::string& entry, bool reuse);
  bool HasRoom(const std::vector<Found>& grants) const;
  uint64_t RankOf(const Found& found) const;
  bool HoldReclaim();
  void LetReclaim();
  Status MakeRoomHeld();

  const Options options_;
  const PosixPaths paths_;
  const uint64_t most_grants_;
  std::set<std::string> open_;  // Folders of grants that we write to.
  uint64_t highest_sequence_ = 0;
  uint64_t grants_there_ = 0;
  bool starved_ = false;
  Counts counts_;
};

}  // namespace aquifer
