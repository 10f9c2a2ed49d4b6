// What tier.h promises, as one suite over every tier. A tier's own test names tier_contract.cc
// among its sources and says
//
//   INSTANTIATE_TEST_SUITE_P(Nvme, TierContract, testing::Values(TierContractParam{...}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tier/test_block.h"
#include "tier/tier.h"

namespace aquifer {

// A tier and the world that it lives in.
class TierHarness {
 public:
  virtual ~TierHarness() = default;

  virtual Tier* tier() = 0;

  // Runs `work` where the tier's executor runs, and returns when it has run.
  virtual void Do(const std::function<void()>& work) = 0;
  // Lets the world run until `done()` or, failing that, until nothing moves; then returns done().
  virtual bool RunUntil(const std::function<bool()>& done) = 0;
  virtual int64_t NowNanos() = 0;

  // What the tier knows of a block, how many it has, and what it says of each. A tier that must be
  // asked (tier/durable/durable_tier.h) answers from its store.
  virtual Status Probe(const BlockId& id) {
    Status status;
    Do([&] { status = tier()->Probe(id); });
    return status;
  }
  virtual uint64_t BlockCount() {
    uint64_t count = 0;
    Do([&] { count = tier()->Usage().block_count; });
    return count;
  }
  // Of what can be read, parents first where the tier enumerates.
  virtual std::vector<BlockMeta> Metas() = 0;

  // The rest is for those that can: false says that they cannot.

  // Lets time pass.
  virtual bool Advance(int64_t) { return false; }
  // The device stops answering, or answers again.
  virtual bool Hang(bool) { return false; }
  // The process ends and starts again. Blocks survive.
  virtual bool Restart() { return false; }
};

struct TierContractOptions {
  uint64_t capacity_bytes = uint64_t{64} << 20;
  uint64_t max_block_bytes = uint64_t{1} << 20;
  uint32_t max_queued_ops = 256;
};

struct TierContractParam {
  std::string name;
  std::function<std::unique_ptr<TierHarness>(const TierContractOptions&)> make;
  bool verifies_sources = true;  // Write() refuses bytes that do not match their checksum.
  bool reclaims = false;         // A full tier drops old blocks by itself.
  bool enumerates = true;        // It knows what it has, and keeps a meta as it was given.
  bool counts_bytes = true;      // It has a cap, and knows to the byte what it uses.
};

// For gtest's messages.
inline std::ostream& operator<<(std::ostream& out, const TierContractParam& param) {
  return out << param.name;
}

class TierContract : public testing::TestWithParam<TierContractParam> {
 protected:
  void Make(const TierContractOptions& options = {}) { harness_ = GetParam().make(options); }
  Tier* tier() { return harness_->tier(); }

  // Each submits one batch, runs it to its end and returns the statuses.
  std::vector<Status> Write(const std::vector<const TestBlock*>& blocks);
  Status Write(const TestBlock& block) { return Write(std::vector{&block})[0]; }
  std::vector<Status> Erase(const std::vector<BlockId>& ids);
  Status Erase(const BlockId& id) { return Erase(std::vector{id})[0]; }
  // Ok only if the very bytes came back.
  Status Read(const TestBlock& block);
  Status Probe(const BlockId& id) { return harness_->Probe(id); }
  uint64_t BlockCount() { return harness_->BlockCount(); }
  TierUsage Usage();

  std::unique_ptr<TierHarness> harness_;
};

}  // namespace aquifer
