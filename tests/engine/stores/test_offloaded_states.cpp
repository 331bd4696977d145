// States that rest in the host arena, or in a file: the bits of states that stay on the device, whatever the
// windows, the streams and the places; and memory that is a few windows instead of all.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/kernels/kernels.h"
#include "engine/stores/disk_states.h"
#include "engine/stores/offloaded_gradients.h"
#include "engine/stores/offloaded_states.h"
#include "engine/stores/part_runs.h"
#include "engine/stores/plain_states.h"
#include "engine/stores/streamed_params.h"
#include "optim/optimizer.h"
#include "optim/settings.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

// Sizes that end windows within a parameter, at its end, and with padding; one frozen.
ParamTable table_of_all_kinds() {
  ParamTable table;
  table.add({.name = Name("wte"), .shape = {384, 5}, .rows = 300});
  table.add({.name = Name("w"), .shape = {64, 16}});
  table.add({.name = Name("frozen"), .shape = {700}, .trainable = false});
  table.add({.name = Name("b"), .shape = {257}, .group = kGroupNoDecay});
  table.add({.name = Name("long"), .shape = {40000}});
  table.add({.name = Name("one"), .shape = {1}});
  return table;
}

struct Setting {
  int64_t window = -1;  // -1: the plain store
  StreamMode streams = StreamMode::immediate;
  uint64_t shuffle = 0;
  bool poison = false;
  DType weights = DType::f32;  // bf16: beside fp32 parameters
  DType held = DType::f32;     // bf16: parameters without a master
  bool disk = false;
};

struct Trained {
  std::vector<float> master;
  std::vector<uint8_t> states;  // as they rest
  std::vector<uint16_t> weights;
  Schedule schedule;
  int windows = 0;
};

float value(int64_t i, uint64_t salt) {
  return uniform_from(static_cast<uint32_t>(mix64(static_cast<uint64_t>(i) * 977 + salt))) - 0.5f;
}

// Values of a state as they rest, then its scales, piece by piece of where they lie.
void append_state(Context& ctx, std::vector<uint8_t>& to, const StateStore& store, int k,
                  const StateSpan& whole) {
  const RestForm form = store.form(k, whole);
  for (const bool scales : {false, true}) {
    const int64_t all = scales ? form.scales(store.numbers(k, whole))
                               : form.value_bytes(store.numbers(k, whole)) / size_of(form.dtype);
    const int64_t each = scales ? form.block : (form.coded() ? 8 / form.bits : 1);
    for (int64_t i = 0; i < all;) {
      const int64_t first = whole.offset + i * each;
      const View v = scales ? store.stored_scales(k, first) : store.stored(k, first);
      const int64_t count = std::min(v.elements(), all - i);
      const size_t before = to.size();
      to.resize(before + static_cast<size_t>(count * size_of(v.dtype)));
      store.read_stored(ctx, to.data() + before, k, first, scales, count);
      i += count;
    }
  }
}

// `asked`: a name, and behind a blank arguments.
Trained train(const ParamTable& table, const std::string& asked, const Setting& setting) {
  const int64_t n = table.trained_elements();
  OptimizerConfig config;
  const std::string name = asked.substr(0, asked.find(' '));
  config.name = name;
  if (name != asked) config.args = parse_optim_args(asked.substr(name.size() + 1));
  if (name == "sgd" || name == "lars") config.sgd_momentum = 0.9;
  config.weight_decay = 0.1;
  if (const int p = table.find("long"); p >= 0 && (name == "muon" || name == "adam_mini")) {
    config.pieces.resize(static_cast<size_t>(table.size()));
    config.pieces[static_cast<size_t>(p)] = {{8}};
  }
  const auto optimizer = make_optimizer(config);
  Trained run;
  run.schedule.add(Name("root"), -1, true);
  run.schedule.add(Name("update"), 0, false);
  run.schedule.add(Name("load"), 0, false);

  Settings settings;
  settings.threads = 1;  // windows of 256 elements: a team would mostly wait
  settings.poison = setting.poison;
  settings.guard_bytes = setting.poison ? 64 : 0;
  settings.streams = setting.streams;
  settings.disk_folder = testing::TempDir();
  const auto go = [&](Context& ctx) {
    Tensor master, weights, gradients, state;
    std::unique_ptr<StateStore> store;
    OffloadedStateStore* offloaded = nullptr;
    const bool both = setting.weights == DType::bf16;
    ctx.program(run.schedule, 0, [&] {
      if (setting.window < 0 || setting.disk || !both)
        master = ctx.tensor(Name("master"), {n}, setting.held, Category::master);
      if (both) weights = ctx.tensor(Name("weights"), {n}, DType::bf16, Category::weights);
      gradients = ctx.tensor(Name("gradients"), {n}, DType::f32, Category::gradients);
      state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
      if (setting.window < 0) {
        store = std::make_unique<PlainStateStore>(ctx, table, optimizer->states(table));
      } else if (setting.disk) {
        store = std::make_unique<DiskStateStore>(ctx, table, optimizer->states(table),
                                                 DiskStateStore::Options{.window = setting.window});
      } else {
        auto made = std::make_unique<OffloadedStateStore>(
            ctx, table, optimizer->states(table),
            OffloadedStateStore::Options{.master = both, .window = setting.window});
        offloaded = made.get();
        store = std::move(made);
      }
    });
    run.windows = store->windows();
    const View parameters = master.defined() ? master.view() : offloaded->master();
    const auto load = [&] {
      ctx.program(run.schedule, 2, [&] {
        if (offloaded && both)
          offloaded->round_master(ctx, weights);
        else if (both)
          cast(ctx, weights, parameters);
      });
    };
    const auto update = [&] {
      ctx.program(run.schedule, 1, [&] {
        optimizer->update(ctx, {parameters, both ? weights.view() : View{}, gradients}, *store,
                          state);
      });
    };
    if (ctx.planning()) return load(), update();
    StepState& s = *step_state(state.view());
    s = StepState{};
    s.loss_scale = s.clip_factor = 1.0f;
    for (float& rate : s.learning_rate) rate = 0.01f;
    for (int64_t i = 0; i < n; ++i) {
      if (setting.held == DType::bf16)
        parameters.as<bf16>()[i] = from_f32<bf16>(value(i, 1));
      else
        parameters.as<float>()[i] = value(i, 1);
    }
    load();
    for (int step = 0; step < 5; ++step) {
      float* const g = gradients.view().as<float>();
      for (int64_t i = 0; i < n; ++i) g[i] = value(i, static_cast<uint64_t>(step) + 2);
      s.step = step;
      s.found_inf = step == 2;  // a skipped step moves the states and changes none
      optimizer->prepare_step(s);
      update();
      if (!s.found_inf) ++s.updates;
    }
    for (int64_t i = 0; i < n; ++i)
      run.master.push_back(setting.held == DType::bf16 ? to_f32(parameters.as<bf16>()[i])
                                                       : parameters.as<float>()[i]);
    if (both) {
      const auto* const bits = static_cast<const uint16_t*>(weights.view().data);
      run.weights.assign(bits, bits + n);
    }
    for (int k = 0; k < store->states(); ++k)
      for (const StateSpan& whole : whole_parameter_spans(table))
        append_state(ctx, run.states, *store, k, whole);
  };
  Context plan(Place::plan, settings);
  go(plan);
  run.schedule.pack({}, setting.shuffle);
  Context cpu(Place::cpu, settings);
  cpu.reserve(run.schedule);
  go(cpu);
  EXPECT_EQ(cpu.host_resident_bytes(), run.schedule.host_bytes());
  return run;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class OffloadedStates : public testing::TestWithParam<const char*> {};

TEST_P(OffloadedStates, HaveTheBitsOfStatesOnTheDevice) {
  const ParamTable table = table_of_all_kinds();
  for (const auto& [weights, held] :
       {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::f32),
        std::pair(DType::f32, DType::bf16)}) {
    const Trained want = train(table, GetParam(), {.weights = weights, .held = held});
    ASSERT_FALSE(want.states.empty());
    for (const int64_t window : {256, 1024, 2560, 16384, 1 << 20})
      for (const StreamMode streams :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        const bool hard = streams != StreamMode::immediate;  // random places, poison, guards
        const Trained got =
            train(table, GetParam(),
                  {window, streams, hard ? static_cast<uint64_t>(window) : 0, hard, weights, held});
        EXPECT_TRUE(same_bits(got.master, want.master)) << window;
        EXPECT_TRUE(got.states == want.states) << window;
        EXPECT_EQ(got.weights, want.weights) << window;
      }
    // A disk takes its time: few windows here, all forms in SlowSessionOnDisk.
    if (held != DType::f32 || weights != DType::f32) continue;
    const std::pair<int64_t, StreamMode> files[] = {{16384, StreamMode::deferred},
                                                    {16384, StreamMode::worker},
                                                    {1 << 20, StreamMode::immediate}};
    for (const auto& [window, streams] : files) {
      const bool hard = streams != StreamMode::immediate;
      const Trained got = train(
          table, GetParam(),
          {window, streams, hard ? static_cast<uint64_t>(window) : 0, hard, weights, held, true});
      EXPECT_TRUE(same_bits(got.master, want.master)) << "on disk, " << window;
      EXPECT_TRUE(got.states == want.states) << "on disk, " << window;
      EXPECT_EQ(got.weights, want.weights) << "on disk, " << window;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OffloadedStates,
                         testing::Values("adamw", "adam", "lion", "sgd", "adamw_8bit",
                                         "ademamix_4bit", "lion_8bit", "adamw_bf16", "lamb",
                                         "lamb_8bit", "lars", "adafactor", "muon", "adam_mini",
                                         "adamw_8bit percentile_clipping=5",
                                         "lamb_bf16 percentile_clipping=50"));

// Bytes by hand: of 40000 numbers 8-bit codes and a scale for each 256, all other tensors in f32, and
// three windows of the long one at a time.
TEST(OffloadedStateStore, HoldCodesAndTheirScales) {
  const ParamTable table = table_of_all_kinds();
  const Trained plain = train(table, "adamw_8bit", {});
  ParamTable one;
  one.add({.name = Name("long"), .shape = {40000}});
  const Trained moved = train(one, "adamw_8bit", {.window = 4096});
  const auto most = [](const Schedule& s) {
    int64_t bytes = 0;
    for (int64_t t = 0; t <= s.at(s.find("update")).ticks; ++t)
      bytes =
          std::max(bytes, s.live(s.find("update"), t)[static_cast<size_t>(Category::optimizer)]);
    return bytes;
  };
  int64_t small = 0;
  for (const StateSpan& s : whole_parameter_spans(table))
    if (s.elements < 4096) small += 4 * round_up(s.elements, 256);
  EXPECT_EQ(most(plain.schedule), 2 * (small + 40192 + round_up(4 * 157, 64)));
  EXPECT_EQ(most(moved.schedule), 3 * 2 * (4096 + 64));
  EXPECT_EQ(moved.schedule.host_bytes(), 2 * round_up(9 * (4096 + 64) + 3328 + 64, 4096));
  EXPECT_EQ(plain.states.size() % 2, 0u);
  const int64_t reals = 1500 + 1024 + 257 + 1;
  EXPECT_EQ(plain.states.size(), static_cast<size_t>(2 * (4 * reals + 40000 + 4 * 157)));
}

TEST(OffloadedStateStore, TakeThreeWindowsOfTheDevice) {
  const ParamTable table = table_of_all_kinds();
  const Trained plain = train(table, "adamw", {});
  const Trained moved = train(table, "adamw", {.window = 1024});
  int64_t trainable = 0;
  for (const StateSpan& s : whole_parameter_spans(table)) trainable += round_up(s.elements, 256);
  EXPECT_GE(moved.windows, ceil_div(trainable, 1024));
  EXPECT_EQ(plain.schedule.host_bytes(), 0);
  EXPECT_EQ(moved.schedule.host_bytes(), 2 * round_up(4 * trainable, 4096));
  int64_t most = 0;
  const int update = moved.schedule.find("update");
  for (int64_t t = 0; t <= moved.schedule.at(update).ticks; ++t)
    most = std::max(most, moved.schedule.live(update, t)[static_cast<size_t>(Category::optimizer)]);
  EXPECT_EQ(most, 3 * 2 * 1024 * 4);
  EXPECT_EQ(plain.schedule.live(plain.schedule.find("update"),
                                1)[static_cast<size_t>(Category::optimizer)],
            2 * table.trained_elements() * 4);
}

// By hand: 44 windows of 1024 numbers and what is left of a parameter, two states of each in whole blocks
// of the file; a checksum of four bytes a block, a room for parts, and three windows at a time.
TEST(DiskStateStore, TakesAFileOfWholeBlocksAndThreeWindowsOfMemory) {
  const ParamTable table = table_of_all_kinds();
  const Trained plain = train(table, "adamw", {});
  for (const int64_t window : {1024, 16384}) {
    const Trained moved = train(table, "adamw", {.window = window, .disk = true});
    const int64_t record = round_up(2 * 4 * window, TierFile::kBlock);
    EXPECT_EQ(moved.schedule.disk_bytes(), moved.windows * record);
    EXPECT_EQ(plain.schedule.disk_bytes(), 0);
    EXPECT_EQ(moved.schedule.host_bytes(), 0);
    int64_t most = 0;
    const int update = moved.schedule.find("update");
    for (int64_t t = 0; t <= moved.schedule.at(update).ticks; ++t)
      most =
          std::max(most, moved.schedule.live(update, t)[static_cast<size_t>(Category::optimizer)]);
    const int64_t slack = TierFile::kAlignment - kTensorAlignment;
    EXPECT_EQ(most, 3 * (record + slack) + TierFile::kRoomBytes + slack +
                        4 * moved.schedule.disk_bytes() / TierFile::kBlock);
    int64_t in = 0, out = 0;
    for (const OpRecord& op : moved.schedule.at(update).ops) {
      EXPECT_EQ(op.stream == kToHost, std::string(op.name).ends_with("_disk"));
      if (std::string(op.name) == kReadDisk) in += op.bytes;
      if (std::string(op.name) == kWriteDisk) out += op.bytes;
    }
    EXPECT_EQ(in, moved.schedule.disk_bytes());
    EXPECT_EQ(out, in);
  }
}

TEST(OffloadedStateStore, CopyEveryStateOnceEachWayAStep) {
  const ParamTable table = table_of_all_kinds();
  const Trained moved = train(table, "adamw", {.window = 2560});
  int64_t in = 0, out = 0, trainable = 0;
  for (const OpRecord& op : moved.schedule.at(moved.schedule.find("update")).ops) {
    if (std::string(op.name) == "copy_to_device") in += op.bytes;
    if (std::string(op.name) == "copy_to_host") out += op.bytes;
  }
  for (const StateSpan& s : whole_parameter_spans(table)) trainable += round_up(s.elements, 256);
  EXPECT_EQ(in, 8 * trainable);
  EXPECT_EQ(out, in);
}

TEST(OffloadedStateStore, WindowsAreWholeSteps) {
  const ParamTable table = table_of_all_kinds();
  Schedule schedule;
  schedule.add(Name("root"), -1, true);
  Context plan(Place::plan, {});
  test::expect_error(ErrorCode::internal, {"windows of a multiple of 256 elements"}, [&] {
    plan.program(schedule, 0, [&] {
      OffloadedStateStore(plan, table, std::vector<Name>{Name("exp_avg")}, {.window = 100});
    });
  });
}

// What rests by part is cut where the runs of the table are, whichever of them are frozen.
TEST(OffloadedStateStore, WindowsKeepToThePartsWhateverIsFrozen) {
  for (int frozen = 0; frozen < 16; ++frozen) {
    SCOPED_TRACE(frozen);
    ParamTable table;
    int part = -1;
    for (const char* name : {"wte", "h.0", "h.1", "ln_f"}) {
      const bool trainable = (frozen >> (part + 1) & 1) == 0, block = name[0] == 'h';
      table.add(
          {.name = Name(name), .shape = {300}, .trainable = trainable, .part = block ? part : -1});
      ++part;
    }
    const size_t runs = trained_runs(table).size();
    // The ends of the model, of no part both, are neighbours where nothing between them is trained.
    EXPECT_EQ(runs, frozen == 6 ? 1u : static_cast<size_t>(4 - std::popcount(unsigned(frozen))));
    if (runs == 0) continue;
    Schedule schedule;
    schedule.add(Name("root"), -1, true);
    Context plan(Place::plan, {});
    std::vector<std::unique_ptr<StateStore>> stores;
    std::vector<std::unique_ptr<OffloadedGradSink>> sinks;
    plan.program(schedule, 0, [&] {
      const std::vector<Name> states = {Name("exp_avg")};
      stores.push_back(std::make_unique<PlainStateStore>(plan, table, states, true));
      stores.push_back(std::make_unique<OffloadedStateStore>(
          plan, table, states, OffloadedStateStore::Options{.window = 1 << 20, .by_part = true}));
      for (const auto& store : stores) {
        EXPECT_EQ(static_cast<size_t>(store->windows()), runs);
        sinks.push_back(std::make_unique<OffloadedGradSink>(plan, table, *store, DType::f32));
      }
    });
  }
}

// Weights that rest with the host are the rounded parameters after every step, a skipped one too:
// and what is frozen, with the host in their dtype alone, is as it was.
TEST(StreamedParams, WeightsAreTheRoundedParametersWhateverIsFrozen) {
  ParamTable table;
  const auto add = [&](const char* name, int64_t n, bool trainable, int part) {
    table.add({.name = Name(name), .shape = {n}, .trainable = trainable, .part = part});
  };
  add("wte", 700, true, -1);
  add("h.0.first", 300, false, 0);
  add("h.0.a", 1000, true, 0);
  add("h.0.b", 257, false, 0);
  add("h.0.c", 2000, true, 0);
  table.add({.name = Name("h.1.padded"), .shape = {40, 16}, .rows = 33, .part = 1});
  add("h.1.last", 300, false, 1);
  add("h.2.frozen", 513, false, 2);
  add("ln_f", 100, true, -1);
  const int64_t n = table.trained_elements();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t window : {1024, 1 << 16})
      for (const StreamMode streams :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        SCOPED_TRACE(testing::Message() << to_string(dtype) << " window " << window << " streams "
                                        << static_cast<int>(streams));
        const auto optimizer = make_optimizer({});
        Schedule schedule;
        schedule.add(Name("root"), -1, true);
        for (const char* name : {"load", "update", "read"}) schedule.add(Name(name), 0, false);
        Settings settings;
        settings.threads = 1;
        settings.poison = true;
        settings.streams = streams;
        const auto go = [&](Context& ctx) {
          Tensor gradients, state;
          std::unique_ptr<OffloadedStateStore> store;
          std::unique_ptr<StreamedParamStore> weights;
          ctx.program(schedule, 0, [&] {
            gradients = ctx.tensor(Name("gradients"), {n}, DType::f32, Category::gradients);
            state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
            store = std::make_unique<OffloadedStateStore>(
                ctx, table, optimizer->state_names(),
                OffloadedStateStore::Options{
                    .master = true, .window = window, .by_part = true, .weights = dtype});
            weights = std::make_unique<StreamedParamStore>(ctx, table, dtype, store.get());
          });
          const View master = store->master();
          const auto load = [&] { ctx.program(schedule, 1, [&] { weights->load(ctx); }); };
          const auto update = [&] {
            ctx.program(schedule, 2, [&] {
              optimizer->update(ctx, {master, {}, gradients}, *store, state);
            });
          };
          const auto read = [&](auto&& see) {
            ctx.program(schedule, 3, [&] {
              for (int part = 0; part < 3; ++part) {
                weights->fetch_part(ctx, part);
                for (int i = 0; i < table.size(); ++i)
                  if (table[i].part == part) see(i, weights->acquire(ctx, i));
                weights->drop_part(ctx, part);
              }
              for (int i = 0; i < table.size(); ++i)
                if (table[i].part < 0) see(i, weights->acquire(ctx, i));
            });
          };
          if (ctx.planning()) return load(), update(), read([](int, const View&) {});
          StepState& s = *step_state(state.view());
          s = StepState{};
          s.loss_scale = s.clip_factor = 1.0f;
          for (float& rate : s.learning_rate) rate = 0.01f;
          for (int64_t i = 0; i < n; ++i) master.as<float>()[i] = value(i, 1);
          for (const RestingWeights::Piece& piece : weights->frozen())
            for (int64_t i = 0; i < piece.view.elements(); ++i) {
              const float v = value(piece.first + i, 1);
              if (dtype == DType::f32)
                piece.view.as<float>()[i] = v;
              else if (dtype == DType::bf16)
                piece.view.as<bf16>()[i] = from_f32<bf16>(v);
              else
                piece.view.as<f16>()[i] = from_f32<f16>(v);
            }
          load();
          for (int step = 0; step < 3; ++step) {
            for (int64_t i = 0; i < n; ++i) gradients.view().as<float>()[i] = value(i, 2);
            s.found_inf = step == 1;
            optimizer->prepare_step(s);
            update();
            if (!s.found_inf) ++s.updates;
            read([&](int param, const View& w) {
              const ParamInfo& p = table[param];
              int64_t wrong = 0;
              for (int64_t i = 0; i < p.elements(); ++i) {
                const float want =
                    p.trainable ? master.as<float>()[p.offset + i] : value(p.offset + i, 1);
                if (dtype == DType::f32)
                  wrong += w.as<float>()[i] != want;
                else if (dtype == DType::bf16)
                  wrong += w.as<bf16>()[i].bits != from_f32<bf16>(want).bits;
                else
                  wrong += w.as<f16>()[i].bits != from_f32<f16>(want).bits;
              }
              EXPECT_EQ(wrong, 0) << p.name.view() << " step " << step;
            });
          }
        };
        Context plan(Place::plan, settings);
        go(plan);
        schedule.pack();
        Context cpu(Place::cpu, settings);
        cpu.reserve(schedule);
        go(cpu);
      }
}

// A frozen table that rows are read of shares no run with other frozen parameters of no part: it may rest
// elsewhere.
TEST(PartRuns, AFrozenTableIsARunOfItsOwn) {
  ParamTable table;
  table.add({.name = Name("before"), .shape = {300}, .trainable = false});
  table.add({.name = Name("table"), .shape = {20, 16}, .trainable = false, .gathered = true});
  table.add({.name = Name("behind"), .shape = {8}, .trainable = false});
  table.add({.name = Name("trained"), .shape = {8}});
  std::vector<std::string> runs;
  for (const PartRun& run : part_runs(table)) {
    runs.push_back(run_name("w", table, run).str());
    if (table[run.param].frozen_table()) {
      EXPECT_EQ(run.elements, 512);
    }
  }
  std::sort(runs.begin(), runs.end());
  EXPECT_EQ(runs, (std::vector<std::string>{"w.before", "w.table", "w.trained"}));
}

}  // namespace
}  // namespace snug
