#include "cache/job_list.h"

#include "cache/jobs.h"

namespace aquifer {

Job* JobList::Next(const Job* job) { return job->next_; }

void JobList::PushBack(Job* job) {
  job->next_ = nullptr;
  job->previous_ = last_;
  (last_ == nullptr ? first_ : last_->next_) = job;
  last_ = job;
}

void JobList::Remove(Job* job) {
  (job->previous_ == nullptr ? first_ : job->previous_->next_) = job->next_;
  (job->next_ == nullptr ? last_ : job->next_->previous_) = job->previous_;
}

void JobList::TakeAll(JobList* other) {
  if (other->empty()) return;
  (last_ == nullptr ? first_ : last_->next_) = other->first_;
  other->first_->previous_ = last_;
  last_ = other->last_;
  *other = {};
}

}  // namespace aquifer
