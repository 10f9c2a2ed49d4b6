// What workers do with payload on its way to a drive and back: checksums, and where the tier has a
// packer, sealing and codecs. The log itself moves and finds what is stored as it is, without any
// key.
#include <utility>

#include "base/planted_bug.h"
#include "io/memory/bus_guard.h"
#include "tier/nvme/nvme_tier_impl.h"

namespace aquifer {

// ---- Verifying ----

void Verification::Run() {
  for (Item& item : items) {
    if (item.unpack != nullptr) {
      packer->Unpack(item.unpack.get());
      item.good = item.unpack->status.ok();
      if (item.unpack->target_gone) item.touch = item.unpack->status;
      continue;
    }
    Checksum sum;
    item.touch = GuardBusErrors([&] { sum = ChecksumOf(item.bytes); });
    item.good = item.touch.ok() && sum == item.expected;
    if (Planted(PlantedBug::kChecksumNotVerified)) item.good = true;
  }
}

void NvmeTierImpl::Verify(const std::vector<PendingWrite*>& writes) {
  std::vector<PendingWrite*> some;
  uint64_t bytes = 0;
  for (PendingWrite* write : writes) {
    some.push_back(write);
    bytes += write->source.size();
    if (bytes < kVerifyBytes) continue;
    VerifySome(std::exchange(some, {}));
    bytes = 0;
  }
  if (!some.empty()) VerifySome(std::move(some));
}

void NvmeTierImpl::VerifySome(std::vector<PendingWrite*> writes) {
  if (packer() != nullptr) {
    for (PendingWrite* write : writes) StartPack(write);
    return;
  }
  auto verification = std::make_shared<Verification>();
  for (PendingWrite* write : writes) {
    write->stage = PendingWrite::Stage::kVerifying;
    write->touched = true;
    verification->items.push_back({.bytes = write->source.first(write->meta.raw_bytes),
                                   .expected = write->meta.checksum,
                                   .good = false,
                                   .touch = {}});
  }
  RunVerification(verification, [this, writes = std::move(writes), verification] {
    OnWritesVerified(writes, *verification);
  });
}

void NvmeTierImpl::OnWritesVerified(const std::vector<PendingWrite*>& writes,
                                    const Verification& verification) {
  for (size_t i = 0; i < writes.size(); ++i) {
    PendingWrite* const write = writes[i];
    write->batch->Untouch(write, shared_.executor);
    if (write->settled) {
      ResolveWrite(write, Status(Code::kLate));
    } else if (!verification.items[i].good) {
      ++shared_.counters.corrupt_sources;
      ResolveWrite(write, verification.items[i].touch.ok()
                              ? Status(Code::kCorrupt, "the bytes do not match their checksum")
                              : verification.items[i].touch);
    } else {
      write->stage = PendingWrite::Stage::kReady;
      ready_.push_back(write);
    }
  }
  Pump();
}

// ---- Packing ----

// A key that is being looked for is there soon. Nobody waits for one that could not be had.
Status NvmeTierImpl::WithoutKey(const TenantId& tenant) {
  ++shared_.counters.without_key;
  if (packer()->keys()->Missing(tenant)) {
    return Status(Code::kUnavailable, "the tenant's data key cannot be had");
  }
  return Status(Code::kBusy, "the tenant's data key is not known");
}

// What a read needs beside the bytes. kBusy: the tenant's key is not known. kCorrupt: the block is
// not sealed as it should be, and gone from now on.
Status NvmeTierImpl::PrepareUnpack(PendingRead* read, NvmeIndex::EntryId entry) {
  const DataKeyId none{};
  const bool sealed = shared_.index.data_key_id(entry) != none;
  const bool packed = sealed || shared_.index.stored_bytes(entry) != shared_.index.raw_bytes(entry);
  if (!packed && !seals()) return Status();
  const BlockMeta meta = shared_.index.Meta(entry);
  SharedDataKey key;
  if (seals()) {
    key = packer()->keys()->Known(meta.id.tenant);
    if (key == nullptr) return WithoutKey(meta.id.tenant);
  }
  if (packer() == nullptr || meta.data_key_id != (key != nullptr ? key->id : none)) {
    ++shared_.counters.refused_seals;
    drives_[shared_.index.Place(entry).drive]->Drop(entry);
    OnLost({meta.id}, Code::kCorrupt);
    return Status(Code::kCorrupt, "it is not sealed with the tenant's key");
  }
  read->unpack = std::make_shared<UnpackJob>();
  read->unpack->meta = meta;
  read->unpack->key = std::move(key);
  return Status();
}

void NvmeTierImpl::StartPack(PendingWrite* write) {
  write->stage = PendingWrite::Stage::kVerifying;
  const WriteOp& op = write->batch->batch->ops[write->index];
  write->packed = std::make_shared<PackedBlock>();
  write->packed->Describe(op, write->key, shared_.options.lossless, packer(),
                          pace_.bytes_per_second());
  if (!waiting_pack_.empty() || !write->packed->TakeScratch(&scratch_)) {
    waiting_pack_.push_back(write);
  } else {
    RunPack(write);
  }
}

void NvmeTierImpl::RunPack(PendingWrite* write) {
  write->touched = true;
  Task done = shared_.Guard([this, write] { OnPacked(write); });
  shared_.workers->Run([packer = packer(), packed = write->packed, executor = shared_.executor,
                        done = std::move(done)] {
    packer->Pack(&packed->job);
    executor->Post(done);
  });
}

void NvmeTierImpl::OnPacked(PendingWrite* write) {
  write->batch->Untouch(write, shared_.executor);
  const PackJob& job = write->packed->job;
  if (write->settled) return ResolveWrite(write, Status(Code::kLate));
  if (!job.status.ok()) {
    ++shared_.counters.corrupt_sources;
    const Status status = job.status;  // The job goes with the write.
    return ResolveWrite(write, status);
  }
  write->meta = job.meta;
  write->source = job.stored;
  if (write->packed->apart()) write->keep = write->packed;
  write->stage = PendingWrite::Stage::kReady;
  ready_.push_back(write);
  Pump();
}

void NvmeTierImpl::ReleasePacked(PendingWrite* write) {
  write->packed.reset();
  write->keep.reset();
  if (waiting_pack_.empty() || std::exchange(pack_scheduled_, true)) return;
  shared_.Post([this] { PumpPacks(); });
}

void NvmeTierImpl::PumpPacks() {
  pack_scheduled_ = false;
  while (!waiting_pack_.empty() && waiting_pack_.front()->packed->TakeScratch(&scratch_)) {
    PendingWrite* const write = waiting_pack_.front();
    waiting_pack_.pop_front();
    RunPack(write);
  }
}

}  // namespace aquifer
