#include "tools/config/adapter_keys.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "tools/config/complaints.h"

namespace snug {
namespace {

constexpr Range kRank{.min = 1};
constexpr Range kAlpha{.min = 0, .open_min = true};
constexpr Range kDropout{.min = 0, .max = 1, .open_max = true};

// Methods of PEFT that are known here, of which those that the table lacks are refused.
constexpr std::string_view kOfPeft =
    "adalora loha lokr oft boft vera miss mora prefix_tuning prompt_tuning p_tuning bone";

std::string_view why_no_method(std::string_view word) {
  return word == "bone" ? "which PEFT has as miss now" : "which is not built";
}
std::string_view instead_of_method(std::string_view word) {
  return word == "bone" ? "peft=miss" : "";
}

std::string_view peft_words() {
  static const std::string text = [] {
    std::string all;
    for (const AdapterMethod* row : adapter_methods())
      all += (all.empty() ? "" : " ") + std::string(row->words);
    return all;
  }();
  return text;
}

std::string_view refused_words() {
  static const std::string text = [] {
    std::string all;
    for (const std::string_view word : words(kOfPeft))
      if (!find_peft_word(word)) all += (all.empty() ? "" : " ") + std::string(word);
    return all;
  }();
  return text;
}

std::string_view peft_doc() {
  static const std::string text = [] {
    std::string all = "what is trained beside a model that stays as it is:";
    for (const AdapterMethod* row : adapter_methods()) all += fmt::format(" {};", row->doc);
    return all +
           " final/ and checkpoints are then PEFT folders. null: nothing, the model itself is";
  }();
  return text;
}

}  // namespace

std::vector<Key> adapter_keys() {
  using C = RunConfig;
  using K = KeyKind;
  return {
      // clang-format off
      {.name = "peft", .section = "adapters", .kind = K::choice, .field = &C::peft,
       .doc = peft_doc(),
       .example = "lora", .unset = "null", .none = "none", .choices = peft_words(),
       .refused = refused_words(), .refused_reason = why_no_method,
       .refused_instead = instead_of_method},
      {.name = "adapter", .section = "adapters", .kind = K::text, .field = &C::adapter,
       .doc = "a PEFT folder to go on from, final/ of a run with peft or another's: its form is that of its "
              "adapter_config.json, and model is its base; null: a new one",
       .example = "run1/final", .unset = "null"},
      {.name = "lora_r", .section = "adapters", .kind = K::integer, .field = &C::lora_r,
       .doc = "the rank of the matrices; auto: PEFT's, 8 of lora", .example = "16", .unset = "auto",
       .range = kRank, .aliases = "r lora_rank"},
      {.name = "lora_alpha", .section = "adapters", .kind = K::number, .field = &C::lora_alpha,
       .doc = "what they make is multiplied by lora_alpha / lora_r", .example = "32",
       .range = kAlpha},
      {.name = "rank_pattern", .section = "adapters", .kind = K::patterns, .field = &C::rank_pattern,
       .doc = "other ranks: a map of regular expressions, for the end of a module's path, to them; the first that fits "
              "counts", .example = "{.*att.*: 4}", .unset = "null", .range = kRank},
      {.name = "alpha_pattern", .section = "adapters", .kind = K::patterns, .field = &C::alpha_pattern,
       .doc = "other values of lora_alpha, likewise", .example = "{.*att.*: 16}", .unset = "null",
       .range = kAlpha},
      {.name = "lora_dropout", .section = "adapters", .kind = K::number, .field = &C::lora_dropout,
       .doc = "dropout of their input, one mask for all modules that read it", .example = "0.05",
       .range = kDropout},
      {.name = "target_modules", .section = "adapters", .kind = K::texts,
       .field = &C::target_modules,
       .doc = "the modules that have one: ends of their paths, all-linear (all but the head), or one regular "
              "expression for whole paths; null: those of queries and values, as PEFT has it; of "
              "ia3 those of keys and values, and the projection behind the MLP",
       .example = "[q_proj, k_proj, v_proj, o_proj]", .unset = "null",
       .aliases = "lora_target_modules lora_target"},
      {.name = "exclude_modules", .section = "adapters", .kind = K::texts,
       .field = &C::exclude_modules, .doc = "modules that have none nevertheless, named likewise",
       .example = "down_proj", .unset = "null"},
      {.name = "use_rslora", .section = "adapters", .kind = K::flag, .field = &C::use_rslora,
       .doc = "multiply by lora_alpha / sqrt(lora_r) instead", .example = "true"},
      {.name = "use_dora", .section = "adapters", .kind = K::flag, .field = &C::use_dora,
       .doc = "the magnitude of each row of the weights is learned beside their direction (DoRA); over weights in 4 "
              "bits too", .example = "true"},
      {.name = "d_initial", .section = "adapters", .kind = K::number, .field = &C::d_initial,
       .doc = "of peft: vera, what the vectors between its matrices begin with", .example = "0.2"},
      {.name = "projection_prng_key", .section = "adapters", .kind = K::integer,
       .field = &C::projection_prng_key,
       .doc = "of peft: vera, the seed that its matrices follow from, as PEFT draws them", .example = "7",
       .range = {.min = 0, .max = 1e18}},
      {.name = "feedforward_modules", .section = "adapters", .kind = K::texts,
       .field = &C::feedforward_modules,
       .doc = "of peft: ia3, the target_modules that scale what they read, named likewise; null: without target_modules "
              "the projection behind the MLP, else none",
       .example = "[down_proj]", .unset = "null"},
      {.name = "num_virtual_tokens", .section = "adapters", .kind = K::integer,
       .field = &C::num_virtual_tokens,
       .doc = "of peft: prompt_tuning, p_tuning and prefix_tuning, how many tokens of their own every sequence begins "
              "with, beside the max_length that it has", .example = "8", .range = {.min = 1, .max = 1 << 20}},
      {.name = "reduction_factor", .section = "adapters", .kind = K::integer, .field = &C::reduction_factor,
       .doc = "of peft: houlsby and pfeiffer, the model's width over that of the bottlenecks", .example = "8",
       .range = {.min = 1, .max = 1 << 20}},
      {.name = "encoder_hidden_size", .section = "adapters", .kind = K::integer,
       .field = &C::encoder_hidden_size,
       .doc = "of peft: p_tuning, and of prefix_tuning with prefix_projection, the width inside the MLP that makes these "
              "tokens; auto: that of what it makes of one, as PEFT has it", .example = "128", .unset = "auto",
       .range = {.min = 1, .max = 1 << 20}},
      {.name = "prefix_projection", .section = "adapters", .kind = K::flag, .field = &C::prefix_projection,
       .doc = "of peft: prefix_tuning, its keys and values are made by two linear layers with tanh between, which are "
              "trained in their place", .example = "true"},
      {.name = "prompt_tuning_init", .section = "adapters", .kind = K::choice,
       .field = &C::prompt_tuning_init,
       .doc = "what these rows begin as: RANDOM, numbers of deviation 1; TEXT, the rows of the tokens of "
              "prompt_tuning_init_text, from its beginning again where it is shorter",
       .example = "TEXT", .choices = "RANDOM TEXT", .refused = "SAMPLE_VOCAB"},
      {.name = "prompt_tuning_init_text", .section = "adapters", .kind = K::text,
       .field = &C::prompt_tuning_init_text, .doc = "a text as the model's tokenizer encodes it, special tokens too",
       .example = "Answer the question.", .unset = "null"},
      {.name = "init_lora_weights", .section = "adapters", .kind = K::choice,
       .field = &C::init_lora_weights,
       .doc = "the first weights of A, those of B being 0: true, as those of a linear layer of PyTorch; gaussian, "
              "of deviation 1 / lora_r. Or both made of the weight beside them, which is less what they make: pissa, "
              "its largest singular parts; pissa_niter_N, nearly these, found by N rounds, which PEFT "
              "repeats at every load with other random numbers, so that its model is not quite this one; olora, the "
              "first parts of its QR. loftq: those of what a weight in 4 bits has lost",
       .example = "gaussian", .choices = "true gaussian pissa pissa_niter_N olora loftq",
       .refused = "false eva corda orthogonal lora_ga mica"},
      {.name = "bias", .section = "adapters", .kind = K::choice, .field = &C::bias,
       .doc = "which biases of the model are trained too: none, all, or those of modules with adapters",
       .example = "lora_only", .choices = "none all lora_only", .refused = "true false",
       .refused_why = "no choice of adapters",
       .refused_advice = "bias=none; for a GPT-2 without biases model.bias=false"},
      {.name = "modules_to_save", .section = "adapters", .kind = K::texts,
       .field = &C::modules_to_save,
       .doc = "modules that are trained and saved whole, named by the ends of their paths; the layer that gives a "
              "classifier's labels always is", .example = "[lm_head]", .unset = "null"},
      {.name = "layers_to_transform", .section = "adapters", .kind = K::texts,
       .field = &C::layers_to_transform,
       .doc = "numbers or ranges of the layers that have adapters; null: all", .example = "[0-3, 7]",
       .unset = "null"},
      {.name = "load_in_4bit", .section = "adapters", .kind = K::flag, .field = &C::load_in_4bit,
       .doc = "the frozen linear weights of the blocks rest in 4 bits; peft: qlora says it too", .example = "true"},
      {.name = "bnb_4bit_quant_type", .section = "adapters", .kind = K::choice,
       .field = &C::bnb_4bit_quant_type,
       .doc = "their codes; auto: nf4 of peft: qlora, else fp4, as bitsandbytes", .example = "nf4",
       .choices = "auto nf4 fp4"},
      {.name = "bnb_4bit_use_double_quant", .section = "adapters", .kind = K::choice,
       .field = &C::bnb_4bit_use_double_quant,
       .doc = "whether the scales of their blocks of 64 are codes too, 0.516 bytes a weight in place of 0.5625; auto: "
              "those of peft: qlora are", .example = "true", .choices = "auto true false"},
      {.name = "bnb_4bit_compute_dtype", .section = "adapters", .kind = K::choice,
       .field = &C::bnb_4bit_compute_dtype,
       .doc = "the other name of precision for such a run; auto: bfloat16 of peft: qlora, unless precision is set",
       .example = "bfloat16", .choices = "auto float32 bfloat16 float16"},
      {.name = "load_in_8bit", .section = "adapters", .kind = K::flag, .field = &C::load_in_8bit,
       .doc = "the frozen linear weights of the blocks rest as int8 with a scale a row, and what they multiply is rounded to "
              "int8 by rows too, as LLM.int8() has it; beside peft: qlora in place of 4 bits", .example = "true"},
      {.name = "llm_int8_threshold", .section = "adapters", .kind = K::number, .field = &C::llm_int8_threshold,
       .doc = "activations of this magnitude and above are multiplied as they are; 0: none", .example = "0",
       .range = {.min = 0, .max = 65504}},
      // clang-format on
  };
}

void check_adapter_keys(const RunConfig& c, Complaints& complaints) {
  const AdapterMethod* const method = c.peft.empty() ? nullptr : find_peft_word(c.peft);
  for (const Key& key : config_keys()) {
    if (key.section != "adapters" || key.name == "peft" || key.name == "adapter" ||
        key.name.starts_with("bnb_4bit_") || key.name == "llm_int8_threshold" || is_idle(c, key))
      continue;
    const auto only_with = [&](const std::string& what) {
      complaints.add(ErrorCode::usage, fmt::format("{} only with {}", key.name, what),
                     fmt::format("{}: {} ({})", key.name, print_value(c, key), c.where(key.name)),
                     fmt::format("leave {} out", key.name));
    };
    if (c.peft.empty() && c.adapter.empty()) {
      only_with("peft or adapter");
      continue;
    }
    if (!method || method->takes(key.name)) continue;
    std::string with;
    for (const AdapterMethod* row : adapter_methods())
      if (row->takes(key.name)) with += (with.empty() ? "" : " ") + std::string(row->words);
    if (!with.empty()) only_with("peft: " + word_list(with));
  }
  if (c.peft == "prefix_tuning" && c.encoder_hidden_size > 0 && !c.prefix_projection)
    complaints.add(ErrorCode::usage, "prefix_projection beside encoder_hidden_size of a prefix",
                   fmt::format("encoder_hidden_size: {} ({})", c.encoder_hidden_size,
                               c.where("encoder_hidden_size")),
                   "prefix_projection=true, or leave encoder_hidden_size out");
  if (c.prompt_tuning_init == "TEXT" && c.prompt_tuning_init_text.empty())
    complaints.add(
        ErrorCode::usage, "prompt_tuning_init_text beside prompt_tuning_init: TEXT",
        fmt::format("none ({})", c.where("prompt_tuning_init")),
        "prompt_tuning_init_text=\"Answer the question:\", or prompt_tuning_init=RANDOM");
  if (c.prompt_tuning_init != "TEXT" && !c.prompt_tuning_init_text.empty())
    complaints.add(ErrorCode::usage, "prompt_tuning_init: TEXT beside prompt_tuning_init_text",
                   fmt::format("{} ({})", c.prompt_tuning_init, c.where("prompt_tuning_init_text")),
                   "prompt_tuning_init=TEXT");
}

}  // namespace snug
