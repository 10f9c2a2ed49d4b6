#include "store/s3/bucket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <list>
#include <unordered_map>

#include "base/crypto/sha256.h"
#include "base/deadline.h"
#include "store/s3/credential_keeper.h"
#include "store/s3/http_loop.h"
#include "store/s3/s3_answer.h"
#include "store/s3/s3_endpoints.h"

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1000 * kMilli;
constexpr int64_t kFirstRestNanos = 50 * kMilli;  // Doubles with each attempt.
constexpr int64_t kLongestRestNanos = 5 * kSecond;
constexpr int64_t kSlowDownNanos = 200 * kMilli;  // Refusals within this time count as one.
// Servers refuse signatures whose time is off by 15 minutes. A smaller difference than this is not
// corrected.
constexpr int64_t kSkewSeconds = 300;

using Queue = std::list<struct Pending*>;

// A request, from when the thread takes it until its on_done.
struct Pending {
  S3Request* request = nullptr;
  HttpExchange exchange{};
  std::string payload_sha256{};  // Computed once, when it is needed.
  int64_t deadline_nanos = 0;
  int64_t signed_unix_seconds = 0;
  size_t endpoint = 0;
  int attempts = 0;
  bool clock_corrected = false;
  bool credentials_refused = false;
  Status failure{};  // The last attempt's failure.

  enum class State : uint8_t { kQueued, kActive, kAnswered, kResting } state = State::kQueued;
  Queue::iterator place{};  // While kQueued.
  HttpLoop::Timer rest{};   // While kResting.
  HttpLoop::Timer deadline{};
};

std::string Sha256Text(const std::array<std::span<const std::byte>, 2>& parts) {
  Sha256 sha;
  for (const auto part : parts) sha.Update(part);
  std::string text;
  for (const std::byte byte : sha.Finish()) {
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

// `http_status`: the status that the server sent before the connection failed; 0: none.
Status ExplainTransport(HttpFailure failure, const std::string& words, const std::string& url,
                        int http_status) {
  const auto say = [&](std::string_view what, std::string_view next) {
    return Status(Code::kUnavailable,
                  fmt::format("{} {} ({}); next step: {}", url, what, words, next));
  };
  switch (failure) {
    case HttpFailure::kAddress:
      return say("has no address", "correct the endpoint, or the names that this host resolves");
    case HttpFailure::kConnect:
      return say("does not answer", "see that the server runs and that this host may reach it");
    case HttpFailure::kCertificate:
      return say("is not to be trusted",
                 "name the authority that signed its certificate as ca_file, and see that the "
                 "certificate is for this host and has not expired");
    case HttpFailure::kNoTls:
      return say("does not speak TLS",
                 "name its port for TLS; where it has none, write http:// (and allow_plain_http = "
                 "true where it is not on this host)");
    case HttpFailure::kStalled:
      return say("has stopped answering", "look at the server and the network to it");
    case HttpFailure::kNone:
    case HttpFailure::kBroken:
      break;
  }
  // A TLS port ends a plain request without an answer, or with 400 before it has read it.
  const bool maybe_tls = (http_status == 0 || http_status == 400) && url.starts_with("http://");
  return say("broke the connection", maybe_tls
                                         ? "if that port is for TLS, write https://; else look "
                                           "into the server's log"
                                         : "look into the server's log");
}

// Returns true if the server asks for fewer requests. An answer to HEAD has no room for a code.
bool AsksToSlowDown(int http_status, const std::string& code) {
  return http_status == 429 || code.starts_with("SlowDown") || (http_status == 503 && code.empty());
}

bool IsPassing(int http_status, const std::string& code) {
  return http_status == 500 || http_status == 502 || http_status == 503 || http_status == 504 ||
         http_status == 408 || code == "RequestTimeout" || code == "ConditionalRequestConflict" ||
         code == "OperationAborted";
}

bool RefusesCredentials(const std::string& code) {
  return code == "ExpiredToken" || code == "InvalidToken" || code == "InvalidAccessKeyId" ||
         code == "TokenRefreshRequired";
}

// When the server answered, by its own clock.
std::optional<int64_t> DateOf(const S3Request& answered) {
  const auto date = answered.answer_headers.find("date");
  if (date == answered.answer_headers.end()) return std::nullopt;
  return ParseHttpDate(date->second);
}

// Returns true if the answer ended among its headers, and so only looks like an empty one.
bool LostItsHeaders(const S3Request& answered) {
  const auto& headers = answered.answer_headers;
  return answered.http_status / 100 == 2 &&
         (answered.method == "GET" || answered.method == "HEAD") &&
         !headers.contains("content-length") && !headers.contains("transfer-encoding");
}

// The keeper has the credentials, and wipes them.
BucketOptions WithoutCredentials(BucketOptions options) {
  WipeCredentials(&options.credentials.given);
  return options;
}

class S3Bucket final : public Bucket {
 public:
  S3Bucket(const BucketOptions& options, std::vector<S3Endpoint> endpoints,
           std::unique_ptr<HttpLoop> loop, Clock* clock, Random* random)
      : options_(WithoutCredentials(options)),
        clock_(clock),
        random_(random),
        loop_(std::move(loop)),
        endpoints_(std::move(endpoints)),
        keeper_(options.credentials, loop_.get(), clock, [this] { Dispatch(); }),
        allowed_(static_cast<double>(options.max_connections)) {}

  ~S3Bucket() override {
    loop_->Post([this] {
      ending_ = true;
      keeper_.Stop();
      while (!pending_.empty()) {
        Finish(pending_.begin()->second.get(), Status(Code::kLate, "the store is being closed"));
      }
      if (wake_armed_) loop_->CancelTimer(wake_);
    });
    loop_->End();
  }

  void Submit(S3Request* request) override {
    if (queued_.fetch_add(1) >= options_.max_queued) {
      queued_.fetch_sub(1);
      request->status = Status(Code::kBusy);
      const auto on_done = std::move(request->on_done);
      on_done(*request);
      return;
    }
    loop_->Post([this, request] { Admit(request); });
  }

  void Cancel(S3Request* request) override {
    loop_->Post([this, request] {
      const auto found = pending_.find(request);
      if (found != pending_.end()) Finish(found->second.get(), Status(Code::kLate));
    });
  }

  uint64_t queued() const override { return queued_.load(); }

  BucketCounters counters() const override {
    return {.requests = requests_.load(),
            .retries = retries_.load(),
            .slow_downs = slow_downs_.load(),
            .failovers = failovers_.load(),
            .clock_corrections = clock_corrections_.load(),
            .connections = connections_.load(),
            .sent_bytes = sent_bytes_.load(),
            .received_bytes = received_bytes_.load()};
  }

  int64_t clock_ahead_seconds() const override { return clock_ahead_seconds_.load(); }

  std::string Describe() const override {
    std::string text =
        fmt::format("s3://{}{}{} at {}", options_.bucket, options_.prefix.empty() ? "" : "/",
                    options_.prefix, fmt::join(options_.endpoints, ", "));
    const int64_t offset = clock_offset_seconds_.load();
    if (offset != 0) {
      text += fmt::format("; this host's clock is {} s {} the server's", std::abs(offset),
                          offset > 0 ? "behind" : "ahead of");
    }
    return text;
  }

 private:
  void Admit(S3Request* request) {
    auto pending = std::make_unique<Pending>();
    Pending* const added = pending.get();
    added->request = request;
    const int64_t now = clock_->NowNanos();
    added->deadline_nanos =
        std::min(request->deadline_nanos, DeadlineAfter(now, options_.patience_nanos));
    pending_.emplace(request, std::move(pending));
    Enqueue(added, /*first=*/false);
    added->deadline = loop_->At(added->deadline_nanos, [this, added] { EndLate(added); });
    if (ending_ || added->deadline_nanos <= now) {
      Finish(added, Status(Code::kLate));
    } else {
      Dispatch();
    }
  }

  Queue& QueueOf(const Pending& pending) {
    return pending.request->background ? background_ : foreground_;
  }

  void Enqueue(Pending* pending, bool first) {
    Queue& queue = QueueOf(*pending);
    pending->state = Pending::State::kQueued;
    pending->place = queue.insert(first ? queue.begin() : queue.end(), pending);
  }

  // Sends every request that may be sent now.
  void Dispatch() {
    while (!ending_ && active_ < static_cast<size_t>(allowed_)) {
      Pending* const next = PickNext();
      if (next == nullptr) return;
      const int64_t now = clock_->NowNanos();
      if (now < slow_until_nanos_) return WakeAt(slow_until_nanos_);
      Status ready = keeper_.Ready();
      if (ready.code() == Code::kBusy) return;
      if (!ready.ok()) {
        Finish(next, std::move(ready));
        continue;
      }
      QueueOf(*next).erase(next->place);
      Send(next, now);
    }
  }

  // Background requests leave a quarter of the connections to the others.
  Pending* PickNext() {
    if (!foreground_.empty()) return foreground_.front();
    const size_t most =
        std::max<size_t>(1, options_.max_connections - options_.max_connections / 4);
    return background_.empty() || active_background_ >= most ? nullptr : background_.front();
  }

  void WakeAt(int64_t nanos) {
    if (wake_armed_) return;
    wake_armed_ = true;
    wake_ = loop_->At(nanos, [this] {
      wake_armed_ = false;
      Dispatch();
    });
  }

  void Send(Pending* pending, int64_t now) {
    pending->state = Pending::State::kActive;
    pending->endpoint = endpoints_.Next(now);
    if (pending->attempts++ > 0) retries_.fetch_add(1);
    requests_.fetch_add(1);
    ++active_;
    if (pending->request->background) ++active_background_;
    PrepareExchange(pending);
    loop_->Start(&pending->exchange);
  }

  std::string PathOf(const S3Request& request) const {
    if (options_.virtual_host) return "/" + request.key;
    return fmt::format("/{}{}{}", options_.bucket, request.key.empty() ? "" : "/", request.key);
  }

  void PrepareExchange(Pending* pending) {
    const S3Request& request = *pending->request;
    const S3Endpoint& endpoint = endpoints_[pending->endpoint];
    S3Endpoint host = endpoint;
    if (options_.virtual_host) host.host = options_.bucket + "." + endpoint.host;
    const std::string path = PathOf(request);
    auto headers = request.headers;
    headers.emplace_back("host", host.host);
    pending->signed_unix_seconds = clock_->UnixSeconds() + clock_offset_seconds_.load();
    const auto added =
        SignRequest({.method = request.method,
                     .path = path,
                     .query = request.query,
                     .headers = headers,
                     .payload_sha256 = PayloadText(pending, endpoint.tls)},
                    keeper_.current(), {.region = options_.region}, pending->signed_unix_seconds);
    headers.insert(headers.end(), added.begin(), added.end());
    const std::string query = EscapeQuery(request.query);
    pending->exchange = {.method = request.method,
                         .url = host.Url() + EscapePath(path) + (query.empty() ? "" : "?") + query,
                         .headers = std::move(headers),
                         .send = request.send,
                         .receive = request.receive,
                         .on_done = [this, pending](HttpExchange&) { OnAnswer(pending); }};
  }

  std::string_view PayloadText(Pending* pending, bool tls) const {
    const auto& parts = pending->request->send;
    if (parts[0].empty() && parts[1].empty()) return kEmptyPayload;
    if (tls) return kUnsignedPayload;
    if (pending->payload_sha256.empty()) pending->payload_sha256 = Sha256Text(parts);
    return pending->payload_sha256;
  }

  void OnAnswer(Pending* pending) {
    Deactivate(pending);
    TakeAnswer(pending);
    const HttpExchange& exchange = pending->exchange;
    if (exchange.failure != HttpFailure::kNone || LostItsHeaders(*pending->request)) {
      OnTransportFailure(pending);
    } else if (exchange.http_status / 100 == 2) {
      OnSuccess(pending);
    } else {
      OnRefusal(pending);
    }
    Dispatch();
  }

  void Deactivate(Pending* pending) {
    pending->state = Pending::State::kAnswered;
    --active_;
    if (pending->request->background) --active_background_;
  }

  void TakeAnswer(Pending* pending) {
    HttpExchange& exchange = pending->exchange;
    S3Request* const request = pending->request;
    if (exchange.connected_anew) connections_.fetch_add(1);
    received_bytes_.fetch_add(exchange.received_bytes + exchange.text.size());
    request->http_status = exchange.http_status;
    request->answer_headers = std::move(exchange.answer_headers);
    request->text = std::move(exchange.text);
    request->received_bytes = exchange.received_bytes;
    if (const std::optional<int64_t> theirs = DateOf(*request)) {
      clock_ahead_seconds_.store(*theirs - clock_->UnixSeconds());
    }
    request->error = exchange.http_status >= 300 ? ParseS3Error(request->text) : S3Error{};
    // Some servers repeat our secrets in their answers. The log must not contain them.
    const std::string& token = keeper_.current().session_token;
    if (!token.empty() && request->error.message.find(token) != std::string::npos) {
      request->error.message.clear();
    }
    const auto region = request->answer_headers.find("x-amz-bucket-region");
    if (request->error.region.empty() && region != request->answer_headers.end()) {
      request->error.region = region->second;
    }
  }

  void OnSuccess(Pending* pending) {
    endpoints_.Worked(pending->endpoint);
    // Back to full speed: one more connection each time that all of them have been used.
    allowed_ = std::min(static_cast<double>(options_.max_connections), allowed_ + 1 / allowed_);
    const auto& send = pending->request->send;
    sent_bytes_.fetch_add(send[0].size() + send[1].size());
    Finish(pending, pending->exchange.too_long
                        ? Status(Code::kCorrupt, "the object is longer than it should be")
                        : Status());
  }

  void OnTransportFailure(Pending* pending) {
    const HttpExchange& exchange = pending->exchange;
    endpoints_.Failed(pending->endpoint, clock_->NowNanos());
    if (endpoints_.size() > 1) failovers_.fetch_add(1);
    Status status = ExplainTransport(exchange.failure, exchange.failure_text,
                                     endpoints_[pending->endpoint].Url(), exchange.http_status);
    const bool hopeless = (exchange.failure == HttpFailure::kCertificate ||
                           exchange.failure == HttpFailure::kNoTls) &&
                          static_cast<size_t>(pending->attempts) >= endpoints_.size();
    if (hopeless) {
      Finish(pending, std::move(status));
    } else {
      TryLater(pending, std::move(status), endpoints_.size() > 1 ? 0 : kFirstRestNanos);
    }
  }

  void OnRefusal(Pending* pending) {
    const S3Request& request = *pending->request;
    Status status = ExplainS3Failure(request.http_status, request.error,
                                     {.endpoint = options_.endpoints[pending->endpoint],
                                      .bucket = options_.bucket,
                                      .region = options_.region,
                                      .method = request.method});
    if (AsksToSlowDown(request.http_status, request.error.code)) {
      SlowDown(request);
      TryLater(pending, Status(Code::kBusy, std::string(status.message())), kFirstRestNanos);
    } else if (IsPassing(request.http_status, request.error.code)) {
      if (request.http_status >= 500) endpoints_.Failed(pending->endpoint, clock_->NowNanos());
      TryLater(pending, std::move(status), kFirstRestNanos);
    } else if (CorrectsClock(pending)) {
      Enqueue(pending, /*first=*/true);
    } else if (RefusesCredentials(request.error.code) && !pending->credentials_refused &&
               keeper_.Refuse()) {
      pending->credentials_refused = true;
      Enqueue(pending, /*first=*/true);
    } else {
      endpoints_.Worked(pending->endpoint);
      Finish(pending, std::move(status));
    }
  }

  // Returns true if the server refused because its clock is far from ours. Its time is used from
  // now on. Some servers do not say why they refuse, and an answer to HEAD has no room for it: the
  // Date header tells.
  bool CorrectsClock(Pending* pending) {
    const S3Request& request = *pending->request;
    if (request.http_status != 403 || pending->clock_corrected) return false;
    const std::optional<int64_t> theirs = DateOf(request);
    if (!theirs.has_value() || std::abs(*theirs - pending->signed_unix_seconds) < kSkewSeconds) {
      return false;
    }
    pending->clock_corrected = true;
    clock_corrections_.fetch_add(1);
    clock_offset_seconds_.store(*theirs - clock_->UnixSeconds());
    return true;
  }

  // For all requests: half as many at once, and none for a moment.
  void SlowDown(const S3Request& request) {
    slow_downs_.fetch_add(1);
    const int64_t now = clock_->NowNanos();
    if (now < slowed_nanos_ + kSlowDownNanos) return;
    slowed_nanos_ = now;
    allowed_ = std::max(1.0, std::floor(allowed_ / 2));
    int64_t pause = kSlowDownNanos;
    if (const auto after = request.answer_headers.find("retry-after");
        after != request.answer_headers.end()) {
      int64_t seconds = 0;
      const std::string& text = after->second;
      std::from_chars(text.data(), text.data() + text.size(), seconds);
      pause = std::clamp<int64_t>(seconds * kSecond, pause, kLongestRestNanos);
    }
    slow_until_nanos_ = now + pause;
  }

  // Tries again after a random time, so that requests that failed together do not come back
  // together.
  void TryLater(Pending* pending, Status status, int64_t first_rest_nanos) {
    const int64_t longest =
        std::min(kLongestRestNanos, first_rest_nanos << std::min(pending->attempts - 1, 10));
    const auto rest = static_cast<int64_t>(random_->Next64() % static_cast<uint64_t>(longest + 1));
    const int64_t again = clock_->NowNanos() + longest / 2 + rest / 2;
    if (pending->attempts >= options_.most_attempts || again >= pending->deadline_nanos) {
      return Finish(pending, std::move(status));
    }
    pending->failure = std::move(status);
    pending->state = Pending::State::kResting;
    pending->rest = loop_->At(again, [this, pending] {
      Enqueue(pending, /*first=*/true);
      Dispatch();
    });
  }

  void EndLate(Pending* pending) {
    std::string words = pending->failure.message();
    Finish(pending, Status(Code::kLate, std::move(words)));
    Dispatch();
  }

  void Finish(Pending* pending, Status status) {
    using State = Pending::State;
    S3Request* const request = pending->request;
    if (pending->state == State::kActive) {
      loop_->Stop(&pending->exchange);
      Deactivate(pending);
    }
    if (pending->state == State::kQueued) QueueOf(*pending).erase(pending->place);
    if (pending->state == State::kResting) loop_->CancelTimer(pending->rest);
    loop_->CancelTimer(pending->deadline);
    pending_.erase(request);
    queued_.fetch_sub(1);
    request->status = std::move(status);
    const auto on_done = std::move(request->on_done);  // on_done may destroy the request.
    on_done(*request);
  }

  const BucketOptions options_;
  Clock* const clock_;
  Random* const random_;
  const std::unique_ptr<HttpLoop> loop_;

  // Only the thread touches the fields from here on.
  S3Endpoints endpoints_;
  CredentialKeeper keeper_;
  std::unordered_map<S3Request*, std::unique_ptr<Pending>> pending_;
  Queue foreground_;
  Queue background_;
  size_t active_ = 0;
  size_t active_background_ = 0;
  // How many connections may be used at once: fewer after the server asked for it.
  double allowed_;
  int64_t slowed_nanos_ = INT64_MIN / 2;
  int64_t slow_until_nanos_ = INT64_MIN;
  bool wake_armed_ = false;
  HttpLoop::Timer wake_{};
  bool ending_ = false;

  std::atomic<uint64_t> queued_{0};
  std::atomic<int64_t> clock_offset_seconds_{0};  // The correction of signatures' times.
  std::atomic<int64_t> clock_ahead_seconds_{0};
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> retries_{0};
  std::atomic<uint64_t> slow_downs_{0};
  std::atomic<uint64_t> failovers_{0};
  std::atomic<uint64_t> clock_corrections_{0};
  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> sent_bytes_{0};
  std::atomic<uint64_t> received_bytes_{0};
};

Status CheckPrefix(const std::string& prefix) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/";
  const bool good =
      prefix.empty() ||
      (prefix.size() <= 256 && prefix.ends_with('/') && !prefix.starts_with('/') &&
       prefix.find_first_not_of(kAllowed) == std::string::npos &&
       prefix.find("..") == std::string::npos && prefix.find("//") == std::string::npos);
  return good ? Status()
              : Status(Code::kInvalid,
                       fmt::format("'{}' cannot be a prefix: it is folders, with '/' at the end "
                                   "and not at the beginning",
                                   prefix));
}

Result<S3Endpoint> CheckEndpoint(const std::string& text, bool allow_plain_http) {
  AQ_ASSIGN_OR_RETURN(S3Endpoint endpoint, ParseS3Endpoint(text));
  if (!endpoint.tls && !endpoint.loopback && !allow_plain_http) {
    return Status(Code::kInvalid,
                  fmt::format("'{}' would send everything unencrypted: write https://, or set "
                              "allow_plain_http where nobody can read along",
                              text));
  }
  return endpoint;
}

Result<std::vector<S3Endpoint>> CheckEndpoints(const BucketOptions& options) {
  if (options.endpoints.empty()) return Status(Code::kInvalid, "an S3 store needs an endpoint");
  std::vector<S3Endpoint> endpoints;
  for (const std::string& text : options.endpoints) {
    AQ_ASSIGN_OR_RETURN(S3Endpoint endpoint, CheckEndpoint(text, options.allow_plain_http));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

}  // namespace

Status CheckBucketName(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789-.";
  const auto plain = [](char c) { return c != '-' && c != '.'; };
  const bool good = name.size() >= 3 && name.size() <= 63 &&
                    name.find_first_not_of(kAllowed) == std::string_view::npos &&
                    plain(name.front()) && plain(name.back()) &&
                    name.find("..") == std::string_view::npos;
  if (good) return {};
  return {Code::kInvalid,
          fmt::format("'{}' is not a bucket; its name has 3 to 63 small letters, digits, '.' and "
                      "'-', with a letter or digit at both ends",
                      name)};
}

Status CheckBucketOptions(const BucketOptions& options) {
  AQ_RETURN_IF_ERROR(CheckEndpoints(options).status());
  AQ_RETURN_IF_ERROR(CheckBucketName(options.bucket));
  AQ_RETURN_IF_ERROR(CheckPrefix(options.prefix));
  AQ_RETURN_IF_ERROR(CheckS3Credentials(options.credentials));
  if (!options.credentials.token_file.empty()) {
    const auto sts = CheckEndpoint(options.credentials.sts_endpoint, options.allow_plain_http);
    AQ_RETURN_IF_ERROR(sts.status());
  }
  if (options.region.empty()) return {Code::kInvalid, "an S3 store needs a region"};
  if (options.max_connections == 0 || options.max_queued == 0 || options.most_attempts < 1) {
    return {Code::kInvalid, "an S3 store needs a connection, a queue and an attempt"};
  }
  return {};
}

Result<std::unique_ptr<Bucket>> NewBucket(const BucketOptions& options, Clock* clock,
                                          Random* random) {
  AQ_RETURN_IF_ERROR(CheckBucketOptions(options));
  AQ_ASSIGN_OR_RETURN(std::vector<S3Endpoint> endpoints, CheckEndpoints(options));
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<HttpLoop> loop,
                      NewHttpLoop({.ca_file = options.ca_file,
                                   .max_connections = options.max_connections,
                                   .connect_nanos = options.connect_nanos,
                                   .stall_nanos = options.stall_nanos},
                                  clock));
  return std::unique_ptr<Bucket>(
      std::make_unique<S3Bucket>(options, std::move(endpoints), std::move(loop), clock, random));
}

}  // namespace aquifer
