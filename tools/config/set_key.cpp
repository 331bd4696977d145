#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/core/error.h"
#include "engine/core/precision.h"
#include "engine/core/suggest.h"
#include "layers/adapters/first_weights.h"
#include "optim/settings.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/model_json.h"
#include "tools/config/param_groups.h"
#include "tools/config/patterns.h"

namespace snug {
namespace {

std::string map_example(const Key& key) {
  return fmt::format("{}='{{0: {}}}'", key.name, key.example);
}

struct Layers {
  int64_t first = 0, last = 0;
};

Layers to_layers(const Key& key, const ConfigNode::Entry& entry) {
  const char* at = entry.key.data();
  const char* const end = at + entry.key.size();
  Layers layers;
  auto result = std::from_chars(at, end, layers.first);
  bool good = result.ec == std::errc();
  layers.last = layers.first;
  if (good && result.ptr != end && *result.ptr == '-') {
    result = std::from_chars(result.ptr + 1, end, layers.last);
    good = result.ec == std::errc();
  }
  if (!good || result.ptr != end || layers.first < 0 || layers.last < layers.first)
    fail(ErrorCode::usage, fmt::format("layers such as 3 or 0-5 in the map of {}", key.name),
         fmt::format("\"{}\" ({})", entry.key, entry.where), map_example(key));
  return layers;
}

std::string to_policies(const Key& key, const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::scalar) {
    if (node.text.find(':') != std::string::npos) {
      ConfigNode map = parse_config_node("{" + node.text + "}", node.where, false);
      return to_policies(key, map);
    }
    return node.text;  // what its names mean is the model's to say
  }
  if (node.kind != ConfigNode::Kind::map || node.entries.empty()) {
    std::string joined;
    for (const ConfigNode& item : node.items)
      if (item.kind == ConfigNode::Kind::scalar)
        joined += fmt::format("{}{}", joined.empty() ? "" : "+", item.text);
    fail(ErrorCode::usage, fmt::format("{} as a policy or a map of layers to policies", key.name),
         node.describe(),
         joined.empty() ? map_example(key) : fmt::format("{}={}", key.name, joined));
  }
  std::vector<Layers> seen;
  std::string text;
  for (const ConfigNode::Entry& entry : node.entries) {
    const Layers layers = to_layers(key, entry);
    for (const Layers& other : seen) {
      if (layers.first <= other.last && other.first <= layers.last)
        fail(ErrorCode::usage, fmt::format("each layer once in the map of {}", key.name),
             fmt::format("layer {} twice ({})", std::max(layers.first, other.first), entry.where),
             map_example(key));
    }
    seen.push_back(layers);
    const std::string policy = to_text(entry.value, fmt::format("the layers of {}", key.name),
                                       fmt::format("{}: {{0-5: {}}}", key.name, key.example));
    text += fmt::format("{}{}", text.empty() ? "" : ", ", layers.first);
    if (layers.last != layers.first) text += fmt::format("-{}", layers.last);
    text += ": " + policy;
  }
  return text;
}

// The flag forms of a key whose value is a name; empty if the flag is off.
std::string from_flag(std::string_view written, const ConfigNode& node, std::string_view on) {
  return to_flag(node, written, fmt::format("{}=true", written)) ? std::string(on) : std::string();
}

void set_precision(RunConfig& config, std::string_view written, const ConfigNode& node) {
  std::string name;
  if (written == "bf16" || written == "fp16" || written == "tf32") {
    name = from_flag(written, node, written);
    if (name.empty()) name = "fp32";
  } else {
    name = to_text(node, written, "precision=bf16");
  }
  // Its dtypes are those of fp32; which devices have it is check_config's to say.
  if (name == "tf32") {
    config.precision = name;
    return;
  }
  try {
    config.precision = to_string(parse_precision(name));
  } catch (const Error& error) {
    fail(error.code(), error.expected(), fmt::format("{} ({})", error.found(), node.where),
         error.advice());
  }
}

// Other trainers say it with flags: true is what comes nearest to what they then do.
void set_policies(RunConfig& config, const Key& key, std::string_view written,
                  const ConfigNode& node) {
  const bool scalar = written != key.name && node.kind == ConfigNode::Kind::scalar;
  const std::optional<bool> on = scalar ? flag(node.text) : std::nullopt;
  config.*std::get<std::string RunConfig::*>(key.field) =
      on ? std::string(*on ? "block" : "none") : to_policies(key, node);
}

void set_resume(RunConfig& config, const ConfigNode& node) {
  const std::string text = to_text(node, "resume", "resume=latest");
  const std::optional<bool> on = node.quoted ? std::nullopt : flag(text);
  config.resume = !on ? text : *on ? "latest" : "";
}

void set_permissions(RunConfig& config, const ConfigNode& node) {
  config.allow.clear();
  std::vector<std::string_view> known, built;
  for (const Permission& permission : permissions()) {
    known.push_back(permission.name);
    if (permission.built) built.push_back(permission.name);
  }
  const bool empty = node.kind == ConfigNode::Kind::list && node.items.empty();
  if (empty) return;
  for (std::string& name : to_names(node, "allow", "allow=[micro_batch]")) {
    const auto at = std::find(known.begin(), known.end(), name);
    const std::string expected = fmt::format("allow with names among {}", fmt::join(built, ", "));
    const std::string found = fmt::format("\"{}\" ({})", name, node.where);
    if (at == known.end())
      fail(ErrorCode::usage, expected, found, suggestion(name, built, "allow=[micro_batch]"));
    const Permission& permission = permissions()[static_cast<size_t>(at - known.begin())];
    if (!permission.built)
      fail(ErrorCode::unsupported, "a permission that something here can use",
           found + ", which is not built", permission.instead);
    if (std::find(config.allow.begin(), config.allow.end(), name) == config.allow.end())
      config.allow.push_back(std::move(name));
  }
}

void set_reports(RunConfig& config, const Key& key, const ConfigNode& node) {
  const std::vector<std::string_view> known = words(key.choices), refused = words(key.refused);
  std::vector<std::string> names;
  if (node.kind == ConfigNode::Kind::list && node.items.empty()) names.emplace_back("none");
  if (names.empty()) names = to_names(node, "report_to", "report_to=tensorboard");
  for (const std::string& name : names) {
    const std::string expected = fmt::format("report_to as {}", fmt::join(known, ", "));
    const std::string found = fmt::format("\"{}\" ({})", name, node.where);
    if (std::find(refused.begin(), refused.end(), name) != refused.end())
      fail(ErrorCode::unsupported, expected, found + ": metrics go to files only",
           "report_to=tensorboard, whose event files others import");
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::usage, expected, found, suggestion(name, known, "report_to=tensorboard"));
    if (names.size() > 1 && (name == "all" || name == "none"))
      fail(ErrorCode::usage, "report_to: all or none alone, or a list of the others", found,
           fmt::format("report_to={}", name));
  }
  config.report_to = names;
}

void set_model(RunConfig& config, const ConfigNode& node) {
  config.model.clear();
  config.model_config_json.clear();
  if (node.kind == ConfigNode::Kind::scalar) {
    config.model = node.text;
    return;
  }
  if (node.kind != ConfigNode::Kind::map || node.entries.empty())
    fail(ErrorCode::usage, "model as a name, a folder or a map of its config keys", node.describe(),
         "model='{type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}'");
  ConfigNode map = node;
  for (size_t i = 0; i < map.entries.size(); ++i) {
    if (map.entries[i].key != "base") continue;
    config.model = to_text(map.entries[i].value, "model.base", "model.base=gpt2");
    map.entries.erase(map.entries.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  if (!map.entries.empty()) config.model_config_json = model_json(map);
}

std::string example_of(const Key& key) {
  return fmt::format("{}={}", key.name, key.example);
}

void set_field(RunConfig& config, const Key& key, std::string_view written,
               const ConfigNode& node) {
  const std::string example = example_of(key);
  switch (key.kind) {
    case KeyKind::text:
      config.*std::get<std::string RunConfig::*>(key.field) = to_text(node, written, example);
      return;
    case KeyKind::texts:
      config.*std::get<std::vector<std::string> RunConfig::*>(key.field) =
          to_texts(node, written, example);
      return;
    case KeyKind::integer:
      if (node.kind == ConfigNode::Kind::scalar && node.text == "epoch" && counts_epochs(key)) {
        config.*std::get<int64_t RunConfig::*>(key.field) = kEachEpoch;
        return;
      }
      config.*std::get<int64_t RunConfig::*>(key.field) =
          to_integer(node, written, key.range, example);
      return;
    case KeyKind::number:
      config.*std::get<double RunConfig::*>(key.field) =
          to_number(node, written, key.range, example);
      return;
    case KeyKind::flag:
      config.*std::get<bool RunConfig::*>(key.field) = to_flag(node, written, example);
      return;
    case KeyKind::choice: {
      // How states rest is said behind a choice, and where before it.
      if (key.name == "optim" && node.kind == ConfigNode::Kind::scalar &&
          find_optimizer(node.text) != nullptr) {
        config.optim = node.text;
        return;
      }
      if (key.name == "init_lora_weights" && node.kind == ConfigNode::Kind::scalar &&
          node.text.starts_with("pissa_niter_")) {
        if (pissa_rounds(node.text) == 0)
          fail(ErrorCode::usage, "init_lora_weights as pissa_niter_N, N from 1 to 1000",
               node.describe(), "init_lora_weights=pissa_niter_4");
        config.init_lora_weights = node.text;
        return;
      }
      const bool own = key.refused_reason != nullptr && node.kind == ConfigNode::Kind::scalar;
      const std::string_view why = own ? key.refused_reason(node.text) : key.refused_why;
      const bool instead = key.refused_instead != nullptr && own;
      std::string_view advice = instead ? key.refused_instead(node.text) : "";
      if (advice.empty()) advice = key.refused_advice;
      config.*std::get<std::string RunConfig::*>(key.field) =
          to_choice(node, written, words(key.choices), {words(key.refused), why, advice});
      return;
    }
    case KeyKind::bytes: {
      const bool none =
          key.range.min == 0 && node.kind == ConfigNode::Kind::scalar && node.text == "0";
      config.*std::get<int64_t RunConfig::*>(key.field) = none ? 0 : to_bytes(node, written);
      return;
    }
    case KeyKind::seconds:
      config.*std::get<double RunConfig::*>(key.field) = to_seconds(node, written);
      return;
    case KeyKind::model:
      return set_model(config, node);
    case KeyKind::resume:
      return set_resume(config, node);
    case KeyKind::precision:
      return set_precision(config, written, node);
    case KeyKind::policies:
      return set_policies(config, key, written, node);
    case KeyKind::permissions:
      return set_permissions(config, node);
    case KeyKind::reports:
      return set_reports(config, key, node);
    case KeyKind::groups:
      config.*std::get<std::string RunConfig::*>(key.field) = groups_text(parse_groups(node));
      return;
    case KeyKind::patterns:
      config.*std::get<std::string RunConfig::*>(key.field) =
          patterns_text(parse_patterns(key, node));
      return;
    case KeyKind::kwargs:
      break;  // spread over other keys by the loader
  }
  require(false, "a key with a field");
}

// Names other trainers give to a value of ours.
void translate(const Key& key, ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::scalar) return;
  const std::string_view text = node.text;
  if (key.name == "optim")
    if (const OptimName name = optim_name(text); name.facts != nullptr)
      node.text = (name.paged ? "paged_" : "") + name.text() +
                  (name.says_state && name.state == StateForm::f32 ? "_32bit" : "");
  if (key.name == "lr_scheduler_type" && (text == "wsd" || text == "warmup-stable-decay"))
    node.text = "warmup_stable_decay";
  if (key.name == "lr_scheduler_type" && text == "cosine_with_min_lr") node.text = "cosine";
  if (key.name == "metric_for_best_model" && !text.starts_with("eval_"))
    for (const std::string_view choice : words(key.choices))
      if (choice.substr(5) == text) {
        node.text = choice;
        return;
      }
  if (key.name == "save_dtype" && text == "float32") node.text = "fp32";
  if (key.name == "save_dtype" && text == "bfloat16") node.text = "bf16";
}

}  // namespace

void reset_key(RunConfig& config, const Key& key) {
  const RunConfig fresh;
  if (key.kind == KeyKind::model) config.model_config_json.clear();
  std::visit(
      [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), std::monostate>)
          config.*member = fresh.*member;
      },
      key.field);
  config.origins.erase(std::string(key.name));
}

void set_key(RunConfig& config, const Key& key, std::string_view written, const ConfigNode& node) {
  const bool unset =
      node.kind == ConfigNode::Kind::null ||
      (node.kind == ConfigNode::Kind::scalar && !node.quoted && node.text == "auto" &&
       key.kind != KeyKind::text && key.kind != KeyKind::texts && key.kind != KeyKind::model) ||
      (key.kind == KeyKind::texts && node.kind == ConfigNode::Kind::list && node.items.empty());
  const bool left_out = node.kind == ConfigNode::Kind::null || listed(key.none, node);
  if (left_out || (unset && !key.unset.empty())) {
    reset_key(config, key);
    return;
  }
  ConfigNode translated = node;
  translate(key, translated);
  set_field(config, key, written, translated);
  config.origins[std::string(key.name)] = node.where;
}

}  // namespace snug
