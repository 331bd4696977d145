#include "engine/seams/state_store.h"

namespace snug {

bool same_part(const ParamTable& table, int before, int param) {
  for (int i = before + 1; i <= param; ++i)
    if (table.begins_part(i)) return false;
  return true;
}

std::vector<StateSpan> whole_parameter_spans(const ParamTable& table) {
  std::vector<StateSpan> spans;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].trainable)
      spans.push_back({i, table[i].group, table[i].offset, table[i].real_elements()});
  return spans;
}

PlainStateStore::PlainStateStore(Context& ctx, const ParamTable& table,
                                 const std::vector<Name>& names, bool by_part)
    : spans_(whole_parameter_spans(table)) {
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (i == 0 || (by_part && !same_part(table, spans_[i - 1].param, spans_[i].param)))
      windows_.emplace_back(i, 0);
    ++windows_.back().second;
  }
  for (const Name name : names)
    states_.push_back(ctx.tensor(name, {table.flat_elements()}, DType::f32, Category::optimizer));
}

View PlainStateStore::acquire(Context&, int k, const StateSpan& span) {
  return states_[static_cast<size_t>(k)].view().rows(span.offset, span.elements);
}

View PlainStateStore::stored(int k, int64_t first) const {
  const View& flat = states_[static_cast<size_t>(k)].view();
  return flat.rows(first, flat.elements() - first);
}

}  // namespace snug
