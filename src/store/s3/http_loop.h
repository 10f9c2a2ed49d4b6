// HttpLoop sends many HTTP requests at once from one thread. It hides libcurl, so that no other
// file sees a header of libcurl. It knows nothing of S3, tries nothing twice and follows no
// redirect. Connections are kept and used again. Proxies that the environment names are not used.
//
// Any thread may call Post(). All other functions are for the loop's own thread, on which every
// task and on_done runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"

namespace aquifer {

struct HttpLoopOptions {
  std::string ca_file;  // Empty: the system's authorities.
  size_t max_connections = 64;
  int64_t connect_nanos = 3'000'000'000;
  int64_t stall_nanos = 10'000'000'000;  // In whole seconds, at least one.
};

enum class HttpFailure : uint8_t {
  kNone,
  kAddress,      // The host's name is not known.
  kConnect,      // No server answers there.
  kCertificate,  // The server's certificate, or our ca_file, is not good.
  kNoTls,        // The server does not speak TLS.
  kBroken,       // The connection ended or failed in the middle.
  kStalled,      // The connection moved no byte for too long.
};

// The caller owns it, and leaves it untouched from Start() until on_done, or Stop().
struct HttpExchange {
  std::string method;
  std::string url;  // Escaped, and sent as it is.
  std::vector<std::pair<std::string, std::string>> headers;
  std::array<std::span<const std::byte>, 2> send;
  // Memory for the body of a 2xx answer. If it is empty, or for other answers, the body is in
  // `text`.
  std::array<std::span<std::byte>, 2> receive;

  int http_status = 0;
  std::map<std::string, std::string> answer_headers{};  // Names in lower case.
  std::string text{};                                   // The first kMostTextBytes of the answer.
  uint64_t received_bytes = 0;                          // How many bytes `receive` got.
  bool too_long = false;  // The body was longer than `receive`; the rest was not read.
  bool connected_anew = false;
  HttpFailure failure = HttpFailure::kNone;
  std::string failure_text{};
  std::function<void(HttpExchange&)> on_done;

  static constexpr size_t kMostTextBytes = size_t{4} << 20;
};

class HttpLoop {
 public:
  virtual ~HttpLoop() = default;  // Call End() first.

  // Call from another thread: runs all posted tasks, then ends the thread.
  virtual void End() = 0;

  // Any thread may call; tasks run in the order of the calls.
  virtual void Post(std::function<void()> task) = 0;

  virtual void Start(HttpExchange* exchange) = 0;
  // on_done will not run. The request is lost, and its connection with it.
  virtual void Stop(HttpExchange* exchange) = 0;

  // Runs the task at that time of the clock, unless it is cancelled before.
  using Timer = std::pair<int64_t, uint64_t>;
  virtual Timer At(int64_t nanos, std::function<void()> task) = 0;
  virtual void CancelTimer(const Timer& timer) = 0;
};

// Returns kUnavailable in a build without libcurl. The clock outlives the loop.
Result<std::unique_ptr<HttpLoop>> NewHttpLoop(const HttpLoopOptions& options, Clock* clock);

}  // namespace aquifer
