#include "tools/setup/optimizer_setup.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/text/regex.h"
#include "optim/settings.h"
#include "tools/config/optimizer_name.h"
#include "tools/config/param_groups.h"
#include "tools/costs/matrix_pieces.h"
#include "tools/costs/state_bytes.h"
#include "tools/session/tell.h"

namespace snug {
namespace {

Regex compiled(const ParamGroup& g, const std::string& where) {
  try {
    return {g.params, "param_groups"};
  } catch (const Error& e) {
    fail(ErrorCode::usage, "a regular expression for params of param_groups",
         fmt::format("\"{}\" ({}): {}", g.params, where, e.found()),
         "names as they are, with \\. for a dot: 'h\\.0\\.|wte'");
  }
}

// Of what is trained, of layers the first: the others' are alike.
std::string names_of(const ParamTable& table) {
  std::string text;
  int first = -1, left = 24;
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    if (!p.trainable) continue;
    if (p.part >= 0 && first < 0) first = p.part;
    if ((p.part >= 0 && p.part != first) || left-- <= 0) continue;
    text += (text.empty() ? "" : ", ") + p.name.str();
  }
  return text;
}

void add_groups(OptimizerConfig& o, const RunConfig& config, const ParamTable& table) {
  const std::vector<ParamGroup> groups = groups_of(config.param_groups);
  const std::string where = config.where("param_groups");
  if (groups.empty()) return;
  o.group_of.assign(static_cast<size_t>(table.size()), 0);
  RegexScratch scratch;
  for (const ParamGroup& g : groups) {
    if (g.learning_rate >= 0 && config.learning_rate == 0)
      fail(ErrorCode::usage,
           "a learning_rate above 0 beside rates of param_groups, which follow its schedule",
           fmt::format("learning_rate: 0 ({})", config.where("learning_rate")),
           "learning_rate=1.0e-3");
    const Regex pattern = compiled(g, where);
    int found = 0, fits = 0, frozen = 0;
    int64_t elements = 0;
    o.groups.push_back(
        {g.learning_rate < 0 ? 1 : g.learning_rate / config.learning_rate, g.weight_decay});
    for (int i = 0; i < table.size(); ++i) {
      size_t begin = 0, end = 0;
      if (!pattern.find(table[i].name.view(), 0, scratch, begin, end)) continue;
      if (!table[i].trainable) {
        ++frozen;
        continue;
      }
      ++fits;
      int& mine = o.group_of[static_cast<size_t>(i)];
      if (mine != 0) continue;
      mine = static_cast<int>(o.groups.size());
      ++found;
      elements += table[i].real_elements();
    }
    if (fits == 0)
      fail(ErrorCode::usage, "params of param_groups that are found in a parameter's name",
           frozen > 0 ? fmt::format("\"{}\" ({}), in {} that are frozen", g.params, where, frozen)
                      : fmt::format("\"{}\" ({}), in none of {}", g.params, where, table.size()),
           "what is part of a name: " + names_of(table));
    std::string text = fmt::format("{} parameters ({} elements) of '{}'", found,
                                   human_count(static_cast<double>(elements)), g.params);
    if (g.learning_rate >= 0) text += fmt::format(", learning_rate {}", g.learning_rate);
    if (g.weight_decay >= 0) text += fmt::format(", weight_decay {}", g.weight_decay);
    tell(stderr, "Note: param_groups: {}\n", text);
  }
}

}  // namespace

OptimizerConfig optimizer_setup(const RunConfig& config, const Model& model, bool from_scratch) {
  const OptimName name = optimizer_name(config);
  OptimizerConfig o;
  o.name = name.facts->name;
  o.state = name.state;
  if (from_scratch) o.state_in_f32 = embeddings_of(model.params());
  o.learning_rate = config.learning_rate;
  o.weight_decay = config.weight_decay;
  // An optimizer refuses settings of another, and the keys of both always have a value.
  const int uses = find_optimizer(config.optim)->uses;
  if (uses & kUsesMomentum) {
    o.sgd_momentum = config.sgd_momentum;
    o.sgd_nesterov = config.sgd_nesterov;
    o.sgd_dampening = config.sgd_dampening;
  }
  if (uses & kUsesBetas) {
    o.adam_beta1 = config.adam_beta1;
    o.adam_beta2 = config.adam_beta2;
  }
  if (uses & kUsesEpsilon) o.adam_epsilon = config.adam_epsilon;
  o.args = parse_optim_args(config.optim_args);
  add_pieces(o, model);
  if (name.facts->keeps_others && config.warmup_steps > 0)
    o.args.emplace_back("warmup_steps", config.warmup_steps);
  add_groups(o, config, model.params());
  if (name.facts->note)
    if (const std::string note = name.facts->note(o); !note.empty())
      tell(stderr, "Note: optim: {} ({}).\n", note, config.where("optim"));
  return o;
}

bool pages_states(const RunConfig& config) {
  return optim_name(config.optim).paged;
}

}  // namespace snug
