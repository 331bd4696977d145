// A tiny GPT that learns to count, trained by an optimizer that Snug does not have: a step of equal
// size against the sign of an average of gradients. Its state is planned like everything else.
#include <fmt/format.h>

#include "layers/models/family.h"
#include "optim/elementwise.h"
#include "tools/session/session.h"

class SignOfAverage final : public snug::ElementwiseOptimizer {
 public:
  SignOfAverage() : ElementwiseOptimizer({.name = "sign"}, {"average"}, "sign_update", 5) {}

 protected:
  void update_block(const snug::ElementStep& step, const snug::ElementBlock& b) const override {
    const auto rate = static_cast<float>(step.learning_rate);
    for (int64_t i = 0; i < b.n; ++i) {
      float& average = b.states[0][i];
      average = 0.9f * average + 0.1f * b.gradient[i] * step.gradient_factor;
      b.parameter[i] -= rate * static_cast<float>((average > 0) - (average < 0));
    }
  }
};

int main() try {
  using namespace snug;
  constexpr int64_t B = 4, T = 16;
  const ModelSource gpt = resolve_model("", R"({"type": "gpt2", "vocab_size": 50, "n_embd": 32,
      "n_positions": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0})");
  const Model model(gpt.spec, parse_precision("fp32"));
  const Decisions decisions{.T = T, .micro_batch = B, .head_rows = B * T, .recompute = "block"};

  // Without storage, to know what it takes; then in an arena of exactly that.
  Session plan(Place::plan, model, decisions, std::make_unique<SignOfAverage>(), {});
  plan.open();
  plan.schedule().pack();
  Session run(Place::cpu, model, decisions, std::make_unique<SignOfAverage>(), {},
              &plan.schedule());
  run.open();
  fmt::print("planned {} B, resident {} B\n", plan.schedule().arena_bytes(),
             run.context().resident_bytes());
  init_parameters(model.params(), run.master(), /*seed=*/1, /*threads=*/1);
  run.load();

  for (int64_t step = 0; step < 200; ++step) {
    for (int64_t i = 0; i < B * T; ++i) {
      const auto number = static_cast<int32_t>(step * 7 + i / T * 11 + i % T);
      run.tokens().as<int32_t>()[i] = number % 50;
      run.targets().as<int32_t>()[i] = (number + 1) % 50;
    }
    run.begin_window(1, step, B * T);
    for (float& rate : run.state().learning_rate) rate = 2e-3f;
    run.micro(true);
    run.update();
    ++run.state().updates;
    if (step % 50 == 0) fmt::print("step {:3}  loss {:.4f}\n", step, run.state().loss_sum / B / T);
  }
} catch (const std::exception& e) {
  fmt::print("{}\n", e.what());
  return 1;
}
