#include "testing/gpu/fake_gpu.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// One unit of one block.
void RunUnit(MoveKind kind, const MoveLaunch& launch, const MoveBlock& block, const MoveTile& tile,
             uint32_t unit, LaneSums* sums) {
  const bool gather = kind == MoveKind::kGather || kind == MoveKind::kGatherUnsummed;
  const bool writes_pages = !gather && kind != MoveKind::kSum && tile.piece != kNoPiece;
  MoveUnit value{};
  for (uint32_t part = 0; part < kMoveUnitBytes; part += launch.alignment) {
    const uint32_t offset = unit * kMoveUnitBytes + part;
    if (offset >= launch.block_bytes) break;
    std::byte* const local = reinterpret_cast<std::byte*>(value.words) + part;
    std::byte* const slot = At(block.slot) + offset;
    std::byte* engine = nullptr;
    if (tile.piece != kNoPiece) {
      engine = At(EngineAddress(PieceAt(launch, offset), launch, block, offset));
    }
    std::memcpy(local, gather ? engine : slot, launch.alignment);
    if (gather) std::memcpy(slot, local, launch.alignment);
    if (writes_pages) std::memcpy(engine, local, launch.alignment);
  }
  if (kind <= MoveKind::kSum) AddMoveUnit(value, KeysOf(unit), sums);
}

}  // namespace

void RunMove(MoveKind kind, const MoveLaunch& launch) {
  for (uint32_t i = 0; i < launch.block_count; ++i) {
    const MoveBlock& block = launch.blocks[i];
    if (kind == MoveKind::kScatterIfGood &&
        !SumsAreGood(launch.sums[i], launch.block_bytes, block.checksum)) {
      continue;
    }
    for (uint32_t t = 0; t < launch.tiles_per_block.divisor; ++t) {
      const MoveTile& tile = launch.tiles[t];
      for (uint32_t at = 0; at < tile.units; ++at) {
        RunUnit(kind, launch, block, tile, tile.first_unit + at, &launch.sums[i]);
      }
    }
  }
  if (kind == MoveKind::kSum) return;
  for (uint32_t i = 0; i < launch.block_count; ++i) {
    launch.host_sums[i] = std::exchange(launch.sums[i], {});
  }
}

FakeGpu::FakeGpu(FakeGpuLog* log, const FakeGpuOptions& options)
    : log_(log), options_(options), random_(options.seed) {}

FakeGpu::~FakeGpu() {
  log_->open_memory -= memory_.size();
  for (const std::deque<Item>& queue : queues_) {
    if (!queue.empty()) Mistake("the device goes while something is queued");
    log_->queued -= queue.size();
  }
}

Status FakeGpu::Call() {
  ++log_->calls;
  if (log_->calls == options_.throw_call) throw std::bad_alloc();
  if (options_.fail_call == 0 || log_->calls < options_.fail_call) return Status();
  return Status(options_.fail_code, "the fake GPU fails");
}

void FakeGpu::Mistake(const std::string& what) {
  if (log_->mistake.empty()) log_->mistake = what;
}

// ---- Memory ----

Result<uint64_t> FakeGpu::NewDeviceMemory(uint64_t bytes) {
  AQ_RETURN_IF_ERROR(Call());
  auto memory = std::make_unique<std::byte[]>(bytes);
  const auto address = reinterpret_cast<uint64_t>(memory.get());
  memory_[address] = std::move(memory);
  sizes_[address] = bytes;
  ++log_->open_memory;
  return address;
}

void FakeGpu::FreeDeviceMemory(uint64_t address) {
  if (memory_.erase(address) == 0) return Mistake("memory freed that there is not");
  sizes_.erase(address);
  --log_->open_memory;
}

Result<std::span<std::byte>> FakeGpu::NewPinnedMemory(uint64_t bytes) {
  AQ_ASSIGN_OR_RETURN(const uint64_t address, NewDeviceMemory(bytes));
  return std::span(At(address), bytes);
}

void FakeGpu::FreePinnedMemory(std::span<std::byte> memory) {
  FreeDeviceMemory(reinterpret_cast<uint64_t>(memory.data()));
}

Status FakeGpu::Pin(std::span<std::byte> memory) {
  if (options_.fail_call != 0) return Status(options_.fail_code, "the fake GPU does not pin");
  ++log_->pinning;
  log_->hold_pins.wait(true);
  {
    const MutexLock lock(&log_->mutex);
    log_->pinned_ranges[reinterpret_cast<uint64_t>(memory.data())] = memory.size();
  }
  ++log_->pinned;
  --log_->pinning;
  return Status();
}

void FakeGpu::Unpin(std::span<std::byte> memory) {
  const MutexLock lock(&log_->mutex);
  if (log_->pinned_ranges.erase(reinterpret_cast<uint64_t>(memory.data())) == 1) --log_->pinned;
}

Result<uint64_t> FakeGpu::DeviceAddress(const std::byte* pinned) {
  AQ_RETURN_IF_ERROR(Call());
  const auto address = reinterpret_cast<uint64_t>(pinned);
  if (!Knows(address, 1)) Mistake("a device's address of memory that is not pinned");
  return address;
}

bool FakeGpu::Knows(uint64_t address, uint64_t bytes) {
  const auto inside = [&](const std::map<uint64_t, uint64_t>& ranges) {
    const auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    return address + bytes <= begin + size;
  };
  const MutexLock lock(&log_->mutex);
  return inside(sizes_) || inside(log_->pinned_ranges);
}

bool FakeGpu::MayCopy(const GpuCopy& copy) {
  const bool to = Knows(copy.to, copy.bytes);
  const bool from = Knows(copy.from, copy.bytes);
  if (!to) Mistake("a copy to memory that is not pinned");
  if (!from) Mistake("a copy from memory that is not pinned");
  return to && from;
}

// Returns true if the launch uses only pinned tables and slots. The engine's pages are not checked.
bool FakeGpu::MayMove(const MoveLaunch& launch) {
  const bool tables =
      KnowsTable(launch.pieces, launch.piece_count) &&
      KnowsTable(launch.tiles, launch.tiles_per_block.divisor) &&
      KnowsTable(launch.blocks, launch.block_count) &&
      KnowsTable(launch.pages, launch.page_count) && KnowsTable(launch.sums, launch.block_count) &&
      KnowsTable(launch.host_sums, launch.block_count) && KnowsTable(launch.arrived, 1);
  if (!tables) {
    Mistake("a kernel with tables that are not there");
    return false;
  }
  for (const MoveBlock& block : std::span(launch.blocks, launch.block_count)) {
    if (Knows(block.slot, launch.block_bytes)) continue;
    Mistake("a kernel on a slot that is not pinned");
    return false;
  }
  return true;
}

// ---- Work ----

Result<GpuDevice::Queue> FakeGpu::NewQueue() {
  AQ_RETURN_IF_ERROR(Call());
  queues_.emplace_back();
  return static_cast<Queue>(queues_.size() - 1);
}

Result<GpuDevice::Mark> FakeGpu::NewMark() {
  AQ_RETURN_IF_ERROR(Call());
  marks_.emplace_back();
  return static_cast<Mark>(marks_.size() - 1);
}

Status FakeGpu::Copy(Queue queue, std::span<const GpuCopy> copies) {
  AQ_RETURN_IF_ERROR(Call());
  for (const GpuCopy& copy : copies) {
    ++log_->copies;
    Put(queue, {.work = [this, copy] {
          if (MayCopy(copy)) std::memcpy(At(copy.to), At(copy.from), copy.bytes);
        }});
  }
  return Status();
}

Status FakeGpu::Move(Queue queue, MoveKind kind, const MoveLaunch& launch) {
  AQ_RETURN_IF_ERROR(Call());
  ++log_->moves;
  Put(queue, {.work = [this, kind, launch] {
        if (MayMove(launch)) RunMove(kind, launch);
      }});
  return Status();
}

Status FakeGpu::SetMark(Queue queue, Mark mark) {
  AQ_RETURN_IF_ERROR(Call());
  const uint64_t setting = ++marks_[mark].set;
  Put(queue, {.work = [this, mark, setting] { marks_[mark].reached = setting; }});
  return Status();
}

Status FakeGpu::WaitFor(Queue queue, Mark mark) {
  AQ_RETURN_IF_ERROR(Call());
  Put(queue, {.work = nullptr, .wait_mark = mark, .wait_setting = marks_[mark].set});
  return Status();
}

void FakeGpu::Put(Queue queue, Item item) {
  queues_[queue].push_back(std::move(item));
  ++log_->queued;
}

bool FakeGpu::Step() {
  std::vector<size_t> ready;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].empty()) continue;
    const Item& item = queues_[i].front();
    if (item.wait_setting <= marks_[item.wait_mark].reached || item.wait_setting == 0) {
      ready.push_back(i);
    }
  }
  if (ready.empty()) return false;
  std::deque<Item>& queue = queues_[ready[random_.Below(ready.size())]];
  const Item item = std::move(queue.front());
  queue.pop_front();
  --log_->queued;
  if (item.work) item.work();
  return true;
}

Result<bool> FakeGpu::Reached(Mark mark) {
  AQ_RETURN_IF_ERROR(Call());
  for (uint64_t steps = random_.Below(8); steps > 0 && Step(); --steps) {
  }
  return marks_[mark].reached == marks_[mark].set;
}

void FakeGpu::Drain() {
  ++log_->drains;
  while (Step()) {
  }
  for (const std::deque<Item>& queue : queues_) {
    if (!queue.empty()) Mistake("a queue that waits for ever");
  }
}

}  // namespace aquifer
