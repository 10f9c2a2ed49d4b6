// The requests of a trace in Mooncake's form, one after the other: docs/formats/trace.md. Public
// traces are read, and what `aquifer serve --record` writes.
//
// A trace is somebody else's file: what does not have the form is an error with the number of its
// line and what to do, and ends the reading. Members of a line that we do not know are passed over,
// empty lines too, and so is a last line that broke off before its newline. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "trace/line_source.h"

namespace aquifer {

// For people, with the trace's name.
inline constexpr char kLastLineCut[] = "The last line of '{}' broke off and is left out.\n";

// 278 years: whoever counts nanoseconds has room for them.
inline constexpr uint64_t kMaxTimestampMs = uint64_t{1} << 43;

struct TraceRequest {
  uint64_t timestamp_ms = 0;  // Since the trace began.
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;         // 0 where it is not told.
  std::vector<uint64_t> block_ids{};  // Of the prompt, from its first block. Equal ids: one block.
};

// One line. Keeps what `request` has as memory. kInvalid says what is wrong and at which character;
// kCorrupt: nothing is wrong but that the line ends too early.
Status ParseTraceLine(std::string_view line, TraceRequest* request);

class TraceReader {
 public:
  explicit TraceReader(std::unique_ptr<LineSource> lines, std::string name);
  static Result<std::unique_ptr<TraceReader>> Open(const std::string& path);

  // False: there are no more. Messages begin with the file and the line: "a.jsonl:17: ...". Times
  // never go back: an earlier one than the last counts as the last, and is counted.
  Result<bool> Next(TraceRequest* request);

  uint64_t requests() const { return requests_; }
  uint64_t line_number() const { return lines_->line_number(); }
  uint64_t times_set_back() const { return times_set_back_; }
  bool last_line_cut() const { return last_line_cut_; }

  // Of the file, for a progress bar; the total is 0 where it is not known.
  uint64_t bytes_read() const { return lines_->bytes_read(); }
  uint64_t bytes_total() const { return lines_->bytes_total(); }

 private:
  Status Explain(const Status& status) const;

  const std::unique_ptr<LineSource> lines_;
  const std::string name_;
  uint64_t requests_ = 0;
  uint64_t last_timestamp_ms_ = 0;
  uint64_t times_set_back_ = 0;
  bool last_line_cut_ = false;
};

}  // namespace aquifer
