// One connection to a node: its socket, its two rings, and the extents that are mapped from it. It
// outlives the node as long as the caller holds something of it. Not thread-safe.
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

// What a node may announce; one that says more has made a mistake.
inline constexpr uint32_t kMaxOpenRequests = 1u << 16;
inline constexpr uint64_t kMaxRingDataBytes = uint64_t{64} << 20;

// An extent's memory, and a GPU's hold on it, which goes first.
struct MappedExtent {
  SharedMemory memory;
  PinnedExtent pin;
};

class Link {
 public:
  // To the first node that answers. Waits for its welcome, at most until then (of the system's
  // clock).
  static Result<std::unique_ptr<Link>> Open(std::span<const std::string> sockets,
                                            const Hello& hello, int64_t deadline_nanos);
  // Unmaps everything, says goodbye, and waits a while for the node to have heard it.
  ~Link();

  uint16_t version() const { return version_; }  // That both speak.
  uint32_t max_requests() const { return max_requests_; }
  int socket() const { return socket_.descriptor(); }
  int event() const { return wake_client_.get(); }  // Readable when there may be an answer.

  // Sends now or, when the ring is full, as soon as there is room. Wakes the node if it sleeps.
  void Send(std::span<const std::byte> frame);
  // The next answer; kNotFound when there is none, kInvalid when the ring is broken.
  Status Receive(std::vector<std::byte>* frame);
  bool has_room() const { return outbox_.empty(); }  // As far as is known.
  bool has_unsent() const { return !outbox_.empty(); }
  bool HasAnswer() const { return from_node_->HasNews(); }
  // Sends what waits for room. False: the ring is broken.
  bool Flush();
  // True: nothing has come, and the event will tell when something does.
  bool PrepareToSleep();
  // The node looks at its ring by itself: an answer will come within microseconds.
  bool node_awake() const { return to_node_->reader_awake(); }
  // What the node has taken of what was sent, ever; and whether that is everything.
  uint64_t taken_bytes() const { return to_node_->taken_bytes(); }
  bool all_taken() const { return outbox_.empty() && to_node_->all_taken(); }
  void WokeUp() { from_node_->WokeUp(); }
  void ClearEvent();

  // Takes what the node sent on the socket. kUnavailable: the connection is over.
  Status ReadSocket();
  // Nothing is answered any more. What is given back is still sent: a node that has cut us off
  // waits for it.
  bool over() const { return over_; }
  void SetOver() { over_ = true; }
  // The last of it: when it is sent, the link can go without a wait.
  void SayGoodbye();
  // The node's end is closed, so that there is nobody to give anything back to.
  bool NodeIsGone() const;

  // The memory of a slot, mapped and held until LetGo(). Waits for the extent's descriptor if that
  // is still on its way; an extent that could not be mapped once is not waited for again.
  Result<std::span<std::byte>> Find(const LentSlot& slot);
  void LetGo(uint32_t extent);
  uint64_t held() const { return held_; }
  // Takes out the mappings of extents that nothing is held of. They go when the result does, which
  // takes a while for many.
  std::vector<MappedExtent> TakeUnheld();
  size_t mapped() const { return extents_.size(); }

 private:
  struct Mapped {
    MappedExtent extent;
    Status status;      // Why there is no memory.
    uint64_t held = 0;  // Leases and reservations in it.
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
  std::deque<std::vector<std::byte>> outbox_;  // For when there is room.
  std::map<uint32_t, Mapped> extents_;
  uint64_t held_ = 0;
  std::vector<std::byte> frame_;
  FrameWriter writer_;
};

}  // namespace aquifer
