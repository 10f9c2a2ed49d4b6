#include "cli/curl_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "cli/bench_memory.h"
#include "net/sigv4.h"

extern char** environ;  // NOLINT: POSIX gives it this name and no header.

namespace aquifer {
namespace {

Result<double> RunSeconds(std::vector<std::string> words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const Stopwatch watch;
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(Code::kNotFound, "there is no curl; next step: apt-get install curl");
  }
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
    return Status(Code::kUnavailable, fmt::format("curl failed with status {}", ended));
  }
  return watch.Seconds();
}

}  // namespace

std::string CurlPeer::SectionFor(const std::string& key, const Source* source) const {
  const std::string path = fmt::format("/{}/{}", options_.bucket, key);
  const std::string& url = options_.endpoints.front();
  const std::vector<std::pair<std::string, std::string>> headers = {{"host", url.substr(7)}};
  const auto added = SignRequest(
      {.method = source == nullptr ? "GET" : "PUT",
       .path = path,
       .query = {},
       .headers = headers,
       .payload_sha256 = source == nullptr ? kEmptyPayload : source->sha256},
      options_.credentials.given, {.region = options_.region}, SystemClock()->UnixSeconds());
  std::string text = fmt::format("url = \"{}{}\"\noutput = \"/dev/null\"\nfail\n", url, path);
  if (source != nullptr) {
    text += fmt::format("upload-file = \"{}\"\nheader = \"expect:\"\n", source->file);
  }
  for (const auto& [name, value] : added) text += fmt::format("header = \"{}: {}\"\n", name, value);
  return text;
}

Result<double> CurlPeer::Seconds(const std::vector<std::string>& keys, const Source* source,
                                 size_t at_once) const {
  const std::string config = directory_ + "/curl.conf";
  {
    std::ofstream out(config);
    for (const std::string& key : keys) {
      out << (&key == keys.data() ? "" : "next\n") << SectionFor(key, source);
    }
  }
  AQ_ASSIGN_OR_RETURN(const double start, RunSeconds({"curl", "--version"}));
  AQ_ASSIGN_OR_RETURN(const double all,
                      RunSeconds({"curl", "--silent", "--noproxy", "*", "--parallel",
                                  "--parallel-max", std::to_string(at_once), "--config", config}));
  return all - start;
}

Result<double> CurlPeer::DownloadSeconds(const std::vector<std::string>& keys,
                                         size_t at_once) const {
  return Seconds(keys, nullptr, at_once);
}

Result<double> CurlPeer::UploadSeconds(const std::vector<std::string>& keys, const Source& source,
                                       size_t at_once) const {
  return Seconds(keys, &source, at_once);
}

}  // namespace aquifer
