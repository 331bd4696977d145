#include "engine/stores/plain_states.h"

#include "engine/stores/part_runs.h"

namespace snug {

PlainStateStore::PlainStateStore(Context& ctx, const ParamTable& table, StateSet set, bool by_part)
    : KeptStates(std::move(set), whole_parameter_spans(table)) {
  const std::vector<int> run = run_of_params(table);
  const auto run_of = [&](size_t i) { return run[static_cast<size_t>(spans_[i].param)]; };
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (i == 0 || (by_part && run_of(i) != run_of(i - 1))) windows_.emplace_back(i, 0);
    ++windows_.back().second;
  }
  const bool flat = lie_flat(set_);
  if (!flat) places_ = AllPlaces(spans_, set_);
  for (int k = 0; k < static_cast<int>(set_.names.size()); ++k)
    states_.push_back(ctx.tensor(set_.names[static_cast<size_t>(k)],
                                 {flat ? table.trained_elements() : places_.of(k).bytes()},
                                 flat ? set_.form.dtype : DType::u8, Category::optimizer));
}

View PlainStateStore::acquire(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return flat(k).rows(span.offset, span.elements);
  return places_.of(k).values(flat(k), form(k, span), span.offset, numbers(k, span));
}

View PlainStateStore::acquire_scales(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return {};
  return places_.of(k).scales(flat(k), form(k, span), span.offset, span.elements);
}

View PlainStateStore::stored(int k, int64_t first) const {
  if (lie_flat(set_)) return flat(k).rows(first, flat(k).elements() - first);
  const StatePlaces& places = places_.of(k);
  return places.values(flat(k), set_.form_of(k, places.param_at(first)), first,
                       places.elements_from(first));
}

View PlainStateStore::stored_scales(int k, int64_t first) const {
  if (lie_flat(set_)) return {};
  const StatePlaces& places = places_.of(k);
  return places.scales(flat(k), set_.form_of(k, places.param_at(first)), first,
                       places.elements_from(first));
}

}  // namespace snug
