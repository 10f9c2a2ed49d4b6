// What is under way in a RedisLoop: a state machine that is told answers and says what to send
// next. It knows no sockets, no time and no servers; redirections, lost connections and deadlines
// are the loop's. Runs on the loop's thread.
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

  // The answer to one of the commands, or why there is none; `reply` is no error.
  void Hear(uint64_t tag, const RedisAddress& from, RespReply reply);
  void Fail(Status status);

  // What is to be sent now.
  std::vector<RedisCommand> TakeCommands() { return std::exchange(outbox_, {}); }
  bool waiting() const { return outstanding_ > 0; }

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // What should be sent after the end, whatever that was; nobody hears the answers.
  virtual std::vector<RedisCommand> Afterwards() { return {}; }
  // The last call: tells the caller.
  virtual void Deliver(const Status& status) = 0;

 protected:
  virtual void HearAnswer(uint64_t tag, const RedisAddress& from, RespReply reply) = 0;
  // Every command has been answered, none of them by an error.
  virtual void GoOn() = 0;
  // Every command has been answered, and this was the first error.
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

// What an error that a server answered with means for a caller.
Status StatusOfRedisError(std::string_view text, const RedisAddress& from);

}  // namespace aquifer
