// Tests damage on the drive: bits flipped, files cut, records swapped between files. Every block
// served afterwards has the stored bytes, and every damaged block is counted.
//
// Most trials use the NVMe tier directly over a disk in memory, where a reopen takes milliseconds.
// Some go through a whole cache on real files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/manual_executor.h"
#include "testing/memory_disk.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSegmentBytes = 256 << 10;

// Pages for device I/O.
class PageBuffer {
 public:
  explicit PageBuffer(uint64_t bytes)
      : bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes_))) {
    AQ_CHECK(memory_ != nullptr);
    std::memset(memory_.get(), 0, bytes_);
  }
  std::span<std::byte> span() { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  uint64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// --- The tier over a disk in memory ------------------------------------------------------------

// Blocks whose bytes follow from their keys: whole pages, parts of pages, and several pages.
std::vector<BlockMeta> MakeBlocks() {
  std::vector<BlockMeta> blocks;
  for (const uint64_t bytes : {4096, 5000, 12'288, 40'000}) {
    const Layout layout = LayoutOfBytes(bytes);
    const Chain chain(layout, {.seed = bytes, .blocks = 12});
    for (size_t i = 0; i < chain.size(); ++i) {
      BlockMeta meta;
      meta.id.tenant = TenantIdOf("local");
      meta.id.key = chain[i];
      meta.parent = chain.parent(i);
      meta.position = static_cast<uint32_t>(i);
      meta.layout_fingerprint = LayoutFingerprint(layout);
      meta.raw_bytes = bytes;
      meta.stored_bytes = bytes;
      std::vector<std::byte> payload(bytes);
      FillPayload(chain[i], 0, payload);
      meta.checksum = ChecksumOf(payload);
      blocks.push_back(meta);
    }
  }
  return blocks;
}

// One mount of the media with a tier on it.
class Mount {
 public:
  explicit Mount(std::shared_ptr<MemoryMedia> media)
      : executor_(&clock_), disk_(std::move(media), {}, &executor_, &clock_) {
    auto tier = NewNvmeTier({.capacity_bytes = 32 * kSegmentBytes,
                             .segment_bytes = kSegmentBytes,
                             .max_block_bytes = 64 << 10},
                            {&disk_}, nullptr, &executor_, &executor_, &clock_, &random_);
    AQ_CHECK(tier.ok());
    tier_ = *std::move(tier);
    bool done = false;
    tier_->Recover([&](const Status& status) {
      recovered_ = status;
      done = true;
    });
    executor_.RunAll();
    AQ_CHECK(done);
  }

  NvmeTier& tier() { return *tier_; }
  const Status& recovered() const { return recovered_; }

  void Write(const std::vector<BlockMeta>& blocks) {
    std::vector<PageBuffer> buffers;
    Batch<WriteOp> batch;
    for (const BlockMeta& block : blocks) {
      PageBuffer& buffer = buffers.emplace_back(block.raw_bytes);
      FillPayload(block.id.key, 0, buffer.span().first(block.raw_bytes));
      WriteOp& op = batch.ops.emplace_back();
      op.meta = block;
      op.source = buffer.span();
    }
    bool done = false;
    batch.on_done = [&](auto&) { done = true; };
    tier_->Write(&batch);
    Settle(&done);
    for (const WriteOp& op : batch.ops) AQ_CHECK(op.status.ok());
  }

  struct Reading {
    size_t right = 0;
    size_t missed = 0;
    size_t corrupt = 0;
    size_t wrong = 0;
    size_t other = 0;
  };
  Reading ReadAll(const std::vector<BlockMeta>& blocks) {
    if (buffers_.empty()) {
      for (const BlockMeta& block : blocks) buffers_.emplace_back(block.raw_bytes);
    }
    Batch<ReadOp> batch;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ReadOp& op = batch.ops.emplace_back();
      op.id = blocks[i].id;
      op.target = buffers_[i].span();
    }
    bool done = false;
    batch.on_done = [&](auto&) { done = true; };
    tier_->Read(&batch);
    Settle(&done);

    Reading reading;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ReadOp& op = batch.ops[i];
      const BlockMeta& meta = blocks[i];
      switch (op.status.code()) {
        case Code::kOk: {
          const bool right = op.checksum == meta.checksum &&
                             IsPayload(meta.id.key, 0, op.target.first(meta.raw_bytes));
          ++(right ? reading.right : reading.wrong);
          break;
        }
        case Code::kNotFound:
          ++reading.missed;
          break;
        case Code::kCorrupt:
          ++reading.corrupt;
          break;
        default:
          ++reading.other;
      }
    }
    return reading;
  }

  uint64_t Counter(std::string_view name) const {
    for (const auto& [counter, value] : tier_->Counters()) {
      if (counter == name) return value;
    }
    ADD_FAILURE() << "there is no counter " << name;
    return 0;
  }

  // Counts entries of the tier that do not match the block stored under that name.
  size_t ForgedEntries(const std::vector<BlockMeta>& blocks) {
    size_t forged = 0;
    bool done = false;
    const auto count = [&](const BlockMeta& meta) {
      const bool genuine = std::any_of(blocks.begin(), blocks.end(), [&](const BlockMeta& block) {
        return block.id == meta.id && block.parent == meta.parent &&
               block.position == meta.position && block.raw_bytes == meta.raw_bytes &&
               block.layout_fingerprint == meta.layout_fingerprint &&
               block.checksum == meta.checksum;
      });
      forged += genuine ? 0 : 1;
    };
    tier_->EnumerateInSlices(count, [&] { done = true; });
    Settle(&done);
    return forged;
  }

 private:
  void Settle(const bool* done) {
    executor_.RunAll();
    for (int i = 0; i < 1000 && !*done; ++i) {
      executor_.RunNextTimer();
      executor_.RunAll();
    }
    AQ_CHECK(*done);
  }

  ManualClock clock_;
  ManualExecutor executor_;
  SeededRandom random_{5};
  MemoryDisk disk_;
  std::unique_ptr<NvmeTier> tier_;
  Status recovered_;
  std::vector<PageBuffer> buffers_;
};

// Where a block's payload begins on the media.
struct Place {
  uint32_t file = 0;
  uint64_t offset = 0;
};

class TierCorruptionTest : public testing::Test {
 protected:
  TierCorruptionTest() : blocks_(MakeBlocks()), pristine_(std::make_shared<MemoryMedia>()) {
    {
      Mount mount(pristine_);
      AQ_CHECK(mount.recovered().ok());
      mount.Write(blocks_);
      const auto reading = mount.ReadAll(blocks_);
      AQ_CHECK(reading.right == blocks_.size());
    }
    for (const DiskFile& file : pristine_->List()) {
      const auto bytes = pristine_->Bytes(file.number, 0, file.bytes);
      for (uint64_t page = 0; page < file.bytes; page += kPageBytes) {
        const auto begin = bytes.begin() + static_cast<ptrdiff_t>(page);
        if (std::any_of(begin, begin + kPageBytes, [](std::byte b) { return b != std::byte{0}; })) {
          pages_.push_back({file.number, page});
        }
      }
      files_.push_back(file);
    }
  }

  // Found by their content, so that this test knows nothing of the format.
  std::vector<Place> FindPayloads() const {
    std::vector<Place> places(blocks_.size());
    for (const Place& page : pages_) {
      const auto bytes = pristine_->Bytes(page.file, page.offset, kPageBytes);
      for (size_t i = 0; i < blocks_.size(); ++i) {
        if (IsPayload(blocks_[i].id.key, 0, std::span(bytes).first(4096))) places[i] = page;
      }
    }
    return places;
  }

  // A page that is still there.
  Place AnyPage(const MemoryMedia& media, SeededRandom* random) const {
    while (true) {
      const Place page = pages_[random->Below(pages_.size())];
      if (page.offset + kPageBytes <= media.Size(page.file)) return page;
    }
  }

  // Does one random damage to the media, and describes it.
  std::string Damage(MemoryMedia* media, SeededRandom* random) const {
    const Place page = AnyPage(*media, random);
    const Place other = AnyPage(*media, random);
    switch (random->Below(10)) {
      case 0: {
        const DiskFile& file = files_[random->Below(files_.size())];
        const uint64_t bytes = random->Below(media->Size(file.number) + 1);
        media->Truncate(file.number, bytes);
        return fmt::format("file {} cut to {}", file.number, bytes);
      }
      case 1: {
        const uint64_t left = media->Size(page.file) - page.offset;
        const uint64_t other_left = media->Size(other.file) - other.offset;
        uint64_t length = std::min({left, other_left, kPageBytes * (1 + random->Below(8))});
        if (page.file == other.file) {  // Ranges may not overlap.
          const uint64_t apart =
              std::max(page.offset, other.offset) - std::min(page.offset, other.offset);
          length = std::min(length, apart);
        }
        if (length > 0) {
          media->SwapRanges(page.file, page.offset, other.file, other.offset, length);
        }
        return fmt::format("{} bytes of file {} at {} and file {} at {} swapped", length, page.file,
                           page.offset, other.file, other.offset);
      }
      case 2: {
        const auto copy = media->Bytes(other.file, other.offset, kPageBytes);
        media->SetBytes(page.file, page.offset, copy);
        return fmt::format("file {} at {} overwritten by file {} at {}", page.file, page.offset,
                           other.file, other.offset);
      }
      case 3: {
        const uint64_t offset = page.offset + kSectorBytes * random->Below(8);
        media->SetBytes(page.file, offset, std::vector<std::byte>(kSectorBytes));
        return fmt::format("file {} zero at {}", page.file, offset);
      }
      default: {
        const uint64_t offset = page.offset + random->Below(kPageBytes);
        const int bit = static_cast<int>(random->Below(8));
        media->FlipBit(page.file, offset, bit);
        return fmt::format("bit {} of file {} at {} flipped", bit, page.file, offset);
      }
    }
  }

  const std::vector<BlockMeta> blocks_;
  const std::shared_ptr<MemoryMedia> pristine_;
  std::vector<Place> pages_;  // Pages that are not all zero.
  std::vector<DiskFile> files_;
};

TEST_F(TierCorruptionTest, NothingWrongIsServedWhateverHappensToTheFiles) {
  const int trials = ByTestLevel(2'000, 10'000, 50'000);
  SeededRandom random(42);
  size_t lost = 0;
  for (int trial = 0; trial < trials; ++trial) {
    auto media = pristine_->Clone();
    std::string damage = Damage(media.get(), &random);
    if (random.Below(4) == 0) damage += ", " + Damage(media.get(), &random);
    SCOPED_TRACE(fmt::format("trial {}: {}", trial, damage));

    Mount mount(media);
    EXPECT_TRUE(mount.recovered().ok()) << mount.recovered().ToString();
    const auto reading = mount.ReadAll(blocks_);
    EXPECT_EQ(reading.wrong, 0u);
    EXPECT_EQ(reading.other, 0u);
    EXPECT_EQ(mount.Counter("corrupt_blocks"), reading.corrupt);
    EXPECT_EQ(mount.ForgedEntries(blocks_), 0u);
    lost += reading.missed + reading.corrupt;
    if (HasFailure()) break;
  }
  EXPECT_GT(lost, 0u);  // The damage had an effect.
}

TEST_F(TierCorruptionTest, ADamagedPayloadIsOneCorruptBlockAndNoMore) {
  const std::vector<Place> places = FindPayloads();
  SeededRandom random(43);
  for (int trial = 0; trial < ByTestLevel(200, 500, 2000); ++trial) {
    const size_t victim = random.Below(blocks_.size());
    const uint64_t offset = random.Below(blocks_[victim].raw_bytes);
    SCOPED_TRACE(fmt::format("trial {}: block {} at {}", trial, victim, offset));
    auto media = pristine_->Clone();
    media->FlipBit(places[victim].file, places[victim].offset + offset,
                   static_cast<int>(random.Below(8)));

    Mount mount(media);
    const auto reading = mount.ReadAll(blocks_);
    EXPECT_EQ(reading.corrupt, 1u);
    EXPECT_EQ(reading.right, blocks_.size() - 1);
    EXPECT_EQ(mount.Counter("corrupt_blocks"), 1u);
    const auto again = mount.ReadAll(blocks_);  // The block was dropped: now it is a miss.
    EXPECT_EQ(again.missed, 1u);
    EXPECT_EQ(again.corrupt, 0u);
    EXPECT_EQ(mount.Counter("corrupt_blocks"), 1u);
    if (HasFailure()) break;
  }
}

TEST_F(TierCorruptionTest, SwappedPayloadsAreBothCorrupt) {
  const std::vector<Place> places = FindPayloads();
  SeededRandom random(44);
  for (int trial = 0; trial < ByTestLevel(100, 300, 1000); ++trial) {
    const size_t one = random.Below(blocks_.size());
    const size_t two = random.Below(blocks_.size());
    if (one == two || blocks_[one].raw_bytes != blocks_[two].raw_bytes) continue;
    SCOPED_TRACE(fmt::format("trial {}: blocks {} and {}", trial, one, two));
    auto media = pristine_->Clone();
    media->SwapRanges(places[one].file, places[one].offset, places[two].file, places[two].offset,
                      blocks_[one].raw_bytes);
    Mount mount(media);
    const auto reading = mount.ReadAll(blocks_);
    EXPECT_EQ(reading.corrupt, 2u);
    EXPECT_EQ(reading.right, blocks_.size() - 2);
    EXPECT_EQ(reading.wrong, 0u);
    if (HasFailure()) break;
  }
}

TEST_F(TierCorruptionTest, FilesThatChangedPlacesServeNothingWrong) {
  if (files_.size() < 2) GTEST_SKIP() << "there is one file only";
  for (size_t i = 0; i + 1 < files_.size(); ++i) {
    auto media = pristine_->Clone();
    media->SwapRanges(files_[i].number, 0, files_[i + 1].number, 0,
                      std::min(files_[i].bytes, files_[i + 1].bytes));
    Mount mount(media);
    EXPECT_TRUE(mount.recovered().ok());
    const auto reading = mount.ReadAll(blocks_);
    EXPECT_EQ(reading.wrong, 0u);
    EXPECT_EQ(mount.ForgedEntries(blocks_), 0u);
  }
}

// --- A whole cache on real files ---------------------------------------------------------------

constexpr uint64_t kCacheBlockBytes = 16 << 10;
constexpr uint64_t kCacheChains = 40;

class CacheCorruptionTest : public testing::Test {
 protected:
  CacheCorruptionTest() : layout_(LayoutOfBytes(kCacheBlockBytes)) {
    for (uint64_t seed = 1; seed <= kCacheChains; ++seed) {
      // Chains of one block and of four: no block below a corrupt one can be used.
      chains_.emplace_back(layout_, ChainOptions{.seed = seed, .blocks = seed % 2 == 0 ? 4u : 1u});
    }
    std::unique_ptr<Cache> cache = OpenOn(pristine());
    TestEngine engine(cache.get(), layout_);
    for (const Chain& chain : chains_) AQ_CHECK(engine.Store(chain) == chain.size());
    AQ_CHECK(engine.Flush().ok());
  }

  std::string pristine() const { return scratch_.Sub("pristine"); }
  std::string work() const { return scratch_.Sub("work"); }

  static std::unique_ptr<Cache> OpenOn(const std::string& directory) {
    CacheOptions options;
    options.dram_bytes = 64 * kMiB;
    options.nvme_directories = {directory};
    options.nvme_bytes = 32 * kMiB;
    options.nvme_segment_bytes = 1 * kMiB;
    options.nvme_engine = NvmeEngine::kThreads;
    auto cache = Open(options, {});
    AQ_CHECK(cache.ok());
    return *std::move(cache);
  }

  void Reset() const {
    std::filesystem::remove_all(work());
    std::filesystem::copy(pristine(), work(), std::filesystem::copy_options::recursive);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(work())) {
      if (entry.is_regular_file() && entry.file_size() >= kPageBytes) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  static std::vector<char> Load(const std::string& file) {
    std::vector<char> bytes(std::filesystem::file_size(file));
    std::ifstream(file, std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
  static void Save(const std::string& file, const std::vector<char>& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  ScratchDirectory scratch_;
  const Layout layout_;
  std::vector<Chain> chains_;
};

TEST_F(CacheCorruptionTest, NothingWrongIsServedByACacheOnDamagedFiles) {
  SeededRandom random(45);
  for (int trial = 0; trial < ByTestLevel(50, 200, 1000); ++trial) {
    SCOPED_TRACE(trial);
    Reset();
    const std::vector<std::string> files = Files();
    const std::string& file = files[random.Below(files.size())];
    const std::string& other = files[random.Below(files.size())];
    std::vector<char> bytes = Load(file);
    std::vector<char> other_bytes = Load(other);
    const uint64_t used = std::max<uint64_t>(1, std::min<uint64_t>(bytes.size(), 600 << 10));
    switch (random.Below(4)) {
      case 0:
        bytes.resize(random.Below(bytes.size()));
        break;
      case 1: {
        const size_t at = random.Below(bytes.size() / kPageBytes) * kPageBytes;
        const size_t from = random.Below(other_bytes.size() / kPageBytes) * kPageBytes;
        std::swap_ranges(bytes.begin() + static_cast<ptrdiff_t>(at),
                         bytes.begin() + static_cast<ptrdiff_t>(at + kPageBytes),
                         other_bytes.begin() + static_cast<ptrdiff_t>(from));
        if (file != other) Save(other, other_bytes);
        break;
      }
      default:
        for (int flips = 0; flips < 8; ++flips) {
          bytes[random.Below(used)] ^= static_cast<char>(1 << random.Below(8));
        }
    }
    Save(file, bytes);

    std::unique_ptr<Cache> cache = OpenOn(work());
    TestEngine engine(cache.get(), layout_);
    EXPECT_TRUE(engine.StatsOf(TierKind::kNvme).in_service);
    for (const Chain& chain : chains_) {
      const Recalled recalled = engine.Recall(chain);
      EXPECT_EQ(recalled.right + recalled.missed + recalled.corrupt, chain.size()) << recalled;
    }
    const Chain fresh(layout_, {.seed = 1000, .blocks = 4});
    EXPECT_EQ(engine.Store(fresh), 4u);  // The cache goes on.
    EXPECT_TRUE(engine.Flush().ok());
    if (HasFailure()) break;
  }
}

TEST_F(CacheCorruptionTest, EachDamagedPayloadIsCountedOnce) {
  SeededRandom random(46);
  for (size_t damaged = 1; damaged <= 5; ++damaged) {
    SCOPED_TRACE(damaged);
    Reset();
    // Damages the payloads of chains of one block, found by their content.
    std::set<size_t> victims;
    while (victims.size() < damaged) victims.insert(2 * random.Below(kCacheChains / 2));
    size_t done = 0;
    for (const std::string& file : Files()) {
      std::vector<char> bytes = Load(file);
      bool changed = false;
      for (size_t at = 0; at + kCacheBlockBytes <= bytes.size(); at += kPageBytes) {
        const auto block = std::as_bytes(std::span(bytes)).subspan(at, kCacheBlockBytes);
        for (const size_t victim : victims) {
          if (!IsPayload(chains_[victim][0], 0, block)) continue;
          bytes[at + random.Below(kCacheBlockBytes)] ^= 4;
          changed = true;
          ++done;
          break;
        }
      }
      if (changed) Save(file, bytes);
    }
    ASSERT_EQ(done, damaged);

    std::unique_ptr<Cache> cache = OpenOn(work());
    TestEngine engine(cache.get(), layout_);
    Recalled total;
    for (const Chain& chain : chains_) {
      const Recalled recalled = engine.Recall(chain);
      total.right += recalled.right;
      total.corrupt += recalled.corrupt;
      total.missed += recalled.missed;
      total.wrong += recalled.wrong;
    }
    EXPECT_EQ(total, (Recalled{.right = kCacheChains / 2 * 5 - damaged, .corrupt = damaged}));
    EXPECT_EQ(engine.Counter("corrupt_blocks"), damaged);
    for (const size_t victim : victims) {
      EXPECT_EQ(engine.Recall(chains_[victim]), Recalled{.missed = 1});
    }
    EXPECT_EQ(engine.Counter("corrupt_blocks"), damaged);
  }
}

}  // namespace
}  // namespace aquifer
