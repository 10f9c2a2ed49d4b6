#include "bench/peers/mooncake_peer.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/unix_connection.h"

namespace aquifer {
namespace {

namespace fs = std::filesystem;

// Arguments: the socket to listen on, bytes of a block, number of blocks. Every line that it reads
// there is answered with the GB/s of one more round.
constexpr const char* kProgram = R"(
import ctypes, mmap, os, signal, socket, subprocess, sys, time

path, block_bytes, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

HOLDER = '''
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 64 << 20, "tcp", "", sys.argv[1]) == 0:
    print("ready", flush=True)
    sys.stdin.read()
'''

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

def start(*command, **options):
    die_with_us = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    return subprocess.Popen(command, preexec_fn=die_with_us, **options)

def check(what, fine):
    if not fine:
        sys.exit(what + " failed")

port = free_port()
master = f"127.0.0.1:{port}"
start(os.path.join(os.path.dirname(sys.executable), "mooncake_master"),
      f"--rpc_port={port}", f"--metrics_port={free_port()}")
holder = start(sys.executable, "-c", HOLDER, master, str(2 * block_bytes * blocks + (256 << 20)),
               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
check("mounting a segment", any(line == b"ready\n" for line in holder.stdout))

from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
check("setup", store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master) == 0)
memory = mmap.mmap(-1, block_bytes * blocks)
for at in range(0, len(memory), mmap.PAGESIZE):
    memory[at:at + 8] = at.to_bytes(8, "little")
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
check("register_buffer", store.register_buffer(base, len(memory)) == 0)
keys = [f"block{i}" for i in range(blocks)]
places = [base + i * block_bytes for i in range(blocks)]
sizes = [block_bytes] * blocks
for key, place in zip(keys, places):
    check("put_from", store.put_from(key, place, block_bytes) == 0)

def get(batch):
    begin = time.perf_counter()
    for at in range(0, blocks, batch):
        part = slice(at, at + batch)
        check("batch_get_into",
              store.batch_get_into(keys[part], places[part], sizes[part]) == sizes[part])
    return block_bytes * blocks / (time.perf_counter() - begin) / 1e9

listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
caller = listener.accept()[0].makefile("rw")
for line in caller:
    print(max(get(1), get(64)), file=caller, flush=True)
)";

// Beside the master in PATH, or where tools/install-peers puts it: build/tools, next to
// build/release.
Result<std::string> FindPython() {
  std::vector<fs::path> folders;
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path != nullptr ? path : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  folders.push_back(self.parent_path().parent_path() / "tools/mooncake/bin");
  for (const fs::path& folder : folders) {
    const std::string python = folder / "python3";
    if (access((folder / "mooncake_master").c_str(), X_OK) == 0 &&
        access(python.c_str(), X_OK) == 0)
      return python;
  }
  return Status(Code::kNotFound, "mooncake_master is not there; next step: tools/install-peers");
}

}  // namespace

Result<std::unique_ptr<MeasuredPeer>> MooncakePeer::New(uint64_t block_bytes, uint64_t blocks) {
  AQ_ASSIGN_OR_RETURN(const std::string python, FindPython());
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server,
                      ServerProcess::Start([&](const std::string& directory) {
                        return std::vector<std::string>{python,
                                                        "-c",
                                                        kProgram,
                                                        directory + "/socket",
                                                        std::to_string(block_bytes),
                                                        std::to_string(blocks)};
                      }));
  Descriptor socket;
  AQ_RETURN_IF_ERROR(server->Await([&]() -> Status {
    AQ_ASSIGN_OR_RETURN(socket, ConnectToUnixSocket(server->directory() + "/socket"));
    return Status();
  }));
  return std::unique_ptr<MeasuredPeer>(new MooncakePeer(std::move(server), std::move(socket)));
}

Result<double> MooncakePeer::Get() {
  char answer[64] = {};
  if (::send(socket_.get(), "get\n", 4, MSG_NOSIGNAL) != 4 ||
      read(socket_.get(), answer, sizeof(answer) - 1) <= 0) {
    return Status(Code::kUnavailable, "Mooncake's client has ended");
  }
  return std::strtod(answer, nullptr);
}

}  // namespace aquifer
