// A BlobStore in Redis or Valkey: one server, or a Redis Cluster, which it notices by itself when a
// server says that a key is elsewhere.
//
// A small blob is one value. A large one is cut into pieces, so that no command keeps the server
// busy for long, and a manifest, written last, says which pieces are its own; docs/formats/redis.md
// has the bytes. Pieces that the server has evicted make the blob a miss. Payload goes from the
// request's memory to the socket and back with no copy in between, but for what TLS does.
//
// Has threads of its own, each with its own connections; a name always goes to the same one, and
// its on_done runs there. A server that cannot be reached, or refuses us, is asked again after a
// pause that grows to two seconds; until then requests fail at once. Nothing is retried beyond a
// request's deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store.h"

namespace aquifer {

struct RedisStoreOptions {
  // "host:port" each; one is enough. Of a cluster, any that are likely to be there; otherwise one
  // server and those that stand in for it.
  std::vector<std::string> servers;
  std::string user;      // Of the server's ACL; empty: its default user.
  std::string password;  // Empty: none is sent. Never shown.

  bool tls = false;
  std::string ca_file;           // Empty: the authorities that the system trusts.
  std::string certificate_file;  // Ours, where the server wants one; with key_file.
  std::string key_file;
  std::string tls_name;  // What the server's certificate must be for; empty: the host asked.

  // Begins every key. Any characters but braces; up to 128.
  std::string prefix = "aquifer:";

  // 4 KiB to 64 MiB. 64 bytes less than a power of two: with its header a value then fits the size
  // class of that power in the server's allocator (jemalloc); the next class is a quarter larger.
  // And the server reads a value that has no spare room to where it stays; with spare room it would
  // also read what follows, and copy.
  uint32_t piece_bytes = (uint32_t{512} << 10) - 64;
  uint32_t threads = 2;
  uint32_t connections = 2;               // To each server, of each thread.
  size_t most_queued = 1024;              // Requests under way; more are kBusy.
  int64_t timeout_nanos = 5'000'000'000;  // A server that says nothing for so long is given up.

  const Clock* clock = SystemClock();
  Random* random = SystemRandom();
};

// Does not connect yet. kInvalid: an option is wrong, or a file of TLS cannot be read.
Result<std::unique_ptr<BlobStore>> NewRedisStore(RedisStoreOptions options);

}  // namespace aquifer
