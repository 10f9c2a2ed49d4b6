// One blob at a time, waited for, for tests of stores. A blob's bytes follow from its seed, so that
// whoever reads it can judge every byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <utility>

#include "aquifer/status.h"
#include "store/blob_store.h"
#include "testing/disk_requests.h"

namespace aquifer {

class BlobCaller {
 public:
  static constexpr size_t kHeadBytes = 4096;

  explicit BlobCaller(BlobStore* store) : store_(store) {}

  BlobRequest Do(BlobRequest request) const {
    std::promise<void> done;
    request.on_done = [&](BlobRequest&) { done.set_value(); };
    store_->Submit(&request);
    done.get_future().wait();
    return request;
  }

  BlobRequest Put(const std::string& name, uint64_t body_bytes, uint64_t seed,
                  bool if_absent) const {
    const AlignedBytes bytes(kHeadBytes + RoundUpToPage(body_bytes), seed);
    return Do({.kind = BlobKind::kWrite,
               .name = name,
               .head = bytes.span().first(kHeadBytes),
               .body = bytes.span().subspan(kHeadBytes),
               .body_bytes = body_bytes,
               .if_absent = if_absent});
  }
  Status Write(const std::string& name, uint64_t body_bytes, uint64_t seed) const {
    return Put(name, body_bytes, seed, /*if_absent=*/false).status;
  }

  // kInvalid when other bytes came than were written from this seed.
  Status Read(const std::string& name, uint64_t body_bytes, uint64_t seed) const {
    const AlignedBytes target(kHeadBytes + RoundUpToPage(body_bytes));
    const BlobRequest read = Do({.kind = BlobKind::kRead,
                                 .name = name,
                                 .head = target.span().first(kHeadBytes),
                                 .body = target.span().subspan(kHeadBytes)});
    if (!read.status.ok()) return read.status;
    const AlignedBytes expected(target.span().size(), seed);
    const size_t size = kHeadBytes + body_bytes;
    const bool same =
        read.blob_bytes == size &&
        std::equal(target.span().begin(), target.span().begin() + size, expected.span().begin());
    return same ? Status() : Status(Code::kInvalid, "wrong bytes of " + name);
  }

  Status Remove(const std::string& name) const {
    return Do({.kind = BlobKind::kRemove, .name = name}).status;
  }
  Status Look(const std::string& name) const {
    return Do({.kind = BlobKind::kLook, .name = name}).status;
  }

  uint64_t Counter(std::string_view name) const {
    for (const auto& [each, value] : store_->Counters()) {
      if (each == name) return value;
    }
    return UINT64_MAX;
  }

 private:
  BlobStore* const store_;
};

}  // namespace aquifer
