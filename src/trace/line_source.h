// The lines of a file, one after the other, in a buffer that never grows past the longest line that
// is allowed. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "trace/byte_source.h"

namespace aquifer {

struct LineSourceOptions {
  // A million tokens in blocks of 16 are 65 536 ids, which take 1.3 MB.
  size_t max_line_bytes = size_t{16} << 20;
};

class LineSource {
 public:
  LineSource(const LineSourceOptions& options, std::unique_ptr<ByteSource> bytes);
  static Result<std::unique_ptr<LineSource>> Open(const LineSourceOptions& options,
                                                  const std::string& path);

  // The next line, without its end ("\n" or "\r\n"), which is valid until the next call. False:
  // there are no more. kInvalid: it is too long. An error is the end: what follows is the same
  // error.
  Result<bool> Next(std::string_view* line);

  // The next that is not blank; the same otherwise.
  Result<bool> NextWithText(std::string_view* line);
  // Returns `status` with the file and place of the line that Next() gave, and the next step
  // unless the message has one.
  Status Explain(const std::string& file, const Status& status, std::string_view next_step) const;

  // Of the line that Next() gave, from 1.
  uint64_t line_number() const { return line_number_; }
  // That line ended with its newline. Only the last one of a file may lack it: whoever wrote it was
  // perhaps stopped in the middle.
  bool whole() const { return whole_; }

  uint64_t bytes_read() const { return bytes_->bytes_read(); }
  uint64_t bytes_total() const { return bytes_->bytes_total(); }

 private:
  Status Fill();

  const LineSourceOptions options_;
  const std::unique_ptr<ByteSource> bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // Buffered text not given out yet lies between these.
  size_t end_ = 0;
  size_t searched_ = 0;  // There is no newline between begin_ and this.
  bool at_end_ = false;
  Status failed_;
  uint64_t line_number_ = 0;
  bool whole_ = false;
};

}  // namespace aquifer
