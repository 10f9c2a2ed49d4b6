// RESP2, the protocol of Redis and Valkey: commands as text, and a reader of answers that puts a
// long answer where it is wanted, straight from the socket.
//
// The server is not trusted: lengths, nesting and what is kept of an answer have bounds. One thread
// at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

// "*3\r\n$3\r\nGET..." for all of the arguments.
std::string RespCommand(std::initializer_list<std::string_view> arguments);
// The same in steps, for an argument that is elsewhere: its length here, then its bytes, then
// "\r\n".
void AppendRespCount(std::string* text, size_t arguments);
void AppendRespLength(std::string* text, size_t bytes);
void AppendRespArgument(std::string* text, std::string_view argument);

struct RespReply {
  enum class Kind : uint8_t { kText, kError, kInteger, kBulk, kNil, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;    // Of kText, kError, and a kBulk that nobody aimed.
  uint64_t bytes = 0;  // Of a kBulk: how long it is, wherever it went.
  std::vector<RespReply> items;
};

class RespReader {
 public:
  static constexpr size_t kMostTargets = 3;
  using Target = std::array<std::span<std::byte>, kMostTargets>;

  RespReader();

  // Where the next answer goes if it is a bulk string: from the first span on, and what does not
  // fit is dropped. Without it, or for other answers, it is in the reply.
  void Aim(const Target& target);
  // The rest of the answer that was aimed is dropped: the memory may be gone.
  void Drop();

  // Where bytes from the connection are to be put next; the count of parts used, one at the least.
  size_t Room(std::span<iovec, kMostTargets + 1> room);
  // So many have been put there.
  void Arrived(size_t bytes);

  // Takes the next answer out of what has arrived. False: more must arrive first. kUnavailable:
  // this is not RESP, and the connection cannot be used any more.
  Result<bool> Next(RespReply* reply);

  // Whether a part of an answer is here.
  bool InAnswer() const { return in_bulk_ || start_ != end_; }

 private:
  enum class Parsed : uint8_t { kWhole, kPart, kWrong };

  Parsed ParseValue(size_t* at, int depth, RespReply* reply) const;
  Parsed ParseLine(size_t* at, std::string_view* line) const;
  Parsed ParseBulk(size_t* at, std::string_view length, RespReply* reply) const;
  Parsed ParseArray(size_t* at, std::string_view count, int depth, RespReply* reply) const;
  // An aimed bulk string begins here.
  Parsed BeginBulk();
  Parsed ContinueBulk(RespReply* reply);
  // The part of the target from `bulk_got_` on, at most what is to come.
  size_t TargetParts(std::span<iovec, kMostTargets> parts) const;
  void MakeRoom();

  std::vector<std::byte> buffer_;  // Arrived and not taken: from start_ to end_.
  size_t start_ = 0;
  size_t end_ = 0;
  Target target_{};
  bool aimed_ = false;
  bool in_bulk_ = false;  // In the middle of an aimed one.
  uint64_t bulk_bytes_ = 0;
  uint64_t bulk_got_ = 0;
};

}  // namespace aquifer
