#include "trace/trace_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>

namespace aquifer {
namespace {

constexpr int kMaxDepth = 32;  // Of what is passed over.
// Sums of lengths must not overflow whatever a file says: a tera-token.
constexpr uint64_t kMaxTokens = uint64_t{1} << 40;

// Reads exactly the JSON that a line of a trace has, and passes over other values.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Status ReadRequest(TraceRequest* request);

 private:
  enum Member : unsigned { kTimestamp = 1, kInput = 2, kOutput = 4, kIds = 8 };

  Status ReadMember(std::string_view name, TraceRequest* request);
  Status Once(Member member, std::string_view name);
  Status ReadWhole(std::string_view name, uint64_t limit, uint64_t* value);
  Status ReadTimestamp(uint64_t* value);
  Status ReadIds(std::vector<uint64_t>* ids);
  Status ReadString(std::string_view* text);
  Status PassValue(int depth);
  Status PassList(char close, int depth);
  Status PassWord();
  Status Expect(char wanted, std::string_view where);

  void PassSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  // The next character that is no space; 0 at the end, which is no character of JSON.
  char Peek() {
    PassSpace();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Take(char wanted) {
    if (Peek() != wanted) return false;
    ++at_;
    return true;
  }
  Status Wrong(std::string_view expected) const;

  const std::string_view text_;
  size_t at_ = 0;
  unsigned seen_ = 0;  // Members.
};

Status Scanner::Wrong(std::string_view expected) const {
  if (at_ >= text_.size()) {
    return Status(Code::kCorrupt, fmt::format("the line ends where {} should be", expected));
  }
  const auto character = static_cast<unsigned char>(text_[at_]);
  const std::string found = character >= 0x20 && character < 0x7f
                                ? fmt::format("'{}'", text_[at_])
                                : fmt::format("byte 0x{:02x}", character);
  return Status(Code::kInvalid,
                fmt::format("character {} is {}, where {} should be", at_ + 1, found, expected));
}

Status Scanner::Expect(char wanted, std::string_view where) {
  return Take(wanted) ? Status() : Wrong(where);
}

Status Scanner::ReadRequest(TraceRequest* request) {
  request->output_tokens = 0;
  AQ_RETURN_IF_ERROR(Expect('{', "the '{' of an object"));
  if (!Take('}')) {
    do {
      std::string_view name;
      Peek();
      AQ_RETURN_IF_ERROR(ReadString(&name));
      AQ_RETURN_IF_ERROR(Expect(':', "a ':'"));
      AQ_RETURN_IF_ERROR(ReadMember(name, request));
    } while (Take(','));
    AQ_RETURN_IF_ERROR(Expect('}', "a ',' or the closing '}'"));
  }
  if (Peek() != '\0' || at_ != text_.size()) return Wrong("the end of the line");
  for (const auto& [member, name] :
       {std::pair{kTimestamp, "timestamp"}, {kInput, "input_length"}, {kIds, "hash_ids"}}) {
    if ((seen_ & member) == 0) {
      return Status(Code::kInvalid, fmt::format("\"{}\" is missing", name));
    }
  }
  return Status();
}

Status Scanner::ReadMember(std::string_view name, TraceRequest* request) {
  if (name == "hash_ids") {
    AQ_RETURN_IF_ERROR(Once(kIds, name));
    return ReadIds(&request->block_ids);
  }
  if (name == "timestamp") {
    AQ_RETURN_IF_ERROR(Once(kTimestamp, name));
    return ReadTimestamp(&request->timestamp_ms);
  }
  if (name == "input_length") {
    AQ_RETURN_IF_ERROR(Once(kInput, name));
    return ReadWhole(name, kMaxTokens, &request->input_tokens);
  }
  if (name == "output_length") {
    AQ_RETURN_IF_ERROR(Once(kOutput, name));
    return ReadWhole(name, kMaxTokens, &request->output_tokens);
  }
  return PassValue(kMaxDepth);
}

Status Scanner::Once(Member member, std::string_view name) {
  if ((seen_ & member) != 0) {
    return Status(Code::kInvalid, fmt::format("\"{}\" is there twice", name));
  }
  seen_ |= member;
  return Status();
}

Status Scanner::ReadWhole(std::string_view name, uint64_t limit, uint64_t* value) {
  PassSpace();
  const char* const first = text_.data() + at_;
  const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), *value);
  if (error == std::errc::invalid_argument) {
    return Wrong(fmt::format("a whole number of at least 0 for \"{}\"", name));
  }
  if (error != std::errc() || *value > limit) {
    return Status(Code::kInvalid,
                  fmt::format("\"{}\" is above {} at character {}", name, limit, at_ + 1));
  }
  at_ += static_cast<size_t>(last - first);
  return Status();
}

// Some traces have fractions of milliseconds.
Status Scanner::ReadTimestamp(uint64_t* value) {
  AQ_RETURN_IF_ERROR(ReadWhole("timestamp", kMaxTimestampMs, value));
  if (at_ >= text_.size() || text_[at_] != '.') return Status();
  ++at_;
  const size_t fraction = at_;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
  return at_ > fraction ? Status() : Wrong("a digit");
}

Status Scanner::ReadIds(std::vector<uint64_t>* ids) {
  ids->clear();
  AQ_RETURN_IF_ERROR(Expect('[', "the '[' of \"hash_ids\""));
  if (Take(']')) return Status();
  do {
    uint64_t id = 0;
    AQ_RETURN_IF_ERROR(ReadWhole("hash_ids", UINT64_MAX, &id));
    ids->push_back(id);
  } while (Take(','));
  return Expect(']', "a ',' or the closing ']' of \"hash_ids\"");
}

// Escapes are passed over, not undone: no name that we know has any.
Status Scanner::ReadString(std::string_view* text) {
  AQ_RETURN_IF_ERROR(Expect('"', "a '\"'"));
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (static_cast<unsigned char>(text_[at_]) < 0x20) return Wrong("a character of a string");
    at_ += text_[at_] == '\\' ? 2 : 1;
  }
  if (at_ >= text_.size()) {
    at_ = text_.size();
    return Wrong("a closing '\"'");
  }
  *text = text_.substr(begin, at_ - begin);
  ++at_;
  return Status();
}

Status Scanner::PassValue(int depth) {
  std::string_view ignored;
  switch (Peek()) {
    case '"':
      return ReadString(&ignored);
    case '{':
      return PassList('}', depth);
    case '[':
      return PassList(']', depth);
    default:
      return PassWord();
  }
}

Status Scanner::PassList(char close, int depth) {
  if (depth == 0) {
    return Status(Code::kInvalid, fmt::format("there are more than {} levels of brackets at "
                                              "character {}",
                                              kMaxDepth, at_ + 1));
  }
  ++at_;
  if (Take(close)) return Status();
  do {
    if (close == '}') {
      std::string_view name;
      Peek();
      AQ_RETURN_IF_ERROR(ReadString(&name));
      AQ_RETURN_IF_ERROR(Expect(':', "a ':'"));
    }
    AQ_RETURN_IF_ERROR(PassValue(depth - 1));
  } while (Take(','));
  return Expect(close, fmt::format("a ',' or a '{}'", close));
}

// A number, true, false or null: what exactly is nothing to us.
Status Scanner::PassWord() {
  const size_t begin = at_;
  const auto belongs = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
           c == 'E';
  };
  while (at_ < text_.size() && belongs(text_[at_])) ++at_;
  return at_ > begin ? Status() : Wrong("a value");
}

}  // namespace

Status ParseTraceLine(std::string_view line, TraceRequest* request) {
  return Scanner(line).ReadRequest(request);
}

TraceReader::TraceReader(std::unique_ptr<LineSource> lines, std::string name)
    : lines_(std::move(lines)), name_(std::move(name)) {}

Result<std::unique_ptr<TraceReader>> TraceReader::Open(const std::string& path) {
  AQ_ASSIGN_OR_RETURN(auto lines, LineSource::Open({}, path));
  return std::make_unique<TraceReader>(std::move(lines), path);
}

Status TraceReader::Explain(const Status& status) const {
  return lines_->Explain(
      name_, status,
      "correct or remove the line; it must be one request as docs/formats/trace.md has it, such as "
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 52, \"hash_ids\": [7, 8]}");
}

Result<bool> TraceReader::Next(TraceRequest* request) {
  std::string_view line;
  const Result<bool> more = lines_->NextWithText(&line);
  if (!more.ok()) return Explain(more.status());
  if (!*more) return false;
  const Status parsed = ParseTraceLine(line, request);
  if (!parsed.ok()) {
    last_line_cut_ = parsed.code() == Code::kCorrupt && !lines_->whole() && requests_ > 0;
    if (last_line_cut_) return false;
    return Explain(parsed);
  }
  if (request->timestamp_ms < last_timestamp_ms_) {
    request->timestamp_ms = last_timestamp_ms_;
    ++times_set_back_;
  }
  last_timestamp_ms_ = request->timestamp_ms;
  ++requests_;
  return true;
}

}  // namespace aquifer
