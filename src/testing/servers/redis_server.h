// A real redis-server on the loopback, for a test: on a free port, in a directory of its own, ended
// with this object or with the test's process. And three of them as a cluster. The environment's
// AQUIFER_TEST_REDIS names another program that is started in its place: Valkey's.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "store/redis/resp.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"

namespace aquifer {

// Whether there is a redis-server to start.
bool HasRedisServer();

class RedisServer {
 public:
  struct Options {
    std::vector<std::string> arguments{};  // "--maxmemory", "100mb", ...
    bool tls = false;                      // Then by a certificate for 127.0.0.1 and localhost.
    std::string certificate_folder{};  // Of the server whose certificate it has; empty: its own.
    bool cluster = false;
    std::string user{};  // With which Ask() logs in.
    std::string password{};
  };

  explicit RedisServer(const Options& options);
  RedisServer() : RedisServer(Options{}) {}

  uint16_t port() const { return port_; }
  uint16_t plain_port() const { return plain_port_; }
  uint16_t bus_port() const { return bus_port_; }
  std::string address() const;  // "127.0.0.1:port"
  // Its certificate, which is its own authority, and the key.
  std::string certificate_folder() const;
  std::string ca_file() const { return certificate_folder() + "/certificate.pem"; }

  // One command on a connection of its own, without TLS; waits for the answer.
  RespReply Ask(const std::vector<std::string>& words);

  void Kill();   // SIGKILL.
  void Start();  // Again, on the same port and directory, and waits until it answers.
  void Stop() { process_->Stop(); }  // It hangs.
  void Continue() { process_->Signal(SIGCONT); }

 private:
  void MakeCertificate() const;
  bool Answers();
  Descriptor Connect() const;

  const Options options_;
  const ScratchDirectory directory_;
  const uint16_t port_;
  const uint16_t plain_port_;  // For Ask(); the same, but where the port is for TLS.
  const uint16_t bus_port_;
  std::unique_ptr<ChildProcess> process_;
};

class RedisCluster {
 public:
  // `options` are each server's.
  explicit RedisCluster(RedisServer::Options options);
  RedisCluster() : RedisCluster(RedisServer::Options{}) {}

  std::vector<std::unique_ptr<RedisServer>>& servers() { return servers_; }
  // Which of them has the slot.
  size_t OwnerOf(uint16_t slot);
  // Moves the slot with all its keys, as redis-cli does. Not on and back at once: the servers need
  // seconds to agree on that.
  // `halfway` runs when the keys have moved and the servers still say that the slot has not.
  void MoveSlot(uint16_t slot, size_t to, const std::function<void()>& halfway = [] {});

 private:
  void AwaitAgreement();

  RedisServer::Options options_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<std::string> ids_;
};

}  // namespace aquifer
