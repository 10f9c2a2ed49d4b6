# An engine in PyTorch without us: index_select or index_copy_ on the GPU, and one copy of the whole to or from
# pinned memory. The time is taken around the calls alone.
#
# Argument: the socket. "load BYTES" and "store BYTES" move 1 GiB in pieces of that size; GB/s.
import sys, time, torch
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

serve(sys.argv[1], lambda what, piece: round(what == "load", int(piece)))
