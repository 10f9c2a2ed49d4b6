// One connection to a Redis server, with any number of commands under way: they are sent one after
// the other and answered in that order. Payload is written from where it lies and answers are read
// to where they belong.
//
// Belongs to one RedisLoop and runs on its thread. It decides nothing: what an error means, and
// whether a command is sent again, is up to who owns it.
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
  std::string text;  // Up to the payload.
  // The request's memory, and behind it what ends the command.
  std::array<std::span<const std::byte>, 2> payload{};
  std::string end;
  // Where an answer that is a bulk string goes. Not set: into the reply.
  bool aimed = false;
  RespReader::Target into{};
  uint64_t answer_bytes = 0;  // About how long it will be.

  uint64_t operation = 0;  // Whose it is. 0: nobody's, and the answer is ignored.
  uint64_t tag = 0;        // What it is to that one.
  // Where it must go: the server that has the slot, or this one.
  uint16_t slot = 0;
  std::optional<RedisAddress> server = {};
  bool asking = false;   // The server is about to take the slot over; it must be told.
  uint32_t losses = 0;   // Connections that were lost with it.
  uint32_t detours = 0;  // How often a server sent it elsewhere, or asked for patience.

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

  // Once it is known where the server is. Before that, commands wait.
  void Begin(std::unique_ptr<Stream> stream) { stream_ = std::move(stream); }
  bool begun() const { return stream_ != nullptr; }
  int descriptor() const { return stream_->descriptor(); }

  void Enqueue(RedisCommand command, int64_t now_nanos);

  // Sends and receives what it can, and calls on_reply for every answer. Not ok: the connection is
  // of no use any more.
  Status Pump(int64_t now_nanos);
  // Whether Pump() stopped only to give others a turn.
  bool HasMore() const { return has_more_; }
  bool WantsRoom() const;

  // Forgets the operation's commands, whose memory may go after this. False: one was being sent,
  // and nothing can follow it on this connection.
  [[nodiscard]] bool Abandon(uint64_t operation);

  // All that were not answered, in their order.
  std::vector<RedisCommand> TakeCommands();
  size_t commands() const { return unsent_.size() + sent_.size(); }

  bool ready() const { return state_ == State::kReady; }

  // How far it came, for who has to say why it is of no use.
  enum class Stage : uint8_t { kNaming, kConnecting, kTls, kUnheard, kHeard };
  Stage stage() const;
  // Since when a server that should answer has said nothing; INT64_MAX when nothing is awaited.
  int64_t WaitingSince() const;

 private:
  enum class State : uint8_t { kConnecting, kLogin, kReady };

  Status PumpOut(int64_t now_nanos);
  Status PumpIn(int64_t now_nanos);
  Status HearAnswers();
  Status HearLogin(const RespReply& reply);
  // Gathers what is to be sent next.
  size_t NextParts(std::span<iovec> parts) const;
  void Advance(size_t bytes);
  void AimAtNext();

  const RedisLogin login_;
  const OnReply on_reply_;
  std::unique_ptr<Stream> stream_;
  State state_ = State::kConnecting;
  RespReader reader_;
  std::deque<RedisCommand> unsent_;
  uint64_t first_sent_bytes_ = 0;  // Of the first of unsent_.
  std::deque<RedisCommand> sent_;
  uint64_t under_way_bytes_ = 0;  // Of payload in sent_, and about what it will be answered with.
  bool aimed_ = false;            // The reader knows where the answer to sent_.front() goes.
  bool has_more_ = false;
  bool no_room_ = false;
  bool heard_ = false;  // Anything from the server.
  int64_t progress_nanos_;
};

}  // namespace aquifer
