#include "testing/node/raw_client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace aquifer {
namespace {

constexpr int64_t kPatienceNanos = 30'000'000'000;

}  // namespace

RawClient::RawClient(const std::string& path) : socket_(*ConnectTo(path)) {}

bool RawClient::SendOnSocket(std::span<const std::byte> frame, std::span<const int> descriptors) {
  const bool sent = socket_.Send(frame, descriptors).ok();
  AQ_CHECK(sent || !descriptors.empty());
  return sent;
}

bool RawClient::SayHello(const Hello& hello, std::span<const int> descriptors) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kHello), 0);
  Encode(hello, &writer_);
  return SendOnSocket(writer_.Finish(), descriptors);
}

void RawClient::Enter(std::string_view tenant, bool observe, uint16_t version) {
  SayHello({.newest_version = version,
            .tenant = tenant,
            .token = "",
            .engine = "raw",
            .observe = observe});
  const std::vector<std::byte> frame = Receive();
  FrameReader reader(frame);
  Welcome welcome;
  AQ_CHECK(Decode(&reader, &welcome).ok());
  to_node_ = *SharedMemory::Map(TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
  from_node_ = *SharedMemory::Map(TakeDescriptor(), RingBytes(welcome.ring_data_bytes));
  wake_node_ = TakeDescriptor();
  wake_client_ = TakeDescriptor();
  requests_ = std::make_unique<RingWriter>(to_node_.bytes());
  answers_ = std::make_unique<RingReader>(from_node_.bytes());
  max_requests_ = welcome.max_requests;
}

std::vector<std::byte> RawClient::Receive() {
  std::vector<std::byte> frame;
  const int64_t end = SystemClock()->NowNanos() + kPatienceNanos;
  while (SystemClock()->NowNanos() < end) {
    const Status status = TryReceive(&frame);
    if (status.ok()) return frame;
    if (status.code() != Code::kNotFound) return {};
    pollfd ready{.fd = socket_.descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, 10);
  }
  ADD_FAILURE() << "the node says nothing";
  return {};
}

size_t RawClient::BytesToReceive() const {
  int bytes = 0;
  AQ_CHECK(::ioctl(socket_.descriptor(), FIONREAD, &bytes) == 0);
  return static_cast<size_t>(bytes);
}

bool RawClient::IsCutOff() {
  while (true) {
    const std::vector<std::byte> frame = Receive();
    if (frame.empty()) return true;
    const auto kind = static_cast<FrameKind>(FrameReader(frame).header().kind);
    if (kind != FrameKind::kExtent && kind != FrameKind::kReturnExtent) return false;
  }
}

bool RawClient::IsHungUp() const {
  pollfd ended{.fd = socket_.descriptor(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&ended, 1, static_cast<int>(kPatienceNanos / 1'000'000)) == 1;
}

void RawClient::StopReading() { ::shutdown(socket_.descriptor(), SHUT_RD); }

void RawClient::WriteEmpty(FrameKind kind, uint64_t number) {
  writer_.Begin(static_cast<uint16_t>(kind), number);
  WriteFrame(writer_.Finish());
}

void RawClient::WriteReturned(uint32_t extent) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kExtentReturned), 0);
  EncodeExtent(extent, &writer_);
  WriteFrame(writer_.Finish());
}

void RawClient::WriteFrame(std::span<const std::byte> frame) {
  while (requests_->Write(frame).code() == Code::kBusy) WakeNode();
  WakeNode();
}

void RawClient::WakeNode() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_node_.get(), &one, sizeof(one));
}

std::optional<AnswerHead> RawClient::Answer() {
  const int64_t end = SystemClock()->NowNanos() + kPatienceNanos;
  while (SystemClock()->NowNanos() < end) {
    if (answers_->Read(&answer_).ok()) {
      reader_.emplace(answer_);
      AnswerHead head;
      Decode(&*reader_, &head);
      return head;
    }
    std::this_thread::yield();
  }
  return std::nullopt;
}

bool RawClient::AwaitDone() {
  while (const std::optional<AnswerHead> head = Answer()) {
    if (head->done) return true;
  }
  return false;
}

void RawClient::Register(const Layout& layout) {
  Write(FrameKind::kRegisterLayout, 1, layout);
  const std::optional<AnswerHead> head = Answer();
  AQ_CHECK(head && head->code == Code::kOk);
  CountsAnswer registered;
  Decode(&*reader_, &registered);
  layout_ = static_cast<LayoutHandle>(registered.first);
}

std::vector<int> RawClient::shared() const {
  return {to_node_.descriptor(), from_node_.descriptor(), wake_node_.get(), wake_client_.get()};
}

}  // namespace aquifer
