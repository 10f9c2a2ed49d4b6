// Requests as other people log them, one JSON object a line: docs/formats/trace.md lists the forms.
// Mooncake's is read by trace_reader.h's parser; the others are
//
//   - token counts and hashes of blocks, under the names that engines and proxies give them;
//   - what OpenAI's API takes, with the prompt as text. It is cut into pieces and hashed here, and
//     nothing of it is kept: where there is no tokenizer, four bytes count as a token.
//
// The first line says whether a file is Mooncake's. A mistake is an error with the number of its
// line, and ends the reading; memory is bounded by the longest line that is allowed. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "trace/line_source.h"
#include "trace/trace_reader.h"

namespace aquifer {

// Of prompts that are cut here.
inline constexpr uint64_t kPromptBlockTokens = 128;
inline constexpr uint64_t kBytesPerToken = 4;

enum class LogForm : uint8_t { kUnknown, kMooncake, kHashes, kPrompts };

// One line of the latter two forms. Times are as the line has them: whoever reads a file begins at
// its first. kInvalid says what is wrong.
Result<LogForm> ParseLogLine(std::string_view line, TraceRequest* request);

class RequestLog {
 public:
  RequestLog(std::unique_ptr<LineSource> lines, std::string name);
  static Result<std::unique_ptr<RequestLog>> Open(const std::string& path);

  // As TraceReader::Next(). Times begin at 0 and never go back.
  Result<bool> Next(TraceRequest* request);
  // A message about the line that Next() gave, as this writes its own.
  Status Explain(const Status& status) const;

  LogForm form() const { return form_; }  // Of the last line.
  // Whoever wrote it was stopped in the middle: it is left out.
  bool last_line_cut() const { return last_line_cut_; }
  uint64_t line_number() const { return lines_->line_number(); }
  uint64_t bytes_read() const { return lines_->bytes_read(); }
  uint64_t bytes_total() const { return lines_->bytes_total(); }

 private:
  Status Parse(std::string_view line, TraceRequest* request);

  const std::unique_ptr<LineSource> lines_;
  const std::string name_;
  LogForm form_ = LogForm::kUnknown;
  bool begun_ = false;
  bool last_line_cut_ = false;
  uint64_t first_ms_ = 0;
  uint64_t last_ms_ = 0;
};

}  // namespace aquifer
