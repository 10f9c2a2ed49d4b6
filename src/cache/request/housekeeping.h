// What requests began and is too long for one task: dropping what hangs below dropped blocks,
// emptying extents, ending the jobs of clients that are gone, and taking back what they held.
//
// Runs on the owner.
#pragma once

#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/request/request_scheduler.h"
#include "cache/residency/loan_book.h"
#include "cache/residency/residency.h"
#include "cache/transfer/eraser.h"

namespace aquifer {

class Housekeeping {
 public:
  Housekeeping(RequestScheduler* scheduler, Residency* residency, LoanBook* loans, Eraser* eraser,
               Executor* executor)
      : scheduler_(scheduler),
        residency_(residency),
        loans_(loans),
        eraser_(eraser),
        tasks_(executor) {}

  // Does a slice now, and the rest in tasks of its own.
  void Run();

 private:
  RequestScheduler* const scheduler_;
  Residency* const residency_;
  LoanBook* const loans_;
  Eraser* const eraser_;
  TaskScope tasks_;
  TaskScope::Once next_;
};

}  // namespace aquifer
