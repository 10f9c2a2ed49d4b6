#include "node/local/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/detached_task.h"

namespace aquifer {
namespace {

constexpr int kMaxNames = 1000;
constexpr int64_t kLookNanos = 1'000'000'000;  // How often those that wait are looked at.

// The next free name. Whatever is there, also a link or a device, is left alone.
Result<Descriptor> MakeFile(const std::string& wanted, std::string* name) {
  for (int i = 0; i < kMaxNames; ++i) {
    *name = i == 0 ? wanted : fmt::format("{}.{}", wanted, i);
    const int file = ::open(name->c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file >= 0) return Descriptor(file);
    if (errno != EEXIST) {
      return Status(Code::kUnavailable,
                    fmt::format("cannot record to {}: {}", *name, std::strerror(errno)));
    }
  }
  return Status(Code::kUnavailable,
                fmt::format("cannot record to {}: it is there, and so are {} with a number behind "
                            "it; name another file",
                            wanted, kMaxNames - 1));
}

}  // namespace

RecordedClient RecordedClientOf(std::string_view tenant, std::string_view engine, Random* random) {
  RecordedClient client{.tenant = Sha256Of(std::as_bytes(std::span(tenant))), .engine = 0};
  client.engine = engine.empty() ? random->Next64()
                                 : GetU64(Sha256Of(std::as_bytes(std::span(engine))).data()) ^
                                       GetU64(client.tenant.data());
  return client;
}

// One recording: its queue, its file, and what its thread does.
class Recorder::Recording {
 public:
  Recording(const RecorderOptions& options, std::string name, Descriptor file,
            const RecordedTraceOptions& trace)
      : options_(options), name_(std::move(name)), file_(std::move(file)), trace_(trace) {}

  const std::string& name() const { return name_; }

  void Push(RecordedCall call) AQ_EXCLUDES(mutex_) {
    const MutexLock lock(&mutex_);
    if (!status_.running) return;
    if (queue_.size() >= options_.max_queued_calls ||
        queued_keys_ + call.keys.size() > options_.max_queued_keys) {
      ++status_.left_out;
      return;
    }
    queued_keys_ += call.keys.size();
    queue_.push_back(std::move(call));
    changed_.NotifyAll();
  }

  // Asks it to end; true when it has, within the time.
  bool End(int64_t wait_nanos) AQ_EXCLUDES(mutex_) {
    const int64_t end = options_.clock->NowNanos() + wait_nanos;
    const MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    while (status_.running && options_.clock->NowNanos() < end) {
      changed_.WaitFor(&mutex_, end - options_.clock->NowNanos());
    }
    return !status_.running;
  }

  RecordingStatus status() const AQ_EXCLUDES(mutex_) {
    const MutexLock lock(&mutex_);
    RecordingStatus status = status_;
    status.file = name_;
    return status;
  }

  // The thread.
  void Run() AQ_EXCLUDES(mutex_) {
    bool more = true;
    while (more) {
      std::deque<RecordedCall> calls;
      more = Take(&calls);
      Note(calls);
      lines_.clear();
      const size_t count = trace_.TakeLines(options_.clock->NowNanos(), !more, &lines_);
      if (!Write(count)) break;
    }
    file_ = Descriptor();
    const MutexLock lock(&mutex_);
    status_.running = false;
    queue_.clear();
    changed_.NotifyAll();
  }

 private:
  // All that has come, or nothing when there is something else to do. False: nothing more will.
  bool Take(std::deque<RecordedCall>* calls) AQ_EXCLUDES(mutex_) {
    const MutexLock lock(&mutex_);
    if (queue_.empty() && !stopping_) {
      if (trace_.waiting() > 0) {
        changed_.WaitFor(&mutex_, kLookNanos);
      } else {
        changed_.Wait(&mutex_);
      }
    }
    calls->swap(queue_);
    queued_keys_ = 0;
    return !stopping_;
  }

  void Note(const std::deque<RecordedCall>& calls) {
    for (const RecordedCall& call : calls) {
      if (call.kind == RecordedCall::Kind::kAsked) {
        trace_.Asked(call.at_nanos, call.client, call.tokens_per_block, call.keys);
      } else {
        trace_.Stored(call.client, call.tokens_per_block, call.parent, call.keys);
      }
    }
  }

  bool Write(size_t count) AQ_EXCLUDES(mutex_) {
    if (lines_.empty()) return true;
    std::string_view left = lines_;
    if (status().bytes + lines_.size() > options_.max_bytes) {
      return GiveUp(fmt::format("it is as long as it may be, {} bytes", options_.max_bytes), 0);
    }
    while (!left.empty()) {
      const ssize_t written = options_.write(file_.get(), left.data(), left.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        return GiveUp(std::strerror(written < 0 ? errno : ENOSPC), lines_.size() - left.size());
      }
      left.remove_prefix(static_cast<size_t>(written));
    }
    const MutexLock lock(&mutex_);
    status_.requests += count;
    status_.bytes += lines_.size();
    return true;
  }

  // Keeps the whole lines of what was written of lines_.
  bool GiveUp(const std::string& why, size_t written) AQ_EXCLUDES(mutex_) {
    std::string_view whole = std::string_view(lines_).substr(0, written);
    whole = whole.substr(0, whole.rfind('\n') + 1);
    RecordingStatus now;
    {
      const MutexLock lock(&mutex_);
      status_.bytes += whole.size();
      for (const char c : whole) status_.requests += c == '\n' ? 1 : 0;
      status_.failure = why;
      now = status_;
    }
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), static_cast<off_t>(now.bytes));
    if (options_.log) {
      options_.log(fmt::format("the recording to {} has ended: {}; it has {} requests", name_,
                               now.failure, now.requests));
    }
    return false;
  }

  const RecorderOptions options_;
  const std::string name_;
  Descriptor file_;  // This and the next two are the thread's.
  RecordedTrace trace_;
  std::string lines_;

  mutable Mutex mutex_;
  Condition changed_;
  std::deque<RecordedCall> queue_ AQ_GUARDED_BY(mutex_);
  size_t queued_keys_ AQ_GUARDED_BY(mutex_) = 0;
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  RecordingStatus status_ AQ_GUARDED_BY(mutex_) = {.running = true};
};

Recorder::~Recorder() { [[maybe_unused]] const Status stopped = Stop(); }

std::shared_ptr<Recorder::Recording> Recorder::recording() const {
  const MutexLock lock(&mutex_);
  return recording_;
}

void Recorder::SetRecording(std::shared_ptr<Recording> recording) {
  const MutexLock lock(&mutex_);
  recording_.swap(recording);
}

Result<std::string> Recorder::Start(const std::string& file) {
  const MutexLock control(&control_);
  if (const auto last = recording(); last != nullptr && last->status().running) {
    return Status(Code::kInvalid,
                  "there is a recording already, to " + last->name() + "; stop it first");
  }
  std::string name;
  AQ_ASSIGN_OR_RETURN(Descriptor made, MakeFile(file, &name));
  RecordedTraceOptions trace{.start_nanos = options_.clock->NowNanos()};
  options_.random->Fill(trace.salt);
  auto fresh = std::make_shared<Recording>(options_, name, std::move(made), trace);
  if (!RunDetached("aq-recorder", [fresh] { fresh->Run(); })) {
    return Status(Code::kUnavailable, "the system has no thread to record with");
  }
  SetRecording(std::move(fresh));
  wanted_ = true;
  return name;
}

Status Recorder::Stop() {
  const MutexLock control(&control_);
  const std::shared_ptr<Recording> last = recording();
  if (last == nullptr || !wanted_) return Status(Code::kInvalid, "there is no recording");
  wanted_ = false;
  if (const RecordingStatus status = last->status(); !status.running) {
    return Status(Code::kInvalid,
                  "there is no recording: it ended by itself, with: " + status.failure);
  }
  if (last->End(options_.stop_wait_nanos)) return Status();
  return Status(Code::kLate, "the disk does not take the end of " + last->name());
}

RecordingStatus Recorder::status() const {
  const std::shared_ptr<Recording> last = recording();
  return last == nullptr ? RecordingStatus{} : last->status();
}

void Recorder::Record(RecordedCall call) {
  const std::shared_ptr<Recording> to = recording();
  if (to == nullptr) return;
  call.at_nanos = options_.clock->NowNanos();
  to->Push(std::move(call));
}

}  // namespace aquifer
