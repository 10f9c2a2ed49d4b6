#include "sim/world/auditor.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/request_progress.h"

namespace aquifer {
namespace {

constexpr int64_t kPatienceNanos = int64_t{60} * 1'000'000'000;
constexpr int64_t kWaitNanos = int64_t{5} * 1'000'000'000;

}  // namespace

void Auditor::OnProgress(Request* request, size_t completed, bool done) {
  RequestProgress::Advance(request, completed, done);
}

template <class R>
bool Auditor::Do(void (Core::*call)(ClientNumber, R*), R* request, const char* what) {
  request_ = truth_->Asked(what, kPatienceNanos, node_->number());
  RequestProgress::Begin(request);
  node_->Post([this, call, request] { (node_->core()->*call)(client_, request); });
  const bool done = run_until_([request] { return request->done(); });
  if (!done) truth_->Violate(fmt::format("the audit's {} was never answered", what));
  return done;
}

ClientNumber Auditor::Join(uint32_t tenant) {
  const Result<ClientNumber> client =
      node_->core()->Attach({.tenant = node_->options().tenants[tenant].name, .engine = {}}, this);
  if (!client.ok()) truth_->Violate("the auditor could not attach");
  return client.ok() ? *client : 0;
}

ChainSlice Auditor::SliceOf(const Conversation& conversation) {
  RegisterLayoutRequest layout;
  layout.layout = conversations_->layout(conversation.layout);
  node_->core()->RegisterLayout(client_, &layout);
  return {.layout = layout.handle,
          .group = conversation.group,
          .part = 0,
          .keys = conversation.chain.keys()};
}

// Where a tenant has a floor, another may find no memory at all for what it has on NVMe.
bool Auditor::MemoryIsForAll() const {
  const std::vector<TenantOptions>& tenants = node_->options().tenants;
  return std::all_of(tenants.begin(), tenants.end(),
                     [](const TenantOptions& tenant) { return tenant.dram_floor_bytes == 0; });
}

void Auditor::Unpin(const Conversation& conversation) {
  PinRequest pin;
  pin.chain = SliceOf(conversation);
  pin.seconds = 0;
  truth_->PinSent(conversation.blocks, pin.seconds, node_->number());
  if (Do(&Core::Pin, &pin, "pin")) truth_->Answered(request_);
}

void Auditor::Wait() {
  bool over = false;
  node_->PostIn(kWaitNanos, [&over] { over = true; });
  if (!run_until_([&over] { return over; })) truth_->Violate("time stands still");
}

void Auditor::FindAll() {
  // All first: what is pinned elsewhere may be in the way.
  for (size_t i = 0; i < conversations_->size() && truth_->violation().empty(); ++i) {
    client_ = Join(conversations_->at(i).tenant);
    Unpin(conversations_->at(i));
    Leave();
  }
  for (size_t i = 0; i < conversations_->size() && truth_->violation().empty(); ++i) {
    const Conversation& conversation = conversations_->at(i);
    client_ = Join(conversation.tenant);
    truth_->Touched(conversation.blocks, node_->number());
    // Block by block: a chain may be larger than the DRAM there is.
    const ChainSlice chain = SliceOf(conversation);
    trace_->Add(TraceKind::kAudit, conversation.tenant, chain.keys.size());
    for (size_t block = 0; block < chain.keys.size(); ++block) {
      const BlockNumber number = conversation.blocks[block];
      FetchRequest fetch;
      fetch.chain = chain;
      fetch.chain.keys = chain.keys.subspan(block, 1);
      fetch.timeout_nanos = kPatienceNanos;
      if (!Do(&Core::Fetch, &fetch, "fetch")) return;
      // The tenant's key may not be in memory yet, nor may it be remembered what stores have.
      const bool unsure =
          fetch.ops[0].status.code() == Code::kNotFound && truth_->MustBeDurable(number, request_);
      if (unsure) {
        truth_->Answered(request_);
        Wait();
        if (!Do(&Core::Fetch, &fetch, "fetch")) return;
      }
      const FetchOp& op = fetch.ops[0];
      if (op.status.ok()) {
        truth_->Served(number, op.bytes, node_->ExtentOf(op.bytes.data()), request_);
        truth_->Released(op.bytes);
        const ReleaseOp release{.lease = op.lease};
        std::ignore = node_->core()->Release(client_, std::span(&release, 1));
      } else if (op.status.code() == Code::kNotFound) {
        truth_->Missed(number, request_, true, true);
      } else if (op.status.code() == Code::kCorrupt) {
        truth_->Corrupt(number);
      } else if (truth_->MustHave(number, UINT64_MAX, node_->number()) && MemoryIsForAll()) {
        truth_->Violate(fmt::format("block {} cannot be had: {}", number, op.status.ToString()));
      }
      truth_->Answered(request_);
    }
    Leave();
  }
}

void Auditor::DeleteAll() {
  for (uint32_t tenant = 0; tenant < node_->options().tenants.size(); ++tenant) {
    client_ = Join(tenant);
    EvictRequest evict;
    evict.everything = true;
    if (!Do(&Core::Evict, &evict, "deletion")) return;
    // A tenant's key may have to be read first, and a full queue has to empty.
    for (int again = 0; again < 5 && evict.status.code() == Code::kBusy; ++again) {
      truth_->Answered(request_);
      Wait();
      if (!Do(&Core::Evict, &evict, "deletion")) return;
    }
    if (evict.status.ok()) {
      truth_->Evicted(conversations_->BlocksOf(tenant), request_);
    } else {
      truth_->Violate("everything works, but a deletion does not: " + evict.status.ToString());
    }
    truth_->Answered(request_);
    Leave();
  }
}

void Auditor::FindNothing() {
  for (size_t i = 0; i < conversations_->size() && truth_->violation().empty(); ++i) {
    const Conversation& conversation = conversations_->at(i);
    client_ = Join(conversation.tenant);
    FetchRequest fetch;
    fetch.chain = SliceOf(conversation);
    fetch.timeout_nanos = kPatienceNanos;
    if (!Do(&Core::Fetch, &fetch, "fetch")) return;
    truth_->Answered(request_);
    for (size_t block = 0; block < fetch.ops.size(); ++block) {
      if (!fetch.ops[block].status.ok()) continue;
      const TierKind tier = fetch.ops[block].tier;
      truth_->Violate(fmt::format("block {} is there after everything was deleted, {}",
                                  conversation.blocks[block],
                                  tier == TierKind::kDurable ? "in a durable tier"
                                  : tier == TierKind::kNvme  ? "on NVMe"
                                                             : "in DRAM"));
    }
    Leave();
  }
}

}  // namespace aquifer
