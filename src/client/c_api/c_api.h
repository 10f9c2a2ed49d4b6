// What the C ABI (include/aquifer/aquifer.h) is made of: its two kinds of handles, and the border
// that no exception crosses and no pointer passes unseen.
//
//   c_api.cc           errors, caches, waiting
//   c_api_names.cc     layouts, keys and checksums
//   c_api_requests.cc  what is asked
//   c_api_answers.cc   what is answered
//   c_api_tensors.cc   an engine's tensors, and copies between them and slots
//   c_api_gpu.cc       the same where the tensors are in a GPU's memory
//   c_api_transfers.cc load and store: fetch or reserve, copy, release or commit, in one call
//
// A request belongs to the caller; while it is open, its cache knows it, so that either can go
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "aquifer/aquifer.h"
#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "block/tensor/engine_layout.h"
#include "block/tensor/gather_scatter.h"
#include "cuda/block_mover.h"
#include "cuda/device_memory.h"
#include "cuda/move_tables.h"

// NOLINTNEXTLINE(readability-identifier-naming): the C header's name.
struct aquifer_request {
  // The request, as this kind; what it was before is forgotten only when it was another kind.
  template <class R>
  R* Use() {
    R* const same = std::get_if<R>(&any);
    return same != nullptr ? same : &any.emplace<R>();
  }
  // Null: it was never used.
  aquifer::Request* base();
  const aquifer::Request* base() const { return const_cast<aquifer_request*>(this)->base(); }

  std::variant<std::monostate, aquifer::RegisterLayoutRequest, aquifer::MatchRequest,
               aquifer::FetchRequest, aquifer::ReserveRequest, aquifer::CommitRequest,
               aquifer::FlushRequest, aquifer::PinRequest, aquifer::PrestageRequest,
               aquifer::EvictRequest, aquifer::DrainRequest, aquifer::StatsRequest>
      any;
  aquifer_cache* cache = nullptr;  // While it is open.
  std::vector<aquifer::Key> keys;  // Copies of what the caller passed.
  std::vector<uint64_t> hashes;
};

// NOLINTNEXTLINE(readability-identifier-naming): the C header's name.
struct aquifer_cache {
  explicit aquifer_cache(std::unique_ptr<aquifer::Cache> made) : client(std::move(made)) {}
  ~aquifer_cache();

  // Forgets the requests that are done. After every call that may have moved one on.
  void Sweep();
  // Keeps a request whose owner has gone until it is done.
  void Adopt(aquifer_request* request);
  // What moves blocks to and from that GPU, made when it is first asked for. A device of which
  // that, or anything later, failed once is not tried again: the path is off, and why.
  aquifer::Result<aquifer::BlockMover*> MoverFor(int device);

  std::unique_ptr<aquifer::Cache> client;
  std::vector<aquifer_request*> open;
  std::vector<std::unique_ptr<aquifer_request>> orphans;  // Also in `open`.
  std::map<int, std::unique_ptr<aquifer::BlockMover>> movers;
  std::map<int, aquifer::Status> no_movers;
};

// NOLINTNEXTLINE(readability-identifier-naming): the C header's name.
struct aquifer_tensor_map {
  aquifer::EngineMap map;
  // As a commit names them: {0, 0} where they are all heads.
  aquifer::HeadRange committed_heads;
  int device = aquifer::kHostMemory;  // In whose memory the tensors are.
  aquifer::MoveTables tables;         // Of a GPU's.
};

namespace aquifer {

// Keeps the text for aquifer_error().
aquifer_code Fail(Code code, const char* text) noexcept;

// Runs what a C function does; `call` returns a Status.
template <class Call>
aquifer_code Guarded(Call call) noexcept {
  try {
    const Status status = call();
    return status.ok() ? AQUIFER_OK : Fail(status.code(), status.message().c_str());
  } catch (const std::bad_alloc&) {
    return Fail(Code::kNoSpace, "this process is out of memory");
  } catch (const std::exception& error) {
    return Fail(Code::kInvalid, error.what());
  }
}

Status CheckSize(const void* given, uint32_t size, size_t known, const char* name);

// A struct that the caller passed: of this version, of a later one that uses nothing new, or of an
// earlier one, when it had `least` bytes; the rest is 0 then.
template <class T>
Status ReadStruct(const T* given, const char* name, T* known, size_t least = sizeof(T)) {
  if (given == nullptr) return Status(Code::kInvalid, std::string(name) + " is null");
  const size_t length = given->size == least ? least : sizeof(T);
  AQ_RETURN_IF_ERROR(CheckSize(given, given->size, length, name));
  *known = {};
  std::memcpy(known, given, length);
  if constexpr (requires { known->reserved; }) {
    if (known->reserved != 0) {
      return Status(Code::kInvalid, std::string(name) + ".reserved is not 0; clear the struct");
    }
  }
  return Status();
}

// Writes an answer into a struct of the caller's, who said how long it is.
template <class T>
Status WriteStruct(T value, const char* name, T* to) {
  if (to == nullptr) return Status(Code::kInvalid, std::string(name) + " is null");
  if (to->size < sizeof(T)) {
    return Status(Code::kInvalid, std::string(name) + ".size is too small; set it to its sizeof");
  }
  value.size = to->size;  // What lies behind is of a later version, and as the caller left it.
  std::memcpy(to, &value, sizeof(T));
  return Status();
}

template <class T>
Status CheckNotNull(T* pointer, const char* name) {
  return pointer != nullptr ? Status() : Status(Code::kInvalid, std::string(name) + " is null");
}

// An array may be null when it is empty.
template <class T>
Status CheckArray(const T* array, size_t count, const char* name) {
  return count == 0 ? Status() : CheckNotNull(array, name);
}

template <class T>
Status CheckRange(T value, T first, T last, const char* name) {
  if (value >= first && value <= last) return Status();
  return Status(Code::kInvalid,
                std::string(name) + " is " + std::to_string(value) + ", which there is not");
}

inline std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

static_assert(sizeof(aquifer_key) == sizeof(Key) && alignof(aquifer_key) == alignof(Key));
inline std::span<const Key> KeysOf(const aquifer_key* keys, size_t count) {
  return {reinterpret_cast<const Key*>(keys), count};
}

Status CheckChain(const aquifer_chain& chain);
Status ReadVerify(int32_t given, Verify* verify);

// The C header's layout as ours; what it says may still be wrong, for ValidateLayout() to tell.
Status ReadLayout(const aquifer_layout* given, Layout* layout);

}  // namespace aquifer
