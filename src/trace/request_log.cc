#include "trace/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/crypto/sha256.h"

namespace aquifer {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr uint64_t kMaxTokens = uint64_t{1} << 40;

constexpr std::array<const char*, 4> kHashNames = {"block_hashes", "prefix_hashes", "hashes",
                                                   "blocks"};
constexpr std::array<const char*, 3> kInputNames = {"input_tokens", "prompt_tokens",
                                                    "input_length"};
constexpr std::array<const char*, 3> kOutputNames = {"output_tokens", "completion_tokens",
                                                     "output_length"};
constexpr std::array<const char*, 2> kMillisecondNames = {"timestamp", "timestamp_ms"};
constexpr std::array<const char*, 3> kSecondNames = {"created", "time", "arrival_time"};

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// The most brackets that are open at once. Beside the parser: its own watch over them looks at all
// of a list again whenever one of its objects ends, which takes hours for a line of 16 MiB.
int DepthOf(std::string_view line) {
  int depth = 0;
  int deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      in_text = !in_text;
    } else if (in_text) {
      if (c == '\\') ++i;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Result<json> ParseJson(std::string_view line) {
  if (DepthOf(line) > kMaxDepth) {
    return Invalid(fmt::format("there are more than {} levels of brackets", kMaxDepth));
  }
  try {
    json parsed = json::parse(line);
    if (parsed.is_object()) return parsed;
    return Invalid("this is no JSON object");
  } catch (const json::parse_error& error) {
    const bool cut = error.byte > line.size();
    return Status(cut ? Code::kCorrupt : Code::kInvalid,
                  fmt::format("this is no JSON from character {} on", error.byte));
  } catch (const json::exception&) {
    return Invalid("a number in it is larger than a program can hold");
  }
}

template <class Names>
const json* FindAny(const json& object, const Names& names) {
  for (const char* const name : names) {
    const auto found = object.find(name);
    if (found != object.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

// The object below, or null.
const json* Below(const json* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto found = object->find(name);
  return found != object->end() && found->is_object() ? &*found : nullptr;
}

Result<uint64_t> Tokens(const json& value, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxTokens) {
    return Invalid(
        fmt::format("the number of {} tokens is no whole number from 0 to {}", what, kMaxTokens));
  }
  return value.get<uint64_t>();
}

// "2026-11-15T23:00:00.250Z", or with "+01:00", or a space for the T.
std::optional<double> IsoMilliseconds(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, used = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%lf%n", &year, &month, &day, &hour,
                  &minute, &second, &used) != 6) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date(std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day)));
  if (!date.ok() || year < 1970 || hour < 0 || hour > 23 || minute < 0 || minute > 59 ||
      !(second >= 0 && second < 61)) {
    return std::nullopt;
  }
  const std::string zone = text.substr(static_cast<size_t>(used));
  int zone_minutes = 0;
  if (!zone.empty() && zone != "Z") {
    char sign = 0;
    int zone_hour = 0, zone_minute = 0;
    if (std::sscanf(zone.c_str(), "%c%2d:%2d", &sign, &zone_hour, &zone_minute) != 3 ||
        (sign != '+' && sign != '-')) {
      return std::nullopt;
    }
    zone_minutes = (sign == '-' ? -1 : 1) * (zone_hour * 60 + zone_minute);
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return ((static_cast<double>(days) * 24 + hour) * 60 + minute - zone_minutes) * 60e3 +
         second * 1e3;
}

Result<uint64_t> Milliseconds(const json& value, double unit_ms) {
  double ms = -1;
  if (value.is_number()) {
    ms = value.get<double>() * unit_ms;
  } else if (value.is_string()) {
    ms = IsoMilliseconds(value.get_ref<const std::string&>()).value_or(-1);
  }
  if (!(ms >= 0 && ms <= static_cast<double>(kMaxTimestampMs))) {
    return Invalid(
        fmt::format("the time is neither a number of at least 0 and at most {} nor like "
                    "2026-11-15T23:00:00Z",
                    kMaxTimestampMs / static_cast<uint64_t>(unit_ms)));
  }
  return static_cast<uint64_t>(ms);
}

// In the line itself, or in the request within it.
Result<uint64_t> TimeOf(const json& line, const json& request) {
  for (const json* object : {&line, &request}) {
    if (const json* value = FindAny(*object, kMillisecondNames)) return Milliseconds(*value, 1);
    if (const json* value = FindAny(*object, kSecondNames)) return Milliseconds(*value, 1e3);
  }
  return Invalid(
      "there is no time: give \"timestamp\" in milliseconds or as a date, or \"created\" "
      "in seconds");
}

// Ids of a chain: each names all before it, whether the log's own hashes do or not.
class ChainIds {
 public:
  explicit ChainIds(std::vector<uint64_t>* ids) : ids_(ids) { ids_->clear(); }

  void Root(std::string_view text) { parent_ = Sha256Of(std::as_bytes(std::span(text))); }
  void Add(std::string_view bytes) {
    hash_.Update(parent_);
    hash_.Update(std::as_bytes(std::span(bytes)));
    parent_ = hash_.Finish();
    ids_->push_back(GetU64(parent_.data()));
  }

 private:
  std::vector<uint64_t>* const ids_;
  Sha256 hash_;
  Sha256Digest parent_{};
};

Status ReadHashes(const json& line, const json& hashes, TraceRequest* request) {
  if (!hashes.is_array()) return Invalid("the hashes of the blocks are no list");
  ChainIds ids(&request->block_ids);
  for (const json& hash : hashes) {
    if (!hash.is_string() && !hash.is_number_integer()) {
      return Invalid("a hash of a block is neither a text nor a whole number");
    }
    ids.Add(hash.is_string() ? hash.get_ref<const std::string&>() : hash.dump());
  }
  const json* const input = FindAny(line, kInputNames);
  if (input == nullptr) {
    return Invalid("there is no length of the prompt: give \"input_tokens\"");
  }
  AQ_ASSIGN_OR_RETURN(request->input_tokens, Tokens(*input, "input"));
  if (const json* output = FindAny(line, kOutputNames)) {
    AQ_ASSIGN_OR_RETURN(request->output_tokens, Tokens(*output, "output"));
  }
  return Status();
}

// A message's content: a text, or a list of parts of which each is taken as it stands.
void AddContent(const json& content, std::string* text) {
  if (content.is_string()) {
    *text += content.get_ref<const std::string&>();
    return;
  }
  if (!content.is_array()) return;
  for (const json& part : content) {
    const auto inner = part.is_object() ? part.find("text") : part.end();
    if (part.is_object() && inner != part.end() && inner->is_string()) {
      *text += inner->get_ref<const std::string&>();
    } else {
      *text += part.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  }
}

Status AddMessages(const json& messages, std::string* text) {
  if (!messages.is_array()) return Invalid("\"messages\" is no list");
  for (const json& message : messages) {
    if (!message.is_object()) return Invalid("one of \"messages\" is no object");
    const auto role = message.find("role");
    if (role != message.end() && role->is_string()) {
      *text += role->get_ref<const std::string&>();
    }
    *text += '\n';
    const auto content = message.find("content");
    if (content != message.end()) AddContent(*content, text);
    *text += '\n';
  }
  return Status();
}

// A text, a list with one, or token ids: those are four bytes each, and so count exactly.
Status AddPrompt(const json& prompt, std::string* text) {
  if (prompt.is_string()) {
    *text += prompt.get_ref<const std::string&>();
    return Status();
  }
  if (prompt.is_array() && prompt.size() == 1 && prompt[0].is_string()) {
    *text += prompt[0].get_ref<const std::string&>();
    return Status();
  }
  if (!prompt.is_array()) return Invalid("\"prompt\" is neither a text nor a list of token ids");
  for (const json& token : prompt) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() > UINT32_MAX) {
      return Invalid("\"prompt\" is a list of something else than token ids");
    }
    const auto id = static_cast<uint32_t>(token.get<uint64_t>());
    for (int shift = 0; shift < 32; shift += 8) *text += static_cast<char>(id >> shift & 0xff);
  }
  return Status();
}

Status ReadPrompt(const json& line, const json& body, TraceRequest* request) {
  std::string text;
  const auto messages = body.find("messages");
  if (messages != body.end()) {
    AQ_RETURN_IF_ERROR(AddMessages(*messages, &text));
  } else {
    AQ_RETURN_IF_ERROR(AddPrompt(body.at("prompt"), &text));
  }
  ChainIds ids(&request->block_ids);
  const auto model = body.find("model");  // KV of two models has nothing in common.
  if (model != body.end() && model->is_string()) ids.Root(model->get_ref<const std::string&>());
  constexpr size_t kPieceBytes = kPromptBlockTokens * kBytesPerToken;
  for (size_t at = 0; at < text.size(); at += kPieceBytes) {
    ids.Add(std::string_view(text).substr(at, kPieceBytes));
  }
  request->input_tokens = (text.size() + kBytesPerToken - 1) / kBytesPerToken;
  const json* const response = Below(&line, "response");
  for (const json* holder : {&line, response, Below(response, "body"), &body}) {
    const json* const usage = Below(holder, "usage");
    const json* const output = usage == nullptr ? nullptr : FindAny(*usage, kOutputNames);
    if (output == nullptr) continue;
    AQ_ASSIGN_OR_RETURN(request->output_tokens, Tokens(*output, "output"));
    break;
  }
  return Status();
}

bool HasPrompt(const json& object) {
  return object.contains("messages") || object.contains("prompt");
}

}  // namespace

Result<LogForm> ParseLogLine(std::string_view line, TraceRequest* request) {
  AQ_ASSIGN_OR_RETURN(const json parsed, ParseJson(line));
  request->output_tokens = 0;
  const json* body = &parsed;
  for (const char* const name : {"body", "request"}) {  // A batch's line, a proxy's log.
    const json* const inner = Below(&parsed, name);
    if (inner != nullptr && HasPrompt(*inner)) body = inner;
  }
  AQ_ASSIGN_OR_RETURN(request->timestamp_ms, TimeOf(parsed, *body));
  if (const json* hashes = FindAny(parsed, kHashNames)) {
    AQ_RETURN_IF_ERROR(ReadHashes(parsed, *hashes, request));
    return LogForm::kHashes;
  }
  if (!HasPrompt(*body)) {
    return Invalid(
        "there are neither \"hash_ids\", nor \"block_hashes\", nor \"messages\" or a "
        "\"prompt\"");
  }
  AQ_RETURN_IF_ERROR(ReadPrompt(parsed, *body, request));
  return LogForm::kPrompts;
}

RequestLog::RequestLog(std::unique_ptr<LineSource> lines, std::string name)
    : lines_(std::move(lines)), name_(std::move(name)) {}

Result<std::unique_ptr<RequestLog>> RequestLog::Open(const std::string& path) {
  AQ_ASSIGN_OR_RETURN(auto lines, LineSource::Open({}, path));
  return std::make_unique<RequestLog>(std::move(lines), path);
}

Status RequestLog::Explain(const Status& status) const {
  return lines_->Explain(name_, status,
                         "correct or remove the line; docs/formats/trace.md has the forms");
}

Status RequestLog::Parse(std::string_view line, TraceRequest* request) {
  if (form_ == LogForm::kMooncake) return ParseTraceLine(line, request);
  if (!begun_ && line.find("\"hash_ids\"") != std::string_view::npos) {
    const Status parsed = ParseTraceLine(line, request);
    // The word may be somewhere within a line of another form.
    const Result<LogForm> other =
        parsed.ok() ? Result<LogForm>(LogForm::kMooncake) : ParseLogLine(line, request);
    form_ = other.ok() ? *other : LogForm::kMooncake;
    return other.ok() ? Status() : parsed;
  }
  AQ_ASSIGN_OR_RETURN(form_, ParseLogLine(line, request));
  return Status();
}

Result<bool> RequestLog::Next(TraceRequest* request) {
  std::string_view line;
  const Result<bool> more = lines_->NextWithText(&line);
  if (!more.ok()) return Explain(more.status());
  if (!*more) return false;
  const Status parsed = Parse(line, request);
  if (!parsed.ok()) {
    last_line_cut_ = parsed.code() == Code::kCorrupt && !lines_->whole() && begun_;
    if (last_line_cut_) return false;
    return Explain(parsed);
  }
  if (!begun_) {
    begun_ = true;
    first_ms_ = request->timestamp_ms;
    last_ms_ = first_ms_;
  }
  last_ms_ = std::max(last_ms_, request->timestamp_ms);
  request->timestamp_ms = last_ms_ - first_ms_;
  return true;
}

}  // namespace aquifer
