// A key-value server that others keep blocks in, as a peer to compare with: Redis or memcached on
// this host, asked the best way that its protocol has, over a Unix socket (loopback was slower for
// both, by 1.1 to 2 times). Blocks are read from the socket to where the client wants them, with no
// copy of ours in between.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "bench/peers/measured_peer.h"
#include "bench/peers/server_process.h"

namespace aquifer {

// How one of them is started and spoken to.
struct PeerDialect;

extern const PeerDialect kRedisDialect;
extern const PeerDialect kMemcachedDialect;

class PeerStore final : public MeasuredPeer {
 public:
  struct Options {
    uint64_t block_bytes = 0;
    std::span<std::byte> memory;  // The client's: the blocks that are stored, and where they go.
  };
  // Starts the server and stores all of the memory in it.
  static Result<std::unique_ptr<MeasuredPeer>> New(const PeerDialect& dialect,
                                                   const Options& options);

  static std::string_view NameOf(const PeerDialect& dialect);

  // The better of one block at a time and 64.
  Result<double> Get() override;

 private:
  PeerStore(const PeerDialect& dialect, const Options& options)
      : dialect_(dialect), options_(options) {}

  Status Start();
  Status Store(size_t block);
  Result<double> GetInBatches(size_t batch_blocks);
  Status GetBatch(size_t first, size_t count);

  size_t blocks() const { return options_.memory.size() / options_.block_bytes; }
  std::span<std::byte> Place(size_t block) const {
    return options_.memory.subspan(block * options_.block_bytes, options_.block_bytes);
  }

  const PeerDialect& dialect_;
  const Options options_;
  std::unique_ptr<ServerProcess> server_;
  Descriptor socket_;
};

}  // namespace aquifer
