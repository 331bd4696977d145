// Pairs against TRL 1.16.0 in float64 on models of two families with adapters: losses, every gradient, what
// is logged, ten AdamW steps; the same bits in every policy and place of what rests; no second model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
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
      : path(source_folder() + "/tests/golden/preference_" + name + ".safetensors"),
        file(path),
        base(file.metadata().at("base")),
        losses(parse_json(file.metadata().at("losses"), path)) {
    if (const auto adapter = file.metadata().find("adapter_config");
        adapter != file.metadata().end()) {
      write_atomic(folder / kAdapterConfig, adapter->second);
      write_atomic(folder / kAdapterWeights, read_file(path));
      peft = resolve_peft(base.spec, read_adapter_config(folder.path()));
    }
    const std::vector<int64_t> lengths = integers("lengths"), ids = integers("input_ids"),
                               completion = integers("completion");
    size_t at = 0;
    for (const int64_t n : lengths) {
      Sequence s;
      for (int64_t i = 0; i < n; ++i, ++at) {
        s.ids.push_back(static_cast<int32_t>(ids[at]));
        s.answer.push_back(completion[at] != 0);
      }
      sequences.push_back(s);
    }
  }
  struct Sequence {
    std::vector<int32_t> ids;
    std::vector<bool> answer;
    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    int32_t counted() const {
      return static_cast<int32_t>(std::count(answer.begin(), answer.end(), true));
    }
  };
  int64_t pairs() const { return static_cast<int64_t>(sequences.size()) / 2; }
  // Trained whole, beside a reference that is it as it was.
  bool whole() const { return peft.adapters.empty(); }
  // The chosen ones first, then the rejected.
  const Sequence& sequence(int64_t pair, int side) const {
    return sequences[static_cast<size_t>(pair + side * pairs())];
  }
  PairLoss loss(const std::string& key) const {
    const nlohmann::json& j = losses.at(key);
    PairLoss l;
    l.kind = find_pair_loss(j.at("loss_type").get<std::string>()).value();
    l.beta = j.at("beta");
    l.label_smoothing = j.at("label_smoothing");
    l.gamma = j.at("simpo_gamma");
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
  std::vector<Sequence> sequences;
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
    d.pairs = {.per_window = o.per_window, .loss = g.loss(key), .cached = g.whole()};
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
    pack(o.per_window);
    reference_.assign(static_cast<size_t>(2 * g.pairs()), 0.0f);
    if (!g.whole()) return;
    std::vector<float> found = reference_;
    run([&](int64_t first) {
      session_->evaluate();
      for (int64_t w = 0; w < d.micro_batch && first + w < std::ssize(windows_); ++w)
        for (size_t k = 0; k < windows_[static_cast<size_t>(first + w)].size(); ++k)
          std::copy_n(
              session_->pair_logps().as<float>() + 2 * (w * o.per_window + static_cast<int64_t>(k)),
              2, found.begin() + 2 * windows_[static_cast<size_t>(first + w)][k]);
    });
    reference_ = found;
  }
  Session& session() { return *session_; }
  const Model& model() const { return model_; }
  const Schedule& schedule() const { return schedule_; }

  // The mean over all pairs; `sums` then holds what is logged.
  double step() {
    return run([&](int64_t first) { session_->micro(first == 0); });
  }
  double evaluate() {
    return run([&](int64_t) { session_->evaluate(); });
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
  // Pairs in their order, a window taking those that fit.
  void pack(int64_t per_window) {
    int64_t room = 0;
    for (int64_t p = 0; p < golden_.pairs(); ++p) {
      const int64_t n = golden_.sequence(p, 0).size() + golden_.sequence(p, 1).size();
      if (windows_.empty() || n > room || std::ssize(windows_.back()) == per_window) {
        windows_.emplace_back();
        room = kT;
      }
      windows_.back().push_back(p);
      room -= n;
    }
  }
  template <class F>
  double run(F&& each) {
    Session& s = *session_;
    const Decisions& d = s.decisions();
    sums = {};
    s.begin_window(1, 0, golden_.pairs());
    for (int64_t first = 0; first < std::ssize(windows_); first += d.micro_batch) {
      for (int64_t w = 0; w < d.micro_batch; ++w)
        fill(w, first + w < std::ssize(windows_) ? windows_[static_cast<size_t>(first + w)]
                                                 : std::vector<int64_t>());
      s.state().first_sample = first;
      each(first);
      add_preferences(s, d.micro_batch, sums);
    }
    EXPECT_EQ(s.state().loss_tokens, golden_.pairs());
    EXPECT_EQ(sums.pairs, golden_.pairs());
    return s.state().loss_sum / static_cast<double>(golden_.pairs());
  }
  void fill(int64_t w, const std::vector<int64_t>& pairs) {
    Session& s = *session_;
    const PairDecision& decision = s.decisions().pairs;
    const int64_t R = decision.per_window;
    const bool whole = facts_of(decision.loss.kind).whole;
    int64_t step_targets = 0;
    for (int64_t p = 0; p < golden_.pairs(); ++p) step_targets += golden_.sequence(p, 0).size() - 1;
    int32_t* tokens = s.tokens().as<int32_t>() + w * kT;
    int32_t* targets = s.targets().as<int32_t>() + w * kT;
    int32_t* starts = s.document_start().as<int32_t>() + w * kT;
    int32_t* places = s.pairs().as<int32_t>() + w * R * kPairColumns;
    float* reference = golden_.whole() ? s.pair_reference().as<float>() + 2 * w * R : nullptr;
    std::fill_n(tokens, kT, 0);
    std::fill_n(targets, kT, -100);
    std::fill_n(places, R * kPairColumns, -1);
    int64_t at = 0;
    for (const int64_t p : pairs) {
      int64_t begins[3] = {at, 0, 0};
      for (int side = 0; side < 2; ++side) {
        const auto& sequence = golden_.sequence(p, side);
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
      *places++ = golden_.sequence(p, 0).counted();
      *places++ = golden_.sequence(p, 1).counted();
      *places++ = static_cast<int32_t>(
          w * kT + (whole ? begins[1] - 1 - golden_.sequence(p, 0).counted() : begins[0]));
      *places++ = static_cast<int32_t>(whole ? step_targets : 0);
      *places++ = static_cast<int32_t>(whole ? golden_.pairs() : 0);
      if (golden_.whole()) std::copy_n(reference_.begin() + 2 * p, 2, reference);
      reference += 2;
    }
    for (; at < kT; at += kT / 2)
      std::fill_n(starts + at, std::min(kT / 2, kT - at), static_cast<int32_t>(at));
  }

  const PreferenceGolden& golden_;
  Model model_;
  Schedule schedule_;
  std::unique_ptr<Session> session_;
  std::vector<std::vector<int64_t>> windows_;
  std::vector<float> reference_;  // (pairs, 2) of a model that is trained whole
};

double off(double got, double expected) {
  return std::fabs(got - expected) / std::max(std::fabs(expected), 1e-3);
}

class PreferenceGoldens : public testing::TestWithParam<const char*> {
 protected:
  PreferenceGolden golden_{GetParam()};
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
  for (const char* key : {"sigmoid_smoothed", "ipo", "simpo", "orpo"}) {
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
    PreferenceRun run(golden_, "sigmoid", {.precision = precision, .fresh = true});
    EXPECT_FLOAT_EQ(static_cast<float>(run.step()), std::log(2.0f));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(run.sums.sums[i], 0);
  }
}

TEST_P(PreferenceGoldens, EveryPolicyHasTheSameBits) {
  for (const char* precision : {"fp32", "bf16"}) {
    PreferenceRun plain(golden_, "sigmoid", {.precision = precision});
    EXPECT_EQ(plain.session().context().resident_bytes(), plain.schedule().arena_bytes());
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    const auto same = [&](const Options& o, const std::string& what) {
      PreferenceRun run(golden_, "sigmoid", o);
      EXPECT_EQ(run.step(), loss) << precision << " " << what;
      EXPECT_EQ(run.gradients(), gradients) << precision << " " << what;
    };
    for (const char* recompute : {"norms", "mlp", "attention", "block"})
      same({.precision = precision, .recompute = recompute, .threads = 1}, recompute);
    for (const char* offload : {"inputs", "block"})
      same({.precision = precision, .offload = offload}, offload);
    same({.precision = precision, .per_window = 5}, "room for more pairs");
  }
}

// The base and the adapters come a layer at a time, for the reference and then for the model.
TEST_P(PreferenceGoldens, AStreamedBaseHasTheSameBits) {
  for (const char* recompute : {"none", "block"}) {
    PreferenceRun plain(golden_, "sigmoid", {.recompute = recompute}),
        streamed(golden_, "sigmoid", {.recompute = recompute, .streamed = true});
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
  PreferenceRun with(golden_, "sigmoid"), without(golden_, "simpo");
  const auto residents = [](PreferenceRun& run) {
    int64_t bytes = 0;
    const Schedule& s = run.schedule();
    for (const TensorRecord& t : s.at(s.find("root")).tensors) bytes += t.bytes;
    return bytes;
  };
  EXPECT_EQ(residents(with) - residents(without), 8 * 2 * 2 * 4);  // (B R, 2) f32
}

// The whole model learns, and its reference is what an evaluation said before.
TEST(CachedReference, LossesAndGradientsMatchTrlsReferenceModel) {
  const PreferenceGolden golden("c");
  for (const auto& item : golden.losses.items())
    for (const Options& o : {Options{}, Options{.recompute = "block", .per_window = 1, .micro = 1},
                             Options{.threads = 1, .place = Place::emu}}) {
      const std::string& key = item.key();
      PreferenceRun run(golden, key, o);
      const std::vector<double> losses = golden.numbers(key + ".adamw_losses");
      const size_t steps = o.place == Place::emu ? 2 : losses.size();
      for (size_t step = 0; step < steps; ++step) {
        EXPECT_LT(off(run.step(), losses[step]), 1e-5) << key << " step " << step;
        if (step == 0 && key == "sigmoid") run.compare_gradients(key, 1e-5);
        run.update();
      }
    }
}

INSTANTIATE_TEST_SUITE_P(, PreferenceGoldens, testing::Values("a", "b"));

}  // namespace
}  // namespace snug
