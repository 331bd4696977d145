// Gradients that rest with the host: memory changes, never numbers, the norm's last bit included,
// and what orders the copies cannot be left out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel = test::kFiveLayers;
test::RunOptions options_of(int64_t micro, double clip) {
  return test::options_of_six(micro, clip);
}

// A trace with the sum of squares behind every loss: what clipping multiplies by comes from it.
test::Trace steps_of(const Model& model, const test::RunOptions& o) {
  test::SessionRun run(model, o);
  test::Trace t;
  for (int64_t step = 0; step < 3; ++step) {
    t.losses.push_back(run.gradients_of(step));
    const std::vector<float> g = run.gradients();
    t.gradients.insert(t.gradients.end(), g.begin(), g.end());
    run.update();
    t.losses.push_back(run.session().state().grad_square_sum);
    t.losses.push_back(run.session().state().clip_factor);
  }
  t.weights = run.weights();
  return t;
}

// Every precision and dtype of gradients, one and three micro-steps, with and without clipping,
// heads, optimizers with and without states, what else rests with the host, in every mode of the
// streams, at random places with poison.
TEST(SlowSessionHostGradients, ChangeNoBitOfLossNormGradientsAndWeights) {
  const struct {
    const char *precision, *optimizer;
    DType gradients;
    bool tied;
    int64_t micro;
    double clip;
  } models[] = {
      {"fp32", "adamw", DType::f32, true, 6, 0.5},  {"fp32", "sgd", DType::bf16, false, 2, 0},
      {"fp32", "adamw", DType::f32, false, 2, 0.5}, {"bf16", "adamw", DType::f32, false, 2, 0.5},
      {"bf16", "sgd", DType::bf16, true, 2, 0.5},   {"bf16", "adamw", DType::bf16, true, 6, 0},
      {"fp16", "adamw", DType::f32, true, 2, 0.5},  {"fp16", "sgd", DType::bf16, false, 6, 0}};
  const struct {
    const char *recompute, *offload;
    bool states, params;
  } rows[] = {{"none", "none", false, false},
              {"block", "inputs", true, false},
              {"{0-1: mlp}", "{2: block}", true, true}};
  for (const auto& m : models) {
    SCOPED_TRACE(fmt::format("{} {} {}, micro-batch {}, clip {}", m.precision, m.optimizer,
                             to_string(m.gradients), m.micro, m.clip));
    test::Tiny tiny = kModel;
    tiny.tied = m.tied;
    tiny.dropout = 0.1;
    const Model model(test::tiny_spec(tiny), parse_precision(m.precision));
    test::RunOptions o = options_of(m.micro, m.clip);
    o.optimizer.name = m.optimizer;
    o.decisions.gradients = m.gradients;
    const test::Trace resident = steps_of(model, o);
    EXPECT_TRUE(resident.finite());
    if (m.clip > 0) {
      EXPECT_LT(resident.losses[2], 1.0) << "or nothing is clipped";
    }
    for (const auto& row : rows) {
      if (row.states && !row.params && m.optimizer == std::string("sgd") &&
          m.precision == std::string("fp32"))
        continue;  // which has none
      for (const StreamMode mode :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        test::RunOptions s = o;
        s.decisions.offload_gradients = true;
        s.decisions.offload_optimizer = row.states;
        s.decisions.offload_params = row.params;
        s.decisions.recompute = row.recompute;
        s.decisions.offload = row.offload;
        s.settings.streams = mode;
        EXPECT_TRUE(same_bits(steps_of(model, s), resident))
            << row.recompute << ", " << to_string(mode);
        if (mode != StreamMode::deferred) continue;
        s.settings.poison = true;
        s.settings.guard_bytes = 256;
        s.shuffle = 7;
        s.settings.threads = 2;
        EXPECT_TRUE(same_bits(steps_of(model, s), resident))
            << row.recompute << ", " << to_string(mode) << ", poison at random places";
      }
    }
  }
}

// Bytes of gradients on the device at most in a program, beside its residents.
int64_t most_gradients(const Program& p) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const TensorRecord& t : p.tensors)
    if (t.category == Category::gradients) {
      changes.emplace_back(t.born, t.bytes);
      changes.emplace_back(t.died, -t.bytes);
    }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, live += change);
  return most;
}

// On the device two blocks' gradients in a window's first micro-step, three in the others, and of
// what is outside the blocks all; the host has the blocks'. They cross the link as often as said.
TEST(SessionHostGradients, TheDeviceHoldsThreeBlocksWhateverTheDepth) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t L : {4, 9})
      for (const bool states : {false, true}) {
        test::Tiny tiny = kModel;
        tiny.L = L;
        const Model model(test::tiny_spec(tiny), parse_precision("fp32"));
        const ParamTable& table = model.params();
        int64_t block = 0, others = 0;
        for (int i = 0; i < table.size(); ++i) {
          const int64_t bytes = size_of(t) * round_up(table[i].elements(), kSpanAlignment);
          (table[i].part < 0 ? others : block) += bytes;
        }
        block /= L;
        test::RunOptions o = options_of(2, 1.0);
        o.decisions.gradients = t;
        o.decisions.offload_optimizer = states;
        const int64_t before = test::plan_schedule(model, o).host_bytes();
        o.decisions.offload_gradients = true;
        const Schedule s = test::plan_schedule(model, o);
        EXPECT_EQ(s.host_bytes() - before, round_up(L * block, kHostAlignment));
        int64_t resident = 0;
        for (const TensorRecord& r : s.at(s.find("root")).tensors)
          if (r.category == Category::gradients) resident += r.bytes;
        EXPECT_EQ(resident, others);
        const Program &first = s.at(s.find("micro_first")), &next = s.at(s.find("micro_next")),
                      &update = s.at(s.find("update"));
        EXPECT_EQ(most_gradients(first), 2 * block);
        EXPECT_EQ(most_gradients(next), 3 * block);
        EXPECT_LE(most_gradients(update), 2 * block);
        EXPECT_EQ(first.bytes_copied(kToHost), L * block);
        EXPECT_EQ(first.bytes_copied(kToDevice), 0);
        EXPECT_EQ(next.bytes_copied(kToHost), L * block);
        EXPECT_EQ(next.bytes_copied(kToDevice), L * block);
        o.decisions.offload_gradients = false;
        const Schedule whole = test::plan_schedule(model, o);
        const Program& plain = whole.at(whole.find("update"));
        EXPECT_EQ(update.bytes_copied(kToHost), plain.bytes_copied(kToHost));
        const int64_t brought = update.bytes_copied(kToDevice) - plain.bytes_copied(kToDevice);
        EXPECT_LE(brought, 2 * L * block);
        EXPECT_GT(brought, 2 * L * block - size_of(t) * table.size() * kSpanAlignment);
      }
}

// A block's gradients leave while the block below computes, and are back before they are added to
// by a block's time: compute does not wait for a copy that was only just asked for.
TEST(SessionHostGradients, CopiesHideBehindTheNeighboursBackward) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of(2, 1.0);
  o.decisions.offload_gradients = true;
  const Schedule s = test::plan_schedule(model, o);
  for (const char* name : {"micro_first", "micro_next"}) {
    const Program& p = s.at(s.find(name));
    int64_t copies = 0, hidden = 0;
    for (size_t i = 0; i < p.ops.size(); ++i) {
      if (p.ops[i].stream == kCompute) continue;
      ++copies;
      int32_t event = -1;  // the first recorded on its stream behind it
      int64_t between = 0;
      for (const SyncRecord& sync : p.syncs) {
        if (event < 0 && sync.kind == SyncRecord::Kind::record && sync.stream == p.ops[i].stream &&
            sync.op > static_cast<int32_t>(i))
          event = sync.event;
        if (event < 0 || sync.kind != SyncRecord::Kind::wait || sync.stream != kCompute ||
            sync.event != event)
          continue;
        for (size_t k = i + 1; k < static_cast<size_t>(sync.op); ++k)
          between += p.ops[k].stream == kCompute;
        break;
      }
      hidden += between > 3;
    }
    const bool back = std::string(name) == "micro_next";
    EXPECT_EQ(copies, (back ? 2 : 1) * kModel.L) << name;
    // But for the first of all to come, which norm_backward has to hide, and the last to leave.
    EXPECT_GE(hidden, copies - (back ? 2 : 1)) << name;
  }
}

// A schedule of which a wait is missing is not run.
TEST(SessionHostGradients, AMissingWaitIsSeen) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of(2, 1.0);
  o.decisions.offload_gradients = true;
  const Schedule whole = test::plan_schedule(model, o);
  for (const char* name : {"micro_first", "micro_next", "update"}) {
    const test::MissingWaits m = test::without_each_wait(model, o, whole, name);
    EXPECT_GT(m.waits, 2 * kModel.L - 1) << name;
    EXPECT_EQ(m.refused, m.waits) << name;
  }
}

// A step whose gradients are not finite changes nothing and names the same element.
TEST(SessionHostGradients, WhatIsNotFiniteIsNamed) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp16"));
  int64_t named = -1;
  for (const bool away : {false, true}) {
    test::RunOptions o = options_of(2, 1.0);
    o.decisions.offload_gradients = away;
    o.decisions.loss_scaling.init_scale = 0x1p100;
    o.settings.streams = StreamMode::worker;
    test::SessionRun run(model, o);
    run.gradients_of(0);
    const std::vector<float> before = run.weights();
    run.session().optimizer().prepare_step(run.session().state());
    run.session().update();
    EXPECT_EQ(run.session().state().found_inf, 1);
    EXPECT_TRUE(test::same_bits(run.weights(), before));
    const int64_t bad = run.session().state().first_bad_element;
    EXPECT_EQ(bad, away ? named : bad);
    named = bad;
  }
  EXPECT_GE(named, 0);
}

TEST(SessionHostGradients, HaveNoPlaceBesideUpdatesInBackward) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of(6, 0);
  o.decisions.offload_gradients = o.decisions.update_in_backward = true;
  test::expect_error(ErrorCode::internal, {"gradients with the host where some are kept"},
                     [&] { test::plan_schedule(model, o); });
}

}  // namespace
}  // namespace snug
