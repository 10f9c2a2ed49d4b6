// A BlobStore in Redis or Valkey: one server, or a Redis Cluster. The store notices a cluster when
// a server says that a key is on another one.
//
// A small blob is one value. A large blob is cut into pieces, so that no command keeps the server
// busy for long. Its manifest is written last and names its pieces; docs/formats/redis.md has the
// bytes. If the server has evicted a piece, the blob is a miss. Payload goes between the request's
// memory and the socket without a copy in between, except for TLS.
//
// The store has threads of its own, each with its own connections. A name always goes to the same
// thread, and its on_done runs there. If a server cannot be reached, or refuses us, the store asks
// it again after a pause that grows to two seconds. Until then, requests fail at once. Nothing is
// repeated beyond a request's deadline.
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
  // "host:port" each; one is enough. For a cluster: any servers that are likely to be up.
  // Otherwise: one server and its stand-ins.
  std::vector<std::string> servers;
  std::string user;      // A user of the server's ACL; empty: its default user.
  std::string password;  // Empty: no password is sent. Never shown.

  bool tls = false;
  std::string ca_file;           // Empty: the authorities that the system trusts.
  std::string certificate_file;  // Our certificate, if the server wants one; with key_file.
  std::string key_file;
  std::string tls_name;  // The name in the server's certificate; empty: the host that was asked.

  // Begins every key. Any characters but braces; up to 128.
  std::string prefix = "aquifer:";

  // 4 KiB to 64 MiB. The default is 64 bytes less than a power of two: with its header a value then
  // fits that size class of the server's allocator (jemalloc). The next class is a quarter larger.
  // The server also reads such a value straight to its place. With room to spare it would read
  // beyond the value, and copy.
  uint32_t piece_bytes = (uint32_t{512} << 10) - 64;
  uint32_t threads = 2;
  uint32_t connections = 2;               // To each server, from each thread.
  size_t most_queued = 1024;              // Requests under way; further ones are kBusy.
  int64_t timeout_nanos = 5'000'000'000;  // A server that is silent for so long is given up.

  const Clock* clock = SystemClock();
  Random* random = SystemRandom();
};

// Does not connect yet. Returns kInvalid if an option is wrong, or a TLS file cannot be read.
Result<std::unique_ptr<BlobStore>> NewRedisStore(RedisStoreOptions options);

}  // namespace aquifer
