// Shared by the tests of the Redis store: a store over a real server, and blobs made from a seed.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "store/redis/redis_store.h"
#include "testing/seeded_random.h"

namespace aquifer {

inline constexpr size_t kHeadBytes = 4096;
inline constexpr uint32_t kPieceBytes = uint32_t{16}
                                        << 10;  // Small, so that most blobs have several pieces.
inline constexpr int64_t kSecond = 1'000'000'000;

inline bool RunUntil(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline RedisStoreOptions OptionsFor(const std::string& address) {
  RedisStoreOptions options;
  options.servers = {address};
  options.piece_bytes = kPieceBytes;
  return options;
}

inline std::unique_ptr<BlobStore> Open(const RedisStoreOptions& options) {
  auto store = NewRedisStore(options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return *std::move(store);
}

inline uint64_t Counter(const BlobStore& store, std::string_view name) {
  for (const auto& [counter, value] : store.Counters()) {
    if (counter == name) return value;
  }
  ADD_FAILURE() << "there is no counter " << name;
  return 0;
}

// Head and body in one memory.
struct Blob {
  Blob(size_t body_bytes, uint64_t seed) : bytes(kHeadBytes + body_bytes) {
    SeededRandom(seed).Fill(bytes);
  }
  std::span<std::byte> head() { return std::span(bytes).first(kHeadBytes); }
  std::span<std::byte> body() { return std::span(bytes).subspan(kHeadBytes); }

  std::vector<std::byte> bytes;
};

inline Status Do(BlobStore* store, BlobRequest* request) {
  std::atomic<bool> done = false;
  request->on_done = [&](BlobRequest&) { done = true; };
  store->Submit(request);
  EXPECT_TRUE(RunUntil([&] { return done.load(); })) << "no answer";
  return request->status;
}

inline int64_t In(int64_t nanos) { return SystemClock()->NowNanos() + nanos; }

inline Status Write(BlobStore* store, const std::string& name, size_t body_bytes, uint64_t seed,
                    bool if_absent = true) {
  Blob blob(body_bytes, seed);
  BlobRequest request{.kind = BlobKind::kWrite,
                      .name = name,
                      .head = blob.head(),
                      .body = blob.body(),
                      .body_bytes = body_bytes,
                      .if_absent = if_absent};
  return Do(store, &request);
}

// Returns ok only if that very blob came back.
inline Status Read(BlobStore* store, const std::string& name, size_t body_bytes, uint64_t seed,
                   int64_t deadline_nanos = INT64_MAX) {
  const Blob expected(body_bytes, seed);
  Blob target(body_bytes, seed + 1);
  BlobRequest request{
      .name = name, .head = target.head(), .body = target.body(), .deadline_nanos = deadline_nanos};
  Status status = Do(store, &request);
  EXPECT_TRUE(!status.ok() || target.bytes == expected.bytes) << "wrong bytes of " << name;
  return status;
}

inline Code Look(BlobStore* store, const std::string& name) {
  BlobRequest request{.kind = BlobKind::kLook, .name = name};
  return Do(store, &request).code();
}

inline Status Remove(BlobStore* store, const std::string& name) {
  BlobRequest request{.kind = BlobKind::kRemove, .name = name};
  return Do(store, &request);
}

}  // namespace aquifer
