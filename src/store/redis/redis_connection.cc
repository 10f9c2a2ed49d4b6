#include "store/redis/redis_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kMostParts = 64;  // In one system call.
// How many bytes one connection moves before the others have their turn.
constexpr uint64_t kTurnBytes = uint64_t{4} << 20;
// How many bytes of payload may be sent, or asked for, ahead of answers. A server puts all its
// answers into memory of its own before it sends them: with 64 MiB ahead, each took twice as long.
// Payload for the server waits in its socket: with a full socket, each value took two fifths
// longer.
constexpr uint64_t kMostUnderWayBytes = uint64_t{1} << 20;

std::string AuthCommand(const RedisLogin& login) {
  if (login.user.empty()) return RespCommand({"AUTH", login.password});
  return RespCommand({"AUTH", login.user, login.password});
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

uint64_t PayloadOf(const RedisCommand& command) {
  return command.payload_bytes() + command.answer_bytes;
}

uint64_t SizeOf(const RedisCommand& command) {
  return command.text.size() + command.payload_bytes() + command.end.size();
}

}  // namespace

RedisConnection::RedisConnection(const RedisLogin& login, int64_t now_nanos, OnReply on_reply)
    : login_(login), on_reply_(std::move(on_reply)), progress_nanos_(now_nanos) {}

void RedisConnection::Enqueue(RedisCommand command, int64_t now_nanos) {
  if (commands() == 0) progress_nanos_ = std::max(progress_nanos_, now_nanos);
  unsent_.push_back(std::move(command));
}

Status RedisConnection::Pump(int64_t now_nanos) {
  has_more_ = false;
  if (state_ == State::kConnecting) {
    AQ_ASSIGN_OR_RETURN(const bool established, stream_->Establish());
    if (!established) return Status();
    progress_nanos_ = now_nanos;
    state_ = State::kReady;
    if (!login_.password.empty()) {
      state_ = State::kLogin;
      RedisCommand auth;
      auth.text = AuthCommand(login_);
      unsent_.push_front(std::move(auth));
    }
  }
  AQ_RETURN_IF_ERROR(PumpOut(now_nanos));
  AQ_RETURN_IF_ERROR(PumpIn(now_nanos));
  return PumpOut(now_nanos);  // Commands that the answers led to.
}

bool RedisConnection::WantsRoom() const {
  return stream_ != nullptr && (no_room_ || stream_->NeedsRoom());
}

size_t RedisConnection::NextParts(std::span<iovec> parts) const {
  size_t used = 0;
  uint64_t skip = first_sent_bytes_;
  uint64_t under_way = under_way_bytes_;
  for (const RedisCommand& command : unsent_) {
    if (skip == 0 && under_way > 0 && under_way + PayloadOf(command) > kMostUnderWayBytes) break;
    under_way += PayloadOf(command);
    for (const std::span<const std::byte> part :
         {BytesOf(command.text), command.payload[0], command.payload[1], BytesOf(command.end)}) {
      const size_t skipped = std::min<uint64_t>(skip, part.size());
      skip -= skipped;
      if (skipped == part.size()) continue;
      if (used == parts.size()) return used;
      // sendmsg() only reads it, whatever iovec's type says.
      parts[used++] = {.iov_base = const_cast<std::byte*>(part.data() + skipped),
                       .iov_len = part.size() - skipped};
    }
    if (state_ == State::kLogin) break;  // A server that refuses the login should not get the rest.
  }
  return used;
}

void RedisConnection::Advance(size_t bytes) {
  first_sent_bytes_ += bytes;
  while (!unsent_.empty() && first_sent_bytes_ >= SizeOf(unsent_.front())) {
    first_sent_bytes_ -= SizeOf(unsent_.front());
    under_way_bytes_ += PayloadOf(unsent_.front());
    sent_.push_back(std::move(unsent_.front()));
    unsent_.pop_front();
  }
}

Status RedisConnection::PumpOut(int64_t now_nanos) {
  no_room_ = false;
  uint64_t moved = 0;
  std::array<iovec, kMostParts> parts;
  while (moved < kTurnBytes) {
    // During the login, only its commands are sent, and only once.
    const bool waits = unsent_.empty() || (state_ == State::kLogin && !sent_.empty());
    const size_t count = waits ? 0 : NextParts(parts);
    AQ_ASSIGN_OR_RETURN(const size_t sent, stream_->Send(std::span(parts).first(count)));
    if (sent > 0) progress_nanos_ = now_nanos;
    Advance(sent);
    moved += sent;
    if (count == 0) return Status();
    if (sent == 0) {
      no_room_ = true;
      return Status();
    }
  }
  has_more_ = true;
  return Status();
}

void RedisConnection::AimAtNext() {
  if (aimed_ || sent_.empty()) return;
  if (sent_.front().aimed) reader_.Aim(sent_.front().into);
  aimed_ = true;
}

Status RedisConnection::PumpIn(int64_t now_nanos) {
  uint64_t moved = 0;
  std::array<iovec, RespReader::kMostTargets + 1> room;
  while (moved < kTurnBytes) {
    AimAtNext();
    const size_t count = reader_.Room(room);
    AQ_ASSIGN_OR_RETURN(const size_t got, stream_->Receive(std::span(room).first(count)));
    if (got == 0) return Status();
    heard_ = true;
    progress_nanos_ = now_nanos;
    moved += got;
    reader_.Arrived(got);
    AQ_RETURN_IF_ERROR(HearAnswers());
  }
  has_more_ = true;
  return Status();
}

Status RedisConnection::HearAnswers() {
  while (true) {
    AimAtNext();
    RespReply reply;
    AQ_ASSIGN_OR_RETURN(const bool whole, reader_.Next(&reply));
    if (!whole) return Status();
    if (sent_.empty()) {
      return Status(Code::kUnavailable,
                    fmt::format("the server sent an answer to no command: {}", reply.text));
    }
    RedisCommand command = std::move(sent_.front());
    sent_.pop_front();
    under_way_bytes_ -= PayloadOf(command);
    aimed_ = false;
    if (state_ == State::kLogin) {
      AQ_RETURN_IF_ERROR(HearLogin(reply));
    } else {
      on_reply_(std::move(command), std::move(reply));
    }
  }
}

Status RedisConnection::HearLogin(const RespReply& reply) {
  if (reply.kind == RespReply::Kind::kText) {
    state_ = State::kReady;
    return Status();
  }
  const std::string who =
      login_.user.empty() ? "the password" : fmt::format("user '{}' or the password", login_.user);
  return Status(Code::kUnavailable,
                fmt::format("the server refuses {}: {}; next step: correct user and password_file, "
                            "and see that the user is on (ACL LIST)",
                            who, reply.text));
}

bool RedisConnection::Abandon(uint64_t operation) {
  const auto is_its = [operation](const RedisCommand& command) {
    return command.operation == operation;
  };
  if (first_sent_bytes_ > 0 && is_its(unsent_.front())) return false;
  std::erase_if(unsent_, is_its);
  for (RedisCommand& command : sent_) {
    if (!is_its(command)) continue;
    const bool first = &command == &sent_.front();
    command.operation = 0;
    command.aimed = true;  // Aimed at no memory, so the answer is dropped.
    command.into = {};
    if (first && aimed_) reader_.Drop();
  }
  return true;
}

std::vector<RedisCommand> RedisConnection::TakeCommands() {
  std::vector<RedisCommand> all;
  all.reserve(commands());
  for (std::deque<RedisCommand>* from : {&sent_, &unsent_}) {
    for (RedisCommand& command : *from) all.push_back(std::move(command));
    from->clear();
  }
  first_sent_bytes_ = 0;
  return all;
}

RedisConnection::Stage RedisConnection::stage() const {
  if (stream_ == nullptr) return Stage::kNaming;
  if (state_ == State::kConnecting) return stream_->connected() ? Stage::kTls : Stage::kConnecting;
  return heard_ ? Stage::kHeard : Stage::kUnheard;
}

int64_t RedisConnection::WaitingSince() const {
  return state_ == State::kReady && commands() == 0 ? INT64_MAX : progress_nanos_;
}

}  // namespace aquifer
