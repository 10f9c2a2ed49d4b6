#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "cli/raw_disk.h"

namespace aquifer {
namespace {

class UringRawEngine final : public RawEngine {
 public:
  explicit UringRawEngine(const RawTransfer& transfer) : transfer_(transfer) {}
  ~UringRawEngine() override {
    if (ready_) io_uring_queue_exit(&ring_);
  }

  Status Init() {
    const int error = io_uring_queue_init(transfer_.depth, &ring_, 0);
    if (error < 0) return Status(Code::kUnavailable, std::strerror(-error));
    ready_ = true;
    std::vector<iovec> buffers;
    for (uint32_t i = 0; i < transfer_.depth; ++i) {
      buffers.push_back(
          {transfer_.buffers.data() + i * transfer_.block_bytes, transfer_.block_bytes});
    }
    // A limit on locked memory may forbid it; it then works the other way.
    registered_ = io_uring_register_buffers(&ring_, buffers.data(), transfer_.depth) == 0;
    return Status();
  }

  Status Run() override {
    uint64_t next = 0;
    uint64_t done = 0;
    for (uint32_t i = 0; i < transfer_.depth && next < transfer_.blocks; ++i) Prepare(i, next++);
    while (done < transfer_.blocks) {
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR) return Failed(-submitted);
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        const auto buffer = static_cast<uint32_t>(io_uring_cqe_get_data64(completion));
        const int moved = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (moved < 0) return Failed(-moved);
        if (static_cast<uint64_t>(moved) != transfer_.block_bytes) return Failed(EIO);
        ++done;
        if (next < transfer_.blocks) Prepare(buffer, next++);
      }
    }
    return Status();
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  static Status Failed(int error) {
    return Status(Code::kUnavailable, fmt::format("raw io_uring: {}", std::strerror(error)));
  }

  void Prepare(uint32_t buffer, uint64_t block) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);  // There is one for every buffer.
    std::byte* const at = transfer_.buffers.data() + buffer * transfer_.block_bytes;
    const auto bytes = static_cast<unsigned>(transfer_.block_bytes);
    const uint64_t offset = block * transfer_.block_bytes;
    const auto index = static_cast<int>(buffer);
    if (transfer_.write && registered_) {
      io_uring_prep_write_fixed(entry, transfer_.descriptor, at, bytes, offset, index);
    } else if (transfer_.write) {
      io_uring_prep_write(entry, transfer_.descriptor, at, bytes, offset);
    } else if (registered_) {
      io_uring_prep_read_fixed(entry, transfer_.descriptor, at, bytes, offset, index);
    } else {
      io_uring_prep_read(entry, transfer_.descriptor, at, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, buffer);
  }

  const RawTransfer transfer_;
  io_uring ring_{};
  bool ready_ = false;
  bool registered_ = false;
};

}  // namespace

Result<std::unique_ptr<RawEngine>> NewUringRawEngine(const RawTransfer& transfer) {
  auto engine = std::make_unique<UringRawEngine>(transfer);
  AQ_RETURN_IF_ERROR(engine->Init());
  return std::unique_ptr<RawEngine>(std::move(engine));
}

}  // namespace aquifer
