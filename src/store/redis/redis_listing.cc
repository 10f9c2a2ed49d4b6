#include "store/redis/redis_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "store/redis/redis_manifest.h"

namespace aquifer {
namespace {

constexpr std::string_view kScanCount = "1000";
constexpr size_t kMostNames = size_t{16} << 20;
constexpr size_t kMostSizesAtOnce = 1000;

}  // namespace

RedisListing::RedisListing(std::string key_prefix, Call call, std::shared_ptr<RedisNames> known)
    : key_prefix_(std::move(key_prefix)),
      call_(std::move(call)),
      names_(std::move(known)),
      last_(call_.after) {}

void RedisListing::Start() {
  if (names_ != nullptr) return AskSizes();
  stage_ = Stage::kTopology;
  names_ = std::make_shared<RedisNames>();
  names_->prefixes = call_.prefixes;
  RedisCommand command;
  command.text = RespCommand({"CLUSTER", "SLOTS"});
  Send(std::move(command));
}

void RedisListing::GiveUp(Status status) {
  const bool no_cluster = stage_ == Stage::kTopology &&
                          status.message().find("cluster support disabled") != std::string::npos;
  if (!no_cluster) return FinishWith(std::move(status));
  servers_ = {std::nullopt};
  GoOn();
}

void RedisListing::HearAnswer(uint64_t tag, const RedisAddress& from, RespReply reply) {
  switch (stage_) {
    case Stage::kTopology: {
      const auto map = RedisSlotMap::Parse(reply, from);
      if (!map.ok()) {
        trouble_ = map.status();
        return;
      }
      servers_.assign(map->masters().begin(), map->masters().end());
      return;
    }
    case Stage::kScan:
      return HearScan(tag, reply);
    case Stage::kSizes: {
      const auto manifest = DecodeManifest(std::as_bytes(std::span(reply.text)));
      if (manifest.ok()) chunk_[tag].bytes = manifest->blob_bytes;
      // A key whose value is no manifest of ours is still listed.
      if (reply.text.empty()) chunk_[tag].name.clear();
      return;
    }
  }
}

void RedisListing::GoOn() {
  if (!trouble_.ok()) return FinishWith(trouble_);
  switch (stage_) {
    case Stage::kTopology:
      stage_ = Stage::kScan;
      for (size_t server = 0; server < servers_.size(); ++server) Scan(server, "0");
      return;
    case Stage::kScan: {
      std::vector<std::string>& names = names_->names;
      std::sort(names.begin(), names.end());
      // SCAN repeats some names.
      names.erase(std::unique(names.begin(), names.end()), names.end());
      return AskSizes();
    }
    case Stage::kSizes:
      return SizesCame();
  }
}

// The server filters by what all prefixes have in common; this code drops names that match none of
// them.
std::string RedisListing::Pattern() const {
  const std::string& first = call_.prefixes.front();
  const auto differs = std::ranges::mismatch(first, call_.prefixes.back()).in1;
  return ManifestPattern(key_prefix_, std::string(first.begin(), differs));
}

bool RedisListing::IsWanted(std::string_view name) const {
  const auto behind = std::ranges::upper_bound(call_.prefixes, name);
  return behind != call_.prefixes.begin() && name.starts_with(*std::prev(behind));
}

void RedisListing::Scan(size_t server, const std::string& cursor) {
  RedisCommand command;
  command.server = servers_[server];
  command.tag = server;
  command.text = RespCommand({"SCAN", cursor, "MATCH", Pattern(), "COUNT", kScanCount});
  Send(std::move(command));
}

void RedisListing::HearScan(size_t server, const RespReply& reply) {
  if (reply.items.size() != 2) {
    trouble_ = Status(Code::kUnavailable, "the server's answer to SCAN cannot be parsed");
    return;
  }
  for (const RespReply& key : reply.items[1].items) {
    const size_t around = key_prefix_.size() + 2;  // And the braces.
    if (key.text.size() <= around) continue;
    std::string name = key.text.substr(key_prefix_.size() + 1, key.text.size() - around);
    if (IsWanted(name)) names_->names.push_back(std::move(name));
  }
  if (names_->names.size() > kMostNames) {
    trouble_ = Status(Code::kNoSpace, "there are too many blobs to list them all");
  } else if (reply.items[0].text != "0") {
    Scan(server, reply.items[0].text);
  }
}

void RedisListing::AskSizes() {
  stage_ = Stage::kSizes;
  chunk_.clear();
  auto next = std::upper_bound(names_->names.begin(), names_->names.end(), last_);
  const size_t most = std::min(call_.max, kMostSizesAtOnce);
  for (; next != names_->names.end() && chunk_.size() < most; ++next) {
    const std::string key = ManifestKey(key_prefix_, *next);
    RedisCommand command;
    command.slot = RedisSlotOf(key);
    command.tag = chunk_.size();
    command.text = RespCommand({"GETRANGE", key, "0", std::to_string(RedisManifest::kBytes - 1)});
    Send(std::move(command));
    chunk_.push_back({.name = *next, .bytes = 0});
  }
  if (chunk_.empty()) return FinishWith(Status());  // All names were listed.
  last_ = chunk_.back().name;
}

void RedisListing::SizesCame() {
  std::erase_if(chunk_, [](const BlobName& blob) { return blob.name.empty(); });
  // These keys are all gone meanwhile. An empty chunk would mean the end.
  if (chunk_.empty()) return AskSizes();
  FinishWith(Status());
}

void RedisListing::Deliver(const Status& status) {
  if (!status.ok()) return call_.on_done(status);
  call_.on_done(std::move(chunk_));
}

}  // namespace aquifer
