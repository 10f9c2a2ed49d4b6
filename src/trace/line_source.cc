#include "trace/line_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kFirstBufferBytes = size_t{1} << 18;

}  // namespace

LineSource::LineSource(const LineSourceOptions& options, std::unique_ptr<ByteSource> bytes)
    : options_(options), bytes_(std::move(bytes)) {
  buffer_.resize(std::min(kFirstBufferBytes, options_.max_line_bytes + 2));
}

Result<std::unique_ptr<LineSource>> LineSource::Open(const LineSourceOptions& options,
                                                     const std::string& path) {
  AQ_ASSIGN_OR_RETURN(auto bytes, OpenBytes(path));
  return std::make_unique<LineSource>(options, std::move(bytes));
}

// Reads more behind what is there, for which it makes room.
Status LineSource::Fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    searched_ -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    const size_t limit = options_.max_line_bytes + 2;  // With "\r\n".
    if (end_ == limit) {
      return Status(Code::kInvalid,
                    fmt::format("the line is longer than {} bytes", options_.max_line_bytes));
    }
    buffer_.resize(std::min(limit, 2 * buffer_.size()));
  }
  AQ_ASSIGN_OR_RETURN(const size_t count, bytes_->Read(std::span(buffer_).subspan(end_)));
  end_ += count;
  at_end_ = count == 0;
  return Status();
}

Result<bool> LineSource::Next(std::string_view* line) {
  if (!failed_.ok()) return failed_;
  ++line_number_;
  const void* newline = nullptr;
  while (true) {
    newline = std::memchr(buffer_.data() + searched_, '\n', end_ - searched_);
    if (newline != nullptr || at_end_) break;
    searched_ = end_;
    failed_ = Fill();
    if (!failed_.ok()) return failed_;
  }
  whole_ = newline != nullptr;
  if (!whole_ && begin_ == end_) {
    --line_number_;
    return false;
  }
  const size_t line_end =
      whole_ ? static_cast<size_t>(static_cast<const char*>(newline) - buffer_.data()) : end_;
  *line = {buffer_.data() + begin_, line_end - begin_};
  if (line->ends_with('\r')) line->remove_suffix(1);
  begin_ = searched_ = whole_ ? line_end + 1 : line_end;
  if (line->size() > options_.max_line_bytes) {
    failed_ = Status(Code::kInvalid,
                     fmt::format("the line is longer than {} bytes", options_.max_line_bytes));
    return failed_;
  }
  return true;
}

Result<bool> LineSource::NextWithText(std::string_view* line) {
  do {
    AQ_ASSIGN_OR_RETURN(const bool more, Next(line));
    if (!more) return false;
  } while (line->find_first_not_of(" \t") == std::string_view::npos);
  return true;
}

Status LineSource::Explain(const std::string& file, const Status& status,
                           std::string_view next_step) const {
  std::string message = fmt::format("{}:{}: {}", file, line_number_, status.message());
  if (status.message().find("Next step") == std::string::npos) {
    message += fmt::format(". Next step: {}", next_step);
  }
  return Status(status.code(), std::move(message));
}

}  // namespace aquifer
