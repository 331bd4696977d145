#include "layers/models/peft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "engine/core/error.h"
#include "engine/core/precision.h"
#include "engine/core/suggest.h"
#include "engine/text/regex.h"
#include "layers/adapters/first_weights.h"
#include "layers/adapters/kinds.h"
#include "layers/models/base_form.h"
#include "layers/models/family.h"
#include "layers/models/front_tokens.h"
#include "layers/models/model.h"

namespace snug {
namespace {

using Module = AdaptableModule;

std::string module_of(std::string_view name) {
  return std::string(name.substr(0, name.rfind('.')));
}

std::vector<Module> linear_modules(const Model& model, const Family& family) {
  std::vector<Module> list;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    // Of blocks, and of heads before their last layer: not what is of no part, embedding and head.
    if (!p.linear || (p.part < 0 && !p.name.view().starts_with("head."))) continue;
    const std::vector<FilePiece> pieces = family.pieces(p, model.spec());
    int64_t row = 0;
    for (size_t k = 0; k < pieces.size(); ++k) {
      Module m{.path = module_of(pieces[k].names.front()),
               .layer = module_of(p.name.view()),
               .number = p.part,
               .piece = {},
               .in = p.shape[1],
               .transposed = p.transposed_in_file};
      m.piece.piece = k;
      m.piece.name = m.last();
      m.piece.row = row;
      m.piece.rows = pieces[k].rows;
      row += pieces[k].rows;
      list.push_back(std::move(m));
    }
  }
  return list;
}

// The table of tokens.
std::vector<Module> embedding_modules(const Model& model, const Family& family) {
  const int i = model.params().find(std::string(family.embedding));
  const ParamInfo& p = model.params()[i];
  const FilePiece piece = family.pieces(p, model.spec()).front();
  Module m{.path = module_of(piece.names.front()),
           .layer = module_of(p.name.view()),
           .number = -1,
           .piece = {},
           .in = p.shape[1],
           .transposed = false,
           .table = true};
  m.piece.name = m.last();
  m.piece.rows = p.rows;
  return {m};
}

bool is_pattern(std::string_view word) {
  return word.find_first_of("*+?()[]{}|^$\\") != std::string_view::npos;
}

// Before a pattern for the end of a path.
constexpr const char* kPathEnd = "(?:.*\\.)?";

// A regular expression for the whole of a path.
class WholePath {
 public:
  WholePath(const char* key, const std::string& pattern, const char* before) {
    try {
      regex_ = std::make_unique<Regex>(fmt::format("\\A{}(?:{})\\z", before, pattern), key);
    } catch (const Error& e) {
      fail(ErrorCode::usage, fmt::format("names or a regular expression of modules as {}", key),
           fmt::format("{} ({})", pattern, e.found()),
           std::string_view(key) == "target_modules" ? "target_modules=all-linear"
                                                     : fmt::format("leave {} out", key));
    }
  }
  bool matches(std::string_view path) {
    size_t begin = 0, end = 0;
    return regex_->find(path, 0, scratch_, begin, end);
  }

 private:
  std::unique_ptr<Regex> regex_;
  RegexScratch scratch_;
};

// Whether a list of names, or the one expression, means a module.
class Targets {
 public:
  Targets(const char* key, const std::vector<std::string>& words, bool expression) : words_(words) {
    if (expression) regex_.emplace(key, words.front(), "");
  }
  bool match(const std::string& path) {
    bool found = false;
    if (regex_) {
      found = regex_->matches(path);
      if (found) met_.insert(words_.front());
      return found;
    }
    for (const std::string& word : words_)
      if (is_path_end(path, word)) {
        found = true;
        met_.insert(word);
      }
    return found;
  }
  bool met(const std::string& word) const { return met_.contains(word); }

 private:
  const std::vector<std::string>& words_;
  std::optional<WholePath> regex_;
  std::set<std::string> met_;
};

// The value of the first pattern that a path ends with. `met` gets all that do.
template <class T>
T by_pattern(const char* key, const std::vector<std::pair<std::string, T>>& patterns,
             const std::string& path, T otherwise, std::set<std::string>* met = nullptr) {
  const T* first = nullptr;
  for (const auto& [pattern, value] : patterns)
    if (WholePath(key, pattern, kPathEnd).matches(path)) {
      if (met) met->insert(fmt::format("{} {}", key, pattern));
      if (first == nullptr) first = &value;
    }
  return first ? *first : otherwise;
}

// As PEFT's ModulesToSaveWrapper: the path of the module or of one that it lies in.
bool lies_in(std::string_view path, const std::string& name) {
  for (size_t dot = path.find('.');; dot = path.find('.', dot + 1)) {
    if (path.substr(0, dot).ends_with(name)) return true;
    if (dot == std::string_view::npos) return false;
  }
}

std::vector<std::string_view> last_words(const std::vector<Module>& modules) {
  std::vector<std::string_view> words;
  for (const Module& m : modules) {
    const std::string_view last = std::string_view(m.path).substr(m.path.rfind('.') + 1);
    if (std::find(words.begin(), words.end(), last) == words.end()) words.push_back(last);
  }
  return words;
}

[[noreturn]] void no_match(const char* key, const std::string& word,
                           const std::vector<Module>& modules) {
  const std::vector<std::string_view> words = last_words(modules);
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  fail(ErrorCode::usage, fmt::format("{} to name linear modules of the model", key), word,
       suggestion(
           word, words,
           (std::string_view(key) == "target_modules" ? "all-linear, or some of " : "some of ") +
               list));
}

// A word of a key that is to mean targets and means none.
[[noreturn]] void not_a_target(const char* key, const std::string& word, bool of_model,
                               const std::vector<Module>& modules,
                               const std::vector<std::string>& targets) {
  if (!of_model) no_match(key, word, modules);
  std::vector<std::string> words;
  for (const std::string& path : targets) {
    const std::string last = path.substr(path.rfind('.') + 1);
    if (std::find(words.begin(), words.end(), last) == words.end()) words.push_back(last);
  }
  fail(ErrorCode::usage, fmt::format("{} to be among target_modules", key),
       fmt::format("{}, which is not", word), fmt::format("{} of {}", key, fmt::join(words, ", ")));
}

// Of a pattern of ranks or alphas.
[[noreturn]] void not_a_pattern(const char* key, const std::string& pattern,
                                const std::vector<Module>& modules,
                                const std::vector<std::string>& targets) {
  WholePath path(key, pattern, kPathEnd);
  const bool of_model = std::any_of(modules.begin(), modules.end(),
                                    [&](const Module& m) { return path.matches(m.path); });
  not_a_target(key, pattern, of_model, modules, targets);
}

// Of methods that have none of tables.
void check_no_table(const std::string& word, const AdapterMethod& method,
                    const std::vector<Module>& tables) {
  for (const Module& m : tables)
    if (!method.tables && is_path_end(m.path, word))
      fail(ErrorCode::unsupported,
           fmt::format("target_modules without {} for peft: {}; only lora has adapters of tables",
                       m.last(), method.name),
           fmt::format("{} among them", word), "peft=lora, or target_modules without it");
}

void add_scale(LinearAdapter& adapter, const Module& m, bool of_input,
               const std::vector<Module>& modules) {
  for (const Module& other : modules)
    if (of_input && other.layer == m.layer && other.path != m.path)
      fail(ErrorCode::unsupported,
           "feedforward_modules that alone read what they read: one scale of it here",
           fmt::format("{}, beside {}", m.path, other.path),
           "feedforward_modules without it, which then scales what it makes");
  adapter.input = of_input;
  adapter.pieces.push_back(m.piece);
}

void check_rank(const Module& m, int64_t r, bool square) {
  const int64_t most = square ? std::min(m.in, m.piece.rows) : m.in;
  if (r < 1 || r > most)
    fail(ErrorCode::usage,
         fmt::format("lora_r between 1 and {}, {} of {}", most,
                     square ? "the smaller width" : "the width of what is read", m.path),
         std::to_string(r), fmt::format("lora_r={}", std::min<int64_t>(8, most)));
}

// What adapters of tables have not: LoRA-FA of one and what codes lose of it. First weights that are parts of
// what they go beside are of linear layers alone, as in PEFT: those of a table begin as ever.
void check_table(const PeftConfig& config, LinearAdapter& adapter, const Module& m) {
  if (!config.layers_to_transform.empty())
    fail(ErrorCode::usage,
         fmt::format("layers_to_transform without {}, which is of no layer", m.path),
         "it among target_modules", "leave layers_to_transform out, or target_modules without it");
  const auto refuse = [&](std::string_view what, const char* instead) {
    fail(ErrorCode::unsupported, fmt::format("{} without {}", what, m.path),
         "it among target_modules", fmt::format("{}, or target_modules without it", instead));
  };
  if (config.freeze_a) refuse("lora_fa", "peft=lora");
  if (adapter.first_way && adapter.first_way->of_error)
    refuse(config.init_lora_weights, "init_lora_weights=true");
  adapter.first_way = nullptr;
}

// Whether the weight of a module is one that A and B can be made of.
void check_first_way(const FirstWay& way, const PeftConfig& config, const Module& m) {
  if (way.of_error && config.codec.empty())
    fail(ErrorCode::usage,
         fmt::format(
             "a base in 4 bits for init_lora_weights: {}, which makes up for what codes lose",
             way.name),
         "one in full precision", "peft=qlora, or init_lora_weights=pissa");
  if (!way.transposes && m.transposed)
    fail(ErrorCode::unsupported,
         fmt::format("weights (out,in) in the files for init_lora_weights: {}, which PEFT takes as "
                     "they are there",
                     way.name),
         fmt::format("{}, of (in,out)", m.path), "init_lora_weights=pissa");
}

}  // namespace

PeftModel resolve_peft(const ModelSpec& spec, const PeftConfig& config) {
  PeftModel result;
  const Model plain(spec, parse_precision("fp32"));
  const Family& family = find_family(spec.family, "model");
  const std::vector<Module> modules = linear_modules(plain, family);
  std::vector<std::string> saved = config.modules_to_save;
  const bool classifies =
      spec.head == HeadKind::sequence_classification || spec.head == HeadKind::token_classification;
  const auto is_saved = [&](const std::string& path) {
    return std::any_of(saved.begin(), saved.end(),
                       [&](const std::string& name) { return lies_in(path, name); });
  };
  // The layer that gives the labels is new with every task: PEFT's classifier or score.
  for (int i = 0; classifies && i < plain.params().size(); ++i)
    if (plain.params()[i].name.view() == "head.out.weight") {
      const std::string path =
          module_of(family.pieces(plain.params()[i], spec).front().names.front());
      if (!is_saved(path)) saved.push_back(path.substr(0, path.find('.')));
    }

  const AdapterMethod& method = adapter_method(config.method);
  if (method.front) return resolve_front(spec, config);
  std::vector<std::string> words = config.target_modules;
  const bool all = words.size() == 1 && words.front() == "all-linear";
  std::vector<std::string> feedforward = config.feedforward_modules;
  // Of a method without the field, its own choice is all that counts.
  const bool chosen = words.empty() || !method.has("target_modules");
  if (chosen && method.inputs && feedforward.empty()) feedforward = method.inputs(spec, modules);
  if (chosen) words = method.targets(spec, modules);
  Targets targets("target_modules", words, config.target_expression),
      excluded("exclude_modules", config.exclude_modules, config.exclude_expression);
  Targets inputs("feedforward_modules", feedforward, config.feedforward_expression);
  std::set<std::string> without;
  const std::vector<Module> tables = embedding_modules(plain, family);
  std::vector<Module> targeted = modules;
  if (method.tables && !all) targeted.insert(targeted.end(), tables.begin(), tables.end());
  for (const Module& m : targeted)
    if (excluded.match(m.path)) without.insert(m.path);
  for (const std::string& word : config.exclude_modules)
    if (!config.of_folder && !excluded.met(word)) no_match("exclude_modules", word, targeted);
  std::set<std::string> met, adapted;
  for (const int64_t layer : config.layers_to_transform)
    if (layer < 0 || layer >= spec.L)
      fail(ErrorCode::usage, fmt::format("layers_to_transform between 0 and {}", spec.L - 1),
           std::to_string(layer), fmt::format("layers_to_transform=[{}]", spec.L - 1));
  for (const Module& m : targeted) {
    if (!(all || targets.match(m.path)) || is_saved(m.path)) continue;
    if (without.contains(m.path)) continue;
    const std::vector<int64_t>& layers = config.layers_to_transform;
    // Of a table named beside layers a folder of PEFT means no adapter; keys mean one.
    const bool named = m.table && !config.of_folder && !config.target_expression;
    if (!layers.empty() && !named &&
        std::find(layers.begin(), layers.end(), m.number) == layers.end())
      continue;
    adapted.insert(m.path);
    result.modules.push_back(m.path);
    LinearAdapter& adapter = result.adapters[m.layer];
    adapter.kind = &method.kind(config);
    if (!method.ranked) {
      add_scale(adapter, m, inputs.match(m.path), modules);
      method.settle(config, 0, adapter.pieces.back(), adapter);
      continue;
    }
    AdapterPiece piece = m.piece;
    piece.rank = by_pattern("rank_pattern", config.rank_pattern, m.path, config.lora_r, &met);
    if (method.bounded || piece.rank < 1) check_rank(m, piece.rank, method.square);
    const double alpha =
        by_pattern("alpha_pattern", config.alpha_pattern, m.path, config.lora_alpha, &met);
    adapter.dropout = static_cast<float>(config.lora_dropout);
    method.settle(config, alpha, piece, adapter);
    adapter.table = m.table;
    adapter.in = m.in;
    if (m.table) check_table(config, adapter, m);
    if (const FirstWay* const way = adapter.first_way) check_first_way(*way, config, m);
    if (adapter.init == Init::normal && !adapter.pieces.empty() &&
        adapter.pieces.front().rank != piece.rank)
      fail(ErrorCode::unsupported,
           "init_lora_weights: true where modules of one layer have ranks of their own",
           fmt::format("gaussian, and ranks {} and {} in {}", adapter.pieces.front().rank,
                       piece.rank, m.layer),
           "init_lora_weights=true");
    adapter.pieces.push_back(piece);
  }
  if (!config.feedforward_expression)
    for (const std::string& word : feedforward)
      if (!inputs.met(word))
        not_a_target("feedforward_modules", word,
                     std::any_of(modules.begin(), modules.end(),
                                 [&](const Module& m) { return is_path_end(m.path, word); }),
                     modules, result.modules);
  if (!all && !config.target_expression)
    for (const std::string& word : words)
      if (!targets.met(word)) {
        check_no_table(word, method, tables);
        no_match("target_modules", word, targeted);
      }
  if (result.modules.empty())
    no_match("target_modules", fmt::format("{}", fmt::join(words, ", ")), targeted);
  for (const auto& [pattern, rank] : config.rank_pattern)
    if (!met.contains("rank_pattern " + pattern))
      not_a_pattern("rank_pattern", pattern, targeted, result.modules);
  for (const auto& [pattern, alpha] : config.alpha_pattern)
    if (!met.contains("alpha_pattern " + pattern))
      not_a_pattern("alpha_pattern", pattern, targeted, result.modules);

  auto trained = std::make_shared<std::set<std::string, std::less<>>>();
  std::set<std::string> used;
  for (int i = 0; i < plain.params().size(); ++i) {
    const ParamInfo& p = plain.params()[i];
    const bool bias = p.name.view().ends_with(".bias");
    size_t count = 0;
    const std::vector<FilePiece> pieces = family.pieces(p, spec);
    std::string one, other;
    for (const FilePiece& piece : pieces) {
      const std::string path = module_of(piece.names.front());
      bool own =
          bias && (config.bias == "all" || (config.bias == "lora_only" && adapted.contains(path)));
      for (const std::string& name : saved)
        if (lies_in(path, name)) {
          used.insert(name);
          own = true;
        }
      count += own ? 1 : 0;
      (own ? one : other) = piece.names.front();
    }
    if (count > 0 && count < pieces.size())
      fail(ErrorCode::usage,
           fmt::format("{} and {} trained together: they are one parameter here", one, other),
           fmt::format("{} alone", one),
           bias ? "bias=none, or target_modules with both" : "modules_to_save with both");
    if (count > 0 && bias && spec.zero_biases)
      fail(ErrorCode::usage, "no bias to be trained of a model whose config says bias: false", one,
           "model.bias=true, or bias=none and modules_to_save without norms");
    if (count > 0) trained->insert(p.name.str());
  }
  for (const std::string& name : config.modules_to_save)
    // PEFT writes both names of a classifier into every folder of one.
    if (!used.contains(name) && !(classifies && (name == "classifier" || name == "score"))) {
      std::vector<std::string_view> known = last_words(modules);
      fail(ErrorCode::usage, "modules_to_save to name modules of the model", name,
           suggestion(name, known, fmt::format("some of {}", fmt::join(known, ", "))));
    }
  if (spec.tied && trained->contains(std::string(family.embedding)))
    fail(ErrorCode::unsupported,
         fmt::format("modules_to_save without the embedding of a model whose head is tied to it"),
         fmt::format("modules_to_save: {}", fmt::join(config.modules_to_save, ", ")),
         "target_modules=all-linear without it, or a whole run with freeze=h.");
  auto still = std::make_shared<std::set<std::string, std::less<>>>();  // of adapters
  for (const auto& [layer, adapter] : result.adapters) {
    const int weight = plain.params().find(layer + ".weight");
    const Shape& shape = plain.params()[weight].shape;
    const std::vector<FilePiece> pieces = family.pieces(plain.params()[weight], spec);
    const bool shares = !adapter.kind->shared(layers_of(result.adapters, *adapter.kind)).empty();
    for (const AdapterParam& p : adapter.kind->params({layer, "", &adapter, shape[1], shape[0]})) {
      if (!p.trained) still->insert(p.name);
      // Files' rows are brought into our order where they are a tensor's own, not where it is
      // transposed, laid on them or all layers read the same matrix.
      const bool fixed = p.transposed || p.laid || shares;
      if (p.by_rows && fixed &&
          pieces[adapter.pieces[static_cast<size_t>(p.piece)].piece].groups.any())
        fail(ErrorCode::unsupported,
             fmt::format("modules whose rows files hold in the model's order for peft: {}",
                         method.name),
             module_of(pieces.front().names.front()), "target_modules without it, or peft=lora");
    }
  }
  for (const AdapterKind* kind : kinds_of(result.adapters))
    for (const AdapterParam& p : kind->shared(layers_of(result.adapters, *kind)))
      still->insert(p.name);
  result.frozen = [trained, still](std::string_view name) {
    return is_adapter_name(name) ? still->count(name) > 0 : trained->count(name) == 0;
  };
  finish_peft(spec, config, result);
  return result;
}

void finish_peft(const ModelSpec& spec, const PeftConfig& config, PeftModel& result) {
  if (!config.codec.empty()) result.codes = block_codes(spec, config);
  const Model model(spec, parse_precision("fp32"), result.frozen, result.adapters);
  result.trained = model.params().real_trained_elements();
  result.all = model.params().real_elements();
}

int64_t rank_of(const PeftConfig& config, const std::string& path) {
  return by_pattern("rank_pattern", config.rank_pattern, path, config.lora_r);
}

double alpha_of(const PeftConfig& config, const std::string& path) {
  return by_pattern("alpha_pattern", config.alpha_pattern, path, config.lora_alpha);
}

bool is_expression(const char* key, const std::vector<std::string>& words) {
  if (words.size() == 1) return is_pattern(words.front());
  for (const std::string& word : words)
    if (is_pattern(word))
      fail(ErrorCode::usage, fmt::format("names of modules, or one expression, as {}", key),
           fmt::format("{}", fmt::join(words, ", ")),
           fmt::format("{}='.*({})'", key, fmt::join(words, "|")));
  return false;
}

AdaptedLayer adapted_layer_of(const Model& model, const std::string& layer) {
  const ParamInfo& weight = model.params()[model.params().find(layer + ".weight")];
  return {layer, "", &model.adapters().at(layer), weight.shape[1], weight.shape[0]};
}

PlacedParam adapter_param_of(const Model& model, const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::string layer = name.substr(0, dot);
    if (!model.adapters().contains(layer)) continue;
    PlacedParam placed{adapted_layer_of(model, layer), {}};
    for (AdapterParam& param : placed.layer.adapter->kind->params(placed.layer))
      if (param.name == name) {
        placed.param = std::move(param);
        return placed;
      }
  }
  fail(ErrorCode::internal, "a parameter of an adapter", name, "report this");
}

std::string peft_text(const PeftConfig& c) {
  const auto patterns = [](const auto& map) {
    std::string text;
    for (const auto& [key, value] : map) text += fmt::format(" {}:{}", key, value);
    return text;
  };
  std::vector<std::string> targets = c.target_modules, excluded = c.exclude_modules,
                           saved = c.modules_to_save;
  for (std::vector<std::string>* list : {&targets, &excluded, &saved})
    std::sort(list->begin(), list->end());
  const AdapterMethod& method = adapter_method(c.method);
  std::string text = method.text(c);
  if (!method.front) text += fmt::format(" targets [{}]", fmt::join(targets, " "));
  if (method.has("feedforward_modules")) {
    std::vector<std::string> inputs = c.feedforward_modules;
    std::sort(inputs.begin(), inputs.end());
    text += fmt::format(" feedforward [{}]", fmt::join(inputs, " "));
  }
  if (!excluded.empty()) text += fmt::format(" without [{}]", fmt::join(excluded, " "));
  if (c.use_rslora) text += " rslora";
  if (method.has("bias")) text += " bias " + c.bias;
  if (!method.front) text += fmt::format(" save [{}]", fmt::join(saved, " "));
  if (c.use_dora) text += " dora";
  if (!c.layers_to_transform.empty())
    text += fmt::format(" layers [{}]", fmt::join(c.layers_to_transform, " "));
  if (!c.rank_pattern.empty()) text += " ranks" + patterns(c.rank_pattern);
  if (!c.alpha_pattern.empty()) text += " alphas" + patterns(c.alpha_pattern);
  if (!c.codec.empty()) text += " over " + base_form(c);
  return text;
}

}  // namespace snug
