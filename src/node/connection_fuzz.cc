// A client made of the fuzzer's bytes: it connects, greets, writes frames that are right, frames
// that are not and bytes that are none, moves its counts about, reads or does not, and goes away or
// is cut off. Whatever it does, the core keeps its house: at the end nothing is lent to anybody.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "net/byte_ring.h"
#include "net/epoll_waiter.h"
#include "net/frame_socket.h"
#include "net/local_protocol.h"
#include "net/shared_memory.h"
#include "node/connection.h"
#include "testing/chain.h"
#include "testing/manual_world.h"

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

class Harness final : private Connection::Host {
 public:
  Harness() : world_(Options()), waiter_(*EpollWaiter::New()) {
    int ends[2];
    AQ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    socket_ = std::make_unique<FrameSocket>(Descriptor(ends[0]));
    process_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Connection::Host* const host = this;
    connection_ = std::make_unique<Connection>(
        FrameSocket(Descriptor(ends[1])), Descriptor(::dup(process_.get())), PeerCredentials{},
        ConnectionLimits{.max_requests = 8, .max_items = 4096}, host);
    AQ_CHECK(connection_->Begin().ok());
    const Layout layout = LayoutOfBytes(kBlockBytes);
    chain_ = std::make_unique<Chain>(layout, ChainOptions{.seed = 1, .blocks = 32});
  }

  void Run(Input* input) {
    if (input->Byte() % 8 != 0) Greet();
    while (!input->empty()) Step(input);
    // Its process ends, and then all is given back.
    const uint64_t one = 1;
    AQ_CHECK(::write(process_.get(), &one, sizeof(one)) == sizeof(one));
    Settle();
    AQ_CHECK(gone_);
    connection_.reset();
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
  void RemoveItems(const Connection&, size_t count) override { items_ -= count; }
  Result<Admission> Admit(const Hello& hello, const PeerCredentials&) override {
    if (hello.tenant.empty() || hello.tenant.size() > 64) return Status(Code::kInvalid, "no");
    return Admission{.client = {.tenant = std::string(hello.tenant), .engine = "e"},
                     .may_drain = false};
  }
  void OnOpened(Connection*) override {}
  void OnEnded(Connection*, const std::string&) override {}
  void OnGone(Connection*) override { gone_ = true; }

  void CheckNothingIsLent() {
    struct Sink final : ClientSink {
      void OnProgress(Request*, size_t, bool) override {}
    } sink;
    const Result<ClientNumber> client = world_.core().Attach({}, &sink);
    AQ_CHECK(client.ok());
    StatsRequest stats;
    world_.core().Stats(*client, &stats);
    AQ_CHECK(stats.stats.Counter("lent_slots") == 0);
    AQ_CHECK(stats.stats.Counter("quarantined_bytes") == 0);
    world_.core().Detach(*client);
    world_.Run();
  }

  void Settle() {
    for (int i = 0; i < 8; ++i) {
      world_.Run();
      waiter_->Sleep(0);
      waiter_->Poll();
    }
  }

  void Greet() {
    writer_.Begin(static_cast<uint16_t>(FrameKind::kHello), 0);
    Encode(Hello{.tenant = "local"}, &writer_);
    AQ_CHECK(socket_->Send(writer_.Finish()).ok());
    Settle();
    std::vector<std::byte> frame;
    AQ_CHECK(socket_->Receive(&frame, true).ok());
    FrameReader reader(frame);
    Welcome welcome;
    AQ_CHECK(Decode(&reader, &welcome).ok());
    to_node_ = *SharedMemory::Map(socket_->TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
    from_node_ = *SharedMemory::Map(socket_->TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
    requests_ = std::make_unique<RingWriter>(to_node_.bytes());
    answers_ = std::make_unique<RingReader>(from_node_.bytes());
    writer_.Begin(static_cast<uint16_t>(FrameKind::kRegisterLayout), 1);
    Encode(LayoutOfBytes(kBlockBytes), &writer_);
    AQ_CHECK(requests_->Write(writer_.Finish()).ok());
    Settle();
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

  void Write() {
    if (requests_ != nullptr) [[maybe_unused]]
      const Status status = requests_->Write(writer_.Finish());
  }

  void WriteCall(Input* input) {
    const uint8_t which = input->Byte() % 12;
    const uint64_t number = input->Byte() % 16;
    const auto begin = [&](FrameKind kind) { writer_.Begin(static_cast<uint16_t>(kind), number); };
    switch (which) {
      case 0:
        begin(FrameKind::kMatch);
        Encode(MatchCall{.chain = ChainFrom(input), .have = input->Byte()}, &writer_);
        break;
      case 1:
        begin(FrameKind::kFetch);
        Encode(FetchCall{.chain = ChainFrom(input), .timeout_nanos = input->Word() * 1000 - 1000},
               &writer_);
        break;
      case 2:
        begin(FrameKind::kReserve);
        Encode(
            ReserveCall{
                .chain = ChainFrom(input), .parent = chain_->parent(0), .position = input->Byte()},
            &writer_);
        break;
      case 3: {
        begin(FrameKind::kCommit);
        std::vector<std::byte> ops(kCommitOpBytes * (1 + input->Byte() % 4));
        for (size_t at = 0; at < ops.size(); at += kCommitOpBytes) {
          CommitOp op;
          op.reservation = uint64_t{input->Byte()} << 32 | input->Byte();
          op.head_end = input->Byte();
          EncodeCommitOp(op, std::span(ops).subspan(at).first<kCommitOpBytes>());
        }
        Encode(CommitCall{.total = static_cast<uint32_t>(ops.size() / kCommitOpBytes), .ops = ops},
               &writer_);
        break;
      }
      case 4: {
        begin(FrameKind::kRelease);
        const ReleaseOp op{.lease = uint64_t{input->Byte()} << 32 | input->Byte(),
                           .corrupt = input->Byte() % 2 == 0};
        Encode(std::span(&op, 1), &writer_);
        break;
      }
      case 5: {
        begin(FrameKind::kAbort);
        const ReservationId id = uint64_t{input->Byte()} << 32 | input->Byte();
        Encode(std::span<const ReservationId>(&id, 1), &writer_);
        break;
      }
      case 6:
        begin(FrameKind::kMore);
        Encode(ChainFrom(input).items, &writer_);
        break;
      case 7:
        begin(FrameKind::kCancel);
        break;
      case 8:
        begin(FrameKind::kEvict);
        Encode(
            EvictCall{
                .chain = ChainFrom(input), .session = {}, .everything = input->Byte() % 2 == 0},
            &writer_);
        break;
      case 9:
        begin(FrameKind::kStats);
        break;
      case 10:
        begin(FrameKind::kExtentReturned);
        EncodeExtent(input->Byte(), &writer_);
        break;
      default:
        begin(FrameKind::kPin);
        Encode(PinCall{.chain = ChainFrom(input), .seconds = input->Byte()}, &writer_);
        break;
    }
    Write();
  }

  void Step(Input* input) {
    switch (input->Byte() % 12) {
      case 0: {  // A frame of any kind and any body.
        writer_.Begin(input->Word(), input->Byte());
        const std::vector<std::byte> body = input->Bytes(input->Byte());
        writer_.Bytes(body);
        return Write();
      }
      case 1: {  // Bytes that are no frame.
        if (requests_ == nullptr) return;
        const std::vector<std::byte> bytes = input->Bytes(input->Byte() * 8);
        if (bytes.empty()) return;
        std::memcpy(to_node_.bytes().data() + kRingHeaderBytes + 8 * input->Word() % 4096,
                    bytes.data(), bytes.size());
        if (input->Byte() % 2 == 0) Header(to_node_)->written += bytes.size();
        return;
      }
      case 2:
        return Settle();
      case 3:
        world_.Advance(input->Byte() * 1'000'000);
        return Settle();
      case 4: {
        std::vector<std::byte> frame;
        while (answers_ != nullptr && answers_->Read(&frame).ok()) {
        }
        return;
      }
      case 5:
        if (input->Byte() % 8 == 0) socket_ = nullptr;
        return;
      case 6:
        if (requests_ != nullptr && input->Byte() % 8 == 0) {
          Header(from_node_)->read += input->Word();
        }
        return;
      case 7:
        if (socket_ != nullptr && input->Byte() % 8 == 0) {
          writer_.Begin(input->Word() % 8, 0);
          writer_.Bytes(input->Bytes(input->Byte()));
          [[maybe_unused]] const Status status = socket_->Send(writer_.Finish());
        }
        return;
      default:
        return WriteCall(input);
    }
  }

  static RingHeader* Header(const SharedMemory& memory) {
    return reinterpret_cast<RingHeader*>(memory.bytes().data());
  }
  ManualWorld world_;
  std::unique_ptr<EpollWaiter> waiter_;
  Descriptor process_;  // The client's, as far as the connection knows.
  std::unique_ptr<FrameSocket> socket_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Chain> chain_;
  SharedMemory to_node_;
  SharedMemory from_node_;
  std::unique_ptr<RingWriter> requests_;
  std::unique_ptr<RingReader> answers_;
  FrameWriter writer_;
  bool gone_ = false;
  size_t items_ = 0;
  std::shared_ptr<std::atomic<uint32_t>> closing_ = std::make_shared<std::atomic<uint32_t>>(0);
};

}  // namespace
}  // namespace aquifer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  aquifer::Input input(data, size);
  aquifer::Harness().Run(&input);
  return 0;
}
