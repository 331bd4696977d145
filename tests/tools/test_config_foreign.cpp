// Configurations of other trainers: what asks for nothing is read with one line, what asks for
// something that is not there is refused by name, and all that is wrong is said at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "optim/optimizer.h"
#include "optim/settings.h"
#include "tests/support/folders.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/run_config.h"

namespace snug {
namespace {

using Json = nlohmann::json;

RunConfig load(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return load_config_text(yaml, "run.yaml", overrides);
}

std::string refused(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    load(yaml, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

Json transformers_defaults() {
  return parse_json_file(source_folder() + "/tests/golden/training_arguments.json")["defaults"];
}

// What TrainingArguments writes with nothing set, with what Snug needs beside it.
TEST(ConfigForeign, ReadsWhatTrainingArgumentsWrites) {
  Json file = transformers_defaults();
  file["model"] = "gpt2";
  file["train_data"] = "a.txt";
  file["tokenizer"] = "tok.json";
  const RunConfig c = load(file.dump());
  EXPECT_EQ(c.output_dir, "out");
  EXPECT_EQ(c.per_device_train_batch_size, 8);
  EXPECT_EQ(c.gradient_accumulation_steps, 1);
  EXPECT_EQ(c.num_train_epochs, 3.0);
  EXPECT_EQ(c.max_steps, 0) << "-1 is not set";
  EXPECT_EQ(c.learning_rate, 5e-5);
  EXPECT_EQ(c.lr_scheduler_type, "linear");
  EXPECT_EQ(resolve_warmup(c, 1000), 0)
      << "and not the warm-up that Snug has unless told otherwise";
  EXPECT_EQ(c.optim, "adamw");
  EXPECT_EQ(c.weight_decay, 0.0);
  EXPECT_EQ(c.adam_beta2, 0.999);
  EXPECT_EQ(c.precision, "fp32");
  EXPECT_EQ(c.recompute, "none");
  EXPECT_EQ(c.logging_steps, 500);
  EXPECT_EQ(c.save_steps, 500);
  EXPECT_EQ(c.eval_steps, 0) << "eval_strategy: no";
  EXPECT_EQ(c.report_to, std::vector<std::string>{"none"});
  EXPECT_EQ(c.seed, 42);
  ASSERT_EQ(c.notes.size(), 1u) << "one line for all of them";
  EXPECT_NE(c.notes[0].find("bf16_full_eval"), std::string::npos) << c.notes[0];
  EXPECT_NE(c.notes[0].find(" more"), std::string::npos) << c.notes[0];
  EXPECT_LT(c.notes[0].size(), 400u);
  // What it resolves to is a configuration without any of them.
  EXPECT_TRUE(load(resolved_yaml(c)).notes.empty());
}

// The defaults fit every optimizer and schedule, with evaluation and without.
TEST(ConfigForeign, TheirDefaultsContradictNothing) {
  const Json file = transformers_defaults();
  for (const std::string& optim : optimizer_names())
    for (const char* schedule : {"linear", "cosine", "constant", "constant_with_warmup",
                                 "polynomial", "inverse_sqrt", "cosine_with_restarts"})
      for (const char* data : {"", "held.txt"}) {
        Json j = file;
        j["optim"] = optim;
        j["lr_scheduler_type"] = schedule;
        if (*data != '\0') j["eval_data"] = data;
        // What averages in place of a schedule takes none, wherever it was written.
        if (find_optimizer(optim)->keeps_others && std::string_view(schedule) != "constant") {
          EXPECT_NE(refused(j.dump()).find("leave lr_scheduler_type out"), std::string::npos)
              << optim << " " << schedule;
          continue;
        }
        EXPECT_EQ(refused(j.dump()), "") << optim << " " << schedule << " " << data;
      }
}

// Each argument is a key of Snug's or a row of what is known elsewhere, and its default alone is
// read. One that is a row refuses a value that asks for something, unless nothing could be asked
// with it.
TEST(ConfigForeign, EveryArgumentHasAnAnswer) {
  const Json file = transformers_defaults();
  for (const auto& [name, value] : file.items()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(refused(Json{{name, value}}.dump()), "");
    EXPECT_EQ(refused(Json{{name, nullptr}}.dump()), "") << "null is left out";
    if (find_key(name) != nullptr || find_strategy_key(name) != nullptr) continue;
    const ForeignKey* const foreign = find_foreign_key(name);
    ASSERT_NE(foreign, nullptr);
    const std::string said = refused(Json{{name, "asked_for"}}.dump());
    if (foreign->neutral == "*") {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_NE(said.find("\"" + name + "\" (run.yaml:1)"), std::string::npos) << said;
      EXPECT_NE(said.find(std::string(foreign->why)), std::string::npos) << said;
    }
  }
}

struct Neutral {
  const char* yaml;
  const char* noted;  // a part of the line that says how it is read; empty: nothing is said
};

class ConfigNeutral : public testing::TestWithParam<Neutral> {};

TEST_P(ConfigNeutral, IsRead) {
  const RunConfig c = load(GetParam().yaml);
  const std::string said = c.notes.empty() ? "" : c.notes[0];
  if (*GetParam().noted == '\0')
    EXPECT_EQ(said, "");
  else
    EXPECT_NE(said.find(GetParam().noted), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(
    Rows, ConfigNeutral,
    testing::Values(Neutral{"lr_scheduler_type: constant\nwarmup_steps: 0", ""},
                    Neutral{"lr_scheduler_type: constant\nwarmup_ratio: 0.0", ""},
                    Neutral{"warmup_ratio: 0.03\nwarmup_steps: 0", ""},
                    Neutral{"max_time: 2m\nwarmup_steps: 0", ""},
                    Neutral{"save_strategy: no", "save_strategy (save_steps: 0 says when)"},
                    Neutral{"save_strategy: steps\nsave_steps: 20", "save_strategy"},
                    Neutral{"save_strategy: no\nsave_steps: 0", "save_strategy"},
                    Neutral{"eval_strategy: no", "eval_strategy (eval_steps: 0 says when)"},
                    Neutral{"evaluation_strategy: \"no\"\neval_data: a.txt", "evaluation_strategy"},
                    Neutral{"dataloader_num_workers: 0", "dataloader_num_workers"},
                    Neutral{"group_by_length: false", "group_by_length"},
                    Neutral{"remove_unused_columns: false", "remove_unused_columns"},
                    Neutral{"torch_compile: false", "torch_compile"},
                    Neutral{"deepspeed: null", "deepspeed"},
                    Neutral{"label_smoothing_factor: 0.0", "label_smoothing_factor"},
                    Neutral{"neftune_noise_alpha: null", "neftune_noise_alpha"},
                    Neutral{"push_to_hub: false", "push_to_hub"},
                    Neutral{"max_steps: -1\nnum_train_epochs: 2", ""},
                    Neutral{"save_total_limit: 0", ""}, Neutral{"save_total_limit: null", ""},
                    Neutral{"logging_steps: 0", ""}, Neutral{"eval_steps: 0", ""},
                    Neutral{"seed: null", ""}, Neutral{"tf32: null\nbf16: true\nfp16: false", ""},
                    Neutral{"fsdp: []", "fsdp"}, Neutral{"fsdp: ''", "fsdp"},
                    Neutral{"accelerator_config: {split_batches: false}", "accelerator_config"}));

TEST(ConfigForeign, StrategiesSayWhatTheirKeysSay) {
  EXPECT_EQ(load("save_strategy: no").save_steps, 0);
  EXPECT_EQ(load("logging_strategy: no").logging_steps, 0);
  EXPECT_EQ(load("save_strategy: steps\nsave_steps: 7").save_steps, 7);
  EXPECT_EQ(load("eval_strategy: no\neval_data: a.txt").eval_steps, 0);
  EXPECT_NE(refused("save_strategy: no\nsave_steps: 20")
                .find("expected save_strategy: no without save_steps\n  found: no (run.yaml:1) and "
                      "save_steps: 20 (run.yaml:2)\n  try:   leave one of them out"),
            std::string::npos);
  EXPECT_NE(refused("save_strategy: best").find("\"best\""), std::string::npos);
  EXPECT_NE(refused("", {"eval_strategy=best"}).find("eval_steps=N"), std::string::npos);
}

TEST(ConfigForeign, WhatAsksForSomethingIsRefused) {
  for (const char* yaml :
       {"label_smoothing_factor: 0.1", "dataloader_num_workers: 4", "deepspeed: ds.json",
        "torch_compile: true", "accelerator_config: {split_batches: true}",
        "accelerator_config: {no_such: 1}", "fsdp: [full_shard]", "save_only_model: true",
        "group_by_length: true", "max_steps: -2", "warmup_steps: 5\nlr_scheduler_type: constant"})
    EXPECT_NE(refused(yaml), "") << yaml;
}

TEST(ConfigForeign, TwoPrecisionsContradictOnTheCommandLineToo) {
  EXPECT_NE(refused("", {"bf16=true", "fp16=true"}).find("expected precision once"),
            std::string::npos);
  EXPECT_NE(refused("", {"precision=bf16", "fp16=true"}).find("expected precision once"),
            std::string::npos);
  EXPECT_EQ(load("bf16: true", {"fp16=true"}).precision, "fp16")
      << "the command line wins over a file";
  EXPECT_EQ(load("", {"fp16=true", "bf16=false"}).precision, "fp16");
}

// As of every key, the last one counts, whichever trainer knows it.
TEST(ConfigForeign, TheCommandLineWinsOverAFile) {
  const std::string data = "eval_data: a.txt\n";
  EXPECT_EQ(load(data + "eval_strategy: no", {"eval_strategy=steps"}).eval_steps, 200);
  EXPECT_EQ(load(data + "eval_strategy: steps", {"evaluation_strategy=no"}).eval_steps, 0);
  EXPECT_EQ(load("", {"eval_data=a.txt", "eval_strategy=no", "eval_strategy=steps"}).eval_steps,
            200);
  EXPECT_EQ(load("save_strategy: no", {"save_steps=20"}).save_steps, 20);
  EXPECT_EQ(load("save_steps: 20", {"save_strategy=no"}).save_steps, 0);
  EXPECT_EQ(refused("dataloader_num_workers: 4", {"dataloader_num_workers=0"}), "");
  EXPECT_NE(refused("dataloader_num_workers: 0", {"dataloader_num_workers=4"}), "");
  EXPECT_NE(refused("eval_strategy: no\nevaluation_strategy: steps\neval_data: a.txt")
                .find("expected eval_strategy once"),
            std::string::npos);
}

// Evaluations that are asked for with nothing to evaluate, as by eval_steps: 50.
TEST(ConfigForeign, AStrategyThatNothingFollowsIsRefused) {
  const std::string said = refused("eval_strategy: steps");
  EXPECT_NE(said.find("eval_strategy: steps only with one of eval_data, eval_fraction, "
                      "sample_prompt\n  found: steps (run.yaml:1)"),
            std::string::npos)
      << said;
  for (const char* beside : {"eval_data: a.txt", "eval_fraction: 0.1", "sample_prompt: Once"})
    EXPECT_EQ(refused(std::string("eval_strategy: steps\n") + beside), "") << beside;
  EXPECT_EQ(refused("eval_strategy: steps\neval_fraction: much").find("only with"),
            std::string::npos)
      << "whether something is evaluated is not known";
}

// Python writes flags with a capital.
TEST(ConfigForeign, FlagsAreReadInEverySpelling) {
  for (const char* off : {"False", "FALSE", "No", "Off"}) {
    SCOPED_TRACE(off);
    EXPECT_EQ(load("", {"bf16=True", std::string("fp16=") + off}).precision, "bf16");
    EXPECT_EQ(load(std::string("bf16: True\ntf32: ") + off).precision, "bf16");
    EXPECT_EQ(refused(std::string("group_by_length: ") + off), "");
    EXPECT_EQ(load(std::string("gradient_checkpointing: ") + off).recompute, "none");
    EXPECT_EQ(load(std::string("resume_from_checkpoint: ") + off).resume, "");
  }
  for (const char* on : {"True", "TRUE", "Yes", "On"}) {
    SCOPED_TRACE(on);
    EXPECT_EQ(load(std::string("fp16: ") + on).precision, "fp16");
    EXPECT_EQ(load(std::string("gradient_checkpointing: ") + on).recompute, "block");
    EXPECT_EQ(load(std::string("resume_from_checkpoint: ") + on).resume, "latest");
  }
}

// Text of the command line needs no second quotes, whatever YAML would make of it.
TEST(ConfigForeign, TextOfTheCommandLineIsNoYaml) {
  EXPECT_EQ(load("", {"train_data=*.txt"}).train_data, std::vector<std::string>{"*.txt"});
  for (const std::string text : {"Once: upon: a time", "[a", "{x", "*", "@a", "a: 'b"})
    EXPECT_EQ(load("", {"sample_prompt=" + text}).sample_prompt, text);
}

TEST(ConfigForeign, PartsFollowAValueUnderAnyOfItsNames) {
  const RunConfig c = load("", {"model_name_or_path=gpt2", "model.n_layer=2"});
  EXPECT_EQ(c.model, "gpt2");
  EXPECT_EQ(Json::parse(c.model_config_json)["n_layer"], 2);
}

// One message holds them all, each in its three parts; what a refused key would have asked of
// others is not made up.
TEST(ConfigComplaints, AllAreSaidAtOnce) {
  const std::string said = refused(
      "lerning_rate: 1\nsave_steps: soon\ndeepspeed: ds.json\neval_data: "
      "[]\nearly_stopping_patience: 3",
      {"memory=lots", "min_lr=1", "lr_scheduler_type=cosine"});
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (size_t i = said.find(part); i != std::string::npos; i = said.find(part, i + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count(": expected "), 6) << said;
  EXPECT_EQ(count("\n  found: "), 6);
  EXPECT_EQ(count("\n  try:   "), 6);
  for (const char* part :
       {"lerning_rate", "save_steps", "deepspeed", "early_stopping_patience only with", "memory",
        "min_lr at most learning_rate"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  // The key of one complaint, named in the text of another.
  const std::string both = refused("device: cpuu\nfsdp: full_shard\nseed: soon");
  EXPECT_NE(both.find("\"fsdp\" (run.yaml:2)"), std::string::npos) << both;
  EXPECT_NE(both.find("an integer for seed"), std::string::npos) << both;
  EXPECT_NE(refused("device: 1\nprecision: device").find("expected precision fp32"),
            std::string::npos);
  // eval_fraction could not be read: whether something is evaluated is not known.
  EXPECT_EQ(refused("eval_fraction: much\nearly_stopping_patience: 3").find("only with"),
            std::string::npos);
}

}  // namespace
}  // namespace snug
