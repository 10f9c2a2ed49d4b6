#include "cuda/block_mover.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "block/tensor/block_pages.h"

namespace aquifer {
namespace {

constexpr size_t kMaxBlocks = 64;       // In a chunk,
constexpr size_t kMaxPages = 16 << 10;  // and their pages.
constexpr size_t kMaxTables = 8;        // Kept on the device for maps that are used in turn.
constexpr int64_t kPollNanos = 20'000;

// One chunk's tables.
constexpr size_t kSumsOffset = kMaxBlocks * sizeof(MoveBlock);
constexpr size_t kSumsBytes = kMaxBlocks * sizeof(LaneSums);
constexpr size_t kPagesOffset = kSumsOffset + kSumsBytes;
constexpr size_t kTableBytes = kPagesOffset + kMaxPages * sizeof(uint32_t);
// And its sums on the device, with the counter of MoveLaunch behind them.
constexpr size_t kDeviceSumsBytes = kSumsBytes + 16;

bool IsGather(const MoveBatch& batch) { return !batch.gathers.empty(); }

// Copies this rank's heads alone.
void CopyOwn(const EngineMap& map, const std::byte* from, std::byte* to) {
  for (const Piece& piece : map.pieces) {
    std::memcpy(to + piece.block_offset, from + piece.block_offset, piece.block_bytes);
  }
}

Status Off(const Status& why) {
  return Status(Code::kUnavailable, "the GPU path is off: " + why.message());
}

void SetStatus(MoveBatch* batch, size_t op, const Status& status) {
  if (IsGather(*batch)) {
    batch->gathers[op].sums = {};
    batch->gathers[op].status = status;
  } else {
    batch->scatters[op].sums = {};
    batch->scatters[op].status = status;
  }
}

}  // namespace

Result<std::unique_ptr<BlockMover>> BlockMover::New(std::unique_ptr<GpuDevice> device,
                                                    const HostPins* pins,
                                                    const MoverOptions& options) {
  std::unique_ptr<BlockMover> mover(new BlockMover(std::move(device), pins, options));
  AQ_RETURN_IF_ERROR(mover->Start());
  return mover;
}

Status BlockMover::Start() {
  AQ_ASSIGN_OR_RETURN(copies_, device_->NewQueue());
  for (uint32_t i = 0; i < options_.chunks; ++i) {
    Chunk& chunk = chunks_.emplace_back();
    AQ_ASSIGN_OR_RETURN(chunk.kernels, device_->NewQueue());
    AQ_ASSIGN_OR_RETURN(chunk.middle, device_->NewMark());
    AQ_ASSIGN_OR_RETURN(chunk.end, device_->NewMark());
    AQ_ASSIGN_OR_RETURN(chunk.device_sums, device_->NewDeviceMemory(kDeviceSumsBytes));
    AQ_ASSIGN_OR_RETURN(chunk.tables, device_->NewPinnedMemory(kTableBytes));
    std::memset(chunk.tables.data(), 0, kTableBytes);
    const GpuCopy zeros{.to = chunk.device_sums,
                        .from = reinterpret_cast<uint64_t>(chunk.tables.data()),
                        .bytes = kDeviceSumsBytes};
    AQ_RETURN_IF_ERROR(device_->Copy(chunk.kernels, std::span(&zeros, 1)));
  }
  device_->Drain();
  return Status();
}

BlockMover::~BlockMover() { device_->Drain(); }

void BlockMover::Begin(MoveBatch* batch) {
  batch->started = batch->finished = 0;
  if (batch->size() == 0) return;
  waiting_.push_back(batch);
  Poll();
}

void BlockMover::Poll() {
  Status status = status_;
  if (status.ok()) status = FinishReached();
  if (status.ok()) status = StartWaiting();
  if (!status.ok()) Disable(status);
}

void BlockMover::Wait(const MoveBatch& batch) {
  while (!batch.done()) {
    Poll();
    if (batch.done()) return;
    const std::timespec pause{.tv_sec = 0, .tv_nsec = kPollNanos};
    ::nanosleep(&pause, nullptr);
  }
}

void BlockMover::Abandon() noexcept {
  device_->Drain();
  ended_ = begun_;
  waiting_.clear();
  if (status_.ok()) status_ = std::move(abandoned_);
}

Status BlockMover::FinishReached() {
  while (ended_ < begun_) {
    Chunk& chunk = chunks_[ended_ % chunks_.size()];
    AQ_ASSIGN_OR_RETURN(const bool reached, device_->Reached(chunk.end));
    if (!reached) break;
    FinishChunk(&chunk);
    ++ended_;
  }
  return Status();
}

Status BlockMover::StartWaiting() {
  while (!waiting_.empty() && begun_ - ended_ < chunks_.size()) {
    MoveBatch* const batch = waiting_.front();
    Chunk& chunk = chunks_[begun_ % chunks_.size()];
    ++begun_;  // Also where it fails: then Disable() finds it.
    AQ_RETURN_IF_ERROR(StartChunk(batch, &chunk));
    if (batch->started == batch->size()) waiting_.pop_front();
  }
  return Status();
}

// ---- Start ----

Status BlockMover::StartChunk(MoveBatch* batch, Chunk* chunk) {
  Choose(batch, chunk);
  if (!chunk->blocks.empty()) {
    AQ_RETURN_IF_ERROR(FindHostMemory(chunk));
    return Enqueue(chunk);
  }
  // Every block was wrong: its turn comes all the same.
  return device_->SetMark(chunk->kernels, chunk->end);
}

// Takes ops off the batch for as long as there is room. Wrong ones get their status and no more.
void BlockMover::Choose(MoveBatch* batch, Chunk* chunk) {
  const EngineMap& map = batch->tables->map;
  const size_t room = std::clamp<uint64_t>(options_.chunk_bytes / map.block_bytes, 1, kMaxBlocks);
  const size_t most = std::clamp<size_t>(kMaxPages / map.pages_per_block, 1, room);
  chunk->batch = batch;
  chunk->count = 0;
  chunk->blocks.clear();
  while (batch->started < batch->size() && chunk->blocks.size() < most) {
    AddBlock(*batch, batch->started, chunk);
    ++batch->started;
    ++chunk->count;
  }
}

void BlockMover::AddBlock(const MoveBatch& batch, size_t op, Chunk* chunk) {
  const EngineMap& map = batch.tables->map;
  Moving moving{.op = op};
  size_t slot_bytes = 0;
  if (IsGather(batch)) {
    const GatherOp& gather = batch.gathers[op];
    moving.place = gather.place;
    moving.slot = gather.slot.data();
    slot_bytes = gather.slot.size();
  } else {
    const ScatterOp& scatter = batch.scatters[op];
    moving.place = scatter.place;
    moving.slot = const_cast<std::byte*>(scatter.slot.data());
    moving.checksum = scatter.checksum;
    slot_bytes = scatter.slot.size();
  }
  const Result<BlockPages> pages = FindPages(map, moving.place, slot_bytes);
  Status status = pages.status();
  if (status.ok() && map.pages_per_block > kMaxPages) {
    status = Status(Code::kInvalid, "a block has more pages than the GPU path takes");
  }
  SetStatus(chunk->batch, op, status);
  if (status.ok()) chunk->blocks.push_back(moving);
}

// Pinned slots are used where they are; others have a place in the ring.
Status BlockMover::FindHostMemory(Chunk* chunk) {
  const MoveBatch& batch = *chunk->batch;
  const uint64_t block_bytes = batch.tables->map.block_bytes;
  const uint64_t needed = std::max(options_.chunk_bytes, block_bytes);
  size_t index = 0;
  for (Moving& moving : chunk->blocks) {
    const size_t at = index++ * block_bytes;
    moving.pinned = pins_->Around({moving.slot, block_bytes});
    moving.host = moving.slot;
    if (!moving.pinned.empty()) continue;
    if (chunk->ring.size() < needed) {
      if (!chunk->ring.empty()) device_->FreePinnedMemory(std::exchange(chunk->ring, {}));
      AQ_ASSIGN_OR_RETURN(chunk->ring, device_->NewPinnedMemory(needed));
    }
    moving.host = chunk->ring.data() + at;
    moving.pinned = chunk->ring;
    if (!IsGather(batch)) std::memcpy(moving.host, moving.slot, block_bytes);
    ++counts_.ringed_blocks;
  }
  return Status();
}

// Across the link by the kernel: what a copy engine would do badly or must not do.
bool BlockMover::IsDirect(const MoveBatch& batch) const {
  const MoveTables& tables = *batch.tables;
  // The bytes that are copied must be those that were verified: they stay on the device in between.
  if (!IsGather(batch) && batch.verify == Verify::kFirst) return false;
  if (tables.map.block_bytes < options_.staged_bytes) return true;
  if (tables.whole) return false;
  return IsGather(batch) || batch.verify == Verify::kNever;
}

Status BlockMover::Enqueue(Chunk* chunk) {
  const MoveBatch& batch = *chunk->batch;
  const bool direct = IsDirect(batch);
  const uint64_t needed = std::max(options_.chunk_bytes, batch.tables->map.block_bytes);
  if (!direct && chunk->staging_bytes < needed) {
    if (chunk->staging_bytes != 0) device_->FreeDeviceMemory(chunk->staging);
    chunk->staging_bytes = 0;
    AQ_ASSIGN_OR_RETURN(chunk->staging, device_->NewDeviceMemory(needed));
    chunk->staging_bytes = needed;
  }
  (direct ? counts_.direct_blocks : counts_.staged_blocks) += chunk->blocks.size();
  AQ_ASSIGN_OR_RETURN(const MoveLaunch launch, FillTables(chunk, direct));
  return IsGather(batch) ? EnqueueGather(*chunk, launch, direct)
                         : EnqueueScatter(*chunk, launch, direct);
}

Result<MoveLaunch> BlockMover::FillTables(Chunk* chunk, bool direct) {
  const MoveBatch& batch = *chunk->batch;
  const EngineMap& map = batch.tables->map;
  AQ_ASSIGN_OR_RETURN(const DeviceTables* const tables, TablesOf(*batch.tables));
  auto* const blocks = reinterpret_cast<MoveBlock*>(chunk->tables.data());
  auto* const pages = reinterpret_cast<uint32_t*>(chunk->tables.data() + kPagesOffset);
  uint32_t page_count = 0;
  for (size_t i = 0; i < chunk->blocks.size(); ++i) {
    const Moving& moving = chunk->blocks[i];
    const BlockPages found = *FindPages(map, moving.place, map.block_bytes);
    uint64_t slot = chunk->staging + i * map.block_bytes;
    if (direct) {
      AQ_ASSIGN_OR_RETURN(slot, device_->DeviceAddress(moving.host));
    }
    blocks[i] = {.slot = slot,
                 .first_page = page_count,
                 .cut = static_cast<uint32_t>(found.cut),
                 .checksum = moving.checksum};
    for (const uint32_t page : found.numbers) pages[page_count++] = page;
  }
  const bool with_others = !IsGather(batch) && batch.verify != Verify::kNever;
  const size_t tiles = with_others ? batch.tables->tiles.size() : batch.tables->own_tiles;
  const size_t piece_bytes = batch.tables->pieces.size() * sizeof(MovePiece);
  AQ_ASSIGN_OR_RETURN(const uint64_t shown, device_->DeviceAddress(chunk->tables.data()));
  return MoveLaunch{.pieces = reinterpret_cast<const MovePiece*>(tables->address),
                    .tiles = reinterpret_cast<const MoveTile*>(tables->address + piece_bytes),
                    .blocks = reinterpret_cast<const MoveBlock*>(shown),
                    .pages = reinterpret_cast<const uint32_t*>(shown + kPagesOffset),
                    .sums = reinterpret_cast<LaneSums*>(chunk->device_sums),
                    .host_sums = reinterpret_cast<LaneSums*>(shown + kSumsOffset),
                    .arrived = reinterpret_cast<uint32_t*>(chunk->device_sums + kSumsBytes),
                    .tiles_per_block = DivideBy(static_cast<uint32_t>(tiles)),
                    .pages_per_block = DivideBy(map.pages_per_block),
                    .piece_count = static_cast<uint32_t>(batch.tables->pieces.size()),
                    .block_count = static_cast<uint32_t>(chunk->blocks.size()),
                    .page_count = page_count,
                    .block_bytes = static_cast<uint32_t>(map.block_bytes),
                    .alignment = batch.tables->alignment};
}

Result<BlockMover::DeviceTables*> BlockMover::TablesOf(const MoveTables& tables) {
  for (DeviceTables& known : tables_) {
    if (known.id == tables.id) return &known;
  }
  // Nothing under way uses them: the one that is starting has not found its own yet.
  if (tables_.size() >= kMaxTables && begun_ - ended_ == 1) {
    for (const DeviceTables& old : tables_) {
      device_->FreeDeviceMemory(old.address);
      device_->FreePinnedMemory(old.pinned);
    }
    tables_.clear();
  }
  const size_t piece_bytes = tables.pieces.size() * sizeof(MovePiece);
  const size_t bytes = piece_bytes + tables.tiles.size() * sizeof(MoveTile);
  DeviceTables made{.id = tables.id, .address = 0, .pinned = {}};
  AQ_ASSIGN_OR_RETURN(made.pinned, device_->NewPinnedMemory(bytes));
  AQ_ASSIGN_OR_RETURN(made.address, device_->NewDeviceMemory(bytes));
  std::memcpy(made.pinned.data(), tables.pieces.data(), piece_bytes);
  std::memcpy(made.pinned.data() + piece_bytes, tables.tiles.data(), bytes - piece_bytes);
  const GpuCopy copy{
      .to = made.address, .from = reinterpret_cast<uint64_t>(made.pinned.data()), .bytes = bytes};
  AQ_RETURN_IF_ERROR(device_->Copy(copies_, std::span(&copy, 1)));
  device_->Drain();  // Once a map: kernels of every queue need them.
  return &tables_.emplace_back(made);
}

Status BlockMover::EnqueueGather(const Chunk& chunk, const MoveLaunch& launch, bool direct) {
  const MoveKind kind = chunk.batch->summed ? MoveKind::kGather : MoveKind::kGatherUnsummed;
  AQ_RETURN_IF_ERROR(device_->Move(chunk.kernels, kind, launch));
  if (direct) return device_->SetMark(chunk.kernels, chunk.end);
  AQ_RETURN_IF_ERROR(device_->SetMark(chunk.kernels, chunk.middle));
  AQ_RETURN_IF_ERROR(device_->WaitFor(copies_, chunk.middle));
  AQ_RETURN_IF_ERROR(CopyStaging(chunk, /*to_host=*/true));
  return device_->SetMark(copies_, chunk.end);
}

Status BlockMover::EnqueueScatter(const Chunk& chunk, const MoveLaunch& launch, bool direct) {
  if (!direct) {
    AQ_RETURN_IF_ERROR(CopyStaging(chunk, /*to_host=*/false));
    AQ_RETURN_IF_ERROR(device_->SetMark(copies_, chunk.middle));
  }
  if (!direct) AQ_RETURN_IF_ERROR(device_->WaitFor(chunk.kernels, chunk.middle));
  MoveKind kind = chunk.batch->summed ? MoveKind::kScatter : MoveKind::kScatterUnsummed;
  if (chunk.batch->verify == Verify::kFirst) {
    AQ_RETURN_IF_ERROR(device_->Move(chunk.kernels, MoveKind::kSum, launch));
    kind = MoveKind::kScatterIfGood;
  }
  AQ_RETURN_IF_ERROR(device_->Move(chunk.kernels, kind, launch));
  return device_->SetMark(chunk.kernels, chunk.end);
}

// One copy for slots that lie side by side, unless they were pinned apart.
Status BlockMover::CopyStaging(const Chunk& chunk, bool to_host) {
  const uint64_t block_bytes = chunk.batch->tables->map.block_bytes;
  copy_list_.clear();
  const std::byte* end = nullptr;
  const std::byte* pinned = nullptr;
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const Moving& moving = chunk.blocks[i];
    if (moving.host == end && moving.pinned.data() == pinned) {
      copy_list_.back().bytes += block_bytes;
    } else {
      const uint64_t staging = chunk.staging + i * block_bytes;
      const auto host = reinterpret_cast<uint64_t>(moving.host);
      copy_list_.push_back(
          {.to = to_host ? host : staging, .from = to_host ? staging : host, .bytes = block_bytes});
    }
    end = moving.host + block_bytes;
    pinned = moving.pinned.data();
  }
  return device_->Copy(copies_, copy_list_);
}

// ---- End ----

void BlockMover::FinishChunk(Chunk* chunk) {
  MoveBatch* const batch = chunk->batch;
  const EngineMap& map = batch->tables->map;
  const auto* const sums = reinterpret_cast<const LaneSums*>(chunk->tables.data() + kSumsOffset);
  for (size_t i = 0; i < chunk->blocks.size(); ++i) {
    const Moving& moving = chunk->blocks[i];
    if (IsGather(*batch)) {
      if (moving.host != moving.slot) CopyOwn(map, moving.host, moving.slot);
      batch->gathers[moving.op].sums = sums[i];
      continue;
    }
    ScatterOp& op = batch->scatters[moving.op];
    op.sums = sums[i];
    if (batch->verify != Verify::kNever &&
        FinishChecksum(op.sums, map.block_bytes) != op.checksum) {
      op.status = Status(Code::kCorrupt);
    }
  }
  batch->finished += chunk->count;
  chunk->batch = nullptr;
}

void BlockMover::Disable(const Status& status) {
  if (status_.ok()) status_ = Off(status);
  device_->Drain();
  for (; ended_ < begun_; ++ended_) {
    Chunk& chunk = chunks_[ended_ % chunks_.size()];
    for (const Moving& moving : chunk.blocks) SetStatus(chunk.batch, moving.op, status_);
    chunk.batch->finished += chunk.count;
    chunk.batch = nullptr;
  }
  for (MoveBatch* const batch : waiting_) {
    for (; batch->started < batch->size(); ++batch->started, ++batch->finished) {
      SetStatus(batch, batch->started, status_);
    }
  }
  waiting_.clear();
}

}  // namespace aquifer
