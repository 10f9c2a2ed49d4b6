// The kernels that move blocks between an engine's pages and slots, and sum them in the same pass.
// One launch takes a whole batch. Every warp takes a contiguous share of its tiles, so that it ends
// few blocks and adds to their sums few times; warps know nothing of each other.
//
// Whoever uses an SM takes it from the engine, so what counts is how much one SM moves: on an H200
// 44 GB/s, summed, where runs are of a tile's size or longer. Tiles like these go without a look at
// each unit, and the next one is found while this one's bytes are on their way.
#include <cstdint>

#include "cuda/move_work.h"

namespace aquifer {
namespace {

// Units that a thread has under way, since memory is far away. A tile is one round of a warp.
constexpr uint32_t kUnrolled = kTileUnits / kWarpThreads;
constexpr uint32_t kMaxThreads = 512;

// Room for a launch's tables, which fit but for engines with very short pages.
constexpr uint32_t kSharedBlocks = 64;
constexpr uint32_t kSharedPages = 1024;

enum Action : uint32_t { kToSlots = 1, kToPages = 2, kSums = 4, kIfGood = 8, kPublishes = 16 };

__device__ uint4 Load(uint64_t address) { return __ldcs(reinterpret_cast<const uint4*>(address)); }
__device__ void Store(uint64_t address, uint4 value) {
  __stcs(reinterpret_cast<uint4*>(address), value);
}

__device__ MoveUnit UnitOf(uint4 value) { return {{value.x, value.y, value.z, value.w}}; }

// Adds up what the warp's threads have. All of them call it.
__device__ void FlushSums(LaneSums mine, LaneSums* to) {
  for (uint32_t step = kWarpThreads / 2; step > 0; step /= 2) {
    mine.a += __shfl_down_sync(UINT32_MAX, mine.a, step);
    mine.b += __shfl_down_sync(UINT32_MAX, mine.b, step);
  }
  if (threadIdx.x % kWarpThreads != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&to->a), mine.a);
  atomicAdd(reinterpret_cast<unsigned long long*>(&to->b), mine.b);
}

struct PlacedTile {
  MoveBlock block;
  MoveTile tile;
  uint32_t block_number;
  bool straight;    // As many units as there can be, in one run.
  uint64_t slot;    // Of a straight one: the thread's first unit.
  uint64_t engine;  // The same there; 0: other ranks'.
};

template <bool wide>
__device__ PlacedTile FindTile(const MoveLaunch& launch, uint32_t number) {
  PlacedTile found;
  found.block_number = Quotient(number, launch.tiles_per_block);
  found.block = launch.blocks[found.block_number];
  found.tile = launch.tiles[number - found.block_number * launch.tiles_per_block.divisor];
  const bool in_engine = found.tile.piece != kNoPiece;
  found.straight =
      wide && found.tile.units == kTileUnits && (!in_engine || found.tile.one_run != 0);
  if (!found.straight) return found;
  const uint32_t offset = found.tile.first_unit * kMoveUnitBytes;
  const uint32_t inside = threadIdx.x % kWarpThreads * kMoveUnitBytes;
  found.slot = found.block.slot + offset + inside;
  found.engine =
      in_engine
          ? EngineAddress(launch.pieces[found.tile.piece], launch, found.block, offset) + inside
          : 0;
  return found;
}

// The thread's units of a straight tile are so far apart.
constexpr uint32_t kStepBytes = kWarpThreads * kMoveUnitBytes;

template <uint32_t action>
__device__ void LoadStraight(const PlacedTile& tile, uint4* values) {
  const uint64_t from = (action & kToSlots) != 0 ? tile.engine : tile.slot;
#pragma unroll
  for (uint32_t i = 0; i < kUnrolled; ++i) values[i] = Load(from + i * kStepBytes);
}

template <uint32_t action>
__device__ void FinishStraight(const PlacedTile& tile, const uint4* values, LaneSums* sums) {
  const MoveKeys keys = KeysOf(tile.tile.first_unit + threadIdx.x % kWarpThreads);
#pragma unroll
  for (uint32_t i = 0; i < kUnrolled; ++i) {
    if ((action & kToSlots) != 0) Store(tile.slot + i * kStepBytes, values[i]);
    if ((action & kToPages) != 0 && tile.engine != 0) {
      Store(tile.engine + i * kStepBytes, values[i]);
    }
    if ((action & kSums) != 0) {
      AddMoveUnit(UnitOf(values[i]), KeysLater(keys, i * kWarpThreads), sums);
    }
  }
}

// A tile whose units each lie in one run.
template <uint32_t action>
__device__ void MoveWideTile(const MoveLaunch& launch, const MoveBlock& block, const MoveTile& tile,
                             LaneSums* sums) {
  const bool in_engine = tile.piece != kNoPiece;
  const MovePiece& piece = launch.pieces[in_engine ? tile.piece : 0];
  const uint32_t lane = threadIdx.x % kWarpThreads;
  // Where most tiles are in the engine, one address for all of them.
  const uint64_t begin = in_engine && tile.one_run != 0
                             ? EngineAddress(piece, launch, block, tile.first_unit * kMoveUnitBytes)
                             : 0;
  uint4 values[kUnrolled];
  uint64_t engine[kUnrolled];
#pragma unroll
  for (uint32_t i = 0; i < kUnrolled; ++i) {
    const uint32_t at = lane + i * kWarpThreads;
    if (at >= tile.units) continue;
    const uint32_t offset = (tile.first_unit + at) * kMoveUnitBytes;
    if (tile.one_run != 0) {
      engine[i] = begin + at * kMoveUnitBytes;
    } else {
      engine[i] = in_engine ? EngineAddress(piece, launch, block, offset) : 0;
    }
    values[i] = Load((action & kToSlots) != 0 ? engine[i] : block.slot + offset);
  }
#pragma unroll
  for (uint32_t i = 0; i < kUnrolled; ++i) {
    const uint32_t at = lane + i * kWarpThreads;
    if (at >= tile.units) continue;
    const uint32_t unit = tile.first_unit + at;
    if ((action & kToSlots) != 0) Store(block.slot + unit * uint64_t{kMoveUnitBytes}, values[i]);
    if ((action & kToPages) != 0 && in_engine) Store(engine[i], values[i]);
    if ((action & kSums) != 0) AddMoveUnit(UnitOf(values[i]), KeysOf(unit), sums);
  }
}

template <class Word>
__device__ void CopyWord(const void* from, void* to) {
  *static_cast<Word*>(to) = *static_cast<const volatile Word*>(from);
}

__device__ void CopyPart(uint64_t from, uint64_t to, uint32_t bytes) {
  const auto* const source = reinterpret_cast<const void*>(from);
  auto* const target = reinterpret_cast<void*>(to);
  switch (bytes) {
    case 8:
      return CopyWord<uint64_t>(source, target);
    case 4:
      return CopyWord<uint32_t>(source, target);
    case 2:
      return CopyWord<uint16_t>(source, target);
    default:
      return CopyWord<uint8_t>(source, target);
  }
}

// A tile whose units may lie in several runs and pieces: a part at a time.
template <uint32_t action>
__device__ void MoveNarrowTile(const MoveLaunch& launch, const MoveBlock& block,
                               const MoveTile& tile, LaneSums* sums) {
  for (uint32_t at = threadIdx.x % kWarpThreads; at < tile.units; at += kWarpThreads) {
    const uint32_t unit = tile.first_unit + at;
    MoveUnit value = {};
    for (uint32_t part = 0; part < kMoveUnitBytes; part += launch.alignment) {
      const uint32_t offset = unit * kMoveUnitBytes + part;
      if (offset >= launch.block_bytes) break;
      const uint64_t local = reinterpret_cast<uint64_t>(value.words) + part;
      const uint64_t slot = block.slot + offset;
      const uint64_t engine = tile.piece == kNoPiece
                                  ? 0
                                  : EngineAddress(PieceAt(launch, offset), launch, block, offset);
      CopyPart((action & kToSlots) != 0 ? engine : slot, local, launch.alignment);
      if ((action & kToSlots) != 0) CopyPart(local, slot, launch.alignment);
      if ((action & kToPages) != 0 && engine != 0) CopyPart(local, engine, launch.alignment);
    }
    if ((action & kSums) != 0) AddMoveUnit(value, KeysOf(unit), sums);
  }
}

// The last warp of all hands the sums over and leaves zeros for the next launch. All of its threads
// call it.
__device__ void PublishSums(const MoveLaunch& launch, uint32_t warps) {
  __threadfence();
  __syncwarp();  // The others' reads of sums and writes of slots, too, come before this one's word.
  uint32_t earlier = 0;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  if (lane == 0) earlier = atomicAdd(launch.arrived, 1);
  earlier = __shfl_sync(UINT32_MAX, earlier, 0);
  if (earlier != warps - 1) return;
  __threadfence();
  for (uint32_t i = lane; i < launch.block_count; i += kWarpThreads) {
    launch.host_sums[i] = {.a = __ldcg(&launch.sums[i].a), .b = __ldcg(&launch.sums[i].b)};
    launch.sums[i] = {};
  }
  if (lane == 0) *launch.arrived = 0;
}

template <uint32_t action, bool wide>
__device__ void MoveShare(const MoveLaunch& launch) {
  const uint64_t tiles = uint64_t{launch.tiles_per_block.divisor} * launch.block_count;
  const uint32_t warps = gridDim.x * (blockDim.x / kWarpThreads);
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarpThreads;
  const auto first = static_cast<uint32_t>(tiles * warp / warps);
  const auto end = static_cast<uint32_t>(tiles * (warp + 1) / warps);
  LaneSums sums;
  PlacedTile next = FindTile<wide>(launch, first < end ? first : 0);
  uint32_t open = next.block_number;
  for (uint32_t i = first; i < end; ++i) {
    const PlacedTile now = next;
    if ((action & kSums) != 0 && now.block_number != open) {
      FlushSums(sums, &launch.sums[open]);
      sums = {};
      open = now.block_number;
    }
    const bool wanted =
        (action & kIfGood) == 0 ||
        SumsAreGood(launch.sums[now.block_number], launch.block_bytes, now.block.checksum);
    uint4 values[kUnrolled];
    if (now.straight && wanted) LoadStraight<action>(now, values);
    next = FindTile<wide>(launch, i + 1 < end ? i + 1 : i);
    if (!wanted) continue;
    if (now.straight) {
      FinishStraight<action>(now, values, &sums);
    } else if (wide) {
      MoveWideTile<action>(launch, now.block, now.tile, &sums);
    } else {
      MoveNarrowTile<action>(launch, now.block, now.tile, &sums);
    }
  }
  if ((action & kSums) != 0 && first < end) FlushSums(sums, &launch.sums[open]);
  if ((action & kPublishes) != 0) PublishSums(launch, warps);
}

template <class T>
__device__ const T* CopyTable(const T* from, uint32_t count, T* to) {
  const auto* const words = reinterpret_cast<const uint32_t*>(from);
  for (uint32_t i = threadIdx.x; i < count * (sizeof(T) / 4); i += blockDim.x) {
    reinterpret_cast<uint32_t*>(to)[i] = words[i];
  }
  return to;
}

template <uint32_t action, bool wide>
__device__ void Move(const MoveLaunch& given) {
  __shared__ alignas(16) unsigned char blocks[kSharedBlocks * sizeof(MoveBlock)];
  __shared__ uint32_t pages[kSharedPages];
  MoveLaunch launch = given;
  if (given.block_count <= kSharedBlocks && given.page_count <= kSharedPages) {
    launch.blocks =
        CopyTable(given.blocks, given.block_count, reinterpret_cast<MoveBlock*>(blocks));
    launch.pages = CopyTable(given.pages, given.page_count, pages);
    __syncthreads();
  }
  MoveShare<action, wide>(launch);
}

}  // namespace
}  // namespace aquifer

// The names by which cuda_device.cc finds them.
#define AQ_MOVE_KERNEL(name, action)                                      \
  extern "C" __global__ void __launch_bounds__(aquifer::kMaxThreads)      \
      name(const __grid_constant__ aquifer::MoveLaunch launch) {          \
    aquifer::Move<(action), true>(launch);                                \
  }                                                                       \
  extern "C" __global__ void __launch_bounds__(aquifer::kMaxThreads)      \
      name##_narrow(const __grid_constant__ aquifer::MoveLaunch launch) { \
    aquifer::Move<(action), false>(launch);                               \
  }

AQ_MOVE_KERNEL(aquifer_gather_blocks, aquifer::kToSlots | aquifer::kSums | aquifer::kPublishes)
AQ_MOVE_KERNEL(aquifer_scatter_blocks, aquifer::kToPages | aquifer::kSums | aquifer::kPublishes)
AQ_MOVE_KERNEL(aquifer_sum_blocks, aquifer::kSums)
AQ_MOVE_KERNEL(aquifer_scatter_good_blocks,
               aquifer::kToPages | aquifer::kIfGood | aquifer::kPublishes)
AQ_MOVE_KERNEL(aquifer_gather_unsummed, aquifer::kToSlots)
AQ_MOVE_KERNEL(aquifer_scatter_unsummed, aquifer::kToPages)
