// A real redis-server on the loopback, for a test: on a free port, in a directory of its own. It
// ends with this object or with the test's process. RedisCluster is three of them as a cluster. The
// environment's AQUIFER_TEST_REDIS names another program to start instead: Valkey's.
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

// Returns true if there is a redis-server to start.
bool HasRedisServer();

class RedisServer {
 public:
  struct Options {
    std::vector<std::string> arguments{};  // "--maxmemory", "100mb", ...
    bool tls = false;                      // With a certificate for 127.0.0.1 and localhost.
    // The folder of another server's certificate; empty: its own.
    std::string certificate_folder{};
    bool cluster = false;
    std::string user{};  // The user and password with which Ask() logs in.
    std::string password{};
  };

  explicit RedisServer(const Options& options);
  RedisServer() : RedisServer(Options{}) {}

  uint16_t port() const { return port_; }
  uint16_t plain_port() const { return plain_port_; }
  uint16_t bus_port() const { return bus_port_; }
  std::string address() const;  // "127.0.0.1:port"
  // The folder with its certificate, which is its own authority, and the key.
  std::string certificate_folder() const;
  std::string ca_file() const { return certificate_folder() + "/certificate.pem"; }

  // Sends one command on a connection of its own, without TLS, and waits for the answer.
  RespReply Ask(const std::vector<std::string>& words);

  void Kill();   // By SIGKILL.
  void Start();  // Starts it again, on the same port and directory, and waits until it answers.
  void Stop() { process_->Stop(); }  // Makes it hang.
  void Continue() { process_->Signal(SIGCONT); }

 private:
  void MakeCertificate() const;
  bool Answers();
  Descriptor Connect() const;

  const Options options_;
  const ScratchDirectory directory_;
  const uint16_t port_;
  const uint16_t plain_port_;  // For Ask(): the port without TLS.
  const uint16_t bus_port_;
  std::unique_ptr<ChildProcess> process_;
};

class RedisCluster {
 public:
  // `options` are for each server.
  explicit RedisCluster(RedisServer::Options options);
  RedisCluster() : RedisCluster(RedisServer::Options{}) {}

  std::vector<std::unique_ptr<RedisServer>>& servers() { return servers_; }
  // The index of the server that has the slot.
  size_t OwnerOf(uint16_t slot);
  // Moves the slot with all its keys, as redis-cli does. Do not move it on and back at once: the
  // servers need seconds to agree. `halfway` runs when the keys have moved but the servers still
  // name the old owner.
  void MoveSlot(uint16_t slot, size_t to, const std::function<void()>& halfway = [] {});

 private:
  void AwaitAgreement();

  RedisServer::Options options_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<std::string> ids_;
};

}  // namespace aquifer
