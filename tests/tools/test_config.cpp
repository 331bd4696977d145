// The table of keys and what it drives: every key, aliases, precedence, the resolved file.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/param_groups.h"

namespace snug {
namespace {

RunConfig load(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return load_config_text(yaml, "run.yaml", overrides);
}

// What a key needs beside itself so that it has an effect.
std::string companions(std::string_view key) {
  if (key.starts_with("adam_")) return "";
  if (key == "zero") return "ranks: 2\n";
  if (key == "link") return "ranks: 2\ntarget: h100\n";
  if (key == "matmul_autotune") return "device: cuda\n";
  if (key == "optim_args") return "optim: rmsprop\n";
  if (key == "sgd_momentum") return "optim: sgd\n";
  if (key == "sgd_dampening" || key == "sgd_nesterov") return "optim: sgd\nsgd_momentum: 0.9\n";
  if (key == "lr_decay_steps" || key == "lr_decay_type")
    return "lr_scheduler_type: warmup_stable_decay\n";
  if (key == "lr_power") return "lr_scheduler_type: polynomial\n";
  if (key == "lr_timescale") return "lr_scheduler_type: inverse_sqrt\n";
  if (key == "global_batch_tokens") return "max_length: 1024\n";
  if (key == "load_best_model_at_end" || key == "metric_for_best_model" ||
      key == "greater_is_better")
    return "eval_fraction: 0.1\n";
  if (key == "early_stopping_patience") return "eval_fraction: 0.1\n";
  if (key == "early_stopping_threshold") return "eval_fraction: 0.1\nearly_stopping_patience: 2\n";
  if (key == "per_device_eval_batch_size" || key == "max_eval_samples" || key == "eval_steps")
    return "eval_fraction: 0.1\n";
  for (const char* scaling : {"loss_scale", "init_scale", "growth_factor", "backoff_factor",
                              "growth_interval", "min_loss_scale"})
    if (key == scaling) return "precision: fp16\n";
  if (key.starts_with("sample_") && key != "sample_prompt") return "sample_prompt: x\n";
  if (key == "feedforward_modules") return "peft: ia3\n";
  if (key == "mora_type") return "peft: mora\n";
  if (key == "d_initial" || key == "projection_prng_key") return "peft: vera\n";
  if (key == "num_virtual_tokens" || key.starts_with("prompt_tuning_"))
    return "peft: prompt_tuning\n";
  if (key == "reduction_factor") return "peft: houlsby\n";
  if (key == "encoder_hidden_size" || key == "encoder_reparameterization_type")
    return "peft: p_tuning\n";
  if (key == "encoder_num_layers") return "peft: p_tuning\nencoder_reparameterization_type: LSTM\n";
  if (key == "prefix_projection") return "peft: prefix_tuning\n";
  for (const char* adapter :
       {"use_dora", "lora_r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules",
        "use_rslora", "init_lora_weights", "bias", "modules_to_save", "layers_to_transform",
        "load_in_4bit", "load_in_8bit", "rank_pattern", "alpha_pattern"})
    if (key == adapter) return "peft: lora\n";
  if (key.starts_with("bnb_4bit_")) return "peft: qlora\n";
  if (key.starts_with("llm_int8_")) return "peft: lora\nload_in_8bit: true\n";
  return "";
}

// The key without which this one is refused, and which is refused without this one.
std::pair<std::string_view, std::string> partner(std::string_view key) {
  if (key == "prompt_tuning_init")
    return {"prompt_tuning_init_text", "\nprompt_tuning_init_text: Say it"};
  if (key == "prompt_tuning_init_text") return {"prompt_tuning_init", "\nprompt_tuning_init: TEXT"};
  return {};
}

TEST(ConfigKeys, EachHasDocumentationAndAnExampleWithAnEffect) {
  for (const Key& key : config_keys()) {
    SCOPED_TRACE(key.name);
    EXPECT_GE(key.doc.size(), 10u);
    EXPECT_FALSE(key.section.empty());
    const std::string before = companions(key.name);
    const RunConfig without = load(before);
    const auto [other_half, line] = partner(key.name);
    const RunConfig with =
        load(before + std::string(key.name) + ": " + std::string(key.example) + line);
    if (key.kind == KeyKind::kwargs) {
      EXPECT_EQ(with.min_lr_ratio, 0.1);
      continue;
    }
    EXPECT_FALSE(without.is_set(key.name));
    EXPECT_EQ(without.where(key.name), "default");
    EXPECT_TRUE(with.is_set(key.name));
    EXPECT_NE(print_value(with, key), print_value(without, key));
    // Nothing but this key changes.
    for (const Key& other : config_keys()) {
      if (other.name != key.name && other.name != other_half) {
        EXPECT_EQ(print_value(with, other), print_value(without, other)) << other.name;
      }
    }
  }
}

// A base in 4 bits computes in bf16 unless something else is said, as QLoRA; by the words of
// transformers alone in what precision says.
TEST(ConfigKeys, FourBitsSayAPrecision) {
  EXPECT_EQ(load("peft: qlora\n").precision, "bf16");
  EXPECT_EQ(load("peft: qlora\nprecision: fp32\n").precision, "fp32");
  EXPECT_EQ(load("peft: qlora\nbnb_4bit_compute_dtype: float16\n").precision, "fp16");
  EXPECT_EQ(load("peft: lora\nload_in_4bit: true\n").precision, "fp32");
  EXPECT_EQ(load("peft: lora\nload_in_4bit: true\nbnb_4bit_compute_dtype: bfloat16\n").precision,
            "bf16");
  // As it was resolved, once more.
  EXPECT_EQ(load("peft: qlora\nprecision: bf16\nload_in_4bit: true\n").precision, "bf16");
}

TEST(ConfigKeys, NamesAndAliasesAreUniqueAndNoneIsRefused) {
  std::set<std::string_view> names;
  for (const Key& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_EQ(find_foreign_key(key.name), nullptr) << key.name;
    for (const std::string_view alias : words(key.aliases)) {
      EXPECT_TRUE(names.insert(alias).second) << alias;
      EXPECT_EQ(find_foreign_key(alias), nullptr) << alias;
      EXPECT_EQ(find_key(alias), find_key(key.name));
    }
  }
  EXPECT_EQ(find_key("no_such_key"), nullptr);
}

// So that a key of a run sets what its methods read, whichever of them has it.
TEST(ConfigKeys, OfAdaptersEachSetsTheFieldThatMethodsRead) {
  std::map<std::string_view, AdapterValue> values;
  std::set<std::string_view> said;
  for (const AdapterMethod* method : adapter_methods())
    for (const AdapterField& field : method->fields) {
      if (field.run_key.empty()) continue;
      EXPECT_EQ(values.try_emplace(field.run_key, field.value).first->second, field.value)
          << method->name << " " << field.run_key;
      if (!field.said.doc.empty()) said.insert(field.run_key);
    }
  for (const auto& [key, value] : values) {
    EXPECT_TRUE(said.contains(key)) << key;
    ASSERT_NE(find_key(key), nullptr) << key;
    const KeyField field = std::visit([](auto member) -> KeyField { return member; }, value);
    EXPECT_EQ(find_key(key)->field, field) << key;
  }
}

TEST(ConfigKeys, HelpNamesEveryKey) {
  const std::string help = config_help();
  for (const Key& key : config_keys())
    EXPECT_NE(help.find("\n  " + std::string(key.name) + ": "), std::string::npos) << key.name;
  size_t line = 0;
  for (size_t at = 0; at < help.size(); at = help.find('\n', at) + 1) {
    line = help.find('\n', at) - at;
    EXPECT_LE(line, 100u) << help.substr(at, line);
  }
}

TEST(ConfigKeys, CommasSeparateNames) {
  using Names = std::vector<std::string>;
  const RunConfig c = load("report_to: 'tensorboard , csv '", {"allow=micro_batch,head_rows"});
  EXPECT_EQ(c.allow, (Names{"micro_batch", "head_rows"}));
  EXPECT_EQ(c.report_to, (Names{"tensorboard", "csv"}));
  EXPECT_THROW(load("", {"allow=micro_batch,"}), Error);
  EXPECT_THROW(load("", {"allow=micro_batch,,head_rows"}), Error);
}

TEST(ConfigKeys, AliasesSetTheSameField) {
  EXPECT_EQ(load("lr: 5e-5").learning_rate, 5e-5);
  EXPECT_EQ(load("micro_batch_size: 4").per_device_train_batch_size, 4);
  EXPECT_EQ(load("batch_size: 4").per_device_train_batch_size, 4);
  for (const char* name : {"max_seq_length", "cutoff_len", "seq_len", "sequence_len"})
    EXPECT_EQ(load(std::string(name) + ": 64").max_length, 64);
  EXPECT_EQ(load("model_name_or_path: gpt2").model, "gpt2");
  EXPECT_EQ(load("resume_from_checkpoint: true").resume, "latest");
  EXPECT_EQ(load("resume: false").resume, "");
  EXPECT_EQ(load("resume: run1/checkpoint-5").resume, "run1/checkpoint-5");
  EXPECT_EQ(load("head_chunk_rows: 64").head_rows, 64);
  EXPECT_EQ(load("gradient_checkpointing: true").recompute, "block");
  EXPECT_EQ(load("gradient_checkpointing: false").recompute, "none");
  EXPECT_EQ(load("activation_offloading: true").offload, "block");
  EXPECT_EQ(load("enable_activation_offloading: false").offload, "none");
  EXPECT_EQ(load("dtype: bfloat16").precision, "bf16");
  EXPECT_EQ(load("bf16: true\nfp16: false").precision, "bf16");
  EXPECT_EQ(load("bf16: false\nprecision: bf16").precision, "bf16");
  EXPECT_EQ(load("precision: bf16", {"bf16=false"}).precision, "fp32");
  EXPECT_EQ(load("precision: float16").precision, "fp16");
  EXPECT_EQ(load("fp16: true\nbf16: false").precision, "fp16");
  EXPECT_EQ(load("precision: fp16", {"fp16=false"}).precision, "fp32");
  EXPECT_EQ(load("precision: bf16", {"fp16=false"}).precision, "bf16") << "it was not fp16";
  EXPECT_EQ(load("fp16: true", {"bf16=false"}).precision, "fp16");
  EXPECT_EQ(load("optim: adamw_torch_fused").optim, "adamw");
  EXPECT_EQ(load("optim: lion_32bit").optim, "lion_32bit");
  EXPECT_EQ(load("lr_scheduler_type: wsd").lr_scheduler_type, "warmup_stable_decay");
  const RunConfig c = load(
      "lr_scheduler_type: wsd\n"
      "lr_scheduler_kwargs: {num_decay_steps: 50, min_lr_rate: 0.2, decay_type: linear}");
  EXPECT_EQ(c.lr_decay_steps, 50);
  EXPECT_EQ(c.min_lr_ratio, 0.2);
  EXPECT_EQ(c.lr_decay_type, "linear");
}

TEST(ConfigKeys, LionHasARateAndASecondBetaOfItsOwn) {
  EXPECT_EQ(load("optim: lion").learning_rate, 2e-4);
  EXPECT_EQ(load("optim: lion").adam_beta1, 0.9);
  EXPECT_EQ(load("optim: lion").adam_beta2, 0.99);
  EXPECT_EQ(load("optim: adamw").adam_beta2, 0.95);
  const RunConfig c = load("learning_rate: 3e-4\noptim: lion", {"adam_beta2=0.98"});
  EXPECT_EQ(c.learning_rate, 3e-4);
  EXPECT_EQ(c.adam_beta2, 0.98);
  EXPECT_EQ(load("optim: lion", {"optim=adamw"}).learning_rate, 6e-4);
}

TEST(ConfigKeys, ReadsNumbersHoweverWritten) {
  EXPECT_EQ(load("learning_rate: 5e-5").learning_rate, 5e-5);
  EXPECT_EQ(load("learning_rate: 6.0e-4").learning_rate, 6e-4);
  EXPECT_EQ(load("learning_rate: \"1E-3\"").learning_rate, 1e-3);
  EXPECT_EQ(load("max_steps: 1e4").max_steps, 10000);
  EXPECT_EQ(load("memory: 1.5GiB").memory, int64_t{3} << 29);
  EXPECT_EQ(load("memory: 268435456").memory, 268435456);
  EXPECT_EQ(load("max_time: 2m").max_time, 120);
  EXPECT_EQ(load("max_time: 90s").max_time, 90);
  EXPECT_EQ(load("max_time: 1h30m").max_time, 5400);
  EXPECT_EQ(load("max_time: 0.5").max_time, 0.5);
  EXPECT_EQ(load("max_grad_norm: 0").max_grad_norm, 0);
}

TEST(ConfigModel, KeepsHuggingFaceKeysAsJson) {
  EXPECT_EQ(load("model: gpt2").model, "gpt2");
  const RunConfig map = load(
      "model:\n  type: gpt2\n  n_layer: 4\n  resid_pdrop: 0.1\n  layer_norm_epsilon: 1e-5\n"
      "  n_inner: null\n  tie_word_embeddings: true\n  name: \"7\"\n  list: [1, a]");
  EXPECT_EQ(map.model, "");
  EXPECT_EQ(map.model_config_json,
            R"({"model_type":"gpt2","n_layer":4,"resid_pdrop":0.1,"layer_norm_epsilon":1e-05,)"
            R"("n_inner":null,"tie_word_embeddings":true,"name":"7","list":[1,"a"]})");
  // Command line on top of a map, a name, and nothing.
  EXPECT_EQ(load("model: {type: gpt2, n_layer: 4}", {"model.n_layer=6", "model.n_head=2"})
                .model_config_json,
            R"({"model_type":"gpt2","n_layer":6,"n_head":2})");
  const RunConfig named = load("model: gpt2-medium", {"model.n_layer=6"});
  EXPECT_EQ(named.model, "gpt2-medium");
  EXPECT_EQ(named.model_config_json, R"({"n_layer":6})");
  EXPECT_EQ(load("", {"model.type=gpt2", "model.rope.factor=2.0"}).model_config_json,
            R"({"model_type":"gpt2","rope":{"factor":2.0}})");
  EXPECT_EQ(load("model: {type: gpt2}", {"model=gpt2-xl"}).model, "gpt2-xl");
  EXPECT_EQ(load("model: {type: gpt2}", {"model=gpt2-xl"}).model_config_json, "");
}

TEST(ConfigRecompute, IsCanonical) {
  EXPECT_EQ(load("recompute: norms+mlp").recompute, "norms+mlp");
  const std::string map = "0-5: block, 6: norms+mlp";
  EXPECT_EQ(load("recompute: {0-5: block, 6: norms+mlp}").recompute, map);
  EXPECT_EQ(load("recompute:\n  0-5: block\n  6-6: norms+mlp").recompute, map);
  EXPECT_EQ(load("recompute: \"0-5: block, 6: norms+mlp\"").recompute, map);
  EXPECT_EQ(load("", {"recompute={0-5: block, 6: norms+mlp}"}).recompute, map);
  EXPECT_EQ(load("recompute: {0-5: block}", {"recompute.6=norms+mlp"}).recompute, map);
  EXPECT_EQ(load("recompute: {0: norm1+fc}").recompute, "0: norm1+fc");
  EXPECT_EQ(load("").offload, "auto");
  EXPECT_EQ(load("offload: none").offload, "none");
  EXPECT_EQ(load("").offload_optimizer, "auto");
  EXPECT_EQ(load("").offload_gradients, "auto");
  EXPECT_EQ(load("offload_gradients: cpu").offload_gradients, "cpu");
  EXPECT_EQ(load("offload: inputs+lse").offload, "inputs+lse");
  EXPECT_EQ(load("offload: {0-5: inputs, 6: mid}").offload, "0-5: inputs, 6: mid");
  const std::string yaml = resolved_yaml(load("offload: {0-5: inputs, 6: mid}"));
  EXPECT_NE(yaml.find("offload: {0-5: inputs, 6: mid}"), std::string::npos) << yaml;
}

TEST(ConfigPrecedence, CommandLineOverFileOverDefault) {
  const std::string file = "seed: 7\nlr: 0.1";
  EXPECT_EQ(load("").seed, 42);
  EXPECT_EQ(load(file).seed, 7);
  const RunConfig c = load(file, {"seed=8", "learning_rate=0.2", "seed=9"});
  EXPECT_EQ(c.seed, 9);  // the last one wins
  EXPECT_EQ(c.learning_rate, 0.2);
  EXPECT_EQ(c.where("seed"), "command line");
  EXPECT_EQ(load(file).where("learning_rate"), "run.yaml:2");
  // auto and null give the default back.
  const RunConfig back = load("memory: 4GiB\noutput_dir: x", {"memory=auto", "output_dir=null"});
  EXPECT_FALSE(back.is_set("memory"));
  EXPECT_EQ(back.memory, 0);
  EXPECT_EQ(back.output_dir, "");
}

TEST(ConfigPrecedence, CommandLineTakesBackWhatExcludesIt) {
  const RunConfig resumed = load("overwrite: true", {"resume=latest"});
  EXPECT_EQ(resumed.resume, "latest");
  EXPECT_FALSE(resumed.overwrite);
  EXPECT_FALSE(resumed.is_set("overwrite"));
  EXPECT_EQ(load("resume: latest", {"overwrite=true"}).resume, "");
  EXPECT_EQ(load("resume: latest", {"overwrite=false"}).resume, "latest");
  EXPECT_EQ(load("eval_fraction: 0.1", {"eval_data=a"}).eval_fraction, 0);
  EXPECT_EQ(load("warmup_ratio: 0.1", {"warmup_steps=0"}).warmup_ratio, -1);
  EXPECT_EQ(load("min_lr_ratio: 0.1", {"min_lr=0"}).min_lr_ratio, -1);
  const RunConfig batch =
      load("global_batch_tokens: 4096\nmax_length: 64", {"global_batch_size=2"});
  EXPECT_EQ(resolve_sizes(batch, 64).global_batch_size, 2);
  EXPECT_THROW(load("", {"overwrite=true", "resume=latest"}), Error);
}

TEST(ConfigPrecedence, AutoTakesBackWhatWasSet) {
  const Key& key = *find_key("memory");
  RunConfig config;
  set_key(config, key, "memory", parse_config_node("4GiB", "a"));
  EXPECT_TRUE(config.is_set("memory"));
  set_key(config, key, "memory", parse_config_node("auto", "b"));
  EXPECT_FALSE(config.is_set("memory"));
  EXPECT_EQ(config.memory, 0);
}

TEST(ConfigPrecedence, TextOnTheCommandLineIsTakenAsItIs) {
  EXPECT_EQ(load("", {"sample_prompt=Hello: world # 1"}).sample_prompt, "Hello: world # 1");
  EXPECT_EQ(load("", {"sample_prompt=\"a\\nb\""}).sample_prompt, "a\nb");
  EXPECT_EQ(load("", {"train_data=a b.txt"}).train_data, std::vector<std::string>{"a b.txt"});
  EXPECT_EQ(load("", {"train_data=[a, b]"}).train_data, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(load("train_data:\n- a\n- 'b c'").train_data, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(load("", {"output_dir=a=b"}).output_dir, "a=b");
}

TEST(ConfigFile, ReadsYamlAndJsonFiles) {
  const std::string path = testing::TempDir() + fmt::format("/snug_config_{}.json", getpid());
  std::ofstream(path) << "{\n\t\"seed\": 5,\n\t\"model\": {\"n_layer\":2, \"type\":\"gpt2\"}\n}\n";
  const RunConfig c = load_config(path, {"threads=2"});
  EXPECT_EQ(c.seed, 5);
  EXPECT_EQ(c.threads, 2);
  EXPECT_EQ(c.where("seed"), path + ":2");
  EXPECT_EQ(c.model_config_json, R"({"n_layer":2,"model_type":"gpt2"})");
  EXPECT_EQ(load_config("", {"seed=6"}).seed, 6);
  std::filesystem::remove(path);
}

TEST(ConfigResolved, LoadsBackToTheSame) {
  const std::vector<std::string> cases = {
      "",
      "model: gpt2\nresume: latest\nmemory: 1000001\nmax_time: 90s\nbitwise: true",
      "model: {base: gpt2, n_layer: 6, note: 'a: \"b\" # c\\'}\nallow: [micro_batch, head_rows]",
      "train_data: ['null', 'a b', '7', \"x\\ty\"]\ntokenizer: 'auto'\noutput_dir: 'true'\n"
      "sample_prompt: \"two\\nlines \\\\ \\\" \u00e9 \U0001F600\"\nsample_top_p: 0.9",
      "recompute: {0-5: block, 6: norms+mlp}\nprecision: bf16\nmin_lr: 1e-7\nwarmup_steps: 0.03",
      "optim: sgd\nsgd_momentum: 0.9\nsgd_nesterov: true\nlr_scheduler_type: wsd\nmax_steps: 10\n"
      "learning_rate: 0.30000000000000004\ndata_seed: 0\nglobal_batch_tokens: 4096\n"
      "max_length: 256",
      "optim: lion",
  };
  for (const std::string& yaml : cases) {
    const RunConfig once = load(yaml);
    const std::string text = resolved_yaml(once);
    const RunConfig twice = load(text);
    EXPECT_EQ(resolved_yaml(twice), text);
    EXPECT_EQ(twice.model, once.model);
    EXPECT_EQ(twice.model_config_json, once.model_config_json);
    EXPECT_EQ(twice.num_train_epochs, once.num_train_epochs);
    for (const Key& key : config_keys()) {
      SCOPED_TRACE(key.name);
      std::visit(
          [&](auto member) {
            if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
              EXPECT_EQ(twice.*member, once.*member);
            }
          },
          key.field);
      if (!key.unset.empty()) {
        EXPECT_EQ(twice.is_set(key.name), once.is_set(key.name));
      }
      if (key.kind != KeyKind::kwargs) {
        EXPECT_NE(text.find("\n" + std::string(key.name) + ": "), std::string::npos);
      }
    }
  }
}

TEST(ConfigSizes, FollowFromWhatIsGiven) {
  const auto sizes = [](const std::string& yaml, int64_t positions = 2048) {
    return resolve_sizes(load(yaml), positions);
  };
  EXPECT_EQ(sizes("").max_length, 1024);
  EXPECT_EQ(sizes("", 128).max_length, 128);
  EXPECT_EQ(sizes("max_length: 64", 128).max_length, 64);
  EXPECT_EQ(sizes("").global_batch_size, 32);
  EXPECT_EQ(sizes("").micro_batch_size, 0);
  EXPECT_EQ(sizes("global_batch_size: 12\ngradient_accumulation_steps: 3").micro_batch_size, 4);
  EXPECT_EQ(sizes("batch_size: 5\ngradient_accumulation_steps: 3").global_batch_size, 15);
  EXPECT_EQ(sizes("batch_size: 8").global_batch_size, 32);
  EXPECT_EQ(sizes("global_batch_tokens: 2048", 128).global_batch_size, 16);
}

TEST(ConfigSchedule, CountsWarmupAndDecay) {
  EXPECT_EQ(resolve_warmup(load(""), 10000), 100);
  EXPECT_EQ(resolve_warmup(load(""), 500), 50);
  EXPECT_EQ(resolve_warmup(load("warmup_steps: 20"), 500), 20);
  EXPECT_EQ(resolve_warmup(load("warmup_steps: 0"), 500), 0);
  EXPECT_EQ(resolve_warmup(load("warmup_steps: 0.07"), 100), 7);  // though 0.07 * 100 > 7
  EXPECT_EQ(resolve_warmup(load("warmup_ratio: 0.03"), 50), 2);   // rounded up
  EXPECT_EQ(resolve_warmup(load("warmup_ratio: 1"), 50), 50);
  EXPECT_EQ(resolve_warmup(load("lr_scheduler_type: constant"), 500), 0);
  EXPECT_EQ(resolve_decay(load("lr_scheduler_type: wsd\nlr_decay_steps: 700"), 500), 500);
  const auto decay = [](const char* warmup, const char* steps, int64_t total) {
    return resolve_decay(
        load(fmt::format("lr_scheduler_type: wsd\n{}\nlr_decay_steps: {}", warmup, steps)), total);
  };
  EXPECT_EQ(decay("warmup_ratio: 0.1", "0.25", 10), 3);  // rounded up, and there is room
  // Shares of a whole: 8 of 15 and the 7 that are left. 0.7 + 0.2 + 0.1 is not quite 1 in binary.
  EXPECT_EQ(decay("warmup_ratio: 0.5", "0.5", 15), 7);
  EXPECT_EQ(decay("warmup_steps: 0.35", "0.65", 10), 6);
  EXPECT_EQ(decay("warmup_ratio: 0.9", "0.1", 11), 1);
  EXPECT_EQ(decay("warmup_ratio: 0.95", "0.05", 10), 0);
  EXPECT_EQ(decay("warmup_ratio: 0.5", "0.51", 15), 8);  // more than the whole: refused later
  EXPECT_EQ(decay("warmup_steps: 8", "0.5", 15), 8);
  EXPECT_EQ(resolve_min_lr(load("min_lr: 1e-5")), 1e-5);
  EXPECT_DOUBLE_EQ(resolve_min_lr(load("lr: 1e-3\nmin_lr_ratio: 0.1")), 1e-4);
  EXPECT_EQ(resolve_min_lr(load("")), 0);
}

TEST(ConfigSchedule, FillsTheScheduleOfOptim) {
  const ScheduleConfig cosine = schedule_config(load("warmup_steps: 7"), 100);
  EXPECT_EQ(cosine.type, "cosine");
  EXPECT_EQ(cosine.warmup_steps, 7);
  EXPECT_EQ(cosine.total_steps, 100);
  EXPECT_FALSE(cosine.min_lr_ratio.has_value());
  EXPECT_FALSE(cosine.decay_type.has_value());
  const ScheduleConfig least = schedule_config(load("lr: 1e-3\nmin_lr: 1e-4"), 100);
  EXPECT_EQ(least.type, "cosine_with_min_lr");
  EXPECT_DOUBLE_EQ(*least.min_lr_ratio, 0.1);
  const ScheduleConfig wsd =
      schedule_config(load("lr_scheduler_type: wsd\nlr_decay_type: linear"), 200);
  EXPECT_EQ(*wsd.decay_steps, 20);
  EXPECT_EQ(*wsd.decay_type, "linear");
  const ScheduleConfig halves = schedule_config(
      load("lr_scheduler_type: wsd\nwarmup_ratio: 0.5\nlr_decay_steps: 0.5\nmax_steps: 15"), 15);
  EXPECT_EQ(halves.warmup_steps, 8);
  EXPECT_EQ(*halves.decay_steps, 7);
  EXPECT_EQ(*schedule_config(load("lr_scheduler_type: polynomial\nlr_power: 2"), 9).power, 2);
  EXPECT_EQ(*schedule_config(load("lr_scheduler_type: inverse_sqrt\nlr_timescale: 9"), 9).timescale,
            9);
}

// Runs whose rate is 0 in every step, or below learning_rate in all of them; by the clock 0 steps.
TEST(ConfigSchedule, ARateThatIsNeverReachedIsWarnedOf) {
  const auto warned = [](const std::string& yaml, int64_t steps) {
    return idle_rates(load(yaml), steps);
  };
  const struct {
    const char* yaml;
    int64_t steps;
    const char* part;  // of the warning; empty: there is none
  } rows[] = {
      {"learning_rate: 0", 10, "nothing will be learned: the learning rate is 0 (learning_rate: "},
      {"learning_rate: 1e-60", 10, "nothing will be learned: "},  // as a step takes it
      {"{learning_rate: 0, lr_scheduler_type: constant}", 10, "nothing will be learned: "},
      {"{optim: schedule_free_adamw, warmup_steps: 4}", 2,
       "the warm-up takes all of the run's 2 steps"},
      {"warmup_steps: 1", 1, "nothing will be learned: the warm-up takes all of the run's 1 steps"},
      {"warmup_ratio: 1.0", 1, "nothing will be learned: "},
      {"{learning_rate: 0.01, warmup_steps: 4}", 4, "rises to 0.0075 and not to 0.01"},
      {"{learning_rate: 0.01, warmup_steps: 8}", 4, "rises to 0.00375 and not to 0.01"},
      {"{learning_rate: 0.01, warmup_ratio: 1.0}", 4, "(warmup_ratio: 1"},
      {"{max_time: 10s, warmup_ratio: 1.0}", 0, "the warm-up takes all of the run's time"},
      {"warmup_steps: 3", 4, ""},
      {"", 1, ""},
      {"{max_time: 10s, warmup_ratio: 0.5}", 0, ""},
      {"lr_scheduler_type: constant", 1, ""},
      {"{lr_scheduler_type: warmup_stable_decay, warmup_steps: 2, lr_decay_steps: 2}", 4, ""},
  };
  for (const auto& row : rows) {
    const std::string text = warned(row.yaml, row.steps);
    EXPECT_EQ(text.empty(), *row.part == 0) << row.yaml << ": " << text;
    EXPECT_NE(text.find(row.part), std::string::npos) << row.yaml << ": " << text;
  }
}

TEST(ConfigLength, TheShorterOfStepsAndEpochs) {
  const auto steps = [](const std::string& yaml) { return total_steps(load(yaml), 40, 6); };
  EXPECT_EQ(steps("max_steps: 5"), 5);
  EXPECT_EQ(steps("epochs: 1"), 7);
  EXPECT_EQ(steps("epochs: 1\nmax_steps: 5"), 5);
  EXPECT_EQ(steps("epochs: 1\nmax_steps: 500"), 7);
  EXPECT_EQ(steps("epochs: 1e-9"), 1);
  EXPECT_EQ(steps("epochs: 1e18"), 1'000'000'000'000'000);
  EXPECT_EQ(steps("epochs: 1e300\nmax_steps: 500"), 500);
  EXPECT_EQ(steps("max_time: 5"), 0);
  EXPECT_EQ(steps("max_time: 5\nepochs: 2"), 14);
}

TEST(ConfigLength, OneEpochUnlessALimitIsSet) {
  EXPECT_EQ(load("").num_train_epochs, 1);
  EXPECT_EQ(load("max_steps: 5").num_train_epochs, 0);
  EXPECT_EQ(load("max_time: 5").num_train_epochs, 0);
  EXPECT_EQ(load("max_time: 5\nepochs: 2.5").num_train_epochs, 2.5);
}

// The resolved file holds groups as they are read back, whatever their patterns are to YAML.
TEST(ParamGroups, ComeBackFromTheirText) {
  int n = 0;
  for (const char* pattern :
       {"wte|wpe", "\\.bias$", "h.[01].",    "a: b", "#",   "x # y", "{2}", "null", "1.0", "*.",
        "&a",      "it's",     "say \"so\"", "a, b", "[a]", "true",  "-",   "!x",   "%",   "@"}) {
    ++n;
    const std::vector<ParamGroup> groups = {
        {pattern, 1e-4 * n, n % 2 == 0 ? -1 : 0.01 * n}, {"wte", -1, 0.25}, {pattern, 0, -1}};
    const std::vector<ParamGroup> back = groups_of(groups_text(groups));
    ASSERT_EQ(back.size(), groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(back[i].params, groups[i].params);
      EXPECT_EQ(back[i].learning_rate, groups[i].learning_rate) << pattern;
      EXPECT_EQ(back[i].weight_decay, groups[i].weight_decay) << pattern;
    }
  }
  EXPECT_EQ(groups_text({}), "");
  EXPECT_TRUE(groups_of("").empty());
}

}  // namespace
}  // namespace snug
