#include "tools/session/warm_up.h"

#include <algorithm>
#include <limits>

namespace snug {

void warm_up(Session& session) {
  const Decisions& d = session.decisions();
  const StepState saved = session.state();
  const auto fill = [](const View& v) {
    if (v.defined()) std::fill_n(v.as<int32_t>(), v.elements(), 0);
  };
  if (session.pairs().defined())  // none, of no sequence
    std::fill_n(session.pairs().as<int32_t>(), session.pairs().elements(), -1);
  const int times = session.context().settings().graphs ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    if (d.micro_batch > 0) {
      fill(session.tokens());
      fill(session.targets());
      fill(session.document_start());
      session.begin_window(1, 0, 1);
      session.state().inverse_tokens = std::numeric_limits<float>::quiet_NaN();
      session.optimizer().prepare_step(session.state());
      session.micro(true, d.update_in_backward);
      if (!d.update_in_backward) session.micro(false, true);  // whose window is one micro-step
      session.update();
    }
    if (d.eval_batch > 0) {
      fill(session.tokens());
      fill(session.targets());
      fill(session.document_start());
      session.evaluate();
    }
    if (d.kv_length > 0) {
      fill(session.prompt());
      fill(session.next_token());
      session.state().position = 0;
      session.prefill();
      session.state().position = 0;
      session.decode();
    }
  }
  session.state() = saved;
}

void warm_up_gpu([[maybe_unused]] Session& session, [[maybe_unused]] ComputesOn& on,
                 [[maybe_unused]] bool autotune) {
  if constexpr (kCudaBuilt) {
    cublaslt_use(on.algorithms);
    cublaslt_tune(autotune && on.algorithms.empty());
    warm_up(session);
    cublaslt_tune(false);
    on.algorithms = cublaslt_choices();
  }
}

}  // namespace snug
