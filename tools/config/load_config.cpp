#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/files.h"
#include "engine/io/text_reader.h"
#include "optim/settings.h"
#include "tools/config/check_config.h"
#include "tools/config/complaints.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"

namespace snug {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;

// One key as it was given.
struct Setting {
  const Key* key = nullptr;
  std::string written, where;
  ConfigNode value;
  std::string below;  // "model.n_layer=6" if the command line gave a part of the value last
};

// A key that only other trainers know, as it was given: a strategy, or one without a meaning here.
struct Foreign {
  const StrategyKey* strategy = nullptr;
  const ForeignKey* foreign = nullptr;
  std::string written, where;
  ConfigNode value;
};

[[noreturn]] void unknown_key(std::string_view name, const std::string& where) {
  const std::string found = fmt::format("\"{}\" ({})", name, where);
  if (const ForeignKey* const foreign = find_foreign_key(name))
    fail(ErrorCode::unsupported, "a configuration key that has a meaning here", found,
         fmt::format("leave it out: {}", foreign->why));
  std::vector<std::string_view> known;
  for (const Key& key : config_keys()) {
    known.push_back(key.name);
    for (const std::string_view alias : words(key.aliases)) known.push_back(alias);
  }
  if (const std::string_view here = word_here(name); !here.empty())
    fail(ErrorCode::usage, "a known configuration key", found, std::string(here));
  fail(ErrorCode::usage, "a known configuration key", found,
       suggestion(name, known, "snug train --help lists the keys"));
}

const Key& known_key(std::string_view name, const std::string& where) {
  if (const Key* key = find_key(name)) return *key;
  unknown_key(name, where);
}

// fp16: false and the like ask for nothing, unless they take back what was asked for before.
bool asks_for_nothing(const Setting& setting, const std::vector<Setting>& before) {
  const bool off = setting.value.kind == ConfigNode::Kind::null ||
                   (!setting.value.quoted && listed("false", setting.value));
  if (!off || (setting.written != "bf16" && setting.written != "fp16" &&
               setting.written != "tf32" && setting.written != "activation_checkpointing"))
    return false;
  for (const Setting& other : before)
    if (other.key == setting.key &&
        (other.written == setting.written || other.value.text == setting.written ||
         other.value.text == (setting.written == "bf16" ? "bfloat16" : "float16")))
      return false;
  return true;
}

// What is no key=value.
[[noreturn]] void refuse_word(const std::string& text) {
  const std::string said = fmt::format("\"{}\" ({})", text, kCommandLine);
  std::error_code error;
  if (const Key* key = find_key(text.substr(0, text.find('.'))))
    fail(ErrorCode::usage, "key=value", said + ", a key without a value",
         text.find('.') == std::string::npos ? fmt::format("{}={}", text, key->example)
                                             : text + "=VALUE");
  if (std::filesystem::is_regular_file(text, error))
    fail(ErrorCode::usage, "key=value", said + ", a file", "--config " + text);
  fail(ErrorCode::usage, "key=value", said, "for example memory=8GiB or model.n_layer=6");
}

class Settings {
 public:
  explicit Settings(Complaints& complaints) : complaints_(complaints) {}

  void read_file(const ConfigNode& root) {
    if (root.kind == ConfigNode::Kind::null) return;
    if (root.kind != ConfigNode::Kind::map)
      fail(ErrorCode::usage, "a configuration of keys and values", root.describe(),
           "write lines such as max_steps: 1000");
    for (const ConfigNode::Entry& entry : root.entries)
      complaints_.of([&] { give({nullptr, entry.key, entry.where, entry.value, {}}, true); });
  }

  void override_with(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) refuse_word(text);
    std::string name = text.substr(0, equals);
    const size_t dot = name.find('.');
    const std::string below = dot == std::string::npos ? "" : name.substr(dot + 1);
    const std::string whole = name;
    name.resize(std::min(dot, name.size()));
    const std::string value = text.substr(equals + 1);
    if (Foreign foreign = find_foreign(whole, kCommandLine); foreign.strategy || foreign.foreign) {
      foreign.value = parse_config_node(value, kCommandLine, false);
      set_aside(std::move(foreign), false);
      return;
    }
    const Key& key = known_key(name, kCommandLine);
    Setting setting{&key, name, kCommandLine, {}, dot == std::string::npos ? "" : text};
    setting.value =
        dot == std::string::npos ? parse_value(key, value) : nested(key, name, below, value);
    give(std::move(setting), false);
  }

  const std::vector<Setting>& all() const { return settings_; }

  // Of what was given last: a value that asks for something which is not there is refused.
  void refuse_foreign() {
    for (const Foreign& given : foreign_) {
      if (given.strategy) continue;
      if (asks_for_nothing(*given.foreign, given.value))
        left_out_.push_back(given.written);
      else
        complaints_.of([&] { unknown_key(given.written, given.where); });
    }
  }

  void apply_strategies(RunConfig& config) {
    for (const Foreign& given : foreign_)
      if (given.strategy && given.value.kind != ConfigNode::Kind::null)
        complaints_.of([&] { apply_strategy(config, given); });
  }

  // How keys were read that ask for nothing here, in a line; empty if there are none.
  std::string left_out() const {
    constexpr size_t kMost = 8;
    if (left_out_.empty()) return "";
    std::vector<std::string> shown(
        left_out_.begin(),
        left_out_.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, left_out_.size())));
    std::string text =
        fmt::format("asks for nothing here and is left out: {}", fmt::join(shown, ", "));
    if (left_out_.size() > kMost) text += fmt::format(" and {} more", left_out_.size() - kMost);
    return text;
  }

 private:
  static Foreign find_foreign(const std::string& name, const std::string& where) {
    return {find_strategy_key(name), find_foreign_key(name), name, where, {}};
  }

  // The last one counts, so that the command line wins over a file.
  void set_aside(Foreign given, bool from_file) {
    for (Foreign& other : foreign_) {
      if (given.strategy ? other.strategy != given.strategy : other.written != given.written)
        continue;
      if (from_file)
        fail(ErrorCode::usage, fmt::format("{} once", other.written),
             fmt::format("{} ({}) and {} ({})", other.written, other.where, given.written,
                         given.where),
             "remove one of them");
      other = std::move(given);
      return;
    }
    foreign_.push_back(std::move(given));
  }

  // "no" is the 0 of the strategy's key, whatever default of other trainers stands beside it;
  // "steps" asks for what the key counts.
  void apply_strategy(RunConfig& config, const Foreign& given) {
    const StrategyKey& row = *given.strategy;
    const Key& key = *find_key(row.key);
    using Words = std::vector<std::string_view>;
    const bool epochs = row.key != "logging_steps";
    const std::string asked = to_choice(
        given.value, given.written, epochs ? Words{"no", "steps", "epoch"} : Words{"no", "steps"},
        {epochs ? Words{"best"} : Words{"epoch", "best"},
         "which is not built: what is due comes by steps", std::string_view(row.advice)});
    const bool off = asked == "no", by_epoch = asked == "epoch";
    const std::string_view said = off ? "0" : "epoch";
    const std::vector<std::string_view> needs = words(row.needs);
    if (!off && !needs.empty() &&
        std::all_of(needs.begin(), needs.end(),
                    [&](std::string_view name) { return is_idle(config, *find_key(name)); }))
      fail(ErrorCode::usage,
           fmt::format("{}: {} only with one of {}", given.written, asked, fmt::join(needs, ", ")),
           fmt::format("{} ({})", asked, given.where), fmt::format("leave {} out", given.written));
    const bool key_wins = config.where(key.name) == kCommandLine && given.where != kCommandLine;
    const bool sets = (off || by_epoch) && !key_wins;
    if (!by_epoch || !sets)
      left_out_.push_back(
          fmt::format("{} ({}{} says when)", given.written, key.name, sets ? ": 0" : ""));
    if (!sets) return;
    ConfigNode value;
    value.kind = ConfigNode::Kind::scalar;
    value.text = print_value(config, key);
    const bool wins = given.where == kCommandLine && config.where(key.name) != kCommandLine;
    if (config.is_set(key.name) && !wins && !listed("0 500", value))
      fail(ErrorCode::usage, fmt::format("{}: {} without {}", given.written, asked, key.name),
           fmt::format("{} ({}) and {}: {} ({})", asked, given.where, key.name, value.text,
                       config.where(key.name)),
           "leave one of them out");
    value.text = said;
    value.where = given.where;
    set_key(config, key, key.name, value);
  }

  // Text for keys of text is taken as it is, so that prompts need no second quotes.
  static ConfigNode parse_value(const Key& key, const std::string& text) {
    const bool verbatim = (key.kind == KeyKind::text || key.kind == KeyKind::texts) &&
                          !text.empty() && text != "null" && text[0] != '"' && text[0] != '\'' &&
                          !(key.kind == KeyKind::texts && text[0] == '[');
    if (!verbatim) return parse_config_node(text, kCommandLine, false);
    ConfigNode node;
    node.kind = ConfigNode::Kind::scalar;
    node.text = text;
    node.where = kCommandLine;
    return node;
  }

  // The value of `key` with the one at path `below` replaced.
  ConfigNode nested(const Key& key, const std::string& name, const std::string& below,
                    const std::string& text) const {
    if (key.kind != KeyKind::model && key.kind != KeyKind::policies && key.kind != KeyKind::kwargs)
      fail(ErrorCode::usage, fmt::format("{} without a dot, since it holds no map", name),
           fmt::format("\"{}.{}\" ({})", name, below, kCommandLine),
           fmt::format("{}={}", key.name, key.example));
    ConfigNode root;
    for (const Setting& setting : settings_) {
      if (setting.key == &key) root = setting.value;
    }
    root.where = kCommandLine;
    constexpr int64_t kMostDots = 8;  // no model has more levels, and a file of them could be read
    if (std::count(below.begin(), below.end(), '.') >= kMostDots)
      fail(ErrorCode::usage, fmt::format("at most {} dots before the =", kMostDots),
           fmt::format("more in \"{}.{}...\" ({})", name, text_beginning(below, 40), kCommandLine),
           "for example model.n_layer=6");
    if (root.kind == ConfigNode::Kind::scalar && key.kind == KeyKind::model) {
      ConfigNode named = root;
      root = ConfigNode();
      root.entries.push_back({"base", named.where, named});
    } else if (root.kind != ConfigNode::Kind::map) {
      root.entries.clear();
    }
    root.kind = ConfigNode::Kind::map;
    root.where = kCommandLine;
    if (below.empty() || below.front() == '.' || below.back() == '.' ||
        below.find("..") != std::string::npos)
      fail(ErrorCode::usage, "a name on both sides of each dot",
           fmt::format("\"{}.{}\" ({})", name, below, kCommandLine), "for example model.n_layer=6");
    put(root, below, parse_config_node(text, kCommandLine, false));
    return root;
  }

  static void put(ConfigNode& map, const std::string& path, ConfigNode value) {
    const size_t dot = path.find('.');
    const std::string name = path.substr(0, dot);
    ConfigNode* member = map.find(name);
    if (!member && name == "type") member = map.find("model_type");
    if (!member && name == "model_type") member = map.find("type");
    if (!member) {
      ConfigNode empty;
      empty.where = kCommandLine;
      map.entries.push_back({name, kCommandLine, empty});
      member = &map.entries.back().value;
    }
    if (dot == std::string::npos) {
      *member = std::move(value);
      return;
    }
    if (member->kind != ConfigNode::Kind::map) {
      member->items.clear();
      member->kind = ConfigNode::Kind::map;
    }
    put(*member, path.substr(dot + 1), std::move(value));
  }

  void give(Setting setting, bool from_file) {
    if (Foreign foreign = find_foreign(setting.written, setting.where);
        !setting.key && (foreign.strategy || foreign.foreign)) {
      foreign.value = std::move(setting.value);
      set_aside(std::move(foreign), from_file);
      return;
    }
    if (!setting.key) setting.key = &known_key(setting.written, setting.where);
    if (asks_for_nothing(setting, settings_)) return;
    if (setting.key->kind == KeyKind::kwargs) {
      spread(setting, from_file);
      return;
    }
    for (Setting& other : settings_) {
      if (other.key != setting.key) continue;
      const bool parts = !other.below.empty() || !setting.below.empty();
      if (from_file || (other.where == kCommandLine && other.written != setting.written && !parts))
        fail(ErrorCode::usage, fmt::format("{} once", setting.key->name),
             fmt::format("{} ({}) and {} ({})", other.written, other.where, setting.written,
                         setting.where),
             "remove one of them");
      if (!other.below.empty() && setting.below.empty())
        fail(ErrorCode::usage, fmt::format("{} before what replaces a part of it", setting.written),
             fmt::format("{} behind {} ({}), which it would drop", setting.written, other.below,
                         setting.where),
             fmt::format("{}=... first, then {}", setting.written, other.below));
      other = std::move(setting);
      return;
    }
    settings_.push_back(std::move(setting));
  }

  // lr_scheduler_kwargs: its members are keys of their own under the names PyTorch users know.
  void spread(const Setting& setting, bool from_file) {
    const ConfigNode& map = setting.value;
    if (map.kind == ConfigNode::Kind::null) return;
    const std::vector<std::string_view> members = {
        "min_lr",     "min_lr_rate", "num_warmup_steps", "num_decay_steps", "decay_type",
        "num_cycles", "power",       "timescale"};
    const std::vector<std::string_view> meant = {"min_lr",         "min_lr_ratio",  "warmup_steps",
                                                 "lr_decay_steps", "lr_decay_type", "lr_num_cycles",
                                                 "lr_power",       "lr_timescale"};
    if (map.kind != ConfigNode::Kind::map)
      fail(ErrorCode::usage, "a map for lr_scheduler_kwargs", map.describe(),
           "lr_scheduler_kwargs='{min_lr_rate: 0.1}'");
    for (const ConfigNode::Entry& entry : map.entries) {
      const auto member = std::find(members.begin(), members.end(), entry.key);
      if (member == members.end())
        fail(ErrorCode::usage,
             fmt::format("lr_scheduler_kwargs with names among {}", fmt::join(members, ", ")),
             fmt::format("\"{}\" ({})", entry.key, entry.where),
             suggestion(entry.key, members, "leave it out"));
      const std::string_view name = meant[static_cast<size_t>(member - members.begin())];
      give({find_key(name), "lr_scheduler_kwargs." + entry.key, entry.where, entry.value, {}},
           from_file);
    }
  }

  Complaints& complaints_;
  std::vector<Setting> settings_;
  std::vector<std::string> left_out_;
  std::vector<Foreign> foreign_;
};

// Of two keys that exclude each other, one given on the command line wins over one of the file, so
// that resume=latest works with the file of a run that was started with overwrite: true.
void prefer_command_line(RunConfig& config) {
  constexpr std::string_view kPairs[][2] = {{"resume", "overwrite"},
                                            {"eval_data", "eval_fraction"},
                                            {"warmup_steps", "warmup_ratio"},
                                            {"min_lr", "min_lr_ratio"},
                                            {"global_batch_size", "global_batch_tokens"}};
  for (const auto& pair : kPairs) {
    const Key& a = *find_key(pair[0]);
    const Key& b = *find_key(pair[1]);
    if (!config.is_set(a.name) || !config.is_set(b.name)) continue;
    const bool a_wins = config.where(a.name) == kCommandLine;
    const bool b_wins = config.where(b.name) == kCommandLine;
    if (a_wins == b_wins) {
      // Side by side, what asks for nothing is no contradiction: warmup_steps: 0 and a
      // warmup_ratio.
      const bool a_idle = is_idle(config, a);
      if (a_idle != is_idle(config, b)) reset_key(config, a_idle ? a : b);
      continue;
    }
    // overwrite=false asks for nothing, so it takes nothing back.
    const Key& winner = a_wins ? a : b;
    if (print_value(config, winner) == print_default(winner)) continue;
    reset_key(config, a_wins ? b : a);
  }
}

// What peft: qlora and dora mean, and the other name of precision.
void settle_adapter_words(RunConfig& c, Complaints& complaints) {
  const bool qlora = c.peft == "qlora";
  if (qlora && c.is_set("load_in_4bit") && !c.load_in_4bit && !c.load_in_8bit)
    complaints.add(ErrorCode::usage, "load_in_4bit: true with peft: qlora, or none of the two",
                   fmt::format("load_in_4bit: false ({})", c.where("load_in_4bit")), "peft=lora");
  // What the word means is in the configuration that a run goes on with.
  c.load_in_4bit = c.load_in_4bit || (qlora && !c.load_in_8bit);
  c.use_dora = c.use_dora || (c.peft == "dora" && !c.is_set("use_dora"));
  if (qlora && c.load_in_8bit && !c.is_set("precision")) c.precision = "bf16";
  if (!c.load_in_4bit) return;
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
  if (c.bnb_4bit_compute_dtype == "auto") {
    if (qlora && !c.is_set("precision")) c.precision = "bf16";
    return;
  }
  for (const auto& [theirs, ours] : kTypes) {
    if (c.bnb_4bit_compute_dtype != theirs) continue;
    if (c.is_set("precision") && c.precision != ours)
      complaints.add(ErrorCode::usage,
                     fmt::format("precision: {}, as bnb_4bit_compute_dtype: {} says", ours, theirs),
                     fmt::format("precision: {} ({})", c.precision, c.where("precision")),
                     "leave one of the two out");
    c.precision = ours;
  }
}

// A shell leaves ~ alone behind an equals sign and in a file.
void expand_home(std::string& path) {
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0' && (path == "~" || path.starts_with("~/")))
    path = home + path.substr(1);
}

void expand_homes(RunConfig& c) {
  for (std::string* path : {&c.model, &c.adapter, &c.tokenizer, &c.chat_template, &c.token_cache,
                            &c.output_dir, &c.resume, &c.plan, &c.target})
    expand_home(*path);
  for (auto* list : {&c.train_data, &c.eval_data})
    for (std::string& path : *list) expand_home(path);
}

// All of it, up to what a file of keys may have.
std::string standard_input() {
  std::string text;
  char piece[4096];
  for (size_t n = 1; n > 0 && static_cast<int64_t>(text.size()) <= kMaxFileBytes;) {
    n = std::fread(piece, 1, sizeof piece, stdin);
    text.append(piece, n);
  }
  return text;
}

RunConfig load(const ConfigNode* file, const std::vector<std::string>& overrides) {
  Complaints complaints;
  Settings settings(complaints);
  if (file) settings.read_file(*file);
  for (const std::string& text : overrides) complaints.of([&] { settings.override_with(text); });
  settings.refuse_foreign();
  RunConfig config;
  std::vector<std::string_view> refused;
  for (const Setting& setting : settings.all()) {
    bool good = false;
    complaints.of([&] {
      set_key(config, *setting.key, setting.written, setting.value);
      good = true;
    });
    if (!good) refused.push_back(setting.key->name);
  }
  // Only then: what is wrong with a value is said whatever else it names.
  for (const std::string_view name : refused) complaints.distrust(name);
  expand_homes(config);
  settings.apply_strategies(config);
  if (std::string note = settings.left_out(); !note.empty())
    config.notes.push_back(std::move(note));
  prefer_command_line(config);
  if (config.max_steps == 0 && config.num_train_epochs == 0 && config.max_time == 0)
    config.num_train_epochs = 1;
  if (const OptimFacts* facts = find_optimizer(config.optim)) {
    const OptimDefaults& own = facts->defaults;
    if (own.learning_rate > 0 && !config.is_set("learning_rate"))
      config.learning_rate = own.learning_rate;
    if (own.adam_beta2 > 0 && !config.is_set("adam_beta2")) config.adam_beta2 = own.adam_beta2;
    if (facts->keeps_others && !config.is_set("lr_scheduler_type"))
      config.lr_scheduler_type = "constant";
  }
  // No more is kept of them.
  if (allows(config, "no_master") && !config.is_set("save_dtype")) config.save_dtype = "bf16";
  settle_adapter_words(config, complaints);
  check_config(config, complaints);
  complaints.raise();
  return config;
}

}  // namespace

RunConfig load_config_text(const std::string& text, const std::string& origin,
                           const std::vector<std::string>& overrides) {
  const ConfigNode root = parse_config_node(text, origin);
  return load(&root, overrides);
}

RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  if (path.empty()) return load(nullptr, overrides);
  if (path == "-") {
    const RunConfig config = load_config_text(standard_input(), "standard input", overrides);
    if (config.ranks > 1)
      fail(ErrorCode::usage, "a configuration in a file, which each of several ranks reads",
           "--config -", "--config FILE");
    return config;
  }
  return load_config_text(read_file(path, kMaxFileBytes), path, overrides);
}

}  // namespace snug
