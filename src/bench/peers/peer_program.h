// A system of others that the benchmark measures, as a program of its own: Mooncake Store, the AWS
// SDK for Python, PyTorch. All of them speak one protocol, in which another peer takes no C++.
//
// The program is started as PYTHON -c TEXT SOCKET ARGUMENTS... and listens at SOCKET once it is
// ready. Each line that it is sent asks for one measurement, which it answers with a number on a
// line: GB/s, with the time taken around the calls alone. peers/protocol.py stands before its text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "bench/peers/measured_peer.h"
#include "bench/peers/server_process.h"

namespace aquifer {

class PeerProgram final : public MeasuredPeer {
 public:
  static Result<std::unique_ptr<PeerProgram>> Start(const std::string& python,
                                                    std::string_view text,
                                                    const std::vector<std::string>& arguments);

  // kUnavailable: the program has ended.
  Result<double> Ask(const std::string& line);
  Result<double> Get() override { return Ask("get"); }

 private:
  PeerProgram(std::unique_ptr<ServerProcess> server, Descriptor socket)
      : server_(std::move(server)), socket_(std::move(socket)) {}

  const std::unique_ptr<ServerProcess> server_;
  const Descriptor socket_;
};

// Each is kNotFound, with the next step, where its packages are missing; its lines are in its text.
Result<std::unique_ptr<MeasuredPeer>> StartMooncake(uint64_t block_bytes, uint64_t blocks);
Result<std::unique_ptr<PeerProgram>> StartBoto(const std::vector<std::string>& arguments);
Result<std::unique_ptr<PeerProgram>> StartTorch();

// Texts that CMake takes from the .py files (peer_texts.cc.in).
extern const std::string_view kPeerProtocol;
extern const std::string_view kMooncakePeer;
extern const std::string_view kBotoPeer;
extern const std::string_view kTorchPeer;

}  // namespace aquifer
