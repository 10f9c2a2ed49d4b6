// HTTP requests, many at once, from one thread: libcurl behind an interface of our own, so that
// nothing else sees a header of it. It knows nothing of S3, tries nothing twice and follows no
// redirect. Connections are kept and used again; proxies of the environment are not.
//
// Everything but Post() is for the loop's own thread, on which every task and on_done runs.
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
  kAddress,      // The name of the host is not known.
  kConnect,      // Nobody answers there.
  kCertificate,  // Theirs, or our ca_file.
  kNoTls,        // It speaks something else.
  kBroken,       // The connection ended or failed in the middle.
  kStalled,      // It moved nothing for too long.
};

// Belongs to the caller, who leaves it alone between Start() and on_done, or Stop().
struct HttpExchange {
  std::string method;
  std::string url;  // Escaped, and sent as it is.
  std::vector<std::pair<std::string, std::string>> headers;
  std::array<std::span<const std::byte>, 2> send;
  // The body of a 2xx answer, if there is room for any; else, and of all others, it is in `text`.
  std::array<std::span<std::byte>, 2> receive;

  int http_status = 0;
  std::map<std::string, std::string> answer_headers{};  // Names in lower case.
  std::string text{};                                   // Its first kMostTextBytes.
  uint64_t received_bytes = 0;                          // Into `receive`.
  bool too_long = false;  // For `receive`: the rest was not waited for.
  bool connected_anew = false;
  HttpFailure failure = HttpFailure::kNone;
  std::string failure_text{};
  std::function<void(HttpExchange&)> on_done;

  static constexpr size_t kMostTextBytes = size_t{4} << 20;
};

class HttpLoop {
 public:
  virtual ~HttpLoop() = default;  // End() came before.

  // Any other thread: runs what was posted before, then ends the thread.
  virtual void End() = 0;

  // Any thread; in the order of the calls.
  virtual void Post(std::function<void()> task) = 0;

  virtual void Start(HttpExchange* exchange) = 0;
  // on_done will not run. What was on the wire is lost, and its connection with it.
  virtual void Stop(HttpExchange* exchange) = 0;

  // Runs the task then, in the clock's time, unless it is cancelled before.
  using Timer = std::pair<int64_t, uint64_t>;
  virtual Timer At(int64_t nanos, std::function<void()> task) = 0;
  virtual void CancelTimer(const Timer& timer) = 0;
};

// kUnavailable in a build without libcurl. The clock outlives it.
Result<std::unique_ptr<HttpLoop>> NewHttpLoop(const HttpLoopOptions& options, Clock* clock);

}  // namespace aquifer
