// Reward models against TRL 1.16.0 in float64 on models of two families: rewards, losses, every gradient, what
// is logged, ten AdamW steps; the same bits in every policy; folders as transformers reads them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/data/row_packing.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/adapter_files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/layers/models/peft_golden.h"

namespace snug {
namespace {

using test::error_of;

struct RewardGolden {
  explicit RewardGolden(const std::string& name)
      : path(source_folder() + "/tests/golden/reward_" + name + ".safetensors"),
        file(path),
        config(parse_json(file.metadata().at("config"), path)),
        settings(parse_json(file.metadata().at("settings"), path)),
        adamw(parse_json(file.metadata().at("adamw"), path)),
        margins(numbers("margins")),
        spec(find_family(config.at("model_type").get<std::string>(), path)
                 .parse(config, path, false)) {
    const std::vector<int64_t> lengths = test::integers_of(file.at("lengths")),
                               ids = test::integers_of(file.at("input_ids"));
    size_t at = 0;
    for (const int64_t n : lengths) {
      rows.emplace_back();
      for (int64_t i = 0; i < n; ++i) rows.back().push_back(static_cast<int32_t>(ids[at++]));
    }
  }
  std::vector<double> numbers(const std::string& tensor) const {
    return test::numbers_of(file.at(tensor));
  }
  int64_t pairs() const { return std::ssize(rows) / 2; }
  const std::vector<int32_t>& row(int64_t pair, int64_t side) const {
    return rows[static_cast<size_t>(pair + side * pairs())];
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

  std::string path;
  SafetensorsReader file;
  nlohmann::json config, settings, adamw;
  std::vector<double> margins;
  ModelSpec spec;
  std::vector<std::vector<int32_t>> rows;  // the chosen ones first
};

struct RewardOptions {
  const char* precision = "fp32";
  std::string recompute = "none", offload = "none";
  int64_t per_window = 2, micro = 8;
  int threads = 2;
  Place place = Place::cpu;
};

class RewardRun {
 public:
  static constexpr int64_t kT = 32;

  RewardRun(const RewardGolden& g, const std::string& key, const RewardOptions& o = {})
      : golden_(g),
        with_margins_(g.settings.at(key).at("margins")),
        model_(g.spec, parse_precision(o.precision)) {
    Decisions d;
    d.T = kT;
    d.micro_batch = d.eval_batch = o.micro;
    d.head_rows = 7;
    d.recompute = o.recompute;
    d.offload = o.offload;
    d.max_grad_norm = g.adamw.at("clip_norm");
    d.packing_boundaries = true;
    d.rows_per_window = 2 * o.per_window;
    d.pairs = {.per_window = o.per_window,
               .loss = {},
               .reward = RewardLoss{g.settings.at(key).at("center_rewards_coefficient")}};
    Settings settings;
    settings.threads = o.threads;
    settings.target = o.place;
    Session plan(Place::plan, model_, d, g.optimizer(), settings);
    plan.open();
    plan.schedule().pack();
    schedule_ = plan.schedule();
    session_ = std::make_unique<Session>(o.place, model_, d, g.optimizer(), settings, &schedule_);
    session_->open();
    load_weights(session_->context(), model_, g.path, session_->resting());
    session_->load();
    for (int64_t p = 0; p < g.pairs(); p += o.per_window) {
      windows_.emplace_back();
      for (int64_t i = p; i < std::min(p + o.per_window, g.pairs()); ++i)
        windows_.back().push_back(i);
    }
  }
  Session& session() { return *session_; }
  const Schedule& schedule() const { return schedule_; }
  const Model& model() const { return model_; }

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
  // Of every tensor, as files lay them out.
  void compare_gradients() const {
    const auto* flat = session_->stores().flat_gradients().as<float>();
    for (int i = 0; i < model_.params().size(); ++i) {
      const ParamInfo& p = model_.params()[i];
      const bool turned = p.transposed_in_file && p.shape.rank() == 2;
      int64_t first = 0;
      for (const FilePiece& piece : saved_pieces(model_, i)) {
        const std::vector<double> expected = golden_.numbers("grad." + piece.names.front());
        ASSERT_FALSE(piece.groups.any());
        std::vector<double> got;
        for (int64_t k = 0; k < std::ssize(expected); ++k) {
          const int64_t at = turned ? (k % p.shape[0]) * p.shape[1] + k / p.shape[0] : first + k;
          got.push_back(static_cast<double>(flat[p.offset + at]));
        }
        first += std::ssize(expected);
        EXPECT_LT(error_of(got, expected), 1e-5) << piece.names.front();
      }
    }
  }
  std::vector<float> gradients() const {
    const View& flat = session_->stores().flat_gradients();
    return {flat.as<float>(), flat.as<float>() + flat.elements()};
  }

  PreferenceSums sums;
  std::vector<double> rewards;  // of every row that was seen, in order of pairs

 private:
  template <class F>
  double run(F&& each) {
    Session& s = *session_;
    const Decisions& d = s.decisions();
    sums = {};
    rewards.clear();
    s.begin_window(1, 0, golden_.pairs());
    for (int64_t first = 0; first < std::ssize(windows_); first += d.micro_batch) {
      for (int64_t w = 0; w < d.micro_batch; ++w)
        fill(w, first + w < std::ssize(windows_) ? windows_[static_cast<size_t>(first + w)]
                                                 : std::vector<int64_t>());
      s.state().first_sample = first;
      each(first);
      add_preferences(s, d.micro_batch, sums);
      for (int64_t i = 0; i < s.head_index().elements(); ++i)
        if (s.head_index().as<int32_t>()[i] >= 0) rewards.push_back(s.head_logits().as<float>()[i]);
    }
    EXPECT_EQ(s.state().loss_tokens, golden_.pairs());
    EXPECT_EQ(sums.pairs, golden_.pairs());
    return s.state().loss_sum / static_cast<double>(golden_.pairs());
  }
  void fill(int64_t w, const std::vector<int64_t>& pairs) {
    Session& s = *session_;
    const int64_t R = s.decisions().rows_per_window;
    int32_t* tokens = s.tokens().as<int32_t>() + w * kT;
    int32_t* starts = s.document_start().as<int32_t>() + w * kT;
    int32_t* index = s.head_index().as<int32_t>() + w * R;
    float* targets = s.head_targets().as<float>() + w * R;
    std::fill_n(tokens, kT, 0);
    std::fill_n(index, R, -1);
    std::fill_n(targets, R, std::nanf(""));
    int64_t at = 0;
    for (const int64_t p : pairs)
      for (int64_t side = 0; side < 2; ++side) {
        const std::vector<int32_t>& row = golden_.row(p, side);
        const auto n = std::ssize(row);
        std::copy(row.begin(), row.end(), tokens + at);
        std::fill_n(starts + at, n, static_cast<int32_t>(at));
        *index++ = static_cast<int32_t>(
            w * kT + at +
            last_token_of(row.data(), n, static_cast<int32_t>(golden_.spec.pad_token)));
        *targets++ =
            with_margins_ ? static_cast<float>(golden_.margins[static_cast<size_t>(p)]) : 0.0f;
        at += n;
      }
    for (; at < kT; at += kT / 2)
      std::fill_n(starts + at, std::min(kT / 2, kT - at), static_cast<int32_t>(at));
  }

  const RewardGolden& golden_;
  bool with_margins_;
  Model model_;
  Schedule schedule_;
  std::unique_ptr<Session> session_;
  std::vector<std::vector<int64_t>> windows_;
};

double reward_off(double got, double expected) {
  return std::fabs(got - expected) / std::max(std::fabs(expected), 1e-3);
}

class RewardGoldens : public testing::TestWithParam<const char*> {
 protected:
  RewardGolden golden_{GetParam()};
};

TEST_P(RewardGoldens, LossesGradientsAndRewardsMatchTrl) {
  for (const auto& item : golden_.settings.items()) {
    const std::string& key = item.key();
    SCOPED_TRACE(key);
    const double expected = golden_.numbers(key + ".loss").front();
    for (const RewardOptions& o :
         {RewardOptions{}, RewardOptions{.recompute = "block", .per_window = 1, .micro = 1},
          RewardOptions{.per_window = 2, .micro = 2, .threads = 1}}) {
      RewardRun run(golden_, key, o);
      EXPECT_LT(reward_off(run.step(), expected), 1e-5);
      if (key == "centered") run.compare_gradients();
      const MetricList means = run.sums.means(PreferenceForm::rewards);
      EXPECT_EQ(means.count, 5);
      for (const Metric& m : means)
        EXPECT_LT(reward_off(m.value, golden_.numbers(fmt::format("{}.{}", key, m.name)).front()),
                  1e-5)
            << m.name;
      EXPECT_LT(reward_off(run.evaluate(), expected), 1e-5);
      std::vector<double> rewards;
      for (int64_t p = 0; p < golden_.pairs(); ++p)
        for (const int64_t side : {0, 1})
          rewards.push_back(
              golden_.numbers("rewards")[static_cast<size_t>(p + side * golden_.pairs())]);
      ASSERT_EQ(run.rewards.size(), rewards.size());
      EXPECT_LT(error_of(run.rewards, rewards), 1e-5);
    }
  }
}

TEST_P(RewardGoldens, TenAdamWStepsMatchTrl) {
  for (const auto& item : golden_.settings.items()) {
    RewardRun run(golden_, item.key());
    const std::vector<double> losses = golden_.numbers(item.key() + ".adamw_losses");
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_LT(reward_off(run.step(), losses[step]), 1e-5) << item.key() << " step " << step;
      run.update();
    }
  }
}

TEST_P(RewardGoldens, EmulatedKernelsMatchTrl) {
  RewardRun run(golden_, "centered", {.threads = 1, .place = Place::emu});
  EXPECT_EQ(run.session().context().resident_bytes(), run.schedule().arena_bytes());
  const std::vector<double> losses = golden_.numbers("centered.adamw_losses");
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_LT(reward_off(run.step(), losses[step]), 1e-5) << step;
    EXPECT_EQ(run.sums.pairs, golden_.pairs());
    EXPECT_LT(reward_off(run.sums.means(PreferenceForm::rewards).at("margin"),
                         step == 0 ? golden_.numbers("centered.margin").front()
                                   : run.sums.means(PreferenceForm::rewards).at("margin")),
              1e-5);
    run.update();
  }
}

TEST_P(RewardGoldens, EveryPolicyHasTheSameBits) {
  for (const char* precision : {"fp32", "bf16"}) {
    RewardRun plain(golden_, "centered", {.precision = precision});
    EXPECT_EQ(plain.session().context().resident_bytes(), plain.schedule().arena_bytes());
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    for (const RewardOptions& o :
         {RewardOptions{.precision = precision, .recompute = "block", .threads = 1},
          RewardOptions{.precision = precision, .recompute = "attention"},
          RewardOptions{.precision = precision, .offload = "block"}}) {
      RewardRun run(golden_, "centered", o);
      EXPECT_EQ(run.step(), loss) << precision << " " << o.recompute << " " << o.offload;
      EXPECT_EQ(run.gradients(), gradients) << precision << " " << o.recompute << " " << o.offload;
    }
  }
}

// The config that is written is the one that was read, and names the class.
TEST_P(RewardGoldens, TheConfigIsThatOfTransformers) {
  const TempFolder folder;
  const Model model(golden_.spec, parse_precision("fp32"));
  save_model_config(model, folder.path(), DType::f32);
  const nlohmann::json written = parse_json(read_file(folder / "config.json"), "config.json");
  for (const char* key : {"architectures", "model_type", "pad_token_id", "id2label", "label2id"})
    EXPECT_EQ(written.at(key), golden_.config.at(key)) << key;
  const ModelSpec again = resolve_model(folder.path(), "").spec;
  EXPECT_EQ(again.head, HeadKind::sequence_classification);
  EXPECT_EQ(again.labels, golden_.spec.labels);
  EXPECT_EQ(again.pad_token, 0);
  EXPECT_EQ(again.problem, Problem::regression);
}

INSTANTIATE_TEST_SUITE_P(, RewardGoldens, testing::Values("a", "b"));

}  // namespace
}  // namespace snug
