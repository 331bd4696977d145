#include "layers/ops/document_start.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace snug {

void expect_document_start(const View& starts, int64_t B, int64_t T) {
  expect(starts, "document_start", {{"B", B}, {"T", T}});
  expect_dtype(starts, "document_start", {DType::i32});
}

void check_document_start(const View& starts, int64_t B, int64_t T) {
  const auto* p = starts.as<int32_t>();
  for (int64_t b = 0; b < B; ++b, p += T)
    for (int64_t t = 0; t < T; ++t)
      if (p[t] != t && (t == 0 || p[t] != p[t - 1]))
        fail(ErrorCode::data,
             fmt::format("document_start {} at position {} of sequence {}",
                         t == 0 ? "0" : fmt::format("{} or {}", p[t - 1], t), t, b),
             fmt::format("{}", p[t]),
             "give each position the position of its document's first token");
}

}  // namespace snug
