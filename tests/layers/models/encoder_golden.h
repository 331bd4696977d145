// A fixture encoder_<name> of tests/golden and a training session on its rows, packed into windows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/layers/models/gpt2_golden.h"

namespace snug::test {

struct EncoderGolden {
  explicit EncoderGolden(const std::string& name)
      : path(source_folder() + "/tests/golden/encoder_" + name + ".safetensors"), file(path) {
    const nlohmann::json config = parse_json(file.metadata().at("config"), path);
    spec = find_family(config.at("model_type").get<std::string>(), path).parse(config, path, false);
    adamw = parse_json(file.metadata().at("adamw"), path);
    tokens = integers("input_ids");
    lengths = integers("row_lengths");
    types = file.find("token_type_ids") ? integers("token_type_ids")
                                        : std::vector<int64_t>(tokens.size(), 0);
    of_tokens = spec.head != HeadKind::sequence_classification;
    classes = of_tokens || spec.problem == Problem::single_label;
    if (classes)
      labels = integers("labels");
    else
      values = numbers("labels");
    trained = classes ? static_cast<int64_t>(labels.size()) -
                            std::count(labels.begin(), labels.end(), -100)
                      : static_cast<int64_t>(lengths.size());
  }
  std::vector<int64_t> integers(const std::string& tensor) const {
    return integers_of(file.at(tensor));
  }
  std::vector<double> numbers(const std::string& tensor) const {
    return numbers_of(file.at(tensor));
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
  int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

  std::string path;
  SafetensorsReader file;
  ModelSpec spec;
  nlohmann::json adamw;
  std::vector<int64_t> tokens, types, lengths, labels;
  std::vector<double> values;
  bool of_tokens = false, classes = true;
  int64_t trained = 0;
};

// How rows lie in windows of T tokens, `micro` windows a micro-batch.
struct Packing {
  int64_t T = 0, micro = 1;
  int64_t head_rows = 7;  // chunks that do not divide the rows
  bool whole = false;     // windows run as planned; else only what of them is in use
};

class EncoderRun {
 public:
  EncoderRun(const EncoderGolden& g, const char* precision, const std::string& recompute,
             Packing how, int threads = 2, Place place = Place::cpu, uint64_t order = 0,
             const std::string& offload = "none", const PeftModel& peft = {})
      : golden(g),
        model(g.spec, parse_precision(precision), peft.frozen, peft.adapters, 1, peft.codes),
        packing(how) {
    place_rows();
    Decisions d;
    d.T = packing.T;
    d.micro_batch = d.eval_batch = packing.micro;
    d.head_rows = packing.head_rows;
    d.recompute = recompute;
    d.offload = offload;
    d.max_grad_norm = g.adamw.at("clip_norm");
    d.packing_boundaries = true;
    d.rows_per_window = places_;
    // Of few rows with large weights: at 65536 gradients of b overflow f16, and training would halve.
    d.loss_scaling.init_scale = 1024;
    OptimizerConfig c;
    c.name = "adamw";
    c.learning_rate = g.adamw.at("lr");
    c.adam_beta1 = g.adamw.at("betas")[0];
    c.adam_beta2 = g.adamw.at("betas")[1];
    c.adam_epsilon = g.adamw.at("eps");
    c.weight_decay = g.adamw.at("weight_decay");
    Settings settings;
    settings.threads = threads;
    settings.target = place;
    settings.emulated_order = order;
    Session plan(Place::plan, model, d, c, settings);
    plan.open();
    plan.schedule().pack();
    schedule = plan.schedule();
    session = std::make_unique<Session>(place, model, d, c, settings, &schedule);
    session->open();
    load_weights(session->context(), model, g.path, session->resting());
    session->load();
  }

  // The mean loss; gradients with `train`.
  double step(bool train = true) {
    session->begin_window(1, 0, golden.trained);
    for (int64_t first = 0; first < windows_; first += packing.micro) {
      fill(first, train);
      session->state().first_sample = first;
      // What a window's first micro-step does not assign would stay.
      if (train && first == 0 && session->context().host_reads())
        std::fill_n(session->stores().flat_gradients().as<float>(),
                    model.params().trained_elements(), 123.0f);
      if (train)
        session->micro(first == 0);
      else
        session->evaluate();
    }
    EXPECT_EQ(session->state().loss_tokens, golden.trained);
    return session->state().loss_sum / static_cast<double>(session->state().loss_tokens);
  }
  void update() {
    for (float& rate : session->state().learning_rate)
      rate = static_cast<float>(session->optimizer().config().learning_rate);
    session->optimizer().prepare_step(session->state());
    session->update();
    ++session->state().updates;
  }
  // max|difference| / max|reference| of one parameter's gradient, the largest of its pieces.
  double gradient_error(int param) const {
    const ParamInfo& p = model.params()[param];
    const float* got = session->stores().flat_gradients().as<float>() + p.offset;
    const double scale = static_cast<double>(session->state().loss_scale);
    double largest = 1e-30, worst = 0;
    int64_t at = 0;
    for (const FilePiece& piece : find_family(model.spec().family, "").pieces(p, model.spec())) {
      std::string name = piece.names.front();
      for (const std::string& other : piece.names)
        if (golden.file.find("grad." + other)) name = other;
      for (const double expected : golden.numbers("grad." + name)) {
        const double value = static_cast<double>(got[at++]) / scale;
        worst = std::max(worst, std::fabs(value - expected));
        largest = std::max(largest, std::fabs(expected));
      }
    }
    EXPECT_EQ(at, p.real_elements());
    for (; at < p.elements(); ++at) EXPECT_EQ(got[at], 0.0f) << "padding";
    return worst / largest;
  }
  // Of all parameters; the gaps between them are zero.
  std::vector<float> gradients() const {
    const auto* flat = session->stores().flat_gradients().as<float>();
    std::vector<float> all(static_cast<size_t>(model.params().flat_elements()), 0.0f);
    for (int i = 0; i < model.params().size(); ++i) {
      const ParamInfo& p = model.params()[i];
      if (!p.trainable) continue;
      std::copy(flat + p.offset, flat + p.offset + p.elements(), all.begin() + p.offset);
    }
    return all;
  }

  const EncoderGolden& golden;
  Model model;
  Packing packing;  // `whole` may change from one step to the next
  Schedule schedule;
  std::unique_ptr<Session> session;

 private:
  // Rows in their order, each where it fits behind the last.
  void place_rows() {
    int64_t used = packing.T, places = 0, begin = 0;
    for (const int64_t length : golden.lengths) {
      if (used + length > packing.T) {
        ++windows_;
        used = places = 0;
      }
      where_.push_back({windows_ - 1, used, begin});
      used += length;
      begin += length;
      places += golden.of_tokens ? length : 1;
      places_ = std::max(places_, places);
    }
  }
  Session::Extent extent(int64_t first, bool train) const {
    int64_t windows = 1, tokens = 1;
    for (size_t r = 0; r < where_.size(); ++r) {
      const int64_t w = where_[r].window - first;
      if (w < 0 || w >= packing.micro) continue;
      windows = std::max(windows, w + 1);
      tokens = std::max(tokens, where_[r].at + golden.lengths[r]);
    }
    return session->fit(!train, windows, tokens);
  }
  void fill(int64_t first, bool train) {
    int64_t T = packing.T;
    if (!packing.whole) {
      const Session::Extent in_use = extent(first, train);
      session->use(in_use);
      T = in_use.tokens;
    }
    const int64_t B = packing.micro, K = model.spec().label_count();
    int32_t* tokens = session->tokens().as<int32_t>();
    int32_t* starts = session->document_start_or_null();
    int32_t* types =
        session->token_types().defined() ? session->token_types().as<int32_t>() : nullptr;
    int32_t* index = session->head_index().as<int32_t>();
    std::fill(tokens, tokens + B * T, 0);
    if (types) std::fill(types, types + B * T, 0);
    std::fill(index, index + B * places_, -1);
    if (golden.classes)
      std::fill_n(session->head_targets().as<int32_t>(), B * places_, -100);
    else
      std::fill_n(session->head_targets().as<float>(), B * places_ * K, std::nanf(""));
    std::vector<int64_t> used(static_cast<size_t>(B), 0), places(static_cast<size_t>(B), 0);
    for (size_t r = 0; r < where_.size(); ++r) {
      const auto [window, at, begin] = where_[r];
      const int64_t w = window - first;
      if (w < 0 || w >= B) continue;
      for (int64_t t = 0; t < golden.lengths[r]; ++t) {
        const auto from = static_cast<size_t>(begin + t);
        tokens[w * T + at + t] = static_cast<int32_t>(golden.tokens[from]);
        if (types) types[w * T + at + t] = static_cast<int32_t>(golden.types[from]);
        starts[w * T + at + t] = static_cast<int32_t>(at);
        if (golden.of_tokens && golden.labels[from] != -100) {
          const int64_t place = w * places_ + places[static_cast<size_t>(w)]++;
          index[place] = static_cast<int32_t>(w * T + at + t);
          session->head_targets().as<int32_t>()[place] = static_cast<int32_t>(golden.labels[from]);
        }
      }
      used[static_cast<size_t>(w)] = at + golden.lengths[r];
      if (golden.of_tokens) continue;
      const int64_t place = w * places_ + places[static_cast<size_t>(w)]++;
      index[place] = static_cast<int32_t>(w * T + at);
      if (golden.classes)
        session->head_targets().as<int32_t>()[place] = static_cast<int32_t>(golden.labels[r]);
      else
        for (int64_t k = 0; k < K; ++k)
          session->head_targets().as<float>()[place * K + k] = static_cast<float>(
              golden.values[r * static_cast<size_t>(K) + static_cast<size_t>(k)]);
    }
    for (int64_t w = 0; w < B; ++w)
      for (int64_t t = used[static_cast<size_t>(w)]; t < T; ++t)
        starts[w * T + t] = static_cast<int32_t>(used[static_cast<size_t>(w)]);
  }

  struct Place3 {
    int64_t window, at, begin;
  };
  int64_t windows_ = 0, places_ = 1;
  std::vector<Place3> where_;
};

}  // namespace snug::test
