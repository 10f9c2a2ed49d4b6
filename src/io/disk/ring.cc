#include "io/disk/ring.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kMaxBuffers = 16384;                // The kernel's own limit.
constexpr size_t kMaxBufferBytes = size_t{1} << 30;  // As well.

// Best first; older kernels refuse what they do not know.
constexpr unsigned kSetupFlags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,  // 6.1: no work until we ask.
    IORING_SETUP_COOP_TASKRUN,                                // 5.19: no interrupts for it.
    0,
};

constexpr int kOperations[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                               IORING_OP_WRITE_FIXED, IORING_OP_FSYNC};

Status SetupError(int error) {
  const char* why = "";
  switch (error) {
    case ENOSYS:
      why = "this kernel has no io_uring, or a sandbox hides it";
      break;
    case EPERM:
    case EACCES:
      why = "io_uring is forbidden here (kernel.io_uring_disabled or a seccomp profile)";
      break;
    case ENOMEM:
      why = "not enough locked memory for io_uring (raise ulimit -l)";
      break;
    default:
      why = "io_uring cannot be set up";
      break;
  }
  return Status(Code::kUnavailable,
                fmt::format("{}: {}", why, std::generic_category().message(error)));
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::Open(uint32_t entries, uint32_t files) {
  std::unique_ptr<Ring> ring(new Ring());
  int error = EINVAL;
  for (size_t i = 0; i < std::size(kSetupFlags) && error == EINVAL; ++i) {
    error = -io_uring_queue_init(entries, &ring->ring_, kSetupFlags[i]);
  }
  if (error != 0) {
    ring->ring_.ring_fd = -1;
    return SetupError(error);
  }
  io_uring_probe* probe = io_uring_get_probe_ring(&ring->ring_);
  const bool complete =
      probe != nullptr && std::all_of(std::begin(kOperations), std::end(kOperations), [&](int op) {
        return io_uring_opcode_supported(probe, op) != 0;
      });
  io_uring_free_probe(probe);
  if (!complete) {
    return Status(Code::kUnavailable, "this kernel's io_uring is too old: it needs Linux 5.6");
  }
  // Both tables only save time, so a kernel without them (before 5.19) or a low limit is fine.
  if (files > 0 && io_uring_register_files_sparse(&ring->ring_, files) == 0) {
    ring->in_table_.resize(files);
  }
  if (io_uring_register_buffers_sparse(&ring->ring_, kMaxBuffers) == 0) {
    for (size_t i = kMaxBuffers; i > 0; --i) {
      ring->free_numbers_.push_back(static_cast<uint16_t>(i - 1));
    }
  }
  return ring;
}

Ring::~Ring() {
  if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
}

io_uring_sqe* Ring::Next() {
  io_uring_sqe* submission = io_uring_get_sqe(&ring_);
  AQ_CHECK(submission != nullptr);
  return submission;
}

void Ring::SubmitAndWait(uint32_t wait) {
  const int result = io_uring_submit_and_wait(&ring_, wait);
  // Signals, and a kernel that is short of memory or has completions for us to take first: what was
  // not submitted stays prepared, and the caller comes back.
  AQ_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY ||
           result == -ENOMEM);
}

void Ring::UseFile(io_uring_sqe* submission, size_t slot, int fd) const {
  if (slot < in_table_.size() && in_table_[slot]) {
    submission->fd = static_cast<int>(slot);
    submission->flags |= IOSQE_FIXED_FILE;
  } else {
    submission->fd = fd;
  }
}

void Ring::SetFile(size_t slot, int fd) {
  if (slot >= in_table_.size()) return;
  const bool set = io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &fd, 1) == 1;
  in_table_[slot] = set && fd >= 0;
}

void Ring::Remember(std::span<std::byte> memory) {
  while (!memory.empty() && !free_numbers_.empty()) {
    const std::span<std::byte> piece = memory.first(std::min(memory.size(), kMaxBufferBytes));
    const uint16_t number = free_numbers_.back();
    if (known_.contains(piece.data()) || !SetBuffer(number, piece)) return;
    free_numbers_.pop_back();
    known_.emplace(piece.data(), Known{.bytes = piece.size(), .number = number});
    memory = memory.subspan(piece.size());
  }
}

void Ring::Forget(std::span<std::byte> memory) {
  const auto begin = known_.lower_bound(memory.data());
  const auto end = known_.lower_bound(memory.data() + memory.size());
  for (auto it = begin; it != end; ++it) {
    // Should the kernel keep it, the number is lost but never used again for other memory.
    if (SetBuffer(it->second.number, {})) free_numbers_.push_back(it->second.number);
  }
  known_.erase(begin, end);
}

bool Ring::SetBuffer(uint16_t number, std::span<std::byte> memory) {
  const iovec piece = {.iov_base = memory.data(), .iov_len = memory.size()};
  const __u64 tag = 0;
  return io_uring_register_buffers_update_tag(&ring_, number, &piece, &tag, 1) == 1;
}

std::optional<uint16_t> Ring::Find(std::span<const std::byte> memory) const {
  auto after = known_.upper_bound(memory.data());
  if (after == known_.begin()) return std::nullopt;
  const auto& [begin, known] = *std::prev(after);
  const auto offset = static_cast<size_t>(memory.data() - begin);
  if (offset >= known.bytes || memory.size() > known.bytes - offset) return std::nullopt;
  return known.number;
}

}  // namespace aquifer
