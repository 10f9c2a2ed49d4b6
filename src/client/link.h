// A Link is one connection to a node: its socket, its two rings, and the extents that the client
// has mapped. A link outlives its node while the caller holds a lease or reservation. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/descriptor.h"
#include "cuda/host_pins.h"
#include "net/local/byte_ring.h"
#include "net/local/frame_socket.h"
#include "net/local/shared_memory.h"
#include "net/protocol/local_protocol.h"

namespace aquifer {

// The largest figures that a node may announce. The client refuses a node that announces more.
inline constexpr uint32_t kMaxOpenRequests = 1u << 16;
inline constexpr uint64_t kMaxRingDataBytes = uint64_t{64} << 20;

// An extent's memory and its registration with a GPU. The registration ends before the memory is
// unmapped.
struct MappedExtent {
  SharedMemory memory;
  PinnedExtent pin;
};

class Link {
 public:
  // Connects to the first node that answers and waits for its welcome, until the deadline at most
  // (system clock).
  static Result<std::unique_ptr<Link>> Open(std::span<const std::string> sockets,
                                            const Hello& hello, int64_t deadline_nanos);
  // Unmaps all extents, sends the goodbye, and waits for a bounded time until the node has read it.
  ~Link();

  uint16_t version() const { return version_; }  // The protocol version of the connection.
  uint32_t max_requests() const { return max_requests_; }
  int socket() const { return socket_.descriptor(); }
  // The descriptor is readable when an answer may have come.
  int event() const { return wake_client_.get(); }

  // Sends the frame now or, if the ring is full, as soon as there is room. Wakes the node if it
  // sleeps.
  void Send(std::span<const std::byte> frame);
  // Receives the next answer. Returns kNotFound if there is none, kInvalid if the ring is broken.
  Status Receive(std::vector<std::byte>* frame);
  bool has_room() const { return outbox_.empty(); }  // Returns true if no frame waits for room.
  bool has_unsent() const { return !outbox_.empty(); }
  bool HasAnswer() const { return from_node_->HasNews(); }
  // Sends the frames that wait for room. Returns false if the ring is broken.
  bool Flush();
  // Returns true if no answer has come and the event will report the next one.
  bool PrepareToSleep();
  // Returns true if the node polls its ring at the moment: an answer then comes within
  // microseconds.
  bool node_awake() const { return to_node_->reader_awake(); }
  // How many bytes the node has ever taken from the ring, and whether it has taken everything.
  uint64_t taken_bytes() const { return to_node_->taken_bytes(); }
  bool all_taken() const { return outbox_.empty() && to_node_->all_taken(); }
  void WokeUp() { from_node_->WokeUp(); }
  void ClearEvent();

  // Reads the frames that the node sent on the socket. Returns kUnavailable if the connection is
  // over.
  Status ReadSocket();
  // Returns true if the node answers nothing any more. Returned blocks are still reported: a node
  // that has cut us off waits for them.
  bool over() const { return over_; }
  void SetOver() { over_ = true; }
  // Sends the goodbye, the link's last frame. Once it is sent, the destructor need not wait.
  void SayGoodbye();
  // Returns true if the node has closed its end. Nothing need be given back then.
  bool NodeIsGone() const;

  // The memory of a slot, mapped and held until LetGo(). Waits for the extent's descriptor if it
  // has not arrived yet. If an extent could not be mapped once, the link does not wait for it
  // again.
  Result<std::span<std::byte>> Find(const LentSlot& slot);
  void LetGo(uint32_t extent);
  uint64_t held() const { return held_; }
  // Takes out the mappings of extents of which the caller holds nothing. Destroying the result
  // unmaps them, which takes long for many.
  std::vector<MappedExtent> TakeUnheld();
  size_t mapped() const { return extents_.size(); }

 private:
  struct Mapped {
    MappedExtent extent;
    Status status;      // Why the extent has no memory.
    uint64_t held = 0;  // How many leases and reservations are in the extent.
    bool wanted_back = false;
  };

  explicit Link(Descriptor socket) : socket_(std::move(socket)) {}
  Status Shake(const Hello& hello, int64_t deadline_nanos);
  Status TakeWelcome(FrameReader* frame);
  Status ReceiveBy(int64_t deadline_nanos);
  Status TakeFrame();
  Status TakeOffer(FrameReader* frame);
  Result<Mapped*> WaitForExtent(uint32_t extent);
  void MaybeReturn(uint32_t extent);
  void TellReturned(uint32_t extent);
  bool WriteNow(std::span<const std::byte> frame);

  FrameSocket socket_;
  SharedMemory to_node_memory_;
  SharedMemory to_client_memory_;
  Descriptor wake_node_;
  Descriptor wake_client_;
  std::unique_ptr<RingWriter> to_node_;
  std::unique_ptr<RingReader> from_node_;
  uint16_t version_ = 0;
  uint32_t max_requests_ = 0;
  bool over_ = false;
  bool broken_ = false;
  bool said_goodbye_ = false;
  std::deque<std::vector<std::byte>> outbox_;  // Frames that wait for room in the ring.
  std::map<uint32_t, Mapped> extents_;
  uint64_t held_ = 0;
  std::vector<std::byte> frame_;
  FrameWriter writer_;
};

}  // namespace aquifer
