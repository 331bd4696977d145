#include "tools/config/adapter_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "tools/config/complaints.h"

namespace snug {
namespace {

constexpr Range kRank{.min = 1};
constexpr Range kAlpha{.min = 0, .open_min = true};

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

// Words of `peft` whose method takes a key.
std::string words_with(std::string_view key) {
  std::string with;
  for (const AdapterMethod* row : adapter_methods())
    if (row->takes(key)) with += (with.empty() ? "" : " ") + std::string(row->words);
  return with;
}

// Of which methods a key is, unless it is one of LoRA's, and what it says.
std::string doc_of(const AdapterField& field) {
  const std::string_view key = field.run_key;
  const std::string_view doc = field.said.doc;
  if (adapter_methods().front()->takes(key)) return std::string(doc);
  return fmt::format("of peft: {}, {}", word_list(words_with(key)), doc);
}

// The keys that rows of methods say, each once.
void add_keys_of_rows(std::vector<Key>& keys) {
  static const std::vector<std::pair<const AdapterField*, std::string>> rows = [] {
    std::vector<std::pair<const AdapterField*, std::string>> all;
    for (const AdapterMethod* method : adapter_methods())
      for (const AdapterField& field : method->fields)
        if (!field.said.doc.empty() && std::none_of(all.begin(), all.end(), [&](const auto& row) {
              return row.first->run_key == field.run_key;
            }))
          all.emplace_back(&field, doc_of(field));
    return all;
  }();
  for (const auto& [field, doc] : rows) {
    const AdapterKey& said = field->said;
    // In the order of AdapterValue.
    constexpr KeyKind kKinds[] = {KeyKind::integer, KeyKind::number, KeyKind::flag, KeyKind::text};
    Key key{.name = field->run_key,
            .section = "adapters",
            .kind = said.choices.empty() ? kKinds[field->value.index()] : KeyKind::choice,
            .field = std::visit([](auto member) -> KeyField { return member; }, field->value),
            .doc = doc,
            .example = said.example};
    key.unset = said.unset;
    key.aliases = said.aliases;
    key.choices = said.choices;
    key.refused = said.refused;
    key.range = {said.least, said.most, said.above_least, said.below_most};
    keys.push_back(key);
  }
}

}  // namespace

std::vector<Key> adapter_keys() {
  using C = RunConfig;
  using K = KeyKind;
  std::vector<Key> keys = {
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
      // clang-format on
  };
  add_keys_of_rows(keys);
  const std::vector<Key> shared = {
      // clang-format off
      {.name = "rank_pattern", .section = "adapters", .kind = K::patterns, .field = &C::rank_pattern,
       .doc = "other ranks: a map of regular expressions, for the end of a module's path, to them; the first that fits "
              "counts", .example = "{.*att.*: 4}", .unset = "null", .range = kRank},
      {.name = "alpha_pattern", .section = "adapters", .kind = K::patterns, .field = &C::alpha_pattern,
       .doc = "other values of lora_alpha, likewise", .example = "{.*att.*: 16}", .unset = "null",
       .range = kAlpha},
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
      {.name = "feedforward_modules", .section = "adapters", .kind = K::texts,
       .field = &C::feedforward_modules,
       .doc = "of peft: ia3, the target_modules that scale what they read, named likewise; null: without target_modules "
              "the projection behind the MLP, else none",
       .example = "[down_proj]", .unset = "null"},
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
      {.name = "llm_int8_skip_modules", .section = "adapters", .kind = K::texts, .field = &C::llm_int8_skip_modules,
       .doc = "of a base in 8 or 4 bits, modules that rest whole nevertheless, named by the ends or beginnings of their "
              "paths; heads always do. null: none, or those that the base's own quantization_config names",
       .example = "[down_proj]", .unset = "null"},
      // clang-format on
  };
  keys.insert(keys.end(), shared.begin(), shared.end());
  return keys;
}

bool is_base_form_key(std::string_view name) {
  return name.starts_with("load_in_") || name.starts_with("bnb_4bit_") ||
         name.starts_with("llm_int8_");
}

void check_adapter_keys(const RunConfig& c, Complaints& complaints) {
  const AdapterMethod* const method = c.peft.empty() ? nullptr : find_peft_word(c.peft);
  for (const Key& key : config_keys()) {
    if (key.section != "adapters" || key.name == "peft" || key.name == "adapter" ||
        key.name.starts_with("bnb_4bit_") || key.name.starts_with("llm_int8_") || is_idle(c, key))
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
    const std::string with = words_with(key.name);
    if (!with.empty()) only_with("peft: " + word_list(with));
  }
  if (!method || !method->check) return;
  for (const AdapterComplaint& complaint : method->check(c)) {
    const Key& key = *find_key(complaint.run_key);
    complaints.add(ErrorCode::usage, complaint.expected,
                   fmt::format("{}: {} ({}){}", key.name, print_value(c, key), c.where(key.name),
                               complaint.found),
                   complaint.advice);
  }
}

}  // namespace snug
