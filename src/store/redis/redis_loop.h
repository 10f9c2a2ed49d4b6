// RedisLoop is the thread that talks to Redis servers. It owns connections and knows which server
// has which slot. It follows redirections, repeats commands that a lost connection swallowed, and
// keeps deadlines. Operations decide which commands to send (redis_operation.h).
//
// A store has several loops, which share nothing. Any thread may call Post*(), Cancel() and the
// counters. All other functions run on the loop's own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "net/stream/tls_context.h"
#include "store/blob_counters.h"
#include "store/blob_store.h"
#include "store/redis/redis_blob.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_listing.h"
#include "store/redis/redis_slots.h"
#include "store/redis/redis_store.h"

namespace aquifer {

// Counters that all loops of a store share.
struct RedisCounters {
  // Requests under way. The submitter adds one; a loop subtracts it.
  std::atomic<uint64_t> queued = 0;
  BlobCounters blobs;
  std::atomic<uint64_t> connections_opened = 0;
  std::atomic<uint64_t> connections_lost = 0;
  std::atomic<uint64_t> commands_sent_again = 0;
  std::atomic<uint64_t> redirections = 0;
  std::atomic<uint64_t> slot_maps_read = 0;
  std::atomic<uint64_t> pieces_missing = 0;
};

// Notes that other threads leave for the loop.
class RedisMailbox {
 public:
  using Note = std::function<void()>;

  RedisMailbox();

  // Returns false if the loop takes no more notes.
  [[nodiscard]] bool Post(Note note) AQ_EXCLUDES(mutex_);
  std::vector<Note> Take() AQ_EXCLUDES(mutex_);
  void Close() AQ_EXCLUDES(mutex_);
  bool closed() AQ_EXCLUDES(mutex_);
  int descriptor() const { return wake_.get(); }

 private:
  const Descriptor wake_;
  Mutex mutex_;
  std::vector<Note> notes_ AQ_GUARDED_BY(mutex_);
  bool closed_ AQ_GUARDED_BY(mutex_) = false;
};

class RedisLoop {
 public:
  // `options` and `counters` outlive the loop. `seeds` are the options' servers.
  RedisLoop(const RedisStoreOptions& options, std::vector<RedisAddress> seeds,
            std::shared_ptr<const TlsContext> tls, RedisCounters* counters);
  ~RedisLoop() { Stop(); }
  RedisLoop(const RedisLoop&) = delete;
  RedisLoop& operator=(const RedisLoop&) = delete;

  // Completes every request under way as kUnavailable before it returns.
  void Stop();

  // Returns false if the loop is ending.
  [[nodiscard]] bool PostBlob(BlobRequest* request);
  [[nodiscard]] bool PostListing(RedisListing::Call call);
  void Cancel(BlobRequest* request);

  // Used memory, as far as the servers have reported it.
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  // The loop's own commands have these in place of an operation.
  static constexpr uint64_t kMapOperation = 1;
  static constexpr uint64_t kMemoryOperation = 2;
  static constexpr uint64_t kFirstOperation = 16;

  struct Server;
  struct Connection {
    uint64_t number = 0;  // Its number in epoll.
    Server* server = nullptr;
    std::unique_ptr<RedisConnection> link;
    uint32_t watched_events = 0;
    bool stirred = false;  // It has work for Pump().
    bool doomed = false;   // No further command can be sent on it.
  };
  struct Server {
    RedisAddress address;
    std::vector<std::unique_ptr<Connection>> connections;  // Null where there is no connection.
    size_t next = 0;                                       // Index of the next connection to use.
    std::vector<SocketAddress> addresses;
    size_t next_address = 0;
    bool resolving = false;
    int64_t pause_until_nanos = INT64_MIN;
    int64_t pause_nanos = 0;
    Status trouble;  // Why the server is paused.
  };
  struct Active {
    std::unique_ptr<RedisOperation> operation;
    int64_t deadline_nanos = INT64_MAX;
    const BlobRequest* request = nullptr;  // Null: the operation is a listing.
  };
  struct Delayed {
    int64_t at_nanos = 0;
    RedisCommand command;
  };

  void Run();
  int WaitMillis(int64_t now) const;
  void HearEvents(int wait_millis);
  void PumpAll();
  void LookAtTime();
  void EndAll();

  void Begin(Active active);
  void StartBlob(BlobRequest* request);
  void StartListing(RedisListing::Call call);
  void CancelNow(BlobRequest* request);
  // After an operation got an answer: sends its next commands, and ends it if it is done.
  void AfterStep(uint64_t operation);
  void Finish(uint64_t operation, const Status& status);
  void Count(const BlobRequest& request, const Status& status);

  void Route(RedisCommand command);
  RedisAddress AddressFor(const RedisCommand& command);
  Server* ServerAt(const RedisAddress& address);
  // Returns the connection to send on. Returns null if the server cannot be reached now; its
  // `trouble` says why.
  Connection* ConnectionTo(Server* server);
  void OpenConnection(Server* server, Connection* connection);
  void Resolve(Server* server);
  void Resolved(const RedisAddress& address, const Result<std::vector<SocketAddress>>& found);
  // A connection could not be made: pauses the server before the next try. Commands for it fail
  // with `trouble` meanwhile.
  void Pause(Server* server, const Status& trouble);
  std::string Silence(const RedisConnection& link) const;

  void Pump(Connection* connection);
  void Watch(Connection* connection);
  void Lose(Connection* connection, const Status& why, bool send_again);
  void SendAgain(RedisCommand command, const Status& why);
  void Delay(RedisCommand command, int64_t nanos);

  void HearReply(const RedisAddress& from, RedisCommand command, RespReply reply);
  void HearError(const RedisAddress& from, RedisCommand command, const std::string& text);
  void Follow(const RedisRedirect& redirect, RedisCommand command);
  void FailCommand(const RedisCommand& command, const Status& status);

  void AskForMap();
  void HearMap(const RedisAddress& from, const RespReply& reply);
  void AskForMemory();
  void HearMemory(const RedisAddress& from, const std::string& text);
  std::vector<RedisAddress> KnownServers() const;

  int64_t Now() const { return options_.clock->NowNanos(); }

  const RedisStoreOptions& options_;
  const std::vector<RedisAddress> seeds_;
  const std::shared_ptr<const TlsContext> tls_;
  RedisCounters* const counters_;
  const RedisBlob::Options blob_options_;
  const Descriptor epoll_;
  // Shared with threads that resolve names, which the loop does not wait for.
  const std::shared_ptr<RedisMailbox> mailbox_ = std::make_shared<RedisMailbox>();
  std::atomic<uint64_t> used_bytes_ = 0;
  std::atomic<uint64_t> capacity_bytes_ = 0;

  std::map<uint64_t, Active> active_;
  std::map<const BlobRequest*, uint64_t> by_request_;
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  uint64_t next_operation_ = kFirstOperation;
  std::vector<Delayed> delayed_;

  std::map<RedisAddress, std::unique_ptr<Server>> servers_;
  std::map<uint64_t, Connection*> watched_;  // By the number that epoll reports.
  uint64_t next_connection_ = 1;
  size_t seed_ = 0;  // The server that is asked while there is no map.

  std::unique_ptr<RedisSlotMap> map_;  // Null: there is one server, as far as known.
  bool map_wanted_ = false;
  bool map_asked_ = false;
  int64_t map_after_nanos_ = INT64_MIN;  // Do not read the map again before this time.
  size_t map_turn_ = 0;                  // The server to ask for the map next.

  int64_t memory_after_nanos_ = INT64_MIN;
  std::map<RedisAddress, std::pair<uint64_t, uint64_t>> memory_;  // Used memory, and the limit.
  std::shared_ptr<RedisNames> names_;                             // For a listing that goes on.

  std::thread thread_;
};

}  // namespace aquifer
