// A node's end of the local protocol, played by a test step by step. It sends the frames that the
// test wants, and shows the client's frames. One connection at a time. Everything runs on the
// test's thread; only the greeting has one of its own while the client connects.
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
  static constexpr uint64_t kRingDataBytes = uint64_t{128} << 10;  // The smallest allowed.
  static constexpr int64_t kPatienceNanos = 20'000'000'000;

  ScriptedNode() : listener_(*ListenOn(socket(), /*private_to_user=*/true)) {}

  std::string socket() const { return scratch_.path() + "/node.sock"; }

  // Greets the client that comes while `connect` runs. Returns false if none came.
  bool Greet(const std::function<void()>& connect,
             const Welcome& welcome = {.max_requests = 16, .ring_data_bytes = kRingDataBytes});

  // The client's next frame; nothing if none comes for a long time.
  std::optional<FrameHeader> Next();
  std::optional<FrameHeader> TryNext();
  // The frame that Next() found.
  FrameReader Body() const { return FrameReader(frame_); }
  // Reads frames until one of this kind. Returns false if none comes.
  bool Sees(FrameKind kind);

  // Sends a whole answer of `count` items, whose body `encode` writes.
  void Answer(uint64_t number, uint32_t count, const std::function<void(FrameWriter*)>& encode);
  void Refuse(uint64_t number, Code why);
  // Sends the first items of an answer that goes on.
  void BeginAnswer(uint64_t number, uint32_t count,
                   const std::function<void(FrameWriter*)>& encode);
  // Offers memory, and claims that it has `said_bytes`.
  void Offer(uint32_t extent, uint64_t said_bytes, uint64_t bytes);

  // Ends the connection, as a node does with a client that holds a lease for too long.
  void CutOff() { socket_->EndSending(); }
  // Ends the connection, as when the node's process ends.
  void Die() { socket_.reset(); }
  // Returns true if the client closes its end.
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
