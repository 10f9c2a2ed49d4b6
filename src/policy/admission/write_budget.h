// How fast a device may be written: a token bucket in bytes, because flash wears out by the byte
// and because write-down must leave the device to reads.
#pragma once

#include <cstdint>

namespace aquifer {

struct WriteBudgetOptions {
  uint64_t bytes_per_second = 0;  // 0: no limit.
  // What may be written at once after a pause. A single write larger than this waits for a full
  // bucket, and then puts it in debt.
  uint64_t burst_bytes = uint64_t{256} << 20;
};

class WriteBudget {
 public:
  explicit WriteBudget(const WriteBudgetOptions& options);

  // True: write them now, they are paid for. False: not before NextAt().
  [[nodiscard]] bool TakeBytes(int64_t now_nanos, uint64_t bytes);

  // Pays for what had to be written whatever the budget: a reclaimed segment's live blocks. The
  // debt delays what can wait.
  void ChargeBytes(int64_t now_nanos, uint64_t bytes);

  // Gives back what was taken and then not written.
  void RefundBytes(int64_t now_nanos, uint64_t bytes);

  // The earliest time at which TakeBytes() of so many would succeed, if nobody else takes.
  int64_t NextAt(int64_t now_nanos, uint64_t bytes) const;

  bool unlimited() const { return options_.bytes_per_second == 0; }
  // What is left now; negative: in debt.
  int64_t AvailableBytes(int64_t now_nanos) const;

 private:
  // Bytes times 1e9: what a nanosecond adds is then a whole number and no rounding adds up.
  __extension__ using Tokens = __int128;

  Tokens At(int64_t now_nanos) const;
  void Settle(int64_t now_nanos);
  Tokens Needed(uint64_t bytes) const;

  const WriteBudgetOptions options_;
  Tokens tokens_;
  int64_t settled_nanos_ = INT64_MIN;  // INT64_MIN: no time has been seen yet.
};

}  // namespace aquifer
