#include "tools/setup/peft_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "engine/core/error.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/adapters/first_weights.h"
#include "layers/adapters/kinds.h"
#include "layers/models/adapter_files.h"
#include "layers/models/front_tokens.h"
#include "tools/config/adapter_keys.h"
#include "tools/config/keys.h"
#include "tools/config/patterns.h"
#include "tools/session/tell.h"

namespace snug {
namespace {

[[noreturn]] void bad_layers(const RunConfig& config, const std::string& word) {
  fail(ErrorCode::usage, "layers_to_transform as numbers of layers, or ranges of them",
       fmt::format("\"{}\" ({})", word, config.where("layers_to_transform")),
       "layers_to_transform=[0-3,7]");
}

int64_t number(const RunConfig& config, const std::string& word, std::string_view digits) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > 100000)
    bad_layers(config, word);
  return value;
}

std::vector<int64_t> layers(const RunConfig& config) {
  std::vector<int64_t> list;
  for (const std::string& word : config.layers_to_transform) {
    const size_t dash = word.find('-');
    const std::string_view text = word;
    const int64_t first = number(config, word, text.substr(0, dash));
    const int64_t last =
        dash == std::string::npos ? first : number(config, word, text.substr(dash + 1));
    if (last < first) bad_layers(config, word);
    for (int64_t l = first; l <= last; ++l) list.push_back(l);
  }
  return list;
}

// That `peft` says nothing else than the folder of an adapter to go on from.
void check_method(const RunConfig& config, const PeftConfig& p) {
  const AdapterMethod& method = adapter_method(p.method);
  if (config.is_set("lora_dropout") && config.lora_dropout != 0 && !method.takes("lora_dropout"))
    fail(ErrorCode::usage,
         fmt::format("no lora_dropout for {}, an adapter of {}", config.adapter, method.title),
         fmt::format("lora_dropout: {} ({})", config.lora_dropout, config.where("lora_dropout")),
         "leave lora_dropout out");
  if (config.peft.empty() ||
      (has_word(method.words, config.peft) && (config.peft != "dora" || p.use_dora)))
    return;
  const std::string own = p.use_dora ? "dora" : std::string(method.name);
  fail(ErrorCode::usage, fmt::format("peft: {} for {}, or none", own, config.adapter),
       fmt::format("peft: {} ({})", config.peft, config.where("peft")),
       fmt::format("peft={}", own));
}

// Whether a key says what the adapter that goes on has already: a field its value, and what is no field of
// its method nothing, or the same.
bool is_of_adapter(const RunConfig& config, const PeftConfig& own, const Key& key) {
  for (const AdapterField& field : adapter_method(own.method).fields)
    if (field.run_key == key.name)
      return std::visit([&](auto member) { return config.*member == own.*member; }, field.value);
  return is_idle(config, key) ||
         (key.name == "target_modules" && config.target_modules == own.target_modules) ||
         (key.name == "modules_to_save" && config.modules_to_save == own.modules_to_save) ||
         (key.name == "use_dora" && config.use_dora == own.use_dora) ||
         (key.name == "bias" && config.bias == own.bias);
}

// The fields of a method that the run sets; the others are the method's own.
void take_fields(const RunConfig& config, const AdapterMethod& method, PeftConfig& p) {
  for (const AdapterField& field : method.fields)
    if (config.is_set(field.run_key))
      std::visit([&](auto member) { p.*member = config.*member; }, field.value);
}

// A new adapter.
PeftConfig method_of_keys(const RunConfig& config) {
  const AdapterMethod& method = *find_peft_word(config.peft);
  PeftConfig p = method.fresh;
  p.method = method.name;
  take_fields(config, method, p);
  p.encoded = method.encodes && method.encodes(p);
  p.feedforward_modules = config.feedforward_modules;
  p.feedforward_expression = is_expression("feedforward_modules", p.feedforward_modules);
  p.target_modules = config.target_modules;
  p.exclude_modules = config.exclude_modules;
  p.target_expression = is_expression("target_modules", p.target_modules);
  p.exclude_expression = is_expression("exclude_modules", p.exclude_modules);
  for (const auto& [pattern, rank] : patterns_of(*find_key("rank_pattern"), config.rank_pattern))
    p.rank_pattern.emplace_back(pattern, static_cast<int64_t>(rank));
  p.alpha_pattern = patterns_of(*find_key("alpha_pattern"), config.alpha_pattern);
  p.use_dora = config.use_dora || config.peft == "dora";
  if (p.use_dora && config.is_set("use_dora") && !config.use_dora)
    fail(ErrorCode::usage, "peft: dora with use_dora, or peft: lora without",
         fmt::format("use_dora: false ({})", config.where("use_dora")), "peft=lora");
  p.freeze_a = config.peft == "lora_fa";
  p.bias = config.bias;
  p.modules_to_save = config.modules_to_save;
  p.layers_to_transform = layers(config);
  if (p.target_modules.empty() && config.peft == "qlora") p.target_modules = {"all-linear"};
  return p;
}

// Of a base whose files are in codes already, what its config.json says of them and no key does.
void take_folder_form(const RunConfig& config, const PeftConfig& own, const std::string& folder,
                      PeftConfig& p) {
  if (p.codec != own.codec) {
    const std::string key = own.codec == "int8" ? "load_in_8bit=true" : "load_in_4bit=true";
    if (p.codec.empty())
      tell(stderr, "Note: weights of {} are {} codes, which are decoded; {} rests them so.\n",
           folder, own.codec, key);
    return;
  }
  const std::string before = base_form(p);
  if (!config.is_set("llm_int8_threshold")) p.int8_threshold = own.int8_threshold;
  if (!config.is_set("llm_int8_skip_modules")) p.skip_modules = own.skip_modules;
  if (base_form(p) != before)
    tell(stderr, "Note: weights rest as {}, as {}/config.json has it.\n", base_form(p), folder);
}

}  // namespace

void take_adapter_fields(const PeftConfig& trained, RunConfig& config) {
  config.lora_dropout = trained.lora_dropout;  // the run's own, which need not be the folder's
  const PeftConfig own = read_adapter_config(config.adapter);
  for (const AdapterField& field : adapter_method(own.method).fields)
    if (!field.run_key.empty() && field.run_key != "lora_dropout")
      std::visit([&](auto member) { config.*member = own.*member; }, field.value);
}

std::optional<PeftConfig> resolve_peft_keys(const RunConfig& config, const ModelSpec& spec,
                                            const std::string& model_folder) {
  if (config.peft.empty() && config.adapter.empty()) return std::nullopt;
  for (const char* key : {"freeze", "unfreeze"})
    if (config.is_set(key))
      fail(ErrorCode::usage,
           fmt::format("{} without adapters, beside which the model is frozen", key),
           fmt::format("{}: {} ({})", key, print_value(config, *find_key(key)), config.where(key)),
           "modules_to_save and bias name what is trained beside them");
  PeftConfig p;
  if (!config.adapter.empty()) {
    std::vector<std::string> notes;
    p = read_adapter_config(config.adapter, &notes);
    for (const std::string& note : notes) tell(stderr, "Note: {}.\n", note);
    for (const Key& of : config_keys()) {
      const std::string key(of.name);
      if (of.section == "adapters" && key != "peft" && key != "adapter" && key != "lora_dropout" &&
          !is_base_form_key(key) && config.is_set(key) && !is_of_adapter(config, p, of))
        fail(
            ErrorCode::usage,
            fmt::format("{} as {} has it: an adapter goes on in its own form", key, config.adapter),
            fmt::format("{}: {} ({})", key, print_value(config, of), config.where(key)),
            fmt::format("leave {} out, or adapter out for a new one", key));
    }
    check_method(config, p);
    const AdapterMethod& method = adapter_method(p.method);
    p.encoded = method.encodes && method.encodes(p) && has_encoder(config.adapter);
    if (method.encodes && method.encodes(p) && !p.encoded) {
      tell(stderr, "Note: {} has no encoder: its rows are trained themselves.\n", config.adapter);
      p.prefix_projection = false;
    }
    p.freeze_a = config.peft == "lora_fa";
    if (config.is_set("lora_dropout")) p.lora_dropout = config.lora_dropout;
    if ((config.task == "dpo" || config.task == "reward") && p.lora_dropout > 0) {
      tell(stderr, "Note: task: {} drops nothing out; the lora_dropout {} of {} is left out.\n",
           config.task, p.lora_dropout, config.adapter);
      p.lora_dropout = 0;
    }
  } else {
    p = method_of_keys(config);
  }
  const bool qlora = config.peft == "qlora";
  if (config.load_in_8bit) {
    p.codec = "int8";
    p.int8_threshold = config.llm_int8_threshold;
  } else if (qlora || config.load_in_4bit) {
    const std::string& type = config.bnb_4bit_quant_type;
    const std::string& doubled = config.bnb_4bit_use_double_quant;
    p.codec = type != "auto" ? type : qlora ? "nf4" : "fp4";
    p.doubled = doubled == "auto" ? qlora : doubled == "true";
  }
  p.skip_modules = skipped_of_blocks(spec, config.llm_int8_skip_modules);
  if (const std::optional<PeftConfig> own = folder_form(model_folder, spec))
    take_folder_form(config, *own, model_folder, p);
  if (!config.adapter.empty())
    if (const std::string before = trained_base_form(config.adapter); before != base_form(p))
      tell(stderr,
           "Note: the adapter {} was trained over a base that rests as {}; here it is {}.\n",
           config.adapter, before, base_form(p));
  p.base = config.model;
  return p;
}

namespace {

// Of an adapter whose first weights were made of a base in a form, and are made again of what is here.
void check_form(const PeftModel& peft, const PeftConfig& config, const std::string& folder) {
  const bool decoded = std::any_of(peft.adapters.begin(), peft.adapters.end(), [](const auto& a) {
    return a.second.first_way && a.second.first_way->of_decoded;
  });
  const std::string file = folder + "/" + kAdapterWeights;
  // PEFT's files do not say what it was.
  if (!decoded || !safetensors_there(file) ||
      !SafetensorsReader(file).metadata().contains("snug_base"))
    return;
  const std::string before = trained_base_form(folder), now = base_form(config);
  if (before == now) return;
  PeftConfig own;
  set_base_form(own, before, file);
  std::string keys =
      own.codec.empty() ? "peft=lora"
      : own.codec == "int8"
          ? fmt::format("load_in_8bit=true llm_int8_threshold={}", own.int8_threshold)
          : fmt::format("load_in_4bit=true bnb_4bit_quant_type={} bnb_4bit_use_double_quant={}",
                        own.codec, own.doubled);
  if (!own.skip_modules.empty())
    keys += fmt::format(" llm_int8_skip_modules=[{}]", fmt::join(own.skip_modules, ","));
  fail(ErrorCode::unsupported,
       fmt::format("a base that rests as {}, of which {} was made", before, folder),
       fmt::format("one that rests as {}", now),
       fmt::format("{} of a run, --base-form auto of the others", keys));
}

}  // namespace

FrontTokens front_of(const std::optional<PeftConfig>& peft, const ModelSpec& spec) {
  if (!peft) return {0, spec.V};
  return {virtual_tokens(*peft), spec.V, !adapter_method(peft->method).front_keys};
}

void check_front(const RunConfig& config, const PeftConfig& peft, const ModelSpec& spec) {
  const int64_t n = virtual_tokens(peft), most = spec.P - n;
  if (n == 0) return;
  resolve_front(spec, peft);  // refuses other heads, before rows are read for them
  const std::string method = fmt::format("peft: {}", peft.method);
  if (config.task == "dpo" || config.task == "reward")
    fail(
        ErrorCode::unsupported,
        fmt::format("a task of single sequences for {}, whose tokens lie in front of each", method),
        fmt::format("task: {} ({})", config.task, config.where("task")), "peft=lora");
  if (config.packing_boundaries)
    fail(ErrorCode::unsupported,
         fmt::format("windows of one sequence for {}, whose tokens lie in front of each", method),
         fmt::format("packing_boundaries: true ({})", config.where("packing_boundaries")),
         "leave packing_boundaries out, or peft=lora");
  if (most > 0 && config.max_length > most)
    fail(ErrorCode::usage,
         fmt::format("max_length of at most {}, the model's {} positions less num_virtual_tokens",
                     most, spec.P),
         fmt::format("max_length: {} ({}), and num_virtual_tokens: {}", config.max_length,
                     config.where("max_length"), n),
         fmt::format("max_length={}", most));
}

void settle_first_text(const std::optional<Tokenizer>& tokenizer, const std::string& folder,
                       PeftConfig& peft) {
  if (peft.prompt_tuning_init != "TEXT" || peft.of_folder) return;
  if (!tokenizer || folder.empty())
    fail(ErrorCode::usage,
         "a model folder with weights and a tokenizer for prompt_tuning_init: TEXT, which takes "
         "rows of "
         "its tokens",
         tokenizer ? "a model that is drawn anew" : "no tokenizer",
         "model=FOLDER, or prompt_tuning_init=RANDOM");
  peft.prompt_init_tokens =
      tokenizer->with_special_tokens(tokenizer->encode(peft.prompt_tuning_init_text)).ids;
  require(!peft.prompt_init_tokens.empty(), "a token of a text");
}

PeftModel resolve_adapter(const ModelSpec& spec, const PeftConfig& config,
                          const std::string& folder) {
  PeftModel peft;
  try {
    peft = resolve_peft(spec, config);
  } catch (const Error& e) {
    if (folder.empty()) throw;
    fail(e.code(), e.expected(), fmt::format("{} in {}/{}", e.found(), folder, kAdapterConfig),
         "the model folder that the adapter was trained on");
  }
  if (const AdapterMethod& method = adapter_method(config.method);
      folder.empty() && !method.of_peft)
    tell(stderr,
         "Note: PEFT has no adapters of {}: the folder has its form, and is Snug's alone.\n",
         method.title);
  else if (folder.empty() && !method.flag.empty())
    tell(stderr, "Note: PEFT itself has no {}: the folder has the form of its fork with {}.\n",
         method.title, method.flag);
  else if (folder.empty() && spec.linear_in_out && !method.front && !method.has("fan_in_fan_out"))
    tell(stderr,
         "Note: PEFT has no {} for modules of this model, which are Conv1D: the adapter is Snug's "
         "alone, or the model's once it is merged.\n",
         method.title);
  if (!folder.empty()) check_form(peft, config, folder);
  return peft;
}

}  // namespace snug
