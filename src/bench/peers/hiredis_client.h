// Redis as programs usually speak to it, to compare with: hiredis, with commands sent ahead over
// several connections. Its answers lie in memory of its own; whoever wants them elsewhere copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class HiredisClient {
 public:
  // So many threads with so many connections each, and commands ahead on each connection.
  struct Options {
    uint16_t port = 0;  // On the loopback.
    uint32_t threads = 1;
    uint32_t connections = 1;
    size_t ahead = 4;
  };
  static Result<std::unique_ptr<HiredisClient>> Connect(const Options& options);
  ~HiredisClient();

  // One value each, in turn over the connections; returns when all are done.
  Status Set(std::span<const std::string> keys, std::span<const std::span<std::byte>> values);
  Status Get(std::span<const std::string> keys, size_t value_bytes);
  Status Ask(const std::string& command);
  std::string Describe() const;

 private:
  struct Link;

  explicit HiredisClient(const Options& options);
  // `send` puts the command for a key on its way, `check` says whether its answer is right.
  Status Run(size_t count, const std::function<void(Link*, size_t)>& send,
             const std::function<bool(void* reply)>& check);

  const Options options_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace aquifer
