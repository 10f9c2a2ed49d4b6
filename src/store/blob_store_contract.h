// What blob_store.h promises, as one suite over every store. A store's own test names
// blob_store_contract.cc among its sources and says
//
//   INSTANTIATE_TEST_SUITE_P(Posix, BlobStoreContract, testing::Values(BlobStoreParam{...}),
//                            [](const auto& info) { return info.param.name; });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "store/blob_store.h"

namespace aquifer {

// A place where blobs live, empty at first, and the world around it.
class BlobStoreHarness {
 public:
  virtual ~BlobStoreHarness() = default;

  // One more store on the same place, as another process has. Made by the test and destroyed
  // before the harness. At most `max_queued` requests are under way in it at once, if it is told.
  virtual std::unique_ptr<BlobStore> Open(size_t max_queued) = 0;

  virtual int64_t NowNanos() = 0;
  // Lets the world run until `done()`. Half a minute without it is a failure of the test, and then
  // the answer is false.
  virtual bool RunUntil(const std::function<bool()>& done) = 0;

  // The rest is for those that can: false says that they cannot.

  // From now on nothing is answered, or all is again; also when no store is left.
  virtual bool Hang(bool) { return false; }
  // The blob loses its end, behind the store's back.
  virtual bool CutShort(const std::string& /*name*/, uint64_t /*bytes*/) { return false; }
  // The server cannot be reached any more, or can again.
  virtual bool Disconnect(bool) { return false; }
};

struct BlobStoreParam {
  std::string name;
  std::function<std::unique_ptr<BlobStoreHarness>()> make;
  bool bounded = true;  // Open()'s `max_queued` is obeyed.
  bool threads = true;  // Any thread may submit in this harness too.
  // The largest that is tried here.
  uint64_t max_blob_bytes = (uint64_t{8} << 20) + 4096;
};

// For gtest's messages.
inline std::ostream& operator<<(std::ostream& out, const BlobStoreParam& param) {
  return out << param.name;
}

class BlobStoreContract : public testing::TestWithParam<BlobStoreParam> {
 protected:
  // Memory as the tiers' is: aligned, whole pages, filled from a seed.
  class Bytes {
   public:
    Bytes(size_t size, uint64_t seed);
    std::span<std::byte> all() const { return {memory_.get(), size_}; }
    std::span<std::byte> head() const { return all().first(kHeadBytes); }
    std::span<std::byte> body() const { return all().subspan(kHeadBytes); }

   private:
    struct Free {
      void operator()(std::byte* bytes) const;
    };
    size_t size_;
    std::unique_ptr<std::byte[], Free> memory_;
  };

  struct Outcome {
    Status status;
    bool existed = false;
    uint64_t blob_bytes = 0;
    int done = 0;
  };

  static constexpr size_t kHeadBytes = 4096;

  void SetUp() override;
  void TearDown() override;

  // A head of 4096 bytes and `body_bytes` behind it, made from the seed.
  Status Write(BlobStore* store, const std::string& name, uint64_t body_bytes, uint64_t seed);
  Outcome WriteIfAbsent(BlobStore* store, const std::string& name, uint64_t body_bytes,
                        uint64_t seed);
  // Ok only if that very blob came back.
  Status Read(BlobStore* store, const std::string& name, uint64_t body_bytes, uint64_t seed);
  Status Remove(BlobStore* store, const std::string& name);
  Outcome Do(BlobStore* store, BlobRequest* request);
  Result<BlobStore::Names> List(BlobStore* store, std::string_view prefix, std::string_view after,
                                size_t max);
  // All pages of a listing.
  std::vector<std::string> ListAll(BlobStore* store, std::string_view prefix, size_t page);

  std::unique_ptr<BlobStoreHarness> harness_;
  std::unique_ptr<BlobStore> store_;
};

}  // namespace aquifer
