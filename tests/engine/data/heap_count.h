// How often this test program has asked operator new for memory.
#pragma once

#include <cstdint>

namespace snug {

int64_t heap_requests();

}  // namespace snug
