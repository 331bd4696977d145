// adapter_config.json in and out, by the table of layers/adapters/kinds.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/adapters/kinds.h"
#include "layers/models/adapter_files.h"
#include "layers/models/front_tokens.h"

namespace snug {
namespace {

using nlohmann::json;

// Keys of every adapter_config.json that say nothing of the mathematics of a trained adapter.
constexpr std::string_view kIndifferent =
    "auto_mapping revision inference_mode task_type peft_version layers_pattern runtime_config "
    "peft_type base_model_name_or_path fan_in_fan_out";

bool asks_for_nothing(const json& value) {
  return value.is_null() || value == json(false) || (value.is_structured() && value.empty()) ||
         value == json("");
}

std::vector<std::string> words_of(const json& c, const char* key, const std::string& where) {
  if (c.contains(key) && c[key].is_string()) return {get_string(c, key, where)};
  return get_strings(c, key, where);
}

// Which of the lists of modules are one regular expression.
void note_expressions(const json& c, PeftConfig& p) {
  const auto is_word = [&](const char* key) {
    return c.contains(key) && c[key].is_string() && c[key] != "all-linear";
  };
  p.target_expression = is_word("target_modules");
  p.exclude_expression = is_word("exclude_modules") && !p.exclude_modules.empty();
  p.feedforward_expression = is_word("feedforward_modules");
}

const char* task_type(HeadKind head) {
  switch (head) {
    case HeadKind::causal_lm:
      return "CAUSAL_LM";
    case HeadKind::sequence_classification:
      return "SEQ_CLS";
    case HeadKind::token_classification:
      return "TOKEN_CLS";
    case HeadKind::masked_lm:
      return nullptr;  // PEFT has no word for it
  }
  return nullptr;
}

void check_fields(const json& c, const AdapterMethod& method, const std::string& path,
                  std::vector<std::string>* notes) {
  for (const auto& [key, value] : c.items()) {
    const bool read = method.has(key) || key == method.flag || has_word(method.indifferent, key) ||
                      has_word(kIndifferent, key) ||
                      std::any_of(method.fields.begin(), method.fields.end(),
                                  [&](const AdapterField& field) { return field.key == key; });
    if (read || asks_for_nothing(value)) continue;
    if (has_word(method.refused, key))
      fail(ErrorCode::unsupported, fmt::format("{} without {}, which is not built", path, key),
           json_brief(value), "an adapter trained without it");
    if (notes)
      notes->push_back(
          fmt::format("{} of {} is not known and was left out: {}", key, path, json_brief(value)));
  }
}

struct FieldReader {
  const json& c;
  const AdapterField& field;
  const std::string& path;
  PeftConfig& p;
  std::string key = std::string(field.key);

  void operator()(int64_t PeftConfig::*to) const {
    p.*to = get_int_in(c, key.c_str(), path, static_cast<int64_t>(field.least),
                       static_cast<int64_t>(field.below) - 1, p.*to);
  }
  void operator()(double PeftConfig::*to) const {
    p.*to = get_number(c, key.c_str(), path, p.*to);
    if (!(p.*to >= field.least && p.*to < field.below))
      fail(ErrorCode::data,
           fmt::format("{} from {} to below {} in {}", key, field.least, field.below, path),
           fmt::format("{}", p.*to), field.below == 1 ? "0.05" : "the value it was trained with");
  }
  void operator()(bool PeftConfig::*to) const { p.*to = get_bool(c, key.c_str(), path, p.*to); }
  // Of a text, true and false are PEFT's default and no first weights, which a trained one has.
  void operator()(std::string PeftConfig::*to) const {
    if (!c.contains(key) || !c[key].is_string()) return;
    p.*to = get_string(c, key.c_str(), path);
    const std::string words(field.words);
    const std::string choices =
        (words.starts_with("true") ? "true false" + words.substr(4) : words) +
        std::string(field.also_text);
    if (!field.fits(p.*to))
      fail(ErrorCode::unsupported, fmt::format("{} {} in {}", key, word_list(choices), path), p.*to,
           std::string(field.advice));
  }
};

struct FieldWriter {
  const PeftConfig& p;
  json operator()(int64_t PeftConfig::*from) const { return p.*from; }
  json operator()(bool PeftConfig::*from) const { return p.*from; }
  json operator()(double PeftConfig::*from) const {
    const auto whole = static_cast<int64_t>(p.*from);
    return static_cast<double>(whole) == p.*from ? json(whole) : json(p.*from);
  }
  json operator()(std::string PeftConfig::*from) const {
    // Of loftq the base stays, so that to readers the adapter is any other.
    if (p.*from == "true" || p.*from == "loftq") return true;
    return (p.*from).empty() ? json(nullptr) : json(p.*from);
  }
};

// In the order of the file, which counts.
void read_patterns(const json& c, const std::string& path, PeftConfig& p) {
  std::ifstream file(path);
  const auto ordered = nlohmann::ordered_json::parse(file);
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (!c.contains(key) || c[key].is_null()) continue;
    require_object(c[key], path + " / " + key);
    for (const auto& item : ordered[key].items()) {
      const std::string& word = item.key();
      if (std::string_view(key) == "rank_pattern")
        p.rank_pattern.emplace_back(word, get_int(c[key], word.c_str(), path + " / " + key));
      else
        p.alpha_pattern.emplace_back(word, get_number(c[key], word.c_str(), path + " / " + key));
    }
  }
}

void read_bias(const json& c, const AdapterMethod& method, const std::string& path, PeftConfig& p) {
  p.bias = get_string(c, "bias", path, "none");
  if (p.bias == method.bias_only)
    p.bias = "lora_only";
  else if (p.bias != "none" && p.bias != "all")
    fail(ErrorCode::data, fmt::format("bias none, all or {} in {}", method.bias_only, path), p.bias,
         "none");
}

// Names of modules that mean those with an adapter and no others: last words, or whole paths.
struct NamesOfModules {
  std::set<std::string> targets, feedforward;
  std::vector<std::string> adapted;  // whole paths
};

std::string path_of_module(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

NamesOfModules names_of_modules(const Model& model, const PeftConfig& config) {
  const Family& family = find_family(model.spec().family, "model");
  NamesOfModules names;
  // The last words of those without an adapter that could be meant.
  std::set<std::string> others, inputs;  // the latter of IA3
  const std::vector<int64_t>& layers = config.layers_to_transform;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (p.shape.rank() != 2 || is_adapter_name(p.name.view())) continue;
    const std::string layer = path_of_module(p.name.str());
    const auto adapter = model.adapters().find(layer);
    const std::vector<FilePiece> pieces = family.pieces(p, model.spec());
    for (size_t k = 0; k < pieces.size(); ++k) {
      const std::string path = path_of_module(pieces[k].names.front());
      const bool has = adapter != model.adapters().end() &&
                       std::any_of(adapter->second.pieces.begin(), adapter->second.pieces.end(),
                                   [&](const AdapterPiece& piece) { return piece.piece == k; });
      if (has && adapter->second.input) inputs.insert(path);
      if (has)
        names.adapted.push_back(path);
      else if (layers.empty() || std::find(layers.begin(), layers.end(), p.part) != layers.end())
        others.insert(path.substr(path.rfind('.') + 1));
    }
  }
  for (const std::string& path : names.adapted) {
    const std::string last = path.substr(path.rfind('.') + 1);
    const bool mixed =
        inputs.contains(path) &&
        std::any_of(names.adapted.begin(), names.adapted.end(), [&](const auto& other) {
          return other.ends_with(last) && !inputs.contains(other);
        });
    const std::string& word = others.contains(last) || mixed ? path : last;
    names.targets.insert(word);
    if (inputs.contains(path)) names.feedforward.insert(word);
  }
  return names;
}

// With the output of a classifier, which PEFT's are saved with.
std::vector<std::string> saved_modules(const Model& model, const PeftConfig& config) {
  const Family& family = find_family(model.spec().family, "model");
  std::vector<std::string> saved = config.modules_to_save;
  for (int i = 0; i < model.params().size(); ++i)
    if (model.params()[i].name.view() == "head.out.weight" && model.params()[i].trainable) {
      const std::string path =
          path_of_module(family.pieces(model.params()[i], model.spec()).front().names.front());
      const std::string name = path.substr(0, path.find('.'));
      if (std::none_of(saved.begin(), saved.end(),
                       [&](const std::string& own) { return name.ends_with(own); }))
        saved.push_back(name);
    }
  return saved;
}

// What PEFT has of the model beside virtual tokens.
json front_fields(const ModelSpec& spec, const PeftConfig& config) {
  const AdapterMethod& method = adapter_method(config.method);
  json c = {{"token_dim", front_width(spec, method)},
            {"num_transformer_submodules", 1},
            {"num_attention_heads", method.front_keys ? spec.G : spec.H},
            {"num_layers", spec.L}};
  if (method.encodes) {
    c["encoder_hidden_size"] =
        config.encoder_hidden_size > 0 ? config.encoder_hidden_size : front_width(spec, method);
    return c;
  }
  const bool text = config.prompt_tuning_init == "TEXT" && !config.base.empty();
  c["tokenizer_name_or_path"] = text ? json(config.base) : json(nullptr);
  c["tokenizer_kwargs"] = nullptr;
  return c;
}

json null_or(const std::vector<std::string>& list) {
  return list.empty() ? json(nullptr) : json(list);
}

}  // namespace

PeftConfig read_adapter_config(const std::string& folder, std::vector<std::string>* notes) {
  const std::string path = folder + "/" + kAdapterConfig;
  if (!file_exists(path))
    fail(ErrorCode::usage, fmt::format("a folder with {} and {}", kAdapterConfig, kAdapterWeights),
         folder, adapter_instead_of(folder));
  const json c = parse_json_file(path);
  require_object(c, path);
  const std::string type = get_string(c, "peft_type", path);
  const AdapterMethod* const method = find_peft_type(type, [&](std::string_view field) {
    const auto found = c.find(std::string(field));
    return found != c.end() && *found == json(true);
  });
  if (!method) {
    std::string types, titles;
    for (const AdapterMethod* row : adapter_methods()) {
      if (row->flag.empty()) types += (types.empty() ? "" : " ") + std::string(row->type);
      titles += (titles.empty() ? "" : " ") + std::string(row->title);
    }
    fail(ErrorCode::unsupported, fmt::format("peft_type {} in {}", word_list(types), path), type,
         fmt::format("an adapter of {}", word_list(titles)));
  }
  check_fields(c, *method, path, notes);
  PeftConfig p = method->fresh;
  p.method = method->name;
  for (const AdapterField& field : method->fields)
    std::visit(FieldReader{c, field, path, p}, field.value);
  if (!method->front) p.target_modules = words_of(c, "target_modules", path);
  if (method->has("exclude_modules")) p.exclude_modules = words_of(c, "exclude_modules", path);
  p.modules_to_save = get_strings(c, "modules_to_save", path);
  if (method->has("feedforward_modules"))
    p.feedforward_modules = words_of(c, "feedforward_modules", path);
  if (method->has("bias")) read_bias(c, *method, path, p);
  if (method->has("layers_to_transform") && c.contains("layers_to_transform") &&
      !c["layers_to_transform"].is_null()) {
    const json& layers = c["layers_to_transform"];
    for (const json& layer : layers.is_array() ? layers : json::array({layers}))
      p.layers_to_transform.push_back(
          get_int(json{{"layers_to_transform", layer}}, "layers_to_transform", path));
  }
  if (method->has("rank_pattern")) read_patterns(c, path, p);
  note_expressions(c, p);
  p.of_folder = true;
  p.base = get_string(c, "base_model_name_or_path", path, "");
  return p;
}

void write_adapter_config(const Model& model, const PeftConfig& config, const std::string& folder) {
  const AdapterMethod& method = adapter_method(config.method);
  const NamesOfModules names = names_of_modules(model, config);
  const char* const task = task_type(model.spec().head);
  json c = {{"peft_type", method.type},
            {"auto_mapping", nullptr},
            {"base_model_name_or_path", config.base.empty() ? json(nullptr) : json(config.base)},
            {"revision", nullptr},
            {"task_type", task ? json(task) : json(nullptr)},
            {"inference_mode", true},
            {"modules_to_save", null_or(saved_modules(model, config))}};
  if (method.has("target_modules")) c["target_modules"] = names.targets;
  for (const AdapterField& field : method.fields)
    c[std::string(field.key)] = std::visit(FieldWriter{config}, field.value);
  if (method.front) c.update(front_fields(model.spec(), config));
  for (const auto& [key, value] : method.constants) c[key] = json::parse(value);
  if (method.has("exclude_modules")) c["exclude_modules"] = nullptr;
  if (method.has("fan_in_fan_out")) c["fan_in_fan_out"] = model.spec().linear_in_out;
  if (method.has("feedforward_modules")) c["feedforward_modules"] = names.feedforward;
  if (method.has("bias"))
    c["bias"] = config.bias == "lora_only" ? std::string(method.bias_only) : config.bias;
  if (method.has("layers_to_transform"))
    c["layers_to_transform"] =
        config.layers_to_transform.empty() ? json(nullptr) : json(config.layers_to_transform);
  if (method.has("rank_pattern")) {
    // By whole paths, so that no order of them counts.
    json ranks = json::object(), alphas = json::object();
    for (const std::string& path : names.adapted) {
      if (rank_of(config, path) != config.lora_r) ranks[path] = rank_of(config, path);
      if (alpha_of(config, path) != config.lora_alpha) alphas[path] = alpha_of(config, path);
    }
    c["rank_pattern"] = ranks;
    c["alpha_pattern"] = alphas;
  }
  write_json_file(folder + "/" + kAdapterConfig, c);
}

}  // namespace snug
