// Flush and Drain: what callers want to know safe.
#include <string>
#include <utility>

#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {

// --- Flush

std::string FlushJob::WhyNot(TierKind tier) {
  if (tier == TierKind::kDurable && core().durable_ != nullptr) {
    return "no durable tier is in service: " + core().durable_->WhyNotUsable();
  }
  if (tier != TierKind::kNvme) return "this cache has no such tier";
  if (core().options_.cache.nvme_directories.empty()) {
    return "there is no NVMe tier; give nvme_directories";
  }
  return "the NVMe tier is out of service, and tried again; Stats() says of each drive why";
}

FlushJob::Path FlushJob::ChoosePath() const {
  if (asked().tier != TierKind::kNvme) return Path::kDurable;
  if (core().durable_ == nullptr || !core().durable_->has_lasting()) return Path::kNvme;
  // Only where all of the tenant's blocks are durable does a flush do without a drive: a session's
  // class says nothing of the others.
  if (core().IsDurableTenant(tenant())) {
    return core().nvme_ == nullptr ? Path::kDurable : Path::kNvme;
  }
  return core().options_.cache.nvme_directories.empty() ? Path::kSessions : Path::kNvme;
}

bool FlushJob::Usable() const {
  if (path_ == Path::kNvme) return core().nvme_usable();
  return (path_ == Path::kSessions || WantsDurable()) && core().durable_->lasting_usable();
}

bool FlushJob::WantsDurable() const {
  if (core().durable_ == nullptr || !core().durable_->has_lasting()) return false;
  return asked().tier == TierKind::kDurable || core().IsDurableTenant(tenant()) ||
         core().durable_->Owes(tenant()) ||  // A session's.
         core().durable_->unanswered(tenant());
}

void FlushJob::Run() {
  FlushRequest& flush = asked();
  if (flush.tier == TierKind::kDram) return End(1);  // Committed is in DRAM.
  if (counting_) return CountOthers();
  if (!Usable()) {
    const TierKind tier = path_ == Path::kNvme ? TierKind::kNvme : TierKind::kDurable;
    return Finish(Status(Code::kUnavailable, WhyNot(tier)));
  }
  if (!std::exchange(timer_set_, true)) WakeAt(DeadlineIn(flush.timeout_nanos));
  // What was hinted before may give blocks another time to live.
  if (core().clients_[client()].hints > 0) return RunAgain();
  // Whose blocks are may decide whether they are to be durable.
  if (core().durable_ != nullptr && core().durable_->asking(tenant())) {
    return core().durable_->WhenAnswered(tenant(), [this, run = run()] {
      if (this->run() == run) RunAgain();
    });
  }
  if (SomeUnanswered()) {
    if (!std::exchange(asked_again_, true)) {
      core().durable_->AskAgain(tenant());
      return RunAgain();
    }
    unanswered_ = true;
  }
  if (path_ != Path::kNvme || cursor_ > 0) return FlushDurable();
  flush_ = core().write_down_->Flush(tenant(), client(), [this, run = run()](Status status) {
    if (this->run() != run) return;
    if (status.ok()) status = core().FlushedDespiteRefills(tenant());
    if (status.ok() && WantsDurable()) return FlushDurable();
    Finish(std::move(status));
  });
}

void FlushJob::FlushDurable() {
  DurableTiers& durable = *core().durable_;
  // What NVMe held over a restart is added by and by: not so slowly where somebody waits for it.
  const bool of_class = core().IsDurableTenant(tenant());
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
  if (core().durable_->CountOthers(tenant(), &cursor_, &others_)) return RunAgain();
  if (others_ == 0) return Finish(Status());
  Finish(Status(Code::kUnavailable,
                "what is to be durable is safe; " + std::to_string(others_) +
                    " other blocks are in memory alone: " + WhyNot(TierKind::kNvme)));
}

// Where all is to be durable that does not matter.
bool FlushJob::SomeUnanswered() const {
  return core().durable_ != nullptr && asked().tier != TierKind::kDurable &&
         core().durable_->unanswered(tenant());
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
      durable ? core().durable_->last_failure() : core().write_down_->last_failure();
  request()->status = Status(
      Code::kLate,
      failure.ok() ? "not everything was written in time; flush again, with more time"
                   : "not everything was written in time; a write failed: " + failure.ToString());
  End(1);
}

void FlushJob::Drop() {
  core().write_down_->EndFlush(flush_);
  if (!durable_flush_.empty()) core().durable_->EndFlush(durable_flush_);
}

// --- Drain

void DrainJob::Run() {
  if (!std::exchange(timer_set_, true)) {
    core().draining_ = true;  // Once: Undrain() may come while this runs.
    WakeAt(DeadlineIn(asked().timeout_nanos));
  }
  DurableTiers* const durable = core().durable_.get();
  // What NVMe held over a restart is looked at by and by: here somebody waits for it.
  if (durable != nullptr && durable->lasting_usable() && durable->SweepMore()) return RunAgain();
  DrainNvme();
}

void DrainJob::DrainNvme() {
  if (!core().nvme_usable()) {
    return DrainDurable(core().FlushedDespiteRefills(FlushWaits::kEveryone));
  }
  core().write_down_->HottestFirst();
  flush_ =
      core().write_down_->FlushAll(tenant(), client(), [this, run = run()](const Status& status) {
        if (this->run() != run) return;
        DrainDurable(status.ok() ? core().FlushedDespiteRefills(FlushWaits::kEveryone) : status);
      });
}

// What is of durable class, of every tenant.
void DrainJob::DrainDurable(const Status& nvme) {
  if (core().durable_ == nullptr || !core().durable_->lasting_usable()) return FinishAfter(nvme);
  const auto on_done = [this, nvme, run = run()](const Status& status) {
    if (this->run() == run) FinishAfter(nvme.ok() ? status : nvme);
  };
  durable_flush_ = core().durable_->Flush(tenant(), client(), true, on_done);
}

void DrainJob::FinishAfter(const Status& written) {
  if (!written.ok() || core().nvme_usable() || core().residency_->only_in_dram() == 0) {
    return Finish(written);
  }
  Finish(Status(
      Code::kUnavailable,
      "there is no lower tier in service for all that is in memory: " +
          (core().nvme_ == nullptr ? "give nvme_directories" : core().nvme_status_.ToString())));
}

void DrainJob::Finish(Status status) {
  asked().left = core().residency_->only_in_dram();
  request()->status = std::move(status);
  End(1);
}

void DrainJob::Cancel() {
  Drop();
  Finish(Status(Code::kLate, "not everything was written in time; drain again, with more time"));
}

void DrainJob::Drop() {
  core().write_down_->EndFlush(flush_);
  if (!durable_flush_.empty()) core().durable_->EndFlush(durable_flush_);
}

}  // namespace aquifer
