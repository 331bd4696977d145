#include "engine/simt/dims.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace snug::simt {
namespace {

// A launch is not to pay for words that are not said: these are put together where one is refused.
[[noreturn]] void refuse(const char* kernel, const std::string& expected, const std::string& found,
                         const char* advice) {
  fail(ErrorCode::device, expected, found + " in a launch of " + kernel, advice);
}

}  // namespace

void check_dims(const char* kernel, const Dims& d) {
  if (d.threads < kWarp || d.threads > kMaxThreads || d.threads % kWarp != 0)
    refuse(kernel, fmt::format("a block of 32 to {} threads, a multiple of 32", kMaxThreads),
           fmt::format("{} threads", d.threads), "choose whole warps and loop over the rest");
  if (d.blocks < 0 || d.blocks > kMaxBlocksX)
    refuse(kernel, fmt::format("a grid of at most {} blocks along x", kMaxBlocksX),
           fmt::format("{} blocks", d.blocks), "give each block more work");
  for (const auto& [axis, blocks] : {std::pair{'y', d.blocks_y}, std::pair{'z', d.blocks_z}})
    if (blocks < 0 || blocks > kMaxBlocksYZ)
      refuse(kernel, fmt::format("a grid of at most {} blocks along {}", kMaxBlocksYZ, axis),
             fmt::format("{} blocks", blocks), "put the long extent along x");
  if (d.shared_bytes < 0 || d.shared_bytes > kMaxShared)
    refuse(kernel, fmt::format("at most {} bytes of dynamic shared memory", kMaxShared),
           fmt::format("{} bytes", d.shared_bytes), "use smaller tiles");
}

}  // namespace snug::simt
