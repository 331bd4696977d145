// SummedGradSink: the gradients that all ranks keep whole (PlainGradSink), and their sum over ranks, which a
// window's last micro-step ends with: of all of them (ZeRO stage 0), or to each rank of its pieces alone
// (stage 1). Where collectives lie beside compute, those of a block are summed while backward is at the
// block below; else all of them behind it, in the update (sum()). No bit depends on which.
//
//   backward   | h.2 .... | h.1 .... | h.0 .... | embedding |      of a window's last micro-step
//   ranks                 | h.2 summed | h.1 summed | h.0 .. | rest summed |
#pragma once

#include <vector>

#include "engine/seams/comm.h"
#include "engine/seams/grad_sink.h"
#include "engine/stores/plain_gradients.h"
#include "engine/stores/shards.h"

namespace snug {

class SummedGradSink final : public GradSink {
 public:
  // The sink, whose runs are those of the shards, and the communicator outlive it.
  SummedGradSink(PlainGradSink& plain, const Shards& shards, Comm& comm, bool in_pieces)
      : plain_(plain),
        shards_(shards),
        comm_(comm),
        in_pieces_(in_pieces),
        begun_(shards.runs().size(), 0) {}
  // Before a micro-step; behind the sink's own.
  void begin(bool last_of_window);
  bool wants(int param) const override { return plain_.wants(param); }
  GradView open(Context& ctx, int param) override { return plain_.open(ctx, param); }
  void close(Context& ctx, int param) override { plain_.close(ctx, param); }
  void part_done(Context& ctx, int part) override;
  // In the program of the micro-step, at its end: what is of no part, and all have arrived.
  void settle(Context& ctx);
  // In turn with compute: of all of them.
  void sum(Context& ctx);

 private:
  void begin_run(Context& ctx, size_t run);

  PlainGradSink& plain_;
  const Shards& shards_;
  Comm& comm_;
  bool in_pieces_, last_ = false;
  std::vector<char> begun_;  // by run, in this micro-step
  Comm::Flight flight_;
};

}  // namespace snug
