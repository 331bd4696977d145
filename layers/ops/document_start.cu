#include "engine/core/units.h"
#include "engine/simt/map.h"
#include "layers/ops/document_start_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A thread for every position. Starts never descend and those of later documents lie behind the
// position, so the first of these is found by halving.
__global__ void document_end_kernel(int32_t* ends, const int32_t* starts, int64_t tokens,
                                    int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t t = i % tokens;
  const int32_t* const row = starts + (i - t);
  int64_t low = t + 1, high = tokens;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row[middle] > t)
      high = middle;
    else
      low = middle + 1;
  }
  ends[i] = static_cast<int32_t>(low);
}

}  // namespace

template <class Queue>
void document_end_on(Queue& queue, const View& ends, const View& starts, int threads) {
  const int64_t n = ends.elements();
  launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "document_end",
         document_end_kernel, ends.as<int32_t>(), starts.as<const int32_t>(), ends.shape[1], n);
}

template void document_end_on(simt::Queue&, const View&, const View&, int);

}  // namespace snug
