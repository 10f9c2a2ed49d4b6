#include "store/redis/redis_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "store/redis/redis_loop.h"

namespace aquifer {
namespace {

constexpr size_t kMostPrefix = 128;
constexpr uint32_t kLeastPieceBytes = uint32_t{4} << 10;
constexpr uint32_t kMostPieceBytes = uint32_t{64} << 20;

Status Closing() { return Status(Code::kUnavailable, "the store is being closed"); }

class RedisStore final : public BlobStore {
 public:
  RedisStore(RedisStoreOptions options, const std::vector<RedisAddress>& seeds,
             const std::shared_ptr<const TlsContext>& tls)
      : options_(std::move(options)) {
    for (uint32_t i = 0; i < options_.threads; ++i) {
      loops_.push_back(std::make_unique<RedisLoop>(options_, seeds, tls, &counters_));
    }
  }

  // A caller may submit from inside of on_done to the very end.
  ~RedisStore() override {
    for (const auto& loop : loops_) loop->Stop();
  }

  void Submit(BlobRequest* request) override {
    request->existed = false;
    request->blob_bytes = 0;
    request->status = Status();
    Status taken = TakeIn(request);  // If the request was taken, it may be gone by now.
    if (!taken.ok()) Complete(request, std::move(taken));
  }

  void Cancel(BlobRequest* request) override { LoopOf(request->name).Cancel(request); }

  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override {
    ListAny({std::string(prefix)}, after, max, std::move(on_done));
  }
  void ListAny(std::vector<std::string> prefixes, std::string_view after, size_t max,
               std::function<void(Result<Names>)> on_done) override {
    std::ranges::sort(prefixes);
    const bool taken = loops_.front()->PostListing({.prefixes = std::move(prefixes),
                                                    .after = std::string(after),
                                                    .max = max,
                                                    .on_done = on_done});
    if (!taken) on_done(Closing());
  }
  size_t prefixes_at_once() const override { return 4096; }

  BlobUsage Usage() const override {
    BlobUsage usage;
    for (const auto& loop : loops_) {  // All loops asked the same servers.
      usage.used_bytes = std::max(usage.used_bytes, loop->used_bytes());
      usage.capacity_bytes = std::max(usage.capacity_bytes, loop->capacity_bytes());
    }
    usage.queued = counters_.queued;
    return usage;
  }

  std::string Describe() const override {
    return fmt::format("{}://{}{}", options_.tls ? "rediss" : "redis",
                       options_.user.empty() ? "" : options_.user + "@",
                       fmt::join(options_.servers, ","));
  }

  std::vector<std::pair<std::string, uint64_t>> Counters() const override {
    std::vector<std::pair<std::string, uint64_t>> counters = counters_.blobs.ByName();
    counters.insert(counters.end(), {{"pieces_missing", counters_.pieces_missing},
                                     {"connections_opened", counters_.connections_opened},
                                     {"connections_lost", counters_.connections_lost},
                                     {"commands_sent_again", counters_.commands_sent_again},
                                     {"redirections", counters_.redirections},
                                     {"slot_maps_read", counters_.slot_maps_read}});
    return counters;
  }

 private:
  RedisLoop& LoopOf(const std::string& name) {
    return *loops_[std::hash<std::string>()(name) % loops_.size()];
  }

  Status TakeIn(BlobRequest* request) {
    AQ_RETURN_IF_ERROR(CheckBlobName(request->name));
    if (++counters_.queued > options_.most_queued) {
      --counters_.queued;
      return Status(Code::kBusy);
    }
    if (LoopOf(request->name).PostBlob(request)) return Status();
    --counters_.queued;
    return Closing();
  }

  const RedisStoreOptions options_;
  RedisCounters counters_;
  std::vector<std::unique_ptr<RedisLoop>> loops_;
};

Status Check(const RedisStoreOptions& options) {
  const auto wrong = [](std::string_view what) {
    return Status(Code::kInvalid, std::string(what));
  };
  if (options.servers.empty()) return wrong("no Redis server is named");
  if (options.prefix.size() > kMostPrefix ||
      options.prefix.find_first_of("{}") != std::string::npos) {
    return wrong("a prefix of Redis keys has at most 128 characters and no braces");
  }
  if (options.piece_bytes < kLeastPieceBytes || options.piece_bytes > kMostPieceBytes) {
    return wrong("pieces in Redis have from 4 KiB to 64 MiB");
  }
  if (options.threads == 0 || options.connections == 0 || options.most_queued == 0 ||
      options.timeout_nanos <= 0) {
    return wrong(
        "threads, connections, the queue and the timeout of a Redis store must be above 0");
  }
  if (!options.user.empty() && options.password.empty()) {
    return wrong(fmt::format("Redis user '{}' has no password", options.user));
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return wrong("a certificate and its key go together");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<BlobStore>> NewRedisStore(RedisStoreOptions options) {
  AQ_RETURN_IF_ERROR(Check(options));
  std::vector<RedisAddress> seeds;
  for (const std::string& server : options.servers) {
    AQ_ASSIGN_OR_RETURN(seeds.emplace_back(), ParseRedisAddress(server));
  }
  std::shared_ptr<const TlsContext> tls;
  if (options.tls) {
    AQ_ASSIGN_OR_RETURN(tls, TlsContext::New({.ca_file = options.ca_file,
                                              .certificate_file = options.certificate_file,
                                              .key_file = options.key_file}));
  }
  return std::unique_ptr<BlobStore>(std::make_unique<RedisStore>(std::move(options), seeds, tls));
}

}  // namespace aquifer
