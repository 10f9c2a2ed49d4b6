// Records what engines ask a node for into a file: docs/formats/trace.md. One recording at a time;
// it has a thread of its own, which hashes and writes.
//
// The owner gives requests away with Record(), which only moves them into a bounded queue: what
// does not fit is left out and counted, and the owner never waits for a disk. Start(), Stop() and
// status() are for any other thread. A disk that fails ends the recording and nothing else.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/mutex.h"
#include "node/local/recorder_trace.h"

namespace aquifer {

// A request, as it is recorded.
struct RecordedCall {
  enum class Kind : uint8_t { kAsked, kStored };  // A Match, or a Reserve.

  RecordedClient client{};
  Kind kind = Kind::kAsked;
  uint32_t tokens_per_block = 0;
  Key parent{};  // kStored only.
  std::vector<Key> keys{};
  int64_t at_nanos = 0;  // Set by Record().
};

struct RecordingStatus {
  bool running = false;
  std::string file{};     // Of the last recording, if there was one.
  uint64_t requests = 0;  // Lines written,
  uint64_t bytes = 0;     // and how long they are.
  uint64_t left_out = 0;  // Came faster than they could be written.
  std::string failure{};  // Why the last recording ended by itself.
};

struct RecorderOptions {
  Clock* clock = SystemClock();
  Random* random = SystemRandom();
  // From any thread, also after the recorder is gone; may be empty.
  std::function<void(const std::string&)> log{};
  size_t max_queued_calls = 4096;
  size_t max_queued_keys = size_t{1} << 20;  // 32 MiB.
  uint64_t max_bytes = uint64_t{4}
                       << 30;  // Of the file; a recording ends with its last whole line.
  int64_t stop_wait_nanos = 5'000'000'000;  // A disk that hangs is not waited for any longer.
  std::function<ssize_t(int, const void*, size_t)> write = ::write;
};

// Who a client is in a trace. An engine without a name is one of its own.
RecordedClient RecordedClientOf(std::string_view tenant, std::string_view engine, Random* random);

class Recorder {
 public:
  explicit Recorder(const RecorderOptions& options) : options_(options) {}
  ~Recorder();  // Stops.

  // The name of the file that was made: `file`, or where that is there, the next that is not.
  // kInvalid when a recording runs; kUnavailable when there can be no such file.
  Result<std::string> Start(const std::string& file) AQ_EXCLUDES(control_, mutex_);
  // Returns when all is written. kInvalid when no recording runs; kLate when the disk hangs, and
  // then a part is missing.
  Status Stop() AQ_EXCLUDES(control_, mutex_);
  RecordingStatus status() const AQ_EXCLUDES(mutex_);

  // On the owner. Whether Record() is of use now.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void Record(RecordedCall call) AQ_EXCLUDES(mutex_);

 private:
  class Recording;

  // Shared with the recording's thread, which a disk may hold for ever. Null: there was none yet.
  std::shared_ptr<Recording> recording() const AQ_EXCLUDES(mutex_);
  void SetRecording(std::shared_ptr<Recording> recording) AQ_EXCLUDES(mutex_);

  const RecorderOptions options_;
  Mutex control_;  // Held by Start() and Stop(), which may wait for a disk; never by the owner.
  mutable Mutex mutex_;
  std::shared_ptr<Recording> recording_ AQ_GUARDED_BY(mutex_);
  std::atomic<bool> wanted_ = false;
};

}  // namespace aquifer
