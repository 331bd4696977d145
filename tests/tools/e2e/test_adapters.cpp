// Adapters from the command: a run's PEFT folder, resume, another run that goes on from it, use
// unmerged and merged, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

class Adapters : public testing::Test {
 protected:
  Adapters() { w_.trained("base", {"max_steps=8"}); }
  std::vector<std::string> with(const std::vector<std::string>& more) const {
    return joined({"model=" + w_.path("base/final"), "tokenizer=null", "peft=lora", "lora_r=4",
                   "lora_dropout=0.1", "target_modules=all-linear"},
                  more);
  }
  double loss(const std::vector<std::string>& more) const {
    const Outcome o =
        run(joined({"eval", "--data", w_.path("text.txt"), "--json", "--threads", "1"}, more));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? Json::parse(o.out)["loss"].get<double>() : 0;
  }
  static std::string trained_form(const SafetensorsReader& file) {
    const auto said = file.metadata().find("snug_base_form");
    return said == file.metadata().end() ? "full" : said->second;
  }
  Workspace w_;
};

TEST_F(Adapters, ARunLeavesAPeftFolderThatIsUsedUnmergedAndMerged) {
  const Outcome o = w_.trained("run", with({"learning_rate=0.02"}));
  EXPECT_NE(o.out.find("of them trained in adapters; the frozen rest takes "), std::string::npos)
      << o.out;
  expect_planned_is_measured(w_, "run");
  EXPECT_EQ(listing(w_.path("run/final")),
            (std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors",
                                      "generation_config.json", "merges.txt", "snug.json",
                                      "tokenizer.json", "tokenizer_config.json", "vocab.json"}));
  EXPECT_EQ(w_.json("run/final/snug.json"), Json({{"step", 12}}));
  const Json config = w_.json("run/final/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["base_model_name_or_path"], w_.path("base/final"));
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_EQ(config["target_modules"], Json({"c_attn", "c_fc", "c_proj"}));
  const SafetensorsReader file(w_.path("run/final/adapter_model.safetensors"));
  EXPECT_EQ(file.tensors().size(), 16u);
  const SafeTensor& b = file.at("base_model.model.transformer.h.1.attn.c_attn.lora_B.weight");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{96, 4}));
  // The checkpoint holds no frozen weight.
  EXPECT_FALSE(exists(w_.path("run/checkpoint-12/model.safetensors")));
  EXPECT_TRUE(exists(w_.path("run/checkpoint-12/adapter_model.safetensors")));

  const std::string base = w_.path("base/final"), adapter = w_.path("run/final");
  const double before = loss({"--model", base}),
               unmerged = loss({"--model", base, "--adapter", adapter});
  EXPECT_LT(unmerged, before - 0.01) << "nothing was learned";
  const Outcome merge =
      run({"merge", "--model", base, "--adapter", adapter, "--output", w_.path("merged")});
  ASSERT_EQ(merge.code, 0) << merge.err;
  EXPECT_NE(merge.err.find("8 tensors are those of "), std::string::npos) << merge.err;
  // What is converted is the whole model, which the advice makes.
  const Outcome converted =
      run({"convert", "--model", adapter, "--to", "gguf", "--output", w_.path("a.gguf")});
  EXPECT_EQ(converted.code, 2);
  for (const std::string& said :
       {std::string("--model as a folder with a whole model"), adapter + ", an adapter",
        "snug merge --model " + base + " --adapter " + adapter + " --output merged, then"})
    EXPECT_NE(converted.err.find(said), std::string::npos) << said << "\n in " << converted.err;
  EXPECT_NEAR(loss({"--model", w_.path("merged")}), unmerged, 1e-5 * unmerged);
  EXPECT_EQ(w_.json("merged/config.json"), w_.json("base/final/config.json"));
  const Outcome text = run({"generate", "--model", base, "--adapter", adapter, "--prompt", "the",
                            "--max-new-tokens", "3", "--temperature", "0"});
  EXPECT_EQ(text.code, 0) << text.err;

  const Outcome alone = w_.train("on", {"model=" + adapter});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("model as the base of an adapter, and the adapter as adapter"),
            std::string::npos)
      << alone.err;
  EXPECT_NE(alone.err.find("try:   model=" + base + " adapter=" + adapter), std::string::npos)
      << alone.err;

  // Another run goes on from it, from where this one ended.
  w_.trained("on", {"model=" + base, "tokenizer=null", "adapter=" + adapter, "max_steps=2"});
  EXPECT_NEAR(w_.metrics("on").front()["eval_loss"].get<double>(), w_.last_eval_loss("run"), 1e-6);
}

// Every key of the form, in the folder that it makes.
TEST_F(Adapters, EveryKeyIsInTheFolder) {
  w_.trained("run", {"model=" + w_.path("base/final"), "tokenizer=null", "peft=lora", "lora_r=2",
                     "lora_alpha=3", "target_modules=[c_attn,c_proj]", "exclude_modules=mlp.c_proj",
                     "use_rslora=true", "init_lora_weights=gaussian", "bias=lora_only",
                     "layers_to_transform=[1-1]", "rank_pattern={c_proj: 3}",
                     "alpha_pattern={c_attn: 5}", "max_steps=1"});
  const Json config = w_.json("run/final/adapter_config.json");
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 3);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["init_lora_weights"], "gaussian");
  EXPECT_EQ(config["bias"], "lora_only");
  EXPECT_EQ(config["layers_to_transform"], Json({1}));
  EXPECT_EQ(config["rank_pattern"], Json({{"transformer.h.1.attn.c_proj", 3}}));
  EXPECT_EQ(config["alpha_pattern"], Json({{"transformer.h.1.attn.c_attn", 5}}));
  const SafetensorsReader file(w_.path("run/final/adapter_model.safetensors"));
  std::vector<std::string> names;
  for (const SafeTensor& t : file.tensors()) names.push_back(t.name);
  const std::string at = "base_model.model.transformer.h.1.attn.";
  EXPECT_EQ(names,
            (std::vector<std::string>{at + "c_attn.base_layer.bias", at + "c_attn.lora_A.weight",
                                      at + "c_attn.lora_B.weight", at + "c_proj.base_layer.bias",
                                      at + "c_proj.lora_A.weight", at + "c_proj.lora_B.weight"}));
  const Outcome none = w_.train("on", with({"layers_to_transform=[x]"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("layers_to_transform as numbers of layers, or ranges of them"),
            std::string::npos)
      << none.err;
}

// Stopped after its checkpoint, and gone on with under another policy: the same bits.
TEST_F(Adapters, ResumeChangesNoBit) {
  for (const char* precision : {"precision=fp32", "precision=bf16"}) {
    const std::string whole = std::string("whole") + (precision + 10),
                      parts = std::string("parts") + (precision + 10);
    w_.trained(whole, with({precision, "save_steps=5", "eval_steps=4"}));
    lose_power_after(w_, whole, parts, 5);
    w_.trained(parts, with({precision, "save_steps=5", "eval_steps=4", "resume=latest",
                            "recompute=block"}));
    EXPECT_EQ(w_.curve(whole), w_.curve(parts));
    for (const char* name :
         {"/final/adapter_model.safetensors", "/checkpoint-12/optimizer.safetensors"})
      EXPECT_TRUE(slurp(w_.path(whole + name)) == slurp(w_.path(parts + name))) << name;
    expect_planned_is_measured(w_, parts);
  }
}

// What a word of peft means is in the configuration that the run leaves, by which it goes on.
TEST_F(Adapters, ARunGoesOnByItsOwnConfiguration) {
  for (const char* peft : {"qlora", "dora", "lora", "ia3", "vera"}) {
    std::vector<std::string> words = with({"max_steps=2", std::string("peft=") + peft});
    // LoRA's own rank, which is not VeRA's.
    if (peft == std::string("vera")) words.insert(words.end(), {"lora_r=8", "lora_alpha=null"});
    if (peft == std::string("ia3"))
      words.insert(words.end(), {"lora_r=null", "lora_dropout=null", "target_modules=null"});
    w_.trained(peft, words);
    const Outcome more = run({"train", w_.path(peft), "max_steps=3"});
    EXPECT_EQ(more.code, 0) << peft << more.err;
    EXPECT_TRUE(exists(w_.path(std::string(peft) + "/checkpoint-3"))) << peft;
    // And one that goes on with its adapter; what the adapter has may be said again.
    const std::string on = std::string(peft) + "-on";
    w_.trained(on, {"model=" + w_.path("base/final"), "tokenizer=null", "max_steps=2",
                    "adapter=" + w_.path(std::string(peft) + "/final")});
    const Outcome further = run({"train", w_.path(on), "max_steps=3"});
    EXPECT_EQ(further.code, 0) << peft << further.err;
    EXPECT_TRUE(exists(w_.path(on + "/checkpoint-3"))) << peft;
  }
  w_.trained("same", {"model=" + w_.path("base/final"), "tokenizer=null", "max_steps=1",
                      "adapter=" + w_.path("lora/final"), "peft=lora", "lora_r=4"});
}

// Over a base in 4 bits: less memory, the same files, a resume without another bit, and evaluation and
// merge with the weights that it was trained over, or with the base as it is.
TEST_F(Adapters, ABaseInFourBits) {
  const std::vector<std::string> qlora = {"model=" + w_.path("base/final"), "tokenizer=null",
                                          "peft=qlora", "lora_r=4", "learning_rate=0.02"};
  const std::vector<std::string> exact =
      joined(qlora, {"precision=fp32", "save_steps=5", "eval_steps=4"});
  const Outcome o = w_.trained("run", exact);
  EXPECT_NE(o.out.find(" of it as nf4-double in 0."), std::string::npos) << o.out;
  expect_planned_is_measured(w_, "run");
  const SafetensorsReader file(w_.path("run/final/adapter_model.safetensors"));
  EXPECT_EQ(file.tensors().size(), 16u) << "A and B of all linear modules, and nothing frozen";
  EXPECT_EQ(file.metadata().at("snug_base_form"), "nf4-double");
  lose_power_after(w_, "run", "parts", 5);
  w_.trained("parts", joined(exact, {"resume=latest", "recompute=block"}));
  EXPECT_EQ(w_.curve("run"), w_.curve("parts"));
  EXPECT_TRUE(slurp(w_.path("run/final/adapter_model.safetensors")) ==
              slurp(w_.path("parts/final/adapter_model.safetensors")));

  // The codes come from the host a layer at a time: the same bits.
  w_.trained("away", joined(exact, {"offload_params=cpu", "host_memory=64MiB"}));
  EXPECT_EQ(w_.curve("run"), w_.curve("away"));
  expect_planned_is_measured(w_, "away");
  w_.trained("half", joined(qlora, {"max_steps=2"}));
  EXPECT_NE(slurp(w_.path("half/config.resolved.yaml")).find("precision: bf16"), std::string::npos);

  const std::string base = w_.path("base/final"), adapter = w_.path("run/final");
  const double decoded = loss({"--model", base, "--adapter", adapter}),
               full = loss({"--model", base, "--adapter", adapter, "--base-form", "full"});
  EXPECT_GT(std::fabs(decoded - full), 1e-5 * full);
  for (const std::string form : {"auto", "full"}) {
    const double expected = form == "full" ? full : decoded;
    const std::string merged = w_.path("merged_" + form);
    const Outcome merge = run(
        {"merge", "--model", base, "--adapter", adapter, "--output", merged, "--base-form", form});
    ASSERT_EQ(merge.code, 0) << merge.err;
    EXPECT_NE(merge.err.find(form == "full" ? "added to the base as it is (full)"
                                            : "added to what nf4-double codes of the blocks'"),
              std::string::npos)
        << merge.err;
    EXPECT_NEAR(loss({"--model", merged}), expected, 1e-5 * expected) << form;
  }
  const Outcome text = run({"generate", "--model", base, "--adapter", adapter, "--prompt", "the",
                            "--max-new-tokens", "3", "--temperature", "0"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("rest as nf4-double, as those that the adapter was trained over"),
            std::string::npos)
      << text.err;
  w_.trained("on", {"model=" + base, "tokenizer=null", "adapter=" + adapter, "peft=qlora",
                    "precision=fp32", "max_steps=2"});
  EXPECT_NEAR(w_.metrics("on").front()["eval_loss"].get<double>(), w_.last_eval_loss("run"), 1e-6);

  const Outcome other =
      w_.train("run", joined(exact, {"bnb_4bit_quant_type=fp4", "resume=latest"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("over nf4-double"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("over fp4-double"), std::string::npos) << other.err;
  const Outcome form = run({"merge", "--model", base, "--adapter", adapter, "--output",
                            w_.path("merged"), "--base-form", "int4"});
  EXPECT_EQ(form.code, 2);
  EXPECT_NE(form.err.find("full, nf4, nf4-double, fp4, fp4-double, int8 in --base-form"),
            std::string::npos)
      << form.err;
  EXPECT_FALSE(exists(w_.path("merged")));
}

// Methods: as a new adapter the base, another model after, unmerged as merged, resumed to the bit under
// another policy, and gone on with.
struct Method {
  const char* name;
  std::vector<std::string> keys;
  const char* type;
  size_t tensors;
  const char* of_layer;  // a tensor's end, and its shape
  std::vector<int64_t> shape;
  const char* refused = nullptr;  // what a merge says, if it does not
};

TEST_F(Adapters, Methods) {
  const Method kMethods[] = {
      {"dora",
       {"peft=dora", "lora_r=4", "lora_dropout=0.1", "target_modules=all-linear"},
       "LORA",
       24,
       "attn.c_attn.lora_magnitude_vector",
       {96}},
      {"qdora",
       {"peft=qlora", "use_dora=true", "lora_r=4", "precision=fp32"},
       "LORA",
       24,
       "mlp.c_proj.lora_magnitude_vector",
       {32}},
      {"pissa",
       {"peft=lora", "lora_r=4", "init_lora_weights=pissa", "target_modules=all-linear"},
       "LORA",
       16,
       "attn.c_attn.lora_A.weight",
       {4, 32}},
      {"lora_fa",
       {"peft=lora_fa", "lora_r=4", "target_modules=all-linear"},
       "LORA",
       16,
       "attn.c_attn.lora_A.weight",
       {4, 32}},
      {"table",
       {"peft=lora", "lora_r=4", "target_modules=[wte,c_attn]"},
       "LORA",
       6,
       "attn.c_attn.lora_B.weight",
       {96, 4},
       "a head of its own to merge"},
      {"table_dora",
       {"peft=dora", "lora_r=4", "target_modules=[wte,c_attn]"},
       "LORA",
       9,
       "attn.c_attn.lora_magnitude_vector",
       {96},
       "a head of its own to merge"},
      {"table_pissa",
       {"peft=lora", "lora_r=4", "init_lora_weights=pissa", "target_modules=[wte,c_attn]"},
       "LORA",
       6,
       "attn.c_attn.lora_A.weight",
       {4, 32},
       "a head of its own to merge"},
      {"vera",
       {"peft=vera", "lora_r=16", "lora_dropout=0.1", "target_modules=all-linear"},
       "VERA",
       16,
       "attn.c_attn.vera_lambda_b",
       {96}},
      {"miss",
       {"peft=miss", "lora_r=6", "target_modules=all-linear"},
       "MISS",
       8,
       "attn.c_attn.miss_block",
       {6, 96}},
      {"mora",
       {"peft=mora", "lora_r=6", "lora_dropout=0.1", "target_modules=all-linear"},
       "LORA",
       8,
       "attn.c_attn.lora_A.weight",
       {28, 28}},
      {"mora6",
       {"peft=mora", "mora_type=6", "lora_r=2", "lora_dropout=0.1", "target_modules=all-linear"},
       "LORA",
       8,
       "mlp.c_proj.lora_A.weight",
       {18, 18}},
      {"ia3", {"peft=ia3"}, "IA3", 4, "attn.c_attn.ia3_l", {96, 1}},
      {"houlsby",
       {"peft=houlsby", "reduction_factor=4"},
       "HOULSBY",
       16,
       "attn.c_proj.adapter_down.weight",
       {8, 32},
       "an adapter that weights can take up"},
      {"pfeiffer",
       {"peft=pfeiffer", "reduction_factor=4"},
       "PFEIFFER",
       8,
       "mlp.c_proj.adapter_up.weight",
       {32, 8},
       "an adapter that weights can take up"},
      {"ia3_4", {"peft=ia3", "load_in_4bit=true"}, "IA3", 4, "mlp.c_proj.ia3_l", {1, 128}}};
  const std::string base = w_.path("base/final");
  for (const Method& m : kMethods) {
    SCOPED_TRACE(m.name);
    const std::string name = m.name, whole = name + "_run", parts = name + "_parts";
    const std::vector<std::string> keys = joined(
        {"model=" + base, "tokenizer=null", "learning_rate=0.02", "save_steps=5", "eval_steps=4"},
        m.keys);
    const Outcome first = w_.trained(whole, keys);
    EXPECT_EQ(first.err.find("PEFT has no MiSS for modules of this model") != std::string::npos,
              name == "miss")
        << first.err;
    expect_planned_is_measured(w_, whole);
    const std::string adapter = w_.path(whole + "/final");
    const Json config = w_.json(whole + "/final/adapter_config.json");
    EXPECT_EQ(config["peft_type"], m.type);
    const bool bottleneck = name == "houlsby" || name == "pfeiffer";
    const bool mora = name.starts_with("mora");
    EXPECT_EQ(config.contains("exclude_modules"), name != "vera" && !bottleneck && !mora)
        << "as VeraConfig and the fork with MoRA have none";
    EXPECT_EQ(config.value("use_mora", false), mora);
    const SafetensorsReader file(adapter + "/adapter_model.safetensors");
    EXPECT_EQ(file.tensors().size(), m.tensors);
    EXPECT_EQ(file.at(std::string("base_model.model.transformer.h.1.") + m.of_layer).shape,
              m.shape);
    lose_power_after(w_, whole, parts, 5);
    w_.trained(parts, joined(keys, {"resume=latest", "recompute=block"}));
    EXPECT_EQ(w_.curve(whole), w_.curve(parts));
    EXPECT_TRUE(slurp(adapter + "/adapter_model.safetensors") ==
                slurp(w_.path(parts + "/final/adapter_model.safetensors")));

    // Before its first step it is the base, a bottleneck nearly so, whatever the base rests in.
    w_.trained(name + "_new", joined(keys, {"learning_rate=1e-30", "max_steps=1", "eval_steps=1"}));
    const std::string form = trained_form(file);
    const double before = loss({"--model", base, "--base-form", form}),
                 unmerged = loss({"--model", base, "--adapter", adapter});
    EXPECT_NEAR(loss({"--model", base, "--adapter", w_.path(name + "_new/final")}), before,
                (bottleneck ? 1e-2 : 1e-6) * before);
    EXPECT_GT(std::fabs(unmerged - before), 1e-4 * before) << "nothing was learned";
    const std::string merged = w_.path(name + "_merged");
    const Outcome merge = run({"merge", "--model", base, "--adapter", adapter, "--output", merged});
    if (m.refused) {
      EXPECT_EQ(merge.code, 2);
      EXPECT_NE(merge.err.find(m.refused), std::string::npos) << merge.err;
      EXPECT_FALSE(exists(merged));
    } else {
      ASSERT_EQ(merge.code, 0) << merge.err;
      EXPECT_NEAR(loss({"--model", merged}), unmerged, 1e-5 * unmerged);
    }
    const Outcome text = run({"generate", "--model", base, "--adapter", adapter, "--prompt", "the",
                              "--max-new-tokens", "3", "--temperature", "0"});
    EXPECT_EQ(text.code, 0) << text.err;
    const Outcome facts = run({"inspect", adapter});
    EXPECT_NE(facts.out.find(m.type), std::string::npos) << facts.out << facts.err;
    std::vector<std::string> on = {"model=" + base, "tokenizer=null", "adapter=" + adapter,
                                   "max_steps=2", "precision=fp32"};
    if (form != "full")
      on.insert(on.end(), {"load_in_4bit=true", "bnb_4bit_quant_type=" + form.substr(0, 3)});
    if (form.ends_with("-double")) on.emplace_back("bnb_4bit_use_double_quant=true");
    w_.trained(name + "_on", on);
    EXPECT_NEAR(w_.metrics(name + "_on").front()["eval_loss"].get<double>(),
                w_.last_eval_loss(whole), 1e-6);
  }
  const Outcome drops = w_.train("on", {"model=" + base, "tokenizer=null", "lora_dropout=0.1",
                                        "adapter=" + w_.path("ia3_run/final")});
  EXPECT_EQ(drops.code, 2);
  EXPECT_NE(
      drops.err.find("no lora_dropout for " + w_.path("ia3_run/final") + ", an adapter of IA3"),
      std::string::npos)
      << drops.err;
  const Outcome other = w_.train("on", {"model=" + base, "tokenizer=null", "peft=lora",
                                        "adapter=" + w_.path("ia3_run/final")});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("peft: ia3 for " + w_.path("ia3_run/final") + ", or none"),
            std::string::npos)
      << other.err;
}

// Made of the weights over a base in 4 bits: of what is left of them the codes are, or of what the codes
// lost. Resumed to the bit, and evaluated as in the run.
TEST_F(Adapters, MadeOfWeightsThatRestInCodes) {
  const std::string base = w_.path("base/final");
  for (const std::string way : {"pissa_niter_4", "loftq"}) {
    SCOPED_TRACE(way);
    const std::vector<std::string> keys = {
        "model=" + base, "tokenizer=null",     "peft=qlora",
        "lora_r=4",      "precision=fp32",     "save_steps=5",
        "eval_steps=4",  "learning_rate=0.02", "init_lora_weights=" + way};
    w_.trained(way, keys);
    expect_planned_is_measured(w_, way);
    lose_power_after(w_, way, way + "_parts", 5);
    w_.trained(way + "_parts", joined(keys, {"resume=latest", "recompute=block"}));
    EXPECT_EQ(w_.curve(way), w_.curve(way + "_parts"));
    const std::string adapter = w_.path(way + "/final");
    const bool left = way != "loftq";
    EXPECT_EQ(w_.json(way + "/final/adapter_config.json")["init_lora_weights"],
              left ? Json(way) : Json(true));
    w_.trained(way + "_on", {"model=" + base, "tokenizer=null", "adapter=" + adapter, "peft=qlora",
                             "precision=fp32", "max_steps=2"});
    EXPECT_NEAR(w_.metrics(way + "_on").front()["eval_loss"].get<double>(), w_.last_eval_loss(way),
                1e-6);
    const double unmerged = loss({"--model", base, "--adapter", adapter});
    const std::vector<std::string> merge = {
        "merge", "--model", base, "--adapter", adapter, "--output", w_.path(way + "_merged")};
    const Outcome o = run(merge);
    if (left) {
      EXPECT_EQ(o.code, 2);
      EXPECT_NE(o.err.find("the base as it is to merge " + adapter), std::string::npos) << o.err;
      EXPECT_FALSE(exists(w_.path(way + "_merged")));
      const Outcome full = run(joined(merge, {"--base-form", "full"}));
      EXPECT_EQ(full.code, 0) << full.err;
    } else {
      ASSERT_EQ(o.code, 0) << o.err;
      EXPECT_NEAR(loss({"--model", w_.path(way + "_merged")}), unmerged, 1e-5 * unmerged);
    }
  }
  const Outcome other = w_.train("loftq", {"model=" + base, "tokenizer=null", "peft=qlora",
                                           "lora_r=4", "precision=fp32", "resume=latest"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(" of loftq"), std::string::npos) << other.err;
}

// Parts of what codes decode to are those that merging takes away, whatever they are added to; over another
// form they would be others.
TEST_F(Adapters, MadeOfDecodedWeights) {
  w_.trained("llama",
             {"model={type: llama, num_hidden_layers: 1, hidden_size: 32, "
              "intermediate_size: 48, num_attention_heads: 2, max_position_embeddings: 32}",
              "max_steps=2"});
  const std::string base = w_.path("llama/final"), adapter = w_.path("olora/final");
  w_.trained("olora",
             {"model=" + base, "tokenizer=null", "peft=qlora", "lora_r=4",
              "init_lora_weights=olora", "precision=fp32", "learning_rate=1e-30", "max_steps=1"});
  const Outcome merge = run({"merge", "--model", base, "--adapter", adapter, "--output",
                             w_.path("merged"), "--base-form", "full"});
  ASSERT_EQ(merge.code, 0) << merge.err;
  const SafetensorsReader before(base + "/model.safetensors"),
      after(w_.path("merged/model.safetensors"));
  for (const SafeTensor& t : before.tensors()) {
    const auto* const a = reinterpret_cast<const float*>(t.data);
    const auto* const b = reinterpret_cast<const float*>(after.at(t.name).data);
    for (int64_t i = 0; i < t.elements(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6) << t.name;
  }
  const std::string expected = "a base that rests as nf4-double, of which " + adapter + " was made";
  const Outcome full = run({"eval", "--model", base, "--adapter", adapter, "--data",
                            w_.path("text.txt"), "--base-form", "full"});
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find(expected), std::string::npos) << full.err;
  EXPECT_GT(loss({"--model", base, "--adapter", adapter, "--base-form", "auto"}), 0);
  const std::vector<std::string> on = {"model=" + base, "tokenizer=null", "adapter=" + adapter,
                                       "precision=fp32", "max_steps=1"};
  const Outcome other = w_.train("on", on);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(expected), std::string::npos) << other.err;
  const std::string keys =
      "load_in_4bit=true bnb_4bit_quant_type=nf4 bnb_4bit_use_double_quant=true";
  EXPECT_NE(other.err.find("try:   " + keys + " of a run, --base-form auto of the others"),
            std::string::npos)
      << other.err;
  w_.trained("on", joined(on, {"load_in_4bit=true", "bnb_4bit_quant_type=nf4",
                               "bnb_4bit_use_double_quant=true"}));
}

// Beside a causal model that classifies: the layer that gives the labels is trained and saved whole.
TEST_F(Adapters, OfADecoderThatClassifies) {
  std::string rows;
  for (int i = 0; i < 48; ++i)
    rows +=
        Json({{"text", (i % 2 ? "the sea of ships " : "the land and days ") + std::to_string(i)},
              {"label", i % 2 ? "sea" : "land"}})
            .dump() +
        "\n";
  spill(w_.path("rows.jsonl"), rows);
  const std::vector<std::string> keys =
      with({"train_data=" + w_.path("rows.jsonl"), "task=sequence_classification",
            "learning_rate=0.02", "save_steps=5", "eval_steps=4"});
  w_.trained("run", keys);
  expect_planned_is_measured(w_, "run");
  const std::string base = w_.path("base/final"), adapter = w_.path("run/final");
  const SafetensorsReader file(adapter + "/adapter_model.safetensors");
  EXPECT_EQ(file.at("base_model.model.score.weight").shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(w_.json("run/final/adapter_config.json")["task_type"], "SEQ_CLS");
  EXPECT_EQ(w_.json("run/final/adapter_config.json")["modules_to_save"], Json({"score"}));
  lose_power_after(w_, "run", "parts", 5);
  w_.trained("parts", joined(keys, {"resume=latest", "recompute=block"}));
  EXPECT_EQ(w_.curve("run"), w_.curve("parts"));

  const auto eval = [&](const std::vector<std::string>& of) {
    const Outcome o = run(joined({"eval", "--data", w_.path("rows.jsonl"), "--json"}, of));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? Json::parse(o.out) : Json();
  };
  const Json unmerged = eval({"--model", base, "--adapter", adapter});
  const Outcome merge =
      run({"merge", "--model", base, "--adapter", adapter, "--output", w_.path("merged")});
  ASSERT_EQ(merge.code, 0) << merge.err;
  const Json merged = eval({"--model", w_.path("merged")});
  const double before = unmerged["loss"].get<double>();
  EXPECT_NEAR(merged["loss"].get<double>(), before, 1e-5 * before);
  EXPECT_LT(before, std::log(2.0) - 0.01) << "nothing was learned";

  // An adapter of the table of tokens, which no head reads here, though the base's is tied to it.
  for (const char* more : {"use_dora=false", "use_dora=true", "init_lora_weights=pissa"}) {
    const std::string name = "table_" + std::string(more), adapted = w_.path(name + "/final");
    w_.trained(name, joined(keys, {"target_modules=[wte,c_attn]", "max_steps=4", more}));
    const Json beside = eval({"--model", base, "--adapter", adapted});
    const Outcome taken =
        run({"merge", "--model", base, "--adapter", adapted, "--output", w_.path("of_" + name)});
    ASSERT_EQ(taken.code, 0) << taken.err;
    const double loss = beside["loss"].get<double>();
    EXPECT_NEAR(eval({"--model", w_.path("of_" + name)})["loss"].get<double>(), loss, 1e-5 * loss)
        << more;
    EXPECT_GT(std::fabs(loss - eval({"--model", base})["loss"].get<double>()), 1e-4 * loss);
  }
}

TEST_F(Adapters, WhatDoesNotFitIsRefused) {
  w_.trained("run", with({"max_steps=4", "save_steps=2"}));
  w_.trained("other", {"max_steps=2", "seed=7"});
  const auto refused = [&](const Outcome& o, const std::vector<std::string>& texts) {
    EXPECT_EQ(o.code, 2) << o.err;
    for (const std::string& text : texts)
      EXPECT_NE(o.err.find(text), std::string::npos) << text << "\n in " << o.err;
  };
  const std::string other = w_.path("other/final"), adapter = w_.path("run/final");
  refused(run({"eval", "--model", other, "--adapter", adapter, "--data", w_.path("text.txt")}),
          {"the base that " + adapter, "another one, weights "});
  refused(w_.train("on", {"model=" + other, "tokenizer=null", "adapter=" + adapter}),
          {"the base that " + adapter});
  EXPECT_FALSE(exists(w_.path("on")));
  refused(run({"merge", "--model", other, "--adapter", adapter, "--output", w_.path("merged")}),
          {"the base that " + adapter});
  EXPECT_FALSE(exists(w_.path("merged")));
  refused(run({"merge", "--model", w_.path("base/final"), "--adapter", adapter, "--dtype", "int8",
               "--output", w_.path("merged")}),
          {"--dtype f32, bf16 or f16", "int8"});
  refused(
      run({"eval", "--model", adapter, "--data", w_.path("text.txt")}),
      {"--model as the base of an adapter, and the adapter as --adapter", "--adapter " + adapter});
  // A file with more than its adapter_config.json names is read by neither.
  fs::copy(adapter, w_.path("more"));
  Json c = w_.json("more/adapter_config.json");
  c["target_modules"] = {"c_attn"};
  spill(w_.path("more/adapter_config.json"), c.dump());
  const std::vector<std::string> more = {"--model", w_.path("base/final"), "--adapter",
                                         w_.path("more")};
  for (const auto& words : {joined({"eval", "--data", w_.path("text.txt")}, more),
                            joined({"merge", "--output", w_.path("merged")}, more)})
    refused(run(words), {"every tensor of an adapter in " + w_.path("more"), ".lora_",
                         "both files of one folder, as they were saved"});
  EXPECT_FALSE(exists(w_.path("merged")));
  refused(w_.train("run", with({"max_steps=4", "resume=latest", "lora_alpha=3"})),
          {"adapters as in ", "alpha 8", "alpha 3"});
  refused(w_.train("run", with({"model=" + other, "max_steps=4", "resume=latest"})),
          {"the base of ", other});
  refused(w_.train("on", {"model=" + w_.path("base/final"), "tokenizer=null", "adapter=" + adapter,
                          "lora_r=8"}),
          {"lora_r as " + adapter + " has it"});
}

}  // namespace
}  // namespace snug::e2e
