// An operation is the work of a RedisLoop for one call: a state machine that gets answers and
// decides which commands to send next. It knows no sockets, no time and no servers. Redirections,
// lost connections and deadlines are the loop's work. Runs on the loop's thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_slots.h"
#include "store/redis/resp.h"

namespace aquifer {

class RedisOperation {
 public:
  virtual ~RedisOperation() = default;

  virtual void Start() = 0;

  // Takes the answer to one of the commands, which is no error, or the reason why there is none.
  void Hear(uint64_t tag, const RedisAddress& from, RespReply reply);
  void Fail(Status status);

  // The commands to send now.
  std::vector<RedisCommand> TakeCommands() { return std::exchange(outbox_, {}); }
  bool waiting() const { return outstanding_ > 0; }

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // Commands to send after the operation's end, whatever its outcome. Their answers are ignored.
  virtual std::vector<RedisCommand> Afterwards() { return {}; }
  // The last call: completes the caller's request.
  virtual void Deliver(const Status& status) = 0;

 protected:
  virtual void HearAnswer(uint64_t tag, const RedisAddress& from, RespReply reply) = 0;
  // Every command has been answered, and none of the answers was an error.
  virtual void GoOn() = 0;
  // Every command has been answered; `status` is the first error.
  virtual void GiveUp(Status status) { FinishWith(std::move(status)); }

  void Send(RedisCommand command);
  void FinishWith(Status status);

 private:
  void Step();

  std::vector<RedisCommand> outbox_;
  uint32_t outstanding_ = 0;
  Status first_error_;
  bool done_ = false;
  Status status_;
};

// Translates a server's error for the caller.
Status StatusOfRedisError(std::string_view text, const RedisAddress& from);

}  // namespace aquifer
