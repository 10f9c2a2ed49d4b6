#include "cache/request/housekeeping.h"

namespace aquifer {
namespace {

constexpr size_t kDropSlice = 64;
constexpr size_t kJobSlice = 64;
constexpr size_t kReturnSlice = 256;

}  // namespace

void Housekeeping::Run() {
  if (next_.posted()) return;
  const bool more_orphans = residency_->DropOrphans(kDropSlice);
  const bool more_reclaim = residency_->ContinueReclaim(kDropSlice);
  const bool more_jobs = scheduler_->DropSome(kJobSlice);
  // With its loans a client's number is free for another; its jobs still count by it.
  const bool more_loans = more_jobs || loans_->ReturnSome(kReturnSlice);
  const bool more_void = loans_->VoidSome(kReturnSlice);
  eraser_->Pump();
  if (!more_orphans && !more_reclaim && !more_loans && !more_void) return;
  next_.Post(&tasks_, [this] { Run(); });
}

}  // namespace aquifer
