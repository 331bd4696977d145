// A tiny model in a session of its own, trained on made-up tokens: what the tests of sessions,
// plans and generation share. Nothing here allocates between construction and the reading of
// results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "layers/models/family.h"
#include "tools/session/session.h"

namespace snug::test {

struct Tiny {
  int64_t V = 97, P = 32, C = 24, L = 2, H = 3, F = 96;
  bool tied = true;
  double dropout = 0.0;
};

inline ModelSpec tiny_spec(const Tiny& t) {
  const std::string p = std::to_string(t.dropout);
  const std::string map =
      "{\"type\":\"gpt2\",\"vocab_size\":" + std::to_string(t.V) +
      ",\"n_positions\":" + std::to_string(t.P) + ",\"n_embd\":" + std::to_string(t.C) +
      ",\"n_layer\":" + std::to_string(t.L) + ",\"n_head\":" + std::to_string(t.H) +
      ",\"n_inner\":" + std::to_string(t.F) +
      ",\"tie_word_embeddings\":" + (t.tied ? "true" : "false") + ",\"embd_pdrop\":" + p +
      ",\"attn_pdrop\":" + p + ",\"resid_pdrop\":" + p + "}";
  return resolve_model("", map).spec;
}

// Of a precision's name, or bf16 weights without a master.
inline Precision precision_of(std::string_view name) {
  if (name != "no_master") return parse_precision(name);
  Precision p = parse_precision("bf16");
  p.master = DType::bf16;
  return p;
}

// Everything a run is made of, on the place settings.target; the batch of a step is `global_batch`
// sequences.
struct RunOptions {
  Decisions decisions;
  OptimizerConfig optimizer;
  Settings settings;
  int64_t global_batch = 0;
  uint64_t shuffle = 0;  // other than 0: a random valid packing
};

inline Schedule plan_schedule(const Model& model, const RunOptions& o,
                              const PackOptions& pack = {}) {
  Session plan(Place::plan, model, o.decisions, o.optimizer, o.settings);
  plan.open();
  plan.schedule().pack(pack, o.shuffle);
  return plan.schedule();
}

class SessionRun {
 public:
  // Greedy orders alone: where tensors lie changes no number, and looking for the lowest layout
  // took a third of the time of tests that do little else.
  SessionRun(const Model& model, const RunOptions& o)
      : SessionRun(model, o, plan_schedule(model, o, {.seconds = 0})) {}
  SessionRun(const Model& model, const RunOptions& o, const Schedule& schedule)
      : model_(model), options_(o) {
    session_ = std::make_unique<Session>(o.settings.target, model, o.decisions, o.optimizer,
                                         o.settings, &schedule);
    session_->open();
    fill_weights();
  }

  Session& session() { return *session_; }
  // The place of a sequence in the random key; tests of the key set it false and see the
  // difference.
  bool number_samples = true;
  bool documents = true;  // false: every sequence is one, with packing_boundaries too

  // Weights larger than an initialisation's, so that every part of the model matters.
  void fill_weights() {
    const View master = session_->master();
    std::vector<float> own(static_cast<size_t>(master.dtype == DType::f32 ? 0 : master.elements()));
    View all = master;
    if (!own.empty()) all = View{own.data(), master.shape, DType::f32, Place::cpu, master.name};
    init_parameters(model_.params(), all, 11, options_.settings.threads);
    float* w = all.as<float>();
    for (int i = 0; i < model_.params().size(); ++i) {
      const ParamInfo& p = model_.params()[i];
      for (int64_t j = 0; j < p.real_elements(); ++j) {
        const auto at = static_cast<uint64_t>(p.offset + j);
        const float u = uniform_from(static_cast<uint32_t>(mix64(at * 977 + 5))) - 0.5f;
        w[p.offset + j] = w[p.offset + j] * 4.0f + 0.2f * u;
      }
    }
    for (size_t i = 0; i < own.size(); ++i) master.as<bf16>()[i] = from_f32<bf16>(own[i]);
    session_->load();
  }

  int32_t token(int64_t step, int64_t sample, int64_t t) const {
    const auto key = static_cast<uint64_t>((step * 1000 + sample) * 1000 + t);
    return static_cast<int32_t>(mix64(key) % static_cast<uint64_t>(model_.spec().V));
  }
  // With packing_boundaries about one token in five begins a document.
  bool begins(int64_t step, int64_t sample, int64_t t) const {
    const auto key = static_cast<uint64_t>((step * 1000 + sample) * 1000 + t);
    return options_.decisions.packing_boundaries && documents && t > 0 &&
           mix64(key ^ 0xaaaau) % 5 == 0;
  }
  // The next token; about one in seven is not trained, nor are the first ones of documents.
  int32_t target(int64_t step, int64_t sample, int64_t t) const {
    if (begins(step, sample, t + 1)) return -100;
    const auto key = static_cast<uint64_t>((step * 1000 + sample) * 1000 + t);
    return mix64(key ^ 0x5555u) % 7 == 0 ? -100 : token(step, sample, t + 1);
  }
  int64_t trained(int64_t step, int64_t samples) const {
    int64_t n = 0;
    for (int64_t s = 0; s < samples; ++s)
      for (int64_t t = 0; t < options_.decisions.T; ++t) n += target(step, s, t) != -100;
    return n;
  }
  // Sequences [first, first + B) of a batch of `samples`; what is beyond is padding.
  void fill(int64_t step, int64_t first, int64_t B, int64_t samples) {
    const int64_t T = options_.decisions.T;
    int32_t* tokens = session_->tokens().as<int32_t>();
    int32_t* targets = session_->targets().as<int32_t>();
    int32_t* starts = session_->document_start_or_null();
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < T; ++t) {
        if (starts)
          starts[b * T + t] = begins(step, first + b, t) ? static_cast<int32_t>(t)
                              : t > 0                    ? starts[b * T + t - 1]
                                                         : 0;
        const bool real = first + b < samples;
        tokens[b * T + t] = real ? token(step, first + b, t) : 0;
        targets[b * T + t] = real ? target(step, first + b, t) : -100;
      }
  }

  // Forward and backward of a whole window; the mean loss.
  double gradients_of(int64_t step) {
    const int64_t M = options_.decisions.micro_batch, G = options_.global_batch;
    session_->begin_window(3, step, trained(step, G));
    prepare();
    for (int64_t first = 0; first < G; first += M) {
      fill(step, first, M, G);
      session_->state().first_sample = number_samples ? first : 0;
      session_->micro(first == 0);
    }
    return session_->state().loss_sum / static_cast<double>(session_->state().loss_tokens);
  }
  // With update_in_backward the micro-steps update already.
  void prepare() {
    for (float& rate : session_->state().learning_rate)
      rate = static_cast<float>(options_.optimizer.learning_rate);
    session_->optimizer().prepare_step(session_->state());
  }
  void update() {
    prepare();
    session_->update();
    EXPECT_EQ(session_->state().found_inf, 0);
    ++session_->state().updates;
  }
  double train_step(int64_t step) {
    const double loss = gradients_of(step);
    update();
    return loss;
  }
  double evaluate() {
    const int64_t B = options_.decisions.eval_batch;
    session_->begin_window(0, 0, 0);
    session_->state().first_sample = 0;
    fill(999, 0, B, B);
    session_->evaluate();
    return session_->state().loss_sum / static_cast<double>(session_->state().loss_tokens);
  }

  std::vector<float> real(const View& flat) const {
    std::vector<float> out;
    for (int i = 0; i < model_.params().size(); ++i) {
      const ParamInfo& p = model_.params()[i];
      for (int64_t j = p.offset; j < p.offset + p.real_elements(); ++j)
        out.push_back(flat.dtype == DType::bf16 ? to_f32(flat.as<bf16>()[j]) : flat.as<float>()[j]);
    }
    return out;
  }
  std::vector<float> gradients() const {  // wherever they rest
    std::vector<float> out;
    for (int i = 0; i < model_.params().size(); ++i) {
      const View g = session_->gradient(i);
      for (int64_t j = 0; j < model_.params()[i].real_elements(); ++j)
        out.push_back(g.dtype == DType::bf16 ? to_f32(g.as<bf16>()[j]) : g.as<float>()[j]);
    }
    return out;
  }
  std::vector<float> weights() { return real(session_->master()); }
  // Of all states, as they rest, without the scales of codes.
  std::vector<uint8_t> stored_states() {
    std::vector<uint8_t> all;
    const StateStore& store = session_->optimizer_state();
    for (int k = 0; k < store.states(); ++k)
      for (const StateSpan& span : store.spans()) {
        const RestForm form = store.form(k, span);
        std::vector<uint8_t> own(static_cast<size_t>(form.value_bytes(store.numbers(k, span))));
        store.read_stored(session_->context(), own.data(), k, span.offset, false,
                          std::ssize(own) / size_of(form.dtype));
        all.insert(all.end(), own.begin(), own.end());
      }
    return all;
  }

 private:
  const Model& model_;
  RunOptions options_;
  std::unique_ptr<Session> session_;
};

// Layers enough that what rests with the host comes, is used and is overwritten, and a batch of six.
inline constexpr Tiny kFiveLayers{.V = 97, .P = 32, .C = 32, .L = 5, .H = 2, .F = 128};
inline RunOptions options_of_six(int64_t micro, double clip) {
  RunOptions o;
  o.decisions.T = 16;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = 16;
  o.decisions.max_grad_norm = clip;
  o.decisions.loss_scaling.init_scale = 64;
  o.optimizer.learning_rate = 1e-2;
  o.optimizer.weight_decay = 0.1;
  o.global_batch = 6;
  return o;
}

// What some steps of training leave behind. Equal means equal bits.
struct Trace {
  std::vector<double> losses;
  std::vector<float> gradients, weights;  // gradients of every step, one after the other

  bool finite() const {
    for (const double x : losses)
      if (!std::isfinite(x)) return false;
    for (const float x : gradients)
      if (!std::isfinite(x)) return false;
    for (const float x : weights)
      if (!std::isfinite(x)) return false;
    return !losses.empty() && !gradients.empty() && !weights.empty();
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline testing::AssertionResult same_bits(const Trace& a, const Trace& b) {
  if (!same_bits(a.losses, b.losses)) return testing::AssertionFailure() << "losses differ";
  if (!same_bits(a.gradients, b.gradients))
    return testing::AssertionFailure() << "gradients differ";
  if (!same_bits(a.weights, b.weights)) return testing::AssertionFailure() << "weights differ";
  return testing::AssertionSuccess();
}

inline Trace trace_of(const Model& model, const RunOptions& o, int64_t steps = 3) {
  SessionRun run(model, o);
  Trace t;
  for (int64_t step = 0; step < steps; ++step) {
    t.losses.push_back(run.gradients_of(step));
    // With update_in_backward they are gone by now, and the weights tell.
    const std::vector<float> g = o.decisions.update_in_backward ? run.weights() : run.gradients();
    t.gradients.insert(t.gradients.end(), g.begin(), g.end());
    run.update();
  }
  if (o.decisions.eval_batch > 0) t.losses.push_back(run.evaluate());
  t.weights = run.weights();
  return t;
}

// Runs the first step with every wait of a program left out in turn, and tells how many were
// refused.
struct MissingWaits {
  int64_t waits = 0, refused = 0;
};
inline MissingWaits without_each_wait(const Model& model, const RunOptions& o,
                                      const Schedule& whole, const char* program) {
  const int index = whole.find(program);
  MissingWaits m;
  for (size_t i = 0; i < whole.at(index).syncs.size(); ++i) {
    if (whole.at(index).syncs[i].kind != SyncRecord::Kind::wait) continue;
    ++m.waits;
    Schedule less = whole;
    auto& syncs = less.at(index).syncs;
    syncs.erase(syncs.begin() + static_cast<std::ptrdiff_t>(i));
    SessionRun run(model, o, less);
    try {
      run.train_step(0);
    } catch (const Error& e) {
      m.refused += e.code() == ErrorCode::internal;
    }
  }
  return m;
}

}  // namespace snug::test
