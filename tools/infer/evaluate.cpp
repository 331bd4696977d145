#include "tools/infer/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/memory/context.h"
#include "tools/setup/row_data.h"

namespace snug {

namespace {

EvalResult result_of(Session& session, double started) {
  EvalResult result;
  result.tokens = session.state().loss_tokens;
  // prepare_data (run_data.h) refused what has none.
  require(result.tokens > 0, "a target to evaluate");
  result.loss = session.state().loss_sum / static_cast<double>(result.tokens);
  result.seconds = monotonic_seconds() - started;
  return result;
}

}  // namespace

std::string perplexity_text(double perplexity, int decimals) {
  if (std::isnan(perplexity)) return "nan";
  if (std::isinf(perplexity)) return "above 1.8e+308";
  return perplexity < 1e9 ? fmt::format("{:.{}f}", perplexity, decimals)
                          : fmt::format("{:.3e}", perplexity);
}

namespace {

// The logits of an evaluation program, row by row.
void add_rows(const Session& session, Metrics& metrics) {
  const int64_t K = session.model().spec().label_count();
  const int64_t rows = session.decisions().eval_batch * session.decisions().rows_per_window;
  const auto* logits = session.head_logits().as<float>();
  const View& targets = session.head_targets();
  for (int64_t i = 0; i < rows; ++i) {
    const std::span<const float> row(logits + i * K, static_cast<size_t>(K));
    if (targets.dtype == DType::i32)
      metrics.add(row, targets.as<int32_t>()[i]);
    else
      metrics.add(row, std::span<const float>(targets.as<float>() + i * K, static_cast<size_t>(K)));
  }
}

EvalResult evaluate_rows(Session& session, RowData& rows, Metrics* metrics) {
  const double started = monotonic_seconds();
  const bool pairs = session.decisions().pairs.any();
  PreferenceSums preferences;
  session.begin_window(0, 0, 0);
  if (metrics) metrics->clear();
  rows.compare(true, 0, session);
  for (int64_t e = 0; e < rows.eval_steps(); ++e)
    for (int64_t first = 0; first < rows.eval_windows(e); first += session.decisions().eval_batch) {
      rows.fill_eval(e, first, session);
      session.evaluate();
      if (metrics && !pairs && session.head_logits().defined()) add_rows(session, *metrics);
      if (pairs) add_preferences(session, session.decisions().eval_batch, preferences);
    }
  EvalResult result = result_of(session, started);
  if (metrics && !pairs) result.metrics = metrics->values();
  if (pairs) result.metrics = preferences.means(session.decisions().pairs.form());
  return result;
}

}  // namespace

EvalResult evaluate_samples(Session& session, const RunData& data, int64_t samples,
                            Metrics* metrics) {
  if (data.rows) return evaluate_rows(session, *data.rows, metrics);
  const double started = monotonic_seconds();
  const int64_t B = session.decisions().eval_batch, T = session.decisions().T;
  int32_t* tokens = session.tokens().as<int32_t>();
  int32_t* targets = session.targets().as<int32_t>();
  int32_t* starts = session.document_start_or_null();
  session.begin_window(0, 0, 0);
  for (int64_t at = 0; at < samples; at += B) {
    const int64_t count = std::min(B, samples - at);
    data.fill_eval(at, count, tokens, targets, starts);
    if (starts) std::fill(starts + count * T, starts + B * T, 0);
    std::fill(tokens + count * T, tokens + B * T, 0);
    std::fill(targets + count * T, targets + B * T, -100);
    session.evaluate();
  }
  return result_of(session, started);
}

EvalResult evaluate_strided(Session& session, const WindowDataset& data, int64_t stride,
                            int64_t max_windows) {
  const double started = monotonic_seconds();
  const FrontTokens front = session.model().front();
  const int64_t B = session.decisions().eval_batch, all = session.decisions().T;
  const int64_t T = all - front.count;
  int32_t* tokens = session.tokens().as<int32_t>();
  int32_t* targets = session.targets().as<int32_t>();
  session.begin_window(0, 0, 0);
  int64_t rows = 0, windows = 0;
  const auto run = [&] {
    if (rows > 0) session.evaluate();
    rows = 0;
  };
  for (int64_t i = 0; i < data.files(); ++i) {
    const TokenFile& file = data.file(i);
    int64_t scored = 1;  // tokens before this one are; the first never is
    for (int64_t begin = 0; scored < file.size(); begin += stride) {
      if (max_windows > 0 && windows == max_windows) break;
      ++windows;
      if (rows == 0) {
        std::fill(tokens, tokens + B * all, 0);
        std::fill(targets, targets + B * all, -100);
      }
      const int64_t end = std::min(begin + T, file.size());
      const int64_t row = rows * all + front.count;
      file.copy(begin, end - begin, front.write(tokens + rows * all));
      file.verify();
      for (int64_t at = std::max(scored, begin + 1); at < end; ++at)
        targets[row + at - 1 - begin] = tokens[row + at - begin];
      scored = end;
      if (++rows == B) run();
    }
  }
  run();
  return result_of(session, started);
}

}  // namespace snug
