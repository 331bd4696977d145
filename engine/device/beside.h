// Copies for a thread that works beside the one that issues programs (checkpoints).
#pragma once

#include "engine/device/device.h"

namespace snug {

// From any thread, in no order with the streams; the bytes are there when it returns. For what no
// stream writes meanwhile. One thread at a time.
void copy_beside(Device& device, void* to, const void* from, int64_t bytes);
// Its part for GPUs, in builds with the place cuda.
void cuda_copy_beside(Device& device, void* to, const void* from, int64_t bytes);

}  // namespace snug
