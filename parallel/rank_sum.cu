#include <algorithm>

#include "engine/core/error.h"
#include "engine/memory/step_state.h"
#include "engine/simt/simt.h"
#include "parallel/group.h"
#include "parallel/rank_sum_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

struct Parts {
  const std::byte* at[kMostRanks];
};

// A thread an element. From: (ranks) arrays of n. Coalesced: neighbours read neighbours of each rank.
template <class T>
__global__ void sum_ranks_kernel(T* out, bool add, const __grid_constant__ Constant<Parts> from,
                                 int ranks, int64_t n) {
  const int64_t step = blocks() * threads();
  for (int64_t i = block() * threads() + thread(); i < n; i += step) {
    float sum = to_f32(reinterpret_cast<const T*>(from->at[0])[i]);
    for (int r = 1; r < ranks; ++r) sum += to_f32(reinterpret_cast<const T*>(from->at[r])[i]);
    if (add) sum = to_f32(out[i]) + sum;
    out[i] = from_f32<T>(sum);
  }
}

// One thread: ranks are few, and their order counts.
__global__ void sum_steps_kernel(StepState* state, const StepState* all, int ranks) {
  if (thread() > 0) return;
  double loss = 0, squares = 0;
  int64_t tokens = 0, bad = -1;
  int32_t found_inf = 0;
  for (int r = 0; r < ranks; ++r) {
    loss += all[r].loss_sum;
    squares += all[r].grad_square_sum;
    tokens += all[r].loss_tokens;
    found_inf |= all[r].found_inf;
    if (all[r].first_bad_element >= 0 && (bad < 0 || all[r].first_bad_element < bad))
      bad = all[r].first_bad_element;
  }
  state->loss_sum = loss;
  state->grad_square_sum = squares;
  state->loss_tokens = tokens;
  state->found_inf = found_inf;
  state->first_bad_element = bad;
}

template <class T, class Queue>
void launch_sum(Queue& queue, const GradView& mine, const Parts& parts, int ranks) {
  constexpr int kThreads = 256;
  constexpr int64_t kBlocks = 1024;  // more elements are taken in turns
  const int64_t n = mine.view.elements();
  simt::launch(
      queue, {.blocks = std::min(kBlocks, (n + kThreads - 1) / kThreads), .threads = kThreads},
      "sum_ranks", sum_ranks_kernel<T>, static_cast<T*>(mine.view.data), mine.add, parts, ranks, n);
}

}  // namespace

template <class Queue>
void sum_ranks_on(Queue& queue, const GradView& mine, const std::byte* const* from, int ranks) {
  require(ranks >= 1 && ranks <= kMostRanks, "1 to 64 ranks");
  Parts parts{};
  std::copy_n(from, ranks, parts.at);
  if (mine.view.dtype == DType::f32)
    launch_sum<float>(queue, mine, parts, ranks);
  else if (mine.view.dtype == DType::bf16)
    launch_sum<bf16>(queue, mine, parts, ranks);
  else
    fail(ErrorCode::unsupported, "sums of f32 or bf16", to_string(mine.view.dtype),
         "this is a defect in Snug: please report it");
}

template <class Queue>
void sum_steps_on(Queue& queue, const View& state, const View& all, int ranks) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "sum_steps", sum_steps_kernel,
               step_state(state), static_cast<const StepState*>(step_state(all)), ranks);
}

template void sum_ranks_on(simt::Queue&, const GradView&, const std::byte* const*, int);
template void sum_steps_on(simt::Queue&, const View&, const View&, int);

}  // namespace snug
