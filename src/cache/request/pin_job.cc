#include "cache/request/pin_job.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr size_t kPinSlice = 64;

}  // namespace

void PinJob::Reset() {
  cursor_ = 0;
  asked().pinned = 0;
}

void PinJob::Run() {
  const ChainSlice& chain = asked().chain;
  const size_t end = std::min(cursor_ + kPinSlice, chain.keys.size());
  // A pin belongs to the tenant: any of its clients may take it away.
  const uint64_t owner = tenant();
  for (; cursor_ < end; ++cursor_) {
    const BlockRef ref = cache().residency.index().Find(
        {.tenant = tenant(), .group = chain.group, .part = chain.part, .key = chain.keys[cursor_]});
    if (ref == kNoBlock || !cache().Readable(ref)) continue;
    if (asked().seconds == 0) {
      cache().residency.Unpin(ref, owner);
    } else if (cache().residency.Pin(ref, owner, cache().UnixIn(asked().seconds))) {
      cache().write_down.Want(ref);
    } else {
      request()->status =
          Status(Code::kNoSpace, "too many pins; take some away, or give them less time");
      return End(cursor_);
    }
    ++asked().pinned;
  }
  if (cursor_ == chain.keys.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

void PinJob::Cancel() {
  request()->status = Status(Code::kLate);
  End(cursor_);
}

}  // namespace aquifer
