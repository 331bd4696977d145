// A made-up GPU behind the functions of CUDA's runtime that device_cuda.cpp calls: its memory is
// the host's, its streams do what they are given at once, and its clock goes on by the bytes they
// move.
#pragma once

#include <cstdint>

namespace snug::test {

struct FakeGpu {
  int64_t total = int64_t{8} << 30, taken = 0;
  int64_t granule = 1;      // allocations are rounded up to it
  int64_t graph_bytes = 0;  // that a graph takes when it is made
  double microseconds = 0;  // the clock
  int driver = 13000, count = 1;
  int synchronisations = 0, live_events = 0, live_streams = 0, live_graphs = 0;
  bool fail_register = false;  // cudaHostRegister
  int sticky = 0;              // an error that every later call sees
};
FakeGpu& fake_gpu();
// A new one, whose runtime has seen no error.
void reset_fake_gpu();

}  // namespace snug::test
