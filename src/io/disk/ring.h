// An io_uring with the tables that a disk uses: files and memory that the kernel looks up once. It
// belongs to the thread that opens it; no other may touch it.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class Ring {
 public:
  // `entries` submissions fit between two calls of SubmitAndWait(). `files` is the size of the file
  // table. kUnavailable says why io_uring cannot be used.
  static Result<std::unique_ptr<Ring>> Open(uint32_t entries, uint32_t files);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Never null: the caller keeps to `entries`.
  io_uring_sqe* Next();

  // Submits what was prepared and waits for `wait` completions, in one system call.
  void SubmitAndWait(uint32_t wait);

  // Calls visit(user_data, result) for every completion that is there.
  template <class Visit>
  void Reap(const Visit& visit) {
    unsigned head = 0;
    unsigned count = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(&ring_, head, completion) {
      visit(completion->user_data, completion->res);
      ++count;
    }
    io_uring_cq_advance(&ring_, count);
  }

  // Points the submission at a file: by `slot` if SetFile() could put it there, else by `fd`.
  void UseFile(io_uring_sqe* submission, size_t slot, int fd) const;
  void SetFile(size_t slot, int fd);  // -1 takes it out.

  // Best effort: within the limits on locked memory and on the number of pieces.
  void Remember(std::span<std::byte> memory);
  void Forget(std::span<std::byte> memory);

  // The number under which the kernel knows the memory; none if it does not.
  std::optional<uint16_t> Find(std::span<const std::byte> memory) const;

 private:
  Ring() { ring_.ring_fd = -1; }

  struct Known {
    size_t bytes = 0;
    uint16_t number = 0;
  };

  bool SetBuffer(uint16_t number, std::span<std::byte> memory);

  io_uring ring_ = {};
  std::vector<bool> in_table_;          // For each slot of the file table. Empty: no table.
  std::vector<uint16_t> free_numbers_;  // Of the buffer table. Empty: no table, or full.
  std::map<const std::byte*, Known> known_;
};

}  // namespace aquifer
