#include "engine/stores/plain_states.h"

#include "engine/stores/part_runs.h"

namespace snug {

PlainStateStore::PlainStateStore(Context& ctx, const ParamTable& table,
                                 const std::vector<Name>& names, bool by_part)
    : spans_(whole_parameter_spans(table)) {
  const std::vector<int> run = run_of_params(table);
  const auto run_of = [&](size_t i) { return run[static_cast<size_t>(spans_[i].param)]; };
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (i == 0 || (by_part && run_of(i) != run_of(i - 1))) windows_.emplace_back(i, 0);
    ++windows_.back().second;
  }
  for (const Name name : names)
    states_.push_back(
        ctx.tensor(name, {table.trained_elements()}, DType::f32, Category::optimizer));
}

View PlainStateStore::acquire(Context&, int k, const StateSpan& span) {
  return states_[static_cast<size_t>(k)].view().rows(span.offset, span.elements);
}

View PlainStateStore::stored(int k, int64_t first) const {
  const View& flat = states_[static_cast<size_t>(k)].view();
  return flat.rows(first, flat.elements() - first);
}

}  // namespace snug
