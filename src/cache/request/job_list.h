// Jobs of one client, or those that nobody waits for any more, in the order in which they began. It
// goes through the jobs themselves: adding and removing one costs the same however many there are.
//
// Runs on the owner.
#pragma once

namespace aquifer {

class Job;

class JobList {
 public:
  bool empty() const { return first_ == nullptr; }
  Job* front() const { return first_; }
  static Job* Next(const Job* job);

  // It is in no list.
  void PushBack(Job* job);
  // It is in this one.
  void Remove(Job* job);
  // All of the other's, behind its own.
  void TakeAll(JobList* other);

 private:
  Job* first_ = nullptr;
  Job* last_ = nullptr;
};

}  // namespace aquifer
