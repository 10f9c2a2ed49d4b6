#include "bench/peers/torch_peer.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cli/unix_connection.h"

namespace aquifer {
namespace {

// Argument: the socket to listen on. Lines "load BYTES" and "store BYTES" are answered with GB/s.
constexpr const char* kProgram = R"(
import socket, sys, time, torch
if not torch.cuda.is_available():
    sys.exit("torch sees no GPU")
BLOCK, BLOCKS, BATCH = 2 << 20, 512, 64
memory = torch.zeros(BLOCK * BLOCKS, dtype=torch.uint8, device="cuda")
host = torch.empty(BLOCK * BLOCKS, dtype=torch.uint8).pin_memory()
order = torch.tensor([i * 307 % BLOCKS for i in range(BLOCKS)], device="cuda")

def round(load, piece):
    planes = BLOCK // piece
    pages = memory.view(planes, BLOCKS, piece)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for at in range(0, BLOCKS, BATCH):
        index = order[at:at + BATCH]
        there = host[at * BLOCK:(at + BATCH) * BLOCK].view(planes, BATCH, piece)
        if load:
            pages.index_copy_(1, index, there.to("cuda", non_blocking=True))
        else:
            there.copy_(torch.index_select(pages, 1, index), non_blocking=True)
    torch.cuda.synchronize()
    return BLOCK * BLOCKS / (time.perf_counter() - begin) / 1e9

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
caller = listener.accept()[0].makefile("rw")
for line in caller:
    what, piece = line.split()
    print(round(what == "load", int(piece)), file=caller, flush=True)
)";

}  // namespace

Result<std::unique_ptr<TorchPeer>> TorchPeer::New() {
  AQ_ASSIGN_OR_RETURN(
      std::unique_ptr<ServerProcess> server, ServerProcess::Start([](const std::string& directory) {
        return std::vector<std::string>{"python3", "-c", kProgram, directory + "/socket"};
      }));
  Descriptor socket;
  AQ_RETURN_IF_ERROR(server->Await([&]() -> Status {
    AQ_ASSIGN_OR_RETURN(socket, ConnectToUnixSocket(server->directory() + "/socket"));
    return Status();
  }));
  return std::unique_ptr<TorchPeer>(new TorchPeer(std::move(server), std::move(socket)));
}

Result<double> TorchPeer::Measure(bool load, uint64_t piece_bytes) {
  const std::string line = fmt::format("{} {}\n", load ? "load" : "store", piece_bytes);
  char answer[64] = {};
  if (::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(line.size()) ||
      ::read(socket_.get(), answer, sizeof(answer) - 1) <= 0) {
    return Status(Code::kUnavailable, "the PyTorch program has ended");
  }
  return std::strtod(answer, nullptr);
}

}  // namespace aquifer
