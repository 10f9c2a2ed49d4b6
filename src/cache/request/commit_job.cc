#include "cache/request/commit_job.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr size_t kCommitSlice = 32;

}  // namespace

void CommitJob::Reset() { cursor_ = 0; }

void CommitJob::Run() {
  const size_t end = std::min(cursor_ + kCommitSlice, asked().ops.size());
  for (; cursor_ < end; ++cursor_) CommitOne(&asked().ops[cursor_]);
  cache().write_down.PumpSoon();
  if (cache().durable != nullptr) cache().durable->PumpSoon();
  if (cursor_ == asked().ops.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

void CommitJob::CommitOne(CommitOp* op) {
  op->published = false;
  BlockLoan* const loan = cache().loans.Find(client(), op->reservation, true);
  if (loan == nullptr) {
    op->status = Status(Code::kInvalid, "no such reservation");
    return;
  }
  const BlockRef ref = loan->ref;
  const BlockEntry& entry = cache().residency.at(ref);
  if (entry.state != BlockState::kFilling) {
    op->status = Status(Code::kInvalid, entry.state == BlockState::kGone
                                            ? "the reservation is void: another rank gave it up"
                                            : "every head was committed already");
    return cache().loans.End(loan);
  }
  const GroupRecord& group = cache().catalog.layout(entry.layout).groups[entry.group];
  bool complete = false;
  op->status = cache().fills.Cover(ref, group.heads, *op, &complete);
  if (!op->status.ok()) return;
  if (complete) {
    cache().fills.Publish(ref, group.block_bytes);
    if (cache().durable != nullptr) cache().durable->OnCommitted(ref);
    cache().write_down.Add(ref);  // Which looks whether it is to be durable.
    op->published = true;
    cache().meters.Count(entry.tenant, &CacheCounters::committed);
    cache().meters.Count(entry.tenant, &CacheCounters::committed_bytes, group.block_bytes);
  }
  cache().loans.End(loan);
}

}  // namespace aquifer
