#include "testing/gpu/fake_cuda_driver.h"

#include <cstring>

aquifer::FakeCudaAnswers aquifer::fake_cuda_answers;

// NOLINTNEXTLINE(readability-identifier-naming): the driver's name.
extern "C" int cuPointerGetAttribute(void* data, int attribute, uint64_t /*address*/) {
  const aquifer::FakeCudaAnswers& answers = aquifer::fake_cuda_answers;
  if (answers.result != 0) return answers.result;
  switch (attribute) {
    case 2:
      std::memcpy(data, &answers.memory_type, sizeof(answers.memory_type));
      return 0;
    case 8:
      std::memcpy(data, &answers.is_managed, sizeof(answers.is_managed));
      return 0;
    case 9:
      std::memcpy(data, &answers.ordinal, sizeof(answers.ordinal));
      return 0;
    default:
      return 1;
  }
}
