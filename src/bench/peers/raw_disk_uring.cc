#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "bench/peers/raw_disk.h"

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
    for (const std::span<std::byte> memory : transfer_.memory) {
      const auto buffer = static_cast<int>(buffers.size());
      buffers.push_back({memory.data(), memory.size()});
      RawTransfer one = transfer_;
      one.memory = {memory};
      for (std::byte* const place : PlacesIn(one)) free_.push_back({place, buffer});
    }
    // A limit on locked memory may forbid it; it then works the other way.
    registered_ = io_uring_register_buffers(&ring_, buffers.data(),
                                            static_cast<unsigned>(buffers.size())) == 0;
    under_way_.resize(transfer_.depth);
    return Status();
  }

  Status Run() override {
    uint64_t next = 0;
    uint64_t done = 0;
    for (uint32_t i = 0; i < transfer_.depth && next < transfer_.blocks.size(); ++i)
      Prepare(i, next++);
    while (done < transfer_.blocks.size()) {
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR) return Failed(-submitted);
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        const auto number = static_cast<uint32_t>(io_uring_cqe_get_data64(completion));
        const int moved = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (moved < 0) return Failed(-moved);
        if (static_cast<uint64_t>(moved) != transfer_.block_bytes) return Failed(EIO);
        free_.push_back(under_way_[number]);
        ++done;
        if (next < transfer_.blocks.size()) Prepare(number, next++);
      }
    }
    return Status();
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  struct Place {
    std::byte* at = nullptr;
    int buffer = 0;  // Which registered buffer it is in.
  };

  static Status Failed(int error) {
    return Status(Code::kUnavailable, fmt::format("raw io_uring: {}", std::strerror(error)));
  }

  void Prepare(uint32_t number, uint64_t block) {
    const Place place = free_.front();
    free_.pop_front();
    under_way_[number] = place;
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);  // There are `depth` of them.
    const auto bytes = static_cast<unsigned>(transfer_.block_bytes);
    const auto [descriptor, offset] = transfer_.blocks[block];
    if (transfer_.write && registered_) {
      io_uring_prep_write_fixed(entry, descriptor, place.at, bytes, offset, place.buffer);
    } else if (transfer_.write) {
      io_uring_prep_write(entry, descriptor, place.at, bytes, offset);
    } else if (registered_) {
      io_uring_prep_read_fixed(entry, descriptor, place.at, bytes, offset, place.buffer);
    } else {
      io_uring_prep_read(entry, descriptor, place.at, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, number);
  }

  const RawTransfer transfer_;
  std::deque<Place> free_;        // Taken from the front, given back at the end: all in turn.
  std::vector<Place> under_way_;  // By the number of the transfer.
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
