// device: emu as a user meets it: a run whose every op goes through the kernels for GPUs, held to
// its plan as on the CPU, with the losses of the CPU. The arena is closed to the host but for
// kernels and copies, as that of a GPU is: whatever part of the command read or wrote a tensor by
// its address would end these runs with a signal.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kSmall = {
    "model={type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 24, resid_pdrop: 0.1, "
    "embd_pdrop: 0.1, attn_pdrop: 0.1}",
    "max_length=16",
    "lr_scheduler_type=constant",
    "global_batch_size=2",
    "per_device_train_batch_size=1",
    "max_steps=4",
    "eval_fraction=0.05",
    "max_eval_samples=2",
    "save_steps=2"};
const std::vector<std::string> kEmu = joined(kSmall, {"device=emu"});

// Each place is held to 1e-5 of the loss in float64 over a model's first steps
// (tests/layers/models/test_gpt2_golden.cpp), so they differ by twice that; each further step
// starts from weights that differ as much again.
void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 2e-5 * static_cast<double>(i + 1) * b[i]) << "step " << i + 1;
}

// What is offered then has kernels.
TEST(Emulator, RefusesABudgetThatIsTooSmall) {
  const Workspace w;
  const Outcome o = w.train("emu", joined(kEmu, {"memory=1MiB"}));
  EXPECT_EQ(o.code, 3) << o.err;
  EXPECT_EQ(o.err.find("bf16_gradients"), std::string::npos) << o.err;
}

// A permission is no demand: where no kernel sums gradients in bf16 they are summed in f32. What a
// checkpoint pins is one, and is refused with both ways out.
TEST(Emulator, GradientsStayInF32WherePermissionIsAllThereIs) {
  const Workspace w;
  const std::vector<std::string> more = {"max_steps=2", "allow=[bf16_gradients]"};
  w.trained("emu", joined(kEmu, more));
  EXPECT_EQ(w.json("emu/plan.json")["decisions"]["gradients"], "f32");
  std::vector<std::string> cpu = joined(kSmall, more);
  cpu.push_back("memory=" + std::to_string(w.plan(cpu)["minimum_bytes"].get<int64_t>()));
  w.trained("cpu", cpu);
  ASSERT_EQ(w.json("cpu/plan.json")["decisions"]["gradients"], "bf16");
  const Outcome pinned = w.train(
      "cpu", joined(kEmu, {"max_steps=4", "resume=latest", "allow=[bf16_gradients,kernels]"}));
  EXPECT_NE(pinned.code, 0);
  EXPECT_NE(pinned.err.find("expected gradients in f32 on the place emu\n  found: bf16"),
            std::string::npos)
      << pinned.err;
  EXPECT_NE(pinned.err.find("add gradients to allow to go on with them in f32, or device=cpu"),
            std::string::npos)
      << pinned.err;
}

TEST(Emulator, TrainsWhatTheCpuTrains) {
  const Workspace w;
  const Outcome o = w.trained("emu", joined(kEmu, {"sample_prompt=the", "sample_tokens=3"}));
  expect_planned_is_measured(w, "emu");
  EXPECT_NE(o.out.find("on emu: the kernels for GPUs, run by one thread in the emulator"),
            std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("(the emulator's rates, roughly)"), std::string::npos);
  EXPECT_NE(o.out.find("  sample: the"), std::string::npos) << "through the cache";
  EXPECT_NE(o.out.find("difference 0 B; allocations after start: "), std::string::npos);
  const Json plan = w.json("emu/plan.json");
  EXPECT_EQ(plan["decisions"]["device"], "emu");
  EXPECT_EQ(plan["decisions"]["attention"], "emulated");
  EXPECT_NE(slurp(w.path("emu/config.resolved.yaml")).find("\ndevice: emu"), std::string::npos);

  w.trained("cpu", kSmall);
  EXPECT_EQ(w.json("cpu/plan.json")["decisions"]["device"], "cpu");
  EXPECT_EQ(w.losses("emu").size(), 4u);
  expect_near(w.losses("emu"), w.losses("cpu"));
  EXPECT_NEAR(w.last_eval_loss("emu"), w.last_eval_loss("cpu"), 1e-4 * w.last_eval_loss("cpu"));
  // The kernels are others: of thousands of weights some have other last bits, where four losses of
  // some digits may have none.
  EXPECT_FALSE(slurp(w.path("emu/final/model.safetensors")) ==
               slurp(w.path("cpu/final/model.safetensors")));

  EXPECT_GT(plan["host_bytes"], 0) << "batches, states and checkpoints pass through the host's";
}

// Its model is as any other, and what it says on either device is the same.
TEST(Emulator, EvaluatesAndGeneratesAsTheCpuDoes) {
  const Workspace w;
  w.trained("run", joined(kEmu, {"max_steps=2"}));
  const auto on = [](std::vector<std::string> arguments, const char* device) {
    arguments.insert(arguments.end(), {"--device", device});
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  const std::vector<std::string> model = {"--model", w.path("run/final")};
  const auto evaluate =
      joined({"eval"}, joined(model, {"--data", w.path("text.txt"), "--max-samples", "20",
                                      "--batch-size", "2", "--json"}));
  const double cpu = Json::parse(on(evaluate, "cpu"))["loss"],
               emu = Json::parse(on(evaluate, "emu"))["loss"];
  EXPECT_NEAR(emu, cpu, 2e-5 * cpu);
  EXPECT_NE(emu, cpu) << "the kernels are others, of hundreds of losses some";
  for (const auto& more : {std::vector<std::string>{"--temperature", "0"}, {"--num-beams", "3"}}) {
    const auto generate = joined(
        {"generate"}, joined(model, joined({"--prompt", "the", "--max-new-tokens", "4"}, more)));
    EXPECT_EQ(on(generate, "emu"), on(generate, "cpu"));
  }
}

TEST(Emulator, MixedPrecisionAndOffloadAsPlanned) {
  const Workspace w;
  w.trained("bf16", joined(kEmu, {"precision=bf16", "offload_optimizer=cpu", "offload=inputs",
                                  "recompute=mlp", "max_steps=2"}));
  expect_planned_is_measured(w, "bf16");
  w.trained("cpu", joined(kSmall, {"precision=bf16", "max_steps=2"}));
  // A step of bf16 is 2^-8 of a value.
  EXPECT_NEAR(w.losses("bf16")[1], w.losses("cpu")[1], 0x1p-8 * w.losses("cpu")[1]);
}

// Weights that rest with the host change no bit, at their own kernels either.
void expect_streamed_weights_change_no_bit(const std::string& precision) {
  const Workspace w;
  const std::vector<std::string> base =
      joined(kEmu, {"precision=" + precision, "model.n_layer=6", "max_steps=2"});
  w.trained("device", base);
  w.trained("host", joined(base, {"offload_params=cpu", "recompute=block"}));
  EXPECT_EQ(w.json("host/plan.json")["decisions"]["offload_params"], "cpu");
  expect_planned_is_measured(w, "host");
  EXPECT_EQ(w.losses("host"), w.losses("device"));
  EXPECT_TRUE(slurp(w.path("host/final/model.safetensors")) ==
              slurp(w.path("device/final/model.safetensors")));
}

TEST(SlowEmulator, StreamedWeightsChangeNoBit) {
  for (const char* precision : {"bf16", "fp32"}) expect_streamed_weights_change_no_bit(precision);
}

// Nor gradients that rest there, with one micro-step and with three, and states and weights beside.
void expect_gradients_at_the_host_change_no_bit(std::initializer_list<const char*> precisions,
                                                std::initializer_list<const char*> micros) {
  const Workspace w;
  for (const char* precision : precisions)
    for (const char* micro : micros) {
      const std::string name = std::string(precision) + "-" + micro, device = "device-" + name,
                        host = "host-" + name, all = "all-" + name;
      const std::vector<std::string> base =
          joined(kEmu, {std::string("precision=") + precision, "model.n_layer=4", "max_steps=2",
                        "max_grad_norm=0.5", "global_batch_size=6",
                        std::string("per_device_train_batch_size=") + micro});
      w.trained(device, base);
      w.trained(host, joined(base, {"offload_gradients=cpu"}));
      w.trained(all, joined(base, {"offload_gradients=cpu", "offload_params=cpu"}));
      for (const std::string& run : {host, all}) {
        EXPECT_EQ(w.json(run + "/plan.json")["decisions"]["offload_gradients"], "cpu");
        expect_planned_is_measured(w, run);
        EXPECT_EQ(w.curve(run), w.curve(device)) << run;
        EXPECT_TRUE(slurp(w.path(run + "/final/model.safetensors")) ==
                    slurp(w.path(device + "/final/model.safetensors")))
            << run;
      }
    }
}

TEST(SlowEmulator, GradientsAtTheHostChangeNoBit) {
  expect_gradients_at_the_host_change_no_bit({"fp32", "fp16"}, {"2", "6"});
}

// What a graph took by value when it was captured, in step 2, would show in the steps that follow:
// rates, samples, dropout and loss scales differ in each, and checkpoints are written meanwhile.
TEST(SlowEmulator, GraphsChangeNoBit) {
  const Workspace w;
  for (const char* precision : {"fp32", "fp16"}) {
    const std::string eager = std::string("eager-") + precision,
                      graphs = std::string("graphs-") + precision;
    const std::vector<std::string> base =
        joined(kEmu, {std::string("precision=") + precision, "lr_scheduler_type=linear",
                      "max_steps=6", "eval_steps=2", "max_eval_samples=4", "sample_prompt=the",
                      "sample_tokens=4", "global_batch_size=3"});
    const Outcome off = w.trained(eager, base);
    const Outcome on = w.trained(graphs, joined(base, {"cuda_graphs=on"}));
    EXPECT_EQ(off.out.find("run as graphs"), std::string::npos) << off.out;
    EXPECT_NE(on.out.find("\n  the programs of a step are captured and run as graphs"),
              std::string::npos)
        << on.out;
    EXPECT_FALSE(w.json(eager + "/memory.json").contains("graphs"));
    EXPECT_EQ(w.json(graphs + "/memory.json")["graphs"], 5)
        << "first and next micro-step, update, evaluation, decoding";
    EXPECT_EQ(w.json(graphs + "/plan.json")["graphs"], true);
    EXPECT_NE(slurp(w.path(graphs + "/config.resolved.yaml")).find("\ncuda_graphs: on"),
              std::string::npos);
    expect_planned_is_measured(w, graphs);
    EXPECT_EQ(w.losses(graphs).size(), 6u);
    expect_same_run(w, graphs, eager, 6);
  }
}

// A plan does not say whether graphs issue its programs, so one that was made without is followed
// with them; one whose backward updates is not.
TEST(SlowEmulator, APlanIsFollowedByGraphs) {
  const Workspace w;
  const std::vector<std::string> base = joined(kEmu, {"max_steps=4", "eval_steps=2"});
  w.trained("eager", base);
  const std::vector<std::string> followed =
      joined(base, {"plan=" + w.path("eager/plan.json"), "cuda_graphs=on"});
  w.trained("graphs", followed);
  EXPECT_EQ(w.json("graphs/plan.json")["graphs"], true);
  EXPECT_GT(w.json("graphs/memory.json")["graphs"], 0);
  EXPECT_EQ(w.json("graphs/plan.json")["hash"], w.json("eager/plan.json")["hash"]);
  expect_same_run(w, "graphs", "eager", 4);

  std::vector<std::string> consumed = joined(
      kEmu, {"max_grad_norm=0", "per_device_train_batch_size=2", "max_steps=1", "save_steps=0"});
  const auto least = w.plan(consumed)["minimum_bytes"].get<int64_t>();
  consumed.push_back("memory=" + std::to_string(least));
  w.trained("backward", consumed);
  ASSERT_EQ(w.json("backward/plan.json")["decisions"]["update"], "in backward");
  const Outcome o = w.train(
      "refused", joined(consumed, {"plan=" + w.path("backward/plan.json"), "cuda_graphs=on"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("a plan with updates in backward (" + w.path("backward/plan.json") + ")"),
            std::string::npos)
      << o.err;
}

// A resume goes on bit for bit, whatever the number of threads.
TEST(SlowEmulator, ResumesBitForBit) {
  const Workspace w;
  w.trained("whole", kEmu);
  w.trained("run", joined(kEmu, {"max_steps=2"}));
  const Outcome o = w.trained("run", joined(kEmu, {"resume=latest", "threads=2"}));
  EXPECT_EQ(o.out.find("sums may differ"), std::string::npos) << o.out;
  EXPECT_EQ(w.losses("run"), w.losses("whole"));
  EXPECT_TRUE(slurp(w.path("run/final/model.safetensors")) ==
              slurp(w.path("whole/final/model.safetensors")));
}

// What a GPU is measured by, on the emulator: the file is written, read again and planned with.
TEST(SlowEmulator, IsCalibratedAsAGpuIs) {
  const Workspace w;
  const Outcome first = run({"calibrate", "device=emu", "--seconds", "0", "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  const Json c = Json::parse(first.out);
  EXPECT_EQ(c["measured_now"], true);
  EXPECT_EQ(c["key"]["device"], "the emulator");
  const std::string path = c["path"].get<std::string>();
  EXPECT_EQ(path.rfind(w.path("cache/snug/device-calibration-"), 0), 0u) << path;
  const Outcome again = run({"calibrate", "device=emu"});
  EXPECT_NE(again.out.find("the emulator: products in fp32 "), std::string::npos) << again.out;
  for (const char* part : {"link, pinned memory", "us an op, ", "in a graph", "runtime",
                           "code and libraries", "nt narrow short", "Measured before, in"})
    EXPECT_NE(again.out.find(part), std::string::npos) << part << " in\n" << again.out;
  EXPECT_EQ(w.plan({"device=emu"})["prediction"], "calibrated on the emulator");
  spill(path, "{}");
  const Outcome damaged = w.train("run", {"device=emu", "memory=1MiB"});
  EXPECT_EQ(damaged.code, 3);
  EXPECT_NE(damaged.err.find("cannot be used: "), std::string::npos) << damaged.err;
}

// The kernels are pinned, and with them the place; the permission says what it costs.
TEST(Emulator, ACheckpointOfOneDeviceOnTheOther) {
  const Workspace w;
  w.trained("run", joined(kEmu, {"max_steps=2"}));
  const Outcome refused = w.train("run", joined(kSmall, {"resume=latest"}));
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_NE(refused.err.find("expected device: emu as in " + w.path("run/checkpoint-2") +
                             ", which pins the kernels\n  found: device: auto (default)\n  try:   "
                             "device=emu, or allow=[kernels] to go on with those of the other, "
                             "which changes the last bits"),
            std::string::npos)
      << refused.err;
  // What was allowed stays in the list that is proposed.
  const Outcome beside = w.train("run", joined(kSmall, {"resume=latest", "allow=[micro_batch]"}));
  EXPECT_NE(beside.err.find("device=emu, or allow=[micro_batch,kernels] to go on with"),
            std::string::npos)
      << beside.err;
  const Outcome on = w.trained("run", joined(kSmall, {"resume=latest", "allow=[kernels]"}));
  EXPECT_NE(
      on.out.find("Note: resuming on cpu instead of emu: its kernels differ in the last bits"),
      std::string::npos)
      << on.out;
  w.trained("cpu", kSmall);
  expect_near(w.losses("run"), w.losses("cpu"));

  w.trained("back", joined(kSmall, {"max_steps=2"}));
  const Outcome back = w.trained("back", joined(kEmu, {"resume=latest", "allow=[kernels]"}));
  EXPECT_NE(back.out.find("Note: resuming on emu instead of cpu"), std::string::npos) << back.out;
  expect_near(w.losses("back"), w.losses("cpu"));
  expect_planned_is_measured(w, "back");
}

}  // namespace
}  // namespace snug::e2e
