// One client of the node: its socket, its two rings, its requests and the memory it was lent. It
// may be hostile: every byte of it is distrusted, and what breaks a rule of docs/formats/local.md
// ends this connection and nothing else.
//
//   greeting ──► open ──► lingering ──► gone
//
// A connection that has ended lingers while its process may still touch what it was lent: until it
// says goodbye, or the process is gone.
//
// Runs on the owner, which no client may hold up: nothing here waits for a client, each turn takes
// one frame or tells one, and what is large is taken apart in slices or freed by a worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/crypto/sha256.h"
#include "base/descriptor.h"
#include "base/executor.h"
#include "base/task_meter.h"
#include "cache/core.h"
#include "net/local/byte_ring.h"
#include "net/local/epoll_waiter.h"
#include "net/local/frame_socket.h"
#include "net/local/shared_memory.h"
#include "net/protocol/local_protocol.h"
#include "node/local/open_request.h"
#include "node/local/recorder.h"

namespace aquifer {

// Who a client turned out to be.
struct Admission {
  ClientOptions client;
  // The node's administrator: may drain the whole node, and sees everyone's figures.
  bool may_drain = false;
  Sha256Digest token_digest{};  // Of the token that it showed, for when the tenants change.
};

struct ConnectionLimits {
  uint32_t max_requests = 1024;
  uint32_t max_items = 1u << 20;  // Announced, over all open requests.
  size_t ring_data_bytes = size_t{256} << 10;
  size_t max_unsent_frames = 4096;  // On the socket; a client that does not read is cut off.
  int64_t greeting_nanos = 5'000'000'000;
  int64_t arrival_nanos = 10'000'000'000;  // For all frames of one request; twice that at most.
  int64_t return_nanos = 30'000'000'000;   // An extent that is wanted back and has nothing in it.
};

class Connection final : private ClientSink, private Polled, private SlotLocator {
 public:
  enum class State : uint8_t { kGreeting, kOpen, kLingering, kGone };

  class Host {
   public:
    virtual Core* core() = 0;
    virtual Executor* owner() = 0;
    virtual EpollWaiter* waiter() = 0;
    virtual Clock* clock() = 0;
    virtual WorkerPool* workers() = 0;
    virtual TaskMeter* meter() = 0;
    // Sockets that threads of their own are closing.
    virtual const std::shared_ptr<std::atomic<uint32_t>>& closing() = 0;
    // Items that this connection may announce beside all that are announced, and that it has
    // announced, or is done with.
    virtual size_t ItemsLeft(const Connection& connection) = 0;
    virtual void AddItems(const Connection& connection, size_t count) = 0;
    virtual void RemoveItems(const Connection& connection, size_t count) = 0;
    virtual Recorder* recorder() { return nullptr; }  // Null: nothing is recorded.
    virtual Result<Admission> Admit(const Hello& hello, const PeerCredentials& peer) = 0;
    virtual void OnOpened(Connection* connection) = 0;
    // It lingers from here on.
    virtual void OnEnded(Connection* connection, const std::string& why) = 0;
    // It may be deleted, not from inside this call.
    virtual void OnGone(Connection* connection) = 0;

   protected:
    ~Host() = default;
  };

  // `process` becomes readable when the client's process has ended.
  Connection(FrameSocket socket, Descriptor process, const PeerCredentials& peer,
             const ConnectionLimits& limits, Host* host);
  // Gone, or its core is, or it never began.
  ~Connection();
  // Once. When it fails, there is nothing to wait for.
  Status Begin();

  State state() const { return state_; }
  // Returns true if the client ended the connection with a goodbye, as it should.
  bool said_goodbye() const { return said_goodbye_; }
  const PeerCredentials& peer() const { return peer_; }
  const Admission& admission() const { return admission_; }  // Of one that is open.
  size_t items() const { return items_; }                    // Announced.

  // The node wants this extent unmapped.
  void WantBack(uint32_t extent);
  // Ends it from our side. What it holds stays lent until it is given back.
  void CutOff(const std::string& why);

 private:
  // ClientSink.
  void OnProgress(Request* request, size_t completed, bool done) override;
  void OnOverdue() override;
  // Polled.
  bool Poll() override;
  bool PrepareToSleep() override;
  void WokeUp() override { requests_from_->WokeUp(); }
  // SlotLocator.
  bool CanLocate(uint64_t loan, bool reservation) override;
  LentSlot Locate(uint64_t loan, bool reservation, uint64_t bytes) override;
  bool Holds(uint64_t loan, bool reservation) override;

  void OnSocket(uint32_t events);
  void OnGreeting();
  void OnHungUp();
  void StopWatchingSocket();
  void Greet(const Hello& hello);
  void Refuse(const Status& status);
  Status MakeRings();
  void WatchWrites();
  void FlushLater();
  void Send(std::span<const std::byte> frame, std::span<const int> descriptors = {});

  bool ReadOne();
  Status Handle(FrameReader* frame);
  Status HandleWhileLingering(FrameReader* frame);
  Status BeginRequest(FrameReader* frame);
  Status ContinueRequest(FrameReader* frame);
  void AwaitRest();
  void Submit(OpenRequest* open);
  // Each does a little; false when there was nothing to do.
  bool ReturnSome();
  bool ForgetSome();
  bool TellWaiting();

  // One frame of what can be told; the rest waits for its turn, as all does while there is no room.
  void Tell(OpenRequest* open);
  void WriteAnswer(OpenRequest* open, size_t count, bool last);
  void Wait(OpenRequest* open);
  void Finish(OpenRequest* open);
  void Record(OpenRequest* open);
  void Free(std::unique_ptr<OpenRequest> request);
  void WakeClient();

  // It broke a rule: nothing that it sends is looked at any more.
  void Break(const std::string& why);
  void End(const std::string& why);
  void Linger();
  void Leave();
  void ReturnExtents();

  const ConnectionLimits limits_;
  Host* const host_;
  State state_ = State::kGreeting;
  FrameSocket socket_;
  PeerCredentials peer_;
  Descriptor process_;
  uint64_t socket_watch_ = 0;
  uint64_t process_watch_ = 0;
  uint64_t event_watch_ = 0;
  bool hostile_ = false;  // What it sends is not looked at any more.
  bool hung_up_ = false;  // Its end of the socket is closed.
  bool goodbye_ = false;  // It touches nothing any more.
  bool said_goodbye_ = false;
  uint16_t version_ = 0;  // That both speak.
  bool observe_ = false;
  RecordedClient recorded_as_;
  Admission admission_;
  bool flushing_later_ = false;
  bool awaiting_rest_ = false;  // A timer is set.
  bool lingering_later_ = false;
  ClientNumber client_ = 0;

  SharedMemory to_node_memory_;
  SharedMemory to_client_memory_;
  // Never read: a client could make that wait. Edges of it are enough.
  Descriptor wake_node_;
  // Two ends of a socket pair, the second of which the client has: nothing that it does to that can
  // make us wait here, as it could with an eventfd or a pipe. Ours takes nothing in.
  Descriptor wake_client_;
  Descriptor client_wakes_;
  std::unique_ptr<RingReader> requests_from_;
  std::unique_ptr<RingWriter> answers_to_;
  std::vector<std::byte> frame_;
  FrameWriter writer_;

  using Requests = std::map<uint64_t, std::unique_ptr<OpenRequest>>;  // By the client's number.
  Requests open_;
  Requests ending_;  // Those that were open when it was cut off.
  std::map<Request*, OpenRequest*> by_request_;
  std::deque<OpenRequest*> waiting_;  // For their turn, or for room in the ring.
  size_t items_ = 0;                  // Announced by those of open_ and ending_ that keep them.
  uint32_t offers_left_ = 0;          // Extents that this turn may still offer.
  std::vector<ReleaseOp> releases_;   // Being carried out, a slice at a time.
  std::vector<ReservationId> aborts_;
  size_t released_ = 0;
  size_t aborted_ = 0;
  // Extents that the client may have mapped, and how many frames were sent when it has the
  // descriptor: one that waits to be sent is not to be closed.
  std::map<uint32_t, uint64_t> offered_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
