#include "cache/request/flush_job.h"

#include <string>
#include <utility>

namespace aquifer {

std::string FlushJob::WhyNot(TierKind tier) {
  if (tier == TierKind::kDurable && cache().durable != nullptr) {
    return "no durable tier is in service: " + cache().durable->WhyNotUsable();
  }
  if (tier != TierKind::kNvme) return "this cache has no such tier";
  if (!cache().drives.any()) {
    return "there is no NVMe tier; give nvme_directories";
  }
  return "the NVMe tier is out of service, and tried again; Stats() says of each drive why";
}

FlushJob::Path FlushJob::ChoosePath() const {
  if (asked().tier != TierKind::kNvme) return Path::kDurable;
  if (cache().durable == nullptr || !cache().durable->has_lasting()) return Path::kNvme;
  // Only where all of the tenant's blocks are durable does a flush do without a drive: a session's
  // class says nothing of the others.
  if (cache().IsDurableTenant(tenant())) {
    return cache().drives.tier() == nullptr ? Path::kDurable : Path::kNvme;
  }
  return cache().drives.any() ? Path::kNvme : Path::kSessions;
}

bool FlushJob::Usable() const {
  if (path_ == Path::kNvme) return cache().drives.usable();
  return (path_ == Path::kSessions || WantsDurable()) && cache().durable->lasting_usable();
}

bool FlushJob::WantsDurable() const {
  if (cache().durable == nullptr || !cache().durable->has_lasting()) return false;
  return asked().tier == TierKind::kDurable || cache().IsDurableTenant(tenant()) ||
         cache().durable->Owes(tenant()) ||  // A session's.
         cache().durable->unanswered(tenant());
}

void FlushJob::Run() {
  FlushRequest& flush = asked();
  if (flush.tier == TierKind::kDram) return End(1);  // Committed is in DRAM.
  if (flush.tier == TierKind::kDurable && !cache().MayLeaveHost(tenant())) {
    return Finish(Status(Code::kInvalid,
                         "this tenant's blocks may not leave the host, by its durability in the "
                         "tenants file; flush to NVMe"));
  }
  if (counting_) return CountOthers();
  if (!Usable()) {
    const TierKind tier = path_ == Path::kNvme ? TierKind::kNvme : TierKind::kDurable;
    return Finish(Status(Code::kUnavailable, WhyNot(tier)));
  }
  if (!std::exchange(timer_set_, true)) WakeAt(DeadlineIn(flush.timeout_nanos));
  // What was hinted before may give blocks another time to live.
  if (cache().clients.at(client()).hints > 0) return RunAgain();
  // Whose blocks are may decide whether they are to be durable.
  if (cache().durable != nullptr && cache().durable->asking(tenant())) {
    return cache().durable->WhenAnswered(tenant(), [this, run = run()] {
      if (this->run() == run) RunAgain();
    });
  }
  if (SomeUnanswered()) {
    if (!std::exchange(asked_again_, true)) {
      cache().durable->AskAgain(tenant());
      return RunAgain();
    }
    unanswered_ = true;
  }
  if (path_ != Path::kNvme || cursor_ > 0) return FlushDurable();
  flush_ = cache().write_down.Flush(tenant(), client(), [this, run = run()](Status status) {
    if (this->run() != run) return;
    if (status.ok() && WantsDurable()) return FlushDurable();
    Finish(std::move(status));
  });
}

void FlushJob::FlushDurable() {
  DurableTiers& durable = *cache().durable;
  // What NVMe held over a restart is added by and by: not so slowly where somebody waits for it.
  const bool of_class = cache().IsDurableTenant(tenant());
  const bool add = of_class ? durable.sweeping() : asked().tier == TierKind::kDurable;
  if (add && durable.AddAll(tenant(), &cursor_)) return RunAgain();
  durable_flush_ = durable.Flush(tenant(), client(), false, [this, run = run()](Status status) {
    if (this->run() != run) return;
    if (!status.ok() || path_ != Path::kSessions) return Finish(std::move(status));
    durable_flush_.clear();
    counting_ = true;
    RunAgain();
  });
}

void FlushJob::CountOthers() {
  if (cache().durable->CountOthers(tenant(), &cursor_, &others_)) return RunAgain();
  if (others_ == 0) return Finish(Status());
  Finish(Status(Code::kUnavailable,
                "what is to be durable is safe; " + std::to_string(others_) +
                    " other blocks are in memory alone: " + WhyNot(TierKind::kNvme)));
}

// Where all is to be durable that does not matter.
bool FlushJob::SomeUnanswered() const {
  return cache().durable != nullptr && asked().tier != TierKind::kDurable &&
         cache().durable->unanswered(tenant());
}

void FlushJob::Finish(Status status) {
  if (status.ok() && unanswered_) {
    status = Status(Code::kUnavailable,
                    "no durable tier could say whether some of the blocks are of a session that is "
                    "to be durable; flush again when Stats() shows one in service");
  }
  request()->status = std::move(status);
  End(1);
}

void FlushJob::Cancel() {
  Drop();
  const bool durable = !durable_flush_.empty();
  const Status failure =
      durable ? cache().durable->last_failure() : cache().write_down.last_failure();
  request()->status = Status(
      Code::kLate,
      failure.ok() ? "not everything was written in time; flush again, with more time"
                   : "not everything was written in time; a write failed: " + failure.ToString());
  End(1);
}

void FlushJob::Drop() {
  cache().write_down.EndFlush(flush_);
  if (!durable_flush_.empty()) cache().durable->EndFlush(durable_flush_);
}

}  // namespace aquifer
