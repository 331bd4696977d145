// The table of adapter methods: how PEFT calls one, which fields of adapter_config.json and keys of a run
// it has, and what it is to a layer. One more is a file with a row, and its line in kinds.cpp; readers
// and writers of folders, checks of keys, merging, optimizers and reports go by the table.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/adapters/config.h"
#include "layers/adapters/targets.h"
#include "layers/parts/adapter.h"

namespace snug {

// A key of a run's configuration, as help and checks have it (tools/config/keys.h).
struct AdapterKey {
  std::string_view doc = "", example = "";
  std::string_view unset =
      "";  // "auto" where the default is the method's or its model's; "null" of a text
  std::string_view aliases = "", choices = "", refused = "";  // separated by spaces
  double least = -1e300, most = 1e300;
  bool above_least = false, below_most = false;  // that is no value itself
};

using AdapterValue = std::variant<int64_t AdapterFields::*, double AdapterFields::*,
                                  bool AdapterFields::*, std::string AdapterFields::*>;

// A field of adapter_config.json that a method has beside those of all. Its default is a PeftConfig's of
// the method (AdapterMethod::fresh).
struct AdapterField {
  std::string_view key;            // there
  std::string_view run_key;        // of a run's configuration; empty: none
  AdapterValue value;              // the same wherever run_key is
  double least = 0, below = 1e12;  // of a number
  // Of a text: what it may be, separated by spaces, the default first; what else; and what to do where a
  // folder says something else.
  std::string_view words = "";
  std::string_view also_text = "";
  bool (*also)(std::string_view) = nullptr;
  std::string_view advice = "";
  AdapterKey said = {};  // in the first row that has run_key
  bool fits(std::string_view word) const;
};

// What a key asks of others: expected, the key that is found, words behind it, and what to do.
struct AdapterComplaint {
  std::string expected;
  std::string_view run_key;
  std::string_view found = "";
  std::string advice;
};

struct AdapterMethod {
  std::string_view name;   // PeftConfig::method, and of the key `peft` unless other words say it
  std::string_view words;  // of the key `peft`, separated by spaces
  std::string_view type;   // peft_type
  std::string_view title;  // LoRA
  std::string_view doc;    // of the key `peft`: what it trains
  std::vector<AdapterField> fields;
  // Fields that several have and that are no one value, which read_adapter_config() knows:
  // target_modules exclude_modules modules_to_save feedforward_modules layers_to_transform rank_pattern
  // alpha_pattern bias fan_in_fan_out.
  std::string_view shared;
  std::string_view bias_only = "lora_only";  // what `bias` says of modules with adapters alone
  // Fields that say nothing of a trained adapter's mathematics, and such as are not built.
  std::string_view indifferent = "", refused = "";
  std::vector<std::pair<const char*, const char*>> constants =
      {};                                      // written with these values (JSON)
  std::vector<std::string_view> markers = {};  // in the names of its parameters and of no others
  PeftConfig fresh = {};                       // the defaults of PEFT
  // Which modules have one without target_modules; and of them those that scale what they read, of a method
  // with feedforward_modules and without these.
  TargetChoice targets = queries_and_values, inputs = nullptr;
  bool ranked = true;           // has a rank, at most...
  bool square = true;           // ... the smaller width of its module; else what it reads
  bool bounded = true;          // else of any size
  bool tables = false;          // may be of a table of embeddings too
  bool of_peft = true;          // PEFT has it; else its folders are Snug's alone
  std::string_view apart = "";  // why no weight takes it up; empty: one does
  bool front = false;           // of no module: virtual tokens in front of every sequence,...
  bool front_keys = false;      // ... which are keys and values of every layer
  // Whether these are made by an encoder in training, of whose parameters PEFT's files have none.
  bool (*encodes)(const PeftConfig& config) = nullptr;
  const AdapterKind& (*kind)(const PeftConfig& config) = nullptr;
  // Of a module, whose rank and alpha are known (rank_pattern, alpha_pattern): its piece and what of its
  // layer's adapter it says.
  void (*settle)(const PeftConfig& config, double alpha, AdapterPiece& piece,
                 LinearAdapter& adapter) = nullptr;
  std::string (*text)(const PeftConfig& config) = nullptr;  // the first words of peft_text()
  // What its keys ask of each other.
  std::vector<AdapterComplaint> (*check)(const AdapterFields& fields) = nullptr;

  bool has(std::string_view shared_field) const;
  bool takes(std::string_view run_key) const;
};

// In the order of the documentation.
std::span<const AdapterMethod* const> adapter_methods();
// By name; it is there.
const AdapterMethod& adapter_method(std::string_view name);
// By peft_type or by a word of the key `peft`; null if unknown.
const AdapterMethod* find_peft_type(std::string_view type);
const AdapterMethod* find_peft_word(std::string_view word);
// Whether a parameter is an adapter's.
bool is_adapter_name(std::string_view param);
// Of these, one of all layers together, which no file holds.
bool is_shared_adapter_name(std::string_view param);
// Virtual tokens in front of every sequence.
int64_t virtual_tokens(const PeftConfig& config);
// Its words as a sentence has them: a, b or c.
std::string word_list(std::string_view list);

}  // namespace snug
