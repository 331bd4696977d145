// Comm: collectives as recorded ops, of ranks that each run the same programs on samples of their own.
// All ranks issue the same collectives in the same order; each begins when all ranks are there. Sums
// are made in fp32 in the order of ranks, whatever moves the bytes, so that they do not depend on it
// and are the same on every rank.
//
// They lie on the stream kRanks, beside what compute goes on with, or in turn with it, among its ops:
//
//   compute   | h.2 backward | h.1 backward | h.0 backward |
//   ranks                    | h.2 summed | | h.1 summed |  | h.0 summed |
#pragma once

#include "engine/memory/context.h"

namespace snug {

class Comm {
 public:
  // One that was begun. Until arrive() nothing uses or ends what it writes, and nothing changes or ends
  // what it reads.
  struct Flight {
    Event done;   // defined beside compute
    Tensor room;  // what it has meanwhile
  };

  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Once, between programs: all ranks have reserved arenas of one schedule; this one's is the context's.
  virtual void attach(Context& ctx) = 0;
  // That context ends.
  virtual void detach() noexcept {}
  // Before that: whether collectives lie in turn with compute, with which they begin. The same on all ranks.
  virtual void set_in_turn(bool) = 0;
  virtual bool in_turn() const = 0;

  // `of`: the tensor of the program that `full` or `x` is; null: of a resident one.
  // full = the ranks' `mine`, one behind the other. `mine` is a tensor, or part of one that is the same
  // on all ranks, or this rank's span of `full`.
  virtual Flight begin_all_gather(Context& ctx, const View& full, const View& mine, Tensor* of) = 0;
  // mine = (or +=) the sum over ranks of span rank() of their `full`, of size() equal spans; f32 or
  // bf16. `mine` may be that span of this rank's, which no other reads.
  virtual Flight begin_reduce_scatter(Context& ctx, const GradView& mine, const View& full,
                                      Tensor* of) = 0;
  // x = the sum over ranks; f32 or bf16, of a multiple of size() elements.
  virtual Flight begin_all_reduce(Context& ctx, const View& x, Tensor* of) = 0;
  // Compute waits for it, once.
  static void arrive(Context& ctx, Flight& flight) {
    if (ctx.current(flight.done)) ctx.wait_event(kCompute, flight.done);
    flight.done = {};
    flight.room.reset();
  }

  // The same, done when they return to what compute does next.
  void all_gather(Context& ctx, const View& full, const View& mine) {
    Flight flight = begin_all_gather(ctx, full, mine, nullptr);
    arrive(ctx, flight);
  }
  void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full) {
    Flight flight = begin_reduce_scatter(ctx, mine, full, nullptr);
    arrive(ctx, flight);
  }
  void all_reduce_sum(Context& ctx, const View& x) {
    Flight flight = begin_all_reduce(ctx, x, nullptr);
    arrive(ctx, flight);
  }
  // Of StepState what programs write: the sums of losses and squares, what was not finite.
  virtual void sum_step(Context& ctx, const View& state) = 0;
};

}  // namespace snug
