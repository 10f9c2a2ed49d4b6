// Blocks into a Redis of this host and back, against hiredis with values of the same size.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/bench_runner.h"
#include "bench/blob_round.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/hiredis_client.h"
#include "bench/peers/server_process.h"
#include "store/redis/redis_store.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoundBytes = 128 * kMiB;
constexpr size_t kHeadBytes = 4096;
constexpr size_t kUnderWay = 32;  // Blocks, as a tier asks.

class RedisContest final : public Contest {
 public:
  static Result<std::unique_ptr<Contest>> New(uint64_t block_bytes, bool writes) {
    auto contest = std::make_unique<RedisContest>(block_bytes, writes);
    AQ_RETURN_IF_ERROR(contest->Start());
    AQ_RETURN_IF_ERROR(contest->Prove());
    AQ_RETURN_IF_ERROR(contest->ChooseLimit());
    return std::unique_ptr<Contest>(std::move(contest));
  }

  RedisContest(uint64_t block_bytes, bool writes)
      : block_bytes_(block_bytes), blocks_(kRoundBytes / block_bytes), writes_(writes) {}

  Result<double> Limit() override { return Measure(limit_); }

  Result<double> Ours() override {
    if (writes_) AQ_RETURN_IF_ERROR(one_->Ask("FLUSHALL"));
    return RunBlobRound(writes_ ? RoundOf(BlobKind::kWrite, memory_)
                                : RoundOf(BlobKind::kRead, target_));
  }

  std::string Note() const override {
    return fmt::format(
        "loopback; ours with {} threads of {} connections; hiredis with {}, which was best of {}; "
        "ours "
        "are blobs with a head of 4 KiB, {}",
        options_.threads, options_.connections, limit_->Describe(), clients_.size(),
        writes_ ? "that must be absent"
                : "read to where they belong; hiredis's answers stay where "
                  "it put them");
  }

 private:
  Status Start() {
    AQ_ASSIGN_OR_RETURN(memory_, BenchMemory::New(blocks_ * Stride()));
    AQ_ASSIGN_OR_RETURN(target_, BenchMemory::New(blocks_ * Stride()));
    FillFromSeed(memory_.bytes(), 1);
    AQ_ASSIGN_OR_RETURN(const uint16_t port, FreeLoopbackPort());
    AQ_ASSIGN_OR_RETURN(server_, ServerProcess::Start([port](const std::string& directory) {
                          return std::vector<std::string>{
                              "redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1",
                              "--save",       "",       "--appendonly",       "no",     "--dir",
                              directory};
                        }));
    AQ_RETURN_IF_ERROR(server_->Await([&]() -> Status {
      AQ_ASSIGN_OR_RETURN(one_, HiredisClient::Connect({.port = port}));
      return Status();
    }));
    options_.servers = {fmt::format("127.0.0.1:{}", port)};
    // One connection, or as many as ours has, with few or many commands ahead.
    for (const size_t ahead : {2, 4, 8}) {
      for (const bool many : {false, true}) {
        AQ_ASSIGN_OR_RETURN(clients_.emplace_back(),
                            HiredisClient::Connect({.port = port,
                                                    .threads = many ? options_.threads : 1,
                                                    .connections = many ? options_.connections : 1,
                                                    .ahead = ahead}));
      }
    }
    AQ_ASSIGN_OR_RETURN(store_, NewRedisStore(options_));
    for (size_t i = 0; i < blocks_; ++i) {
      keys_.push_back(fmt::format("block{:08}", i));
      values_.push_back(memory_.bytes().subspan(i * Stride(), Stride()));
    }
    return Status();
  }

  // Both have their blocks there, and ours come back as they were.
  Status Prove() {
    AQ_RETURN_IF_ERROR(one_->Set(keys_, values_));
    AQ_RETURN_IF_ERROR(RunBlobRound(RoundOf(BlobKind::kWrite, memory_)).status());
    AQ_RETURN_IF_ERROR(RunBlobRound(RoundOf(BlobKind::kRead, target_)).status());
    if (std::ranges::equal(memory_.bytes(), target_.bytes())) return Status();
    return Status(Code::kCorrupt, "other bytes came back");
  }

  Result<double> Measure(HiredisClient* client) {
    if (writes_) AQ_RETURN_IF_ERROR(one_->Ask("FLUSHALL"));
    const Stopwatch watch;
    AQ_RETURN_IF_ERROR(writes_ ? client->Set(keys_, values_) : client->Get(keys_, Stride()));
    return GigabytesPerSecond(blocks_ * Stride(), watch.Seconds());
  }

  // Once, and not in each round: the best of several that vary is better than any of them.
  Status ChooseLimit() {
    constexpr int kTries = 5;
    std::vector<std::vector<double>> rates(clients_.size());
    for (int i = 0; i < kTries; ++i) {
      for (size_t client = 0; client < clients_.size(); ++client) {
        AQ_ASSIGN_OR_RETURN(rates[client].emplace_back(), Measure(clients_[client].get()));
      }
    }
    const auto best = std::ranges::max_element(rates, {}, &Median);
    limit_ = clients_[static_cast<size_t>(best - rates.begin())].get();
    return Status();
  }

  uint64_t Stride() const { return kHeadBytes + block_bytes_; }

  BlobRound RoundOf(BlobKind kind, const BenchMemory& memory) const {
    BlobRound round{.store = store_.get(), .kind = kind, .if_absent = true, .at_once = kUnderWay};
    for (size_t i = 0; i < blocks_; ++i) {
      round.names.push_back(fmt::format("bench/{}", i));
      round.places.push_back(memory.bytes().subspan(i * Stride(), Stride()));
    }
    return round;
  }

  const uint64_t block_bytes_;
  const size_t blocks_;
  const bool writes_;
  RedisStoreOptions options_;
  BenchMemory memory_;
  BenchMemory target_;
  std::vector<std::string> keys_;
  std::vector<std::span<std::byte>> values_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<HiredisClient> one_;  // For what is asked besides.
  std::vector<std::unique_ptr<HiredisClient>> clients_;
  HiredisClient* limit_ = nullptr;  // One of these.
  std::unique_ptr<BlobStore> store_;
};

Row RedisRow(uint64_t block_bytes, bool writes) {
  return {
      .name = fmt::format("redis.{}/{}", writes ? "write" : "read", SizeText(block_bytes)),
      .unit = "GB/s",
      .limit_is =
          fmt::format("pipelined {} of the same size through hiredis", writes ? "SET" : "GET"),
      .goal = 1.0,
      .prepare = [block_bytes, writes](
                     const BenchEnvironment&) { return RedisContest::New(block_bytes, writes); },
      .rounds = 15,
      .quick_rounds = 5};
}

}  // namespace

void AddRedisRows(std::vector<Row>* rows) {
  for (const uint64_t block_bytes : {2 * kMiB, kMiB / 16}) {
    rows->push_back(RedisRow(block_bytes, /*writes=*/false));
    rows->push_back(RedisRow(block_bytes, /*writes=*/true));
  }
}

}  // namespace aquifer
