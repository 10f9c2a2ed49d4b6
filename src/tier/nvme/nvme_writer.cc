#include "tier/nvme/nvme_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"

namespace aquifer {
namespace {

// A group is closed at this size of payload: large enough that its page is 0.1 % of it, small
// enough that the first record of a batch of large blocks need not wait for the last.
constexpr uint64_t kGroupBytes = uint64_t{4} << 20;
// What goes to the drive in one piece, so that a large block does not hold it for long.
constexpr uint64_t kChunkBytes = uint64_t{2} << 20;

}  // namespace

void SubmitDurably(NvmeIo* io, bool sync, std::vector<IoRequest> requests, NvmeIo::Done done,
                   std::vector<PageBuffer> keep) {
  if (!sync) return io->Submit(std::move(requests), std::move(done), std::move(keep));
  io->Submit(
      std::move(requests),
      [io, done = std::move(done)](std::vector<IoRequest>& written) {
        std::vector<IoRequest> syncs;
        for (const IoRequest& request : written) {
          const bool known = std::any_of(syncs.begin(), syncs.end(), [&](const IoRequest& sync) {
            return sync.file == request.file;
          });
          if (!known) {
            syncs.push_back(
                {.kind = IoKind::kSync, .file = request.file, .data = {}, .status = {}});
          }
        }
        // What is reported is the writes; a file that could not be synced was not written.
        auto results = std::make_shared<std::vector<IoRequest>>(std::move(written));
        io->Submit(std::move(syncs), [results, done](std::vector<IoRequest>& synced) {
          for (const IoRequest& sync : synced) {
            for (IoRequest& request : *results) {
              if (request.file == sync.file && request.status.ok()) request.status = sync.status;
            }
          }
          done(*results);
        });
      },
      std::move(keep));
}

void FooterBuilder::Add(std::span<const std::byte, kRecordBytes> record) {
  const uint32_t page = records_ / kRecordsPerPage;
  if (page / kChunkPages == chunks_.size()) chunks_.emplace_back(kChunkPages * kPageBytes);
  auto target =
      RecordAt(chunks_[page / kChunkPages].page(page % kChunkPages), records_ % kRecordsPerPage);
  std::memcpy(target.data(), record.data(), kRecordBytes);
  if (++records_ % kRecordsPerPage == 0) FinishPage(page);  // As it fills: no long task at the end.
}

void FooterBuilder::FinishPage(uint32_t page) {
  const uint32_t first = page * kRecordsPerPage;
  FinishRecordPage({.kind = RecordPageKind::kFooter,
                    .use = use_,
                    .number = page,
                    .first_record = first,
                    .records = std::min(records_ - first, kRecordsPerPage)},
                   chunks_[page / kChunkPages].page(page % kChunkPages));
}

void FooterBuilder::Finish(uint32_t file, uint64_t segment_bytes, SegmentTrailer trailer,
                           std::vector<IoRequest>* pages, std::vector<IoRequest>* last) {
  if (records_ % kRecordsPerPage != 0) FinishPage(records_ / kRecordsPerPage);
  const uint64_t page_count = FooterBytes(records_) / kPageBytes - 1;
  trailer.use = use_;
  trailer.records = records_;
  trailer.footer_offset = segment_bytes - FooterBytes(records_);
  for (uint64_t page = 0; page < page_count; page += kChunkPages) {
    const uint64_t length = std::min<uint64_t>(page_count - page, kChunkPages) * kPageBytes;
    pages->push_back({.kind = IoKind::kWrite,
                      .file = file,
                      .offset = trailer.footer_offset + page * kPageBytes,
                      .data = chunks_[page / kChunkPages].span().first(length),
                      .status = {}});
  }
  PageBuffer end(kPageBytes);
  EncodeTrailer(trailer, end.page(0));
  last->push_back({.kind = IoKind::kWrite,
                   .file = file,
                   .offset = segment_bytes - kPageBytes,
                   .data = end.span(),
                   .status = {}});
  chunks_.push_back(std::move(end));
}

struct SegmentWriter::Group {
  struct Slot {
    AppendItem* item = nullptr;  // Null once it failed.
    uint64_t payload_offset = 0;
    RecordAge age;
    uint32_t pieces = 0;  // In requests that have not completed.
    Status status;
  };

  std::vector<Slot> slots;
  uint32_t number = 0;
  uint64_t page_offset = 0;
  uint64_t end_offset = 0;
  uint32_t pieces = 0;
  uint32_t first_record = 0;  // Set, with `encoded`, when the page is built.
  uint32_t encoded = 0;
  PageBuffer page;
};

SegmentWriter::SegmentWriter(const Options& options, NvmeIo* io, Host* host)
    : options_(options),
      io_(io),
      host_(host),
      cursor_(DataOffset(options.segment_bytes)),
      footer_(options.use) {}

SegmentWriter::SegmentWriter(const Options& options, const Progress& progress, FooterBuilder footer,
                             NvmeIo* io, Host* host)
    : options_(options),
      io_(io),
      host_(host),
      cursor_(progress.cursor),
      next_group_(progress.groups),
      next_record_(progress.records),
      last_page_(progress.last_page),
      footer_(std::move(footer)) {}

SegmentWriter::~SegmentWriter() = default;

bool SegmentWriter::Fits(uint64_t block_bytes) const {
  const uint64_t records = uint64_t{next_record_} + queued_records_ + 1;
  return cursor_ + kPageBytes + RoundUpToPage(block_bytes) + FooterBytes(records) <=
         options_.segment_bytes;
}

bool SegmentWriter::FillsGroup(const std::deque<AppendItem*>& queue) {
  if (queue.size() >= kRecordsPerPage) return true;
  uint64_t bytes = 0;
  for (const AppendItem* item : queue) bytes += item->source.size();
  return bytes >= kGroupBytes;
}

void SegmentWriter::AddPayload(uint32_t slot, uint64_t offset, std::span<std::byte> data,
                               Chunk* chunk) const {
  const auto tenant = [chunk](uint32_t slot) -> const TenantId& {
    return chunk->group->slots[slot].item->meta.id.tenant;
  };
  std::span<std::byte> before;
  if (!chunk->requests.empty()) before = chunk->requests.back().data;
  const bool neighbours = !before.empty() && before.data() + before.size() == data.data();
  if (neighbours && tenant(chunk->pieces.back().slot) == tenant(slot)) {
    chunk->requests.back().data = {before.data(), before.size() + data.size()};
  } else {
    chunk->requests.push_back({.kind = IoKind::kWrite,
                               .file = options_.file,
                               .offset = offset,
                               .data = data,
                               .status = {}});
  }
  chunk->pieces.push_back({.slot = slot, .request = chunk->requests.size() - 1});
}

void SegmentWriter::Append(std::deque<AppendItem*>* queue) {
  AQ_CHECK(!sealing_ && !queue->empty());
  auto group = std::make_unique<Group>();
  group->slots.reserve(kRecordsPerPage);
  group->number = next_group_++;
  group->page_offset = cursor_;
  uint64_t at = cursor_ + kPageBytes;
  Chunk chunk{.writer = this, .group = group.get()};
  std::vector<Chunk> chunks;
  while (!queue->empty() && group->slots.size() < kRecordsPerPage) {
    AppendItem* const item = queue->front();
    const uint64_t bytes = item->source.size();
    const uint64_t records = uint64_t{next_record_} + queued_records_ + 1;
    if (at + bytes + FooterBytes(records) > options_.segment_bytes) break;
    if (!group->slots.empty() && at + bytes > cursor_ + kPageBytes + kGroupBytes) break;
    queue->pop_front();
    item->OnTaken();
    ++queued_records_;
    const auto slot = static_cast<uint32_t>(group->slots.size());
    group->slots.push_back({.item = item,
                            .payload_offset = at,
                            .age = host_->NextAge(*item),
                            .pieces = 0,
                            .status = {}});
    for (uint64_t done = 0; done < bytes;) {
      if (chunk.bytes > 0 && chunk.bytes + std::min(bytes - done, kChunkBytes) > kChunkBytes) {
        chunks.push_back(std::exchange(chunk, {.writer = this, .group = group.get()}));
      }
      const uint64_t length = std::min(bytes - done, kChunkBytes);
      // A write only reads its data.
      auto* data = const_cast<std::byte*>(item->source.data()) + done;
      AddPayload(slot, at + done, {data, length}, &chunk);
      if (item->keep != nullptr) chunk.keep.push_back(item->keep);
      chunk.bytes += length;
      ++group->slots[slot].pieces;
      ++group->pieces;
      done += length;
    }
    at += bytes;
  }
  AQ_CHECK(!group->slots.empty());
  group->end_offset = cursor_ = at;
  chunks.push_back(std::move(chunk));
  groups_.push_back(std::move(group));
  for (Chunk& ready : chunks) host_->EnqueueChunk(std::move(ready));
}

void SegmentWriter::OnChunkDone(const Chunk& chunk, std::span<const IoRequest> requests) {
  Group& group = *chunk.group;
  Status error;
  for (const Chunk::Piece& piece : chunk.pieces) {
    Group::Slot& slot = group.slots[piece.slot];
    const Status& status = requests[piece.request].status;
    if (!status.ok()) slot.status = error = status;
    --group.pieces;
    if (--slot.pieces > 0) continue;
    slot.item->OnPayloadDone();
    if (slot.status.ok()) continue;
    --queued_records_;
    std::exchange(slot.item, nullptr)->OnAppended(slot.status);
  }
  if (group.pieces == 0) Commit();
  if (!error.ok()) host_->OnWriteError(error);
}

void SegmentWriter::Commit() {
  if (committing_) return;
  size_t ready = 0;
  while (ready < groups_.size() && groups_[ready]->pieces == 0) ++ready;
  if (ready == 0) return MaybeWriteFooter();
  if (broken_) {
    for (; ready > 0; --ready) {
      const std::unique_ptr<Group> group = std::move(groups_.front());
      groups_.pop_front();
      for (Group::Slot& slot : group->slots) {
        if (slot.item == nullptr) continue;
        --queued_records_;
        slot.item->OnAppended(broken_why_);
      }
    }
    return MaybeWriteFooter();
  }
  committing_ = true;
  if (!options_.sync) return WritePages(ready);
  std::vector<IoRequest> sync(1);
  sync[0].kind = IoKind::kSync;
  sync[0].file = options_.file;
  io_->Submit(std::move(sync), [this, ready](std::vector<IoRequest>& requests) {
    if (requests[0].status.ok()) return WritePages(ready);
    committing_ = false;
    Break(requests[0].status);
  });
}

void SegmentWriter::WritePages(size_t groups) {
  std::vector<IoRequest> requests;
  requests.reserve(groups);
  for (size_t i = 0; i < groups; ++i) {
    Group& group = *groups_[i];
    group.page = PageBuffer(kPageBytes);
    group.first_record = next_record_;
    for (const Group::Slot& slot : group.slots) {
      if (slot.item == nullptr) continue;
      EncodeRecord({.meta = slot.item->meta,
                    .age = slot.age,
                    .payload_offset = slot.payload_offset,
                    .generation = options_.use.generation},
                   RecordAt(group.page.page(0), group.encoded));
      ++group.encoded;
    }
    next_record_ += group.encoded;
    queued_records_ -= group.encoded;
    FinishRecordPage({.kind = RecordPageKind::kGroup,
                      .use = options_.use,
                      .number = group.number,
                      .first_record = group.first_record,
                      .records = group.encoded,
                      .offset = group.page_offset,
                      .end_offset = group.end_offset,
                      .previous = last_page_},
                     group.page.page(0));
    last_page_ = PageLink(group.page.page(0));
    requests.push_back({.kind = IoKind::kWrite,
                        .file = options_.file,
                        .offset = group.page_offset,
                        .data = group.page.span(),
                        .status = {}});
  }
  // The pages are lent to the request: it may outlive this writer.
  std::vector<PageBuffer> keep;
  for (size_t i = 0; i < groups; ++i) keep.push_back(std::move(groups_[i]->page));
  if (Planted(PlantedBug::kCommitBeforeWrite)) {
    SubmitDurably(io_, options_.sync, requests, [](std::vector<IoRequest>&) {}, std::move(keep));
    return OnPagesDone(groups, requests);
  }
  SubmitDurably(
      io_, options_.sync, std::move(requests),
      [this, groups](std::vector<IoRequest>& done) { OnPagesDone(groups, done); }, std::move(keep));
}

void SegmentWriter::OnPagesDone(size_t groups, std::span<const IoRequest> requests) {
  committing_ = false;
  Status error;
  for (size_t i = 0; i < groups; ++i) {
    const std::unique_ptr<Group> group = std::move(groups_.front());
    groups_.pop_front();
    if (error.ok()) error = requests[i].status;
    uint32_t index = 0;
    for (Group::Slot& slot : group->slots) {
      if (slot.item == nullptr) continue;
      const uint32_t record = group->first_record + index++;
      std::array<std::byte, kRecordBytes> bytes;
      EncodeRecord({.meta = slot.item->meta,
                    .age = slot.age,
                    .payload_offset = slot.payload_offset,
                    .generation = options_.use.generation},
                   bytes);
      footer_.Add(bytes);
      AppendItem* const item = std::exchange(slot.item, nullptr);
      host_->OnRecord(this, record, slot.age, slot.payload_offset, error.ok() ? item : nullptr);
      item->OnAppended(error);
    }
  }
  if (!error.ok()) return Break(error);
  Commit();
}

void SegmentWriter::Break(const Status& status) {
  broken_ = true;
  broken_why_ = status;
  Commit();  // Fails what is ready; the rest follows as its payloads complete.
  host_->OnWriteError(status);
}

void SegmentWriter::Seal() {
  sealing_ = true;
  MaybeWriteFooter();
}

void SegmentWriter::MaybeWriteFooter() {
  if (!sealing_ || footer_started_ || committing_ || !groups_.empty()) return;
  footer_started_ = true;
  std::vector<IoRequest> pages;
  auto last = std::make_shared<std::vector<IoRequest>>();
  footer_.Finish(options_.file, options_.segment_bytes,
                 {.use = options_.use, .groups = next_group_, .data_end = cursor_}, &pages,
                 last.get());
  auto buffers = std::make_shared<std::vector<PageBuffer>>(footer_.TakeBuffers());
  const auto write_trailer = [this, last, buffers](std::vector<IoRequest>& done) {
    // Without its pages a trailer is worth nothing, and without a trailer the next start scans.
    if (!FirstError(done).ok()) return host_->OnSealed(this);
    SubmitDurably(
        io_, options_.sync, std::move(*last),
        [this](std::vector<IoRequest>&) { host_->OnSealed(this); }, std::move(*buffers));
  };
  if (pages.empty()) return write_trailer(pages);
  // A copy of the pointer keeps the buffers for a request that outlives this writer.
  SubmitDurably(io_, options_.sync, std::move(pages),
                [buffers, write_trailer](std::vector<IoRequest>& done) { write_trailer(done); },
                {});
}

}  // namespace aquifer
