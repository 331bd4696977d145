#include "parallel/rank_sum.h"

#include <cstddef>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "parallel/group.h"

namespace snug {
namespace {

constexpr int64_t kChunkElements = 1024;  // whose sums stay in the first-level cache

// out (+)= the sum of `from`, rank 0 first.
template <class T>
void sum_chunk(T* out, bool add, const T* const* from, int ranks, int64_t n) {
  float sums[kChunkElements];
  for (int64_t i = 0; i < n; ++i) sums[i] = to_f32(from[0][i]);
  for (int r = 1; r < ranks; ++r) {
    const T* const x = from[r];
    for (int64_t i = 0; i < n; ++i) sums[i] += to_f32(x[i]);
  }
  if (add)
    for (int64_t i = 0; i < n; ++i) sums[i] = to_f32(out[i]) + sums[i];
  for (int64_t i = 0; i < n; ++i) out[i] = from_f32<T>(sums[i]);
}

template <class T>
void sum_all(void* out, bool add, const std::byte* const* from, int ranks, int64_t n, int threads) {
  parallel_chunks(threads, n, kChunkElements, [&](int64_t begin, int64_t end) {
    const T* at[kMostRanks];
    for (int r = 0; r < ranks; ++r) at[r] = reinterpret_cast<const T*>(from[r]) + begin;
    sum_chunk(static_cast<T*>(out) + begin, add, at, ranks, end - begin);
  });
}

}  // namespace

void sum_ranks(const GradView& mine, const std::byte* const* from, int ranks, int threads) {
  const int64_t n = mine.view.elements();
  if (mine.view.dtype == DType::f32)
    sum_all<float>(mine.view.data, mine.add, from, ranks, n, threads);
  else if (mine.view.dtype == DType::bf16)
    sum_all<bf16>(mine.view.data, mine.add, from, ranks, n, threads);
  else
    fail(ErrorCode::unsupported, "sums of f32 or bf16", to_string(mine.view.dtype),
         "this is a defect in Snug: please report it");
}

}  // namespace snug
