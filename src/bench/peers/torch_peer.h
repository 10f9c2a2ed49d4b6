// What an engine in PyTorch does without us, as a peer to compare with: index_select or index_copy_
// on the GPU, and one copy of the whole to or from pinned memory. A Python program, told over a
// socket what to measure; the time is taken around the calls alone.
#pragma once

#include <cstdint>
#include <memory>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "bench/peers/server_process.h"

namespace aquifer {

class TorchPeer {
 public:
  // kNotFound where python3 has no torch that sees the GPU.
  static Result<std::unique_ptr<TorchPeer>> New();

  // One round of 1 GiB in pieces of that size; GB/s.
  Result<double> Measure(bool load, uint64_t piece_bytes);

 private:
  TorchPeer(std::unique_ptr<ServerProcess> server, Descriptor socket)
      : server_(std::move(server)), socket_(std::move(socket)) {}

  const std::unique_ptr<ServerProcess> server_;
  const Descriptor socket_;
};

}  // namespace aquifer
