// StateStore: how an optimizer gets its state. It serves spans of the flat parameter range with a
// table (parameter, shape, group, offset), so an optimizer never sees where the state lives, in
// which dtype it rests, or how many ranks share it. A span is never larger than the optimizer asked
// for; matrix optimizers ask for whole parameters.
#pragma once

#include <vector>

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"

namespace snug {

struct StateSpan {
  int param;         // index in the table
  int group;         // optimizer group
  int64_t offset;    // first element in the flat range, multiple of 256
  int64_t elements;  // padded rows left out: they are never updated
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual const std::vector<StateSpan>& spans() const = 0;
  virtual int states() const = 0;
  // State `k` of a span as fp32, valid until release; changes are kept by release.
  virtual View acquire(Context& ctx, int k, const StateSpan& span) = 0;
  virtual void release(Context& ctx, int k, const StateSpan& span) = 0;
  // What a checkpoint stores for state `k`: name suffix and the whole flat range.
  virtual View flat(int k) const = 0;
};

// fp32 states, resident.
class PlainStateStore final : public StateStore {
 public:
  // Call inside the root program. `names` are those of the states, for example {"exp_avg",
  // "exp_avg_sq"}.
  PlainStateStore(Context& ctx, const ParamTable& table, const std::vector<Name>& names);
  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(states_.size()); }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  void release(Context&, int, const StateSpan&) override {}
  View flat(int k) const override { return states_[static_cast<size_t>(k)].view(); }

 private:
  std::vector<StateSpan> spans_;
  std::vector<Tensor> states_;
};

// One span per trainable parameter.
std::vector<StateSpan> whole_parameter_spans(const ParamTable& table);

}  // namespace snug
