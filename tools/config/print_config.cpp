#include <fmt/format.h>

#include "engine/core/error.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/model_json.h"
#include "tools/config/values.h"

namespace snug {
namespace {

// YAML reads 5e-05 as text in many readers; with a point it is a number in all of them.
std::string print_number(double value) {
  std::string text = fmt::format("{}", value);
  if (const size_t e = text.find('e');
      e != std::string::npos && text.find('.') == std::string::npos)
    text.insert(e, ".0");
  return text;
}

std::string print_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += (list.empty() ? "" : ", ") + yaml_text(text);
  return "[" + list + "]";
}

// `text` broken into lines that start with `indent`.
std::string wrap(std::string_view text, const std::string& indent, size_t columns) {
  std::string out, line;
  for (const std::string_view word : words(text)) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > columns) {
      out += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  return out + indent + line + "\n";
}

// Whether a default is a value that somebody may set, as lora_r's 8 is, and none that stands for "not set".
template <class T>
bool may_be_set(const Key& key, const T& value) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
    return key.range.min <= static_cast<double>(value) &&
           static_cast<double>(value) <= key.range.max && key.section == "adapters";
  return false;
}

// `said`: the user set it.
std::string print(const RunConfig& config, const Key& key, bool said) {
  if (key.kind == KeyKind::kwargs) return std::string(key.unset);
  // The limit that load_config gives a run without one is no wish of the user.
  if (key.name == "num_train_epochs" && !said) return std::string(key.unset);
  if (key.kind == KeyKind::model && !config.model_config_json.empty())
    return model_yaml(config.model_config_json, config.model);
  return std::visit(
      [&](auto member) -> std::string {
        using M = decltype(member);
        if constexpr (std::is_same_v<M, std::monostate>) {
          return std::string(key.unset);
        } else {
          const auto& value = config.*member;
          if (!key.unset.empty() && value == RunConfig().*member &&
              !(said && may_be_set(key, value)))
            return std::string(key.unset);
          if constexpr (std::is_same_v<M, std::string RunConfig::*>) {
            if (key.kind == KeyKind::resume && value.empty()) return "null";
            if (key.kind == KeyKind::policies && value.find(':') != std::string::npos)
              return "{" + value + "}";
            // These words are the values, not texts that look like them.
            return key.kind == KeyKind::text || key.kind == KeyKind::model ||
                           key.kind == KeyKind::resume
                       ? yaml_text(value)
                       : value;
          } else if constexpr (std::is_same_v<M, std::vector<std::string> RunConfig::*>) {
            return print_list(value);
          } else if constexpr (std::is_same_v<M, bool RunConfig::*>) {
            return value ? "true" : "false";
          } else if constexpr (std::is_same_v<M, double RunConfig::*>) {
            return key.kind == KeyKind::seconds ? print_number(value) + "s" : print_number(value);
          } else {
            if (counts_epochs(key) && value == kEachEpoch) return "epoch";
            return key.kind == KeyKind::bytes ? yaml_bytes(value) : fmt::format("{}", value);
          }
        }
      },
      key.field);
}

}  // namespace

bool counts_epochs(const Key& key) {
  return key.name == "eval_steps" || key.name == "save_steps";
}

std::string print_value(const RunConfig& config, const Key& key) {
  return print(config, key, config.is_set(key.name));
}

std::string print_default(const Key& key) {
  return print_value(RunConfig(), key);
}

std::string resolved_yaml(const RunConfig& config) {
  std::string text = "# The configuration of this run, every key of it.\n";
  std::string_view section;
  for (const Key& key : config_keys()) {
    if (key.kind == KeyKind::kwargs) continue;  // its members are keys of their own
    if (key.section != section) text += fmt::format("\n# {}\n", key.section);
    section = key.section;
    text += fmt::format("{}: {}\n", key.name, print_value(config, key));
  }
  return text;
}

std::string config_help(size_t columns) {
  // What a first run sets; the order in which one thinks of them.
  constexpr std::string_view kFirst =
      "model train_data tokenizer output_dir memory max_steps max_length global_batch_size "
      "learning_rate precision";
  const std::string indent(columns < 60 ? 4 : 6, ' ');
  const auto below = [&](std::string_view text) { return wrap(text, indent, columns); };
  const auto head = [&](const std::string& line) {
    return line.size() + 2 > columns ? wrap(line, "  ", columns) : "  " + line + "\n";
  };
  std::string text = wrap("ten that most runs set (the sections below say more)", "", columns);
  text.insert(0, "\n");
  for (const std::string_view name : words(kFirst))
    text += fmt::format("  {}\n", name) + below(find_key(name)->doc);
  text += "\nindex of the sections\n";
  std::string_view section;
  std::string names;
  const auto line = [&] {
    if (!names.empty()) text += fmt::format("  {}\n", section) + below(names);
    names.clear();
  };
  for (const Key& key : config_keys()) {
    if (key.section != section) line();
    section = key.section;
    names += (names.empty() ? "" : ", ") + std::string(key.name);
  }
  line();
  section = "";
  for (const Key& key : config_keys()) {
    if (key.section != section) text += fmt::format("\n{}\n", key.section);
    section = key.section;
    text += head(fmt::format("{}: {}", key.name, print_default(key)));
    text += below(key.doc);
    if (!key.choices.empty()) text += below(fmt::format("one of {}", key.choices));
    if (key.example != print_default(key))
      text += below(fmt::format("for example {}: {}", key.name, key.example));
    if (!key.aliases.empty()) text += below(fmt::format("also {}", key.aliases));
  }
  text += "\npermissions of allow\n";
  for (const Permission& permission : permissions())
    if (permission.built) text += head(fmt::format("{}: {}", permission.name, permission.doc));
  return text;
}

bool is_idle(const RunConfig& config, const Key& key) {
  ConfigNode value;
  value.kind = ConfigNode::Kind::scalar;
  value.text = print(config, key, key.name == "num_train_epochs" && config.is_set(key.name));
  return value.text == print_default(key) || listed(key.idle, value);
}

}  // namespace snug
