#include "bench/peers/curl_peer.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <fstream>
#include <utility>

#include "base/clock.h"
#include "bench/peers/bench_memory.h"
#include "cli/run_program.h"
#include "store/s3/sigv4.h"

namespace aquifer {
namespace {

Result<double> RunSeconds(std::vector<std::string> words) {
  const Stopwatch watch;
  const Result<int> ended = RunProgram(std::move(words), /*quiet=*/true);
  if (!ended.ok()) {
    return Status(Code::kNotFound, "there is no curl; next step: apt-get install curl");
  }
  if (!WIFEXITED(*ended) || WEXITSTATUS(*ended) != 0) {
    return Status(Code::kUnavailable, fmt::format("curl failed with status {}", *ended));
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
