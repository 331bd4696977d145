#include "engine/simt/dims.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace snug::simt {
namespace {

void check(bool ok, const char* kernel, const std::string& expected, const std::string& found,
           const char* advice) {
  if (!ok) fail(ErrorCode::device, expected, found + " in a launch of " + kernel, advice);
}

}  // namespace

void check_dims(const char* kernel, const Dims& d) {
  check(d.threads >= kWarp && d.threads <= kMaxThreads && d.threads % kWarp == 0, kernel,
        fmt::format("a block of 32 to {} threads, a multiple of 32", kMaxThreads),
        fmt::format("{} threads", d.threads), "choose whole warps and loop over the rest");
  check(d.blocks >= 0 && d.blocks <= kMaxBlocksX, kernel,
        fmt::format("a grid of at most {} blocks along x", kMaxBlocksX),
        fmt::format("{} blocks", d.blocks), "give each block more work");
  for (const auto& [axis, blocks] : {std::pair{'y', d.blocks_y}, std::pair{'z', d.blocks_z}})
    check(blocks >= 0 && blocks <= kMaxBlocksYZ, kernel,
          fmt::format("a grid of at most {} blocks along {}", kMaxBlocksYZ, axis),
          fmt::format("{} blocks", blocks), "put the long extent along x");
  check(d.shared_bytes >= 0 && d.shared_bytes <= kMaxShared, kernel,
        fmt::format("at most {} bytes of dynamic shared memory", kMaxShared),
        fmt::format("{} bytes", d.shared_bytes), "use smaller tiles");
}

}  // namespace snug::simt
