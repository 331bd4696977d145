#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/json.h"
#include "layers/models/families.h"
#include "layers/models/family.h"

namespace snug {

namespace {
const Family* const kFamilies[] = {
    &kGpt2Family,    &kBertFamily,  &kRobertaFamily, &kDistilBertFamily, &kLlamaFamily,
    &kMistralFamily, &kQwen2Family, &kQwen3Family,   &kGemmaFamily,      &kGemma2Family,
    &kGemma3Family,  &kNeoxFamily,  &kOlmo2Family,   &kPhi3Family,       &kSmollm3Family};

std::string known_types() {
  std::string list;
  for (const Family* f : kFamilies) list += (list.empty() ? "" : ", ") + std::string(f->model_type);
  return list;
}

}  // namespace

std::string known_names() {
  std::string list;
  for (const Family* f : kFamilies)
    for (const std::string& n : f->names()) list += (list.empty() ? "" : ", ") + n;
  return list;
}

namespace {

// For a model that is neither a folder nor a known name.
std::string name_advice(const std::string& asked) {
  if (asked.find('/') != std::string::npos) return "check the path, or model=gpt2";
  std::vector<std::string> names;
  for (const Family* f : kFamilies)
    for (std::string& n : f->names()) names.push_back(std::move(n));
  const std::string_view nearest = closest(asked, {names.begin(), names.end()});
  return nearest.empty() ? "model=gpt2" : fmt::format("did you mean model={}?", nearest);
}

// A run is no model; what it made is.
void check_is_model(const std::string& folder) {
  std::error_code ignored;
  const auto there = [&](const std::string& path) {
    return std::filesystem::exists(path, ignored);
  };
  if (there(folder + "/config.json") || !there(folder + "/config.resolved.yaml")) return;
  std::string best;
  int64_t newest = -1;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kCheckpoint = "checkpoint-";
    if (!name.starts_with(kCheckpoint) || !there(entry.path().string() + "/COMPLETE") ||
        !there(entry.path().string() + "/config.json"))
      continue;
    const int64_t step = std::strtoll(name.c_str() + kCheckpoint.size(), nullptr, 10);
    if (step > newest) best = folder + "/" + name;
    newest = std::max(newest, step);
  }
  if (there(folder + "/final/config.json")) best = folder + "/final";
  fail(ErrorCode::usage, "a model folder, with config.json and weights",
       fmt::format("{}, the folder of a run{}", folder,
                   best.empty() ? ", which has no model yet" : ""),
       best.empty() ? "snug train " + folder + ", which goes on with it" : best);
}
}  // namespace

const Family& find_family(std::string_view model_type, const std::string& origin) {
  for (const Family* f : kFamilies)
    if (model_type == f->model_type) return *f;
  fail(ErrorCode::unsupported, fmt::format("a model_type among: {}", known_types()),
       fmt::format("model_type \"{}\" in {}", model_type, origin), "model=gpt2");
}

const char* to_string(HeadKind head) {
  switch (head) {
    case HeadKind::causal_lm:
      return "causal_lm";
    case HeadKind::masked_lm:
      return "masked_lm";
    case HeadKind::sequence_classification:
      return "sequence_classification";
    case HeadKind::token_classification:
      return "token_classification";
  }
  return "?";
}

HeadKind parse_head(std::string_view word) {
  for (const HeadKind head : {HeadKind::causal_lm, HeadKind::masked_lm,
                              HeadKind::sequence_classification, HeadKind::token_classification})
    if (word == to_string(head)) return head;
  // Other readings of rows.
  if (word == "sft" || word == "dpo") return HeadKind::causal_lm;
  if (word == "reward") return HeadKind::sequence_classification;
  fail(ErrorCode::usage,
       "task as causal_lm, sft, dpo, reward, masked_lm, sequence_classification or "
       "token_classification",
       std::string(word), "task=auto");
}

void set_head(ModelSpec& spec, HeadKind head, const std::string& origin) {
  if (spec.head == head) return;
  const Family& family = find_family(spec.family, origin);
  if (std::find(family.heads.begin(), family.heads.end(), head) == family.heads.end()) {
    std::string names;
    for (size_t i = 0; i < family.heads.size(); ++i)
      names += fmt::format("{}{}",
                           i == 0                        ? ""
                           : i + 1 < family.heads.size() ? ", "
                                                         : " or ",
                           to_string(family.heads[i]));
    fail(ErrorCode::unsupported,
         fmt::format("a task that a model of type {} has: {}", spec.family, names),
         fmt::format("task: {} ({})", to_string(head), origin),
         spec.encoder() ? "task=masked_lm, or model=gpt2" : "task=auto, or model=bert-base");
  }
  // What a head for rows made of the model is not undone: its files have no head of tokens.
  if (head == HeadKind::causal_lm)
    fail(ErrorCode::unsupported, "a model with a head of causal_lm",
         fmt::format("{}, and task: {} ({})", spec.architecture, to_string(head), origin),
         "task=auto, or the model that it was made from");
  family.set_head(spec, head);
}

void own_names(nlohmann::json& config, const Family& family, const std::string& origin) {
  for (const KeyAlias& alias : family.aliases) {
    if (!config.contains(alias.general)) continue;
    const nlohmann::json value = config[alias.general];
    if (config.contains(alias.own) && config[alias.own] != value)
      fail(ErrorCode::usage,
           fmt::format("one value of {}, which is {} too, in {}", alias.own, alias.general, origin),
           fmt::format("{} and {}", json_brief(config[alias.own]), json_brief(value)),
           fmt::format("leave {} out", alias.general));
    config.erase(alias.general);
    config[alias.own] = value;
  }
}

ModelSource resolve_model(const std::string& model, const std::string& map, int64_t vocab_size) {
  ModelSource source;
  nlohmann::json config = nlohmann::json::object();
  std::string type, origin = model;
  bool strict = true;
  std::error_code ignored;
  if (model.empty()) {
    origin = "model";
  } else if (std::filesystem::is_directory(model, ignored)) {
    origin = model + "/config.json";
    check_is_model(model);
    config = parse_json_file(origin);
    require_object(config, origin);
    type = get_string(config, "model_type", origin);
    source.folder = model;
    strict = false;
  } else {
    for (const Family* f : kFamilies)
      if (const auto shape = f->named(model)) {
        config = *shape;
        type = f->model_type;
      }
    // A path is no name with a mistake.
    if (type.empty() && model.find('/') != std::string::npos)
      fail(ErrorCode::usage, "model as a folder with config.json, or a name",
           fmt::format("model: {}, where there is no folder", model), name_advice(model));
    if (type.empty())
      fail(ErrorCode::usage,
           fmt::format("model as a named shape ({}), a folder with config.json, or a map",
                       known_names()),
           fmt::format("model: {}", model), name_advice(model));
  }
  if (!map.empty()) {
    nlohmann::json keys = parse_json(map, "model");
    require_object(keys, "model");
    const std::string asked =
        get_string(keys, "type", "model", get_string(keys, "model_type", "model", type));
    if (asked.empty())
      fail(ErrorCode::usage, "type in the model map", json_brief(keys),
           "model='{type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}'");
    if (!type.empty() && asked != type)
      fail(ErrorCode::usage, fmt::format("the type of {}, {}", origin, type), asked,
           "leave type out");
    type = asked;
    keys.erase("type");
    keys.erase("model_type");
    if (model.empty() && vocab_size > 0 && !keys.contains("vocab_size"))
      keys["vocab_size"] = vocab_size;
    const Family& family = find_family(type, origin);
    family.check_keys(keys, "model");
    own_names(keys, family, "model");
    own_names(config, family, origin);
    config.update(keys);
  } else if (model.empty()) {
    fail(ErrorCode::usage,
         fmt::format("model as a named shape ({}), a folder or a map", known_names()), "none",
         "model=gpt2");
  }
  source.spec = find_family(type, origin).parse(config, origin, strict);
  return source;
}

}  // namespace snug
