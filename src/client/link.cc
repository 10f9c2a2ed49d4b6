#include "client/link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/clock.h"
#include "client/find_node.h"

namespace aquifer {
namespace {

// How long to wait for an offer that the node has announced.
constexpr int64_t kExtentNanos = 1'000'000'000;

constexpr int64_t kGoodbyeNanos = 1'000'000'000;
constexpr int kUnsentMillis = 5;  // How long to wait for room in a ring when no event reports it.

int MillisUntil(int64_t deadline_nanos) {
  const int64_t left = deadline_nanos - SystemClock()->NowNanos();
  return static_cast<int>(std::clamp<int64_t>(left / 1'000'000 + 1, 0, INT_MAX));
}

Status CheckWelcome(const Welcome& welcome) {
  if (welcome.version < kOldestLocalVersion || welcome.version > kLocalVersion) {
    return Status(Code::kInvalid,
                  "the node chose version " + std::to_string(welcome.version) +
                      " of the local protocol, which this client does not speak; update one of "
                      "them");
  }
  if (welcome.max_requests == 0 || welcome.max_requests > kMaxOpenRequests) {
    return Status(Code::kInvalid, "the node takes " + std::to_string(welcome.max_requests) +
                                      " requests at once, which the local protocol does not allow");
  }
  if (welcome.ring_data_bytes > kMaxRingDataBytes) {
    return Status(Code::kInvalid, "the node's rings are larger than the local protocol allows");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Link>> Link::Open(std::span<const std::string> sockets, const Hello& hello,
                                         int64_t deadline_nanos) {
  AQ_ASSIGN_OR_RETURN(Descriptor connected, ConnectToFirst(sockets));
  std::unique_ptr<Link> link(new Link(std::move(connected)));
  AQ_RETURN_IF_ERROR(link->Shake(hello, deadline_nanos));
  return link;
}

Status Link::Shake(const Hello& hello, int64_t deadline_nanos) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kHello), 0);
  Encode(hello, &writer_);
  AQ_RETURN_IF_ERROR(socket_.Send(writer_.Finish()));
  AQ_RETURN_IF_ERROR(ReceiveBy(deadline_nanos));
  FrameReader reader(frame_);
  if (reader.header().kind == static_cast<uint16_t>(FrameKind::kRefused)) {
    Refused refused;
    AQ_RETURN_IF_ERROR(Decode(&reader, &refused));
    return Status(refused.code == Code::kOk ? Code::kInvalid : refused.code,
                  std::string(refused.message));
  }
  return TakeWelcome(&reader);
}

// Receives one frame from the socket.
Status Link::ReceiveBy(int64_t deadline_nanos) {
  while (true) {
    Status status = socket_.Receive(&frame_, /*with_descriptors=*/true);
    if (status.code() != Code::kNotFound) return status;
    if (SystemClock()->NowNanos() >= deadline_nanos) {
      return Status(Code::kLate, "the node does not answer");
    }
    pollfd ready{.fd = socket_.descriptor(), .events = POLLIN, .revents = 0};
    [[maybe_unused]] const int count = ::poll(&ready, 1, MillisUntil(deadline_nanos));
  }
}

Status Link::TakeWelcome(FrameReader* frame) {
  Welcome welcome;
  if (frame->header().kind != static_cast<uint16_t>(FrameKind::kWelcome)) {
    return Status(Code::kInvalid, "the node did not answer with a welcome");
  }
  AQ_RETURN_IF_ERROR(Decode(frame, &welcome));
  AQ_RETURN_IF_ERROR(CheckWelcome(welcome));
  version_ = welcome.version;
  max_requests_ = welcome.max_requests;
  for (SharedMemory* const memory : {&to_node_memory_, &to_client_memory_}) {
    AQ_ASSIGN_OR_RETURN(
        *memory, SharedMemory::Map(socket_.TakeDescriptor(), RingBytes(welcome.ring_data_bytes)));
    memory->CloseDescriptor();
    AQ_RETURN_IF_ERROR(CheckRing(memory->bytes()));
  }
  wake_node_ = socket_.TakeDescriptor();
  wake_client_ = socket_.TakeDescriptor();
  if (!wake_node_.valid() || !wake_client_.valid()) {
    return Status(Code::kInvalid, "the node's welcome has no descriptors");
  }
  to_node_ = std::make_unique<RingWriter>(to_node_memory_.bytes());
  from_node_ = std::make_unique<RingReader>(to_client_memory_.bytes());
  return Status();
}

void Link::SayGoodbye() {
  if (std::exchange(said_goodbye_, true)) return;
  extents_.clear();
  writer_.Begin(static_cast<uint16_t>(FrameKind::kGoodbye), 0);
  Send(writer_.Finish());
}

Link::~Link() {
  if (to_node_ == nullptr) return;
  SayGoodbye();
  const int64_t deadline_nanos = SystemClock()->NowNanos() + kGoodbyeNanos;
  while (Flush() && has_unsent() && !NodeIsGone() && SystemClock()->NowNanos() < deadline_nanos) {
    ::poll(nullptr, 0, kUnsentMillis);
  }
  if (over_) return;
  // The node closes the socket when it has taken everything back. Other processes then count on
  // that memory.
  while (ReceiveBy(deadline_nanos).ok()) {
  }
}

bool Link::NodeIsGone() const {
  pollfd end{.fd = socket_.descriptor(), .events = 0, .revents = 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLHUP | POLLERR)) != 0;
}

// ---- The rings ----

void Link::Send(std::span<const std::byte> frame) {
  if (broken_) return;
  if (outbox_.empty() && WriteNow(frame)) return;
  outbox_.emplace_back(frame.begin(), frame.end());
}

bool Link::WriteNow(std::span<const std::byte> frame) {
  const Status status = to_node_->Write(frame);
  if (status.code() == Code::kBusy) return false;
  broken_ = broken_ || !status.ok();
  if (to_node_->MustWake()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_node_.get(), &one, sizeof(one));
  }
  return true;
}

bool Link::Flush() {
  while (!outbox_.empty() && WriteNow(outbox_.front())) outbox_.pop_front();
  return !broken_;
}

Status Link::Receive(std::vector<std::byte>* frame) {
  const Status status = from_node_->Read(frame);
  if (status.ok() && from_node_->MustWake()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_node_.get(), &one, sizeof(one));
  }
  return status;
}

bool Link::PrepareToSleep() {
  if (!outbox_.empty() && !to_node_->PrepareToSleep(outbox_.front().size())) return false;
  return from_node_->PrepareToSleep();
}

void Link::ClearEvent() {
  std::byte wakes[256];
  [[maybe_unused]] const ssize_t got = ::read(wake_client_.get(), wakes, sizeof(wakes));
}

// ---- The socket ----

Status Link::ReadSocket() {
  while (true) {
    const Status status = socket_.Receive(&frame_, /*with_descriptors=*/true);
    if (status.code() == Code::kNotFound) return Status();
    AQ_RETURN_IF_ERROR(status);
    AQ_RETURN_IF_ERROR(TakeFrame());
  }
}

Status Link::TakeFrame() {
  FrameReader reader(frame_);
  if (reader.header().kind == static_cast<uint16_t>(FrameKind::kReturnExtent)) {
    uint32_t extent = 0;
    AQ_RETURN_IF_ERROR(DecodeExtent(&reader, &extent));
    const auto found = extents_.find(extent);
    if (found == extents_.end()) return Status();
    found->second.wanted_back = true;
    MaybeReturn(extent);
    return Status();
  }
  if (reader.header().kind != static_cast<uint16_t>(FrameKind::kExtent)) {
    return Status(Code::kInvalid, "the node sent a frame of an unknown kind");
  }
  return TakeOffer(&reader);
}

// An extent that this process cannot map fails its own blocks only.
Status Link::TakeOffer(FrameReader* frame) {
  ExtentOffer offer;
  AQ_RETURN_IF_ERROR(Decode(frame, &offer));
  Mapped& mapped = extents_[offer.extent];
  if (!mapped.extent.memory.bytes().empty()) {
    return Status(Code::kInvalid, "the node offered an extent that is mapped already");
  }
  Result<SharedMemory> memory = SharedMemory::Map(socket_.TakeDescriptor(), offer.bytes);
  mapped.status = memory.ok() ? Status() : memory.status();
  if (!memory.ok()) return Status();
  mapped.extent.memory = *std::move(memory);
  mapped.extent.memory.CloseDescriptor();
  mapped.extent.pin = PinnedExtent(mapped.extent.memory.bytes());
  return Status();
}

// ---- Extents ----

// If a node lends an extent but never offers it, the client waits for it only once.
Result<Link::Mapped*> Link::WaitForExtent(uint32_t extent) {
  const int64_t deadline_nanos = SystemClock()->NowNanos() + kExtentNanos;
  auto found = extents_.find(extent);
  while (found == extents_.end()) {
    if (over_) return Status(Code::kUnavailable, "the extent is not mapped, and its node is gone");
    Status status = ReceiveBy(deadline_nanos);
    if (status.ok()) status = TakeFrame();
    over_ = over_ || !status.ok();
    found = extents_.find(extent);
  }
  return &found->second;
}

Result<std::span<std::byte>> Link::Find(const LentSlot& slot) {
  AQ_ASSIGN_OR_RETURN(Mapped* const mapped, WaitForExtent(slot.extent));
  AQ_RETURN_IF_ERROR(mapped->status);
  const std::span<std::byte> bytes = mapped->extent.memory.bytes();
  if (slot.offset > bytes.size() || slot.bytes > bytes.size() - slot.offset) {
    return Status(Code::kInvalid, "the node lent a slot outside of its extent");
  }
  ++mapped->held;
  ++held_;
  return bytes.subspan(slot.offset, slot.bytes);
}

void Link::LetGo(uint32_t extent) {
  const auto found = extents_.find(extent);
  --found->second.held;
  --held_;
  MaybeReturn(extent);
}

void Link::MaybeReturn(uint32_t extent) {
  const auto found = extents_.find(extent);
  if (found->second.held > 0 || !(over_ || found->second.wanted_back)) return;
  extents_.erase(found);
  TellReturned(extent);
}

// Reports the extent as returned even if the node has cut us off: the node waits for this.
void Link::TellReturned(uint32_t extent) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kExtentReturned), 0);
  EncodeExtent(extent, &writer_);
  Send(writer_.Finish());
}

std::vector<MappedExtent> Link::TakeUnheld() {
  std::vector<MappedExtent> taken;
  for (auto entry = extents_.begin(); entry != extents_.end();) {
    if (entry->second.held > 0) {
      ++entry;
      continue;
    }
    taken.push_back(std::move(entry->second.extent));
    TellReturned(entry->first);
    entry = extents_.erase(entry);
  }
  return taken;
}

}  // namespace aquifer
