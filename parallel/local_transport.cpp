#include "parallel/local_transport.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "parallel/rank_sum.h"

namespace snug {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;

}  // namespace

void LocalTransport::attach(Context& /*ctx*/, std::byte* arena, int64_t bytes) {
  group_.attach(arena, bytes);
  arena_ = arena;
  bytes_ = bytes;
}

const std::byte* LocalTransport::theirs(int rank, const View& mine) const {
  const int64_t at = static_cast<const std::byte*>(mine.data) - arena_;
  require(arena_ != nullptr && at >= 0 && at + mine.bytes() <= bytes_, "a tensor of the arena");
  return group_.arena(rank) + at;
}

void LocalTransport::all_gather(Context& ctx, const View& full, const View& mine) {
  group_.barrier("all_gather", static_cast<uint64_t>(full.bytes()));
  const int64_t bytes = mine.bytes(), chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  auto* const to = static_cast<std::byte*>(full.data);
  // Pieces that are spans of `full` lie at another place in it on every rank.
  const bool inside = mine.data == to + rank() * bytes;
  parallel_for(ctx.threads(), chunks * size(), [&](int64_t i) {
    // Each rank begins with its own, so that not all read from one.
    const int from = static_cast<int>((i / chunks + rank()) % size());
    const int64_t begin = i % chunks * kChunkBytes, n = std::min(kChunkBytes, bytes - begin);
    std::byte* const at = to + from * bytes + begin;
    const std::byte* const source =
        (inside ? theirs(from, full) + from * bytes : theirs(from, mine)) + begin;
    if (at != source) std::memcpy(at, source, static_cast<size_t>(n));
  });
  group_.barrier("all_gather: read", static_cast<uint64_t>(full.bytes()));
}

void LocalTransport::sum(const GradView& mine, const View& full, int threads) {
  const std::byte* from[kMostRanks];
  const int64_t bytes = mine.view.bytes();
  for (int r = 0; r < size(); ++r) from[r] = theirs(r, full) + rank() * bytes;
  sum_ranks(mine, from, size(), threads);
}

void LocalTransport::reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                                        const View& /*staging*/) {
  group_.barrier("reduce_scatter", static_cast<uint64_t>(full.bytes()));
  sum(mine, full, ctx.threads());
  group_.barrier("reduce_scatter: read", static_cast<uint64_t>(full.bytes()));
}

}  // namespace snug
