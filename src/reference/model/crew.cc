#include "reference/model/crew.h"

#include "base/check.h"
#include "base/thread_name.h"

namespace aquifer::reference {

Crew::Crew(size_t threads) {
  AQ_CHECK(threads > 0);
  for (size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { Loop(); });
}

Crew::~Crew() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    begin_.NotifyAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void Crew::Share(size_t parts, const std::function<void(size_t part)>& work) {
  if (parts == 1 || workers_.empty()) {  // Waking a worker costs more than most single parts.
    for (size_t part = 0; part < parts; ++part) work(part);
    return;
  }
  {
    const MutexLock lock(&mutex_);
    work_ = &work;
    next_ = 0;
    parts_ = parts;
    begin_.NotifyAll();
  }
  WorkAlong();
  const MutexLock lock(&mutex_);
  while (under_way_ > 0) done_.Wait(&mutex_);
  work_ = nullptr;
}

bool Crew::TakePart(size_t* part) {
  if (next_ == parts_) return false;
  *part = next_++;
  ++under_way_;
  return true;
}

void Crew::WorkAlong() {
  mutex_.Lock();
  for (size_t part = 0; TakePart(&part);) {
    const std::function<void(size_t)>& work = *work_;
    mutex_.Unlock();
    work(part);
    mutex_.Lock();
    if (--under_way_ == 0 && next_ == parts_) done_.NotifyOne();
  }
  mutex_.Unlock();
}

void Crew::Loop() {
  NameThisThread("aq-crew");
  while (true) {
    {
      const MutexLock lock(&mutex_);
      while (next_ == parts_ && !stopping_) begin_.Wait(&mutex_);
      if (stopping_) return;
    }
    WorkAlong();
  }
}

}  // namespace aquifer::reference
