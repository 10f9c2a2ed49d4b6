#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/thread_name.h"
#include "store/s3/http_loop.h"

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLongestWaitMillis = 1000;
// The most that libcurl takes. A GiB costs 0.32 s of processor time, and 0.40 s with 64 KiB.
constexpr long kReceiveBytes = 512L << 10;  // NOLINT: libcurl's type.
constexpr long kSendBytes = 1L << 20;       // NOLINT

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

template <class Bytes>
size_t TotalBytes(const std::array<Bytes, 2>& parts) {
  return parts[0].size() + parts[1].size();
}

// The bytes from `offset` on, of two parts that follow each other; all within one of the parts.
template <class Bytes>
Bytes Rest(const std::array<Bytes, 2>& parts, size_t offset) {
  return offset < parts[0].size() ? parts[0].subspan(offset)
                                  : parts[1].subspan(offset - parts[0].size());
}

// One exchange on the wire.
struct Transfer {
  HttpExchange* exchange = nullptr;
  std::unique_ptr<CURL, EasyDeleter> easy{};
  std::unique_ptr<curl_slist, ListDeleter> headers{};
  size_t sent_bytes = 0;
  std::array<char, CURL_ERROR_SIZE> error{};
};

size_t ReadBody(char* target, size_t /*one*/, size_t room, void* context) {
  auto* const transfer = static_cast<Transfer*>(context);
  const auto& parts = transfer->exchange->send;
  size_t copied = 0;
  while (copied < room && transfer->sent_bytes < TotalBytes(parts)) {
    const auto rest = Rest(parts, transfer->sent_bytes);
    const size_t now = std::min(room - copied, rest.size());
    std::memcpy(target + copied, rest.data(), now);
    copied += now;
    transfer->sent_bytes += now;
  }
  return copied;
}

// A kept connection may turn out to be closed: the body is then sent again on another one.
int SeekBody(void* context, curl_off_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Transfer*>(context)->sent_bytes = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int StatusOf(CURL* easy) {
  long status = 0;  // NOLINT: libcurl's type.
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

size_t WriteText(HttpExchange* exchange, const char* bytes, size_t length) {
  const size_t room = HttpExchange::kMostTextBytes - exchange->text.size();
  exchange->text.append(bytes, std::min(room, length));
  return length;
}

size_t WriteBody(char* bytes, size_t /*one*/, size_t length, void* context) {
  auto* const transfer = static_cast<Transfer*>(context);
  HttpExchange* const exchange = transfer->exchange;
  const size_t room = TotalBytes(exchange->receive);
  if (room == 0 || StatusOf(transfer->easy.get()) / 100 != 2) {
    return WriteText(exchange, bytes, length);
  }
  const size_t wanted = std::min<size_t>(length, room - exchange->received_bytes);
  for (size_t copied = 0; copied < wanted;) {
    const auto rest = Rest(exchange->receive, exchange->received_bytes);
    const size_t now = std::min(wanted - copied, rest.size());
    std::memcpy(rest.data(), bytes + copied, now);
    copied += now;
    exchange->received_bytes += now;
  }
  exchange->too_long = wanted < length;
  return wanted;  // A smaller count than `wanted` ends the transfer.
}

size_t WriteHeader(char* bytes, size_t /*one*/, size_t length, void* context) {
  auto& headers = static_cast<Transfer*>(context)->exchange->answer_headers;
  const std::string_view line(bytes, length);
  const size_t colon = line.find(':');
  if (line.starts_with("HTTP/")) headers.clear();  // Another answer follows "100 Continue".
  if (colon == std::string_view::npos || headers.size() >= 128) return length;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  while (!value.empty() && static_cast<unsigned char>(value.back()) <= ' ') value.remove_suffix(1);
  headers[std::move(name)] = std::string(value);
  return length;
}

// Returns true if the transfer ever had a connection, with its TLS handshake if it uses TLS.
bool WasConnected(CURL* easy) {
  curl_off_t micros = 0;
  curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &micros);
  return micros > 0;
}

// Returns true if the message is that of a server without TLS. libcurl has one code for all
// failures of a handshake, with OpenSSL's message.
bool SpeaksNoTls(std::string_view words) {
  return words.find("wrong version number") != std::string_view::npos ||
         words.find("packet length too long") != std::string_view::npos;
}

HttpFailure FailureOf(CURL* easy, CURLcode code, std::string_view words) {
  switch (code) {
    case CURLE_OK:
      return HttpFailure::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
      return HttpFailure::kAddress;
    case CURLE_COULDNT_CONNECT:
      return HttpFailure::kConnect;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      return HttpFailure::kCertificate;
    case CURLE_SSL_CONNECT_ERROR:
      return SpeaksNoTls(words) ? HttpFailure::kNoTls : HttpFailure::kBroken;
    case CURLE_OPERATION_TIMEDOUT:
      return WasConnected(easy) ? HttpFailure::kStalled : HttpFailure::kConnect;
    default:
      return HttpFailure::kBroken;
  }
}

class CurlLoop final : public HttpLoop {
 public:
  CurlLoop(const HttpLoopOptions& options, Clock* clock)
      : options_(options), clock_(clock), multi_(curl_multi_init()) {
    AQ_CHECK(multi_ != nullptr);
    const auto connections = static_cast<long>(options.max_connections);  // NOLINT: their type.
    curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, connections);
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, connections);
    curl_multi_setopt(multi_, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    thread_ = std::thread([this] { Run(); });
  }

  ~CurlLoop() override {
    AQ_CHECK(!thread_.joinable() && transfers_.empty());
    spare_.clear();
    curl_multi_cleanup(multi_);
  }

  void End() override {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
    }
    curl_multi_wakeup(multi_);
    thread_.join();
  }

  void Post(std::function<void()> task) override {
    bool first = false;
    {
      const MutexLock lock(&mutex_);
      first = posted_.empty();
      posted_.push_back(std::move(task));
    }
    if (first) curl_multi_wakeup(multi_);
  }

  void Start(HttpExchange* exchange) override {
    auto transfer = std::make_unique<Transfer>();
    transfer->exchange = exchange;
    transfer->easy = TakeEasy();
    SetUp(transfer.get());
    AQ_CHECK(curl_multi_add_handle(multi_, transfer->easy.get()) == CURLM_OK);
    transfers_.emplace(exchange, std::move(transfer));
  }

  void Stop(HttpExchange* exchange) override { Remove(exchange, /*use_again=*/false); }

  Timer At(int64_t nanos, std::function<void()> task) override {
    const Timer timer(nanos, next_timer_++);
    timers_.emplace(timer, std::move(task));
    return timer;
  }
  void CancelTimer(const Timer& timer) override { timers_.erase(timer); }

 private:
  using EasyHandle = std::unique_ptr<CURL, EasyDeleter>;

  void Run() {
    NameThisThread("aq-http");
    while (RunPosted()) {
      RunTimers();
      int running = 0;
      curl_multi_perform(multi_, &running);
      FinishTransfers();
      curl_multi_poll(multi_, nullptr, 0, WaitMillis(), nullptr);
    }
  }

  // Runs the posted tasks. Returns false if the loop is over and all of them have run.
  bool RunPosted() {
    while (true) {
      std::vector<std::function<void()>> tasks;
      bool ending = false;
      {
        const MutexLock lock(&mutex_);
        tasks.swap(posted_);
        ending = ending_;
      }
      for (auto& task : tasks) task();
      if (tasks.empty()) return !ending;
    }
  }

  void RunTimers() {
    const int64_t now = clock_->NowNanos();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      const auto node = timers_.extract(timers_.begin());
      node.mapped()();
    }
  }

  int WaitMillis() {
    int64_t wait = kLongestWaitMillis;
    if (!timers_.empty()) {
      const int64_t left = timers_.begin()->first.first - clock_->NowNanos();
      wait = std::clamp<int64_t>((left + kMilli - 1) / kMilli, 0, wait);
    }
    return static_cast<int>(wait);
  }

  void FinishTransfers() {
    int left = 0;
    while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      void* context = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &context);
      auto* const transfer = static_cast<Transfer*>(context);
      HttpExchange* const exchange = transfer->exchange;
      const CURLcode code = message->data.result;  // The message goes with the handle.
      Conclude(transfer, code);
      Remove(exchange, /*use_again=*/code == CURLE_OK);
      const auto on_done = std::move(exchange->on_done);  // on_done may destroy the exchange.
      on_done(*exchange);
    }
  }

  static void Conclude(Transfer* transfer, CURLcode code) {
    HttpExchange* const exchange = transfer->exchange;
    exchange->http_status = StatusOf(transfer->easy.get());
    long connects = 0;  // NOLINT: libcurl's type.
    curl_easy_getinfo(transfer->easy.get(), CURLINFO_NUM_CONNECTS, &connects);
    exchange->connected_anew = connects > 0;
    if (exchange->too_long) return;
    exchange->failure = FailureOf(transfer->easy.get(), code, transfer->error.data());
    // libcurl reports a send error also if the server answered before it had read our whole body.
    if (code == CURLE_OK) return;
    exchange->failure_text =
        transfer->error[0] != '\0' ? transfer->error.data() : curl_easy_strerror(code);
  }

  // Reuses only handles whose transfer succeeded. A handle that never had a connection (a name
  // without an address) keeps state that libcurl then refuses to change.
  void Remove(HttpExchange* exchange, bool use_again) {
    const auto found = transfers_.find(exchange);
    AQ_CHECK(found != transfers_.end());
    curl_multi_remove_handle(multi_, found->second->easy.get());
    if (use_again && spare_.size() < options_.max_connections) {
      spare_.push_back(std::move(found->second->easy));
    }
    transfers_.erase(found);
  }

  EasyHandle TakeEasy() {
    if (spare_.empty()) {
      EasyHandle easy(curl_easy_init());
      AQ_CHECK(easy != nullptr);
      return easy;
    }
    EasyHandle easy = std::move(spare_.back());
    spare_.pop_back();
    curl_easy_reset(easy.get());
    return easy;
  }

  template <class Value>
  static void Option(CURL* easy, CURLoption option, Value value) {
    // This fails only without memory, or with a libcurl that lacks what every Debian's has.
    AQ_CHECK(curl_easy_setopt(easy, option, value) == CURLE_OK);
  }

  void SetUp(Transfer* transfer) const {
    CURL* const easy = transfer->easy.get();
    const HttpExchange& exchange = *transfer->exchange;
    Option(easy, CURLOPT_URL, exchange.url.c_str());
    Option(easy, CURLOPT_PRIVATE, transfer);
    Option(easy, CURLOPT_ERRORBUFFER, transfer->error.data());
    Option(easy, CURLOPT_PATH_AS_IS, 1L);
    Option(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    Option(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);  // Many connections are faster.
    Option(easy, CURLOPT_NOSIGNAL, 1L);
    Option(easy, CURLOPT_QUICK_EXIT, 1L);  // A name server that hangs delays no other request.
    Option(easy, CURLOPT_PROXY, "");
    Option(easy, CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
    if (!options_.ca_file.empty()) Option(easy, CURLOPT_CAINFO, options_.ca_file.c_str());
    Option(easy, CURLOPT_BUFFERSIZE, kReceiveBytes);
    Option(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_nanos / kMilli));
    Option(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    Option(easy, CURLOPT_LOW_SPEED_TIME,
           std::max(1L, static_cast<long>(options_.stall_nanos / (1000 * kMilli))));
    Option(easy, CURLOPT_WRITEFUNCTION, &WriteBody);
    Option(easy, CURLOPT_WRITEDATA, transfer);
    Option(easy, CURLOPT_HEADERFUNCTION, &WriteHeader);
    Option(easy, CURLOPT_HEADERDATA, transfer);
    SetUpMethod(transfer);
    SetUpHeaders(transfer);
  }

  static void SetUpMethod(Transfer* transfer) {
    CURL* const easy = transfer->easy.get();
    const HttpExchange& exchange = *transfer->exchange;
    const auto length = static_cast<curl_off_t>(TotalBytes(exchange.send));
    if (exchange.method == "HEAD") {
      Option(easy, CURLOPT_NOBODY, 1L);
    } else if (exchange.method == "PUT") {
      Option(easy, CURLOPT_UPLOAD, 1L);
      Option(easy, CURLOPT_UPLOAD_BUFFERSIZE, kSendBytes);
      Option(easy, CURLOPT_INFILESIZE_LARGE, length);
    } else if (exchange.method == "POST") {
      Option(easy, CURLOPT_POST, 1L);
      Option(easy, CURLOPT_POSTFIELDSIZE_LARGE, length);
    } else if (exchange.method != "GET") {
      Option(easy, CURLOPT_CUSTOMREQUEST, exchange.method.c_str());
    }
    Option(easy, CURLOPT_READFUNCTION, &ReadBody);
    Option(easy, CURLOPT_READDATA, transfer);
    Option(easy, CURLOPT_SEEKFUNCTION, &SeekBody);
    Option(easy, CURLOPT_SEEKDATA, transfer);
  }

  static void SetUpHeaders(Transfer* transfer) {
    // No "Expect: 100-continue": it costs each write a round trip, and only saves the body of a
    // refused one.
    curl_slist* list = curl_slist_append(nullptr, "Expect:");
    for (const auto& [name, value] : transfer->exchange->headers) {
      list = curl_slist_append(list, fmt::format("{}: {}", name, value).c_str());
    }
    transfer->headers.reset(list);
    Option(transfer->easy.get(), CURLOPT_HTTPHEADER, list);
  }

  const HttpLoopOptions options_;
  Clock* const clock_;
  CURLM* const multi_;

  // Only the thread touches the fields from here on.
  std::unordered_map<HttpExchange*, std::unique_ptr<Transfer>> transfers_;
  std::vector<EasyHandle> spare_;
  std::map<Timer, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ AQ_GUARDED_BY(mutex_);
  bool ending_ AQ_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpLoop>> NewHttpLoop(const HttpLoopOptions& options, Clock* clock) {
  // Once in a process. libcurl counts these calls; this one is never undone.
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return Status(Code::kUnavailable, curl_easy_strerror(ready));
  return std::unique_ptr<HttpLoop>(std::make_unique<CurlLoop>(options, clock));
}

}  // namespace aquifer
