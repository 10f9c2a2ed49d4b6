// A node's end of the local protocol, played by a test step by step: it says what the test makes it
// say, and shows what the client sent. One connection at a time. Everything runs on the test's
// thread, but for the greeting, which has one of its own while the client connects.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "net/local/byte_ring.h"
#include "net/local/frame_socket.h"
#include "net/local/shared_memory.h"
#include "net/protocol/frame.h"
#include "net/protocol/local_protocol.h"
#include "testing/scratch_directory.h"

namespace aquifer {

class ScriptedNode {
 public:
  static constexpr uint64_t kRingDataBytes = uint64_t{128} << 10;  // The least there is.
  static constexpr int64_t kPatienceNanos = 20'000'000'000;

  ScriptedNode() : listener_(*ListenOn(socket(), /*private_to_user=*/true)) {}

  std::string socket() const { return scratch_.path() + "/node.sock"; }

  // Greets whoever comes while `connect` runs; false when nobody came.
  bool Greet(const std::function<void()>& connect,
             const Welcome& welcome = {.max_requests = 16, .ring_data_bytes = kRingDataBytes});

  // The next frame that the client sent; none when there is none for a long time.
  std::optional<FrameHeader> Next();
  std::optional<FrameHeader> TryNext();
  // The frame that Next() found.
  FrameReader Body() const { return FrameReader(frame_); }
  // Reads frames until one of this kind; false when none comes.
  bool Sees(FrameKind kind);

  // A whole answer of `count` items, whose body `encode` writes.
  void Answer(uint64_t number, uint32_t count, const std::function<void(FrameWriter*)>& encode);
  void Refuse(uint64_t number, Code why);
  // Of an answer that goes on: its first items.
  void BeginAnswer(uint64_t number, uint32_t count,
                   const std::function<void(FrameWriter*)>& encode);
  // Offers memory, and says that it has so many bytes.
  void Offer(uint32_t extent, uint64_t said_bytes, uint64_t bytes);

  // As a node does with a client that holds something for too long.
  void CutOff() { socket_->EndSending(); }
  // As when its process ends.
  void Die() { socket_.reset(); }
  // Whether the client closes its end.
  bool IsLeft();

 private:
  bool GreetNext(const Welcome& welcome);
  bool TakeHello();
  void WriteAnswer(uint64_t number, const AnswerHead& head,
                   const std::function<void(FrameWriter*)>& encode);

  ScratchDirectory scratch_;
  Descriptor listener_;
  std::optional<FrameSocket> socket_;
  SharedMemory to_node_;
  SharedMemory to_client_;
  Descriptor wake_node_;
  Descriptor wake_client_;
  std::unique_ptr<RingReader> requests_;
  std::unique_ptr<RingWriter> answers_;
  std::vector<SharedMemory> extents_;
  std::vector<std::byte> frame_;
  FrameWriter writer_;
};

}  // namespace aquifer
