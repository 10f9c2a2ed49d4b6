#include "tenant/keys/key_bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/mutex.h"
#include "store/s3/s3_answer.h"

namespace aquifer {
namespace {

constexpr std::string_view kFolder = "_keys/";
constexpr size_t kMaxValueBytes = 64 << 10;
constexpr size_t kConnections = 4;
constexpr int64_t kPatienceNanos = 15'000'000'000;

using Bytes = std::vector<std::byte>;

Bytes BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class KeyBucket final : public KeyStore {
 public:
  KeyBucket(const BucketOptions& options, std::unique_ptr<Bucket> bucket, Random* random)
      : folder_(options.prefix + std::string(kFolder)),
        bucket_(std::move(bucket)),
        random_(random) {}

  Result<bool> Create(const std::string& name, std::span<const std::byte> value) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_RETURN_IF_ERROR(CheckServer());
    return Put(folder_ + name, value, {"if-none-match", "*"});
  }

  Result<Bytes> Read(const std::string& name) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_ASSIGN_OR_RETURN(Value value, Get(folder_ + name));
    return std::move(value.bytes);
  }

  Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                       std::span<const std::byte> value) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_RETURN_IF_ERROR(CheckServer());
    const Result<Value> found = Get(folder_ + name);
    if (found.status().code() == Code::kNotFound) return false;
    if (!found.ok()) return found.status();
    if (!std::ranges::equal(found->bytes, expected)) return false;
    return Put(folder_ + name, value, {"if-match", found->etag});
  }

  Status Delete(const std::string& name) override {
    AQ_RETURN_IF_ERROR(CheckKeyStoreName(name));
    AQ_RETURN_IF_ERROR(CheckServer());
    return Remove(folder_ + name);
  }

  Result<std::vector<std::string>> List() override {
    std::vector<std::string> names;
    std::string after;
    while (true) {
      S3Request list{.method = "GET", .query = {{"list-type", "2"}, {"prefix", folder_}}};
      if (!after.empty()) list.query.emplace_back("start-after", after);
      AQ_RETURN_IF_ERROR(Do(&list));
      AQ_ASSIGN_OR_RETURN(const S3Listing listing, ParseS3Listing(list.text));
      for (const S3Listing::Object& object : listing.objects) {
        if (!object.key.starts_with(folder_)) continue;
        std::string name = object.key.substr(folder_.size());
        if (CheckKeyStoreName(name).ok()) names.push_back(std::move(name));
      }
      if (!listing.truncated || listing.objects.empty()) break;
      after = listing.objects.back().key;
    }
    std::ranges::sort(names);
    return names;
  }

 private:
  struct Value {
    Bytes bytes;
    std::string etag;
  };

  Status Do(S3Request* request) {
    std::promise<void> done;
    request->on_done = [&](S3Request&) { done.set_value(); };
    bucket_->Submit(request);
    done.get_future().wait();
    // A caller that gets kNotFound forgets the key. Only a clear answer may say so.
    const bool unclear =
        request->status.code() == Code::kNotFound && request->error.code != "NoSuchKey";
    if (unclear || request->status.code() == Code::kLate || request->status.code() == Code::kBusy) {
      return {Code::kUnavailable, request->status.message().empty()
                                      ? fmt::format("no clear answer from {}", bucket_->Describe())
                                      : request->status.message()};
    }
    return request->status;
  }

  Result<Value> Get(const std::string& key) {
    S3Request get{.method = "GET", .key = key};
    AQ_RETURN_IF_ERROR(Do(&get));
    if (get.text.size() > kMaxValueBytes)
      return Status(Code::kCorrupt, "the value is too long to be a key");
    return Value{.bytes = BytesOf(get.text), .etag = get.answer_headers["etag"]};
  }

  // Returns false if the condition does not hold.
  Result<bool> Put(const std::string& key, std::span<const std::byte> value,
                   std::pair<std::string, std::string> condition) {
    S3Request put{.method = "PUT", .key = key, .headers = {std::move(condition)}, .send = {value}};
    const Status status = Do(&put);
    if (put.http_status == 412 || put.http_status == 404) {
      // The first attempt may have succeeded and its answer been lost: then the value is ours.
      const Result<Value> found = Get(key);
      if (found.status().code() == Code::kNotFound) return false;
      if (!found.ok()) return found.status();
      return std::ranges::equal(found->bytes, value);
    }
    AQ_RETURN_IF_ERROR(status);
    return true;
  }

  Status Remove(const std::string& key) {
    S3Request remove{.method = "DELETE", .key = key};
    const Status status = Do(&remove);
    return status.code() == Code::kNotFound ? Status() : status;
  }

  // Checks that the server lets exactly one writer make a key, and that a key can be destroyed.
  // Called before the first change.
  Status CheckServer() {
    // Held during the request: the other threads wait for the same answer.
    const MutexLock lock(&mutex_);
    if (checked_) return {};
    AQ_RETURN_IF_ERROR(CheckVersions());
    AQ_RETURN_IF_ERROR(CheckConditions());
    checked_ = true;
    return {};
  }

  Status CheckVersions() {
    S3Request ask{.method = "GET", .query = {{"versioning", ""}}};
    const Status status = Do(&ask);
    // The server does not know versions.
    if (ask.http_status == 501 || ask.http_status == 405) return {};
    if (ask.http_status == 403) {
      return {Code::kUnavailable,
              fmt::format("cannot find out whether {} keeps old versions of keys; next step: "
                          "allow s3:GetBucketVersioning",
                          bucket_->Describe())};
    }
    AQ_RETURN_IF_ERROR(status);
    if (!SaysVersioned(ask.text)) return {};
    return {Code::kUnavailable,
            fmt::format("{} keeps old versions of objects, so that a key could never be "
                        "destroyed; next step: a bucket without versioning, or a directory, as "
                        "key_store",
                        bucket_->Describe())};
  }

  Status CheckConditions() {
    const std::string key = fmt::format("{}probe-{:016x}", folder_, random_->Next64());
    S3Request first{.method = "PUT", .key = key, .headers = {{"if-none-match", "*"}}};
    S3Request second = first;
    Status made = Do(&first);
    if (made.ok()) {
      Status again = Do(&second);
      AQ_RETURN_IF_ERROR(Remove(key));
      if (second.http_status == 412) return {};
      if (!again.ok()) return again;
    } else if (first.http_status != 501) {
      return made;
    }
    return {Code::kUnavailable,
            fmt::format("{} does not know conditional writes, so that two nodes could make a key "
                        "each for one tenant; next step: a directory as key_store",
                        bucket_->Describe())};
  }

  const std::string folder_;
  const std::unique_ptr<Bucket> bucket_;
  Random* const random_;

  Mutex mutex_;
  bool checked_ AQ_GUARDED_BY(mutex_) = false;
};

}  // namespace

Result<std::unique_ptr<KeyStore>> OpenKeyBucket(const BucketOptions& options, Clock* clock,
                                                Random* random) {
  BucketOptions few = options;
  few.max_connections = std::min(options.max_connections, kConnections);
  few.patience_nanos = std::min(options.patience_nanos, kPatienceNanos);
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Bucket> bucket, NewBucket(few, clock, random));
  return std::unique_ptr<KeyStore>(std::make_unique<KeyBucket>(few, std::move(bucket), random));
}

}  // namespace aquifer
