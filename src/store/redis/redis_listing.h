// One List() in Redis. Servers name their keys in no order, so all of them are asked for all names
// (SCAN), which are sorted and kept for the calls that go on from there.
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

// The names that one walk has found, sorted.
struct RedisNames {
  std::vector<std::string> prefixes;
  std::vector<std::string> names;
  int64_t made_nanos = 0;
};

class RedisListing final : public RedisOperation {
 public:
  struct Call {
    std::vector<std::string> prefixes;  // In order; at least one.
    std::string after;
    size_t max = 0;
    std::function<void(Result<BlobStore::Names>)> on_done;
  };

  // `known`: names to go on with; none: the servers are asked. Shared with the loop, which keeps
  // them for the next call.
  RedisListing(std::string key_prefix, Call call, std::shared_ptr<RedisNames> known);

  void Start() override;
  void Deliver(const Status& status) override;

  // The names to go on with, when there are more.
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
  std::vector<std::optional<RedisAddress>> servers_;  // None: the only one.
  std::vector<BlobName> chunk_;                       // Its sizes are being asked for.
  std::string last_;                                  // The last name that was looked at.
  Status trouble_;
};

}  // namespace aquifer
