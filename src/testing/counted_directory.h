// The contents of a directory by the rule of docs/formats/posix.md, counted by code that knows
// nothing of the store: a page for every file and folder, and a file's bytes in whole pages, once
// for all its links. Exact only while nobody changes it.
//
// Of a cap, some is set aside for processes, most of which are not there in a test. So a test asks
// for less than the cap: all but the processes must fit into what is not theirs.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace aquifer {

struct CountedDirectory {
  uint64_t bytes = 0;
  uint64_t files = 0;
  uint64_t folders = 0;
  uint64_t links_of_one = 0;  // Files with no second link.
};

inline CountedDirectory CountDirectory(const std::string& path) {
  constexpr uint64_t kPage = 4096;
  CountedDirectory count{.bytes = kPage, .files = 0, .folders = 1, .links_of_one = 0};
  std::set<std::pair<dev_t, ino_t>> seen;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(path, error);
       it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    struct stat stat = {};
    if (error || ::lstat(it->path().c_str(), &stat) != 0) continue;
    if (!seen.emplace(stat.st_dev, stat.st_ino).second) continue;
    count.bytes += kPage;
    if (S_ISDIR(stat.st_mode)) {
      ++count.folders;
      continue;
    }
    ++count.files;
    count.bytes += (static_cast<uint64_t>(stat.st_size) + kPage - 1) / kPage * kPage;
    if (stat.st_nlink == 1) ++count.links_of_one;
  }
  return count;
}

inline uint64_t BytesWithoutProcesses(const std::string& store) {
  return CountDirectory(store).bytes - CountDirectory(store + "/processes").bytes;
}

}  // namespace aquifer
