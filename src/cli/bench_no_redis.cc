// Without hiredis there is nothing to hold our client against.
#include "cli/bench_row.h"

namespace aquifer {

void AddRedisRows(std::vector<Row>* /*rows*/) {}

}  // namespace aquifer
