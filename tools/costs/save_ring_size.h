// Sizes of the ring that a checkpoint passes through (tools/checkpoint/save_ring.h).
#pragma once

#include <cstdint>

namespace snug {

inline constexpr int64_t kSaveSlotBytes = 256 << 10, kLeastSaveRingBytes = 4096;

}  // namespace snug
