#include "store/s3/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "store/blob_counters.h"
#include "store/s3/s3_answer.h"

namespace aquifer {
namespace {

constexpr size_t kMostListed = 1000;  // In one answer: no server returns more.

// The number behind the last `before` in the text; nothing if there is none.
std::optional<uint64_t> NumberAfter(std::string_view text, char before) {
  const size_t at = text.rfind(before);
  if (at != std::string_view::npos) text.remove_prefix(at + 1);
  uint64_t number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

std::string HeaderOf(const S3Request& request, const std::string& name) {
  const auto found = request.answer_headers.find(name);
  return found == request.answer_headers.end() ? std::string() : found->second;
}

// The object's length, even if the request asked only for a part.
std::optional<uint64_t> ObjectBytes(const S3Request& answered) {
  const std::string range = HeaderOf(answered, "content-range");  // "bytes 0-4095/2101248"
  return range.empty() ? NumberAfter(HeaderOf(answered, "content-length"), ' ')
                       : NumberAfter(range, '/');
}

bool KnowsNoConditions(const S3Request& answered) {
  return answered.http_status == 501 || answered.error.code == "NotImplemented";
}

class ObjectStore final : public BlobStore {
 public:
  ObjectStore(std::string prefix, std::unique_ptr<Bucket> bucket)
      : prefix_(std::move(prefix)), bucket_(std::move(bucket)) {}

  void Submit(BlobRequest* request) override {
    Status named = CheckBlobName(request->name);
    if (!named.ok()) return Complete(request, std::move(named));
    auto made = std::make_unique<Operation>();
    Operation* const operation = made.get();
    operation->blob = request;
    operation->step = FirstStep(*request);
    Prepare(operation);
    {
      const MutexLock lock(&mutex_);
      live_.emplace(request, std::move(made));
    }
    bucket_->Submit(&operation->s3);
  }

  void Cancel(BlobRequest* request) override {
    // The lock keeps this operation from ending, and its place from being used by another one.
    const MutexLock lock(&mutex_);
    const auto found = live_.find(request);
    if (found == live_.end()) return;
    found->second->cancelled = true;
    bucket_->Cancel(&found->second->s3);
  }

  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override {
    auto listing = std::make_unique<Listing>();
    listing->prefix = prefix_ + std::string(prefix);
    listing->after = after.empty() ? "" : prefix_ + std::string(after);
    listing->most = std::clamp<size_t>(max, 1, kMostListed);
    listing->on_done = std::move(on_done);
    SendListing(listing.release());
  }

  BlobUsage Usage() const override {
    return {.capacity_bytes = 0, .used_bytes = 0, .queued = bucket_->queued()};
  }

  int64_t ClockAheadSeconds() const override { return bucket_->clock_ahead_seconds(); }

  std::string Describe() const override {
    std::string text = bucket_->Describe();
    if (conditions_unknown_.load()) {
      text += "; the server knows no conditional writes, so two nodes may write a block twice";
    }
    return text;
  }

  std::vector<std::pair<std::string, uint64_t>> Counters() const override {
    const BucketCounters wire = bucket_->counters();
    std::vector<std::pair<std::string, uint64_t>> counters = counters_.ByName();
    counters.insert(counters.end(), {{"requests", wire.requests},
                                     {"retries", wire.retries},
                                     {"slow_downs", wire.slow_downs},
                                     {"failovers", wire.failovers},
                                     {"clock_corrections", wire.clock_corrections},
                                     {"connections", wire.connections},
                                     {"sent_bytes", wire.sent_bytes},
                                     {"received_bytes", wire.received_bytes}});
    return counters;
  }

 private:
  // The next request to the server. Most operations need one step. S3 does not say whether there
  // was an object to delete, so the store looks first. On a server without conditions it also looks
  // before it writes.
  enum class Step : uint8_t {
    kGet,
    kRange,
    kPut,
    kPutIfAbsent,
    kHeadThenPut,
    kHeadThenDelete,
    kDeleteIfSame,
    kDelete
  };

  static constexpr int kMostOthers = 4;  // After that, the object is deleted whatever it is.

  struct Operation {
    BlobRequest* blob = nullptr;
    Step step = Step::kGet;
    S3Request s3{};
    std::byte first{};       // For kRange of a look without a head.
    std::string etag{};      // For kDeleteIfSame.
    int others = 0;          // How often another object was found in its place.
    bool cancelled = false;  // Guarded by the lock.
  };

  struct Listing {
    std::string prefix;
    std::string after;
    size_t most = 0;
    S3Request s3{};
    std::function<void(Result<Names>)> on_done;
  };

  Step FirstStep(const BlobRequest& request) const {
    switch (request.kind) {
      case BlobKind::kRead:
        return Step::kGet;
      case BlobKind::kLook:
        return Step::kRange;
      case BlobKind::kRemove:
        return Step::kHeadThenDelete;
      case BlobKind::kWrite:
        break;
    }
    if (!request.if_absent) return Step::kPut;
    return conditions_unknown_.load() ? Step::kHeadThenPut : Step::kPutIfAbsent;
  }

  void Prepare(Operation* operation) {
    const BlobRequest& blob = *operation->blob;
    S3Request& s3 = operation->s3;
    s3 = {};
    s3.key = prefix_ + blob.name;
    s3.deadline_nanos = blob.deadline_nanos;
    s3.background = blob.kind == BlobKind::kWrite || blob.kind == BlobKind::kRemove;
    s3.on_done = [this, operation](S3Request&) { OnAnswer(operation); };
    switch (operation->step) {
      case Step::kGet:
        s3.method = "GET";
        s3.receive = {blob.head, blob.body};
        break;
      case Step::kRange:
        // Never HEAD: its answer cannot say that the bucket itself is missing.
        s3.method = "GET";
        s3.receive = {blob.head.empty() ? std::span(&operation->first, 1) : blob.head};
        s3.headers = {{"range", fmt::format("bytes=0-{}", s3.receive[0].size() - 1)}};
        break;
      case Step::kHeadThenPut:
      case Step::kHeadThenDelete:
        s3.method = "HEAD";
        break;
      case Step::kDeleteIfSame:
        s3.headers = {{"if-match", operation->etag}};
        [[fallthrough]];
      case Step::kDelete:
        s3.method = "DELETE";
        break;
      case Step::kPutIfAbsent:
        s3.headers = {{"if-none-match", "*"}};
        [[fallthrough]];
      case Step::kPut:
        s3.method = "PUT";
        s3.send = {blob.head, blob.body.first(blob.body_bytes)};
        break;
    }
  }

  void OnAnswer(Operation* operation) {
    switch (operation->step) {
      case Step::kGet:
        return OnRead(operation);
      case Step::kRange:
        return OnLooked(operation);
      case Step::kPutIfAbsent:
        return OnPutIfAbsent(operation);
      case Step::kHeadThenPut:
        return OnHeadThenPut(operation);
      case Step::kHeadThenDelete:
        return OnHeadThenDelete(operation);
      case Step::kDeleteIfSame:
        return OnDeleteIfSame(operation);
      case Step::kPut:
      case Step::kDelete:
        return Done(operation, std::move(operation->s3.status));
    }
  }

  void OnRead(Operation* operation) {
    BlobRequest* const blob = operation->blob;
    const S3Request& s3 = operation->s3;
    if (!s3.status.ok()) return Done(operation, s3.status);
    blob->blob_bytes = s3.received_bytes;
    Done(operation, s3.received_bytes < blob->head.size()
                        ? Status(Code::kCorrupt, "the object is shorter than its header")
                        : Status());
  }

  void OnLooked(Operation* operation) {
    BlobRequest* const blob = operation->blob;
    const S3Request& s3 = operation->s3;
    // A server without ranges sends the whole object, and is stopped after the head.
    if (s3.http_status / 100 != 2 || (!s3.status.ok() && s3.status.code() != Code::kCorrupt)) {
      return Done(operation, s3.status);
    }
    const std::optional<uint64_t> bytes = ObjectBytes(s3);
    if (!bytes.has_value()) {
      return Done(
          operation,
          Status(Code::kUnavailable,
                 "the server does not say how long its objects are; next step: see whether a "
                 "proxy before it takes Content-Length out of its answers"));
    }
    blob->blob_bytes = *bytes;
    blob->version = HeaderOf(s3, "etag");
    Done(operation, s3.received_bytes < blob->head.size()
                        ? Status(Code::kCorrupt, "the object is shorter than its header")
                        : Status());
  }

  void OnPutIfAbsent(Operation* operation) {
    const S3Request& s3 = operation->s3;
    if (s3.http_status == 412) return DoneExisted(operation);
    if (!KnowsNoConditions(s3)) return Done(operation, s3.status);
    conditions_unknown_.store(true);
    Continue(operation, Step::kHeadThenPut);
  }

  void OnHeadThenPut(Operation* operation) {
    const S3Request& s3 = operation->s3;
    if (s3.status.ok()) return DoneExisted(operation);
    if (s3.status.code() != Code::kNotFound) return Done(operation, s3.status);
    Continue(operation, Step::kPut);
  }

  void OnHeadThenDelete(Operation* operation) {
    const S3Request& s3 = operation->s3;
    if (!s3.status.ok()) return Done(operation, s3.status);
    operation->etag = HeaderOf(s3, "etag");
    const std::string& only = operation->blob->version;
    if (!only.empty() && only != operation->etag) {
      return Done(operation, Status(Code::kNotFound));
    }
    Continue(operation, operation->etag.empty() ? Step::kDelete : Step::kDeleteIfSame);
  }

  // If two callers delete at once, one of them deletes it. An object written meanwhile is deleted
  // too, unless the caller meant a certain one.
  void OnDeleteIfSame(Operation* operation) {
    const S3Request& s3 = operation->s3;
    if (s3.http_status == 412) {
      if (++operation->others < kMostOthers) return Continue(operation, Step::kHeadThenDelete);
      if (!operation->blob->version.empty()) return Done(operation, Status(Code::kBusy));
      return Continue(operation, Step::kDelete);
    }
    if (KnowsNoConditions(s3)) return Continue(operation, Step::kDelete);
    Done(operation, s3.status);
  }

  void Continue(Operation* operation, Step step) {
    BlobRequest* const blob = operation->blob;
    operation->step = step;
    Prepare(operation);
    bucket_->Submit(&operation->s3);
    // The operation may be over by now. If not, a Cancel() between two steps has cancelled no
    // request yet.
    const MutexLock lock(&mutex_);
    const auto found = live_.find(blob);
    if (found != live_.end() && found->second->cancelled) bucket_->Cancel(&found->second->s3);
  }

  void DoneExisted(Operation* operation) {
    operation->blob->existed = true;
    Done(operation, Status());
  }

  void Done(Operation* operation, Status status) {
    BlobRequest* const blob = operation->blob;
    counters_.Count(*blob, status);
    {
      const MutexLock lock(&mutex_);
      live_.erase(blob);
    }
    Complete(blob, std::move(status));
  }

  void SendListing(Listing* listing) {
    S3Request& s3 = listing->s3;
    s3 = {};
    s3.method = "GET";
    s3.background = true;
    s3.query = {{"list-type", "2"},
                {"prefix", listing->prefix},
                {"max-keys", fmt::format("{}", listing->most)}};
    if (!listing->after.empty()) s3.query.emplace_back("start-after", listing->after);
    s3.on_done = [this, listing](S3Request&) { OnListed(listing); };
    bucket_->Submit(&s3);
  }

  void OnListed(Listing* listing) {
    if (!listing->s3.status.ok()) return DoneListing(listing, listing->s3.status);
    const Result<S3Listing> parsed = ParseS3Listing(listing->s3.text);
    if (!parsed.ok()) return DoneListing(listing, parsed.status());
    Names names;
    for (const S3Listing::Object& object : parsed->objects) {
      if (!object.key.starts_with(listing->prefix)) continue;
      std::string name = object.key.substr(prefix_.size());
      // Objects of other programs are skipped.
      if (CheckBlobName(name).ok()) names.push_back({std::move(name), object.bytes});
    }
    // An empty answer would say that there are no more.
    if (names.empty() && parsed->truncated && !parsed->objects.empty()) {
      listing->after = parsed->objects.back().key;
      return SendListing(listing);
    }
    DoneListing(listing, std::move(names));
  }

  static void DoneListing(Listing* listing, Result<Names> names) {
    const std::unique_ptr<Listing> owned(listing);
    owned->on_done(std::move(names));
  }

  const std::string prefix_;
  std::atomic<bool> conditions_unknown_{false};
  BlobCounters counters_;

  Mutex mutex_;
  std::unordered_map<BlobRequest*, std::unique_ptr<Operation>> live_ AQ_GUARDED_BY(mutex_);

  const std::unique_ptr<Bucket> bucket_;  // Destroyed first: it ends the requests under way.
};

}  // namespace

Result<std::unique_ptr<BlobStore>> NewObjectStore(const BucketOptions& options, Clock* clock,
                                                  Random* random) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Bucket> bucket, NewBucket(options, clock, random));
  return std::unique_ptr<BlobStore>(
      std::make_unique<ObjectStore>(options.prefix, std::move(bucket)));
}

}  // namespace aquifer
