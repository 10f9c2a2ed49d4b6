#include "bench/peers/peer_program.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cli/find_program.h"
#include "cli/unix_connection.h"

namespace aquifer {

Result<std::unique_ptr<PeerProgram>> PeerProgram::Start(const std::string& python,
                                                        std::string_view text,
                                                        const std::vector<std::string>& arguments) {
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server,
                      ServerProcess::Start([&](const std::string& directory) {
                        std::vector<std::string> words = {
                            python, "-c", fmt::format("{}\n{}", kPeerProtocol, text),
                            directory + "/socket"};
                        words.insert(words.end(), arguments.begin(), arguments.end());
                        return words;
                      }));
  Descriptor socket;
  AQ_RETURN_IF_ERROR(server->Await([&]() -> Status {
    AQ_ASSIGN_OR_RETURN(socket, ConnectToUnixSocket(server->directory() + "/socket"));
    return Status();
  }));
  return std::unique_ptr<PeerProgram>(new PeerProgram(std::move(server), std::move(socket)));
}

Result<double> PeerProgram::Ask(const std::string& line) {
  const std::string asked = line + "\n";
  char answer[64] = {};
  if (::send(socket_.get(), asked.data(), asked.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(asked.size()) ||
      ::read(socket_.get(), answer, sizeof(answer) - 1) <= 0) {
    return Status(Code::kUnavailable, fmt::format("the peer's program ended at '{}'", line));
  }
  return std::strtod(answer, nullptr);
}

// In PATH, or where tools/install-peers puts it. Its Python lies beside its master.
Result<std::unique_ptr<MeasuredPeer>> StartMooncake(uint64_t block_bytes, uint64_t blocks) {
  std::string master = FindProgram("mooncake_master");
  if (master.empty()) master = InstalledPeer("mooncake/bin/mooncake_master");
  const std::string python = std::filesystem::path(master).parent_path() / "python3";
  if (master.empty() || ::access(python.c_str(), X_OK) != 0) {
    return Status(Code::kNotFound, "mooncake_master is not there; next step: tools/install-peers");
  }
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<PeerProgram> peer,
                      PeerProgram::Start(python, kMooncakePeer,
                                         {std::to_string(block_bytes), std::to_string(blocks)}));
  return std::unique_ptr<MeasuredPeer>(std::move(peer));
}

Result<std::unique_ptr<PeerProgram>> StartBoto(const std::vector<std::string>& arguments) {
  const std::string python = InstalledPeer("boto3/bin/python3");
  if (!python.empty()) return PeerProgram::Start(python, kBotoPeer, arguments);
  return Status(Code::kNotFound, "boto3 is not there; next step: tools/install-peers");
}

Result<std::unique_ptr<PeerProgram>> StartTorch() {
  return PeerProgram::Start("python3", kTorchPeer, {});
}

}  // namespace aquifer
