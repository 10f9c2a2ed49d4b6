// Tests what engines of one node share, and that they see nothing else of each other. Node, engines
// and strangers are processes of their own.
//
// Out of scope: a process of the same user can open another's descriptors through /proc/PID/fd, or
// trace it. Processes that distrust each other on one host need users of their own. In scope:
// everything that comes over the node's socket and rings.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "net/protocol/local_protocol.h"
#include "node/local/node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/node/raw_client.h"
#include "testing/scratch_directory.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::seconds;
using testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{256} << 10;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kPoolBytes = 192 * kMiB;  // Three extents.
constexpr const char* kNodeFlag = "--node-child";
constexpr const char* kEngineFlag = "--engine-child";

Chain ChainOf(const std::string& tenant, uint64_t seed, size_t blocks) {
  return Chain(LayoutOfBytes(kBlockBytes), {.seed = seed, .blocks = blocks, .tenant = tenant});
}

// ---- Where memory is ----

// A page of a memory object: the same place in two processes is the same memory.
struct Place {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

// All extents that this process has mapped, by their addresses.
struct Mapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  uint64_t inode = 0;
};
std::vector<Mapping> MappedExtents(const std::string& process = "self") {
  std::vector<Mapping> mappings;
  std::ifstream maps("/proc/" + process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:aquifer-extent") == std::string::npos) continue;
    Mapping mapping;
    AQ_CHECK(std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %lu", &mapping.begin, &mapping.end,
                         &mapping.offset, &mapping.inode) == 4);
    mappings.push_back(mapping);
  }
  return mappings;
}

std::set<uint64_t> InodesOf(const std::vector<Mapping>& mappings) {
  std::set<uint64_t> inodes;
  for (const Mapping& mapping : mappings) inodes.insert(mapping.inode);
  return inodes;
}

Place PlaceOf(const std::vector<Mapping>& mappings, const void* address) {
  const auto at = reinterpret_cast<uint64_t>(address);
  for (const Mapping& mapping : mappings) {
    if (at >= mapping.begin && at < mapping.end) {
      return {.inode = mapping.inode, .offset = mapping.offset + (at - mapping.begin)};
    }
  }
  return {};
}

// The answer as text, as children print it.
template <class Op, class BytesOf>
std::string PlacesOf(const std::vector<Op>& ops, BytesOf bytes_of) {
  const std::vector<Mapping> mappings = MappedExtents();
  std::string places;
  for (const Op& op : ops) {
    const Place place = PlaceOf(mappings, bytes_of(op).data());
    places += fmt::format(" {}:{}", place.inode, place.offset);
  }
  return places;
}

// A number of /proc/PID/NAME.
uint64_t FigureOf(pid_t process, const std::string& name, const std::string& field) {
  std::ifstream file(fmt::format("/proc/{}/{}", process, name));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":"))
      return std::strtoull(line.c_str() + field.size() + 1, nullptr, 10);
  }
  ADD_FAILURE() << name << " of process " << process << " says no " << field;
  return 0;
}

// ---- The children ----

int RunNode(const std::string& socket) {
  DieWithParent();
  CacheOptions options;
  options.dram_bytes = kPoolBytes;
  ServerOptions server;
  server.socket = socket;
  server.admit = AdmitOwnUser;
  auto node = Node::Start({.cache = options, .server = server});
  AQ_CHECK(node.ok());
  TellParent("ready");
  WaitForParent();
  return 0;
}

// An engine that obeys commands.
class ToldEngine {
 public:
  ToldEngine(const std::string& socket, const std::string& tenant)
      : tenant_(tenant),
        cache_(*Connect({.socket = socket}, {.tenant = tenant})),
        engine_(cache_.get(), LayoutOfBytes(kBlockBytes)) {}

  // A command, the seed of a chain, and how many blocks it has.
  std::string Do(const std::string& words) {
    std::istringstream in(words);
    std::string command;
    uint64_t seed = 0;
    size_t blocks = 0;
    in >> command >> seed >> blocks;
    const Chain chain = ChainOf(tenant_, seed, blocks);
    if (command == "store") return Store(chain);
    if (command == "fetch") return Fetch(chain);
    if (command == "check") return Check(chain);
    if (command == "match") return Match(chain);
    if (command == "reserve") return Reserve(chain);
    if (command == "commit") return Commit(chain);
    if (command == "recall") return fmt::format("{} right", engine_.Recall(chain).right);
    if (command == "extents") return Extents();
    return "what?";
  }

 private:
  std::string Store(const Chain& chain) {
    const auto reserve = engine_.Reserve(chain);
    const auto commit = engine_.FillAndCommit(chain, {}, *reserve);
    size_t published = 0;
    for (const CommitOp& op : commit->ops) published += op.published ? 1 : 0;
    return fmt::format("{}", published) +
           PlacesOf(reserve->ops, [](const ReserveOp& op) { return op.slot; });
  }
  // Holds the fetched blocks until "check".
  std::string Fetch(const Chain& chain) {
    fetch_ = engine_.Fetch(chain);
    size_t leased = 0;
    for (const FetchOp& op : fetch_->ops) leased += op.lease != 0 ? 1 : 0;
    return fmt::format("{}", leased) +
           PlacesOf(fetch_->ops, [](const FetchOp& op) { return op.bytes; });
  }
  std::string Check(const Chain& chain) {
    return fmt::format("{} right", engine_.CheckAndRelease(chain, {}, *fetch_).right);
  }
  std::string Match(const Chain& chain) {
    const auto match = engine_.Match(chain);
    std::string text = fmt::format("{} matched", match->matched);
    for (const MatchRun& run : match->runs) {
      text += run.state == RunState::kBeingFilled ? ", being filled" : ", ready";
    }
    return text;
  }
  std::string Reserve(const Chain& chain) {
    reserve_ = engine_.Reserve(chain);
    std::string text;
    for (const ReserveOp& op : reserve_->ops) {
      text += op.outcome == ReserveOutcome::kSlot          ? 's'
              : op.outcome == ReserveOutcome::kBeingFilled ? 'f'
              : op.outcome == ReserveOutcome::kHave        ? 'h'
                                                           : 'r';
    }
    return text;
  }
  std::string Commit(const Chain& chain) {
    size_t published = 0;
    const auto commit = engine_.FillAndCommit(chain, {}, *reserve_);
    for (const CommitOp& op : commit->ops) published += op.published ? 1 : 0;
    return fmt::format("{} published", published);
  }
  static std::string Extents() {
    std::string text;
    for (const uint64_t inode : InodesOf(MappedExtents())) text += fmt::format("{} ", inode);
    return text;
  }

  const std::string tenant_;
  const std::unique_ptr<Cache> cache_;
  TestEngine engine_;
  std::unique_ptr<FetchRequest> fetch_;
  std::unique_ptr<ReserveRequest> reserve_;
};

int RunEngine(const std::string& socket, const std::string& tenant) {
  DieWithParent();
  ToldEngine engine(socket, tenant);
  TellParent("ready");
  while (const auto words = HearParent()) TellParent(engine.Do(*words));
  return 0;
}

// ---- A client that speaks the protocol by hand, and keeps every extent that it is given ----

class Stranger : public RawClient {
 public:
  explicit Stranger(const std::string& socket) : RawClient(socket) {
    Enter("stranger");
    Register(LayoutOfBytes(kBlockBytes));
  }

  // Asks again while memory is being prepared.
  std::vector<ReserveAnswer> Reserve(const Chain& chain) {
    while (true) {
      Write(FrameKind::kReserve, 2,
            ReserveCall{.chain = {.layout = layout(),
                                  .group = 0,
                                  .part = 0,
                                  .total = static_cast<uint32_t>(chain.size()),
                                  .items = {.keys = chain.keys(), .engine_hashes = {}}},
                        .parent = chain.parent(0)});
      std::vector<ReserveAnswer> answers;
      for (bool done = false; !done;) {
        const AnswerHead head = Answer().value();
        done = head.done;
        for (uint32_t i = 0; i < head.count; ++i) Decode(&reader(), &answers.emplace_back());
      }
      std::vector<ReservationId> slots;
      for (const ReserveAnswer& op : answers) {
        if (op.reservation != 0) slots.push_back(op.reservation);
      }
      if (slots.size() == chain.size()) return answers;
      Write(FrameKind::kAbort, 0, std::span<const ReservationId>(slots));
    }
  }

  // Reads from the socket. Returns false if it was closed.
  bool ReadSocket() {
    std::vector<std::byte> frame;
    while (true) {
      const Status status = TryReceive(&frame);
      if (status.code() == Code::kNotFound) return true;
      if (!status.ok()) return false;
      if (FrameReader(frame).header().kind == static_cast<uint16_t>(FrameKind::kExtent)) {
        extents_.push_back(TakeDescriptor());
      }
    }
  }
  std::vector<Descriptor>& extents() { return extents_; }

 private:
  std::vector<Descriptor> extents_;
};

uint64_t InodeOf(const Descriptor& descriptor) {
  struct stat file{};
  AQ_CHECK(::fstat(descriptor.get(), &file) == 0);
  return file.st_ino;
}

// The memory behind a descriptor, in which to look for others' bytes.
class Kept {
 public:
  explicit Kept(const Descriptor& descriptor) {
    struct stat file{};
    AQ_CHECK(::fstat(descriptor.get(), &file) == 0);
    bytes_ = {static_cast<const std::byte*>(::mmap(nullptr, static_cast<size_t>(file.st_size),
                                                   PROT_READ, MAP_SHARED, descriptor.get(), 0)),
              static_cast<size_t>(file.st_size)};
    AQ_CHECK(bytes_.data() != MAP_FAILED);
  }
  ~Kept() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

  // How many of its pages begin like a page of one of the chain's blocks.
  size_t PagesOf(const Chain& chain) const {
    std::set<uint64_t> beginnings;
    std::vector<std::byte> block(kBlockBytes);
    for (const Key& key : chain.keys()) {
      FillPayload(key, 0, block);
      for (size_t at = 0; at < block.size(); at += kPageBytes) beginnings.insert(WordAt(block, at));
    }
    size_t found = 0;
    for (size_t at = 0; at < bytes_.size(); at += kPageBytes) {
      found += beginnings.contains(WordAt(bytes_, at)) ? 1 : 0;
    }
    return found;
  }

 private:
  static uint64_t WordAt(std::span<const std::byte> bytes, size_t at) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    return word;
  }

  std::span<const std::byte> bytes_;
};

// ---- The tests; this process is the stranger ----

class Sharing : public testing::Test {
 protected:
  void SetUp() override {
    node_ = ChildProcess::Start({kNodeFlag, socket_});
    ASSERT_EQ(node_->ReadLine(seconds(60)), "ready");
  }
  std::unique_ptr<ChildProcess> StartEngine(const std::string& tenant) {
    auto child = ChildProcess::Start({kEngineFlag, socket_, tenant});
    EXPECT_EQ(child->ReadLine(seconds(60)), "ready");
    return child;
  }
  static std::string Ask(ChildProcess* child, const std::string& words) {
    child->Tell(words);
    return child->ReadLine(seconds(60)).value_or("nothing");
  }
  static std::set<uint64_t> ExtentsOf(ChildProcess* child) {
    std::istringstream in(Ask(child, "extents"));
    return {std::istream_iterator<uint64_t>(in), {}};
  }

  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
  std::unique_ptr<ChildProcess> node_;
};

// Three things are counted. For each block: whether the reader's bytes are the very memory (object
// and offset) that the writer wrote, so that there is no copy. How much memory of its own each of
// the three processes took. How many bytes any of them read or wrote with a system call.
TEST_F(Sharing, TwoEnginesOfOneTenantShareEveryBlockWithoutACopy) {
  const auto writer = StartEngine("local");
  const auto reader = StartEngine("local");
  constexpr size_t kBlocks = 128;  // 32 MiB.
  // Once before, so that memory that every process needs anyway is there.
  ASSERT_EQ(Ask(writer.get(), "store 1 4").substr(0, 2), "4 ");
  ASSERT_EQ(Ask(reader.get(), "fetch 1 4").substr(0, 2), "4 ");
  ASSERT_EQ(Ask(reader.get(), "check 1 4"), "4 right");

  const std::vector<pid_t> processes = {node_->pid(), writer->pid(), reader->pid()};
  const auto total = [&](const std::string& file, const std::string& field) {
    uint64_t sum = 0;
    for (const pid_t process : processes) sum += FigureOf(process, file, field);
    return sum;
  };
  const uint64_t own_kib = total("status", "RssAnon");
  const uint64_t moved = total("io", "rchar") + total("io", "wchar");
  const std::string written = Ask(writer.get(), fmt::format("store 2 {}", kBlocks));
  const std::string read = Ask(reader.get(), fmt::format("fetch 2 {}", kBlocks));
  EXPECT_EQ(written.substr(0, written.find(' ')), std::to_string(kBlocks));
  EXPECT_EQ(read, written) << "some block was read elsewhere than where it was written";
  EXPECT_EQ(read.find(" 0:0"), std::string::npos) << "some block is in nobody's extent";
  EXPECT_EQ(Ask(reader.get(), fmt::format("check 2 {}", kBlocks)),
            fmt::format("{} right", kBlocks));
  EXPECT_LT(total("io", "rchar") + total("io", "wchar") - moved, kBlocks * kBlockBytes / 16);
  if (!kSanitized) {  // The sanitizer's own memory would count as well.
    EXPECT_LT(total("status", "RssAnon"), own_kib + kBlocks * kBlockBytes / 16 / 1024);
  }
  // The node has the same memory mapped, and no other.
  const std::set<uint64_t> nodes = InodesOf(MappedExtents(std::to_string(node_->pid())));
  for (const uint64_t inode : ExtentsOf(reader.get())) EXPECT_TRUE(nodes.contains(inode));
}

// All answers about a chain, in words.
std::string AllAbout(TestEngine* engine, const Chain& chain) {
  std::string text;
  const auto say = [&text](const std::string& what, const Request& request) {
    text += fmt::format("{}: {} ", what, request.status.ToString());
  };
  const auto match = engine->Match(chain);
  say("match", *match);
  text += fmt::format("{} {} {} {} {};", match->matched, match->runs.size(), match->pays,
                      match->load_ms, match->recompute_ms);
  const auto fetch = engine->Fetch(chain);
  say("fetch", *fetch);
  for (const FetchOp& op : fetch->ops) {
    text += fmt::format("{} {} {} {},", op.status.ToString(), op.lease, op.bytes.size(),
                        static_cast<int>(op.tier));
  }
  const auto prestage = engine->Prestage(chain);
  say("prestage", *prestage);
  text += fmt::format("{} {};", prestage->found, prestage->staged);
  text += fmt::format("pin: {};", engine->Pin(chain, 60));
  const auto evict = engine->Evict(chain);
  say("evict", *evict);
  text += fmt::format("{};", evict->evicted);
  const auto reserve = engine->Reserve(chain);
  say("reserve", *reserve);
  std::vector<ReservationId> reservations;
  for (const ReserveOp& op : reserve->ops) {
    text += fmt::format("{} {} {},", static_cast<int>(op.outcome), static_cast<int>(op.refusal),
                        op.slot.size());
    reservations.push_back(op.reservation);
  }
  engine->cache()->Abort(reservations);
  // A guess at the other tenant's session name.
  const auto session = engine->PrestageSession("conversation");
  say("session", *session);
  return text;
}

TEST_F(Sharing, AnotherTenantSeesMissesOnlyAndCannotTellThemFromHits) {
  const auto victim = StartEngine("victim");
  ASSERT_EQ(Ask(victim.get(), "store 1 16").substr(0, 3), "16 ");
  const std::set<uint64_t> theirs = ExtentsOf(victim.get());
  ASSERT_FALSE(theirs.empty());

  auto cache = Connect({.socket = socket_}, {.tenant = "stranger"});
  ASSERT_TRUE(cache.ok());
  TestEngine stranger(cache->get(), LayoutOfBytes(kBlockBytes));
  // The same tokens under its own name: other keys.
  EXPECT_EQ(stranger.Recall(ChainOf("stranger", 1, 16)), Recalled{.missed = 16});
  // The victim's own keys, should the stranger know them, against keys that do not exist.
  const std::string there = AllAbout(&stranger, ChainOf("victim", 1, 16));
  const std::string nowhere = AllAbout(&stranger, ChainOf("victim", 2, 16));
  EXPECT_EQ(there, nowhere);

  for (const uint64_t inode : InodesOf(MappedExtents())) {
    EXPECT_FALSE(theirs.contains(inode)) << "it has mapped the victim's memory";
  }
  EXPECT_EQ(Ask(victim.get(), "recall 1 16"), "16 right") << "and deleted nothing of it";
}

TEST_F(Sharing, GuessedNumbersReachNothingOfAnothers) {
  const auto victim = StartEngine("victim");
  ASSERT_EQ(Ask(victim.get(), "store 1 16").substr(0, 3), "16 ");
  ASSERT_EQ(Ask(victim.get(), "fetch 1 16").substr(0, 3), "16 ");  // The victim has leases.
  ASSERT_EQ(Ask(victim.get(), "reserve 2 4"), "ssss");             // The victim has reservations.
  const std::set<uint64_t> theirs = ExtentsOf(victim.get());

  Stranger stranger(socket_);
  const std::vector<ReserveAnswer> own = stranger.Reserve(ChainOf("stranger", 1, 4));
  // A client cannot name an offset: the node tells the holder of a loan where it is. Everything
  // else is a number.
  std::vector<ReleaseOp> releases;
  std::vector<ReservationId> aborts;
  std::vector<std::byte> commits;
  for (uint64_t number = 0; number < 64; ++number) {
    for (uint64_t generation = 0; generation < 8; ++generation) {
      const uint64_t guess = generation << 32 | number;
      if (std::any_of(own.begin(), own.end(),
                      [&](const ReserveAnswer& op) { return op.reservation == guess; })) {
        continue;
      }
      releases.push_back({.lease = guess, .corrupt = true});
      aborts.push_back(guess);
      CommitOp commit;
      commit.reservation = guess;
      commits.resize(commits.size() + kCommitOpBytes);
      EncodeCommitOp(commit, std::span(commits).last<kCommitOpBytes>());
    }
  }
  stranger.Write(
      FrameKind::kCommit, 3,
      CommitCall{.total = static_cast<uint32_t>(commits.size() / kCommitOpBytes), .ops = commits});
  size_t refused = 0;
  for (bool done = false; !done;) {
    const AnswerHead head = stranger.Answer().value();
    done = head.done;
    for (uint32_t i = 0; i < head.count; ++i) {
      CommitAnswer answer;
      Decode(&stranger.reader(), &answer);
      refused += answer.code == Code::kInvalid && !answer.published ? 1 : 0;
    }
  }
  EXPECT_EQ(refused, commits.size() / kCommitOpBytes);
  stranger.Write(FrameKind::kRelease, 0, std::span<const ReleaseOp>(releases));
  stranger.Write(FrameKind::kAbort, 0, std::span<const ReservationId>(aborts));
  // All memory that it was ever given is its own.
  ASSERT_TRUE(stranger.ReadSocket());
  EXPECT_FALSE(stranger.extents().empty());
  for (const Descriptor& extent : stranger.extents()) {
    EXPECT_FALSE(theirs.contains(InodeOf(extent)));
  }
  // Returning an extent that it does not have costs it the connection, and the victim nothing.
  uint32_t not_its_own = 1;
  while (not_its_own == own[0].slot.extent) ++not_its_own;
  stranger.WriteReturned(not_its_own);
  EXPECT_TRUE(stranger.IsCutOff());

  EXPECT_EQ(Ask(victim.get(), "check 1 16"), "16 right");
  EXPECT_EQ(Ask(victim.get(), "commit 2 4"), "4 published");
  EXPECT_EQ(Ask(victim.get(), "recall 2 4"), "4 right");
}

// An extent never changes its owner: a client that keeps one sees only its own bytes.
TEST_F(Sharing, ADescriptorThatIsKeptNeverShowsAnothersBytes) {
  const Chain own = ChainOf("stranger", 1, 8);
  std::vector<Descriptor> kept;
  {
    Stranger stranger(socket_);
    const std::vector<ReserveAnswer> slots = stranger.Reserve(own);
    ASSERT_TRUE(stranger.ReadSocket());
    ASSERT_EQ(stranger.extents().size(), 1u);
    std::vector<std::byte> block(kBlockBytes);
    for (size_t i = 0; i < slots.size(); ++i) {
      FillPayload(own[i], 0, block);
      ASSERT_EQ(::pwrite(stranger.extents()[0].get(), block.data(), block.size(),
                         static_cast<off_t>(slots[i].slot.offset)),
                static_cast<ssize_t>(block.size()));
    }
    kept = std::move(stranger.extents());
    stranger.WriteEmpty(FrameKind::kGoodbye, 0);
    EXPECT_TRUE(stranger.IsCutOff());
  }
  const Kept memory(kept[0]);
  ASSERT_EQ(memory.PagesOf(own), own.size() * kBlockBytes / kPageBytes) << "it sees nothing at all";

  // The victim needs all of the pool, and more: every free extent becomes its own.
  const auto victim = StartEngine("victim");
  constexpr size_t kBlocks = 64;
  std::set<uint64_t> theirs;
  for (uint64_t seed = 1; seed * kBlocks * kBlockBytes <= kPoolBytes * 3 / 2; ++seed) {
    const std::string stored = Ask(victim.get(), fmt::format("store {} {}", seed, kBlocks));
    ASSERT_EQ(stored.substr(0, stored.find(' ')), std::to_string(kBlocks));
    theirs.merge(ExtentsOf(victim.get()));
    EXPECT_EQ(memory.PagesOf(ChainOf("victim", seed, kBlocks)), 0u) << "chain " << seed;
  }
  EXPECT_GE(theirs.size(), 3u) << "the victim did not get the pool";
  EXPECT_FALSE(theirs.contains(InodeOf(kept[0])));
}

TEST_F(Sharing, OfTwoThatWantTheSameUncachedPrefixOneComputesAndTheOtherIsTold) {
  const auto one = StartEngine("local");
  const auto two = StartEngine("local");
  constexpr size_t kBlocks = 16;
  for (uint64_t round = 1; round <= 8; ++round) {
    const std::string chain = fmt::format("{} {}", round, kBlocks);
    EXPECT_EQ(Ask(one.get(), "match " + chain), "0 matched");
    one->Tell("reserve " + chain);
    two->Tell("reserve " + chain);
    const std::string first = one->ReadLine(seconds(60)).value_or("");
    const std::string second = two->ReadLine(seconds(60)).value_or("");
    ASSERT_EQ(first.size(), kBlocks);
    ASSERT_EQ(second.size(), kBlocks);
    for (size_t i = 0; i < kBlocks; ++i) {
      const std::string both = {std::min(first[i], second[i]), std::max(first[i], second[i])};
      EXPECT_EQ(both, "fs") << "block " << i << ": one fills, the other hears of it";
    }
    // The client that only waits for the block learns so from its Match.
    ChildProcess* const waits = first[0] == 'f' ? one.get() : two.get();
    ChildProcess* const fills = first[0] == 'f' ? two.get() : one.get();
    EXPECT_EQ(Ask(waits, "match " + chain), "0 matched, being filled");
    Ask(fills, "commit " + chain);
    Ask(waits, "commit " + chain);  // In case it got some of the slots.
    EXPECT_EQ(Ask(waits, "recall " + chain), fmt::format("{} right", kBlocks));
    EXPECT_EQ(Ask(fills, "recall " + chain), fmt::format("{} right", kBlocks));
  }
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  const std::string_view flag = argc > 2 ? argv[1] : "";
  if (flag == aquifer::kNodeFlag) return aquifer::RunNode(argv[2]);
  if (flag == aquifer::kEngineFlag && argc == 4) return aquifer::RunEngine(argv[2], argv[3]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
