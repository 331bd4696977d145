// The table of configuration keys: the one place that says how a key is called, what it accepts and
// means. Parsing, help and the resolved file are driven by it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/config/config_node.h"
#include "tools/config/run_config.h"
#include "tools/config/values.h"

namespace snug {

enum class KeyKind {
  text,
  texts,  // one or a list
  integer,
  number,
  flag,
  choice,       // one of `choices`
  bytes,        // 4GiB
  seconds,      // 2m
  model,        // a name, a folder or a map of Hugging Face config keys
  resume,       // latest, true or a path
  precision,    // a preset; written as bf16: true too
  policies,     // a policy for the slots of a block, or a map of layers to policies
  permissions,  // a list of names
  reports,      // the same, of report_to
  groups,       // a list of maps, of param_groups
  patterns,     // a map of regular expressions to numbers (patterns.h)
  kwargs        // a map whose entries are other keys
};

using KeyField =
    std::variant<std::monostate, std::string RunConfig::*, int64_t RunConfig::*,
                 double RunConfig::*, bool RunConfig::*, std::vector<std::string> RunConfig::*>;

struct Key {
  std::string_view name;
  std::string_view section;
  KeyKind kind;
  KeyField field;
  std::string_view doc;      // one line or two
  std::string_view example;  // a value other than the default
  // How "not set" is written: "auto" or "null"; empty if the key always has a value. Both words are
  // read for every key that has one.
  std::string_view unset = "";
  // Values that other trainers write for "not set", separated by spaces; they are read as it.
  std::string_view none = "";
  // Values that ask for nothing where the key has no meaning, separated by spaces: defaults of
  // other trainers, which files of theirs spell out. The default here is always one.
  std::string_view idle = "";
  Range range = {};
  std::string_view aliases = "";  // other names, separated by spaces
  std::string_view choices = "";  // of KeyKind::choice
  std::string_view refused = "";  // known elsewhere and not built here
  // Why, and what to do: what stands behind a refused choice.
  std::string_view refused_why = "which is not built";
  std::string_view (*refused_reason)(std::string_view value) = nullptr;  // where each has its own
  std::string_view refused_advice = "";                                  // empty: the first choice
  // What to write in place of a refused value, where each has its own; empty: refused_advice.
  std::string_view (*refused_instead)(std::string_view value) = nullptr;
};

// All keys in the order of the documentation; sections are contiguous.
const std::vector<Key>& config_keys();
std::vector<Key> host_keys();  // of them those of host_keys.cpp
// What nanoGPT's and llm.c's options are called here, as advice; "" for other names.
std::string_view word_here(std::string_view name);
// By name or alias; null if unknown.
const Key* find_key(std::string_view name);

// Permissions of `allow`: each names a change of numbers that the run may make.
struct Permission {
  std::string_view name;
  bool built;
  std::string_view doc;
  const char* instead = "leave it out";  // of one that is not built
};
const std::vector<Permission>& permissions();
// Whether `allow` has it.
bool allows(const RunConfig& config, std::string_view permission);
// The key with what is allowed already and these, each once: a list on the command line replaces
// the one of the file, so what is proposed repeats what was given.
std::string allow_text(const std::vector<std::string>& given,
                       std::initializer_list<const char*> more);

// A key that other trainers know and that has no meaning here.
struct ForeignKey {
  std::string_view names;  // separated by spaces
  std::string_view why;    // left out, the run is as this says
  // Values that ask for nothing and are left out with one line, separated by spaces; "*": any.
  // Empty texts, lists and maps and null are always among them. Numbers are compared as numbers.
  std::string_view neutral = "false";
};
// By name; null if it is simply unknown.
const ForeignKey* find_foreign_key(std::string_view name);
bool asks_for_nothing(const ForeignKey& key, const ConfigNode& value);

// A key that says whether another one counts: "no" is its 0, "steps" that it counts.
struct StrategyKey {
  std::string_view names;  // separated by spaces
  std::string_view key;
  std::string_view advice;      // for what is known elsewhere: epoch, best
  std::string_view needs = "";  // keys of which one must ask for something beside "steps"
};
const StrategyKey* find_strategy_key(std::string_view name);

// Whether the key's value asks for nothing where it has no meaning: its default, or one of `idle`.
bool is_idle(const RunConfig& config, const Key& key);

// Reads `node`, written under the name `written`, into the key's field and notes where it was set.
void set_key(RunConfig& config, const Key& key, std::string_view written, const ConfigNode& node);
// The default again, as if the key had never been set.
void reset_key(RunConfig& config, const Key& key);
// Whether the key, a count of steps, takes the word epoch, which is kEachEpoch.
bool counts_epochs(const Key& key);
// The value as YAML, for the resolved file and for help.
std::string print_value(const RunConfig& config, const Key& key);
// The value of a default-made RunConfig.
std::string print_default(const Key& key);

// The help text of all keys, by section: name, default, what it means, example; in lines of so many
// columns, but for words that are longer.
std::string config_help(size_t columns = 100);

}  // namespace snug
