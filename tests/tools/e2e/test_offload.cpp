// Runs that offload: the same numbers, both arenas as planned, and a refusal that names what works.
#include <gtest/gtest.h>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

TEST(Offload, TheSameRunInLessMemoryOfTheDevice) {
  const Workspace w;
  const std::vector<std::string> base = {"per_device_train_batch_size=3", "head_rows=64",
                                         "save_steps=6", "sample_prompt=the cat"};
  w.trained("kept", joined(base, {"recompute=none"}));
  EXPECT_EQ(w.json("kept/memory.json")["planned_host_bytes"], 0);
  const struct {
    const char* name;
    std::vector<std::string> keys;
  } rows[] = {{"inputs", {"recompute=block", "offload=inputs"}},
              {"block", {"recompute=norms", "offload=block"}},
              {"map", {"recompute={0: mlp}", "offload={1: attention+mid}", "host_memory=1GiB"}}};
  for (const auto& row : rows) {
    const std::string name = row.name;
    const Outcome run = w.trained(name, joined(base, row.keys));
    expect_planned_is_measured(w, name);
    const Json memory = w.json(name + "/memory.json"), plan = w.json(name + "/plan.json");
    const auto host = memory["measured_host_bytes"].get<int64_t>();
    EXPECT_GT(host, 0);
    EXPECT_EQ(memory["planned_host_bytes"], host);
    EXPECT_EQ(plan["host_bytes"], host);
    const std::string bytes = std::to_string(host);
    EXPECT_NE(run.out.find("host memory reserved: " + bytes + " B, resident " + bytes + " B"),
              std::string::npos)
        << run.out;
    EXPECT_NE(
        run.out.find("host " + bytes + " B planned, " + bytes + " B resident, difference 0 B"),
        std::string::npos)
        << run.out;
    EXPECT_NE(slurp(w.path(name + "/report.html")).find(">host</th>"), std::string::npos);
    EXPECT_LT(memory["measured_engine_bytes"], w.json("kept/memory.json")["measured_engine_bytes"]);
    EXPECT_EQ(w.curve(name), w.curve("kept"));
    EXPECT_EQ(slurp(w.path(name + "/final/model.safetensors")),
              slurp(w.path("kept/final/model.safetensors")));
    EXPECT_NE(slurp(w.path(name + "/config.resolved.yaml")).find("\noffload: "), std::string::npos);
  }
}

// Runs in one precision: bf16, which has master weights besides, always, fp32 where time is no
// matter.
class OffloadIn : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Bf16, OffloadIn, testing::Values("bf16"));
INSTANTIATE_TEST_SUITE_P(Slow, OffloadIn, testing::Values("fp32"));
class StreamedIn : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Slow, StreamedIn, testing::Values("bf16", "fp32"));

// A run, its checkpoints in the background, and a resume with the states in the other place.
TEST_P(OffloadIn, OptimizerStateWithTheHostChangesNothing) {
  const std::string precision = GetParam();
  const Workspace w;
  const std::string p = "precision=" + precision;
  const std::vector<std::string> base = {p, "per_device_train_batch_size=3", "head_rows=64",
                                         "save_steps=4", "lr_scheduler_type=constant"};
  w.trained("device", joined(base, {"max_steps=8"}));
  w.trained("host", joined(base, {"max_steps=8", "offload_optimizer=cpu"}));
  expect_planned_is_measured(w, "host");
  const auto host = w.json("host/memory.json")["measured_host_bytes"].get<int64_t>();
  EXPECT_EQ(w.json("host/plan.json")["host_bytes"], host);
  EXPECT_EQ(w.json("host/plan.json")["decisions"]["offload_optimizer"], "cpu");
  // Two moments, and with 16 bits the master weights: all of the padded range but its ends.
  const auto kept = w.json("device/plan.json")["categories"];
  EXPECT_GE(host, kept["optimizer"].get<int64_t>() * 9 / 10 + kept["master"].get<int64_t>());
  EXPECT_EQ(w.curve("host"), w.curve("device"));
  for (const char* file : {"/final/model.safetensors", "/checkpoint-4/optimizer.safetensors",
                           "/checkpoint-8/optimizer.safetensors"})
    EXPECT_EQ(slurp(w.path(std::string("host") + file)),
              slurp(w.path(std::string("device") + file)))
        << file;

  w.trained("moved", joined(base, {"max_steps=4"}));
  w.trained("moved", joined(base, {"max_steps=8", "offload_optimizer=cpu", "resume=latest"}));
  w.trained("back", joined(base, {"max_steps=4", "offload_optimizer=cpu"}));
  w.trained("back", joined(base, {"max_steps=8", "resume=latest"}));
  for (const char* name : {"moved", "back"})
    EXPECT_EQ(slurp(w.path(std::string(name) + "/checkpoint-8/optimizer.safetensors")),
              slurp(w.path("device/checkpoint-8/optimizer.safetensors")))
        << name;
}

// Weights, state and what backward needs with the host: the run, its evaluations, samples,
// checkpoints and final model, a resume in either direction, and the plan followed.
TEST_P(StreamedIn, WeightsWithTheHostChangeNothing) {
  const std::string precision = GetParam();
  const Workspace w;
  const std::vector<std::string> base = {
      "precision=" + precision, "model.n_layer=6",       "per_device_train_batch_size=3",
      "head_rows=64",           "save_steps=4",          "eval_fraction=0.1",
      "eval_steps=4",           "sample_prompt=the cat", "lr_scheduler_type=constant"};
  w.trained("device", joined(base, {"max_steps=8"}));
  const Outcome run = w.trained("host", joined(base, {"max_steps=8", "offload_params=cpu",
                                                      "recompute=block", "offload=inputs"}));
  expect_planned_is_measured(w, "host");
  const Json plan = w.json("host/plan.json"), memory = w.json("host/memory.json");
  EXPECT_EQ(plan["decisions"]["offload_params"], "cpu");
  EXPECT_EQ(plan["decisions"]["offload_optimizer"], "cpu");
  EXPECT_EQ(plan["host_bytes"], memory["measured_host_bytes"]);
  EXPECT_EQ(plan["categories"]["offload"], memory["measured_host_bytes"]);
  EXPECT_LT(plan["categories"]["weights"], w.json("device/plan.json")["categories"]["weights"]);
  EXPECT_NE(run.out.find("the layers' weights and the optimizer's state with the host"),
            std::string::npos)
      << run.out;
  EXPECT_NE(slurp(w.path("host/report.html")).find("weights.part1"), std::string::npos);
  EXPECT_NE(slurp(w.path("host/config.resolved.yaml")).find("\noffload_params: cpu"),
            std::string::npos);
  const auto same = [&](const std::string& name, const std::vector<const char*>& files) {
    for (const char* file : files)
      EXPECT_EQ(slurp(w.path(name + file)), slurp(w.path(std::string("device") + file)))
          << name << file;
  };
  EXPECT_EQ(w.curve("host"), w.curve("device"));
  same("host", {"/final/model.safetensors", "/checkpoint-4/optimizer.safetensors",
                "/checkpoint-8/optimizer.safetensors", "/checkpoint-8/model.safetensors"});

  w.trained("moved", joined(base, {"max_steps=4"}));
  w.trained("moved", joined(base, {"max_steps=8", "offload_params=cpu", "resume=latest"}));
  w.trained("back", joined(base, {"max_steps=4", "offload_params=cpu"}));
  w.trained("back", joined(base, {"max_steps=8", "resume=latest"}));
  for (const char* name : {"moved", "back"})
    same(name, {"/checkpoint-8/optimizer.safetensors", "/checkpoint-8/model.safetensors"});

  w.trained("followed", joined(base, {"max_steps=8", "plan=" + w.path("host/plan.json")}));
  EXPECT_EQ(w.json("followed/plan.json")["hash"], plan["hash"]);
  EXPECT_EQ(w.curve("followed"), w.curve("device"));
}

// Gradients with the host, over three micro-steps of a clipped step: the run, a resume in either
// direction, the plan followed; beside the optimizer's state and without it.
TEST_P(StreamedIn, GradientsWithTheHostChangeNothing) {
  const std::string precision = GetParam();
  const Workspace w;
  const std::vector<std::string> base = {
      "precision=" + precision, "model.n_layer=5",           "per_device_train_batch_size=2",
      "global_batch_size=6",    "max_grad_norm=0.5",         "head_rows=64",
      "save_steps=4",           "lr_scheduler_type=constant"};
  w.trained("device", joined(base, {"max_steps=8"}));
  const Outcome run = w.trained("host", joined(base, {"max_steps=8", "offload_gradients=cpu"}));
  w.trained("both", joined(base, {"max_steps=8", "offload_gradients=cpu", "offload_optimizer=cpu",
                                  "recompute=block", "offload=inputs"}));
  const Json before = w.json("device/plan.json"), plan = w.json("host/plan.json");
  EXPECT_EQ(plan["decisions"]["offload_gradients"], "cpu");
  EXPECT_EQ(plan["host_bytes"], w.json("host/memory.json")["measured_host_bytes"]);
  EXPECT_LT(plan["categories"]["gradients"], before["categories"]["gradients"]);
  EXPECT_LT(plan["engine_bytes"], before["engine_bytes"]);
  EXPECT_NE(run.out.find(", the layers' gradients with the host"), std::string::npos) << run.out;
  EXPECT_NE(slurp(w.path("both/plan.json"))
                .find("the layers' gradients and the optimizer's state with the host"),
            std::string::npos);
  EXPECT_NE(slurp(w.path("host/report.html")).find("gradients.part1"), std::string::npos);
  EXPECT_NE(slurp(w.path("host/config.resolved.yaml")).find("\noffload_gradients: cpu"),
            std::string::npos);
  for (const char* name : {"host", "both"}) {
    expect_planned_is_measured(w, name);
    EXPECT_EQ(w.curve(name), w.curve("device")) << name;
  }
  w.trained("moved", joined(base, {"max_steps=4"}));
  w.trained("moved", joined(base, {"max_steps=8", "offload_gradients=cpu", "resume=latest"}));
  w.trained("back", joined(base, {"max_steps=4", "offload_gradients=cpu"}));
  w.trained("back", joined(base, {"max_steps=8", "resume=latest"}));
  for (const char* name : {"host", "both", "moved", "back"})
    for (const char* file :
         {"/checkpoint-8/optimizer.safetensors", "/checkpoint-8/model.safetensors"})
      EXPECT_EQ(slurp(w.path(name + std::string(file))),
                slurp(w.path(std::string("device") + file)))
          << name << file;
  w.trained("followed", joined(base, {"max_steps=8", "plan=" + w.path("host/plan.json")}));
  EXPECT_EQ(w.json("followed/plan.json")["hash"], plan["hash"]);
  EXPECT_EQ(w.curve("followed"), w.curve("device"));
}

// The smallest memory that there is with the host's, found by the planner, and the same run in it.
TEST(Offload, ThePlannerStreamsWeightsWhereNothingElseFits) {
  const Workspace w;
  const std::vector<std::string> base = {"per_device_train_batch_size=6",
                                         "global_batch_size=6",
                                         "head_rows=64",
                                         "max_grad_norm=0",
                                         "max_steps=6",
                                         "model.n_layer=6"};
  const auto least = [&](std::vector<std::string> more) {
    more.emplace_back("host_memory=1GiB");
    return w.plan(joined(base, more))["minimum_bytes"].get<int64_t>();
  };
  const int64_t streamed = least({}), resident = least({"offload_params=none"});
  EXPECT_LT(streamed, resident);
  const std::string memory = "memory=" + std::to_string(streamed);
  w.trained("kept", base);
  const Outcome run = w.trained("streamed", joined(base, {memory, "host_memory=1GiB"}));
  expect_planned_is_measured(w, "streamed");
  EXPECT_EQ(w.json("streamed/plan.json")["decisions"]["offload_params"], "cpu");
  EXPECT_NE(run.out.find("without it nothing fits"), std::string::npos) << run.out;
  // The norm of gradients that backward consumes is the same sum in another order.
  EXPECT_EQ(w.losses("streamed"), w.losses("kept"));
  EXPECT_EQ(slurp(w.path("streamed/final/model.safetensors")),
            slurp(w.path("kept/final/model.safetensors")));
  const Outcome refused = w.train("refused", joined(base, {memory}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_EQ(refused.err.find("host_memory="), std::string::npos)
      << "both are RAM, of which that frees none: " << refused.err;
}

TEST(Offload, TheNamedHostMemoryWorksAndNothingBelow) {
  const Workspace w;
  const std::vector<std::string> keys = {"recompute=block", "offload=inputs",
                                         "per_device_train_batch_size=3"};
  const auto with = [&](int64_t bytes) {
    std::vector<std::string> more = keys;
    more.push_back("host_memory=" + std::to_string(bytes));
    return more;
  };
  const auto needed = w.plan(keys)["host_bytes"].get<int64_t>();
  const Outcome refused = w.train("run", with(needed - 1));
  EXPECT_EQ(refused.code, 3);
  EXPECT_FALSE(exists(w.path("run")));
  EXPECT_NE(refused.err.find("expected host_memory of " + std::to_string(needed) + " B"),
            std::string::npos)
      << refused.err;
  w.trained("run", with(needed));
  expect_planned_is_measured(w, "run");
}

// With host_memory the planner takes what it needs of it, and the run is the same; told not to, it
// refuses. A resume that the host has no room for says what unpins it.
TEST(Offload, ThePlannerTakesTheHostsMemoryWhenToldOfIt) {
  const Workspace w;
  const std::vector<std::string> base = {"per_device_train_batch_size=3", "head_rows=64",
                                         "save_steps=4", "lr_scheduler_type=constant"};
  EXPECT_EQ(w.plan(joined(base, {"memory=1GiB"}))["host_bytes"], 0);
  const Json open = w.plan(joined(base, {"host_memory=1GiB"}));
  EXPECT_EQ(open["host_bytes"], 0) << "nothing is gained where memory is plenty";
  const std::string least = "memory=" + std::to_string(open["minimum_bytes"].get<int64_t>());
  w.trained("kept", joined(base, {"max_steps=8"}));
  const Outcome run = w.trained("moved", joined(base, {"max_steps=8", "host_memory=1GiB", least}));
  expect_planned_is_measured(w, "moved");
  const Json plan = w.json("moved/plan.json");
  EXPECT_GT(plan["host_bytes"].get<int64_t>(), 0);
  EXPECT_EQ(plan["decisions"]["offload_optimizer"], "cpu");
  EXPECT_NE(run.out.find("the host's memory was the planner's choice"), std::string::npos);
  EXPECT_EQ(w.curve("moved"), w.curve("kept"));
  EXPECT_EQ(slurp(w.path("moved/final/model.safetensors")),
            slurp(w.path("kept/final/model.safetensors")));

  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{least},
        {least, "host_memory=1GiB", "offload=none", "offload_optimizer=none"}}) {
    const Outcome refused = w.train("refused", joined(base, keys));
    EXPECT_EQ(refused.code, 3);
    EXPECT_EQ(refused.err.find("host_memory="), std::string::npos)
        << "both are RAM, of which that frees none: " << refused.err;
  }
  const Outcome pinned =
      w.train("moved", {"max_steps=9", "resume=latest", "host_memory=4KiB", "offload=inputs",
                        "recompute=block", "offload_optimizer=none", "save_steps=4",
                        "lr_scheduler_type=constant"});
  EXPECT_EQ(pinned.code, 3);
  for (const char* word :
       {"which is enough, for what is offloaded for micro-batches of 3 and head chunks of 64",
        "checkpoint-8 pins", "offload=none (then memory of"})
    EXPECT_NE(pinned.err.find(word), std::string::npos) << pinned.err;
}

// Norms of its columns want all of a table in every forward: it does not rest with the host.
TEST(Offload, ATableThatAnAdapterReadsWholeStays) {
  const Workspace w;
  w.trained("untied", {"model.tie_word_embeddings=false", "max_steps=1"});
  const std::vector<std::string> keys = {"model=" + w.path("untied/final"), "tokenizer=null",
                                         "lora_r=4", "target_modules=[wte]", "max_steps=2"};
  const std::string refused =
      run(w.train_arguments("none", joined(keys, {"peft=dora", "offload_embedding=cpu"}))).err;
  EXPECT_NE(refused.find("an embedding that is read whole for the norms of its columns\n"
                         "  try:   offload_embedding=auto, or peft=lora"),
            std::string::npos)
      << refused;
  for (const std::vector<std::string>& other :
       {std::vector<std::string>{"peft=dora", "offload_embedding=auto"},
        {"peft=lora", "offload_embedding=cpu"}}) {
    const std::string name = other.front().substr(5);
    w.trained(name, joined(keys, other));
    expect_planned_is_measured(w, name);
  }
}

}  // namespace
}  // namespace snug::e2e
