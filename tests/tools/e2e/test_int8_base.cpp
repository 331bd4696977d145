// Adapters over a base in int8 from the command: a run, resume, a streamed base, evaluation unmerged and
// merged, an adapter to go on from, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

// Over a base in int8, whose products round their inputs: the same, with peft: qlora in place of 4 bits.
TEST(Int8Base, TrainsResumesAndIsUsed) {
  Workspace w;
  w.trained("base", {"max_steps=8"});
  const auto loss = [&](const std::vector<std::string>& more) {
    const Outcome o =
        run(joined({"eval", "--data", w.path("text.txt"), "--json", "--threads", "1"}, more));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? Json::parse(o.out)["loss"].get<double>() : 0;
  };
  const std::string base = w.path("base/final"), adapter = w.path("run/final");
  const std::vector<std::string> keys = {
      "model=" + base, "tokenizer=null",    "peft=lora",    "target_modules=all-linear",
      "lora_r=4",      "precision=fp32",    "save_steps=5", "load_in_8bit=true",
      "eval_steps=4",  "learning_rate=0.02"};
  const Outcome o = w.trained("run", keys);
  EXPECT_NE(o.out.find(" of it as int8 in 1.1"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("(their inputs below 6 are rounded to int8, row by row)"), std::string::npos)
      << o.out;
  expect_planned_is_measured(w, "run");
  const SafetensorsReader file(adapter + "/adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 16u) << "A and B of all linear modules, and nothing frozen";
  EXPECT_EQ(file.metadata().at("snug_base_form"), "int8");
  lose_power_after(w, "run", "parts", 5);
  w.trained("parts", joined(keys, {"resume=latest", "recompute=block"}));
  EXPECT_EQ(w.curve("run"), w.curve("parts"));
  EXPECT_TRUE(slurp(adapter + "/adapter_model.safetensors") ==
              slurp(w.path("parts/final/adapter_model.safetensors")));
  w.trained("away", joined(keys, {"offload_params=cpu", "host_memory=64MiB"}));
  EXPECT_EQ(w.curve("run"), w.curve("away"));
  expect_planned_is_measured(w, "away");

  w.trained("half", {"model=" + base, "tokenizer=null", "peft=qlora", "load_in_8bit=true",
                     "llm_int8_threshold=4.5", "max_steps=2"});
  EXPECT_NE(slurp(w.path("half/config.resolved.yaml")).find("precision: bf16"), std::string::npos);
  const SafetensorsReader half(w.path("half/final/adapter_model.safetensors"));
  EXPECT_EQ(half.metadata().at("snug_base_form"), "int8:4.5");

  // As in the run, over the base as it is, and merged: three models that are nearly one.
  const double coded = loss({"--model", base, "--adapter", adapter}),
               full = loss({"--model", base, "--adapter", adapter, "--base-form", "full"});
  EXPECT_NE(coded, full);
  EXPECT_NEAR(coded, full, 0.02 * full);
  const Outcome merge =
      run({"merge", "--model", base, "--adapter", adapter, "--output", w.path("merged")});
  ASSERT_EQ(merge.code, 0) << merge.err;
  for (const char* said : {"added to what int8 codes of the blocks'", "round no inputs to int8"})
    EXPECT_NE(merge.err.find(said), std::string::npos) << merge.err;
  EXPECT_NEAR(loss({"--model", w.path("merged")}), coded, 0.02 * coded);
  const Outcome into = run({"merge", "--model", base, "--adapter", adapter, "--output",
                            w.path("into"), "--dtype", "int8"});
  EXPECT_EQ(into.code, 2);
  EXPECT_FALSE(exists(w.path("into")));
  w.trained("on", {"model=" + base, "tokenizer=null", "adapter=" + adapter, "load_in_8bit=true",
                   "precision=fp32", "max_steps=2"});
  EXPECT_NEAR(w.metrics("on").front()["eval_loss"].get<double>(), w.last_eval_loss("run"), 1e-6);
  const Outcome other = w.train("run", joined(keys, {"llm_int8_threshold=0", "resume=latest"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("over int8:0"), std::string::npos) << other.err;
}

// A folder in bitsandbytes' int8 is the base that it was made of, to the bit; what its config says of the threshold and of
// modules that rest whole is taken where no key says it.
TEST(Int8Base, FoldersAreWrittenAndRead) {
  Workspace w;
  w.trained("base", {"max_steps=4",
                     "model={type: llama, hidden_size: 32, intermediate_size: 48, "
                     "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
                     "max_position_embeddings: 32}"});
  const auto convert = [&](const char* dtype, const char* to) {
    const Outcome o = run({"convert", "--model", w.path("base/final"), "--to", "hf", "--dtype",
                           dtype, "--output", w.path(to)});
    ASSERT_EQ(o.code, 0) << o.err;
  };
  convert("f16", "half");
  convert("int8:4.5/down_proj", "coded");
  const auto keys = [&](const char* folder, const std::vector<std::string>& more) {
    return joined(
        {"model=" + w.path(folder), "tokenizer=null", "peft=lora", "lora_r=4",
         "target_modules=all-linear", "learning_rate=0.02", "load_in_8bit=true", "max_steps=4"},
        more);
  };
  const Outcome of_folder = w.trained("of_folder", keys("coded", {}));
  EXPECT_NE(of_folder.err.find("weights rest as int8:4.5/down_proj, as " + w.path("coded") +
                               "/config.json has it"),
            std::string::npos)
      << of_folder.err;
  expect_planned_is_measured(w, "of_folder");
  w.trained("of_keys",
            keys("half", {"llm_int8_threshold=4.5", "llm_int8_skip_modules=[down_proj, lm_head]"}));
  EXPECT_EQ(w.curve("of_folder"), w.curve("of_keys"));
  w.trained("all", keys("half", {"llm_int8_threshold=4.5"}));
  EXPECT_NE(w.curve("all"), w.curve("of_keys"));
  const std::string adapter = w.path("of_folder/final");
  EXPECT_EQ(
      SafetensorsReader(adapter + "/adapter_model.safetensors").metadata().at("snug_base_form"),
      "int8:4.5/down_proj");
  // Beside the adapter it rests as in the run, and alone as flags say.
  const auto eval = [&](const std::vector<std::string>& more) {
    const Outcome o =
        run(joined({"eval", "--data", w.path("text.txt"), "--json", "--threads", "1"}, more));
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  };
  const auto loss = [&](const std::vector<std::string>& more) {
    return Json::parse(eval(more).out)["loss"].get<double>();
  };
  EXPECT_EQ(loss({"--model", w.path("coded"), "--adapter", adapter}),
            loss({"--model", w.path("half"), "--adapter", w.path("of_keys/final")}));
  const Outcome decoded = eval({"--model", w.path("coded")});
  EXPECT_NE(decoded.err.find("--base-form int8:4.5/down_proj computes as bitsandbytes does"),
            std::string::npos)
      << decoded.err;
  EXPECT_EQ(loss({"--model", w.path("coded"), "--base-form", "int8:4.5/down_proj"}),
            loss({"--model", w.path("half"), "--base-form", "int8:4.5/down_proj"}));
  const Outcome whole = w.trained(
      "whole", {"model=" + w.path("coded"), "tokenizer=null", "peft=lora", "max_steps=1"});
  EXPECT_NE(whole.err.find("are int8 codes, which are decoded; load_in_8bit=true rests them so"),
            std::string::npos)
      << whole.err;
  const Outcome facts = run({"inspect", w.path("coded")});
  for (const char* said :
       {"quantization:", "int8, a scale a row (LLM.int8())", "4.5", "12", "lm_head", "down_proj"})
    EXPECT_NE(facts.out.find(said), std::string::npos) << said << "\n" << facts.out;
}

}  // namespace
}  // namespace snug::e2e
