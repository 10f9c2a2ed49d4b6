// What lies where in a posix store's directory, how a blob's name becomes a file's, and what each
// counts for against the cap. Pure, but for the few steps at the end that every part of the store
// makes. docs/formats/posix.md is the description of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class PosixPaths {
 public:
  explicit PosixPaths(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string Marker() const { return root_ + "/aquifer-store"; }
  std::string Reclaim() const { return root_ + "/reclaim"; }
  std::string Blobs() const { return root_ + "/blobs"; }
  std::string Grants() const { return root_ + "/grants"; }
  std::string Grant(uint32_t number) const;  // "<root>/grants/00000012"
  std::string Processes() const { return root_ + "/processes"; }
  std::string Process(uint32_t slot) const;  // "<root>/processes/017"
  std::string Blob(std::string_view name) const;

 private:
  const std::string root_;
};

// A blob's path below blobs/: folders as the name has them, the file with an ending that no folder
// has, parts longer than a file's name may be cut into several folders.
std::string EncodeBlobName(std::string_view name);
// What a path below blobs/ is the blob of; empty when of none.
std::string DecodeBlobName(std::string_view path);
bool IsBlobFile(std::string_view entry);

// "00000012": what grants are called. Empty digits, other characters and other lengths are no
// number.
bool ParseNumber(std::string_view digits, size_t length, uint32_t* number);
bool ParseHex(std::string_view digits, uint64_t* value);

// --- What counts ---------------------------------------------------------------------------------

// Every file and every folder counts for a page, a file for its bytes besides, in whole pages.
inline constexpr uint64_t kPosixEntryBytes = 4096;
// Of every cap, for what is not in a grant: the folders at the top, and the processes.
inline constexpr uint32_t kMaxPosixProcesses = 256;
inline constexpr uint64_t kPosixProcessBytes = 6 * kPosixEntryBytes;
inline constexpr uint64_t kPosixFixedBytes = 64 << 10;
inline constexpr uint64_t kPosixOverheadBytes =
    kPosixFixedBytes + kMaxPosixProcesses * kPosixProcessBytes;
// Of every grant: its two folders, and the file that says when it was used.
inline constexpr uint64_t kPosixGrantOverheadBytes = 4 * kPosixEntryBytes;

// The folders that the blob's name has, of which none exists but for blobs.
uint64_t FoldersOf(std::string_view blob_name);
// The blob's file, which begins with a label.
uint64_t BlobFileBytes(uint64_t blob_bytes);
// What a blob takes from its grant: each pays for all its folders, as if it were alone there.
uint64_t BlobCharge(uint64_t file_bytes, uint64_t folders);

std::string PathIn(std::string_view folder, std::string_view entry);

// --- Steps ---------------------------------------------------------------------------------------

// What is in a folder, sorted, without "." and "..".
Result<std::vector<std::string>> ListFolder(const std::string& path);
// An existing one is fine.
Status MakeFolder(const std::string& path);
// Those that lead to the blob's file, below blobs/; with `sync`, for good.
Status MakeBlobFolders(const PosixPaths& paths, std::string_view blob_name, bool sync);
void RemoveEmptyBlobFolders(const PosixPaths& paths, std::string_view blob_name);
// Whether it is on a file system that no other host sees, of a kind that is known to be so.
bool IsOnThisHost(const std::string& path);
// fsync of a folder.
Status SyncFolder(const std::string& path);

// kUnavailable: what is wrong with the directory, and what to do next.
Status Unusable(const std::string& root, std::string_view why, std::string_view next_step);
std::string ErrnoText(int error);

// Also ESTALE: on a network file system, what was removed while it was open.
bool IsGone(int error);

}  // namespace aquifer
