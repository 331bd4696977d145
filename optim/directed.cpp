#include "optim/directed.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace snug {

void DirectedOptimizer::follow(Context& ctx, const UpdateTargets& targets, StateStore& store,
                               const StateSpan& span, int64_t from, const View& direction,
                               const View& state) const {
  require(from % kSpanAlignment == 0, "a part of a span that begins a block of draws");
  UpdateTargets t = targets;
  t.gradients = direction;
  t.first = span.offset + from;
  t.brought = nullptr;
  const StateSpan part{span.param, span.group, t.first, direction.elements()};
  static_cast<const ElementwiseOptimizer&>(*along_).update_spans(ctx, t, store, {&part, 1}, state);
}

void DirectedOptimizer::update_window(Context& ctx, const UpdateTargets& targets, StateStore& store,
                                      std::span<const StateSpan> spans, const View& state) const {
  for (size_t i = 0; i < spans.size();) {
    if (directs(store, spans[i])) {
      const auto same = [&](size_t k) { return spans[k].param == spans[i].param; };
      if ((i > 0 && same(i - 1)) || (i + 1 < spans.size() && same(i + 1)))
        fail(ErrorCode::unsupported, fmt::format("matrices in one piece for {}", name()),
             fmt::format("a cut of parameter {}", spans[i].param),
             "a store that the optimizer's states() made");
      direct(ctx, targets, store, spans[i++], state);
      continue;
    }
    const size_t first = i;
    while (i < spans.size() && !directs(store, spans[i])) ++i;
    update_spans(ctx, targets, store, spans.subspan(first, i - first), state);
  }
}

}  // namespace snug
