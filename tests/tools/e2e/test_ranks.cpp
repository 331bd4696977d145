// Runs of several ranks, as a user starts them: their processes, files, signals and ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kRanks = {"ranks=2", "threads=1"};

std::vector<std::string> with(const std::vector<std::string>& more) {
  return joined(kRanks, more);
}

// A run that lost power after step 6 goes on with `keys` to the weights of `whole`.
void expect_goes_on(const Workspace& w, const std::string& from,
                    const std::vector<std::string>& keys, const std::string& whole) {
  lose_power_after(w, from, "on", 6);
  w.trained("on", joined(keys, {"resume=latest"}));
  expect_same_bytes(w, "on", whole, "final/model.safetensors");
  std::filesystem::remove_all(w.path("on"));
}

TEST(Ranks, EveryStageLearnsTheSame) {
  const Workspace w;
  w.trained("one", {"threads=1", "per_device_train_batch_size=3"});
  for (const char* zero : {"0", "1", "2", "3"}) {
    const std::string name = std::string("zero") + zero;
    const Outcome o =
        w.trained(name, with({"per_device_train_batch_size=3", std::string("zero=") + zero}));
    EXPECT_NE(o.out.find("shared by 2 ranks"), std::string::npos) << o.out;
    expect_exact(w, name);
    expect_exact(w, name + "/ranks/1");
    EXPECT_EQ(w.json(name + "/plan.json")["hash"], w.json(name + "/ranks/1/plan.json")["hash"]);
    EXPECT_EQ(w.losses(name), w.losses(name + "/ranks/1"));
    expect_same_bytes(w, name, "zero0", "final/model.safetensors");
    for (const char* file :
         {"checkpoint-12/model.safetensors", "checkpoint-12/optimizer.safetensors"})
      expect_same_tensors(w, name, "zero0", file);
    EXPECT_EQ(exists(w.path(name + "/checkpoint-12/optimizer-rank-1.safetensors")), zero[0] > '0');
    EXPECT_FALSE(exists(w.path(name + "/checkpoint-12/rank-1.sealed")));
    EXPECT_FALSE(exists(w.path(name + "/final/model-rank-0.safetensors")));
    const std::vector<double> one = w.losses("one"), all = w.losses(name);
    ASSERT_EQ(all.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(all[i] / one[i], 1, 1e-6) << i;
  }
}

// A checkpoint is one of the model, whoever wrote it: any number of ranks goes on from it.
TEST(Ranks, ACheckpointOfAnyNumberOfRanksServesAnyOther) {
  const Workspace w;
  w.trained("whole", with({"zero=2", "precision=bf16", "optim=adamw_8bit"}));
  for (const std::vector<std::string>& other :
       {std::vector<std::string>{"ranks=2", "zero=1"}, {"ranks=3", "zero=3"}, {"ranks=1"}}) {
    w.trained("part", with({"zero=2", "precision=bf16", "optim=adamw_8bit", "overwrite=true",
                            "save_steps=5", "max_steps=12"}));
    lose_power_after(w, "part", "on", 5);
    w.trained("on",
              joined({"threads=1", "precision=bf16", "optim=adamw_8bit", "resume=latest"}, other));
    const std::vector<double> a = w.losses("whole"), b = w.losses("on");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i] / a[i], 1, 1e-4) << i;
    if (other.front() == "ranks=2") expect_same_bytes(w, "on", "whole", "final/model.safetensors");
    std::filesystem::remove_all(w.path("on"));
  }
}

// With the least memory each rank updates its piece of a block as backward leaves it, and goes on from a
// checkpoint of ranks that do not.
TEST(Ranks, BackwardConsumesGradients) {
  const Workspace w;
  const std::vector<std::string> keys = {"max_grad_norm=0", "eval_fraction=0", "save_steps=6",
                                         "per_device_train_batch_size=3"};
  for (const char* zero : {"zero=0", "zero=1", "zero=3"}) {
    const std::string name(zero);
    const auto all = with(joined(keys, {zero}));
    const int64_t least = w.plan(all)["minimum_bytes"];
    const Outcome o = w.trained(name, joined(all, {"memory=" + std::to_string(least)}));
    EXPECT_NE(o.out.find("updated as backward leaves them"), std::string::npos) << o.out;
    expect_exact(w, name);
    expect_exact(w, name + "/ranks/1");
    EXPECT_EQ(w.losses(name), w.losses(name + "/ranks/1"));
    expect_goes_on(w, name, all, name);
  }
}

// States with the host of each rank: no bit changes, both arenas are what was planned.
TEST(Ranks, StatesWithTheHost) {
  const Workspace w;
  const std::vector<std::string> keys = {"precision=bf16", "save_steps=6"};
  for (const char* zero : {"zero=0", "zero=1", "zero=3"}) {
    const std::string name(zero), away = name + "away";
    const auto all = with(joined(keys, {zero}));
    const auto host = joined(all, {"offload_optimizer=cpu", "host_memory=16MiB"});
    w.trained(name, all);
    w.trained(away, host);
    for (const std::string& folder : {away, away + "/ranks/1"}) expect_exact_with_host(w, folder);
    expect_same_bytes(w, away, name, "final/model.safetensors");
    expect_same_tensors(w, away, name, "checkpoint-12/optimizer.safetensors");
    expect_goes_on(w, away, all, name);
  }
}

// Weights and gradients too, whole ones or pieces: the run is that without, and either goes on from the other's
// checkpoint.
TEST(Ranks, WeightsAndGradientsWithTheHost) {
  const Workspace w;
  const std::vector<std::string> keys = {"precision=bf16", "save_steps=6",
                                         "per_device_train_batch_size=1"};
  for (const char* zero : {"zero=1", "zero=2", "zero=3"}) {
    const std::string name(zero), away = name + "away";
    const auto all = with(joined(keys, {zero}));
    const auto host =
        joined(all, {"offload_params=cpu", "offload_gradients=cpu", "packed_weights=none"});
    w.trained(name, all);
    const Outcome o = w.trained(away, host);
    EXPECT_NE(o.out.find("the layers' weights, the layers' gradients and the optimizer's state"),
              std::string::npos)
        << o.out;
    for (const std::string& folder : {away, away + "/ranks/1"}) expect_exact_with_host(w, folder);
    expect_same_bytes(w, away, name, "final/model.safetensors");
    expect_same_tensors(w, away, name, "checkpoint-12/optimizer.safetensors");
    expect_goes_on(w, away, all, name);
    expect_goes_on(w, name, host, name);
  }
}

// A frozen table of rows rests whole with the host of each.
TEST(Ranks, AFrozenEmbeddingWithTheHost) {
  const Workspace w;
  const std::vector<std::string> keys = {"model.tie_word_embeddings=false", "freeze=wte",
                                         "save_steps=6"};
  for (const char* zero : {"zero=0", "zero=2"}) {
    const std::string name(zero), away = name + "away";
    const auto all = with(joined(keys, {zero}));
    const auto host = joined(all, {"offload_embedding=cpu"});
    w.trained(name, all);
    w.trained(away, host);
    EXPECT_EQ(w.json(away + "/plan.json")["decisions"]["offload_embedding"], "cpu");
    for (const std::string& folder : {away, away + "/ranks/1"}) expect_exact_with_host(w, folder);
    expect_same_bytes(w, away, name, "final/model.safetensors");
    expect_goes_on(w, away, all, name);
  }
}

// Updates one step late are named, and a stop at any step changes none: not at another stage either.
TEST(Ranks, UpdatesOneStepLateGoOn) {
  const Workspace w;
  const std::vector<std::string> late = {"offload_update=cpu", "allow=[stale_update]",
                                         "save_steps=6", "per_device_train_batch_size=3"};
  for (const char* zero : {"zero=0", "zero=1", "zero=3"}) {
    const std::string name(zero);
    const Outcome o = w.trained(name, with(joined(late, {zero})));
    EXPECT_EQ(w.json(name + "/plan.json")["decisions"]["update_delay"], "one step late");
    EXPECT_NE(o.out.find("that changes numbers (allow: stale_update)"), std::string::npos) << o.out;
    for (const std::string& folder : {name, name + "/ranks/1"}) expect_exact(w, folder);
    expect_same_bytes(w, name, "zero=0", "final/model.safetensors");
    expect_goes_on(w, name, with(joined(late, {zero[5] == '1' ? "zero=2" : "zero=1"})), name);
  }
}

// The published recipe of 2 + 2 + 4 bytes a parameter, in pieces.
TEST(Ranks, WeightsWithoutAMasterGoOnInPieces) {
  const Workspace w;
  const std::vector<std::string> recipe = {"precision=bf16", "allow=[no_master,bf16_gradients]",
                                           "optim=adamw_bf16", "zero=3"};
  w.trained("whole", with(recipe));
  expect_exact(w, "whole");
  expect_exact(w, "whole/ranks/1");
  w.trained("part", with(joined(recipe, {"save_steps=5", "max_steps=12"})));
  lose_power_after(w, "part", "on", 5);
  w.trained("on", with(joined(recipe, {"resume=latest"})));
  expect_same_bytes(w, "on", "whole", "final/model.safetensors");
}

// One rank goes on from what two have written, with their own configuration; folders of ranks that are no
// more go.
TEST(Ranks, OneGoesOnFromTheConfigurationOfTwo) {
  const Workspace w;
  w.trained("run", with({"zero=2", "global_batch_size=null", "per_device_train_batch_size=1",
                         "gradient_accumulation_steps=3"}));
  EXPECT_TRUE(exists(w.path("run/ranks/1")));
  const Outcome o = run({"train", "--config", w.path("run/config.resolved.yaml"), "resume=latest",
                         "ranks=1", "max_steps=15"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_FALSE(exists(w.path("run/ranks/1")));
  EXPECT_EQ(w.losses("run").size(), 15u);
}

// What ranks wrote in pieces is a model to every command; a byte of a piece that changed is found.
TEST(Ranks, CommandsReadACheckpointInPieces) {
  const Workspace w;
  w.trained("run", with({"zero=3"}));
  const std::string pieces = w.path("run/checkpoint-12"), final = w.path("run/final");
  const auto json = [](std::vector<std::string> words) {
    const Outcome o = run(words);
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const auto eval = [&](const std::string& model) {
    return json({"eval", "--model", model, "--data", w.path("text.txt"), "--json"})["loss"];
  };
  EXPECT_EQ(eval(pieces), eval(final));
  const Outcome a = run({"generate", "--model", pieces, "--prompt", "the", "--temperature", "0"}),
                b = run({"generate", "--model", final, "--prompt", "the", "--temperature", "0"});
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(run({"convert", "--to", "hf", "--model", pieces, "--output", w.path("hf")}).code, 0);
  expect_same_bytes(w, "hf", "run/final", "model.safetensors");
  const Json facts = json({"inspect", pieces, "--stats", "--json"});
  EXPECT_EQ(facts["not_finite"], 0);
  EXPECT_EQ(facts["tensors"].size(), json({"inspect", final, "--json"})["tensors"].size());
  // A file of it by the name of the whole; weights alone, and with half of what a resume needs.
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const Json file = json({"inspect", pieces + "/" + name, "--stats", "--json"});
    EXPECT_EQ(file["kind"], "safetensors");
    EXPECT_EQ(file["tensors"], facts[name[0] == 'm' ? "tensors" : "optimizer_tensors"]);
  }
  const std::string torn = w.path("checkpoint-5");
  std::filesystem::create_directory(torn);
  for (const char* name : {"config.json", "model.safetensors.pieces.json",
                           "model-rank-0.safetensors", "model-rank-1.safetensors"})
    std::filesystem::copy(pieces + "/" + name, torn);
  EXPECT_EQ(json({"inspect", torn, "--json"})["kind"], "model");
  std::filesystem::copy(pieces + "/optimizer.safetensors.pieces.json", torn);
  EXPECT_EQ(json({"inspect", torn, "--json"})["complete"], false);
  w.trained("more", {"model=" + pieces, "max_steps=2"});
  const std::string piece = pieces + "/optimizer-rank-1.safetensors";
  std::string bytes = slurp(piece);
  bytes[bytes.size() - 100] ^= 1;
  std::ofstream(piece, std::ios::binary) << bytes;
  const Outcome o = w.train("run", with({"zero=3", "resume=" + pieces, "max_steps=13"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("optimizer-rank-1.safetensors as it was written"), std::string::npos)
      << o.err;
}

// A checkpoint of an adapter, whole or in pieces, has the tensors of the adapter.
void expect_inspected(const std::string& checkpoint, const std::string& adapter) {
  const Outcome a = run({"inspect", checkpoint, "--json"}), b = run({"inspect", adapter, "--json"});
  ASSERT_EQ(a.code, 0) << a.err;
  ASSERT_EQ(b.code, 0) << b.err;
  const Json facts = Json::parse(a.out), whole = Json::parse(b.out);
  EXPECT_EQ(facts["kind"], "checkpoint");
  EXPECT_EQ(facts["complete"], true);
  EXPECT_EQ(facts["parameters"], whole["parameters"]);
  EXPECT_EQ(facts["tensors"], whole["tensors"]);
  EXPECT_EQ(facts["optimizer_tensors"].size(), 2 * whole["tensors"].size());
}

// Adapters too, whose base no rank writes, and at their end the best of the checkpoints.
TEST(Ranks, AdaptersAndTheBestInPieces) {
  const Workspace w;
  w.trained("base", {});
  const std::vector<std::string> keys = {"model=" + w.path("base/final"),
                                         "peft=lora",
                                         "lora_r=4",
                                         "save_steps=3",
                                         "eval_steps=3",
                                         "load_best_model_at_end=true",
                                         "learning_rate=0.3"};
  w.trained("zero0", with(joined(keys, {"zero=0"})));
  expect_inspected(w.path("zero0/checkpoint-12"), w.path("zero0/final"));
  for (const char* zero : {"zero=1", "zero=3"}) {
    const std::string name(zero);
    w.trained(name, with(joined(keys, {zero})));
    expect_inspected(w.path(name + "/checkpoint-12"), w.path(name + "/final"));
    expect_same_bytes(w, name, "zero0", "final/adapter_model.safetensors");
    expect_same_tensors(w, name, "zero0", "checkpoint-12/adapter_model.safetensors");
    lose_power_after(w, name, "on", 6);
    w.trained("on", with(joined(keys, {zero, "resume=latest"})));
    expect_same_bytes(w, "on", name, "final/adapter_model.safetensors");
    std::filesystem::remove_all(w.path("on"));
  }
}

// The first process passes a signal on; all ranks stop at the same step, with a checkpoint.
TEST(Ranks, ASignalStopsAllOfThem) {
  const Workspace w;
  w.trained("whole", with({"zero=3"}));
  Child child(w.train_arguments("run", with({"zero=3"})));
  ASSERT_TRUE(child.read_until("step      3/12"));
  const std::vector<pid_t> ranks = processes_of(child.pid());
  EXPECT_EQ(ranks.size(), 2u);
  child.send(SIGTERM);
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 75);
  EXPECT_NE(o.out.find("To go on: snug train "), std::string::npos) << o.out;
  w.trained("run", with({"zero=3", "resume=latest"}));
  expect_same_bytes(w, "run", "whole", "final/model.safetensors");
  EXPECT_EQ(w.losses("run"), w.losses("whole"));
  EXPECT_EQ(w.losses("run/ranks/1"), w.losses("whole"));
}

// Whichever rank gets it.
TEST(Ranks, ASignalToOneOfThemStopsAll) {
  const Workspace w;
  const auto keys = joined(kRanks, {"max_steps=200"});  // which none ends before the signal comes
  Child child(w.train_arguments("run", keys));
  ASSERT_TRUE(child.read_until("step      3/200"));
  const std::vector<pid_t> ranks = processes_of(child.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGTERM);
  EXPECT_EQ(child.finish().code, 75);
  Child other(w.train_arguments("other", keys));
  ASSERT_TRUE(other.read_until("step      3/200"));
  other.send(SIGINT);  // from a process, not from a terminal
  EXPECT_EQ(other.finish().code, 75);
}

// A rank that dies is named; the others end at once, and what was saved is whole.
TEST(Ranks, ARankThatDiesEndsTheRun) {
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    const Workspace w;
    Child child(w.train_arguments("run", with({"save_steps=2"})));
    ASSERT_TRUE(child.read_until("step      5/12"));
    const std::vector<pid_t> ranks = processes_of(child.pid());
    ASSERT_EQ(ranks.size(), 2u);
    const auto began = std::chrono::steady_clock::now();
    kill(ranks[victim], SIGKILL);
    const Outcome o = child.finish();
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find("rank " + std::to_string(victim) + ": "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("expected all 2 ranks to go on"), std::string::npos) << o.err;
    for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "still there";
    w.trained("run", with({"resume=latest"}));
    w.trained("whole", with({"save_steps=2"}));
    expect_same_bytes(w, "run", "whole", "final/model.safetensors");
  }
}

// One that stands still is waited for as long as ddp_timeout says.
TEST(Ranks, ARankThatHangsIsNamed) {
  const Workspace w;
  Child child(w.train_arguments("run", with({"ddp_timeout=2.5s"})));
  ASSERT_TRUE(child.read_until("step      3/12"));
  const std::vector<pid_t> ranks = processes_of(child.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGSTOP);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(6));
    kill(ranks[1], SIGCONT);
  });
  const Outcome o = child.finish();
  later.join();
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("rank 1: it did not come to"), std::string::npos) << o.err;
}

// Text becomes tokens on rank 0 alone, as long as that takes: the others wait as long as it goes on, and no
// longer than ddp_timeout for one that does not. All writes of the tokens together take longer than it is.
TEST(Ranks, TokensAreWaitedForAsLongAsTheyAreMade) {
  NEEDS_PRELOAD();
  const Workspace w;
  const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", "data.new/train"),
      slow("BAD_WORLD_SLOW", "1");
  w.trained("run", with({"ddp_timeout=2.5s"}));
  Child child(w.train_arguments("hangs", with({"ddp_timeout=2s"})));
  for (int i = 0; i < 2000 && !exists(w.path("hangs/data.new")); ++i) usleep(10'000);
  const std::vector<pid_t> ranks = processes_of(child.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(kill(ranks[0], SIGSTOP), 0);
  EXPECT_TRUE(ends_soon(ranks[1]));
  kill(ranks[0], SIGCONT);
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("rank 0: it did not come to "), std::string::npos) << o.err;
}

// Also while a checkpoint is written, when nothing is computed that it could miss. Its writes are
// slow, so that the rank is surely stopped before it is done.
TEST(Ranks, ARankThatHangsAtACheckpointIsNamed) {
  NEEDS_PRELOAD();
  const Workspace w;
  const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", "-rank-1.safetensors"),
      slow("BAD_WORLD_SLOW", "0.05");
  Child child(w.train_arguments("run", with({"ddp_timeout=2s", "zero=1"})));
  ASSERT_TRUE(child.read_until("step     11/12"));
  const std::vector<pid_t> ranks = processes_of(child.pid());
  ASSERT_EQ(ranks.size(), 2u);
  std::atomic<bool> ended{false}, stopped{false};
  std::thread watcher([&] {
    while (!ended && !exists(w.path("run/checkpoint-12.tmp"))) std::this_thread::yield();
    if (ended) return;
    stopped = kill(ranks[1], SIGSTOP) == 0;
    std::this_thread::sleep_for(std::chrono::seconds(5));
    kill(ranks[1], SIGCONT);
  });
  const Outcome o = child.finish();
  ended = true;
  watcher.join();
  EXPECT_TRUE(stopped);
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_NE(o.err.find("rank 1: it did not "), std::string::npos) << o.err;
  EXPECT_FALSE(exists(w.path("run/checkpoint-12/COMPLETE")));
}

// What all ranks would say is said once, before anything is written.
TEST(Ranks, WhatIsWrongIsSaidOnce) {
  const Workspace w;
  const Outcome o = w.train("run", with({"train_data=" + w.path("no-such-file.txt")}));
  EXPECT_EQ(o.code, 2);
  const size_t first = o.err.find("no-such-file.txt");
  ASSERT_NE(first, std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("usage: expected", o.err.find('\n')), std::string::npos) << o.err;
  EXPECT_FALSE(exists(w.path("run")));
  const Outcome small = w.train("run", with({"memory=1MiB"}));
  EXPECT_EQ(small.code, 3) << small.err;
  EXPECT_EQ(small.err.find("offload"), std::string::npos) << small.err;
}

// What looks at whole parameters keeps its states whole, and all ranks update all alike. With the usual
// eps1 adafactor makes a step of its rate of a key bias's gradient, which is nothing but the rounding of
// sums whose order ranks change.
TEST(Ranks, WholeParametersAreNotCut) {
  const Workspace w;
  const std::vector<std::string> cases[] = {{"optim=lamb"},
                                            {"optim=lion", "optim_args=percentile_clipping=40"},
                                            {"optim=adafactor", "optim_args=eps1=1e-8"},
                                            {"optim=muon"},
                                            {"optim=adam_mini"}};
  for (const std::vector<std::string>& optim : cases) {
    const std::string name = optim[0].substr(6);
    w.trained(name + "1", joined({"threads=1", "per_device_train_batch_size=3"}, optim));
    w.trained(name, with(joined({"per_device_train_batch_size=3"}, optim)));
    EXPECT_EQ(w.json(name + "/plan.json")["decisions"]["zero"], 0);
    expect_exact(w, name);
    EXPECT_EQ(w.losses(name), w.losses(name + "/ranks/1"));
    const std::vector<double> one = w.losses(name + "1"), all = w.losses(name);
    ASSERT_EQ(all.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(all[i] / one[i], 1, 1e-6) << i;
  }
}

TEST(Ranks, APlanSaysWhatEachKeeps) {
  const Workspace w;
  const Json one = w.plan({"threads=1"}), zero3 = w.plan(with({"zero=3"}));
  EXPECT_EQ(zero3["decisions"]["ranks"], 2);
  EXPECT_EQ(zero3["decisions"]["zero"], 3);
  EXPECT_FALSE(one["decisions"].contains("ranks"));
  EXPECT_LT(zero3["categories"]["optimizer"], one["categories"]["optimizer"]);
  EXPECT_EQ(w.plan(kRanks)["decisions"]["zero"], 1) << "auto, with room for all";
  // A refusal speaks of what needs least, whichever that is.
  int64_t least = zero3["minimum_bytes"];
  for (const char* zero : {"zero=1", "zero=2"})
    least = std::min(least, w.plan(with({zero}))["minimum_bytes"].get<int64_t>());
  const Outcome o = w.train("no", with({"memory=1MiB"}));
  EXPECT_NE(o.err.find("memory of at least " + std::to_string(least) + " B"), std::string::npos)
      << o.err;
}

// Under another launcher, of which each process is a rank: here a shell that sets its variables.
TEST(Ranks, OfAnotherLauncherAreThoseOfTheRun) {
  const Workspace w;
  w.trained("own", kRanks);
  std::string words;
  for (const std::string& word : w.train_arguments("run", {"threads=1"}))
    words += " '" + word + "'";
  const Outcome o =
      shell("for r in 1 0; do OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2 $SNUG" + words +
            " & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit $?; done");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("shared by 2 ranks"), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find("Model folder", o.out.find("Model folder") + 1), std::string::npos)
      << "said once";
  expect_same_bytes(w, "run", "own", "final/model.safetensors");
  const Outcome other =
      shell("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 $SNUG" + words + " ranks=3");
  // Keys that mean something with ranks alone.
  const Outcome zero =
      shell("for r in 1 0; do RANK=$r WORLD_SIZE=2 MASTER_PORT=" + std::to_string(getpid()) +
            " $SNUG" + words +
            " zero=3 overwrite=true & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit "
            "$?; done");
  EXPECT_EQ(zero.code, 0) << zero.err;
  expect_same_bytes(w, "run", "own", "final/model.safetensors");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("as many ranks as the launcher started: OMPI_COMM_WORLD_SIZE=2"),
            std::string::npos)
      << other.err;
}

// What is no folder of all is found before anything is computed.
TEST(Ranks, AFolderThatOthersDoNotSeeIsRefused) {
  const Workspace w;
  std::string words;
  for (const std::string& word : w.train_arguments("run", {"threads=1"}))
    words += word.starts_with("output_dir=") ? " output_dir=run" : " '" + word + "'";
  std::string line = "pids=; ";
  for (const char* rank : {"1", "0"}) {
    std::filesystem::create_directory(w.path(rank));
    line += std::string("(cd ") + w.path(rank) + "; exec env RANK=" + rank +
            " WORLD_SIZE=2 MASTER_PORT=apart" + std::to_string(getpid()) + " $SNUG" + words +
            ") & pids=\"$pids $!\"; ";
  }
  const Outcome o = shell(line + "for p in $pids; do wait $p || code=$?; done; exit $code");
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_NE(o.err.find("usage: expected output_dir in a folder that all ranks see\n  found: " +
                       w.path("1/run") + " on "),
            std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("where rank 1 does not find what rank 0 writes to " + w.path("0/run")),
            std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("try:   output_dir on a disk that all of them have"), std::string::npos);
  for (const char* run : {"0/run", "1/run"}) EXPECT_FALSE(exists(w.path(run))) << run;
}

// overwrite takes the folders of ranks with it.
TEST(Ranks, OverwriteBeginsAnew) {
  const Workspace w;
  w.trained("run", with({"max_steps=3"}));
  EXPECT_TRUE(exists(w.path("run/ranks/1/plan.json")));
  w.trained("run", {"overwrite=true", "max_steps=3"});
  EXPECT_FALSE(exists(w.path("run/ranks")));
}

}  // namespace
}  // namespace snug::e2e
