// Predicted = measured: the arena of many configurations, the operating system's view of it, no
// block that outlives its step, and results that do not depend on where tensors lie.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/core/units.h"
#include "tests/tools/session_case.h"
#include "tools/costs/matrix_pieces.h"
#include "tools/infer/generator.h"
#include "tools/planner/plan.h"
#include "tools/trainer/allocation_watch.h"

namespace snug {
namespace {

using test::Tiny;

struct Config {
  const char* name;
  Tiny model;
  const char* precision;
  const char* optimizer;
  const char* recompute;
  int64_t T, global_batch, micro_batch, head_rows;
  int64_t eval_batch, kv_length, prefill;  // 0: without
  int threads = 1;
  bool documents = false;  // kept apart
  int64_t kv_rows = 1;
  const char* offload = "none";
  DType gradients = DType::f32;
  bool offload_params = false;  // and the optimizer's state
  bool update_in_backward = false;
  bool offload_gradients = false;
};

// Every value of every axis is here, and the pairs that share code: recompute with precision and
// dropout, tied with precision, accumulation with optimizers, programs with and without each other.
const Config kConfigs[] = {
    {"plain", {}, "fp32", "adamw", "none", 16, 4, 4, 64, 2, 24, 8},
    {"plain_bf16", {}, "bf16", "adamw", "none", 16, 4, 4, 64, 2, 24, 8},
    {"plain_fp16", {}, "fp16", "adamw", "none", 16, 4, 4, 64, 2, 24, 8},
    {"norms_mlp_fp16", {}, "fp16", "adamw", "norms+mlp", 16, 4, 2, 64, 2, 24, 8},
    {"attention_fp16", {}, "fp16", "adamw", "attention", 16, 4, 2, 64, 2, 24, 8},
    {"block_fp16", {}, "fp16", "adamw", "block", 16, 4, 2, 64, 2, 24, 8},
    {"dropout_fp16", {.dropout = 0.1}, "fp16", "momentum", "mlp", 16, 4, 2, 64, 2, 24, 8},
    {"untied_fp16", {.tied = false}, "fp16", "sgd", "block", 16, 4, 1, 16, 2, 24, 8, 2},
    {"no_master", {}, "no_master", "adamw", "mlp", 16, 4, 2, 64, 2, 24, 8, 2},
    {"no_master_8bit", {.tied = false}, "no_master", "lion_8bit", "block", 16, 4, 1, 16, 2, 24, 8},
    {"adafactor", {}, "no_master", "adafactor", "block", 16, 4, 2, 64, 2, 24, 8, 2},
    {"lamb", {}, "bf16", "lamb", "block", 16, 4, 2, 64, 2, 24, 8, 2},
    {"muon", {}, "bf16", "muon", "block", 16, 4, 2, 64, 2, 24, 8, 2},
    {"muon_no_master", {}, "no_master", "muon", "block", 16, 4, 2, 64, 2, 24, 8},
    {"adam_mini", {}, "bf16", "adam_mini", "block", 16, 4, 2, 64, 2, 24, 8, 2},
    {"norms", {}, "fp32", "adamw", "norms", 16, 4, 4, 64, 2, 24, 8},
    {"mlp", {}, "fp32", "adamw", "mlp", 16, 4, 4, 64, 2, 24, 8},
    {"attention", {}, "fp32", "adamw", "attention", 16, 4, 4, 64, 2, 24, 8},
    {"block", {}, "fp32", "adamw", "block", 16, 4, 4, 64, 2, 24, 8},
    {"norms_mlp_attention", {}, "fp32", "adamw", "norms+mlp+attention", 16, 4, 2, 64, 2, 0, 0},
    {"norms_bf16", {}, "bf16", "adamw", "norms", 16, 4, 2, 64, 2, 24, 8},
    {"mlp_bf16", {}, "bf16", "adamw", "mlp", 16, 4, 2, 64, 2, 24, 8},
    {"attention_bf16", {}, "bf16", "adamw", "attention", 16, 4, 2, 64, 2, 24, 8},
    {"block_bf16", {}, "bf16", "adamw", "block", 16, 4, 2, 64, 2, 24, 8},
    {"layer_map", {.L = 4}, "fp32", "adamw", "{0-1: block, 3: norms+mlp}", 16, 4, 4, 64, 4, 0, 0},
    {"layer_map_bf16",
     {.L = 4},
     "bf16",
     "sgd",
     "{1: attention, 2-3: block}",
     16,
     4,
     1,
     64,
     4,
     0,
     0},
    {"dropout", {.dropout = 0.1}, "fp32", "adamw", "none", 16, 4, 2, 64, 2, 0, 0},
    {"dropout_block", {.dropout = 0.1}, "fp32", "adamw", "block", 16, 4, 2, 64, 2, 24, 8},
    {"dropout_bf16", {.dropout = 0.1}, "bf16", "adamw", "mlp", 16, 4, 2, 64, 2, 24, 8},
    {"sgd", {}, "fp32", "sgd", "none", 16, 4, 4, 64, 2, 24, 8},
    {"momentum", {}, "fp32", "momentum", "none", 16, 4, 4, 64, 2, 24, 8},
    {"adam", {}, "fp32", "adam", "none", 16, 4, 4, 64, 2, 24, 8},
    {"lion", {}, "fp32", "lion", "none", 16, 4, 2, 64, 2, 24, 8},
    {"lion_bf16", {}, "bf16", "lion", "block", 16, 4, 2, 64, 2, 24, 8},
    {"rmsprop", {}, "fp32", "rmsprop", "none", 16, 4, 2, 64, 2, 24, 8},
    {"ademamix_bf16", {}, "bf16", "ademamix", "block", 16, 4, 2, 64, 2, 24, 8},
    {"momentum_bf16", {}, "bf16", "momentum", "norms+mlp", 16, 4, 1, 64, 2, 24, 8},
    {"untied", {.tied = false}, "fp32", "adamw", "none", 16, 4, 4, 64, 2, 24, 8},
    {"untied_bf16_block", {.tied = false}, "bf16", "adamw", "block", 16, 4, 2, 16, 2, 24, 8},
    {"accumulate_by_one", {}, "fp32", "adamw", "none", 16, 6, 1, 64, 6, 24, 8},
    {"accumulate_unequal", {}, "fp32", "adamw", "norms", 16, 6, 4, 64, 1, 24, 8},
    {"one_token", {}, "fp32", "adamw", "none", 1, 3, 3, 64, 3, 4, 4},
    {"one_sequence_odd_length", {}, "fp32", "adamw", "mlp", 29, 1, 1, 7, 1, 32, 5},
    {"chunks_of_one_row", {}, "fp32", "adamw", "none", 9, 2, 2, 1, 2, 24, 1},
    {"eval_larger_than_micro", {}, "bf16", "adamw", "block", 16, 4, 1, 8, 16, 24, 8},
    {"no_eval_no_generation", {}, "fp32", "adam", "block", 16, 4, 2, 64, 0, 0, 0},
    {"large_vocabulary", {.V = 3000}, "fp32", "sgd", "none", 16, 4, 2, 5, 2, 24, 8},
    {"vocabulary_of_128",
     {.V = 128, .tied = false},
     "bf16",
     "adamw",
     "none",
     16,
     4,
     2,
     5,
     2,
     24,
     8},
    {"wide",
     {.C = 130, .L = 1, .H = 5, .F = 77},
     "fp32",
     "adamw",
     "block",
     24,
     3,
     3,
     50,
     1,
     30,
     32},
    {"wide_bf16",
     {.C = 130, .L = 1, .H = 5, .F = 77},
     "bf16",
     "adamw",
     "none",
     24,
     3,
     3,
     50,
     1,
     30,
     7},
    {"deep", {.C = 16, .L = 12, .H = 1, .F = 64}, "fp32", "adamw", "block", 8, 2, 2, 64, 2, 16, 8},
    {"deep_bf16",
     {.C = 16, .L = 12, .H = 1, .F = 64},
     "bf16",
     "adamw",
     "attention",
     8,
     2,
     1,
     64,
     2,
     16,
     8},
    {"two_threads", {.C = 48, .dropout = 0.1}, "fp32", "adamw", "mlp", 32, 8, 4, 64, 4, 32, 8, 2},
    {"two_threads_bf16", {.C = 48}, "bf16", "adamw", "block", 32, 8, 4, 64, 4, 32, 8, 2},
    {"documents", {.dropout = 0.1}, "fp32", "adamw", "norms", 16, 4, 2, 64, 4, 24, 8, 1, true},
    {"documents_bf16", {}, "bf16", "adamw", "block", 32, 8, 4, 64, 2, 0, 0, 2, true},
    {"rows", {}, "fp32", "adamw", "none", 16, 4, 4, 64, 2, 24, 8, 1, false, 3},
    {"rows_bf16", {.C = 48}, "bf16", "adamw", "block", 16, 4, 4, 64, 0, 24, 8, 2, false, 5},
    {.name = "offload_inputs",
     .model = {.L = 5, .dropout = 0.1},
     .precision = "fp32",
     .optimizer = "adamw",
     .recompute = "block",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 2,
     .head_rows = 8,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .offload = "inputs"},
    {.name = "offload_block_bf16",
     .model = {.L = 4, .dropout = 0.1},
     .precision = "bf16",
     .optimizer = "adamw",
     .recompute = "norms",
     .T = 16,
     .global_batch = 6,
     .micro_batch = 4,
     .head_rows = 64,
     .eval_batch = 0,
     .kv_length = 0,
     .prefill = 0,
     .threads = 2,
     .documents = true,
     .offload = "block"},
    {.name = "offload_map",
     .model = {.L = 4, .tied = false},
     .precision = "fp32",
     .optimizer = "sgd",
     .recompute = "{1: mlp, 2: block}",
     .T = 9,
     .global_batch = 2,
     .micro_batch = 2,
     .head_rows = 5,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .offload = "{0: block, 1: inputs+qkv, 3: fc}"},
    {.name = "bf16_gradients",
     .model = {.dropout = 0.1},
     .precision = "fp32",
     .optimizer = "adamw",
     .recompute = "block",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 2,
     .head_rows = 8,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .threads = 2,
     .documents = true,
     .gradients = DType::bf16},
    {.name = "bf16_gradients_fp16",
     .model = {.tied = false},
     .precision = "fp16",
     .optimizer = "momentum",
     .recompute = "none",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 4,
     .head_rows = 64,
     .eval_batch = 0,
     .kv_length = 0,
     .prefill = 0,
     .gradients = DType::bf16},
    {.name = "offload_params",
     .model = {.L = 5, .dropout = 0.1},
     .precision = "fp32",
     .optimizer = "adamw",
     .recompute = "block",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 2,
     .head_rows = 8,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .kv_rows = 2,
     .offload = "inputs",
     .offload_params = true},
    {.name = "offload_params_bf16",
     .model = {.L = 4, .tied = false, .dropout = 0.1},
     .precision = "bf16",
     .optimizer = "momentum",
     .recompute = "norms+mlp",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 4,
     .head_rows = 64,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .threads = 2,
     .documents = true,
     .gradients = DType::bf16,
     .offload_params = true,
     .update_in_backward = true},
    {.name = "offload_params_fp16",
     .model = {.C = 130, .L = 1, .H = 5, .F = 77},
     .precision = "fp16",
     .optimizer = "sgd",
     .recompute = "none",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 2,
     .head_rows = 64,
     .eval_batch = 2,
     .kv_length = 0,
     .prefill = 0,
     .offload_params = true},
    {.name = "offload_gradients",
     .model = {.L = 5, .tied = false, .dropout = 0.1},
     .precision = "bf16",
     .optimizer = "adamw",
     .recompute = "norms+mlp",
     .T = 16,
     .global_batch = 6,
     .micro_batch = 2,
     .head_rows = 64,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .threads = 2,
     .offload_gradients = true},
    {.name = "offload_all_fp16",
     .model = {.L = 4},
     .precision = "fp16",
     .optimizer = "momentum",
     .recompute = "block",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 2,
     .head_rows = 64,
     .eval_batch = 0,
     .kv_length = 0,
     .prefill = 0,
     .offload = "inputs",
     .gradients = DType::bf16,
     .offload_params = true,
     .offload_gradients = true},
    {.name = "no_master_away",
     .model = {.L = 4, .dropout = 0.1},
     .precision = "no_master",
     .optimizer = "adamw_bf16",
     .recompute = "block",
     .T = 16,
     .global_batch = 4,
     .micro_batch = 4,
     .head_rows = 64,
     .eval_batch = 2,
     .kv_length = 24,
     .prefill = 8,
     .gradients = DType::bf16,
     .offload_params = true,
     .update_in_backward = true},
};
static_assert(std::size(kConfigs) >= 30);

test::RunOptions options_of(const Config& c, const Model& model) {
  test::RunOptions o;
  o.decisions.T = c.T;
  o.decisions.micro_batch = c.micro_batch;
  o.decisions.head_rows = c.head_rows;
  o.decisions.recompute = c.recompute;
  o.decisions.offload = c.offload;
  o.decisions.gradients = c.gradients;
  o.settings.streams = StreamMode::worker;
  o.decisions.eval_batch = c.eval_batch;
  o.decisions.kv_length = c.kv_length;
  o.decisions.kv_rows = c.kv_rows;
  o.decisions.prefill = c.prefill;
  o.decisions.max_grad_norm = c.update_in_backward ? 0.0 : 1.0;
  o.decisions.offload_optimizer = o.decisions.offload_params = c.offload_params;
  o.decisions.update_in_backward = c.update_in_backward;
  o.decisions.offload_gradients = c.offload_gradients;
  o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
  o.decisions.save = true;
  o.decisions.packing_boundaries = c.documents;
  const bool momentum = std::string(c.optimizer) == "momentum";
  o.optimizer.name = momentum ? "sgd" : c.optimizer;
  o.optimizer.sgd_momentum = momentum ? 0.9 : 0.0;
  o.optimizer.learning_rate = 1e-2;
  add_pieces(o.optimizer, model);
  o.settings.threads = c.threads;
  o.global_batch = c.global_batch;
  return o;
}

void PrintTo(const Config& c, std::ostream* out) {
  *out << c.name;
}
std::string name_of(const testing::TestParamInfo<Config>& info) {
  return info.param.name;
}

// Anonymous bytes of the process, exact: the page tables are walked. (RssAnon of /proc/self/status
// is kept in per-processor counters that are summed up late.)
int64_t anonymous_bytes() {
  std::ifstream in("/proc/self/smaps_rollup");
  std::string word;
  while (in >> word)
    if (word == "Anonymous:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return -1;
}

// What RssAnon may lag behind the truth: each processor holds back a batch of max(32, 2 processors)
// pages before it adds to the shared counter; older kernels up to 64 pages a thread.
int64_t counter_lag() {
  const int64_t processors = sysconf(_SC_NPROCESSORS_CONF);
  const int64_t batch = std::max<int64_t>(64, 2 * processors);
  return batch * processors * 4096;
}

class SessionMemory : public testing::TestWithParam<Config> {};

// T1 and the resident pages: nothing outlives its step, and the arena is what was planned, before
// the first step and after the last.
TEST_P(SessionMemory, PlannedIsMeasuredAndNothingIsAllocatedAfterTheStart) {
  const Config& c = GetParam();
  const Model model(test::tiny_spec(c.model), test::precision_of(c.precision));
  const test::RunOptions o = options_of(c, model);
  const Schedule schedule = test::plan_schedule(model, o);
  test::SessionRun run(model, o, schedule);
  Session& session = run.session();
  const SafetensorsLayout layout = weights_layout(model, DType::f32);
  const std::string path =
      testing::TempDir() + fmt::format("snug_session_{}_{}.safetensors", c.name, getpid());
  Sampler sampler(model.spec().V, {.temperature = 0.9, .top_k = 20});
  const std::vector<int32_t> prompt(static_cast<size_t>(std::max<int64_t>(1, c.kv_length / 2)), 5);
  GenerationOptions generation;
  generation.max_new_tokens = 3;
  int64_t generated = 0;
  const std::function<bool(int32_t)> each = [&](int32_t) { return ++generated < 3; };

  EXPECT_EQ(session.context().arena_bytes(), schedule.arena_bytes());
  EXPECT_EQ(session.context().resident_bytes() - schedule.arena_bytes(), 0);
  EXPECT_EQ(session.context().host_resident_bytes() - schedule.host_bytes(), 0);
  EXPECT_EQ(schedule.host_bytes() > 0,
            c.offload_params || c.offload_gradients || std::string(c.offload) != "none");

  // The first step warms up: threads start, the standard library makes its buffers.
  ASSERT_TRUE(std::isfinite(run.train_step(0)));
  const int64_t before = allocation_watch::breaches();
  allocation_watch::start();
  for (int64_t step = 1; step < 3; ++step) {
    EXPECT_TRUE(std::isfinite(run.train_step(step)));
    allocation_watch::step_done();
  }
  if (c.eval_batch > 0) {
    EXPECT_TRUE(std::isfinite(run.evaluate()));
  }
  allocation_watch::step_done();
  if (c.kv_length > 0) {
    generate(session, sampler, prompt, generation, each);
    EXPECT_EQ(generated, 3);
    if (c.kv_rows > 1) session.fork();
  }
  allocation_watch::step_done();
  session.save_model(path, layout);
  allocation_watch::step_done();
  EXPECT_TRUE(std::isfinite(run.train_step(3)));
  allocation_watch::step_done();
  allocation_watch::stop();
  EXPECT_EQ(allocation_watch::breaches() - before, 0);  // always 0 where it is not available

  EXPECT_EQ(session.context().resident_bytes() - schedule.arena_bytes(), 0);
  EXPECT_EQ(session.context().host_resident_bytes() - schedule.host_bytes(), 0);
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), layout.total_bytes());
  std::filesystem::remove(path);
}

// T2: the process grows by the arena and by what the heap gave to the small objects of a session.
TEST_P(SessionMemory, ProcessGrowsByTheArena) {
  if (!allocation_watch::available()) GTEST_SKIP() << "sanitizers keep shadow memory";
  const Config& c = GetParam();
  const Model model(test::tiny_spec(c.model), test::precision_of(c.precision));
  const test::RunOptions o = options_of(c, model);
  const Schedule schedule = test::plan_schedule(model, o);
  // Threads, the stream's buffer and the code paths exist before the measurement.
  { const test::SessionRun warm(model, o, schedule); }
  if (anonymous_bytes() < 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
  const auto heap = static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
  const int64_t before = anonymous_bytes();
  const test::SessionRun run(model, o, schedule);
  const int64_t grown = anonymous_bytes() - before;
  const int64_t small = static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd) - heap;
  // Above the arena: the small objects, and the pages they open at the top of the heap, which glibc
  // extends by 128 KiB at a time. Below it: nothing but pages the heap gave back.
  const int64_t arenas = schedule.arena_bytes() + schedule.host_bytes();
  EXPECT_GE(grown, arenas - (128 << 10));
  EXPECT_LE(grown, arenas + std::max<int64_t>(0, small) + (128 << 10));
}

// T4: fresh and dead bytes are NaN, and every tensor has a guard behind it: nothing reads what it
// did not write, nothing writes past an end. T5: the same at random places.
TEST_P(SessionMemory, GuardsPoisonAndRandomPlacesChangeNoBit) {
  const Config& c = GetParam();
  const Model model(test::tiny_spec(c.model), test::precision_of(c.precision));
  test::RunOptions o = options_of(c, model);
  const test::Trace plain = test::trace_of(model, o);
  EXPECT_TRUE(plain.finite());
  o.settings.guard_bytes = 256;
  o.settings.poison = true;
  EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << "guards and poison";
  o.shuffle = 77;
  EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << "at random places";
}

INSTANTIATE_TEST_SUITE_P(All, SessionMemory, testing::ValuesIn(kConfigs), name_of);

class SessionPackings : public testing::TestWithParam<Config> {};

// T5 in full: twenty random packings, all different from the planned one.
TEST_P(SessionPackings, TwentyRandomPackingsChangeNoBit) {
  const Config& c = GetParam();
  const Model model(test::tiny_spec(c.model), test::precision_of(c.precision));
  test::RunOptions o = options_of(c, model);
  const test::Trace plain = test::trace_of(model, o);
  const Schedule packed = test::plan_schedule(model, o);
  for (o.shuffle = 1; o.shuffle <= 20; ++o.shuffle) {
    const Schedule shuffled = test::plan_schedule(model, o);
    bool moved = false;
    for (int i = 0; i < packed.size(); ++i)
      moved = moved || shuffled.at(i).packing.offsets != packed.at(i).packing.offsets;
    EXPECT_TRUE(moved) << "packing " << o.shuffle << " is the planned one";
    EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << "packing " << o.shuffle;
  }
}
INSTANTIATE_TEST_SUITE_P(Slow, SessionPackings, testing::ValuesIn(kConfigs), name_of);

// The same for a few in the fast suite.
TEST(SessionPacking, RandomPackingsChangeNoBit) {
  for (const char* name :
       {"plain", "dropout_block", "untied_bf16_block", "offload_block_bf16", "offload_map"}) {
    const auto* c = std::find_if(std::begin(kConfigs), std::end(kConfigs),
                                 [&](const Config& k) { return std::string(k.name) == name; });
    const Model model(test::tiny_spec(c->model), test::precision_of(c->precision));
    test::RunOptions o = options_of(*c, model);
    const test::Trace plain = test::trace_of(model, o);
    for (o.shuffle = 1; o.shuffle <= 6; ++o.shuffle)
      EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << name << ", packing " << o.shuffle;
  }
}

// The reservation alone, at a size where a lost page table or a second copy would show.
TEST(SessionArena, OperatingSystemCountsExactlyTheArena) {
  if (!allocation_watch::available()) GTEST_SKIP() << "sanitizers keep shadow memory";
  for (const int64_t mib : {1, 100}) {
    Schedule schedule;
    const int root = schedule.add(Name("root"), -1, true);
    {
      Context plan(Place::plan, {});
      Tensor t;
      plan.program(schedule, root, [&] {
        t = plan.tensor(Name("t"), {(mib << 20) + 12345}, DType::u8, Category::weights);
      });
    }
    schedule.pack();
    EXPECT_EQ(schedule.arena_bytes(), round_up((mib << 20) + 12345, 4096));
    {  // the threads that touch pages have their stacks
      Context warm(Place::cpu, {});
      warm.reserve(schedule);
    }
    if (anonymous_bytes() < 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
    process_private_bytes();
    Context ctx(Place::cpu, {});
    const int64_t lazy = process_private_bytes(), before = anonymous_bytes();
    ctx.reserve(schedule);
    const int64_t after = anonymous_bytes(), lazy_after = process_private_bytes();
    // The process's own stack and heap may open a page between the two readings (seen: one page in
    // one run of about thirty). The arena itself, next line, is exact.
    EXPECT_GE(after - before, schedule.arena_bytes()) << mib << " MiB";
    EXPECT_LE(after - before, schedule.arena_bytes() + 2 * 4096) << mib << " MiB";
    EXPECT_EQ(ctx.resident_bytes(), schedule.arena_bytes());
    EXPECT_LE(std::abs(lazy_after - lazy - schedule.arena_bytes()), counter_lag());
  }
}

// A budget of the operating system's own: the arena is all that a session reserves, so that a guard
// page stands on both sides of it and the first byte past its end cannot be written.
TEST(SessionArenaDeathTest, TheByteBehindTheArenaIsNotOurs) {
  if (!allocation_watch::available()) GTEST_SKIP() << "sanitizers report it in their own words";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  Tensor t;
  const auto make = [&](Context& ctx) {
    ctx.program(schedule, root,
                [&] { t = ctx.tensor(Name("t"), {8192}, DType::u8, Category::weights); });
  };
  {
    Context plan(Place::plan, {});
    make(plan);
    t.reset();
  }
  schedule.pack();
  Context ctx(Place::cpu, {});
  ctx.reserve(schedule);
  make(ctx);
  t.view().as<uint8_t>()[8191] = 1;
  EXPECT_DEATH(t.view().as<uint8_t>()[schedule.arena_bytes()] = 1, "");
  t.reset();
}

}  // namespace
}  // namespace snug
