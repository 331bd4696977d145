// How often this test program has asked operator new for memory, and for how many bytes in all.
#pragma once

#include <cstdint>

namespace snug {

int64_t heap_requests();
int64_t heap_bytes();

}  // namespace snug
