// A fixture of tests/golden and a training session on it, as the tests of GPT-2 run them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "layers/models/peft.h"
#include "layers/models/weights.h"
#include "tests/support/folders.h"
#include "tools/session/session.h"

namespace snug::test {

// A tensor of a fixture: I64, or F64 and F32.
inline std::vector<int64_t> integers_of(const SafeTensor& t) {
  std::vector<int64_t> v(static_cast<size_t>(t.elements()));
  std::memcpy(v.data(), t.data, static_cast<size_t>(t.bytes));
  return v;
}
inline std::vector<double> numbers_of(const SafeTensor& t) {
  std::vector<double> v(static_cast<size_t>(t.elements()));
  if (t.dtype == SafeDType::F64) {
    std::memcpy(v.data(), t.data, static_cast<size_t>(t.bytes));
  } else {
    std::vector<float> f(v.size());
    convert(t.dtype, t.data, t.elements(), f.data());
    std::copy(f.begin(), f.end(), v.begin());
  }
  return v;
}

// One fixture: the model, its batch and what transformers says about them.
struct Golden {
  explicit Golden(const std::string& name, double dropout = 0)
      : path(source_folder() + "/tests/golden/" + name + ".safetensors"), file(path) {
    nlohmann::json config = parse_json(file.metadata().at("config"), path);
    type = config.value("model_type", "gpt2");
    if (type == "gpt2")
      config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = dropout;
    spec = find_family(type, path).parse(config, path, false);
    adamw = parse_json(file.metadata().at("adamw"), path);
    B = file.at("input_ids").shape[0];
    T = file.at("input_ids").shape[1];
    for (const int64_t target : integers("targets")) trained += target != -100;
    if (file.find("document_start")) starts = integers("document_start");
  }
  std::vector<int64_t> integers(const std::string& tensor) const {
    return integers_of(file.at(tensor));
  }
  std::vector<double> numbers(const std::string& tensor) const {
    return numbers_of(file.at(tensor));
  }
  std::string name_of(const ParamInfo& p) const {
    return find_family(type, path).pieces(p, spec).front().names.front();
  }
  // Of a parameter, all its tensors one after the other.
  std::vector<double> gradient_of(const ParamInfo& p) const {
    std::vector<double> all;
    for (const FilePiece& piece : find_family(type, path).pieces(p, spec)) {
      const std::vector<double> one = numbers("grad." + piece.names.front());
      if (!piece.groups.any()) {
        all.insert(all.end(), one.begin(), one.end());
        continue;
      }
      all.resize(one.size());
      const size_t width = one.size() / static_cast<size_t>(piece.rows);
      for (int64_t row = 0; row < piece.rows; ++row)
        std::copy_n(one.begin() + row * static_cast<int64_t>(width), width,
                    all.begin() + piece.groups.ours(row) * static_cast<int64_t>(width));
    }
    return all;
  }
  OptimizerConfig optimizer() const {
    OptimizerConfig c;
    c.name = "adamw";
    c.learning_rate = adamw.at("lr");
    c.adam_beta1 = adamw.at("betas")[0];
    c.adam_beta2 = adamw.at("betas")[1];
    c.adam_epsilon = adamw.at("eps");
    c.weight_decay = adamw.at("weight_decay");
    return c;
  }

  std::string path, type;
  SafetensorsReader file;
  ModelSpec spec;
  nlohmann::json adamw;
  std::vector<int64_t> starts;  // of documents kept apart; empty: a sequence is one
  int64_t B = 0, T = 0, trained = 0;
};

// A planned, opened training session on the CPU, or on the place and in the order of blocks and
// threads given, with the fixture's weights and batch.
struct GoldenRun {
  GoldenRun(const Golden& g, const char* precision, const std::string& recompute, int64_t micro,
            int threads = 2, Place place = Place::cpu, uint64_t order = 0,
            const std::function<void(Decisions&)>& change = {}, const PeftModel& peft = {})
      : golden(g),
        model(g.spec, parse_precision(precision), peft.frozen, peft.adapters, 1, peft.codes) {
    Decisions d;
    d.T = model.front().count + g.T;
    d.micro_batch = micro;
    d.head_rows = 7;  // chunks that do not divide the rows
    d.recompute = recompute;
    d.max_grad_norm = g.adamw.at("clip_norm");
    d.packing_boundaries = !g.starts.empty();
    if (change) change(d);
    Settings settings;
    settings.threads = threads;
    settings.target = place;
    settings.emulated_order = order;
    Session plan(Place::plan, model, d, g.optimizer(), settings);
    plan.open();
    plan.schedule().pack();
    schedule = plan.schedule();
    session = std::make_unique<Session>(place, model, d, g.optimizer(), settings, &schedule);
    session->open();
    load_weights(session->context(), model, g.path, session->resting());
    session->load();
  }

  // Forward and backward of the whole batch, in micro-batches; returns the mean loss.
  double step_gradients(uint64_t seed = 1, int64_t step = 0) {
    const auto tokens = golden.integers("input_ids"), targets = golden.integers("targets");
    if (model.front().count > 0) return step_in_front(seed, step);
    const int64_t M = session->decisions().micro_batch, T = golden.T;
    session->begin_window(seed, step, golden.trained);
    for (int64_t first = 0; first < golden.B; first += M) {
      for (int64_t i = 0; i < M * T; ++i) {
        const bool real = first + i / T < golden.B;
        const auto at = static_cast<size_t>(first * T + i);
        session->tokens().as<int32_t>()[i] = real ? static_cast<int32_t>(tokens[at]) : 0;
        session->targets().as<int32_t>()[i] = real ? static_cast<int32_t>(targets[at]) : -100;
        if (int32_t* starts = session->document_start_or_null())
          starts[i] = real ? static_cast<int32_t>(golden.starts[at]) : 0;
      }
      session->state().first_sample = first;
      session->micro(first == 0);
    }
    EXPECT_EQ(session->state().loss_tokens, golden.trained);
    return session->state().loss_sum / static_cast<double>(session->state().loss_tokens);
  }
  // Behind virtual tokens, the last of which is asked for the first token unless they are a prefix.
  double step_in_front(uint64_t seed, int64_t step) {
    const auto own = golden.integers("input_ids"), next = golden.integers("targets");
    const FrontTokens front = model.front();
    const int64_t M = session->decisions().micro_batch, T = golden.T, n = front.count;
    const int64_t asked = golden.trained + (front.asked ? golden.B : 0);
    session->begin_window(seed, step, asked);
    for (int64_t first = 0; first < golden.B; first += M) {
      for (int64_t row = 0; row < M; ++row) {
        int32_t* const tokens = session->tokens().as<int32_t>() + row * (n + T);
        int32_t* const targets = session->targets().as<int32_t>() + row * (n + T);
        const bool real = first + row < golden.B;
        std::fill_n(targets, n, -100);
        front.write(tokens);
        for (int64_t t = 0; t < T; ++t) {
          const auto at = static_cast<size_t>((first + row) * T + t);
          tokens[n + t] = real ? static_cast<int32_t>(own[at]) : 0;
          targets[n + t] = real ? static_cast<int32_t>(next[at]) : -100;
        }
        if (real && front.asked) targets[n - 1] = tokens[n];
      }
      session->state().first_sample = first;
      session->micro(first == 0);
    }
    EXPECT_EQ(session->state().loss_tokens, asked);
    return session->state().loss_sum / static_cast<double>(session->state().loss_tokens);
  }
  void update() {
    for (float& rate : session->state().learning_rate)
      rate = static_cast<float>(session->optimizer().config().learning_rate);
    session->optimizer().prepare_step(session->state());
    session->update();
    ++session->state().updates;
  }
  // As the published file lays them out.
  std::vector<double> gradient(int param) const {
    const ParamInfo& p = model.params()[param];
    const float* got = session->stores().flat_gradients().as<float>() + p.offset;
    const bool transposed = p.transposed_in_file && p.shape.rank() == 2;
    const double scale = static_cast<double>(session->state().loss_scale);
    std::vector<double> values;
    for (int64_t k = 0; k < p.real_elements(); ++k) {
      const int64_t at = transposed ? (k % p.shape[0]) * p.shape[1] + k / p.shape[0] : k;
      values.push_back(static_cast<double>(got[at]) / scale);
    }
    return values;
  }
  // max|difference| / max|reference| of one parameter's gradient.
  double gradient_error(int param) const {
    const std::vector<double> got = gradient(param);
    const std::vector<double> expected = golden.gradient_of(model.params()[param]);
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::fabs(got.at(i) - expected[i]));
      largest = std::max(largest, std::fabs(expected[i]));
    }
    return worst / largest;
  }

  const Golden& golden;
  Model model;
  Schedule schedule;
  std::unique_ptr<Session> session;
};

}  // namespace snug::test
