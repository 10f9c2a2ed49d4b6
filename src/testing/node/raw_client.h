// A client that speaks a node's local protocol by hand, without any checks. It tests how a node
// treats clients that misbehave as the client library never would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"
#include "base/descriptor.h"
#include "net/local/byte_ring.h"
#include "net/local/frame_socket.h"
#include "net/local/shared_memory.h"
#include "net/protocol/frame.h"
#include "net/protocol/local_protocol.h"

namespace aquifer {

class RawClient {
 public:
  explicit RawClient(const std::string& path);

  // Returns false if the kernel does not let it send the descriptors.
  bool SendOnSocket(std::span<const std::byte> frame, std::span<const int> descriptors = {});
  bool SayHello(const Hello& hello, std::span<const int> descriptors = {});
  // Says hello and takes everything that comes with the welcome.
  void Enter(std::string_view tenant = "local", bool observe = false,
             uint16_t version = kLocalVersion);

  // A frame that is there already; kNotFound if there is none.
  Status TryReceive(std::vector<std::byte>* frame) { return socket_.Receive(frame, true); }
  // The next frame on the socket; empty if the socket was closed.
  std::vector<std::byte> Receive();
  // How many bytes the node has sent on the socket that were not received.
  size_t BytesToReceive() const;
  bool IsCutOff();
  // Returns true if the node has closed the socket. Receives nothing.
  bool IsHungUp() const;
  Descriptor TakeDescriptor() { return socket_.TakeDescriptor(); }
  void HangUp() { socket_.EndSending(); }
  void StopReading();

  template <class Message>
  void Write(FrameKind kind, uint64_t number, const Message& message) {
    writer_.Begin(static_cast<uint16_t>(kind), number);
    Encode(message, &writer_);
    WriteFrame(writer_.Finish());
  }
  void WriteEmpty(FrameKind kind, uint64_t number);
  void WriteReturned(uint32_t extent);
  void WriteFrame(std::span<const std::byte> frame);
  void WakeNode();

  // The head of the next answer; reader() then stands behind it.
  std::optional<AnswerHead> Answer();
  FrameReader& reader() { return *reader_; }
  // Returns true if the answer to this request came to its end, however many frames it took.
  bool AwaitDone();

  void Register(const Layout& layout);
  LayoutHandle layout() const { return layout_; }
  uint32_t max_requests() const { return max_requests_; }

  // All descriptors that it shares with the node.
  std::vector<int> shared() const;
  RingHeader* request_header() { return reinterpret_cast<RingHeader*>(to_node_.bytes().data()); }
  RingHeader* answer_header() { return reinterpret_cast<RingHeader*>(from_node_.bytes().data()); }
  std::span<std::byte> request_memory() { return to_node_.bytes(); }

 private:
  FrameSocket socket_;
  FrameWriter writer_;
  SharedMemory to_node_;
  SharedMemory from_node_;
  Descriptor wake_node_;
  Descriptor wake_client_;
  std::unique_ptr<RingWriter> requests_;
  std::unique_ptr<RingReader> answers_;
  std::vector<std::byte> answer_;
  std::optional<FrameReader> reader_;
  uint32_t max_requests_ = 0;
  LayoutHandle layout_ = 0;
};

}  // namespace aquifer
