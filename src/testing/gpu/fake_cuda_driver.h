// A CUDA driver whose answers about an address a test decides. It is a library of its own, with the
// real one's name: a program that links it and loads libcuda.so.1 gets this one.
#pragma once

#include <cstdint>

namespace aquifer {

// The answers of cuPointerGetAttribute(), whatever the address.
struct FakeCudaAnswers {
  int result = 0;  // The driver's error number; 0: none.
  uint32_t memory_type = 0;
  uint32_t is_managed = 0;
  int ordinal = 0;
};

extern FakeCudaAnswers fake_cuda_answers;

}  // namespace aquifer
