// A function that can fail returns a Status, or a Result<T> if it also has a value. A code exists
// where a caller would do something different; the rest is the message. Success, and a miss without
// a message, allocate nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace aquifer {

enum class Code : uint8_t {
  kOk = 0,
  kNotFound = 1,     // A miss. Ask the next tier, or recompute.
  kBusy = 2,         // A queue is full. Shed the work or come back later.
  kNoSpace = 3,      // Evict, then try again.
  kUnavailable = 4,  // The device or peer is gone. Take the tier out of service.
  kCorrupt = 5,      // The checksum failed. Drop the block, count it, never serve it.
  kLate = 6,         // The deadline passed or the caller cancelled; the block may still be there.
  kInvalid = 7,      // The request was wrong. Fix the caller.
};

// "not found", "busy", ...
std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(Code code) : code_(code) {}
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // "no space: the pool is full", for logs and people.
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that `return value;` and `return Status(...);` both read naturally.
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace aquifer

#define AQ_CONCAT_INNER(a, b) a##b
#define AQ_CONCAT(a, b) AQ_CONCAT_INNER(a, b)

#define AQ_RETURN_IF_ERROR(expr)                                 \
  do {                                                           \
    if (::aquifer::Status aq_status = (expr); !aq_status.ok()) { \
      return aq_status;                                          \
    }                                                            \
  } while (false)

#define AQ_ASSIGN_OR_RETURN(declaration, expr)       \
  auto AQ_CONCAT(aq_result_, __LINE__) = (expr);     \
  if (!AQ_CONCAT(aq_result_, __LINE__).ok()) {       \
    return AQ_CONCAT(aq_result_, __LINE__).status(); \
  }                                                  \
  declaration = *std::move(AQ_CONCAT(aq_result_, __LINE__))
