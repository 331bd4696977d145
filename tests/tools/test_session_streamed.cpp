// Weights that rest with the host and come layer by layer: memory changes, never numbers, and what
// orders the copies cannot be left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 32, .C = 32, .L = 5, .H = 2, .F = 128};

test::RunOptions options_of(int64_t micro) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = 16;
  o.decisions.eval_batch = 2;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.loss_scaling.init_scale = 64;
  o.optimizer.learning_rate = 1e-2;
  o.optimizer.weight_decay = 0.1;
  o.global_batch = 4;
  return o;
}

void stream(test::RunOptions& o) {
  o.decisions.offload_optimizer = o.decisions.offload_params = true;
}

struct StreamedCase {
  const char *precision, *optimizer;
  bool tied;
};

// With what else recomputes and offloads, in every mode of the streams, at random places with
// poison, and as planned too if `plain`.
void expect_no_bit_changes(const StreamedCase& c, bool plain) {
  SCOPED_TRACE(std::string(c.precision) + " " + c.optimizer);
  const struct {
    const char *recompute, *offload;
  } rows[] = {{"none", "none"}, {"block", "inputs"}, {"{0-1: mlp}", "{2: block}"}};
  test::Tiny tiny = kModel;
  tiny.tied = c.tied;
  tiny.dropout = 0.1;
  const Model model(test::tiny_spec(tiny), test::precision_of(c.precision));
  test::RunOptions o = options_of(2);
  o.optimizer.name = c.optimizer;
  const test::Trace resident = test::trace_of(model, o);
  EXPECT_TRUE(resident.finite());
  stream(o);
  for (const auto& row : rows)
    for (const StreamMode mode :
         {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
      test::RunOptions s = o;
      s.decisions.recompute = row.recompute;
      s.decisions.offload = row.offload;
      s.settings.streams = mode;
      if (plain) {
        EXPECT_TRUE(same_bits(test::trace_of(model, s), resident))
            << row.recompute << ", " << to_string(mode);
      }
      s.settings.poison = true;
      s.settings.guard_bytes = 256;
      s.shuffle = 7;
      s.settings.threads = 2;
      EXPECT_TRUE(same_bits(test::trace_of(model, s), resident))
          << row.recompute << ", " << to_string(mode) << ", poison at random places";
    }
}

TEST(SessionStreamed, ChangesNoBitOfLossGradientsAndWeights) {
  expect_no_bit_changes({"bf16", "adamw", false}, false);
}

// Every precision, head, optimizer with and without states.
TEST(SlowSessionStreamed, ChangesNoBitOfLossGradientsAndWeights) {
  for (const StreamedCase& c : {StreamedCase{"fp32", "adamw", true},
                                {"fp32", "sgd", false},
                                {"bf16", "adamw", false},
                                {"fp16", "sgd", true},
                                {"no_master", "adamw_bf16", true}})
    expect_no_bit_changes(c, true);
}

// And where backward consumes the gradients, so that of a layer neither weights nor gradients nor
// state stay on the device.
TEST(SessionStreamed, WithUpdatesInBackward) {
  for (const char* precision : {"fp32", "bf16", "no_master"})
    for (const bool tied : {true, false}) {
      test::Tiny tiny = kModel;
      tiny.tied = tied;
      const Model model(test::tiny_spec(tiny), test::precision_of(precision));
      test::RunOptions o = options_of(4);
      o.decisions.max_grad_norm = 0;
      o.decisions.update_in_backward = true;
      const test::Trace resident = test::trace_of(model, o);
      stream(o);
      for (const StreamMode mode :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        o.settings.streams = mode;
        EXPECT_TRUE(same_bits(test::trace_of(model, o), resident))
            << precision << ", " << to_string(mode);
      }
    }
}

// What a step holds of a block's weights on the device: two blocks' at most, and of the rest all.
TEST(SessionStreamed, TheDeviceHoldsTwoBlocksWhateverTheDepth) {
  for (const char* precision : {"fp32", "bf16"}) {
    const int64_t e = std::string(precision) == "bf16" ? 2 : 4;
    for (const int64_t L : {4, 9}) {
      test::Tiny tiny = kModel;
      tiny.L = L;
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      const ParamTable& table = model.params();
      int64_t block = 0, others = 0;
      for (int i = 0; i < table.size(); ++i) {
        const int64_t bytes = e * round_up(table[i].elements(), kSpanAlignment);
        (table[i].part < 0 ? others : block) += bytes;
      }
      block /= L;
      test::RunOptions o = options_of(2);
      stream(o);
      const Schedule s = test::plan_schedule(model, o);
      int64_t resident = 0, host = 0;
      for (const TensorRecord& t : s.at(s.find("root")).tensors) {
        if (t.category == Category::weights) resident += t.bytes;
        if (t.residence == Residence::host) host += t.bytes;
      }
      EXPECT_EQ(resident, others);
      // Two moments and the master, and in 16 bits the blocks' weights; gaps are nobody's state.
      const int64_t rounded = e == 2 ? L * block : 0;
      EXPECT_GE(host, 12 * table.real_elements() + rounded);
      EXPECT_LE(host, 12 * table.flat_elements() + rounded);
      for (const char* name : {"micro_first", "micro_next", "eval"}) {
        const Program& p = s.at(s.find(name));
        int64_t brought = 0;
        std::vector<std::pair<int64_t, int64_t>> changes;
        for (const TensorRecord& t : p.tensors)
          if (t.category == Category::weights) {
            brought += t.bytes;
            changes.emplace_back(t.born, t.bytes);
            changes.emplace_back(t.died, -t.bytes);
          }
        std::sort(changes.begin(), changes.end());
        int64_t live = 0, most = 0;
        for (const auto& [time, change] : changes) most = std::max(most, live += change);
        EXPECT_EQ(most, 2 * block) << name;
        EXPECT_EQ(brought, (std::string(name) == "eval" ? 1 : 2) * L * block) << name;
        EXPECT_EQ(p.bytes_copied(kToDevice), brought) << name;
        EXPECT_EQ(p.bytes_copied(kToHost), 0) << name;
      }
    }
  }
}

// The copies of a layer's weights hide behind the layer before: compute does not wait for the copy
// it has just asked for.
TEST(SessionStreamed, WeightsComeOneLayerAhead) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of(2);
  stream(o);
  const Schedule s = test::plan_schedule(model, o);
  const Program& p = s.at(s.find("micro_first"));
  int64_t ahead = 0;
  for (size_t i = 0; i < p.ops.size(); ++i) {
    if (p.ops[i].stream != kToDevice) continue;
    const std::string_view layer = p.ops[i].scope.view();
    size_t next = i + 1;
    while (next < p.ops.size() &&
           (p.ops[next].stream != kCompute || p.ops[next].scope.view() != layer))
      ++next;
    int64_t between = 0;
    for (size_t k = i + 1; k < next; ++k) between += p.ops[k].stream == kCompute;
    EXPECT_GT(between, 0) << layer;
    ahead += between > 3;
  }
  EXPECT_GE(ahead, 2 * kModel.L - 2);
}

// A schedule of which compute's wait for a copy is missing is not run; and in deferred mode a
// layer that did not wait would have read what was there before.
TEST(SessionStreamed, AMissingWaitIsSeen) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of(2);
  stream(o);
  const Schedule whole = test::plan_schedule(model, o);
  const test::MissingWaits m = test::without_each_wait(model, o, whole, "micro_first");
  EXPECT_GT(m.waits, 4 * kModel.L - 1);
  EXPECT_EQ(m.refused, m.waits);
}

// Forward without the order that events give: what a copy has not brought yet is not the weights.
class Hasty final : public ParamStore {
 public:
  Hasty(Context& ctx, const ParamTable& table, Tensor& host) : table_(table), host_(host) {
    device_ = ctx.tensor(Name("staging"), host.view().shape, DType::f32, Category::weights);
  }
  const ParamTable& table() const override { return table_; }
  void fetch_part(Context& ctx, int) override {
    ctx.wait_event(kToDevice, ctx.record_event(kCompute));
    ctx.copy_to_device(device_, host_);
    coming_ = ctx.record_event(kToDevice);
  }
  View acquire(Context&, int) override { return device_.view(); }  // and no wait
  void release(Context&, int) override {}
  void drop_part(Context& ctx, int) override { ctx.wait_event(kCompute, coming_); }

 private:
  const ParamTable& table_;
  Tensor& host_;
  Tensor device_;
  Event coming_;
};

TEST(SessionStreamed, DeferredStreamsShowWeightsThatWereNotWaitedFor) {
  ParamTable table;
  table.add({.name = Name("w"), .shape = {1024}, .part = 0});
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const int step = schedule.add(Name("step"), root, false);
  for (const bool plan : {true, false}) {
    Settings settings;
    settings.streams = StreamMode::deferred;
    Context ctx(plan ? Place::plan : Place::cpu, settings);
    if (!plan) {
      schedule.pack();
      ctx.reserve(schedule);
    }
    Tensor host;
    std::unique_ptr<Hasty> store;
    ctx.program(schedule, root, [&] {
      host = ctx.host_tensor(Name("host"), {1024}, DType::f32);
      store = std::make_unique<Hasty>(ctx, table, host);
    });
    if (!plan) std::fill_n(host.view().as<float>(), 1024, 3.0f);
    float seen = 0;
    ctx.program(schedule, step, [&] {
      store->fetch_part(ctx, 0);
      const View w = store->acquire(ctx, 0);
      if (!plan) seen = w.as<float>()[5];
      store->drop_part(ctx, 0);
      if (!plan) {
        EXPECT_NE(seen, 3.0f);
        EXPECT_EQ(w.as<float>()[5], 3.0f);
      }
    });
  }
}

// Pieces of one tensor of the host come as one copy, which waits for whoever wrote any of them.
TEST(SessionStreamed, PiecesComeTogetherAfterWhatWroteThem) {
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const int step = schedule.add(Name("step"), root, false);
  Context plan(Place::plan, {});
  Tensor whole, other;
  std::vector<Tensor> pieces, others;
  plan.program(schedule, root, [&] {
    whole = plan.host_tensor(Name("host"), {768}, DType::f32);
    other = plan.host_tensor(Name("other"), {512}, DType::f32);
    const std::vector<int64_t> sizes = {256, 512}, halves = {256, 256};
    pieces = plan.split(whole, sizes);
    others = plan.split(other, halves);
  });
  const auto run = [&](bool wait, std::vector<Tensor*> from, int64_t elements) {
    plan.program(schedule, step, [&] {
      Tensor window = plan.tensor(Name("window"), {512}, DType::f32, Category::master);
      Tensor block = plan.tensor(Name("block"), {elements}, DType::f32, Category::weights);
      plan.wait_event(kToHost, plan.record_event(kCompute));
      plan.copy_to_host(pieces[1], window);
      const Event written = plan.record_event(kToHost);
      plan.wait_event(kToDevice, plan.record_event(kCompute));
      if (wait) plan.wait_event(kToDevice, written);
      plan.copy_to_device(block, from);
      plan.wait_event(kCompute, written);
      plan.wait_event(kCompute, plan.record_event(kToDevice));
    });
  };
  run(true, {&pieces[0], &pieces[1]}, 768);
  EXPECT_EQ(schedule.at(step).bytes_copied(kToDevice), 768 * 4);
  EXPECT_EQ(schedule.at(step).ops.size(), 2u);
  test::expect_error(ErrorCode::internal, {"to_device to wait for to_host before a copy"}, [&] {
    run(false, {&pieces[0], &pieces[1]}, 768);
  });
  run(false, {&pieces[0]}, 256);
  test::expect_error(ErrorCode::internal, {"consecutive pieces of one host tensor"}, [&] {
    run(true, {&pieces[0], &others[1]}, 512);
  });
  test::expect_error(ErrorCode::internal, {"room for exactly the pieces"}, [&] {
    run(true, {&pieces[0], &pieces[1]}, 512);
  });
  test::expect_error(ErrorCode::internal, {"pieces to copy"}, [&] { run(true, {}, 256); });
}

// Weights of a model folder written while they are with the host are those of the resident run.
TEST(SessionStreamed, SavesTheSameModel) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  const SafetensorsLayout layout = weights_layout(model, DType::f32);
  std::string files[2];
  for (const bool streamed : {false, true}) {
    test::RunOptions o = options_of(4);
    o.decisions.save = true;
    o.settings.streams = StreamMode::worker;
    if (streamed) stream(o);
    test::SessionRun run(model, o);
    run.train_step(0);
    const std::string path = testing::TempDir() + "snug_streamed.safetensors";
    run.session().save_model(path, layout);
    std::ifstream in(path, std::ios::binary);
    files[streamed].assign(std::istreambuf_iterator<char>(in), {});
    std::filesystem::remove(path);
  }
  EXPECT_GT(files[0].size(), 1000u);
  EXPECT_EQ(files[0], files[1]);
}

}  // namespace
}  // namespace snug
