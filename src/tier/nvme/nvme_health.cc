// How a drive of the NVMe tier goes out of service and comes back.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "tier/nvme/nvme_drive.h"
#include "tier/nvme/nvme_reclaim.h"
#include "tier/nvme/nvme_recovery.h"

namespace aquifer {
namespace {

// Fewer can be bad sectors; so many in a row are a bad drive.
constexpr uint32_t kReadFailuresInARow = 8;

// A timer that comes so late was held up with the whole process: what the drive has done meanwhile
// is heard of within as long.
constexpr int64_t kStoodStillNanos = 1'000'000'000;

// A request has as much more time as it takes a drive of 8 MB/s: a block may have 64 MiB.
constexpr int64_t kNanosPerByte = 125;

}  // namespace

int64_t NvmeDrive::HangsAt() const {
  if (io_.oldest_nanos() == INT64_MAX) return INT64_MAX;
  const auto bytes = static_cast<int64_t>(io_.oldest_bytes());
  return io_.oldest_nanos() + options().hang_nanos + bytes * kNanosPerByte;
}

void NvmeDrive::ArmTimer() {
  int64_t at = INT64_MAX;
  if (!out_) at = std::max(HangsAt(), patient_until_nanos_);
  if ((out_ || write_fault_) && !probing_) at = std::min(at, next_probe_nanos_);
  if (out_ && recovered_ && !detached_) at = std::min(at, DetachesAt());
  if (at >= timer_nanos_) return;
  timer_nanos_ = at;
  shared_->PostAt(at, [this, at] {
    if (timer_nanos_ != at) return;  // An earlier one was armed, and has armed the next.
    timer_nanos_ = INT64_MAX;
    if (now() - at >= kStoodStillNanos) patient_until_nanos_ = now() + kStoodStillNanos;
    OnTimer();
  });
}

void NvmeDrive::OnTimer() {
  if (!out_ && now() >= std::max(HangsAt(), patient_until_nanos_)) {
    const double seconds = static_cast<double>(now() - io_.oldest_nanos()) / 1e9;
    GoOut(Status(Code::kUnavailable,
                 fmt::format("{}: a request has not completed for {:.1f} s", Name(), seconds)));
  }
  if (out_ && recovered_ && !detached_ && now() >= DetachesAt()) Detach();
  if ((out_ || write_fault_) && !probing_ && now() >= next_probe_nanos_) StartProbe();
  ArmTimer();
}

void NvmeDrive::Detach() {
  detached_ = unannounced_ = true;
  owner_->OnDriveDetached();
}

void NvmeDrive::CountRead(const Status& status) {
  if (status.ok()) {
    read_failures_ = 0;
    return;
  }
  if (status.code() == Code::kBusy) return;
  ++shared_->counters.read_errors;
  if (status.code() == Code::kUnavailable && ++read_failures_ >= kReadFailuresInARow) {
    GoOut(Status(Code::kUnavailable, fmt::format("{}: {} reads in a row failed, the last with: {}",
                                                 Name(), read_failures_, status.message())));
  }
}

void NvmeDrive::MarkAllHung() {
  io_.MarkAllHung();
  ++times_hung_;
  write_bytes_in_flight_ = 0;
  reads_in_flight_ = 0;
}

void NvmeDrive::GoOut(const Status& why) {
  if (out_) return;
  out_ = true;
  out_since_nanos_ = now();
  why_ = why;
  ++shared_->counters.times_out_of_service;
  next_probe_nanos_ = now() + options().probe_interval_nanos;
  if (map_cycle_running_) unmarked_ = true;  // Whoever waits for these bits is sent away.
  MarkAllHung();
  // What hangs may hang for ever, so the segment under it is not written to any more.
  SealAll();
  FailChunks(why);
  FailMoves(why);
  ArmTimer();
  // A start does not wait for a drive that hangs: it joins when it is read.
  if (on_recovered_) std::exchange(on_recovered_, nullptr)(why);
  shared_->Post([this] {
    if (!out_) return;
    owner_->OnDriveOut(this);
    Changed();
  });
}

void NvmeDrive::GoReadOnly(const Status& why) {
  if (out_ || write_fault_) return;
  write_fault_ = true;
  why_ = why;
  next_probe_nanos_ = now() + options().probe_interval_nanos;
  SealAll();
  FailChunks(why);
  FailMoves(why);
  ArmTimer();
  Changed();
}

void NvmeDrive::FailChunks(const Status& status) {
  std::deque<SegmentWriter::Chunk> chunks = std::move(chunks_);
  chunks_.clear();
  for (SegmentWriter::Chunk& chunk : chunks) {
    for (IoRequest& request : chunk.requests) request.status = status;
    chunk.writer->OnChunkDone(chunk, chunk.requests);
  }
}

void NvmeDrive::FailMoves(const Status& status) {
  std::deque<AppendItem*> moves = std::move(moves_);
  moves_.clear();
  for (AppendItem* move : moves) move->OnAppended(status);
}

// Writes to the scratch page of some segment and reads it back.
void NvmeDrive::StartProbe() {
  probing_ = true;
  ++shared_->counters.probes;
  if (!recovered_) {
    probing_ = false;
    next_probe_nanos_ = now() + options().probe_interval_nanos;
    if (recovery_ == nullptr) Recover(nullptr);
    return;
  }
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const State state = segments_[i].state;
    if (state == State::kBarred || state == State::kRemoving || state == State::kGone) continue;
    if (state == State::kOpening) continue;
    return ProbeSegment(i);
  }
  if (CreatableSegments() == 0) {
    return shared_->Post([this] { OnProbed(Status(Code::kUnavailable, why_.message())); });
  }
  const uint32_t index = NewSegment();
  std::vector<IoRequest> create(1);
  create[0].kind = IoKind::kCreate;
  create[0].file = segments_[index].file;
  create[0].length = segments_[index].bytes;
  io_.Submit(std::move(create), [this, index](std::vector<IoRequest>& requests) {
    OnCreated(index, requests[0].status);
    if (!requests[0].status.ok()) return OnProbed(requests[0].status);
    segments_[index].state = State::kFree;
    ProbeSegment(index);
  });
}

void NvmeDrive::ProbeSegment(uint32_t index) {
  const uint32_t file = segments_[index].file;
  auto pages = std::make_shared<PageBuffer>(2 * kPageBytes);
  const uint64_t stamp = ++probe_count_;
  for (size_t at = 0; at < kPageBytes; at += sizeof(stamp)) {
    std::memcpy(pages->span().data() + at, &stamp, sizeof(stamp));
  }
  const auto request = [&](IoKind kind, size_t page) {
    return std::vector<IoRequest>{{.kind = kind,
                                   .file = file,
                                   .offset = kScratchOffset,
                                   .data = pages->page(page),
                                   .status = {}}};
  };
  SubmitDurably(&io_, options().sync, request(IoKind::kWrite, 0),
                [this, pages, read = request(IoKind::kRead, 1)](std::vector<IoRequest>& written) {
                  const Status write_status = FirstError(written);
                  io_.Submit(read, [this, pages, write_status](std::vector<IoRequest>& done) {
                    const Status read_status = FirstError(done);
                    if (read_status.ok() && !write_status.ok() && out_) {
                      // It reads; that is worth having.
                      out_ = detached_ = false;
                      write_fault_ = true;
                      read_failures_ = 0;
                      why_ = write_status;
                      Announce();
                      Changed();
                    }
                    if (!write_status.ok()) return OnProbed(write_status);
                    if (!read_status.ok()) return OnProbed(read_status);
                    const bool same =
                        std::memcmp(pages->page(0).data(), pages->page(1).data(), kPageBytes) == 0;
                    OnProbed(same
                                 ? Status()
                                 : Status(Code::kUnavailable,
                                          Name() + ": a page did not read back as it was written"));
                  });
                },
                {});
}

void NvmeDrive::OnProbed(const Status& status) {
  probing_ = false;
  if (!status.ok()) {
    next_probe_nanos_ = now() + options().probe_interval_nanos;
    return ArmTimer();
  }
  out_ = detached_ = write_fault_ = false;
  read_failures_ = 0;
  why_ = Status();
  MarkAllHung();  // What did not complete before the probe did no longer counts.
  if (reclaim_ != nullptr) PostContinueReclaim();
  if (unmarked_) MarkLosers([] {});
  RunMapCycle();
  Announce();
  Changed();
}

// Only what is in service is found.
void NvmeDrive::Announce() {
  if (unannounced_ && in_service()) {
    unannounced_ = false;
    owner_->OnFound(this);
  }
}

// ---- Recovery, as far as health is concerned ----

void NvmeDrive::Recover(std::function<void(Status)> on_done) {
  on_recovered_ = std::move(on_done);
  recovery_ = std::make_unique<DriveRecovery>(this);
  recovery_->Start();
}

void NvmeDrive::OnRecovered(const Status& status) {
  shared_->Post([recovery = std::shared_ptr<DriveRecovery>(std::move(recovery_))]() mutable {
    recovery.reset();  // Not earlier: it is what called us.
  });
  if (!status.ok()) {
    GoOut(status);
    why_ = status;  // It may be another than the last time.
    next_probe_nanos_ = now() + options().probe_interval_nanos;
    ArmTimer();
    if (on_recovered_) std::exchange(on_recovered_, nullptr)(status);
    return;
  }
  recovered_ = unannounced_ = true;
  out_ = write_fault_ = false;
  why_ = Status();
  const auto finish = [this] {
    if (on_recovered_) {
      unannounced_ = false;
      std::exchange(on_recovered_, nullptr)(Status());
    }
    Announce();  // Nobody waits: this was not the first try, or it took too long.
    Changed();
    // Not before what they stand against is marked.
    if (!unmarked_) shared_->Post([this] { SweepExpired(0, 0); });
  };
  if (unmarked_) return MarkLosers(finish);
  finish();
  RunMapCycle();  // The process may have died before both copies of a map had the same.
}

}  // namespace aquifer
