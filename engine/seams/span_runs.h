// Spans without a gap between them are one run: fewer, longer ops.
#pragma once

#include <span>

#include "engine/seams/state_store.h"

namespace snug {

// f(begin, end) for every run of spans that is not empty, in elements of the flat range.
template <class F>
void for_each_run(std::span<const StateSpan> spans, F&& f) {
  for (size_t i = 0; i < spans.size();) {
    const int64_t begin = spans[i].offset;
    int64_t end = begin + spans[i].elements;
    for (++i; i < spans.size() && spans[i].offset == end; ++i) end += spans[i].elements;
    if (end > begin) f(begin, end);
  }
}

}  // namespace snug
