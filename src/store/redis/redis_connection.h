// One connection to a Redis server, with any number of commands under way. The server answers them
// in the order in which they were sent. Payload is written from the request's memory, and answers
// are read into it.
//
// A connection belongs to one RedisLoop and runs on its thread. It decides nothing: its owner
// interprets errors and decides whether to send a command again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "net/stream/stream.h"
#include "store/redis/redis_slots.h"
#include "store/redis/resp.h"

namespace aquifer {

struct RedisCommand {
  std::string text;  // The command up to its payload.
  // The request's memory, followed by the end of the command.
  std::array<std::span<const std::byte>, 2> payload{};
  std::string end;
  // Where an answer that is a bulk string goes. If not set, it goes into the reply.
  bool aimed = false;
  RespReader::Target into{};
  uint64_t answer_bytes = 0;  // Expected length of the answer, roughly.

  // The operation that the command is for. 0: none, and the answer is ignored.
  uint64_t operation = 0;
  uint64_t tag = 0;  // The operation's own number for the command.
  // The server that must get the command: the one that has the slot, or `server`.
  uint16_t slot = 0;
  std::optional<RedisAddress> server = {};
  bool asking = false;   // The server is taking the slot over, and must be sent ASKING first.
  uint32_t losses = 0;   // How many connections were lost with the command.
  uint32_t detours = 0;  // How often a server sent the command elsewhere, or asked for patience.

  uint64_t payload_bytes() const { return payload[0].size() + payload[1].size(); }
};

struct RedisLogin {
  std::string user;
  std::string password;
};

class RedisConnection {
 public:
  using OnReply = std::function<void(RedisCommand, RespReply)>;

  RedisConnection(const RedisLogin& login, int64_t now_nanos, OnReply on_reply);

  // Call when the server's address is known. Before that, commands wait.
  void Begin(std::unique_ptr<Stream> stream) { stream_ = std::move(stream); }
  bool begun() const { return stream_ != nullptr; }
  int descriptor() const { return stream_->descriptor(); }

  void Enqueue(RedisCommand command, int64_t now_nanos);

  // Sends and receives what it can, and calls on_reply for every answer. On an error the connection
  // is of no use any more.
  Status Pump(int64_t now_nanos);
  // Returns true if Pump() stopped only to give other connections a turn.
  bool HasMore() const { return has_more_; }
  bool WantsRoom() const;

  // Drops the operation's commands, whose memory may go after this. Returns false if one of them
  // was being sent: nothing can follow it on this connection.
  [[nodiscard]] bool Abandon(uint64_t operation);

  // Takes out all unanswered commands, in their order.
  std::vector<RedisCommand> TakeCommands();
  size_t commands() const { return unsent_.size() + sent_.size(); }

  bool ready() const { return state_ == State::kReady; }

  // How far the connection came. The owner uses this to explain why it failed.
  enum class Stage : uint8_t { kNaming, kConnecting, kTls, kUnheard, kHeard };
  Stage stage() const;
  // Since when the server has been silent although an answer is due; INT64_MAX if no answer is due.
  int64_t WaitingSince() const;

 private:
  enum class State : uint8_t { kConnecting, kLogin, kReady };

  Status PumpOut(int64_t now_nanos);
  Status PumpIn(int64_t now_nanos);
  Status HearAnswers();
  Status HearLogin(const RespReply& reply);
  // Gathers the bytes to send next.
  size_t NextParts(std::span<iovec> parts) const;
  void Advance(size_t bytes);
  void AimAtNext();

  const RedisLogin login_;
  const OnReply on_reply_;
  std::unique_ptr<Stream> stream_;
  State state_ = State::kConnecting;
  RespReader reader_;
  std::deque<RedisCommand> unsent_;
  uint64_t first_sent_bytes_ = 0;  // How much of the first of unsent_ was sent.
  std::deque<RedisCommand> sent_;
  // Payload of the commands in sent_, and of their expected answers.
  uint64_t under_way_bytes_ = 0;
  bool aimed_ = false;  // The reader knows where the answer to sent_.front() goes.
  bool has_more_ = false;
  bool no_room_ = false;
  bool heard_ = false;  // The server has sent at least one byte.
  int64_t progress_nanos_;
};

}  // namespace aquifer
