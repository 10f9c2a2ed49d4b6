#include "bench/peers/hiredis_client.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

namespace aquifer {

struct HiredisClient::Link {
  redisContext* context = nullptr;

  ~Link() {
    if (context != nullptr) redisFree(context);
  }
};

HiredisClient::HiredisClient(const Options& options) : options_(options) {}
HiredisClient::~HiredisClient() = default;

Result<std::unique_ptr<HiredisClient>> HiredisClient::Connect(const Options& options) {
  std::unique_ptr<HiredisClient> client(new HiredisClient(options));
  for (uint32_t i = 0; i < options.threads * options.connections; ++i) {
    auto link = std::make_unique<Link>();
    link->context = redisConnect("127.0.0.1", options.port);
    if (link->context == nullptr || link->context->err != 0) {
      return Status(Code::kUnavailable, "hiredis cannot connect");
    }
    client->links_.push_back(std::move(link));
  }
  return client;
}

Status HiredisClient::Run(size_t count, const std::function<void(Link*, size_t)>& send,
                          const std::function<bool(void* reply)>& check) {
  std::atomic<bool> failed = false;
  const auto run = [&](uint32_t thread) {
    // Key by key over the thread's connections; each has some ahead.
    struct Turn {
      Link* link;
      size_t sent;
      size_t heard;
    };
    std::vector<Turn> turns;
    for (uint32_t i = 0; i < options_.connections; ++i) {
      const size_t first = thread * options_.connections + i;
      turns.push_back({links_[first].get(), first, first});
    }
    const size_t stride = links_.size();
    bool more = true;
    while (more && !failed) {
      more = false;
      for (Turn& turn : turns) {
        while (turn.sent < count && (turn.sent - turn.heard) / stride < options_.ahead) {
          send(turn.link, turn.sent);
          turn.sent += stride;
        }
      }
      for (Turn& turn : turns) {
        if (turn.heard >= count) continue;
        void* reply = nullptr;
        if (redisGetReply(turn.link->context, &reply) != REDIS_OK || !check(reply)) failed = true;
        if (reply != nullptr) freeReplyObject(reply);
        turn.heard += stride;
        more = true;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < options_.threads; ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return failed ? Status(Code::kUnavailable, "hiredis had a wrong answer") : Status();
}

Status HiredisClient::Set(std::span<const std::string> keys,
                          std::span<const std::span<std::byte>> values) {
  return Run(
      keys.size(),
      [&](Link* link, size_t i) {
        std::array<const char*, 3> words = {"SET", keys[i].data(),
                                            reinterpret_cast<const char*>(values[i].data())};
        const std::array<size_t, 3> lengths = {3, keys[i].size(), values[i].size()};
        redisAppendCommandArgv(link->context, 3, words.data(), lengths.data());
      },
      [](void* reply) { return static_cast<redisReply*>(reply)->type == REDIS_REPLY_STATUS; });
}

Status HiredisClient::Get(std::span<const std::string> keys, size_t value_bytes) {
  return Run(
      keys.size(),
      [&](Link* link, size_t i) {
        std::array<const char*, 2> words = {"GET", keys[i].data()};
        const std::array<size_t, 2> lengths = {3, keys[i].size()};
        redisAppendCommandArgv(link->context, 2, words.data(), lengths.data());
      },
      [value_bytes](void* reply) {
        const auto* value = static_cast<redisReply*>(reply);
        return value->type == REDIS_REPLY_STRING && static_cast<size_t>(value->len) == value_bytes;
      });
}

Status HiredisClient::Ask(const std::string& command) {
  void* reply = redisCommand(links_.front()->context, command.c_str());
  if (reply == nullptr) return Status(Code::kUnavailable, "hiredis has no answer");
  freeReplyObject(reply);
  return Status();
}

std::string HiredisClient::Describe() const {
  return fmt::format("{} threads of {} connections, {} commands ahead on each", options_.threads,
                     options_.connections, options_.ahead);
}

}  // namespace aquifer
