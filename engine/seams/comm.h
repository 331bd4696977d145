// Comm: collectives as recorded ops, of ranks that each run the same programs on samples of their own.
// All ranks issue the same collectives in the same order; each begins when all ranks are there. Sums
// are made in fp32 in the order of ranks, whatever moves the bytes, so that they do not depend on it
// and are the same on every rank.
#pragma once

#include "engine/memory/context.h"

namespace snug {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Once, between programs: all ranks have reserved arenas of one schedule; this one's is the context's.
  virtual void attach(Context& ctx) = 0;
  // That context ends.
  virtual void detach() noexcept {}
  // full = the ranks' `mine`, one behind the other. `mine` is a tensor, or part of one that is the same
  // on all ranks, or this rank's span of `full`.
  virtual void all_gather(Context& ctx, const View& full, const View& mine) = 0;
  // mine = (or +=) the sum over ranks of span rank() of their `full`, of size() equal spans; f32 or
  // bf16. `mine` may be that span of this rank's, which no other reads.
  virtual void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full) = 0;
  // x = the sum over ranks; f32 or bf16, of a multiple of size() elements.
  virtual void all_reduce_sum(Context& ctx, const View& x) = 0;
  // Of StepState what programs write: the sums of losses and squares, what was not finite.
  virtual void sum_step(Context& ctx, const View& state) = 0;
};

}  // namespace snug
