// For a thread that works beside the one that issues programs: copies (checkpoints), and whether a device has
// come so far (ranks that wait for each other).
#pragma once

#include "engine/device/device.h"

namespace snug {

// From any thread, in no order with the streams; the bytes are there when it returns. For what no
// stream writes meanwhile. One thread at a time.
void copy_beside(Device& device, void* to, const void* from, int64_t bytes);
// Whether an event has happened; from any thread.
bool event_done(const Device& device, EventId event);
// Their parts for GPUs, in builds with the place cuda.
void cuda_copy_beside(Device& device, void* to, const void* from, int64_t bytes);
bool cuda_event_done(const Device& device, EventId event);

}  // namespace snug
