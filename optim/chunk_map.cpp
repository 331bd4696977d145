#include "optim/chunk_map.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/memory/step_state.h"

namespace snug {

ChunkMap::ChunkMap(Context& ctx, std::span<const StateSpan> spans, int64_t flat) : spans_(spans) {
  static const Name name("chunk_starts");
  const auto count = static_cast<int64_t>(spans.size());
  for (const StateSpan& s : spans)
    if (s.offset < 0 || s.elements < 0 || s.offset > flat - s.elements || s.group < 0 ||
        s.group >= kMaxGroups)
      fail(ErrorCode::shape,
           fmt::format("spans inside a flat range of {} elements, with groups below {}", flat,
                       kMaxGroups),
           fmt::format("span of parameter {}: elements {} to {}, group {}", s.param, s.offset,
                       s.offset + s.elements, s.group),
           "make the spans and the flat tensors from one parameter table");
  if (!ctx.by_kernels())  // which cut the work themselves
    starts_ = ctx.tensor(name, {std::max<int64_t>(count, 1)}, DType::i64, Category::workspace);
  for (int64_t i = 0; i < count; ++i) {
    if (!ctx.planning() && starts_.defined()) starts_.view().as<int64_t>()[i] = chunks_;
    const int64_t n = spans[static_cast<size_t>(i)].elements;
    chunks_ += ceil_div(n, kChunkElements);
    elements_ += n;
  }
}

}  // namespace snug
