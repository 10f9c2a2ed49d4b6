#include "sim/world/store_faults.h"

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
// A tier that is out of service asks its store every 30 s, and a little more.
constexpr int64_t kRecoveryNanos = 60 * kSecond;
// So long a node may believe what it heard before.
constexpr int64_t kBeliefNanos = 60 * kSecond;

}  // namespace

void StoreFaults::Seen(const Fault& fault, uint64_t detail) {
  ++(*seen_)[static_cast<size_t>(fault.kind)];
  trace_->Add(TraceKind::kFault, 0, static_cast<uint64_t>(fault.kind), detail);
}

void StoreFaults::EndLater(FaultKind kind, int64_t nanos, Task end) {
  Disturb(nanos);
  scheduler_->At(scheduler_->now() + nanos, 0, [this, kind, end = std::move(end)] {
    trace_->Add(TraceKind::kFaultEnds, 0, static_cast<uint64_t>(kind));
    end();
  });
}

void StoreFaults::Disturb(int64_t nanos) {
  calm_from_nanos_ = std::max(calm_from_nanos_, scheduler_->now() + nanos + kRecoveryNanos);
}

void StoreFaults::Heal() {
  if (stores_ == nullptr) return;
  stores_->Heal();
  Disturb(0);
}

void StoreFaults::Strike(const Fault& fault, SeededRandom* random) {
  if (stores_ == nullptr) return;
  SimulatedStore* const store = stores_->store(random->Below(stores_->size()));
  const auto nanos = static_cast<int64_t>(random->Below(2) == 0 ? random->Below(100 * kMilli)
                                                                : random->Below(300 * kSecond));
  const auto millis = static_cast<uint64_t>(nanos / kMilli);
  switch (fault.kind) {
    case FaultKind::kSlowStore: {
      const auto slow = static_cast<int64_t>(kMilli + random->Below(8 * kSecond));
      Seen(fault, static_cast<uint64_t>(slow / kMilli));
      store->SetSlow(slow);
      Disturb(nanos + slow);
      return EndLater(fault.kind, nanos, [store] { store->SetSlow(0); });
    }
    case FaultKind::kHangingStore:
      Seen(fault, millis);
      store->Hang(true);
      return EndLater(fault.kind, nanos, [store] { store->Hang(false); });
    case FaultKind::kFailingStore: {
      const bool all = random->Below(2) == 0;
      Seen(fault, millis);
      store->FailNext(all ? UINT64_MAX : 1 + random->Below(20));
      return EndLater(fault.kind, nanos, [store] { store->FailNext(0); });
    }
    case FaultKind::kLostAnswers: {
      const uint64_t changes = 1 + random->Below(12);
      Seen(fault, changes);
      store->LoseAnswers(changes);
      return EndLater(fault.kind, nanos, [store] { store->LoseAnswers(0); });
    }
    case FaultKind::kFullStore:
      Seen(fault, millis);
      store->SetFull(true);
      return EndLater(fault.kind, nanos, [store] { store->SetFull(false); });
    case FaultKind::kDamagedBlob:
      if (!store->DamageOne(random)) return;
      Seen(fault, 0);
      return truth_->StoresDamaged(scheduler_->now() + kBeliefNanos);
    case FaultKind::kEmptiedStore:
      if (store->blobs() == 0) return;
      Seen(fault, store->Empty());
      return truth_->StoresDamaged(scheduler_->now() + kBeliefNanos);
    case FaultKind::kKeysAway:
      if (!stores_->plan().sealed) return;
      Seen(fault, millis);
      stores_->keys()->SetReachable(false);
      return EndLater(fault.kind, nanos, [this] { stores_->keys()->SetReachable(true); });
    default:
      return;
  }
}

}  // namespace aquifer
