#include "parallel/rank_comm.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "parallel/group.h"
#include "parallel/rank_sum_simt.h"

namespace snug {

int64_t received_bytes(const OpRecord& op, int ranks) {
  const std::string_view name = op.name;
  const int64_t N = ranks, others = N - 1;
  if (name == "sum_step") return op.bytes / N * others;
  if (name == "all_gather") return op.bytes / 2 / N * others;
  if (name == "reduce_scatter") return op.bytes / (N + 1) * others;
  if (name == "reduce_scatter_add") return op.bytes / (N + 2) * others;
  if (name == "all_reduce") return op.bytes / 3 / N * others * 2;
  return -1;
}

void Transport::all_reduce_sum(Context& ctx, const View& x, const View& staging) {
  const int64_t n = x.elements() / size();
  const View own = x.reshaped({x.elements()}).rows(rank() * n, n);
  reduce_scatter_sum(ctx, {own, false}, x, staging);
  all_gather(ctx, x, own);
}

void RankComm::attach(Context& ctx) {
  require(transport_ != nullptr, "ranks that run");
  transport_->attach(ctx, ctx.arena_base(), ctx.arena_bytes());
}

void RankComm::check(Context& ctx, const View& full, const View& piece) const {
  require(full.elements() == piece.elements() * size_ && full.dtype == piece.dtype,
          "size() equal pieces of one dtype");
  if (ctx.planning()) return;
  require(transport_ != nullptr, "ranks that run");
  require(ctx.host_reads() || transport_->on_device(),
          "collectives in memory that the transport reads");
}

Staging staging_of(int64_t piece, int64_t element_bytes, int ranks) {
  constexpr int64_t kAlike = 256;
  const int64_t most = kStagingBytes / element_bytes / (2 * std::max(1, ranks - 1));
  const int64_t chunk = std::max(kAlike, most / kAlike * kAlike);
  return piece <= chunk ? Staging{piece, 1} : Staging{chunk, 2};
}

Tensor RankComm::staging(Context& ctx, const View& full) const {
  if (!staged_ || size_ == 1 || full.elements() == 0) return {};
  const Staging s = staging_of(full.elements() / size_, size_of(full.dtype), size_);
  return ctx.tensor(Name("ranks.received"), {s.halves * (size_ - 1) * s.chunk}, full.dtype,
                    Category::workspace);
}

void RankComm::all_gather(Context& ctx, const View& full, const View& mine) {
  check(ctx, full, mine);
  Op op(ctx, "all_gather", {.flops = 0, .bytes = 2 * full.bytes()});
  if (op.run()) transport_->all_gather(ctx, full, mine);
}

void RankComm::reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full) {
  check(ctx, full, mine.view);
  const Tensor room = staging(ctx, full);
  Op op(ctx, mine.add ? "reduce_scatter_add" : "reduce_scatter",
        {.flops = full.elements(), .bytes = full.bytes() + (mine.add ? 2 : 1) * mine.view.bytes()});
  if (op.run()) transport_->reduce_scatter_sum(ctx, mine, full, room.view());
}

void RankComm::all_reduce_sum(Context& ctx, const View& x) {
  require(x.elements() % size_ == 0, "a multiple of size() elements");
  check(ctx, x, x.rows(0, x.elements() / size_));
  const Tensor room = staging(ctx, x);
  Op op(ctx, "all_reduce", {.flops = x.elements(), .bytes = 3 * x.bytes()});
  if (op.run()) transport_->all_reduce_sum(ctx, x, room.view());
}

void RankComm::sum_step(Context& ctx, const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  // Where kernels compute they sum too.
  Tensor all_states;
  if (ctx.by_kernels())
    all_states =
        ctx.tensor(Name("ranks.steps"), {size_ * state.bytes()}, DType::u8, Category::workspace);
  Op op(ctx, "sum_step", {.flops = 4 * size_, .bytes = size_ * state.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels()) {
    transport_->all_gather(ctx, all_states, state);
    return on_queue(ctx, [&](auto& queue) { sum_steps_on(queue, state, all_states, size_); });
  }
  struct Sums {
    double loss, squares;
    int64_t tokens, bad;
    int32_t found_inf;
  };
  StepState& s = *step_state(state);
  const Sums mine{s.loss_sum, s.grad_square_sum, s.loss_tokens, s.first_bad_element, s.found_inf};
  require(size_ <= kMostRanks, "at most 64 ranks");
  Sums all[kMostRanks];
  transport_->exchange("sum_step", all, &mine, sizeof(Sums));
  s.loss_sum = s.grad_square_sum = 0;
  s.loss_tokens = 0;
  s.first_bad_element = -1;
  s.found_inf = 0;
  for (int r = 0; r < size_; ++r) {
    s.loss_sum += all[r].loss;
    s.grad_square_sum += all[r].squares;
    s.loss_tokens += all[r].tokens;
    s.found_inf |= all[r].found_inf;
    if (all[r].bad >= 0 && (s.first_bad_element < 0 || all[r].bad < s.first_bad_element))
      s.first_bad_element = all[r].bad;
  }
}

}  // namespace snug
