// A CUDA driver of which a test decides what it says of an address. It is a library of its own,
// with the real one's name: whoever looks for libcuda.so.1 in a program that links it finds it.
#pragma once

#include <cstdint>

namespace aquifer {

// What cuPointerGetAttribute() answers, whatever the address.
struct FakeCudaAnswers {
  int result = 0;  // The driver's number for an error; 0: none.
  uint32_t memory_type = 0;
  uint32_t is_managed = 0;
  int ordinal = 0;
};

extern FakeCudaAnswers fake_cuda_answers;

}  // namespace aquifer
