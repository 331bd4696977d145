// Some training steps of a small GPT-2 on any place, in as few words as they can be said: recorded
// on plan, run in a reserved arena. The host's numbers go in and out by Context::write and read, as
// they must where the host cannot touch a tensor.
#pragma once

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/blas/matmul_cuda.h"
#include "engine/core/rng.h"
#include "engine/kernels/kernels.h"
#include "engine/memory/step_state.h"
#include "engine/stores/plain_gradients.h"
#include "engine/stores/plain_params.h"
#include "engine/stores/plain_states.h"
#include "layers/models/family.h"
#include "layers/models/model.h"
#include "layers/models/recompute.h"
#include "optim/clip.h"
#include "optim/loss_scaling.h"
#include "optim/optimizer.h"

namespace snug::test {

inline ModelSpec gpt2_spec(int64_t layers, int64_t width, int64_t heads, int64_t T,
                           int64_t vocabulary, double dropout) {
  const nlohmann::json config = {
      {"model_type", "gpt2"},   {"n_layer", layers},     {"n_embd", width},
      {"n_head", heads},        {"n_positions", T},      {"vocab_size", vocabulary},
      {"resid_pdrop", dropout}, {"embd_pdrop", dropout}, {"attn_pdrop", dropout}};
  return find_family("gpt2", "a test").parse(config, "a test", false);
}

class Gpt2Steps {
 public:
  struct Options {
    std::string precision = "fp32", recompute = "none";
    int64_t B = 2, T = 16, head_rows = 7;
    int micro_steps = 2;
    int threads = 1;
    bool graphs = false, tf32 = false, cudnn = false;
  };

  Gpt2Steps(Place place, const ModelSpec& spec, const Options& options)
      : o_(options),
        model_(spec, parse_precision(options.precision)),
        optimizer_(make_optimizer(adamw())),
        run_(place, settings(place)) {
    root_ = schedule_.add(Name("root"), -1, true);
    load_ = schedule_.add(Name("load"), root_, false);
    first_ = schedule_.add(Name("micro_first"), root_, false);
    next_ = schedule_.add(Name("micro_next"), root_, false);
    update_ = schedule_.add(Name("update"), root_, false);
    {
      Context plan(Place::plan, settings(place));
      Residents r = make_residents(plan);
      for (const int program : {load_, first_, next_, update_}) run(plan, r, program);
    }
    schedule_.pack();
    run_.reserve(schedule_);
    r_ = make_residents(run_);
    std::vector<float> weights(static_cast<size_t>(elements()));
    const View flat{weights.data(), {elements()}, DType::f32, Place::cpu, Name("weights")};
    init_parameters(model_.params(), flat, 42, 1);
    run_.write(master(r_), weights.data());
    run(run_, r_, load_);
    state_.loss_scale =
        model_.precision().loss_scaling() ? static_cast<float>(LossScaling{}.first_scale()) : 1.0f;
    state_.clip_factor = 1.0f;
    state_.first_bad_element = -1;
  }

  // One optimizer step on the same batch each time; its mean loss.
  double step() {
    const int64_t N = o_.B * o_.T;
    state_.seed = 42;
    state_.step = state_.updates;
    state_.loss_sum = 0;
    state_.loss_tokens = 0;
    state_.inverse_tokens = 1.0f / static_cast<float>(N * o_.micro_steps);
    for (float& rate : state_.learning_rate)
      rate = 1e-3f * (1.0f + 0.25f * static_cast<float>(state_.updates));
    optimizer_->prepare_step(state_);
    std::vector<int32_t> tokens(static_cast<size_t>(N) + 1);
    for (int m = 0; m < o_.micro_steps; ++m) {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<int32_t>(mix64(static_cast<uint64_t>(m) << 32 | i) %
                                         static_cast<uint64_t>(model_.spec().V));
      run_.write(r_.tokens, tokens.data());
      run_.write(r_.targets, tokens.data() + 1);
      state_.first_sample = m * o_.B;
      run_.write(r_.state, &state_);
      r_.grads->begin(m == 0);
      run(run_, r_, m == 0 ? first_ : next_);
      run_.read(&state_, r_.state);
    }
    run(run_, r_, update_);
    run_.read(&state_, r_.state);
    ++state_.updates;
    return state_.loss_sum / static_cast<double>(state_.loss_tokens);
  }

  Context& context() { return run_; }
  int64_t planned_bytes() const { return schedule_.arena_bytes(); }
  const StepState& state() const { return state_; }
  const Model& model() const { return model_; }
  std::vector<float> gradients() { return floats(r_.grads->flat()); }  // times the loss scale
  std::vector<float> master() { return floats(master(r_)); }

 private:
  static OptimizerConfig adamw() {
    OptimizerConfig c;
    c.name = "adamw";
    c.weight_decay = 0.1;
    return c;
  }
  struct Residents {
    std::unique_ptr<PlainParamStore> params;
    Tensor master;
    std::unique_ptr<PlainGradSink> grads;
    std::unique_ptr<PlainStateStore> states;
    Tensor tokens, targets, state;
  };

  Settings settings(Place place) const {
    Settings s;
    s.threads = o_.threads;
    s.target = place;
    s.device_private = true;
    s.graphs = o_.graphs;
    s.tf32 = o_.tf32;
    s.cublaslt = cublaslt_is_there();
    s.cudnn = o_.cudnn;
    return s;
  }
  int64_t elements() const { return model_.params().flat_elements(); }
  static const View& master(const Residents& r) {
    return r.master.defined() ? r.master.view() : r.params->flat();
  }
  std::vector<float> floats(const View& from) {
    std::vector<float> v(static_cast<size_t>(from.elements()));
    run_.read(v.data(), from);
    return v;
  }

  Residents make_residents(Context& ctx) {
    Residents r;
    ctx.program(schedule_, root_, [&] {
      const ParamTable& table = model_.params();
      r.params = std::make_unique<PlainParamStore>(ctx, table, model_.precision().compute);
      if (model_.precision().separate_master())
        r.master = ctx.tensor(Name("master"), {elements()}, DType::f32, Category::master);
      r.grads = std::make_unique<PlainGradSink>(ctx, table);
      r.states = std::make_unique<PlainStateStore>(ctx, table, optimizer_->state_names());
      r.tokens = ctx.tensor(Name("tokens"), {o_.B, o_.T}, DType::i32, Category::batch);
      r.targets = ctx.tensor(Name("targets"), {o_.B * o_.T}, DType::i32, Category::batch);
      r.state = ctx.tensor(Name("step_state"), step_state_shape(), DType::u8, Category::state);
    });
    return r;
  }

  void run(Context& ctx, Residents& r, int program) {
    ctx.repeat(schedule_, program, [&] {
      if (program == load_) {
        if (r.master.defined()) cast(ctx, r.params->flat(), r.master);
      } else if (program == update_) {
        gradient_norm(ctx, r.grads->flat(), r.states->spans(), r.state);
        clip(ctx, r.state, 1.0);
        UpdateTargets t;
        t.master = master(r);
        if (r.master.defined()) t.weights = r.params->flat();
        t.gradients = r.grads->flat();
        optimizer_->update(ctx, t, *r.states, r.state);
        if (model_.precision().loss_scaling()) update_loss_scale(ctx, r.state, LossScaling{});
      } else {
        if (ctx.planning()) r.grads->begin(program == first_);
        ModelPass pass = model_.make_pass(parse_policies(o_.recompute, "none", model_));
        Runtime rt{*r.params, r.grads.get(), r.state};
        const ModelBatch batch{r.tokens, r.targets};
        Tensor x = model_.forward(ctx, rt, pass, batch, PassMode::train);
        Tensor dx = model_.loss(ctx, rt, pass, batch, o_.head_rows, std::move(x));
        model_.backward(ctx, rt, pass, std::move(dx));
      }
    });
  }

  Options o_;
  Model model_;
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  int root_ = -1, load_ = -1, first_ = -1, next_ = -1, update_ = -1;
  Context run_;
  Residents r_;  // ends before the context
  StepState state_{};
};

}  // namespace snug::test
