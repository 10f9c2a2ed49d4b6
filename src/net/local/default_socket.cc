#include "net/local/default_socket.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

namespace aquifer {

std::vector<std::string> DefaultSockets(const SocketPlaces& places, uid_t uid) {
  std::vector<std::string> paths = {places.run_directory + "/node.sock"};
  if (!places.runtime_directory.empty()) {
    paths.push_back(places.runtime_directory + "/aquifer.sock");
  }
  paths.push_back(fmt::format("{}/aquifer-{}/node.sock", places.temporary_directory, uid));
  return paths;
}

bool IsSafePlace(const std::string& socket, uid_t uid) {
  const std::filesystem::path directory = std::filesystem::path(socket).parent_path();
  struct stat info{};
  if (::stat(directory.c_str(), &info) != 0 || (info.st_mode & S_IWOTH) != 0) return false;
  struct stat above{};
  if (::stat(directory.parent_path().c_str(), &above) != 0) return false;
  // Only the directory's owner decides who makes directories in it.
  if ((above.st_mode & S_IWOTH) == 0) return true;
  return ::lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == uid &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace aquifer
