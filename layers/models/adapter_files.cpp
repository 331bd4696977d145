#include "layers/models/adapter_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/models/weights.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";

// The layer of an adapter's parameter, the adapter, and the end of the names of its tensors.
struct AdapterPlace {
  std::string layer;
  const LinearAdapter* adapter;
  const char* end;
  bool a;        // of all modules; else of one:
  size_t piece;  // of the adapter
};

AdapterPlace place_of(const Model& model, const std::string& name) {
  using NameOf = std::string (*)(const std::string&, const LinearAdapter&, size_t);
  constexpr struct {
    const char *word, *end;
    NameOf name_of;  // null: all modules have it together
  } kKinds[] = {{".lora_A.", ".lora_A.weight", nullptr},
                {".lora_B.", ".lora_B.weight", adapter_b_name},
                {".lora_magnitude_vector", ".lora_magnitude_vector", adapter_scale_name},
                {".ia3_l", ".ia3_l", adapter_scale_name}};
  for (const auto& kind : kKinds) {
    const size_t at = name.find(kind.word);
    if (at == std::string::npos) continue;
    AdapterPlace place{name.substr(0, at), nullptr, kind.end, kind.name_of == nullptr, 0};
    place.adapter = &model.adapters().at(place.layer);
    while (kind.name_of && kind.name_of(place.layer, *place.adapter, place.piece) != name)
      ++place.piece;
    return place;
  }
  fail(ErrorCode::internal, "a parameter of an adapter", name, "report this");
}

std::string without_end(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

// Keys of adapter_config.json that say nothing of the mathematics of a trained adapter.
constexpr std::string_view kIndifferent[] = {
    "auto_mapping",   "revision",       "inference_mode", "task_type",
    "megatron_core",  "peft_version",   "fan_in_fan_out", "qalora_group_size",
    "layers_pattern", "runtime_config", "peft_type",      "ensure_weight_tying",
    "loftq_config",   "eva_config",     "corda_config",   "base_model_name_or_path"};
constexpr std::string_view kRead[] = {"r",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "target_modules",
                                      "bias",
                                      "exclude_modules",
                                      "use_rslora",
                                      "use_dora",
                                      "init_lora_weights",
                                      "rank_pattern",
                                      "modules_to_save",
                                      "layers_to_transform",
                                      "alpha_pattern"};
constexpr std::string_view kReadOfIa3[] = {"target_modules", "exclude_modules", "modules_to_save",
                                           "feedforward_modules", "init_ia3_weights"};
// Known, and not built.
constexpr std::string_view kRefused[] = {"lora_bias",
                                         "layer_replication",
                                         "megatron_config",
                                         "target_parameters",
                                         "trainable_token_indices",
                                         "alora_invocation_tokens",
                                         "use_qalora",
                                         "use_bdlora",
                                         "arrow_config",
                                         "velora_config",
                                         "kasa_config",
                                         "monteclora_config",
                                         "lora_ga_config"};

template <size_t N>
bool in(const std::string_view (&list)[N], std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

bool asks_for_nothing(const json& value) {
  return value.is_null() || value == json(false) || (value.is_structured() && value.empty()) ||
         value == json("");
}

std::vector<std::string> words(const json& c, const char* key, const std::string& where) {
  if (c.contains(key) && c[key].is_string()) return {get_string(c, key, where)};
  return get_strings(c, key, where);
}

// Which of the lists of modules are one regular expression.
void note_expressions(const json& c, PeftConfig& p) {
  const auto is_word = [&](const char* key) {
    return c.contains(key) && c[key].is_string() && c[key] != "all-linear";
  };
  p.target_expression = is_word("target_modules");
  p.exclude_expression = is_word("exclude_modules");
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

}  // namespace

bool is_saved(const Model& model, int param) {
  return model.adapters().empty() || model.params()[param].trainable;
}

const char* weights_file(const Model& model) {
  return model.adapters().empty() ? "model.safetensors" : kAdapterWeights;
}

std::vector<FilePiece> saved_pieces(const Model& model, int param) {
  const ParamInfo& p = model.params()[param];
  const Family& family = find_family(model.spec().family, "model");
  if (model.adapters().empty()) return family.pieces(p, model.spec());
  std::vector<FilePiece> pieces;
  if (!is_adapter_name(p.name.view())) {
    pieces = family.pieces(p, model.spec());
    // PEFT wraps an adapted module, whose own parameters are then those of its base_layer.
    const auto adapter = model.adapters().find(without_end(p.name.str()));
    for (size_t k = 0; k < pieces.size(); ++k) {
      const bool wrapped = adapter != model.adapters().end() &&
                           std::any_of(adapter->second.pieces.begin(), adapter->second.pieces.end(),
                                       [&](const AdapterPiece& piece) { return piece.piece == k; });
      for (std::string& name : pieces[k].names) {
        if (wrapped) name.insert(name.rfind('.'), ".base_layer");
        name.insert(0, kPrefix);
      }
    }
    return pieces;
  }
  const AdapterPlace place = place_of(model, p.name.str());
  const int base = model.params().find(place.layer + ".weight");
  const std::vector<FilePiece> of_base = family.pieces(model.params()[base], model.spec());
  for (size_t k = 0; k < place.adapter->pieces.size(); ++k) {
    if (!place.a && k != place.piece) continue;
    const AdapterPiece& own = place.adapter->pieces[k];
    const FilePiece& from = of_base[own.piece];
    FilePiece piece;
    for (const std::string& name : from.names)
      piece.names.push_back(fmt::format("{}{}{}", kPrefix, without_end(name), place.end));
    const bool of_input = place.adapter->of_input();
    piece.rows = of_input ? 1 : place.a ? own.rank : own.rows;
    if (!place.a && !of_input) piece.groups = from.groups;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

bool is_adapter_folder(const std::string& folder) {
  return file_exists(folder + "/" + kAdapterConfig) &&
         !safetensors_there(folder + "/model.safetensors") &&
         !file_exists(folder + "/model.safetensors.index.json");
}

// Of a run's folder the one in it.
std::string adapter_instead_of(const std::string& folder) {
  const std::string own = folder + "/final";
  return file_exists(own + "/" + kAdapterConfig) ? own
                                                 : "final/ of a run with peft, such as run1/final";
}

PeftConfig read_adapter_config(const std::string& folder, std::vector<std::string>* notes) {
  const std::string path = folder + "/" + kAdapterConfig;
  if (!file_exists(path))
    fail(ErrorCode::usage, fmt::format("a folder with {} and {}", kAdapterConfig, kAdapterWeights),
         folder, adapter_instead_of(folder));
  const json c = parse_json_file(path);
  require_object(c, path);
  const std::string type = get_string(c, "peft_type", path);
  if (type != "LORA" && type != "IA3")
    fail(ErrorCode::unsupported, fmt::format("peft_type LORA or IA3 in {}", path), type,
         "an adapter of LoRA, DoRA or IA3");
  const bool ia3 = type == "IA3";
  for (const auto& [key, value] : c.items()) {
    if ((ia3 ? in(kReadOfIa3, key) : in(kRead, key)) || in(kIndifferent, key) ||
        asks_for_nothing(value))
      continue;
    if (in(kRefused, key))
      fail(ErrorCode::unsupported, fmt::format("{} without {}, which is not built", path, key),
           json_brief(value), "an adapter trained without it");
    if (notes)
      notes->push_back(
          fmt::format("{} of {} is not known and was left out: {}", key, path, json_brief(value)));
  }
  PeftConfig p;
  if (ia3) {
    p.method = "ia3";
    p.target_modules = words(c, "target_modules", path);
    p.exclude_modules = words(c, "exclude_modules", path);
    p.feedforward_modules = words(c, "feedforward_modules", path);
    p.modules_to_save = get_strings(c, "modules_to_save", path);
    note_expressions(c, p);
    p.of_folder = true;
    p.base = get_string(c, "base_model_name_or_path", path, "");
    return p;
  }
  p.r = get_int_in(c, "r", path, 1, int64_t{1} << 20, 8);
  p.lora_alpha = get_number(c, "lora_alpha", path, 8);
  p.lora_dropout = get_number(c, "lora_dropout", path, 0);
  if (!(p.lora_dropout >= 0 && p.lora_dropout < 1))
    fail(ErrorCode::data, fmt::format("lora_dropout from 0 to below 1 in {}", path),
         fmt::format("{}", p.lora_dropout), "0.05");
  p.target_modules = words(c, "target_modules", path);
  p.exclude_modules = words(c, "exclude_modules", path);
  p.use_rslora = get_bool(c, "use_rslora", path, false);
  p.use_dora = get_bool(c, "use_dora", path, false);
  p.bias = get_string(c, "bias", path, "none");
  if (p.bias != "none" && p.bias != "all" && p.bias != "lora_only")
    fail(ErrorCode::data, fmt::format("bias none, all or lora_only in {}", path), p.bias, "none");
  p.modules_to_save = get_strings(c, "modules_to_save", path);
  if (c.contains("init_lora_weights") && c["init_lora_weights"].is_string()) {
    p.init = get_string(c, "init_lora_weights", path);
    if (p.init != "gaussian")
      fail(ErrorCode::unsupported,
           fmt::format("init_lora_weights true, false or gaussian in {}", path), p.init,
           "the adapter converted by PEFT to one of LoRA "
           "(path_initial_model_for_weight_conversion)");
  }
  if (c.contains("layers_to_transform") && !c["layers_to_transform"].is_null()) {
    const json& layers = c["layers_to_transform"];
    for (const json& layer : layers.is_array() ? layers : json::array({layers}))
      p.layers_to_transform.push_back(
          get_int(json{{"layers_to_transform", layer}}, "layers_to_transform", path));
  }
  // In the order of the file, which counts.
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
  note_expressions(c, p);
  p.of_folder = true;
  p.base = get_string(c, "base_model_name_or_path", path, "");
  return p;
}

void write_adapter_config(const Model& model, const PeftConfig& config, const std::string& folder) {
  const Family& family = find_family(model.spec().family, "model");
  // Paths with an adapter, and the last words of those without one that could be meant.
  std::vector<std::string> adapted;
  std::set<std::string> others, inputs;  // the latter of IA3
  const std::vector<int64_t>& layers = config.layers_to_transform;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (p.shape.rank() != 2 || is_adapter_name(p.name.view())) continue;
    const std::string layer = without_end(p.name.str());
    const auto adapter = model.adapters().find(layer);
    const std::vector<FilePiece> pieces = family.pieces(p, model.spec());
    for (size_t k = 0; k < pieces.size(); ++k) {
      const std::string path = without_end(pieces[k].names.front());
      const bool has = adapter != model.adapters().end() &&
                       std::any_of(adapter->second.pieces.begin(), adapter->second.pieces.end(),
                                   [&](const AdapterPiece& piece) { return piece.piece == k; });
      if (has && adapter->second.of_input()) inputs.insert(path);
      if (has)
        adapted.push_back(path);
      else if (layers.empty() || std::find(layers.begin(), layers.end(), p.part) != layers.end())
        others.insert(path.substr(path.rfind('.') + 1));
    }
  }
  std::set<std::string> targets, feedforward;
  for (const std::string& path : adapted) {
    const std::string last = path.substr(path.rfind('.') + 1);
    const bool mixed = inputs.contains(path) &&
                       std::any_of(adapted.begin(), adapted.end(), [&](const auto& other) {
                         return other.ends_with(last) && !inputs.contains(other);
                       });
    const std::string& word = others.contains(last) || mixed ? path : last;
    targets.insert(word);
    if (inputs.contains(path)) feedforward.insert(word);
  }
  std::vector<std::string> saved = config.modules_to_save;
  for (int i = 0; i < model.params().size(); ++i)
    if (model.params()[i].name.view() == "head.out.weight" && model.params()[i].trainable) {
      const std::string path =
          without_end(family.pieces(model.params()[i], model.spec()).front().names.front());
      const std::string name = path.substr(0, path.find('.'));
      if (std::none_of(saved.begin(), saved.end(),
                       [&](const std::string& own) { return name.ends_with(own); }))
        saved.push_back(name);
    }
  const char* const task = task_type(model.spec().head);
  if (config.method == "ia3") {
    write_json_file(
        folder + "/" + kAdapterConfig,
        {{"peft_type", "IA3"},
         {"auto_mapping", nullptr},
         {"base_model_name_or_path", config.base.empty() ? json(nullptr) : json(config.base)},
         {"revision", nullptr},
         {"task_type", task ? json(task) : json(nullptr)},
         {"inference_mode", true},
         {"target_modules", targets},
         {"exclude_modules", nullptr},
         {"feedforward_modules", feedforward},
         {"fan_in_fan_out", model.spec().linear_in_out},
         {"modules_to_save", saved.empty() ? json(nullptr) : json(saved)},
         {"init_ia3_weights", true}});
    return;
  }
  // By whole paths, so that no order of them counts.
  json ranks = json::object(), alphas = json::object();
  for (const std::string& path : adapted) {
    if (rank_of(config, path) != config.r) ranks[path] = rank_of(config, path);
    if (alpha_of(config, path) != config.lora_alpha) alphas[path] = alpha_of(config, path);
  }
  json c = {{"peft_type", "LORA"},
            {"auto_mapping", nullptr},
            {"base_model_name_or_path", config.base.empty() ? json(nullptr) : json(config.base)},
            {"revision", nullptr},
            {"inference_mode", true},
            {"r", config.r},
            {"lora_alpha", config.lora_alpha},
            {"lora_dropout", config.lora_dropout},
            {"target_modules", targets},
            {"exclude_modules", nullptr},
            {"bias", config.bias},
            {"fan_in_fan_out", model.spec().linear_in_out},
            {"init_lora_weights", config.init == "true" ? json(true) : json(config.init)},
            {"use_rslora", config.use_rslora},
            {"use_dora", config.use_dora},
            {"lora_bias", false},
            {"modules_to_save", saved.empty() ? json(nullptr) : json(saved)},
            {"layers_to_transform", nullptr},
            {"layers_pattern", nullptr},
            {"rank_pattern", ranks},
            {"alpha_pattern", alphas},
            {"layer_replication", nullptr}};
  if (config.lora_alpha == static_cast<double>(static_cast<int64_t>(config.lora_alpha)))
    c["lora_alpha"] = static_cast<int64_t>(config.lora_alpha);
  if (!config.layers_to_transform.empty()) c["layers_to_transform"] = config.layers_to_transform;
  c["task_type"] = task ? json(task) : json(nullptr);
  write_json_file(folder + "/" + kAdapterConfig, c);
}

std::string weights_fingerprint(const std::string& folder) {
  const SafetensorsFolder files(folder);
  std::vector<const SafeTensor*> tensors = files.tensors();
  std::sort(tensors.begin(), tensors.end(),
            [](const SafeTensor* a, const SafeTensor* b) { return a->name < b->name; });
  Fingerprint digest;
  for (const SafeTensor* t : tensors) {
    digest.add(fmt::format("{} {}", t->name, to_string(t->dtype)));
    for (const int64_t extent : t->shape) digest.add(fmt::format(" {}", extent));
    digest.add(t->data, t->bytes);
    for (const SafetensorsReader& file : files.files()) file.drop_pages();
  }
  return fingerprint_text(digest.digest());
}

const SafeTensor& adapter_tensor(const SafetensorsReader& file, const ParamInfo& param,
                                 const FilePiece& piece) {
  for (const std::string& name : piece.names)
    if (const SafeTensor* const tensor = file.find(name)) {
      check_weight(*tensor, param, piece, file.path());
      return *tensor;
    }
  fail(ErrorCode::data, fmt::format("a tensor {} in {}", piece.names.front(), file.path()),
       "none of that name",
       "the model that the adapter was trained on, with its adapter_config.json");
}

std::string trained_base_form(const std::string& folder) {
  const std::string path = folder + "/" + kAdapterWeights;
  if (!safetensors_there(path)) return "full";
  const SafetensorsReader file(path);
  const auto said = file.metadata().find(kBaseFormKey);
  return said == file.metadata().end() ? "full" : said->second;
}

void check_adapter_base(const SafetensorsReader& file, const std::string& base) {
  const auto said = file.metadata().find("snug_base");
  if (base.empty() || said == file.metadata().end() || said->second == base) return;
  fail(ErrorCode::data,
       fmt::format("the base that {} was trained on, weights {}", file.path(), said->second),
       fmt::format("another one, weights {}", base), "the model folder that it was trained on");
}

std::vector<std::string> load_adapter(Context& ctx, const Model& model, const std::string& path,
                                      const RestingWeights& weights, const std::string& base) {
  const std::string file = path.ends_with(".safetensors") ? path : path + "/" + kAdapterWeights;
  if (!safetensors_there(file))
    fail(ErrorCode::usage, fmt::format("an adapter with {}", kAdapterWeights), path,
         adapter_instead_of(path));
  const SafetensorsReader reader(file);
  check_adapter_base(reader, base);
  std::set<std::string> used;
  read_weights(
      ctx, model,
      [&](int param) {
        std::vector<WeightPart> parts;
        if (!is_saved(model, param)) return parts;
        for (const FilePiece& piece : saved_pieces(model, param)) {
          const SafeTensor& tensor = adapter_tensor(reader, model.params()[param], piece);
          used.insert(tensor.name);
          parts.push_back({&tensor, piece});
        }
        return parts;
      },
      weights, file);
  std::vector<std::string> warnings;
  for (const SafeTensor& t : reader.tensors())
    if (!used.contains(t.name))
      warnings.push_back(
          fmt::format("{}: tensor {} is not part of the adapter and was not read", file, t.name));
  return warnings;
}

}  // namespace snug
