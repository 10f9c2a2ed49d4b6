// A Crew is the threads that compute one step together. The caller of Share() works too, and
// returns when all parts are done. The parts run in any order, so the order must not matter for the
// result.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace aquifer::reference {

class Crew {
 public:
  explicit Crew(size_t threads);  // The calling thread is one of them.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t threads() const { return workers_.size() + 1; }

  // Calls work(0) to work(parts - 1), each once. One caller at a time.
  void Share(size_t parts, const std::function<void(size_t part)>& work);

 private:
  void Loop();
  // Works until no part is left to begin.
  void WorkAlong() AQ_EXCLUDES(mutex_);
  bool TakePart(size_t* part) AQ_REQUIRES(mutex_);

  Mutex mutex_;
  Condition begin_;
  Condition done_;
  const std::function<void(size_t)>* work_ AQ_GUARDED_BY(mutex_) = nullptr;
  size_t next_ AQ_GUARDED_BY(mutex_) = 0;
  size_t parts_ AQ_GUARDED_BY(mutex_) = 0;
  size_t under_way_ AQ_GUARDED_BY(mutex_) = 0;
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace aquifer::reference
