// Without hiredis there is nothing to hold our client against.
#include "bench/bench_row.h"

namespace aquifer {

void AddRedisRows(std::vector<Row>* /*rows*/) {}

}  // namespace aquifer
