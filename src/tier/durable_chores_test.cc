// What a durable tier does beside blocks: erasing all that a tenant has, and the sweep.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tier/durable_harness.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMillisecond = 1'000'000;

// ---- The sweep ----

DurableHarnessOptions Sweeping() {
  DurableHarnessOptions options;
  options.tier.sweep_interval_nanos = 100 * kSecond;
  return options;
}

TEST(DurableSweep, WhatAnotherNodeRenewsMeanwhileStays) {
  DurableHarness harness(Sweeping());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.clock.SetUnixSeconds(block.meta().expiry_unix_seconds + 100);
  const std::string name = harness.OnlyName();
  std::vector<std::byte> renewed = harness.blobs->Get(name);
  Result<BlockMeta> meta = DecodeHead(std::span(renewed).first<kBlobHeadBytes>());
  ASSERT_TRUE(meta.ok());
  meta->expiry_unix_seconds = 0;
  EncodeHead(*meta, 2, std::span(renewed).first<kBlobHeadBytes>());
  int removals = 0;
  harness.store->OnRequest([&](const BlobRequest& request) {
    if (request.kind == BlobKind::kRemove && ++removals == 1) harness.blobs->Put(name, renewed);
  });
  harness.Advance(500 * kSecond);
  EXPECT_GE(harness.Counter("sweeps"), 2u);
  EXPECT_EQ(removals, 1);
  EXPECT_EQ(harness.Counter("swept_blobs"), 0u);
  EXPECT_EQ(harness.blobs->Get(name), renewed);
}

}  // namespace
}  // namespace aquifer
