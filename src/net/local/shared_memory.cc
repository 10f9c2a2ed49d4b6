#include "net/local/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace aquifer {
namespace {

Status Failed(const char* step) {
  return Status(Code::kUnavailable, std::string(step) + ": " + std::strerror(errno));
}

}  // namespace

Result<SharedMemory> SharedMemory::New(uint64_t bytes) {
  Descriptor descriptor(::memfd_create("aquifer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return Failed("memfd_create");
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) return Failed("ftruncate");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Failed("F_ADD_SEALS");
  }
  return MapOpen(std::move(descriptor), bytes);
}

Result<SharedMemory> SharedMemory::Map(Descriptor descriptor, uint64_t bytes) {
  struct stat status{};
  if (::fstat(descriptor.get(), &status) != 0) return Failed("fstat");
  if (bytes == 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    return Status(Code::kInvalid, "the shared memory has another size than announced");
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kInvalid, "the shared memory is not sealed against shrinking");
  }
  return MapOpen(std::move(descriptor), bytes);
}

Result<SharedMemory> SharedMemory::MapOpen(Descriptor descriptor, uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (at == MAP_FAILED) return Failed("mmap");
  // A child of this process does not use the memory, and would keep it alive.
  ::madvise(at, bytes, MADV_DONTFORK);
  ::madvise(at, bytes, MADV_DONTDUMP);
  SharedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  memory.bytes_ = {static_cast<std::byte*>(at), bytes};
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  descriptor_ = std::move(other.descriptor_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace aquifer
