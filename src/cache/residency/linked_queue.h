// A queue that goes through the `next` of its items. They belong to somebody else and are in one
// queue at a time; it never allocates.
//
// Runs wherever its items are used: it has no lock.
#pragma once

namespace aquifer {

template <class T>
class LinkedQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  T* front() const { return first_; }

  void PushBack(T* item) {
    item->next = nullptr;
    (empty() ? first_ : last_->next) = item;
    last_ = item;
  }
  void PushFront(T* item) {
    if (empty()) last_ = item;
    item->next = first_;
    first_ = item;
  }
  // There is one.
  T* PopFront() {
    T* const item = first_;
    first_ = item->next;
    return item;
  }
  // There is one behind `item`, which is in this queue.
  T* PopAfter(T* item) {
    T* const gone = item->next;
    item->next = gone->next;
    if (last_ == gone) last_ = item;
    return gone;
  }
  // All of the other's, behind its own.
  void TakeAll(LinkedQueue* other) {
    if (other->empty()) return;
    (empty() ? first_ : last_->next) = other->first_;
    last_ = other->last_;
    other->first_ = nullptr;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;  // Means nothing while it is empty.
};

}  // namespace aquifer
