// Carries out one List() in Redis. Servers return their keys in no order. The listing therefore
// asks each server for all its names (SCAN), sorts them, and keeps them for the calls that continue
// from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/blob_store.h"
#include "store/redis/redis_operation.h"

namespace aquifer {

// The names that one scan has found, sorted.
struct RedisNames {
  std::vector<std::string> prefixes;
  std::vector<std::string> names;
  int64_t made_nanos = 0;
};

class RedisListing final : public RedisOperation {
 public:
  struct Call {
    std::vector<std::string> prefixes;  // Sorted; at least one.
    std::string after;
    size_t max = 0;
    std::function<void(Result<BlobStore::Names>)> on_done;
  };

  // `known`: the names of an earlier scan, to go on with. If null, the servers are asked. Shared
  // with the loop, which keeps the names for the next call.
  RedisListing(std::string key_prefix, Call call, std::shared_ptr<RedisNames> known);

  void Start() override;
  void Deliver(const Status& status) override;

  // The names to go on with, if there are more.
  std::shared_ptr<RedisNames> names() const { return names_; }

 private:
  enum class Stage : uint8_t { kTopology, kScan, kSizes };

  void HearAnswer(uint64_t tag, const RedisAddress& from, RespReply reply) override;
  void GoOn() override;
  void GiveUp(Status status) override;

  std::string Pattern() const;
  bool IsWanted(std::string_view name) const;
  void Scan(size_t server, const std::string& cursor);
  void HearScan(size_t server, const RespReply& reply);
  void AskSizes();
  void SizesCame();

  const std::string key_prefix_;
  const Call call_;
  std::shared_ptr<RedisNames> names_;
  Stage stage_ = Stage::kTopology;
  std::vector<std::optional<RedisAddress>> servers_;  // None: the only server.
  std::vector<BlobName> chunk_;                       // Names whose sizes are being asked for.
  std::string last_;                                  // The last name that was looked at.
  Status trouble_;
};

}  // namespace aquifer
