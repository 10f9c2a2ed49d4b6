// A client's request, from its first frame to the last of its answer. What the client sent is held
// here, so that the core's spans point to memory that nobody else can change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "cache/core.h"
#include "net/protocol/frame.h"
#include "net/protocol/local_protocol.h"
#include "node/local/recorder.h"

namespace aquifer {

// Where lent memory lies, for the one client who may know.
class SlotLocator {
 public:
  // False: not in this turn. Its memory would have to be offered first, and enough was.
  virtual bool CanLocate(uint64_t loan, bool reservation) = 0;
  virtual LentSlot Locate(uint64_t loan, bool reservation, uint64_t bytes) = 0;
  virtual bool Holds(uint64_t loan, bool reservation) = 0;

 protected:
  ~SlotLocator() = default;
};

// What is lent by a request and was not told to the client yet.
struct Undelivered {
  std::vector<ReleaseOp> leases;
  std::vector<ReservationId> reservations;
};

class OpenRequest {
 public:
  // Null for a kind that has no answer.
  static std::unique_ptr<OpenRequest> New(FrameKind kind);
  virtual ~OpenRequest() = default;

  // Takes the first frame, or another one. kInvalid: the client broke the protocol. A request that
  // is refused, or announces more than `max_items` and so is refused, keeps none of its items: it
  // only counts those that are still to come.
  virtual Status Begin(FrameReader* frame, size_t max_items) = 0;
  virtual Status More(FrameReader* frame);
  // How many items the client announced, and how many are there.
  virtual size_t announced() const { return 0; }
  virtual size_t arrived() const { return 0; }
  bool complete() const { return arrived() == announced(); }

  virtual Request* request() = 0;
  virtual void Submit(Core* core, ClientNumber client) = 0;
  // What an observer is told, who stores, loads and changes nothing.
  virtual void AnswerObserver();
  // Changes nothing and says nothing of blocks: an observer is answered like everyone.
  virtual bool for_observers() const { return false; }
  // Whoever asks for this is going to store.
  virtual bool announces_stores() const { return false; }
  // For the trace, of one that is answered: takes its keys away. Without keys: it is not recorded.
  virtual RecordedCall TakeRecorded(LayoutHandle* /*layout*/) { return {}; }

  // Items that can be told when so many operations are answered.
  virtual size_t items(size_t completed, bool /*done*/) const { return completed; }
  // How many of them in a row this turn can tell.
  virtual size_t CanTell(size_t /*first*/, size_t count, SlotLocator* /*locator*/) { return count; }
  virtual void EncodeItems(size_t /*first*/, size_t /*count*/, SlotLocator* /*locator*/,
                           FrameWriter* /*to*/) {}
  virtual void EncodeSummary(FrameWriter* /*to*/) {}
  // Operations that may have lent something, and what some of them have.
  virtual size_t lending() const { return 0; }
  virtual void Forget(size_t /*first*/, size_t /*count*/, Undelivered* /*left*/) {}

  uint64_t number = 0;
  int64_t begun_nanos = 0;  // When its first frame was taken.
  size_t ready = 0;         // Items that can be told,
  size_t told = 0;          // and those that were.
  bool done = false;        // The core has forgotten it.
  bool submitted = false;   // The core has it.
  bool refused = false;     // It never will: request()->status says why.
  bool waiting = false;     // For its turn, or for room in the ring.
};

}  // namespace aquifer
