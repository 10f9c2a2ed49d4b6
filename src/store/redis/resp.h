// RESP2, the protocol of Redis and Valkey: commands as text, and a reader of answers. The reader
// puts a long answer straight from the socket into the caller's memory.
//
// The server is not trusted: lengths, nesting and kept bytes of an answer have bounds. One thread
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
// The same in steps, for an argument in other memory: its length here, then its bytes, then "\r
// ".
void AppendRespCount(std::string* text, size_t arguments);
void AppendRespLength(std::string* text, size_t bytes);
void AppendRespArgument(std::string* text, std::string_view argument);

struct RespReply {
  enum class Kind : uint8_t { kText, kError, kInteger, kBulk, kNil, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;    // For kText, kError, and a kBulk without a target.
  uint64_t bytes = 0;  // Length of a kBulk, wherever it went.
  std::vector<RespReply> items;
};

class RespReader {
 public:
  static constexpr size_t kMostTargets = 3;
  using Target = std::array<std::span<std::byte>, kMostTargets>;

  RespReader();

  // Sets the target of the next answer, if that is a bulk string. It fills the first span first;
  // bytes that do not fit are dropped. Other answers, and answers without a target, are in the
  // reply.
  void Aim(const Target& target);
  // Drops the rest of the answer that has a target: its memory may be gone.
  void Drop();

  // Where to put the next bytes from the connection. Returns how many parts are used, at least one.
  size_t Room(std::span<iovec, kMostTargets + 1> room);
  // Reports that so many bytes were put there.
  void Arrived(size_t bytes);

  // Takes the next answer from the bytes that arrived. Returns false if more must arrive first.
  // Returns kUnavailable if the bytes are not RESP; the connection cannot be used any more.
  Result<bool> Next(RespReply* reply);

  // Returns true if a part of an answer has arrived.
  bool InAnswer() const { return in_bulk_ || start_ != end_; }

 private:
  enum class Parsed : uint8_t { kWhole, kPart, kWrong };

  Parsed ParseValue(size_t* at, int depth, RespReply* reply) const;
  Parsed ParseLine(size_t* at, std::string_view* line) const;
  Parsed ParseBulk(size_t* at, std::string_view length, RespReply* reply) const;
  Parsed ParseArray(size_t* at, std::string_view count, int depth, RespReply* reply) const;
  // Begins a bulk string that has a target.
  Parsed BeginBulk();
  Parsed ContinueBulk(RespReply* reply);
  // The part of the target from `bulk_got_` on, at most the bytes that are still to come.
  size_t TargetParts(std::span<iovec, kMostTargets> parts) const;
  void MakeRoom();

  std::vector<std::byte> buffer_;  // Bytes that arrived and were not taken: from start_ to end_.
  size_t start_ = 0;
  size_t end_ = 0;
  Target target_{};
  bool aimed_ = false;
  bool in_bulk_ = false;  // In the middle of a bulk string that has a target.
  uint64_t bulk_bytes_ = 0;
  uint64_t bulk_got_ = 0;
};

}  // namespace aquifer
