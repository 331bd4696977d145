// Spans cut into chunks of at most kChunkElements. The cut depends on the spans alone, never on
// threads. The map lives in a planned workspace tensor, so a step takes nothing from the heap.
#pragma once

#include <algorithm>
#include <span>

#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/seams/state_store.h"
#include "optim/whole.h"

namespace snug {

class ChunkMap {
 public:
  // Call inside a program; `spans` must outlive the map. Throws shape if a span leaves [0, flat) or
  // has no such group.
  ChunkMap(Context& ctx, std::span<const StateSpan> spans, int64_t flat);

  int64_t chunks() const { return chunks_; }
  int64_t elements() const { return elements_; }

  // Which span a chunk belongs to and its elements [begin, end) in the flat range. Not on plan.
  struct Chunk {
    int64_t span;
    int64_t begin, end;
  };
  Chunk chunk(int64_t c) const {
    const int64_t* first = starts_.view().as<int64_t>();
    const int64_t* last = first + spans_.size();
    const int64_t s = std::upper_bound(first, last, c) - first - 1;
    const StateSpan& span = spans_[static_cast<size_t>(s)];
    const int64_t begin = (c - first[s]) * kChunkElements;
    const int64_t end = std::min(begin + kChunkElements, span.elements);
    return {s, span.offset + begin, span.offset + end};
  }

  // f(c, chunk(c)) for every chunk c.
  template <class F>
  void for_each(int threads, F&& f) const {
    parallel_for(threads, chunks_, [&](int64_t c) { f(c, chunk(c)); });
  }

 private:
  std::span<const StateSpan> spans_;
  Tensor starts_;  // number of the first chunk of every span
  int64_t chunks_ = 0;
  int64_t elements_ = 0;
};

}  // namespace snug
