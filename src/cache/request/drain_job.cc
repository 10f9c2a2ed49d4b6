#include "cache/request/drain_job.h"

#include <utility>

namespace aquifer {

void DrainJob::Run() {
  if (!std::exchange(timer_set_, true)) {
    cache().draining = true;  // Once: Undrain() may come while this runs.
    WakeAt(DeadlineIn(asked().timeout_nanos));
  }
  DurableTiers* const durable = cache().durable;
  // What NVMe held over a restart is looked at by and by: here somebody waits for it.
  if (durable != nullptr && durable->lasting_usable() && durable->SweepMore()) return RunAgain();
  DrainNvme();
}

void DrainJob::DrainNvme() {
  if (!cache().drives.usable()) return DrainDurable(Status());
  cache().write_down.HottestFirst();
  flush_ =
      cache().write_down.FlushAll(tenant(), client(), [this, run = run()](const Status& status) {
        if (this->run() == run) DrainDurable(status);
      });
}

// What is of durable class, of every tenant.
void DrainJob::DrainDurable(const Status& nvme) {
  if (cache().durable == nullptr || !cache().durable->lasting_usable()) return FinishAfter(nvme);
  const auto on_done = [this, nvme, run = run()](const Status& status) {
    if (this->run() == run) FinishAfter(nvme.ok() ? status : nvme);
  };
  durable_flush_ = cache().durable->Flush(tenant(), client(), true, on_done);
}

void DrainJob::FinishAfter(const Status& written) {
  if (!written.ok() || cache().drives.usable() || cache().residency.only_in_dram() == 0) {
    return Finish(written);
  }
  Finish(Status(Code::kUnavailable,
                "there is no lower tier in service for all that is in memory: " +
                    (cache().drives.tier() == nullptr ? "give nvme_directories"
                                                      : cache().drives.status().ToString())));
}

void DrainJob::Finish(Status status) {
  asked().left = cache().residency.only_in_dram();
  request()->status = std::move(status);
  End(1);
}

void DrainJob::Cancel() {
  Drop();
  Finish(Status(Code::kLate, "not everything was written in time; drain again, with more time"));
}

void DrainJob::Drop() {
  cache().write_down.EndFlush(flush_);
  if (!durable_flush_.empty()) cache().durable->EndFlush(durable_flush_);
}

}  // namespace aquifer
