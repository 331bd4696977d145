// What a run on a GPU names and holds fast, on machines without one: the libraries that compute,
// the bytes beside the arena, and the warm-up before the first step.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/calibrate/roofs.h"
#include "tools/checkpoint/pinning.h"
#include "tools/config/run_config.h"
#include "tools/planner/attention_choice.h"
#include "tools/planner/ladder.h"
#include "tools/planner/plan_search.h"
#include "tools/session/device_choice.h"
#include "tools/session/gpu_memory.h"
#include "tools/session/warm_up.h"
#include "tools/setup/plan_file.h"
#include "tools/setup/setup.h"
#include "tools/trainer/forecast.h"

namespace snug {
namespace {

using test::expect_error;

ComputesOn some_gpu() {
  ComputesOn on;
  on.gpu = "NVIDIA H200, compute capability 9.0";
  on.cublaslt = "13.1.0";
  on.cudnn = "none";
  return on;
}

TEST(ComputesOn, SaysTheFirstThatDiffers) {
  const ComputesOn a = some_gpu();
  EXPECT_FALSE(difference(a, a));
  ComputesOn b = a;
  b.algorithms = {{"m=1", "0"}};
  EXPECT_FALSE(difference(a, b)) << "they are taken over";
  b.cudnn = "9.12.0";
  EXPECT_EQ(difference(a, b)->what, "cuDNN");
  b.cublaslt = "12.9.1";
  EXPECT_EQ(difference(a, b)->what, "cuBLASLt");
  EXPECT_EQ(difference(a, b)->before, "13.1.0");
  EXPECT_EQ(difference(a, b)->now, "12.9.1");
  b.gpu = "NVIDIA H100, compute capability 9.0";
  EXPECT_EQ(difference(a, b)->what, "the GPU");
  EXPECT_EQ(describe(a), "products by cuBLASLt 13.1.0");
  EXPECT_EQ(describe(b),
            "products by cuBLASLt 12.9.1, attention by cuDNN 9.12.0, 1 algorithms that were "
            "measured");
  b.cublaslt = "none";
  EXPECT_EQ(describe(b).find("products by the program's kernel"), 0u);
}

TEST(ComputesOn, ComesBackFromJson) {
  ComputesOn on = some_gpu();
  on.algorithms = {{"m=1 n=2", std::string(128, 'a')}, {"m=2 n=2", std::string(128, 'b')}};
  EXPECT_EQ(parse_computes_on({{"computes_on", computes_on_json(on)}}, "f"), on);
  EXPECT_EQ(computes_on_json({}), nlohmann::json());
  EXPECT_FALSE(parse_computes_on(nlohmann::json::object(), "f").defined());
  EXPECT_FALSE(parse_computes_on({{"computes_on", nullptr}}, "f").defined());
  expect_error(ErrorCode::data, {"f / computes_on"}, [] {
    parse_computes_on({{"computes_on", 3}}, "f");
  });
  expect_error(ErrorCode::data, {"cublaslt", "f / computes_on"}, [] {
    parse_computes_on({{"computes_on", {{"gpu", "x"}}}}, "f");
  });
}

// Another GPU or library may change the last bits, so a resume asks for the permission.
TEST(ComputesOn, IsPinnedByCheckpoints) {
  Checkpoint c;
  c.folder = "run/checkpoint-8";
  c.pinned.computes_on = some_gpu();
  c.pinned.computes_on.algorithms = {{"m=1", std::string(128, '0')}};
  ComputesOn now = some_gpu();
  check_computes_on(c, now, {});
  EXPECT_EQ(now.algorithms, c.pinned.computes_on.algorithms) << "those that were measured go on";

  now = some_gpu();
  now.cublaslt = "12.9.1";
  expect_error(ErrorCode::usage,
               {"cuBLASLt as run/checkpoint-8 pins it: 13.1.0", "found: 12.9.1",
                "allow=[kernels] to go on with this machine's own"},
               [&] { check_computes_on(c, now, {}); });
  RunConfig allowed;
  allowed.allow = {"kernels"};
  testing::internal::CaptureStdout();
  check_computes_on(c, now, allowed);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "Note: resuming with cuBLASLt 12.9.1 instead of 13.1.0: the last bits may differ.\n");
  EXPECT_TRUE(now.algorithms.empty()) << "of another library";

  now.gpu = "NVIDIA H100, compute capability 9.0";
  expect_error(ErrorCode::usage,
               {"the GPU as run/checkpoint-8 pins it: NVIDIA H200, compute capability 9.0"},
               [&] { check_computes_on(c, now, {}); });

  // What was not measured before is not measured now.
  c.pinned.computes_on.algorithms.clear();
  now = some_gpu();
  RunConfig tuned;
  tuned.matmul_autotune = true;
  expect_error(ErrorCode::usage,
               {"matmul_autotune as in run/checkpoint-8: false", "true (default)",
                "matmul_autotune=false, or allow=[kernels]"},
               [&] { check_computes_on(c, now, tuned); });
  tuned.allow = {"kernels"};
  check_computes_on(c, now, tuned);
  // Where it was asked for and found nothing to measure, a run goes on as it is; nor does it
  // measure then what it could have before.
  c.pinned.matmul_autotune = true;
  tuned.allow.clear();
  check_computes_on(c, now, tuned);
  EXPECT_TRUE(now.algorithms.empty());
  EXPECT_FALSE(may_tune(c, tuned));
  tuned.allow = {"kernels"};
  EXPECT_TRUE(may_tune(c, tuned));
  // Attention by another implementation because its key says so: it is the key that is named.
  ComputesOn own = some_gpu();
  own.cudnn = "none";
  RunConfig asked;
  asked.attn_implementation = "own";
  c.pinned.computes_on.cudnn = "9.12.0";
  expect_error(ErrorCode::usage,
               {"attn_implementation as in run/checkpoint-8: cudnn", "found: own",
                "attn_implementation=cudnn, or allow=[kernels] to go on with the other"},
               [&] { check_computes_on(c, own, asked); });
  expect_error(ErrorCode::usage, {"cuDNN as run/checkpoint-8 pins it: 9.12.0"},
               [&] { check_computes_on(c, own, {}); });
  c.pinned.attention = "cudnn";
  expect_error(ErrorCode::usage,
               {"a device that computes attention as run/checkpoint-8 pins it: cudnn", "cuda"},
               [&] { check_attention(c, "cuda", {}); });
  // Checkpoints from before it was pinned.
  c.pinned.computes_on = {};
  now.cublaslt = "1.0.0";
  check_computes_on(c, now, {});
}

// Precisions that have the same dtypes are told apart.
TEST(ComputesOn, Tf32IsPinned) {
  const auto setup = [](const char* precision) {
    return make_setup(load_config_text(
        std::string(
            "model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 16, "
            "vocab_size: 64}\ndevice: cuda\ntarget: h100\nglobal_batch_size: 2\nthreads: 1\n"
            "precision: ") +
            precision,
        "run.yaml", {}));
  };
  RunSetup tf32 = setup("tf32");
  Decisions d;
  d.micro_batch = 2;
  d.head_rows = 16;
  Checkpoint c;
  c.folder = "run/checkpoint-8";
  c.pinned = make_pinned(tf32, d, {}, "");
  c.pinned.attention = "cuda";
  apply_pins(c, tf32);
  RunSetup fp32 = setup("fp32");
  expect_error(ErrorCode::usage, {"precision as in run/checkpoint-8: tf32", "fp32"},
               [&] { apply_pins(c, fp32); });
}

TEST(ComputesOn, IsNamedByPlansThatAreFollowed) {
  const TempFolder folder;
  const auto setup = [] {
    return make_setup(load_config_text(
        "model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 16, vocab_size: 64}\n"
        "device: emu\nmemory: 1GiB\nglobal_batch_size: 2\nthreads: 1",
        "run.yaml", {}));
  };
  RunSetup made = setup();
  made.request.computes_on = some_gpu();
  made.request.computes_on.algorithms = {{"m=1", std::string(128, '0')}};
  const Plan plan = make_plan(made.request);
  ASSERT_TRUE(plan.fits);
  const std::string path = folder / "plan.json";
  write_atomic(path, plan_json(plan).dump());
  const PlanFile file = read_plan_file(path);
  EXPECT_EQ(file.computes_on, made.request.computes_on);

  RunSetup same = setup();
  same.request.computes_on = some_gpu();
  follow_plan(file, same);
  EXPECT_EQ(same.request.computes_on.algorithms, file.computes_on.algorithms);
  EXPECT_EQ(plan_hash(make_plan(same.request)), file.hash);

  RunSetup other = setup();
  other.request.computes_on = some_gpu();
  other.request.computes_on.cublaslt = "12.9.1";
  expect_error(ErrorCode::usage,
               {"cuBLASLt as in the plan ", ": 13.1.0", "12.9.1",
                "the machine it was made on, or plan=null to plan anew"},
               [&] { follow_plan(file, other); });
}

// A plan from before they were named says nothing of them.
TEST(ComputesOn, OfAnOlderPlanIsNotCompared) {
  const TempFolder folder;
  const auto setup = [] {
    return make_setup(load_config_text(
        "model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 16, vocab_size: 64}\n"
        "device: emu\nmemory: 1GiB\nglobal_batch_size: 2\nthreads: 1",
        "run.yaml", {}));
  };
  RunSetup older = setup();
  const std::string path = folder / "plan.json";
  write_atomic(path, plan_json(make_plan(older.request)).dump());
  RunSetup now = setup();
  now.request.computes_on = some_gpu();
  follow_plan(read_plan_file(path), now);
  EXPECT_EQ(now.request.follow.path, path);
}

// A choice of attention that is taken back takes its bytes back.
TEST(ComputesOn, RuntimeBytesFollowTheChoiceOfAttention) {
  PlanRequest r;
  choose_attention(r, true);
  EXPECT_EQ(r.runtime_bytes, -1) << "nothing was measured";
  r.calibrated_runtime = 1000;
  choose_attention(r, false);
  EXPECT_EQ(r.runtime_bytes, 1000);
  EXPECT_TRUE(r.runtime_measured);
  for (int i = 0; i < 2; ++i) {
    choose_attention(r, true);
    EXPECT_EQ(r.runtime_bytes, 1000 + (int64_t{256} << 20));
    EXPECT_FALSE(r.runtime_measured);
  }
  choose_attention(r, false);
  EXPECT_EQ(r.runtime_bytes, 1000);
  EXPECT_TRUE(r.runtime_measured);
}

// Who asked for cuDNN gets the bytes that its library takes, and the budget below them is refused.
TEST(ComputesOn, AskingForCudnnTakesItsBytes) {
  const Model model(test::tiny_spec({}), parse_precision("bf16"));
  PlanRequest own;
  own.model = &model;
  own.T = 8;
  own.global_batch = 4;
  own.settings.target = Place::cuda;
  own.calibrated_runtime = 1000;
  PlanRequest cudnn = own;
  choose_attention(own, false);
  choose_attention(cudnn, true);
  const int64_t least = make_plan(own).minimum_bytes, more = make_plan(cudnn).minimum_bytes;
  ASSERT_GE(more, least + (int64_t{256} << 20)) << "with what the library takes";
  for (const int64_t budget : {least, more - 1, more}) {
    cudnn.budget = own.budget = budget;
    EXPECT_EQ(make_plan(cudnn).fits, budget >= more) << budget;
    EXPECT_TRUE(make_plan(own).fits) << budget;
  }
}

// What advice tells somebody to measure is the device of the run.
TEST(DeviceText, NamesTheDeviceAtHand) {
  EXPECT_EQ(device_text(Place::cpu, 0), "cpu");
  EXPECT_EQ(device_text(Place::emu, 0), "emu");
  EXPECT_EQ(device_text(Place::cuda, 0), "cuda");
  EXPECT_EQ(device_text(Place::cuda, 3), "cuda:3");
}

// A budget of 0 would be no limit.
TEST(GpuMemory, ABudgetThatIsNotSetIsNeverNone) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  GpuRoom room;
  room.total_bytes = 100 * kMiB;
  for (const int64_t free : {int64_t{0}, 255 * kMiB, 256 * kMiB, 256 * kMiB + 4095}) {
    room.free_bytes = free;
    int64_t reserve = 0, before = -1;
    EXPECT_EQ(gpu_budget(room, &reserve, &before), 1) << free;
    EXPECT_EQ(reserve, 256 * kMiB);
    EXPECT_EQ(before, free);
  }
  EXPECT_EQ(budget_of(300 * kMiB, 256 * kMiB), 44 * kMiB);
}

TEST(GpuMemory, ConstantMeansEveryStepThatWasLookedAt) {
  GpuBytes b;
  EXPECT_TRUE(b.constant());
  b.before_arena = 1000;
  b.after_arena = 700;
  b.after_warm_up = 600;
  for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{10}, int64_t{100}})
    b.note_step(step, 600);
  EXPECT_TRUE(b.constant());
  EXPECT_EQ(b.step_10, 600);
  for (const int64_t step : {int64_t{1}, int64_t{10}, int64_t{100}}) {
    GpuBytes moved = b;
    moved.note_step(step, 599);
    EXPECT_FALSE(moved.constant()) << step;
  }
  b.note_step(11, 5);
  EXPECT_TRUE(b.constant()) << "not one of those";
  b.after_warm_up = -1;  // without one the first step is what counts
  EXPECT_TRUE(b.constant());
  b.note_step(100, 601);
  EXPECT_FALSE(b.constant());
  const nlohmann::json j = b.json();
  EXPECT_EQ(j["free_bytes_after_warm_up"], nullptr);
  EXPECT_EQ(j["free_bytes_after_step_100"], 601);
  EXPECT_EQ(j["constant"], false);
}

TEST(GpuMemory, RuntimeBytesAreWhatIsNotTheArena) {
  GpuBytes b;
  b.after_context = 1020;
  b.before_arena = 1000;
  b.after_arena = 700;
  EXPECT_EQ(b.runtime_bytes(300), -1) << "without the context";
  b.context = 50;
  EXPECT_EQ(b.runtime_bytes(300), 70) << "with 20 of handles";
  b.after_warm_up = 660;
  EXPECT_EQ(b.runtime_bytes(300), 110);
}

TEST(GpuMemory, MoreThanWasMeasuredIsRefusedAndMoreThanWasAssumedIsSaid) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(check_gpu_runtime(100, 100, true, true, "cuda"), "");
  EXPECT_EQ(check_gpu_runtime(100, -1, true, false, "cuda"), "");
  EXPECT_EQ(check_gpu_runtime(100, 101, false, true, "cuda"),
            "the GPU's context and libraries take 101 B, 100 were assumed; snug calibrate "
            "device=cuda, once, measures them for the plan");
  expect_error(ErrorCode::out_of_memory,
               {"at most 104857600 B (100.00 MiB) of the GPU's memory for context, libraries and "
                "graphs, as snug calibrate measured",
                "(200.00 MiB) before the first step",
                "snug calibrate device=cuda:1 --force measures again; cuda_graphs=off takes less"},
               [] { check_gpu_runtime(100 * kMiB, 200 * kMiB, true, true, "cuda:1"); });
  // Of the whole device's bytes a neighbour may have taken some.
  EXPECT_EQ(
      check_gpu_runtime(100, 101, true, false, "cuda"),
      "101 B of the GPU's memory went since this process began, 100 were measured of context, "
      "libraries and graphs; whether another process took the rest the driver does not say");
}

// Steps behind a warm-up are those without one, to the bit.
TEST(WarmUp, ChangesNoBit) {
  struct Residence {
    const char* name;
    bool optimizer, params, gradients;
  };
  for (const char* precision : {"fp32", "bf16", "fp16"})
    for (const Residence& away : {Residence{"nothing", false, false, false},
                                  {"optimizer", true, false, false},
                                  {"gradients", false, false, true},
                                  {"optimizer and weights", true, true, false},
                                  {"all", true, true, true}}) {
      SCOPED_TRACE(testing::Message() << precision << ", at the host: " << away.name);
      const Model model(test::tiny_spec({.dropout = 0.1}), parse_precision(precision));
      test::RunOptions o;
      o.decisions.T = 16;
      o.decisions.micro_batch = 2;
      o.decisions.eval_batch = 2;
      o.decisions.head_rows = 8;
      o.decisions.max_grad_norm = 1;
      o.decisions.offload_optimizer = away.optimizer;
      o.decisions.offload_params = away.params;
      o.decisions.offload_gradients = away.gradients;
      o.decisions.loss_scaling.init_scale = 128;
      o.decisions.kv_length = 8;
      o.decisions.prefill = 4;
      o.global_batch = 4;
      const auto trace = [&](bool warm) {
        test::SessionRun run(model, o);
        std::vector<float> all;
        for (int64_t step = 0; step < 3; ++step) {
          // Behind a step too, when rates and states are there to do harm with.
          if (warm && step < 2) {
            const std::vector<float> before = run.weights();
            warm_up(run.session());
            EXPECT_EQ(run.weights(), before) << "nothing is written";
          }
          all.push_back(static_cast<float>(run.gradients_of(step)));
          const std::vector<float> g = run.gradients();
          all.insert(all.end(), g.begin(), g.end());
          run.update();
        }
        all.push_back(static_cast<float>(run.evaluate()));
        const std::vector<float> w = run.weights();
        all.insert(all.end(), w.begin(), w.end());
        return all;
      };
      const std::vector<float> plain = trace(false);
      EXPECT_TRUE(std::isfinite(plain[0]));
      EXPECT_TRUE(test::same_bits(trace(true), plain));
    }
}

// The same by kernels, where graphs are there when the first step comes.
TEST(WarmUp, LeavesGraphsBehindOnADevice) {
  const Model model(test::tiny_spec({.V = 40, .P = 8, .C = 8, .L = 1, .H = 2, .F = 16}),
                    parse_precision("bf16"));
  Decisions d;
  d.T = 8;
  d.micro_batch = 1;
  d.head_rows = 8;
  d.max_grad_norm = 1;
  const auto losses = [&](bool warm, bool graphs) {
    Settings settings;
    settings.target = Place::emu;
    settings.device_private = true;
    settings.graphs = graphs;
    Session plan(Place::plan, model, d, {}, settings);
    plan.open();
    plan.schedule().pack();
    Session s(Place::emu, model, d, {}, settings, &plan.schedule());
    s.open();
    if (warm) {
      warm_up(s);
      EXPECT_EQ(s.context().graphs(), graphs ? 3 : 0);
    }
    init_parameters(s.context(), model.params(), s.master(), 1);
    s.load();
    std::vector<double> list;
    for (int64_t step = 0; step < 3; ++step) {
      s.begin_window(1, step, 16);
      for (float& rate : s.state().learning_rate) rate = 1e-2f;
      s.optimizer().prepare_step(s.state());
      for (const bool first : {true, false}) {
        for (int64_t i = 0; i < 8; ++i) {
          s.tokens().as<int32_t>()[i] = static_cast<int32_t>((7 * i + step + first) % 40);
          s.targets().as<int32_t>()[i] = static_cast<int32_t>((7 * i + 7) % 40);
        }
        s.micro(first);
      }
      s.update();
      ++s.state().updates;
      list.push_back(s.state().loss_sum);
    }
    return list;
  };
  const std::vector<double> plain = losses(false, false);
  EXPECT_NE(plain[0], plain[2]);
  EXPECT_EQ(losses(true, false), plain);
  EXPECT_EQ(losses(true, true), plain);
}

// Where backward updates, a gradient that is no number is seen before the first update.
TEST(WarmUp, ChangesNoBitWhereBackwardUpdates) {
  for (const char* precision : {"fp32", "bf16"})
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(testing::Message() << precision << " offload " << offload);
      const Model model(test::tiny_spec({}), parse_precision(precision));
      test::RunOptions o;
      o.decisions.T = 16;
      o.decisions.micro_batch = 2;
      o.decisions.head_rows = 8;
      o.decisions.update_in_backward = true;
      o.decisions.offload_optimizer = offload;
      o.global_batch = 2;
      const auto trace = [&](bool warm) {
        test::SessionRun run(model, o);
        std::vector<float> all;
        for (int64_t step = 0; step < 3; ++step) {
          if (warm && step < 2) {
            const std::vector<float> before = run.weights();
            warm_up(run.session());
            EXPECT_EQ(run.weights(), before) << "nothing is written";
          }
          all.push_back(static_cast<float>(run.gradients_of(step)));
          run.update();
        }
        const std::vector<float> w = run.weights();
        all.insert(all.end(), w.begin(), w.end());
        return all;
      };
      const std::vector<float> plain = trace(false);
      EXPECT_NE(plain[0], plain[2]) << "it trains";
      EXPECT_TRUE(test::same_bits(trace(true), plain));
    }
}

TEST(RoofsText, OfAGpuNamesItAndItsUnits) {
  Roofs r;
  r.device = "NVIDIA H200, compute capability 9.0";
  r.fp32_flops = 50e12;
  r.tf32_flops = 400e12;
  r.bf16_flops = 800e12;
  r.read_bytes = 4.2e12;
  r.copy_bytes = 4.0e12;
  r.stream_bytes = 3.9e12;
  EXPECT_EQ(to_string(r),
            "NVIDIA H200, compute capability 9.0: products in fp32 50.0, TF32 400.0, bf16 800.0 "
            "TFLOP/s; memory read 4200, copied by the driver 4000, by a kernel 3900 GB/s");
  r = {};
  r.threads = 2;
  r.fp32_flops = 1e9;
  EXPECT_TRUE(to_string(r).starts_with(
      "2 threads: fp32 1 GFLOP/s (bf16 as fp32: this CPU has no unit for it); memory read "))
      << to_string(r);
  EXPECT_FALSE(r.is_bf16(true));
  r.bf16_flops = 3e9;
  EXPECT_TRUE(to_string(r).starts_with("2 threads: fp32 1, bf16 3 GFLOP/s; memory read "))
      << to_string(r);
  EXPECT_TRUE(r.is_bf16(true));
  EXPECT_FALSE(r.is_bf16(false));
}

}  // namespace
}  // namespace snug
