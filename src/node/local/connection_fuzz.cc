// Two clients of two tenants, made of the fuzzer's bytes: they connect, greet, write frames that
// are right, frames that are not and bytes that are none, move their counts about, read or do not,
// return extents, write to what they have mapped, say goodbye, and go away or are cut off. Whatever
// they do, the core keeps its house: at the end nothing is lent to anybody, and nothing is
// withheld.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "io/memory/extent.h"
#include "net/local/byte_ring.h"
#include "net/local/epoll_waiter.h"
#include "net/local/frame_socket.h"
#include "net/local/shared_memory.h"
#include "net/protocol/local_protocol.h"
#include "node/local/connection.h"
#include "testing/cache/manual_world.h"
#include "testing/chain.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr size_t kMaxItems = 6000;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint16_t Word() { return static_cast<uint16_t>(Byte() << 8 | Byte()); }
  std::vector<std::byte> Bytes(size_t count) {
    std::vector<std::byte> bytes(std::min(count, size_));
    if (!bytes.empty()) std::memcpy(bytes.data(), data_, bytes.size());
    data_ += bytes.size();
    size_ -= bytes.size();
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

CoreOptions Options() {
  CoreOptions options;
  options.cache.dram_bytes = uint64_t{2} << 20;
  options.cache.overdue_nanos = 50'000'000;
  options.extent_bytes = uint64_t{1} << 20;
  return options;
}

constexpr FrameKind kKinds[] = {
    FrameKind::kRegisterLayout, FrameKind::kMatch,   FrameKind::kFetch,
    FrameKind::kFetch,          FrameKind::kReserve, FrameKind::kReserve,
    FrameKind::kReserve,        FrameKind::kCommit,  FrameKind::kCommit,
    FrameKind::kFlush,          FrameKind::kPin,     FrameKind::kPrestage,
    FrameKind::kEvict,          FrameKind::kDrain,   FrameKind::kStats,
    FrameKind::kMore,           FrameKind::kCancel,  FrameKind::kRelease,
    FrameKind::kAbort,          FrameKind::kHint,    FrameKind::kReportPrefill,
    FrameKind::kExtentReturned, FrameKind::kGoodbye,
};

// One client: what it has of its connection, and what it does with it.
class Client {
 public:
  Client(std::string tenant, const Chain* chain) : tenant_(std::move(tenant)), chain_(chain) {
    int ends[2];
    AQ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    socket_ = std::make_unique<FrameSocket>(Descriptor(ends[0]));
    nodes_end_ = Descriptor(ends[1]);
    process_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }

  FrameSocket TakeNodesEnd() { return FrameSocket(std::move(nodes_end_)); }
  Descriptor CopyOfProcess() const { return Descriptor(::dup(process_.get())); }
  void EndProcess() {
    const uint64_t one = 1;
    AQ_CHECK(::write(process_.get(), &one, sizeof(one)) == sizeof(one));
  }

  void SayHello(bool observe) {
    writer_.Begin(static_cast<uint16_t>(FrameKind::kHello), 0);
    Encode(Hello{.tenant = tenant_, .observe = observe}, &writer_);
    AQ_CHECK(socket_->Send(writer_.Finish()).ok());
  }
  void TakeWelcome() {
    std::vector<std::byte> frame;
    AQ_CHECK(socket_->Receive(&frame, true).ok());
    FrameReader reader(frame);
    Welcome welcome;
    AQ_CHECK(Decode(&reader, &welcome).ok());
    to_node_ = *SharedMemory::Map(socket_->TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
    from_node_ = *SharedMemory::Map(socket_->TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
    wake_node_ = socket_->TakeDescriptor();
    wake_client_ = socket_->TakeDescriptor();
    requests_ = std::make_unique<RingWriter>(to_node_.bytes());
    answers_ = std::make_unique<RingReader>(from_node_.bytes());
    writer_.Begin(static_cast<uint16_t>(FrameKind::kRegisterLayout), 1);
    Encode(LayoutOfBytes(kBlockBytes), &writer_);
    Write();
  }

  void Act(Input* input) {
    switch (input->Byte() % 12) {
      case 0: {  // A frame of any kind and any body.
        writer_.Begin(input->Word(), input->Byte());
        writer_.Bytes(input->Bytes(input->Byte()));
        return Write();
      }
      case 1:
        return WriteGarbage(input);
      case 2:
        return ReadAnswers();
      case 3:
        return ReadSocket();
      case 4:
        if (input->Byte() % 8 == 0) socket_ = nullptr;
        return;
      case 5:
        if (requests_ != nullptr && input->Byte() % 8 == 0) {
          Header(from_node_)->read += input->Word();
        }
        return;
      case 6:
        if (socket_ != nullptr && input->Byte() % 8 == 0) SendOnSocket(input);
        return;
      case 7:  // What it was lent, or is lent no more.
        for (const auto& [extent, memory] : extents_) {
          memory.bytes()[input->Word() % memory.bytes().size()] ^= std::byte{1};
        }
        return;
      default:
        return WriteCall(input);
    }
  }

  bool gone = false;

 private:
  static RingHeader* Header(const SharedMemory& memory) {
    return reinterpret_cast<RingHeader*>(memory.bytes().data());
  }

  void Write() {
    if (requests_ == nullptr) return;
    [[maybe_unused]] const Status status = requests_->Write(writer_.Finish());
  }

  void WriteGarbage(Input* input) {
    if (requests_ == nullptr) return;
    const std::vector<std::byte> bytes = input->Bytes(input->Byte() * 8);
    if (bytes.empty()) return;
    std::memcpy(to_node_.bytes().data() + kRingHeaderBytes + 8 * input->Word() % 4096, bytes.data(),
                bytes.size());
    if (input->Byte() % 2 == 0) Header(to_node_)->written += bytes.size();
  }

  void SendOnSocket(Input* input) {
    writer_.Begin(input->Word() % 8, 0);
    writer_.Bytes(input->Bytes(input->Byte()));
    const int own = process_.get();
    const size_t descriptors = input->Byte() % 2;
    [[maybe_unused]] const Status status =
        socket_->Send(writer_.Finish(), std::span(&own, descriptors));
  }

  // Keeps what it is lent, to give it back.
  void ReadAnswers() {
    std::vector<std::byte> frame;
    while (answers_ != nullptr && answers_->Read(&frame).ok()) {
      FrameReader reader(frame);
      AnswerHead head;
      Decode(&reader, &head);
      for (uint32_t i = 0; i < head.count && asked_.contains(reader.header().number); ++i) {
        if (asked_[reader.header().number] == FrameKind::kFetch) {
          FetchAnswer answer;
          Decode(&reader, &answer);
          if (answer.lease != 0) leases_.push_back({.lease = answer.lease});
        } else {
          ReserveAnswer answer;
          Decode(&reader, &answer);
          if (answer.reservation != 0) reservations_.push_back(answer.reservation);
        }
      }
    }
  }

  void ReadSocket() {
    std::vector<std::byte> frame;
    while (socket_ != nullptr && socket_->Receive(&frame, true).ok()) {
      FrameReader reader(frame);
      ExtentOffer offer;
      if (reader.header().kind != static_cast<uint16_t>(FrameKind::kExtent) ||
          !Decode(&reader, &offer).ok()) {
        continue;
      }
      Result<SharedMemory> memory = SharedMemory::Map(socket_->TakeDescriptor(), offer.bytes);
      AQ_CHECK(memory.ok());
      extents_[offer.extent] = *std::move(memory);
    }
  }

  ChainCall ChainFrom(Input* input) {
    const size_t first = input->Byte() % chain_->size();
    const size_t count = std::min<size_t>(input->Byte() % 33, chain_->size() - first);
    const uint32_t extra = input->Byte() % 4 == 0 ? input->Byte() : 0;
    return {.layout = input->Byte() % 16 == 0 ? input->Byte() : 1u,
            .group = static_cast<uint16_t>(input->Byte() % 16 == 0 ? 1 : 0),
            .part = 0,
            .total = static_cast<uint32_t>(count) + extra,
            .items = {.keys = chain_->keys(first, count), .engine_hashes = {}}};
  }

  void WriteCall(Input* input) {
    const uint64_t number = input->Byte() % 16;
    const FrameKind kind = kKinds[input->Byte() % std::size(kKinds)];
    writer_.Begin(static_cast<uint16_t>(kind), number);
    const std::string_view session = input->Byte() % 2 == 0 ? "session" : "";
    switch (kind) {
      case FrameKind::kRegisterLayout:
        Encode(LayoutOfBytes(kBlockBytes << input->Byte() % 3), &writer_);
        break;
      case FrameKind::kMatch:
        Encode(MatchCall{.chain = ChainFrom(input), .have = input->Byte()}, &writer_);
        break;
      case FrameKind::kFetch:
        asked_[number] = kind;
        Encode(FetchCall{.chain = ChainFrom(input), .timeout_nanos = input->Word() * 1000 - 1000},
               &writer_);
        break;
      case FrameKind::kReserve:
        asked_[number] = kind;
        Encode(
            ReserveCall{
                .chain = ChainFrom(input), .parent = chain_->parent(0), .position = input->Byte()},
            &writer_);
        break;
      case FrameKind::kCommit:
        EncodeCommit(input);
        break;
      case FrameKind::kFlush:
        Encode(FlushCall{.tier = static_cast<TierKind>(input->Byte() % 2),
                         .timeout_nanos = input->Word() * 1000 - 1000},
               &writer_);
        break;
      case FrameKind::kPin:
        Encode(PinCall{.chain = ChainFrom(input), .seconds = input->Byte()}, &writer_);
        break;
      case FrameKind::kPrestage:
        Encode(PrestageCall{.chain = ChainFrom(input),
                            .session = session,
                            .timeout_nanos = input->Word() * 1000 - 1000},
               &writer_);
        break;
      case FrameKind::kEvict:
        Encode(EvictCall{.chain = ChainFrom(input),
                         .session = session,
                         .everything = input->Byte() % 2 == 0},
               &writer_);
        break;
      case FrameKind::kDrain:
        Encode(DrainCall{.timeout_nanos = input->Word() * 1000 - 1000}, &writer_);
        break;
      case FrameKind::kMore:
        Encode(ChainFrom(input).items, &writer_);
        break;
      case FrameKind::kRelease: {
        const ReleaseOp op = Take(input, &leases_).value_or(ReleaseOp{.lease = input->Word()});
        Encode(std::span(&op, 1), &writer_);
        break;
      }
      case FrameKind::kAbort: {
        const ReservationId id = Take(input, &reservations_).value_or(input->Word());
        Encode(std::span<const ReservationId>(&id, 1), &writer_);
        break;
      }
      case FrameKind::kHint:
        Encode(HintCall{.layout = 1,
                        .group = 0,
                        .part = 0,
                        .head = (*chain_)[input->Byte() % chain_->size()],
                        .session = session,
                        .state = static_cast<SessionState>(input->Byte() % 3),
                        .priority = static_cast<int8_t>(input->Byte()),
                        .ttl_seconds = input->Byte() % 4,
                        .durability = static_cast<Durability>(input->Byte() % 2),
                        .return_seconds = input->Byte() * 60},
               kLocalVersion, &writer_);
        break;
      case FrameKind::kReportPrefill:
        Encode(PrefillReport{.layout = 1,
                             .tokens = input->Word(),
                             .context_tokens = input->Word(),
                             .milliseconds = static_cast<double>(input->Byte())},
               &writer_);
        break;
      case FrameKind::kExtentReturned: {
        const uint32_t extent = extents_.empty() ? input->Byte() : extents_.begin()->first;
        if (!extents_.empty()) extents_.erase(extents_.begin());
        EncodeExtent(extent, &writer_);
        break;
      }
      default:  // Those without a body.
        break;
    }
    Write();
  }

  void EncodeCommit(Input* input) {
    std::vector<std::byte> ops(kCommitOpBytes * (1 + input->Byte() % 4));
    for (size_t at = 0; at < ops.size(); at += kCommitOpBytes) {
      CommitOp op;
      op.reservation = Take(input, &reservations_).value_or(input->Word());
      op.head_end = input->Byte() % 2 == 0 ? op.head_end : input->Byte();
      EncodeCommitOp(op, std::span(ops).subspan(at).first<kCommitOpBytes>());
    }
    Encode(CommitCall{.total = static_cast<uint32_t>(ops.size() / kCommitOpBytes), .ops = ops},
           &writer_);
  }

  // One that it has, mostly.
  template <class T>
  static std::optional<T> Take(Input* input, std::vector<T>* from) {
    if (from->empty() || input->Byte() % 8 == 0) return std::nullopt;
    const T taken = from->back();
    from->pop_back();
    return taken;
  }

  const std::string tenant_;
  const Chain* const chain_;
  Descriptor nodes_end_;
  Descriptor process_;  // The client's, as far as the connection knows.
  std::unique_ptr<FrameSocket> socket_;
  SharedMemory to_node_;
  SharedMemory from_node_;
  Descriptor wake_node_;
  Descriptor wake_client_;
  std::unique_ptr<RingWriter> requests_;
  std::unique_ptr<RingReader> answers_;
  std::map<uint32_t, SharedMemory> extents_;
  std::map<uint64_t, FrameKind> asked_;  // By number, of those whose answers lend something.
  std::vector<ReleaseOp> leases_;
  std::vector<ReservationId> reservations_;
  FrameWriter writer_;
};

class Harness final : private Connection::Host {
 public:
  Harness()
      : world_(Options(), SystemExtentSource()),
        waiter_(*EpollWaiter::New()),
        chain_(LayoutOfBytes(kBlockBytes), ChainOptions{.seed = 1, .blocks = 32}) {
    for (const char* const tenant : {"local", "other"}) {
      clients_.push_back(std::make_unique<Client>(tenant, &chain_));
      Connection::Host* const host = this;
      connections_.push_back(std::make_unique<Connection>(
          clients_.back()->TakeNodesEnd(), clients_.back()->CopyOfProcess(), PeerCredentials{},
          ConnectionLimits{.max_requests = 8, .max_items = 4096, .return_nanos = 100'000'000},
          host));
      AQ_CHECK(connections_.back()->Begin().ok());
    }
    world_.core().on_extent_wanted = [this](uint32_t extent) {
      for (const auto& connection : connections_) connection->WantBack(extent);
    };
  }

  void Run(Input* input) {
    for (const auto& client : clients_) {
      const uint8_t how = input->Byte();
      if (how % 8 == 0) continue;
      client->SayHello(/*observe=*/how % 8 == 1);
      Settle();
      client->TakeWelcome();
      Settle();
    }
    while (!input->empty()) Step(input);
    // Their processes end, and then all is given back.
    for (const auto& client : clients_) client->EndProcess();
    Settle();
    for (const auto& client : clients_) AQ_CHECK(client->gone);
    connections_.clear();
    AQ_CHECK(items_ == 0);
    CheckNothingIsLent();
  }

 private:
  Core* core() override { return &world_.core(); }
  Executor* owner() override { return world_.owner(); }
  EpollWaiter* waiter() override { return waiter_.get(); }
  Clock* clock() override { return &world_.clock(); }
  WorkerPool* workers() override { return world_.workers(); }
  TaskMeter* meter() override { return &world_.meter(); }
  const std::shared_ptr<std::atomic<uint32_t>>& closing() override { return closing_; }
  size_t ItemsLeft(const Connection&) override { return kMaxItems - items_; }
  void AddItems(const Connection&, size_t count) override { items_ += count; }
  void RemoveItems(const Connection&, size_t count) override {
    AQ_CHECK(items_ >= count);
    items_ -= count;
  }
  Result<Admission> Admit(const Hello& hello, const PeerCredentials&) override {
    if (hello.tenant.empty() || hello.tenant.size() > 64) return Status(Code::kInvalid, "no");
    return Admission{.client = {.tenant = std::string(hello.tenant), .engine = "e"},
                     .may_drain = false};
  }
  void OnOpened(Connection*) override {}
  void OnEnded(Connection*, const std::string&) override {}
  void OnGone(Connection* connection) override {
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (connections_[i].get() == connection) clients_[i]->gone = true;
    }
  }

  void CheckNothingIsLent() {
    struct Sink final : ClientSink {
      void OnProgress(Request*, size_t, bool) override {}
    } sink;
    const Result<ClientNumber> client = world_.core().Attach({}, &sink);
    AQ_CHECK(client.ok());
    StatsRequest stats;
    world_.core().Stats(*client, &stats);
    for (const char* const what : {"lent_slots", "quarantined_bytes", "withheld_bytes"}) {
      AQ_CHECK(stats.stats.Counter(what) == 0);
    }
    world_.core().Detach(*client);
    world_.Run();
  }

  // Until nobody has anything to do.
  void Settle() {
    for (int quiet = 0; quiet < 3; ++quiet) {
      world_.Run();
      waiter_->Sleep(0);
      for (int polls = 0; polls < 10'000 && waiter_->Poll(); ++polls) {
        world_.Run();
        quiet = 0;
      }
    }
  }

  void Step(Input* input) {
    switch (input->Byte() % 8) {
      case 0:
        return Settle();
      case 1:
        world_.Advance(input->Byte() * 1'000'000);
        return Settle();
      default:
        return clients_[input->Byte() % clients_.size()]->Act(input);
    }
  }

  ManualWorld world_;
  std::unique_ptr<EpollWaiter> waiter_;
  const Chain chain_;
  size_t items_ = 0;
  std::shared_ptr<std::atomic<uint32_t>> closing_ = std::make_shared<std::atomic<uint32_t>>(0);
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace
}  // namespace aquifer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  aquifer::Input input(data, size);
  aquifer::Harness().Run(&input);
  return 0;
}
