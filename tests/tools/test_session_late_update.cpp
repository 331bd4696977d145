// Updates by the host one step late: what they compute has two truths from outside, AdamW and momentum
// written down here in double over gradients taken at the older weights, and for every optimizer, form of
// states and dtype the resident session with two copies of the weights, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/core/units.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/costs/matrix_pieces.h"
#include "tools/planner/residence.h"

namespace snug {
namespace {

const test::Tiny kModel = test::kFiveLayers;

test::RunOptions late(test::RunOptions o) {
  o.decisions.offload_optimizer = o.decisions.offload_gradients = true;
  o.decisions.update_on_host = o.decisions.delayed_update = true;
  return o;
}

std::vector<uint8_t> bytes_of(const View& v) {
  const auto* first = static_cast<const uint8_t*>(v.data);
  return {first, first + v.bytes()};
}

void put(const View& v, const std::vector<uint8_t>& bytes) {
  std::memcpy(v.data, bytes.data(), bytes.size());
}

// As a trainer goes on: a step that was skipped is not counted.
void update(test::SessionRun& run) {
  run.prepare();
  run.session().update();
  if (!run.session().state().found_inf) ++run.session().state().updates;
}

// Every second step of a run with loss scaling has a gradient that is not finite.
double gradients_of(test::SessionRun& run, int64_t step) {
  const bool scales = run.session().model().precision().loss_scaling();
  const float scale = run.session().state().loss_scale;
  if (scales && step % 2 == 1) run.session().state().loss_scale = 0x1p100f;
  const double loss = run.gradients_of(step);
  if (scales && step % 2 == 1) run.session().state().loss_scale = scale;
  return loss;
}

void note_step(test::SessionRun& run, double loss, test::Trace& t) {
  const StepState& s = run.session().state();
  t.losses.insert(t.losses.end(),
                  {loss, s.grad_square_sum, s.clip_factor, static_cast<double>(s.found_inf)});
}

void note_end(test::SessionRun& run, test::Trace& t) {
  t.weights = run.weights();
  t.gradients = {1.0f};  // never empty
  for (const uint8_t byte : run.stored_states()) t.gradients.push_back(static_cast<float>(byte));
}

test::Trace late_steps(const Model& model, const test::RunOptions& o, int64_t steps) {
  test::SessionRun run(model, late(o));
  test::Trace t;
  for (int64_t step = 0; step < steps; ++step) {
    const double loss = gradients_of(run, step);
    update(run);
    note_step(run, loss, t);
  }
  run.session().apply_late();
  note_end(run, t);
  return t;
}

// The same by a session that knows of no delay: its parameters are the older ones for a step's gradient,
// and the latest for its update.
test::Trace two_copies(const Model& model, const test::RunOptions& o, int64_t steps) {
  test::SessionRun run(model, o);
  Session& s = run.session();
  test::Trace t;
  std::vector<uint8_t> latest = bytes_of(s.master()), before = latest;
  for (int64_t step = 0; step < steps; ++step) {
    put(s.master(), before);
    s.load();
    const double loss = gradients_of(run, step);
    put(s.master(), latest);
    before = latest;
    update(run);
    latest = bytes_of(s.master());
    note_step(run, loss, t);
  }
  note_end(run, t);
  return t;
}

struct Case {
  const char *precision, *optimizer;
  StateForm state = StateForm::f32;
  bool tied = true;
  int64_t micro = 2;
  double clip = 0.5;
  OptimArgs args = {};
};

std::vector<Case> cases() {
  return {{"fp32", "adamw"},
          {"bf16", "adamw", StateForm::f32, false, 6},
          {"fp16", "adamw", StateForm::f32, true, 3},
          {"fp16", "sgd", StateForm::f32, false, 2, 0},
          {"fp32", "adamw", StateForm::codes8},
          {"bf16", "adamw", StateForm::codes4, false},
          {"no_master", "adamw", StateForm::bf16, true, 6},
          {"no_master", "adamw", StateForm::bf16, false, 2, 0.5, {{"use_kahan_summation", 1}}},
          {"bf16", "lion", StateForm::f32, true, 6, 0},
          {"fp32", "lamb"},
          {"bf16", "adafactor", StateForm::f32, false},
          {"fp32", "ademamix", StateForm::f32, true, 6},
          {"bf16", "adam_mini"},
          {"fp32", "adamw", StateForm::f32, true, 2, 0, {{"percentile_clipping", 50}}}};
}

std::string name_of(const Case& c) {
  return fmt::format("{} {} {}, micro-batch {}, clip {}", c.precision, c.optimizer,
                     to_string(c.state), c.micro, c.clip);
}

Model model_of(const Case& c) {
  test::Tiny tiny = kModel;
  tiny.tied = c.tied;
  tiny.C = 48, tiny.F = 192;  // matrices of more than kLeastCoded elements
  return Model(test::tiny_spec(tiny), test::precision_of(c.precision));
}

test::RunOptions options_of(const Case& c, const Model& model) {
  test::RunOptions o = test::options_of_six(c.micro, c.clip);
  o.optimizer.name = c.optimizer;
  o.optimizer.pieces = matrix_pieces(model);
  o.optimizer.state = c.state;
  o.optimizer.args = c.args;
  return o;
}

TEST(SlowSessionLateUpdate, IsTheUpdateOfTheLatestWeightsByGradientsAtOlderOnes) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Model model = model_of(c);
    const test::RunOptions o = options_of(c, model);
    const test::Trace truth = two_copies(model, o, 5);
    for (const StreamMode mode :
         {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
      test::RunOptions s = o;
      s.settings.streams = mode;
      if (mode == StreamMode::deferred) {
        s.settings.poison = true;
        s.settings.guard_bytes = 256;
        s.shuffle = 7;
        s.settings.threads = 2;
      }
      EXPECT_TRUE(same_bits(late_steps(model, s, 5), truth)) << to_string(mode);
    }
  }
}

// On the emulator what the host does is beside the kernels.
TEST(SlowSessionLateUpdate, IsThatBesideKernelsToo) {
  for (const Case& c : {Case{"fp32", "adamw"}, Case{"bf16", "adamw", StateForm::codes8, false},
                        Case{"fp16", "lamb"}}) {
    SCOPED_TRACE(name_of(c));
    const Model model = model_of(c);
    test::RunOptions o = options_of(c, model);
    o.settings.target = Place::emu;
    const test::Trace truth = two_copies(model, o, 3);
    o.settings.streams = StreamMode::deferred;
    o.settings.poison = true;
    o.shuffle = 5;
    EXPECT_TRUE(same_bits(late_steps(model, o, 3), truth));
  }
}

// Of AdamW here: above what a gradient rounds by, which is all that there is of some (the keys' biases) and
// would else be divided by itself.
constexpr double kEpsilon = 1e-3;

// AdamW (Loshchilov and Hutter, 2019), and SGD with momentum as PyTorch has it, of gradients that are
// clipped to a norm, in double.
struct Written {
  double rate, decay, clip, momentum;  // momentum 0: AdamW
  std::vector<double> w, m, v;
  int64_t t = 0;

  void step(const std::vector<float>& g, const std::vector<char>& decayed) {
    double squares = 0;
    for (const float x : g) squares += static_cast<double>(x) * x;
    const double factor = std::min(1.0, clip / (std::sqrt(squares) + 1e-6));
    ++t;
    for (size_t i = 0; i < w.size(); ++i) {
      const double d = g[i] * factor, fall = decayed[i] ? decay : 0;
      if (momentum > 0) {
        const double with = d + fall * w[i];
        m[i] = t == 1 ? with : momentum * m[i] + with;
        w[i] -= rate * m[i];
        continue;
      }
      m[i] = 0.9 * m[i] + 0.1 * d;
      v[i] = 0.999 * v[i] + 0.001 * d * d;
      const double first = m[i] / (1 - std::pow(0.9, t)), second = v[i] / (1 - std::pow(0.999, t));
      w[i] -= rate * (fall * w[i] + first / (std::sqrt(second) + kEpsilon));
    }
  }
};

// Gradients come from a session that updates nothing. What rounds are w in f32, 6e-8 of the largest a step,
// and gradients by sums of some hundreds, a few 1e-7 of the largest.
TEST(SessionLateUpdate, IsWhatIsWrittenDownInDouble) {
  constexpr int64_t kSteps = 6;
  for (const double momentum : {0.9, 0.0}) {
    SCOPED_TRACE(momentum);
    const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
    test::RunOptions o = test::options_of_six(6, 0.5);
    o.optimizer.learning_rate = momentum > 0 ? 0.1 : 1e-2;
    o.optimizer.adam_epsilon = momentum > 0 ? o.optimizer.adam_epsilon : kEpsilon;
    if (momentum > 0) o.optimizer.name = "sgd", o.optimizer.sgd_momentum = momentum;
    test::SessionRun at(model, o), at_once(model, o), run(model, late(o));
    std::vector<char> decayed;
    for (int i = 0; i < model.params().size(); ++i)
      decayed.insert(decayed.end(), static_cast<size_t>(model.params()[i].real_elements()),
                     model.params()[i].group == kGroupDecay);
    const std::vector<float> first = at.weights();
    Written latest{o.optimizer.learning_rate,
                   o.optimizer.weight_decay,
                   0.5,
                   momentum,
                   {first.begin(), first.end()},
                   {},
                   {}};
    latest.m.resize(first.size()), latest.v.resize(first.size());
    std::vector<double> before = latest.w;
    const auto set = [&](const std::vector<double>& w) {
      size_t next = 0;
      for (int i = 0; i < model.params().size(); ++i)
        for (int64_t j = 0; j < model.params()[i].real_elements(); ++j)
          at.session().master().as<float>()[model.params()[i].offset + j] =
              static_cast<float>(w[next++]);
      at.session().load();
    };
    double other = 0, most = 0;
    const auto difference = [&](const std::vector<float>& a) {
      double d = 0;
      for (size_t i = 0; i < a.size(); ++i) d = std::max(d, std::abs(a[i] - latest.w[i]));
      return d;
    };
    for (int64_t step = 0; step < kSteps; ++step) {
      set(before);
      const double loss = at.gradients_of(step);
      before = latest.w;
      latest.step(at.gradients(), decayed);
      EXPECT_NEAR(run.train_step(step), loss, 2e-6 * loss);
      at_once.train_step(step);
    }
    run.session().apply_late();
    for (const double w : latest.w) most = std::max(most, std::abs(w));
    other = difference(at_once.weights());
    const double bound = 1e-6 * most;
    EXPECT_LT(difference(run.weights()), bound);
    EXPECT_GT(other, 100 * bound);  // the update that is not late is another one
  }
}

// Behind a step the device has the weights that an evaluation sees, without the update that is pending;
// to apply it twice, or where there is none, changes nothing.
TEST(SessionLateUpdate, IsPendingUntilItIsApplied) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  test::RunOptions o = test::options_of_six(2, 0.5);
  o.decisions.eval_batch = 2;
  test::SessionRun run(model, late(o));
  const std::vector<float> first = run.weights();
  const double start = run.evaluate();
  run.session().apply_late();
  EXPECT_TRUE(test::same_bits(run.weights(), first));
  run.train_step(0);
  EXPECT_EQ(run.evaluate(), start);
  EXPECT_EQ(run.session().late_step().found_inf, 0);
  EXPECT_TRUE(test::same_bits(run.weights(), first));
  run.session().apply_late();
  EXPECT_EQ(run.session().late_step().found_inf, 1);
  const std::vector<float> applied = run.weights();
  EXPECT_FALSE(test::same_bits(applied, first));
  EXPECT_NE(run.evaluate(), start);
  run.session().apply_late();
  EXPECT_TRUE(test::same_bits(run.weights(), applied));
}

// By hand: with the host there are the gradients of two steps and, in 16 bits, the weights that go back; what
// crosses behind backward is weights one way and what is of no layer the other.
TEST(SessionLateUpdate, BytesAreTwoOfGradientsAndTheWeights) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const int64_t e = size_of(model.precision().compute);
    const ParamTable& table = model.params();
    int64_t all = 0, others = 0;  // of these those of no layer
    for (int i = 0; i < table.size(); ++i) {
      const int64_t n = round_up(table[i].elements(), kSpanAlignment);
      all += n;
      others += table[i].part < 0 ? n : 0;
    }
    test::RunOptions o = test::options_of_six(2, 1.0);
    o.settings.target = Place::emu;
    const Schedule s = test::plan_schedule(model, late(o));
    const Program &root = s.at(s.find("root")), &update = s.at(s.find("update")),
                  &first = s.at(s.find("micro_first"));
    int64_t gradients = 0, weights = 0;
    for (const TensorRecord& t : root.tensors) {
      if (t.residence != Residence::host) continue;
      if (t.name.view().find("gradients") != std::string_view::npos) gradients += t.bytes;
      if (t.name.view() == "weights") weights += t.bytes;
    }
    EXPECT_EQ(gradients, 2 * 4 * all);
    EXPECT_EQ(weights, e == 2 ? e * all : 0);
    EXPECT_EQ(update.bytes_copied(kToDevice), e * all);
    EXPECT_EQ(update.bytes_copied(kToHost), 4 * others + int64_t{sizeof(StepState)});
    int64_t beside = 0;
    for (const OpRecord& op : update.ops) EXPECT_FALSE(op.on_host);
    for (const OpRecord& op : first.ops) {
      EXPECT_EQ(op.on_host, op.stream == kHost);
      beside += op.on_host;
    }
    EXPECT_GT(beside, 0);
    // What the host makes for itself has bytes of its own from its beginning on.
    for (const TensorRecord& t : first.tensors) {
      if (t.residence == Residence::host) {
        EXPECT_EQ(t.born, 0) << t.name.view();
      }
    }
  }
}

TEST(SlowSessionLateUpdate, AMissingWaitIsSeen) {
  for (const Place place : {Place::cpu, Place::emu}) {
    const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
    test::RunOptions o = late(test::options_of_six(6, 1.0));
    o.settings.target = place;
    const Schedule whole = test::plan_schedule(model, o);
    for (const char* name : {"micro_first", "update"}) {
      const test::MissingWaits m = test::without_each_wait(model, o, whole, name);
      EXPECT_GT(m.waits, 2) << name;
      EXPECT_EQ(m.refused, m.waits) << name;
    }
  }
}

TEST(SessionLateUpdate, TakesAHostThatUpdatesWeightsOfTheDevice) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = late(test::options_of_six(6, 0));
  o.decisions.offload_params = true;
  test::expect_error(ErrorCode::internal, {"updates weights of the device, one step late"},
                     [&] { test::plan_schedule(model, o); });
}

}  // namespace
}  // namespace snug
