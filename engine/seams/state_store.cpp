#include "engine/seams/state_store.h"

#include "engine/device/beside.h"

namespace snug {

void StateStore::read_stored(Context& ctx, void* to, int k, int64_t first, bool scales,
                             int64_t n) const {
  const View from = (scales ? stored_scales(k, first) : stored(k, first)).rows(0, n);
  const Context::AtWork work(ctx);
  copy_beside(ctx.device(), to, from.data, from.bytes());
}

void StateStore::write_stored(Context& ctx, const void* from, int k, int64_t first, bool scales,
                              int64_t n) {
  ctx.write((scales ? stored_scales(k, first) : stored(k, first)).rows(0, n), from);
}

std::vector<StateSpan> whole_parameter_spans(const ParamTable& table) {
  std::vector<StateSpan> spans;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].trainable)
      spans.push_back({i, table[i].group, table[i].offset, table[i].real_elements()});
  return spans;
}

}  // namespace snug
