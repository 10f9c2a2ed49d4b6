#include "store/redis_operation.h"

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

void RedisOperation::Fail(uint64_t /*tag*/, Status status) {
  if (first_error_.ok()) first_error_ = std::move(status);
  Step();
}

// An error waits for the other answers: what is being sent cannot be stopped without losing the
// connection.
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
  };
  constexpr Meaning kMeanings[] = {
      {"OOM", Code::kNoSpace, "the server is at its maxmemory"},
      {"BUSY", Code::kBusy, "the server runs a script"},
      {"TRYAGAIN", Code::kBusy, "the slot is being moved"},
      {"WRONGTYPE", Code::kCorrupt, "a key of ours has a value of another kind"},
      {"LOADING", Code::kUnavailable, "the server is still loading its data"},
      {"CLUSTERDOWN", Code::kUnavailable, "the cluster is down"},
      {"READONLY", Code::kUnavailable, "the server is a replica and takes no writes"},
      {"MASTERDOWN", Code::kUnavailable, "the server is a replica without its master"},
      {"MISCONF", Code::kUnavailable, "the server cannot save to its disk and takes no writes"},
      {"NOREPLICAS", Code::kUnavailable, "the server has too few replicas and takes no writes"},
      {"NOAUTH", Code::kUnavailable, "the server wants a password, and none is configured"},
      {"NOPERM", Code::kUnavailable, "the server's ACL does not allow this user what we need"},
  };
  for (const Meaning& meaning : kMeanings) {
    // Servers before 7.0 wrap what a script ran into.
    const bool in_script = text.starts_with("ERR Error running script") &&
                           text.find(fmt::format("-{} ", meaning.begins)) != std::string_view::npos;
    if (text.starts_with(meaning.begins) || in_script) {
      return Status(meaning.code, fmt::format("{}: {} ({})", from.ToString(), meaning.what, text));
    }
  }
  return Status(Code::kUnavailable, fmt::format("{}: the server says: {}", from.ToString(), text));
}

std::string RedisEval(std::string_view script, const std::vector<std::string>& keys,
                      const std::vector<std::string_view>& arguments) {
  std::string text;
  AppendRespCount(&text, 3 + keys.size() + arguments.size());
  AppendRespArgument(&text, "EVAL");
  AppendRespArgument(&text, script);
  AppendRespArgument(&text, std::to_string(keys.size()));
  for (const std::string& key : keys) AppendRespArgument(&text, key);
  for (const std::string_view argument : arguments) AppendRespArgument(&text, argument);
  return text;
}

}  // namespace aquifer
