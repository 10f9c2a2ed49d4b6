#include "base/line_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "base/detached_task.h"
#include "base/mutex.h"

namespace aquifer {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr size_t kMaxUsers = 256;  // That are remembered; all others share what is left to one.
constexpr uint32_t kOthers = UINT32_MAX;

// Waits for as long as it takes. Text that cannot be written at all is lost.
void WriteWhole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

class LineLog::Queue {
 public:
  Queue(const LineLogOptions& options, Clock* clock) : options_(options), clock_(clock) {}

  void Add(std::string line) {
    const MutexLock lock(&mutex_);
    AddIf(lines_.size() < options_.max_queued_lines, std::move(line));
  }

  void AddFor(uint32_t user, std::string line) {
    const MutexLock lock(&mutex_);
    const bool room = lines_.size() < options_.max_queued_lines / 2;
    AddIf(room && Allow(user), std::move(line));
  }

  // For the thread: writes until the log has ended and all is written.
  void WriteAll() {
    for (std::string text = Next(); !text.empty(); text = Next()) {
      WriteWhole(options_.descriptor, text);
    }
    const MutexLock lock(&mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

  void EndAndWait() {
    const int64_t end = SystemClock()->NowNanos() + options_.goodbye_nanos;
    const MutexLock lock(&mutex_);
    ended_ = true;
    changed_.NotifyAll();
    for (int64_t left = options_.goodbye_nanos; !done_ && left > 0;
         left = end - SystemClock()->NowNanos()) {
      changed_.WaitFor(&mutex_, left);
    }
  }

 private:
  // How many lines somebody may still cause.
  struct Allowance {
    int64_t lines = 0;
    int64_t counted_nanos = 0;
  };

  void AddIf(bool may, std::string line) AQ_REQUIRES(mutex_) {
    if (may) {
      lines_.push_back(std::move(line));
    } else {
      ++left_out_;
    }
    changed_.NotifyAll();
  }

  bool Allow(uint32_t user) AQ_REQUIRES(mutex_) {
    const int64_t now = clock_->NowNanos();
    const int64_t nanos_per_line = kNanosPerSecond / std::max(1u, options_.lines_per_second);
    if (allowed_.size() >= kMaxUsers) {  // A user silent for long may write as much as a new one.
      std::erase_if(allowed_, [&](const auto& known) {
        return now - known.second.counted_nanos >= options_.burst_lines * nanos_per_line;
      });
    }
    if (!allowed_.contains(user) && allowed_.size() >= kMaxUsers) user = kOthers;
    Allowance& allowed =
        allowed_.try_emplace(user, Allowance{options_.burst_lines, now}).first->second;
    const int64_t fresh = (now - allowed.counted_nanos) / nanos_per_line;
    allowed.lines = std::min<int64_t>(options_.burst_lines, allowed.lines + fresh);
    allowed.counted_nanos += fresh * nanos_per_line;
    if (allowed.lines == 0) return false;
    --allowed.lines;
    return true;
  }

  // Returns the text to write next; empty when that was all.
  std::string Next() {
    const MutexLock lock(&mutex_);
    // How many were left out is told at most once a second, or it would be the flood itself.
    while (lines_.empty() && !ended_) {
      if (left_out_ == 0) {
        changed_.Wait(&mutex_);
      } else if (const int64_t left = told_nanos_ + kNanosPerSecond - SystemClock()->NowNanos();
                 left > 0) {
        changed_.WaitFor(&mutex_, left);
      } else {
        break;
      }
    }
    std::string text;
    // Those that are left out came after all that are queued.
    if (lines_.empty() && left_out_ > 0) {
      told_nanos_ = SystemClock()->NowNanos();
      const uint64_t count = std::exchange(left_out_, 0);
      return (options_.left_out_line ? options_.left_out_line(count)
                                     : std::to_string(count) + " lines of the log were left out") +
             '\n';
    }
    while (!lines_.empty()) {
      text += lines_.front() + '\n';
      lines_.pop_front();
    }
    return text;
  }

  const LineLogOptions options_;
  Clock* const clock_;
  Mutex mutex_;
  Condition changed_;
  std::deque<std::string> lines_ AQ_GUARDED_BY(mutex_);
  uint64_t left_out_ AQ_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Allowance> allowed_ AQ_GUARDED_BY(mutex_);
  int64_t told_nanos_ AQ_GUARDED_BY(mutex_) = -kNanosPerSecond;  // When that was told last.
  bool ended_ AQ_GUARDED_BY(mutex_) = false;
  bool done_ AQ_GUARDED_BY(mutex_) = false;
};

LineLog::LineLog(const LineLogOptions& options, Clock* clock)
    : queue_(std::make_shared<Queue>(options, clock)) {
  // Without a thread everything is left out; the queue's bound holds either way.
  [[maybe_unused]] const bool started =
      RunDetached("aq-log", [queue = queue_] { queue->WriteAll(); });
}

LineLog::~LineLog() { queue_->EndAndWait(); }

void LineLog::Write(std::string line) { queue_->Add(std::move(line)); }

void LineLog::WriteFor(uint32_t user, std::string line) { queue_->AddFor(user, std::move(line)); }

}  // namespace aquifer
