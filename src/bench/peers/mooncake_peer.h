// Mooncake Store as a peer to compare with: its master, a process that holds the blocks and a
// client that gets them into memory it has registered, over loopback TCP. Its interface is Python,
// so the client is a Python program, told over a socket when to measure; the time is taken around
// the calls alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "bench/peers/measured_peer.h"
#include "bench/peers/server_process.h"

namespace aquifer {

class MooncakePeer final : public MeasuredPeer {
 public:
  // Starts it and stores so many blocks in it; kNotFound when it is neither in PATH nor where
  // tools/install-peers puts it.
  static Result<std::unique_ptr<MeasuredPeer>> New(uint64_t block_bytes, uint64_t blocks);

  // The better of one block at a time and 64.
  Result<double> Get() override;

 private:
  MooncakePeer(std::unique_ptr<ServerProcess> server, Descriptor socket)
      : server_(std::move(server)), socket_(std::move(socket)) {}

  const std::unique_ptr<ServerProcess> server_;
  const Descriptor socket_;
};

}  // namespace aquifer
