# Mooncake Store: its master, a process that holds the blocks and a client that gets them into memory it has
# registered, over loopback TCP. The time is taken around the calls alone.
#
# Arguments: the socket, bytes of a block, number of blocks. "get" gets every block, one at a time and 64 at a
# time; the better GB/s.
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

serve(path, lambda what: max(get(1), get(64)))
