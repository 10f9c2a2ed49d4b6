#include "testing/node/scripted_node.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace aquifer {
namespace {

Descriptor NewEvent() { return Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

bool ScriptedNode::Greet(const std::function<void()>& connect, const Welcome& welcome) {
  bool came = false;
  std::thread greeter([&] { came = GreetNext(welcome); });
  connect();
  greeter.join();
  return came;
}

bool ScriptedNode::GreetNext(const Welcome& welcome) {
  pollfd ready{.fd = listener_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, static_cast<int>(kPatienceNanos / 1'000'000)) <= 0) return false;
  Result<Descriptor> accepted = AcceptOn(listener_);
  if (!accepted.ok()) return false;
  socket_.emplace(*std::move(accepted));
  for (SharedMemory* const memory : {&to_node_, &to_client_}) {
    *memory = *SharedMemory::New(RingBytes(kRingDataBytes));
    FormatRing(memory->bytes(), kRingDataBytes);
  }
  requests_ = std::make_unique<RingReader>(to_node_.bytes());
  answers_ = std::make_unique<RingWriter>(to_client_.bytes());
  wake_node_ = NewEvent();
  wake_client_ = NewEvent();
  writer_.Begin(static_cast<uint16_t>(FrameKind::kWelcome), 0);
  Encode(welcome, &writer_);
  const int descriptors[] = {to_node_.descriptor(), to_client_.descriptor(), wake_node_.get(),
                             wake_client_.get()};
  return TakeHello() && socket_->Send(writer_.Finish(), descriptors).ok();
}

bool ScriptedNode::TakeHello() {
  std::vector<std::byte> hello;
  Status status = socket_->Receive(&hello, false);
  while (status.code() == Code::kNotFound) {
    std::this_thread::yield();
    status = socket_->Receive(&hello, false);
  }
  return status.ok();
}

std::optional<FrameHeader> ScriptedNode::Next() {
  for (const int64_t end = SystemClock()->NowNanos() + kPatienceNanos;
       SystemClock()->NowNanos() < end; std::this_thread::yield()) {
    if (const std::optional<FrameHeader> header = TryNext(); header.has_value()) return header;
  }
  return std::nullopt;
}

std::optional<FrameHeader> ScriptedNode::TryNext() {
  if (!requests_->Read(&frame_).ok()) return std::nullopt;
  return FrameReader(frame_).header();
}

bool ScriptedNode::Sees(FrameKind kind) {
  while (const std::optional<FrameHeader> header = Next()) {
    if (header->kind == static_cast<uint16_t>(kind)) return true;
  }
  return false;
}

void ScriptedNode::Answer(uint64_t number, uint32_t count,
                          const std::function<void(FrameWriter*)>& encode) {
  WriteAnswer(number, {.done = true, .message = {}, .count = count}, encode);
}

void ScriptedNode::Refuse(uint64_t number, Code why) {
  WriteAnswer(number, {.done = true, .code = why, .message = {}, .count = 0},
              [](FrameWriter* to) { Encode(CountsAnswer{}, to); });
}

void ScriptedNode::BeginAnswer(uint64_t number, uint32_t count,
                               const std::function<void(FrameWriter*)>& encode) {
  WriteAnswer(number, {.done = false, .message = {}, .count = count}, encode);
}

void ScriptedNode::WriteAnswer(uint64_t number, const AnswerHead& head,
                               const std::function<void(FrameWriter*)>& encode) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kAnswer), number);
  Encode(head, &writer_);
  encode(&writer_);
  AQ_CHECK(answers_->Write(writer_.Finish()).ok());
  if (!answers_->MustWake()) return;
  const uint64_t one = 1;
  AQ_CHECK(::write(wake_client_.get(), &one, sizeof(one)) == sizeof(one));
}

void ScriptedNode::Offer(uint32_t extent, uint64_t said_bytes, uint64_t bytes) {
  extents_.push_back(*SharedMemory::New(bytes));
  writer_.Begin(static_cast<uint16_t>(FrameKind::kExtent), 0);
  Encode(ExtentOffer{.extent = extent, .bytes = said_bytes}, &writer_);
  const int descriptor = extents_.back().descriptor();
  AQ_CHECK(socket_->Send(writer_.Finish(), std::span(&descriptor, 1)).ok());
}

bool ScriptedNode::IsLeft() {
  std::vector<std::byte> frame;
  for (const int64_t end = SystemClock()->NowNanos() + kPatienceNanos;
       SystemClock()->NowNanos() < end;) {
    if (socket_->Receive(&frame, false).code() == Code::kUnavailable) return true;
    pollfd ready{.fd = socket_->descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, 10);
  }
  return false;
}

}  // namespace aquifer
