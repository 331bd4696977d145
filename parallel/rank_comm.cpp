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

void RankComm::set_in_turn(bool in_turn) {
  in_turn_ = in_turn;
  if (transport_) transport_->set_stream(in_turn ? kCompute : kRanks);
}

void RankComm::begin(Context& ctx, const char* name, OpCost cost, Call call, Tensor* of,
                     Flight& flight) {
  call.ctx = &ctx;
  call.room = flight.room.view();
  if (in_turn_) {
    const Op op(ctx, name, cost);
    if (op.run()) run(call);
    return;
  }
  Tensor* tensors[2];
  size_t count = 0;
  if (of != nullptr) tensors[count++] = of;
  if (flight.room.defined()) tensors[count++] = &flight.room;
  ctx.wait_event(kRanks, ctx.record_event(kCompute));
  {
    const Op op(ctx, name, cost, kRanks, {tensors, count});
    if (op.run()) {
      Call& place = calls_[static_cast<size_t>(begun_ % kMostBegun)];
      require(place.kind == Call::Kind::none, "fewer collectives than that on their way");
      place = call;
      ctx.device().call(
          [](void* comm, int64_t number) {
            auto& self = *static_cast<RankComm*>(comm);
            Call& c = self.calls_[static_cast<size_t>(number % kMostBegun)];
            const Call now = c;
            c.kind = Call::Kind::none;
            self.run(now);
          },
          this, begun_++, kRanks);
    }
  }
  flight.done = ctx.record_event(kRanks);
}

void RankComm::run(const Call& c) {
  switch (c.kind) {
    case Call::Kind::all_gather:
      return transport_->all_gather(*c.ctx, c.full, c.mine);
    case Call::Kind::reduce_scatter:
      return transport_->reduce_scatter_sum(*c.ctx, {c.mine, c.add}, c.full, c.room);
    case Call::Kind::all_reduce:
      return transport_->all_reduce_sum(*c.ctx, c.full, c.room);
    case Call::Kind::sum_step:
      return sum_steps(c);
    case Call::Kind::none:
      break;
  }
  require(false, "a collective");
}

Comm::Flight RankComm::begin_all_gather(Context& ctx, const View& full, const View& mine,
                                        Tensor* of) {
  check(ctx, full, mine);
  Flight flight;
  begin(ctx, "all_gather", {.flops = 0, .bytes = 2 * full.bytes()},
        {.kind = Call::Kind::all_gather, .full = full, .mine = mine}, of, flight);
  return flight;
}

Comm::Flight RankComm::begin_reduce_scatter(Context& ctx, const GradView& mine, const View& full,
                                            Tensor* of) {
  check(ctx, full, mine.view);
  Flight flight;
  flight.room = staging(ctx, full);
  begin(ctx, mine.add ? "reduce_scatter_add" : "reduce_scatter",
        {.flops = full.elements(), .bytes = full.bytes() + (mine.add ? 2 : 1) * mine.view.bytes()},
        {.kind = Call::Kind::reduce_scatter, .full = full, .mine = mine.view, .add = mine.add}, of,
        flight);
  return flight;
}

Comm::Flight RankComm::begin_all_reduce(Context& ctx, const View& x, Tensor* of) {
  require(x.elements() % size_ == 0, "a multiple of size() elements");
  check(ctx, x, x.rows(0, x.elements() / size_));
  Flight flight;
  flight.room = staging(ctx, x);
  begin(ctx, "all_reduce", {.flops = x.elements(), .bytes = 3 * x.bytes()},
        {.kind = Call::Kind::all_reduce, .full = x}, of, flight);
  return flight;
}

void RankComm::sum_step(Context& ctx, const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  Flight flight;
  // Where kernels compute they sum too.
  if (ctx.by_kernels())
    flight.room =
        ctx.tensor(Name("ranks.steps"), {size_ * state.bytes()}, DType::u8, Category::workspace);
  begin(ctx, "sum_step", {.flops = 4 * size_, .bytes = size_ * state.bytes()},
        {.kind = Call::Kind::sum_step, .full = state}, nullptr, flight);
  arrive(ctx, flight);
}

void RankComm::sum_steps(const Call& c) {
  const View& state = c.full;
  if (c.ctx->by_kernels()) {
    transport_->all_gather(*c.ctx, c.room, state);
    return on_queue(
        *c.ctx, [&](auto& queue) { sum_steps_on(queue, state, c.room, size_); },
        in_turn_ ? kCompute : kRanks);
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
