// Pairs, and single answers, against TRL 1.16.0 in float64 on models of two families with adapters: losses,
// every gradient, what is logged, ten AdamW steps; the same bits in every policy and place of what rests; no second model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/adapter_files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/layers/models/peft_golden.h"

namespace snug {
namespace {

using test::error_of;
using test::Golden;

struct PreferenceGolden {
  explicit PreferenceGolden(const std::string& name)
      : path(source_folder() + "/tests/golden/" + name + ".safetensors"),
        file(path),
        base(file.metadata().at("base")),
        losses(parse_json(file.metadata().at("losses"), path)) {
    if (const auto adapter = file.metadata().find("adapter_config");
        adapter != file.metadata().end()) {
      write_atomic(folder / kAdapterConfig, adapter->second);
      write_atomic(folder / kAdapterWeights, read_file(path));
      peft = resolve_peft(base.spec, read_adapter_config(folder.path()));
    }
    sequences = read("");
    if (!file.find("label")) return;
    sequences = sided(sequences);
    others = sided(read("kl_"));
  }
  struct Sequence {
    std::vector<int32_t> ids;
    std::vector<bool> answer;
    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    int32_t counted() const {
      return static_cast<int32_t>(std::count(answer.begin(), answer.end(), true));
    }
  };
  std::vector<Sequence> read(const std::string& of) const {
    const std::vector<int64_t> lengths = integers(of + "lengths"), ids = integers(of + "input_ids"),
                               completion = integers(of + "completion");
    std::vector<Sequence> list;
    size_t at = 0;
    for (const int64_t n : lengths) {
      Sequence s;
      for (int64_t i = 0; i < n; ++i, ++at) {
        s.ids.push_back(static_cast<int32_t>(ids[at]));
        s.answer.push_back(completion[at] != 0);
      }
      list.push_back(s);
    }
    return list;
  }
  // Single answers as pairs of which one is empty.
  std::vector<Sequence> sided(const std::vector<Sequence>& list) const {
    const std::vector<int64_t> label = integers("label");
    std::vector<Sequence> all(2 * list.size());
    for (size_t i = 0; i < list.size(); ++i) all[i + (label[i] != 0 ? 0 : list.size())] = list[i];
    return all;
  }
  int64_t pairs() const { return static_cast<int64_t>(sequences.size()) / 2; }
  // Trained whole, beside a reference that is it as it was.
  bool whole() const { return peft.adapters.empty(); }
  // Beside what it was as the run began: whole models, and an adapter that goes on.
  bool cached() const { return whole() || file.metadata().contains("reference"); }
  PairLoss loss(const std::string& key) const {
    const nlohmann::json& j = losses.at(key);
    PairLoss l;
    l.kind = find_pair_loss(j.at("loss_type").get<std::string>()).value();
    l.beta = j.at("beta");
    l.label_smoothing = j.value("label_smoothing", 0.0);
    l.gamma = j.value("simpo_gamma", 0.5);
    l.desirable = j.value("desirable_weight", 1.0);
    l.undesirable = j.value("undesirable_weight", 1.0);
    return l;
  }
  std::vector<int64_t> integers(const std::string& tensor) const {
    return test::integers_of(file.at(tensor));
  }
  std::vector<double> numbers(const std::string& tensor) const {
    return test::numbers_of(file.at(tensor));
  }

  std::string path;
  SafetensorsReader file;
  Golden base;
  nlohmann::json losses;
  TempFolder folder;
  PeftModel peft;
  std::vector<Sequence> sequences,
      others;  // chosen ones first, then rejected; prompts with others' answers
};

struct Options {
  const char* precision = "fp32";
  std::string recompute = "none", offload = "none";
  int64_t per_window = 2, micro = 8;
  int threads = 2;
  Place place = Place::cpu;
  uint64_t order = 0;
  bool fresh = false, streamed = false;
};

class PreferenceRun {
 public:
  static constexpr int64_t kT = 32;  // above the positions of one model

  PreferenceRun(const PreferenceGolden& g, const std::string& key, const Options& o = {})
      : golden_(g),
        model_(g.base.spec, parse_precision(o.precision), g.peft.frozen, g.peft.adapters, 1,
               g.peft.codes) {
    Decisions d;
    d.T = kT;
    d.micro_batch = d.eval_batch = o.micro;
    d.head_rows = 7;
    d.recompute = o.recompute;
    d.offload = o.offload;
    d.max_grad_norm = g.base.adamw.at("clip_norm");
    d.packing_boundaries = true;
    d.offload_params = d.offload_optimizer = o.streamed;
    d.pairs = {.per_window = o.per_window, .loss = g.loss(key), .cached = g.cached()};
    Settings settings;
    settings.threads = o.threads;
    settings.target = o.place;
    settings.emulated_order = o.order;
    Session plan(Place::plan, model_, d, g.base.optimizer(), settings);
    plan.open();
    plan.schedule().pack();
    schedule_ = plan.schedule();
    session_ =
        std::make_unique<Session>(o.place, model_, d, g.base.optimizer(), settings, &schedule_);
    session_->open();
    load_weights(session_->context(), model_, g.base.path, session_->resting());
    if (!o.fresh && !g.whole())
      load_adapter(session_->context(), model_, g.folder.path(), session_->resting(), "");
    session_->load();
    for (Rows* rows : {&own_, &others_}) {
      rows->sequences = rows == &own_ ? &g.sequences : &g.others;
      pack(*rows, o.per_window);
      rows->reference.assign(rows->sequences->size(), 0.0f);
      if (!g.cached()) continue;
      std::vector<float> found = rows->reference;
      evaluate_each(*rows, [&](int64_t pair, const float* logps, const float*) {
        std::copy_n(logps, 2, found.begin() + 2 * pair);
      });
      rows->reference = found;
    }
  }
  Session& session() { return *session_; }
  const Model& model() const { return model_; }
  const Schedule& schedule() const { return schedule_; }

  // The mean over all pairs; `sums` then holds what is logged.
  double step() {
    compare();
    return run(own_, [&](int64_t first) { session_->micro(first == 0); });
  }
  double evaluate() {
    compare();
    return run(own_, [&](int64_t) { session_->evaluate(); });
  }
  void update() {
    for (float& rate : session_->state().learning_rate)
      rate = static_cast<float>(session_->optimizer().config().learning_rate);
    session_->optimizer().prepare_step(session_->state());
    session_->update();
    ++session_->state().updates;
  }
  std::vector<float> gradients() const {
    std::vector<float> all;
    const auto* flat = session_->stores().flat_gradients().as<float>();
    for (int i = 0; i < model_.params().size(); ++i)
      if (const ParamInfo& p = model_.params()[i]; p.trainable)
        all.insert(all.end(), flat + p.offset, flat + p.offset + p.elements());
    return all;
  }
  void compare_gradients(const std::string& key, double tolerance) const {
    test::for_each_trained(model_, session_->stores().flat_gradients().as<float>(), golden_.file,
                           key + ".grad.",
                           [&](const std::string& name, const auto& got, const auto& expected) {
                             EXPECT_LT(error_of(got, expected), tolerance) << key << " " << name;
                           });
  }

  PreferenceSums sums;

 private:
  struct Rows {
    const std::vector<PreferenceGolden::Sequence>* sequences = nullptr;
    std::vector<std::vector<int64_t>> windows;
    std::vector<float> reference;  // (pairs, 2) of a model that is trained whole
    int64_t pairs() const { return std::ssize(*sequences) / 2; }
    const PreferenceGolden::Sequence& at(int64_t pair, int side) const {
      return (*sequences)[static_cast<size_t>(pair + side * pairs())];
    }
  };
  // Pairs in their order, a window taking those that fit.
  static void pack(Rows& rows, int64_t per_window) {
    int64_t room = 0;
    for (int64_t p = 0; p < rows.pairs(); ++p) {
      const int64_t n = rows.at(p, 0).size() + rows.at(p, 1).size();
      if (rows.windows.empty() || n > room || std::ssize(rows.windows.back()) == per_window) {
        rows.windows.emplace_back();
        room = kT;
      }
      rows.windows.back().push_back(p);
      room -= n;
    }
  }
  // What an evaluation says of each pair.
  template <class F>
  void evaluate_each(const Rows& rows, F&& each) {
    const int64_t B = session_->decisions().micro_batch, R = session_->decisions().pairs.per_window;
    if (rows.windows.empty()) return;
    run(rows, [&](int64_t first) {
      session_->evaluate();
      for (int64_t w = 0; w < B && first + w < std::ssize(rows.windows); ++w)
        for (size_t k = 0; k < rows.windows[static_cast<size_t>(first + w)].size(); ++k) {
          const int64_t at = 2 * (w * R + static_cast<int64_t>(k));
          each(rows.windows[static_cast<size_t>(first + w)][k],
               session_->pair_logps().as<float>() + at,
               session_->pair_reference().as<float>() + at);
        }
    });
  }
  // The mean log ratio of others' answers, at least 0.
  void compare() {
    if (!session_->decisions().pairs.compared()) return;
    double sum = 0;
    compared_ = 0;
    evaluate_each(others_, [&](int64_t, const float* logps, const float* reference) {
      for (int side = 0; side < 2; ++side) sum += double{logps[side]} - double{reference[side]};
    });
    compared_ = static_cast<float>(std::max(0.0, sum / static_cast<double>(golden_.pairs())));
  }
  template <class F>
  double run(const Rows& rows, F&& each) {
    Session& s = *session_;
    const Decisions& d = s.decisions();
    sums = {};
    s.begin_window(1, 0, golden_.pairs());
    for (int64_t first = 0; first < std::ssize(rows.windows); first += d.micro_batch) {
      for (int64_t w = 0; w < d.micro_batch; ++w)
        fill(rows, w,
             first + w < std::ssize(rows.windows) ? rows.windows[static_cast<size_t>(first + w)]
                                                  : std::vector<int64_t>());
      s.state().first_sample = first;
      each(first);
      add_preferences(s, d.micro_batch, sums);
    }
    EXPECT_EQ(s.state().loss_tokens, golden_.pairs());
    EXPECT_EQ(sums.pairs, golden_.pairs());
    return s.state().loss_sum / static_cast<double>(golden_.pairs());
  }
  void fill(const Rows& rows, int64_t w, const std::vector<int64_t>& pairs) {
    Session& s = *session_;
    const PairDecision& decision = s.decisions().pairs;
    const int64_t R = decision.per_window;
    const bool whole = facts_of(decision.loss.kind).whole;
    int64_t step_targets = 0;
    for (int64_t p = 0; p < golden_.pairs(); ++p) step_targets += rows.at(p, 0).size() - 1;
    int32_t* tokens = s.tokens().as<int32_t>() + w * kT;
    int32_t* targets = s.targets().as<int32_t>() + w * kT;
    int32_t* starts = s.document_start().as<int32_t>() + w * kT;
    int32_t* places = s.pairs().as<int32_t>() + w * R * kPairColumns;
    float* reference = golden_.cached() ? s.pair_reference().as<float>() + 2 * w * R : nullptr;
    std::fill_n(tokens, kT, 0);
    std::fill_n(targets, kT, -100);
    std::fill_n(places, R * kPairColumns, -1);
    int64_t at = 0;
    for (const int64_t p : pairs) {
      int64_t begins[3] = {at, 0, 0};
      for (int side = 0; side < 2; ++side) {
        const auto& sequence = rows.at(p, side);
        for (int64_t i = 0; i < sequence.size(); ++i) {
          const auto k = static_cast<size_t>(i);
          tokens[at + i] = sequence.ids[k];
          starts[at + i] = static_cast<int32_t>(at);
          if (i > 0 && (sequence.answer[k] || (whole && side == 0)))
            targets[at + i - 1] = sequence.ids[k];
        }
        at += sequence.size();
        begins[side + 1] = at;
      }
      for (const int64_t begin : begins) *places++ = static_cast<int32_t>(w * kT + begin);
      *places++ = rows.at(p, 0).counted();
      *places++ = rows.at(p, 1).counted();
      *places++ = static_cast<int32_t>(
          w * kT + (whole ? begins[1] - 1 - rows.at(p, 0).counted() : begins[0]));
      *places++ = static_cast<int32_t>(whole ? step_targets : 0);
      *places++ = static_cast<int32_t>(whole ? golden_.pairs() : 0);
      if (decision.compared()) std::memcpy(places - 2, &compared_, sizeof compared_);
      if (golden_.cached()) std::copy_n(rows.reference.begin() + 2 * p, 2, reference);
      reference += 2;
    }
    for (; at < kT; at += kT / 2)
      std::fill_n(starts + at, std::min(kT / 2, kT - at), static_cast<int32_t>(at));
  }

  const PreferenceGolden& golden_;
  Model model_;
  Schedule schedule_;
  std::unique_ptr<Session> session_;
  Rows own_, others_;
  float compared_ = 0;
};

double off(double got, double expected) {
  return std::fabs(got - expected) / std::max(std::fabs(expected), 1e-3);
}

class PreferenceGoldens : public testing::TestWithParam<const char*> {
 protected:
  PreferenceGolden golden_{GetParam()};
  bool single() const { return !golden_.others.empty(); }
};

TEST_P(PreferenceGoldens, LossesGradientsAndRewardsMatchTrl) {
  for (const auto& item : golden_.losses.items()) {
    const std::string& key = item.key();
    SCOPED_TRACE(key);
    const double expected = golden_.numbers(key + ".loss").front();
    for (const Options& o : {Options{}, Options{.recompute = "block", .per_window = 1, .micro = 1},
                             Options{.per_window = 3, .micro = 2}}) {
      PreferenceRun run(golden_, key, o);
      EXPECT_LT(off(run.step(), expected), 1e-5);
      run.compare_gradients(key, 1e-5);
      const MetricList means = run.sums.means(form_of(golden_.loss(key)));
      EXPECT_EQ(means.count, golden_.loss(key).kind == PairLossKind::orpo ? 9 : 6);
      for (const Metric& m : means)
        EXPECT_LT(off(m.value, golden_.numbers(fmt::format("{}.{}", key, m.name)).front()), 1e-5)
            << m.name;
      EXPECT_LT(off(run.evaluate(), expected), 1e-5);
    }
  }
}

TEST_P(PreferenceGoldens, TenAdamWStepsMatchTrl) {
  for (const auto& item : golden_.losses.items()) {
    PreferenceRun run(golden_, item.key());
    const std::vector<double> losses = golden_.numbers(item.key() + ".adamw_losses");
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_LT(off(run.step(), losses[step]), 1e-5) << item.key() << " step " << step;
      run.update();
    }
  }
}

TEST_P(PreferenceGoldens, EmulatedKernelsMatchTrl) {
  for (const char* key : {"sigmoid_smoothed", "ipo", "simpo", "orpo", "kto_weighted"}) {
    if (!golden_.losses.contains(key)) continue;
    PreferenceRun run(golden_, key, {.threads = 1, .place = Place::emu});
    EXPECT_EQ(run.session().context().resident_bytes(), run.schedule().arena_bytes());
    const std::vector<double> losses = golden_.numbers(std::string(key) + ".adamw_losses");
    for (size_t step = 0; step < 2; ++step) {
      EXPECT_LT(off(run.step(), losses[step]), 1e-5) << key << " step " << step;
      if (step == 0) run.compare_gradients(key, 1e-5);
      run.update();
    }
  }
}

// Its model is its reference, to the last bit.
TEST_P(PreferenceGoldens, ANewAdapterHasNoRewards) {
  for (const char* precision : {"fp32", "bf16"}) {
    PreferenceRun run(golden_, single() ? "kto" : "sigmoid",
                      {.precision = precision, .fresh = true});
    EXPECT_FLOAT_EQ(static_cast<float>(run.step()), single() ? 0.5f : std::log(2.0f));
    const MetricList means = run.sums.means(form_of(golden_.loss(single() ? "kto" : "sigmoid")));
    for (const Metric& m : means)
      if (!m.name.starts_with("logps")) {
        EXPECT_EQ(m.value, 0) << m.name;
      }
  }
}

TEST_P(PreferenceGoldens, EveryPolicyHasTheSameBits) {
  const char* const key = single() ? "kto" : "sigmoid";
  for (const char* precision : {"fp32", "bf16"}) {
    // As many as fit, so that room for more changes no window.
    const int64_t most = single() ? 5 : 2;
    PreferenceRun plain(golden_, key, {.precision = precision, .per_window = most});
    EXPECT_EQ(plain.session().context().resident_bytes(), plain.schedule().arena_bytes());
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    const auto same = [&](Options o, const std::string& what) {
      o.per_window = std::max(o.per_window, most);
      PreferenceRun run(golden_, key, o);
      EXPECT_EQ(run.step(), loss) << precision << " " << what;
      EXPECT_EQ(run.gradients(), gradients) << precision << " " << what;
    };
    for (const char* recompute : {"norms", "mlp", "attention", "block"})
      same({.precision = precision, .recompute = recompute, .threads = 1}, recompute);
    for (const char* offload : {"inputs", "block"})
      same({.precision = precision, .offload = offload}, offload);
    same({.precision = precision, .per_window = 6}, "room for more pairs");
  }
}

// The base and the adapters come a layer at a time, for the reference and then for the model.
TEST_P(PreferenceGoldens, AStreamedBaseHasTheSameBits) {
  for (const char* recompute : {"none", "block"}) {
    const char* const key = single() ? "kto" : "sigmoid";
    PreferenceRun plain(golden_, key, {.recompute = recompute}),
        streamed(golden_, key, {.recompute = recompute, .streamed = true});
    EXPECT_EQ(streamed.session().context().host_resident_bytes(), streamed.schedule().host_bytes());
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(plain.step(), streamed.step()) << recompute << step;
      EXPECT_EQ(plain.gradients(), streamed.gradients()) << recompute << step;
      plain.update();
      streamed.update();
    }
  }
}

// What the reference costs is a pass whose tensors are gone before the model's begin.
TEST_P(PreferenceGoldens, TheReferenceIsNoSecondModel) {
  if (single()) return;  // each loss of single answers has one
  PreferenceRun with(golden_, "sigmoid"), without(golden_, "simpo");
  const auto residents = [](PreferenceRun& run) {
    int64_t bytes = 0;
    const Schedule& s = run.schedule();
    for (const TensorRecord& t : s.at(s.find("root")).tensors) bytes += t.bytes;
    return bytes;
  };
  EXPECT_EQ(residents(with) - residents(without), 8 * 2 * 2 * 4);  // (B R, 2) f32
}

// The whole model learns, or an adapter goes on, and its reference is what an evaluation said before.
TEST(CachedReference, LossesAndGradientsMatchTrlsReferenceModel) {
  for (const char* name : {"preference_c", "preference_d", "kto_c"}) {
    const PreferenceGolden golden(name);
    for (const auto& item : golden.losses.items())
      for (const Options& o :
           {Options{}, Options{.recompute = "block", .per_window = 1, .micro = 1},
            Options{.threads = 1, .place = Place::emu}}) {
        const std::string& key = item.key();
        PreferenceRun run(golden, key, o);
        const std::vector<double> losses = golden.numbers(key + ".adamw_losses");
        const size_t steps = o.place == Place::emu ? 2 : losses.size();
        for (size_t step = 0; step < steps; ++step) {
          EXPECT_LT(off(run.step(), losses[step]), 1e-5) << key << " step " << step;
          if (step == 0 && (key == "sigmoid" || key == "kto")) run.compare_gradients(key, 1e-5);
          run.update();
        }
      }
  }
}

// What no model of TRL's comparison has: a head whose logits are capped. The gradient is the slope of the
// loss along itself; that of single answers holds the mean of others' constant, and is none.
TEST_P(PreferenceGoldens, GradientsThroughCappedLogitsAreSlopes) {
  for (const char* key : {"sigmoid_smoothed", "orpo"}) {
    if (!golden_.losses.contains(key)) continue;
    SCOPED_TRACE(key);
    PreferenceRun whole(golden_, key);
    const double uncapped = whole.step();
    PreferenceGolden capped(GetParam());
    capped.base.spec.head_softcap = 0.2f;
    PreferenceRun run(capped, key);
    EXPECT_GT(std::fabs(run.step() - uncapped), 1e-4 * std::fabs(uncapped)) << "nothing was capped";
    const int64_t n = run.model().params().trained_elements();
    std::vector<float> gradient(static_cast<size_t>(n), 0.0f);
    for (int i = 0; i < run.model().params().size(); ++i)
      if (const ParamInfo& p = run.model().params()[i]; p.trainable)
        std::copy_n(run.session().stores().flat_gradients().as<float>() + p.offset, p.elements(),
                    gradient.begin() + p.offset);
    double square = 0;
    for (const float x : gradient) square += static_cast<double>(x) * static_cast<double>(x);
    const double norm = std::sqrt(square), h = 4e-3;
    float* weights = run.session().master().as<float>();
    const std::vector<float> original(weights, weights + n);
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < gradient.size(); ++i)
        weights[i] = static_cast<float>(static_cast<double>(original[i]) +
                                        distance * static_cast<double>(gradient[i]) / norm);
      return run.step();
    };
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h) / norm, 1.0, 1e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(, PreferenceGoldens,
                         testing::Values("preference_a", "preference_b", "kto_a", "kto_b"));

}  // namespace
}  // namespace snug
