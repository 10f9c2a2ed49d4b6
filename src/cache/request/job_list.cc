#include "cache/request/job_list.h"

#include "cache/request/job.h"

namespace aquifer {

Job* JobList::Next(const Job* job) { return job->state().next; }

void JobList::PushBack(Job* job) {
  job->state().next = nullptr;
  job->state().previous = last_;
  (last_ == nullptr ? first_ : last_->state().next) = job;
  last_ = job;
}

void JobList::Remove(Job* job) {
  const JobState& state = job->state();
  (state.previous == nullptr ? first_ : state.previous->state().next) = state.next;
  (state.next == nullptr ? last_ : state.next->state().previous) = state.previous;
}

void JobList::TakeAll(JobList* other) {
  if (other->empty()) return;
  (last_ == nullptr ? first_ : last_->state().next) = other->first_;
  other->first_->state().previous = last_;
  last_ = other->last_;
  *other = {};
}

}  // namespace aquifer
