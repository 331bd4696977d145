// Gradients that are consumed in backward: as soon as those of a part (a block) are complete, its
// parameters are updated and the bytes are free for the next part's. So the gradients of one part
// exist at a time, beside those of what is outside the parts (embeddings, the last norm, the head),
// which stay until the end: a tied table has contributions from both ends of the model. Lv et al.,
// "Full Parameter Fine-tuning for Large Language Models with Limited Resources" (LOMO, 2023), with
// any optimizer.
//
// Bits      those of an update behind backward: the same arithmetic on the same numbers.
// Needs     one micro-step a window, no clipping by the norm of all gradients, and no loss scaling,
//           whose steps may have to be skipped as a whole. A gradient that is not finite stops the
//           update of its part and of those after it; parts before it were updated, so that the run
//           cannot go on from these weights.
#pragma once

#include <functional>
#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/state_store.h"

namespace snug {

class UpdatingGradSink final : public GradSink {
 public:
  // Complete gradients: of the parameters from element `first` of the flat range on.
  struct Complete {
    View gradients;
    int64_t first;
    WindowRange windows;               // of the store
    std::span<const StateSpan> spans;  // of these windows
  };
  using Update = std::function<void(Context&, const Complete&)>;

  // Call inside the root program. The store's windows keep to the parts (StateStore); of one whose spans
  // differ by ranks `of_runs` says which are those of every trained run. dtype: f32 or bf16.
  UpdatingGradSink(Context& ctx, const ParamTable& table, const StateStore& store, DType dtype,
                   Update update, const std::vector<WindowRange>& of_runs = {});
  void begin();  // before a micro-step
  bool wants(int param) const override { return table_[param].trainable; }
  GradView open(Context& ctx, int param) override;
  void close(Context&, int) override {}
  void part_done(Context& ctx, int part) override;
  // Updates what is of no part. In the program behind the micro-step.
  void finish(Context& ctx);

 private:
  struct Run {
    int part;
    Name name;
    int64_t first, elements;
    WindowRange windows;
    std::span<const StateSpan> spans;
    Tensor gradients;
  };
  void update(Context& ctx, Run& run);

  const ParamTable& table_;
  DType dtype_;
  Update update_;
  std::vector<Run> runs_;
  std::vector<int> run_of_;    // by parameter
  std::vector<char> written_;  // by this micro-step, per parameter
};

}  // namespace snug
