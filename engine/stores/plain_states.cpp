#include "engine/stores/plain_states.h"

#include "engine/stores/part_runs.h"

namespace snug {

PlainStateStore::PlainStateStore(Context& ctx, const ParamTable& table, StateSet set, bool by_part)
    : set_(std::move(set)), spans_(whole_parameter_spans(table)) {
  const std::vector<int> run = run_of_params(table);
  const auto run_of = [&](size_t i) { return run[static_cast<size_t>(spans_[i].param)]; };
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (i == 0 || (by_part && run_of(i) != run_of(i - 1))) windows_.emplace_back(i, 0);
    ++windows_.back().second;
  }
  int64_t extent = table.trained_elements();
  DType dtype = set_.form.dtype;
  if (!lie_flat(set_)) {
    places_ = StatePlaces(spans_, set_);
    extent = places_.bytes();
    dtype = DType::u8;
  }
  for (const Name name : set_.names)
    states_.push_back(ctx.tensor(name, {extent}, dtype, Category::optimizer));
}

View PlainStateStore::acquire(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return flat(k).rows(span.offset, span.elements);
  return places_.values(flat(k), form(k, span), span.offset, numbers(span));
}

View PlainStateStore::acquire_scales(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return {};
  return places_.scales(flat(k), form(k, span), span.offset, span.elements);
}

View PlainStateStore::stored(int k, int64_t first) const {
  if (lie_flat(set_)) return flat(k).rows(first, flat(k).elements() - first);
  return places_.values(flat(k), set_.form_of(k, places_.param_at(first)), first,
                        places_.elements_from(first));
}

View PlainStateStore::stored_scales(int k, int64_t first) const {
  if (lie_flat(set_)) return {};
  return places_.scales(flat(k), set_.form_of(k, places_.param_at(first)), first,
                        places_.elements_from(first));
}

}  // namespace snug
