#include "tools/infer/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "engine/core/error.h"
#include "tools/infer/flag_words.h"

namespace snug {
namespace {

// Rows that are packed together: enough to leave few places empty, few enough to hold answers of.
constexpr int64_t kRowsOfStep = 1024;

using Scores = std::vector<std::pair<int32_t, double>>;

// Of the first `count` logits; the `top` likeliest, all in order if that is 0.
Scores softmax(std::span<const float> logits, int64_t top) {
  const auto most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - most);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (top > 0) {
    const auto end = ids.begin() + std::min<int64_t>(top, static_cast<int64_t>(ids.size()));
    std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    ids.erase(end, ids.end());
  }
  Scores scores;
  scores.reserve(ids.size());
  for (const int32_t id : ids)
    scores.emplace_back(
        id, std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) - most) / sum);
  return scores;
}

Scores scores_of(const ModelSpec& spec, std::span<const float> logits, int64_t top) {
  if (spec.head == HeadKind::masked_lm) return softmax(logits, top);
  if (spec.head == HeadKind::token_classification || spec.problem == Problem::single_label)
    return softmax(logits, 0);
  const bool several = spec.problem == Problem::multi_label;
  Scores scores;
  for (size_t k = 0; k < logits.size(); ++k) {
    const auto z = static_cast<double>(logits[k]);
    scores.emplace_back(static_cast<int32_t>(k), several ? 1 / (1 + std::exp(-z)) : z);
  }
  return scores;
}

}  // namespace

const std::pair<int32_t, double>& Answer::best() const {
  return *std::max_element(scores.begin(), scores.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

RowInference open_rows(InferenceOptions options, const RunConfig& config, int64_t length,
                       RowUse use) {
  use.train = false;
  RowInference r;
  r.in = open_inference(options, [&](const ModelSpec& spec,
                                     const std::optional<Tokenizer>& tokenizer,
                                     InferenceOptions& o) {
    const int64_t most = length > 0 ? length : std::min<int64_t>(1024, spec.P);
    if (most > spec.P)
      fail(ErrorCode::usage, fmt::format("--max-length of 1 to {}, the model's positions", spec.P),
           std::to_string(most), fmt::format("--max-length {}", spec.P));
    ModelSpec read = spec;
    use.front = o.front;
    use.room = {.budget = o.host_budget, .key = "--memory ", .set = o.memory > 0};
    with_flags([&] {
      r.rows = std::make_shared<RowData>(config, tokenizer, read, true, most, kRowsOfStep, use);
    });
    o.T = r.rows->T() - o.front.count;
    o.eval_batch = std::min(o.eval_batch, r.rows->eval_windows(0));
    o.packing_boundaries = true;
    o.rows_per_window = r.rows->rows_per_window();
    o.pairs = r.rows->pairs();
    o.token_logits = !use.labels && spec.head == HeadKind::masked_lm;
  });
  return r;
}

void answer_rows(RowInference& r, int64_t top,
                 const std::function<void(int64_t row, const std::vector<Answer>&)>& each) {
  Session& session = *r.in.session;
  const ModelSpec& spec = session.model().spec();
  const auto count =
      static_cast<size_t>(spec.head == HeadKind::masked_lm ? spec.V : spec.label_count());
  const int64_t stride = session.head_logits().shape[1];
  const int64_t B = session.decisions().eval_batch;
  session.begin_window(0, 0, 0);
  int64_t first_row = 0;
  for (int64_t e = 0; e < r.rows->eval_steps(); ++e) {
    const int64_t rows = std::min(kRowsOfStep, r.rows->eval_rows() - first_row);
    std::vector<std::vector<Answer>> answers(static_cast<size_t>(rows));
    for (int64_t first = 0; first < r.rows->eval_windows(e); first += B) {
      const std::vector<RowData::Place>& places = r.rows->fill_places(e, first, session);
      session.evaluate();
      const auto* logits = session.head_logits().as<float>();
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i].row < 0) continue;
        const std::span<const float> of_place(logits + static_cast<int64_t>(i) * stride, count);
        if (!std::all_of(of_place.begin(), of_place.end(),
                         [](float z) { return std::isfinite(z); }))
          fail(ErrorCode::data, "finite logits of the model",
               fmt::format("others for row {}", places[i].row),
               "--precision fp32; if it stays, its weights are not finite: take an earlier "
               "checkpoint");
        answers[static_cast<size_t>(places[i].row - first_row)].push_back(
            {places[i].place, scores_of(spec, of_place, top)});
      }
    }
    for (int64_t i = 0; i < rows; ++i) each(first_row + i, answers[static_cast<size_t>(i)]);
    first_row += rows;
  }
}

}  // namespace snug
