#include "store/redis/redis_operation.h"

#include <fmt/format.h>

#include "base/check.h"

namespace aquifer {

void RedisOperation::Send(RedisCommand command) {
  ++outstanding_;
  outbox_.push_back(std::move(command));
}

void RedisOperation::FinishWith(Status status) {
  done_ = true;
  status_ = std::move(status);
}

void RedisOperation::Hear(uint64_t tag, const RedisAddress& from, RespReply reply) {
  HearAnswer(tag, from, std::move(reply));
  Step();
}

void RedisOperation::Fail(Status status) {
  if (first_error_.ok()) first_error_ = std::move(status);
  Step();
}

// After an error the operation waits for its other answers: stopping a command that is being sent
// would lose the connection.
void RedisOperation::Step() {
  AQ_CHECK(outstanding_ > 0);
  if (--outstanding_ > 0 || done_) return;
  if (first_error_.ok()) {
    GoOn();
  } else {
    GiveUp(std::exchange(first_error_, Status()));
  }
}

Status StatusOfRedisError(std::string_view text, const RedisAddress& from) {
  struct Meaning {
    std::string_view begins;
    Code code;
    std::string_view what;
    std::string_view next_step;
  };
  constexpr Meaning kMeanings[] = {
      {"OOM", Code::kNoSpace, "the server is at its maxmemory",
       "more memory, an eviction policy, or a shorter time to live"},
      {"BUSY", Code::kBusy, "the server runs a script", "see whose it is; SCRIPT KILL ends it"},
      {"TRYAGAIN", Code::kBusy, "the slot is being moved", "wait until it has been"},
      {"WRONGTYPE", Code::kCorrupt, "a key of ours has a value of another kind",
       "choose a prefix that nobody else uses"},
      {"LOADING", Code::kUnavailable, "the server is still loading its data", "wait until it has"},
      {"CLUSTERDOWN", Code::kUnavailable, "the cluster is down", "redis-cli --cluster check"},
      {"READONLY", Code::kUnavailable, "the server is a replica and takes no writes",
       "name its master among the endpoints"},
      {"MASTERDOWN", Code::kUnavailable, "the server is a replica without its master",
       "start the master, or name another server"},
      {"MISCONF", Code::kUnavailable, "the server cannot save to its disk and takes no writes",
       "look at its disk and into its log"},
      {"NOREPLICAS", Code::kUnavailable, "the server has too few replicas and takes no writes",
       "start its replicas, or lower min-replicas-to-write"},
      {"NOAUTH", Code::kUnavailable, "the server wants a password, and none is configured",
       "set password_file, and user where it is not the default one"},
      {"NOPERM", Code::kUnavailable, "the server's ACL does not allow this user what we need",
       "give it the rights that docs/operating/redis.md lists, for keys with our prefix"},
  };
  for (const Meaning& meaning : kMeanings) {
    // Servers before 7.0 wrap an error that a script ran into.
    const bool in_script = text.starts_with("ERR Error running script") &&
                           text.find(fmt::format("-{} ", meaning.begins)) != std::string_view::npos;
    if (text.starts_with(meaning.begins) || in_script) {
      return Status(meaning.code, fmt::format("{}: {} ({}); next step: {}", from.ToString(),
                                              meaning.what, text, meaning.next_step));
    }
  }
  return Status(Code::kUnavailable,
                fmt::format("{}: the server says: {}; next step: look into the server's log",
                            from.ToString(), text));
}

}  // namespace aquifer
