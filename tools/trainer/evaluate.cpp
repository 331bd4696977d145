#include "tools/trainer/evaluate.h"

#include <algorithm>

#include "engine/memory/context.h"

namespace snug {

EvalResult evaluate_samples(Session& session, const RunData& data, int64_t samples) {
  const double started = monotonic_seconds();
  const int64_t B = session.decisions().eval_batch, T = session.decisions().T;
  int32_t* tokens = session.tokens().as<int32_t>();
  int32_t* targets = session.targets().as<int32_t>();
  session.begin_window(0, 0, 0);
  for (int64_t at = 0; at < samples; at += B) {
    const int64_t count = std::min(B, samples - at);
    data.fill_eval(at, count, tokens, targets);
    std::fill(tokens + count * T, tokens + B * T, 0);
    std::fill(targets + count * T, targets + B * T, -100);
    session.evaluate();
  }
  EvalResult result;
  result.tokens = session.state().loss_tokens;
  result.loss =
      result.tokens > 0 ? session.state().loss_sum / static_cast<double>(result.tokens) : 0.0;
  result.seconds = monotonic_seconds() - started;
  return result;
}

}  // namespace snug
