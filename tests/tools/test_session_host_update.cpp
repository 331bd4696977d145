// An update by the host: memory and place change, never numbers, whatever the optimizer, the form of
// its states and the dtype of the weights; the norm's last bit included.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/core/units.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/costs/matrix_pieces.h"
#include "tools/planner/residence.h"

namespace snug {
namespace {

const test::Tiny kModel = test::kFiveLayers;
test::RunOptions options_of(int64_t micro, double clip) {
  return test::options_of_six(micro, clip);
}

test::RunOptions by_host(test::RunOptions o, bool params = false) {
  o.decisions.offload_optimizer = o.decisions.offload_gradients = o.decisions.update_on_host = true;
  o.decisions.offload_params = params;
  return o;
}

// A trace with what clipping is decided by behind every loss, and at its end every bit of the states.
test::Trace steps_of(const Model& model, const test::RunOptions& o, int64_t steps = 3) {
  test::SessionRun run(model, o);
  test::Trace t;
  const bool reads = run.session().context().host_reads();
  for (int64_t step = 0; step < steps; ++step) {
    t.losses.push_back(run.gradients_of(step));
    const std::vector<float> g = reads ? run.gradients() : std::vector<float>{1.0f};
    t.gradients.insert(t.gradients.end(), g.begin(), g.end());
    run.update();
    t.losses.push_back(run.session().state().grad_square_sum);
    t.losses.push_back(run.session().state().clip_factor);
  }
  run.session().keep_weights();
  t.weights = run.weights();
  for (const uint8_t byte : run.stored_states()) t.gradients.push_back(static_cast<float>(byte));
  return t;
}

struct Case {
  const char *precision, *optimizer;
  StateForm state = StateForm::f32;
  bool tied = true;
  int64_t micro = 2;
  double clip = 0.5;
  OptimArgs args = {};
  bool momentum = false;
};

// Every optimizer there is, and every form of states.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::string& name : optimizer_names()) {
    static std::vector<std::unique_ptr<std::string>> names;
    names.push_back(std::make_unique<std::string>(name));
    list.push_back({"fp32", names.back()->c_str()});
    list.push_back({"bf16", names.back()->c_str(), StateForm::f32, false, 6});
  }
  for (const char* precision : {"fp32", "bf16", "no_master"})
    for (const StateForm form : {StateForm::bf16, StateForm::codes8, StateForm::codes4})
      list.push_back({precision, "adamw", form});
  for (const char* precision : {"fp32", "fp16"})
    list.push_back({precision, "sgd", StateForm::f32, true, 2, 0.5, {}, true});
  list.push_back({"fp16", "adamw", StateForm::f32, false, 2, 0.5});
  list.push_back({"no_master", "lion", StateForm::bf16, true, 6, 0});
  list.push_back(
      {"no_master", "adamw", StateForm::bf16, true, 2, 0.5, {{"use_kahan_summation", 1}}});
  list.push_back({"fp32", "adamw", StateForm::f32, true, 2, 0, {{"percentile_clipping", 50}}});
  return list;
}

test::RunOptions options_of(const Case& c, const Model& model) {
  test::RunOptions o = options_of(c.micro, c.clip);
  o.optimizer.name = c.optimizer;
  o.optimizer.pieces = matrix_pieces(model);
  o.optimizer.state = c.state;
  o.optimizer.args = c.args;
  if (c.momentum) o.optimizer.sgd_momentum = 0.9;
  return o;
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

TEST(SlowSessionHostUpdate, ChangesNoBitOfLossNormWeightsAndStates) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Model model = model_of(c);
    const test::RunOptions o = options_of(c, model);
    const test::Trace resident = steps_of(model, o);
    EXPECT_TRUE(resident.finite());
    for (const bool params : {false, true})
      for (const StreamMode mode :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        test::RunOptions s = by_host(o, params);
        s.settings.streams = mode;
        if (mode == StreamMode::deferred) {
          s.settings.poison = true;
          s.settings.guard_bytes = 256;
          s.shuffle = 7;
          s.settings.threads = 2;
        }
        EXPECT_TRUE(same_bits(steps_of(model, s), resident))
            << to_string(mode) << (params ? ", weights too" : "");
      }
  }
}

// States in a file, likewise: of every optimizer and form, behind gradients on the device and with the
// host.
TEST(SlowSessionOnDisk, ChangesNoBitOfLossNormWeightsAndStates) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Model model = model_of(c);
    const test::RunOptions o = options_of(c, model);
    if (make_optimizer(o.optimizer)->states(model.params()).names.empty()) continue;
    const test::Trace resident = steps_of(model, o);
    EXPECT_TRUE(resident.finite());
    for (const bool gradients : {false, true})
      for (const StreamMode mode :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        test::RunOptions s = o;
        s.decisions.states_on_disk = true;
        s.decisions.offload_gradients = gradients;
        s.settings.disk_folder = testing::TempDir();
        s.settings.streams = mode;
        if (mode == StreamMode::deferred) {
          s.settings.poison = true;
          s.settings.guard_bytes = 256;
          s.shuffle = 7;
          s.settings.threads = 2;
        }
        EXPECT_TRUE(same_bits(steps_of(model, s), resident))
            << to_string(mode) << (gradients ? ", gradients away" : "");
      }
  }
}

// Kernels compute, in an arena that the host cannot touch; the host's loops update.
TEST(SlowSessionHostUpdate, HasTheBitsOfTheKernels) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    if (std::string(c.precision) == "fp16") continue;  // as bf16
    OptimizerConfig optimizer;
    optimizer.name = c.optimizer;
    if (!can_update_on_host(optimizer)) continue;
    const Model model = model_of(c);
    test::RunOptions o = options_of(c, model);
    o.settings.target = Place::emu;
    const test::Trace resident = steps_of(model, o, 2);
    test::RunOptions s = by_host(o);
    s.settings.streams = StreamMode::deferred;
    EXPECT_TRUE(same_bits(steps_of(model, s, 2), resident));
  }
}

// By hand: weights go to the device once, what is of no layer leaves it once, and parameters, gradients of
// the layers and states stay; on the device there are weights and gradients, and no window of anything.
TEST(SessionHostUpdate, WhatCrossesIsWeightsAndGradientsOnce) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const int64_t e = size_of(model.precision().compute);
    const ParamTable& table = model.params();
    int64_t all = 0, others = 0, parameters = 0;  // of these those of no layer
    for (int i = 0; i < table.size(); ++i) {
      const int64_t n = round_up(table[i].elements(), kSpanAlignment);
      all += n;
      others += table[i].part < 0 ? n : 0;
      parameters += table[i].part < 0;
    }
    const Schedule s = test::plan_schedule(model, by_host(options_of(2, 1.0)));
    const Program &root = s.at(s.find("root")), &update = s.at(s.find("update")),
                  &next = s.at(s.find("micro_next"));
    EXPECT_EQ(update.bytes_copied(kToDevice), e * all);
    EXPECT_EQ(update.bytes_copied(kToHost), 4 * others + int64_t{sizeof(StepState)});
    EXPECT_EQ(next.bytes_copied(kToDevice), 4 * (all - others));
    for (const Program* p : {&root, &update})
      for (const TensorRecord& t : p->tensors)
        if (t.residence == Residence::device) {
          EXPECT_NE(t.category, Category::optimizer) << t.name.view();
          EXPECT_NE(t.category, Category::master) << t.name.view();
        }
    int64_t host_ops = 0;
    for (const OpRecord& op : update.ops) host_ops += op.on_host;
    EXPECT_GT(host_ops, 0);
    for (const OpRecord& op : next.ops) EXPECT_FALSE(op.on_host);
    // Squares are summed up in backward, and the update joins what was.
    int64_t sums = 0, joins = 0;
    for (const OpRecord& op : update.ops) {
      sums += op.name == std::string("sum_of_squares_and_finite");
      joins += op.name == std::string("gradient_norm_join");
    }
    EXPECT_EQ(joins, kModel.L);
    EXPECT_LE(sums, parameters);
  }
}

// A schedule of which a wait is missing is not run.
TEST(SessionHostUpdate, AMissingWaitIsSeen) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const test::RunOptions o = by_host(options_of(2, 1.0));
    const Schedule whole = test::plan_schedule(model, o);
    for (const char* name : {"micro_first", "update"}) {
      const test::MissingWaits m = test::without_each_wait(model, o, whole, name);
      EXPECT_GT(m.waits, kModel.L) << name;
      EXPECT_EQ(m.refused, m.waits) << name;
    }
  }
}

// A step whose gradients are not finite changes no weight and no state, and names the same element.
TEST(SessionHostUpdate, WhatIsNotFiniteChangesNothing) {
  for (const StateForm form : {StateForm::f32, StateForm::codes8}) {
    int64_t named = -1;
    for (const bool away : {false, true}) {
      const Model model(test::tiny_spec(kModel), parse_precision("fp16"));
      test::RunOptions o = options_of(2, 1.0);
      o.optimizer.state = form;
      o.settings.streams = StreamMode::worker;
      if (away) o = by_host(o);
      test::SessionRun run(model, o);
      run.train_step(0);
      const auto states = [&] {
        std::vector<uint8_t> bytes;
        const StateStore& store = run.session().optimizer_state();
        for (int k = 0; k < store.states(); ++k)
          for (const StateSpan& span : store.spans()) {
            const View v = store.stored(k, span.offset);
            const auto* first = static_cast<const uint8_t*>(v.data);
            bytes.insert(bytes.end(), first,
                         first + store.form(k, span).value_bytes(store.numbers(k, span)));
          }
        return bytes;
      };
      const std::vector<float> before = run.weights();
      const std::vector<uint8_t> kept = states();
      const float scale = run.session().state().loss_scale;
      run.session().state().loss_scale = 0x1p100f;
      const double loss = run.gradients_of(1);
      run.session().optimizer().prepare_step(run.session().state());
      run.session().update();
      EXPECT_EQ(run.session().state().found_inf, 1);
      EXPECT_TRUE(test::same_bits(run.weights(), before));
      EXPECT_EQ(states(), kept);
      const int64_t bad = run.session().state().first_bad_element;
      EXPECT_EQ(bad, away ? named : bad);
      named = bad;
      // What layers read on the device comes from the host with every update, this one too.
      run.session().state().loss_scale = scale;
      EXPECT_EQ(run.gradients_of(1), loss);
    }
    EXPECT_GE(named, 0);
  }
}

TEST(SessionHostUpdate, TakesStatesAndGradientsThatAreThere) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = by_host(options_of(6, 0));
  o.decisions.offload_gradients = false;
  test::expect_error(ErrorCode::internal, {"states and gradients with the host that updates"},
                     [&] { test::plan_schedule(model, o); });
}

}  // namespace
}  // namespace snug
