#include "store/redis/resp.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kFirstBufferBytes = size_t{16} << 10;
constexpr size_t kMostBufferBytes = size_t{8} << 20;    // For answers that are kept.
constexpr int64_t kMostBulkBytes = int64_t{512} << 20;  // The longest that Redis has.
constexpr int64_t kMostItems = int64_t{1} << 20;
constexpr size_t kMostLineBytes = size_t{64} << 10;
constexpr int kMostDepth = 8;
constexpr std::string_view kEnd = "\r\n";

std::optional<int64_t> NumberOf(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void AppendRespCount(std::string* text, size_t arguments) {
  fmt::format_to(std::back_inserter(*text), "*{}\r\n", arguments);
}

void AppendRespLength(std::string* text, size_t bytes) {
  fmt::format_to(std::back_inserter(*text), "${}\r\n", bytes);
}

void AppendRespArgument(std::string* text, std::string_view argument) {
  AppendRespLength(text, argument.size());
  text->append(argument);
  text->append(kEnd);
}

std::string RespCommand(std::initializer_list<std::string_view> arguments) {
  std::string text;
  AppendRespCount(&text, arguments.size());
  for (const std::string_view argument : arguments) AppendRespArgument(&text, argument);
  return text;
}

RespReader::RespReader() : buffer_(kFirstBufferBytes) {}

void RespReader::Aim(const Target& target) {
  AQ_CHECK(!in_bulk_);
  target_ = target;
  aimed_ = true;
}

void RespReader::Drop() {
  target_ = {};
  aimed_ = true;
}

size_t RespReader::TargetParts(std::span<iovec, kMostTargets> parts) const {
  uint64_t skip = bulk_got_;
  uint64_t left = bulk_bytes_ - bulk_got_;
  size_t used = 0;
  for (const std::span<std::byte> whole : target_) {
    const uint64_t skipped = std::min<uint64_t>(skip, whole.size());
    skip -= skipped;
    const uint64_t taken = std::min<uint64_t>(whole.size() - skipped, left);
    if (taken == 0) continue;
    parts[used++] = {.iov_base = whole.data() + skipped, .iov_len = taken};
    left -= taken;
  }
  return used;
}

void RespReader::MakeRoom() {
  if (start_ == end_) start_ = end_ = 0;
  if (end_ < buffer_.size()) return;
  if (start_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
  } else {
    buffer_.resize(2 * buffer_.size());
  }
}

size_t RespReader::Room(std::span<iovec, kMostTargets + 1> room) {
  MakeRoom();
  size_t used = 0;
  // Bytes in the buffer come before bytes from the connection.
  if (in_bulk_ && start_ == end_) used = TargetParts(room.first<kMostTargets>());
  room[used] = {.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_};
  return used + 1;
}

void RespReader::Arrived(size_t bytes) {
  if (in_bulk_ && start_ == end_) {
    std::array<iovec, kMostTargets> parts;
    const size_t count = TargetParts(parts);
    for (size_t i = 0; i < count && bytes > 0; ++i) {
      const size_t taken = std::min(bytes, parts[i].iov_len);
      bulk_got_ += taken;
      bytes -= taken;
    }
  }
  end_ += bytes;
  AQ_CHECK(end_ <= buffer_.size());
}

Result<bool> RespReader::Next(RespReply* reply) {
  *reply = {};
  Parsed parsed = Parsed::kPart;
  if (!in_bulk_ && aimed_) {
    parsed = BeginBulk();
  }
  if (in_bulk_) {
    parsed = ContinueBulk(reply);
  } else if (parsed != Parsed::kWrong && start_ != end_) {
    size_t at = start_;
    parsed = ParseValue(&at, 0, reply);
    if (parsed == Parsed::kWhole) start_ = at;
  }
  if (parsed == Parsed::kPart && end_ - start_ < kMostBufferBytes) return false;
  if (parsed != Parsed::kWhole) {
    return Status(Code::kUnavailable, "the server's answer is not Redis's protocol");
  }
  aimed_ = false;
  target_ = {};
  return true;
}

// Leaves values other than bulk strings, and nil, to ParseValue().
RespReader::Parsed RespReader::BeginBulk() {
  if (start_ == end_ || buffer_[start_] != std::byte{'$'}) return Parsed::kPart;
  size_t at = start_ + 1;
  std::string_view line;
  if (const Parsed parsed = ParseLine(&at, &line); parsed != Parsed::kWhole) return parsed;
  const std::optional<int64_t> length = NumberOf(line);
  if (!length.has_value() || *length > kMostBulkBytes) return Parsed::kWrong;
  if (*length < 0) return Parsed::kPart;
  start_ = at;
  in_bulk_ = true;
  bulk_bytes_ = static_cast<uint64_t>(*length);
  bulk_got_ = 0;
  return Parsed::kWhole;
}

RespReader::Parsed RespReader::ContinueBulk(RespReply* reply) {
  std::array<iovec, kMostTargets> parts;
  const size_t count = TargetParts(parts);
  for (size_t i = 0; i < count; ++i) {
    const size_t taken = std::min(end_ - start_, parts[i].iov_len);
    std::memcpy(parts[i].iov_base, buffer_.data() + start_, taken);
    start_ += taken;
    bulk_got_ += taken;
  }
  // The rest of the answer is dropped.
  const size_t dropped = std::min<uint64_t>(end_ - start_, bulk_bytes_ - bulk_got_);
  start_ += dropped;
  bulk_got_ += dropped;
  if (bulk_got_ < bulk_bytes_ || end_ - start_ < kEnd.size()) return Parsed::kPart;
  if (std::memcmp(buffer_.data() + start_, kEnd.data(), kEnd.size()) != 0) return Parsed::kWrong;
  start_ += kEnd.size();
  in_bulk_ = false;
  reply->kind = RespReply::Kind::kBulk;
  reply->bytes = bulk_bytes_;
  return Parsed::kWhole;
}

RespReader::Parsed RespReader::ParseLine(size_t* at, std::string_view* line) const {
  const std::string_view all(reinterpret_cast<const char*>(buffer_.data()) + *at, end_ - *at);
  const size_t end = all.substr(0, kMostLineBytes).find(kEnd);
  if (end == std::string_view::npos) {
    return all.size() < kMostLineBytes ? Parsed::kPart : Parsed::kWrong;
  }
  *line = all.substr(0, end);
  *at += end + kEnd.size();
  return Parsed::kWhole;
}

RespReader::Parsed RespReader::ParseBulk(size_t* at, std::string_view length,
                                         RespReply* reply) const {
  const std::optional<int64_t> bytes = NumberOf(length);
  if (!bytes.has_value() || *bytes > kMostBulkBytes || *bytes < -1) return Parsed::kWrong;
  reply->kind = *bytes < 0 ? RespReply::Kind::kNil : RespReply::Kind::kBulk;
  if (*bytes < 0) return Parsed::kWhole;
  const auto size = static_cast<size_t>(*bytes);
  if (end_ - *at < size + kEnd.size()) return Parsed::kPart;
  const char* text = reinterpret_cast<const char*>(buffer_.data()) + *at;
  if (std::string_view(text + size, kEnd.size()) != kEnd) return Parsed::kWrong;
  reply->text.assign(text, size);
  reply->bytes = size;
  *at += size + kEnd.size();
  return Parsed::kWhole;
}

RespReader::Parsed RespReader::ParseArray(size_t* at, std::string_view count, int depth,
                                          RespReply* reply) const {
  const std::optional<int64_t> items = NumberOf(count);
  if (!items.has_value() || *items > kMostItems || *items < -1) return Parsed::kWrong;
  reply->kind = *items < 0 ? RespReply::Kind::kNil : RespReply::Kind::kArray;
  for (int64_t i = 0; i < *items; ++i) {
    RespReply item;
    const Parsed parsed = ParseValue(at, depth + 1, &item);
    if (parsed != Parsed::kWhole) return parsed;
    reply->items.push_back(std::move(item));
  }
  return Parsed::kWhole;
}

RespReader::Parsed RespReader::ParseValue(size_t* at, int depth, RespReply* reply) const {
  if (depth > kMostDepth) return Parsed::kWrong;
  if (*at == end_) return Parsed::kPart;
  const char type = static_cast<char>(buffer_[*at]);
  ++*at;
  std::string_view line;
  if (const Parsed parsed = ParseLine(at, &line); parsed != Parsed::kWhole) return parsed;
  switch (type) {
    case '$':
      return ParseBulk(at, line, reply);
    case '*':
      return ParseArray(at, line, depth, reply);
    case '+':
    case '-':
      reply->kind = type == '+' ? RespReply::Kind::kText : RespReply::Kind::kError;
      reply->text = line;
      return Parsed::kWhole;
    case ':':
      if (const std::optional<int64_t> number = NumberOf(line); number.has_value()) {
        reply->kind = RespReply::Kind::kInteger;
        reply->integer = *number;
        return Parsed::kWhole;
      }
      return Parsed::kWrong;
    default:
      return Parsed::kWrong;
  }
}

}  // namespace aquifer
