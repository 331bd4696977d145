// The optimizers by name, and what of Hugging Face's names is refused.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "engine/core/error.h"
#include "optim/adam_mini.h"
#include "optim/checks.h"
#include "optim/kahan.h"
#include "optim/muon.h"
#include "optim/percentile.h"
#include "optim/rule_loops.h"
#include "optim/rules.h"
// Behind the others: it switches to another instruction set and back.
#include "optim/rule_loops_avx512.h"

namespace snug {
namespace {

template <class Entry>
std::unique_ptr<Optimizer> make(const OptimizerConfig& c);

template <class Entry>
constexpr OptimReach own_reach() {
  if constexpr (kDirects<Entry>) return Entry::kReach;
  return OptimReach::element;
}
// What an optimizer is beside its rule.
template <class Entry>
using Driver = std::conditional_t<own_reach<Entry>() == OptimReach::matrix, MuonOptimizer,
                                  std::conditional_t<own_reach<Entry>() == OptimReach::blocks,
                                                     AdamMiniOptimizer, ElementwiseOptimizer>>;

template <class Entry, class Rule, class Base = ElementwiseOptimizer>
class RuleOptimizer final : public Base {
 public:
  RuleOptimizer(const OptimizerConfig& c, const Rule& rule)
      : Base(c, all_states(c), op_name(c), Rule::kFlops,
             kDirects<Entry> ? own_reach<Entry>() : kReach<Rule>),
        rule_(rule) {
    require(
        this->state_names().size() == static_cast<size_t>(Rule::kStates + (compensates(c) ? 1 : 0) +
                                                          (clips_by_percentile(c) ? 1 : 0)),
        "a name for each state of a rule");
    if constexpr (std::is_base_of_v<DirectedOptimizer, Base>) {
      OptimizerConfig steps = c;
      steps.along = true;
      this->along_ = make<Entry>(steps);
    }
    if constexpr (kKeepsOthers<Entry>) {
      if (c.moves != WeightsMove::none) return;
      this->to_kept_ = mover(c, WeightsMove::to_kept);
      this->to_trained_ = mover(c, WeightsMove::to_trained);
    }
  }
  void prepare_step(StepState& state) const override {
    if constexpr (requires { rule_.prepare(state); })
      rule_.prepare(state);
    else
      Base::prepare_step(state);
  }

 protected:
  void update_block(const ElementStep& step, const ElementBlock& block) const override {
    run_rule(rule_, rule_.step(step), step.gradient_factor, block);
  }
  bool has_coded_pass() const override { return Rule::kStates > 0; }
  void update_coded(const ElementStep& step, const ElementBlock& block,
                    const CodedStates& states) const override {
    if constexpr (Rule::kStates > 0) run_rule_in_codes(rule_, step, block, states);
  }
  bool measures() const override { return kMeasures<Rule>; }
  float factored_epsilon() const override {
    if constexpr (kFactors<Rule>) return rule_.epsilon;
    return 0;
  }
  void measure_block(const ElementStep& step, const ElementBlock& block,
                     NormLanes& lanes) const override {
    if constexpr (kMeasures<Rule>) measure_rule(rule_, step, block, lanes);
  }

 private:
  static std::vector<OptimState> all_states(const OptimizerConfig& c) {
    std::vector<OptimState> all = Entry::states(c);
    if (compensates(c)) all.emplace_back(kCompensation);
    if (clips_by_percentile(c)) all.emplace_back(kGradientNorms);
    return all;
  }
  static std::unique_ptr<Optimizer> mover(OptimizerConfig c, WeightsMove where) {
    c.moves = where;
    return make<Entry>(c);
  }
  static const char* op_name(const OptimizerConfig& c) {
    if (c.moves == WeightsMove::to_kept) return "weights_to_kept";
    if (c.moves == WeightsMove::to_trained) return "weights_to_trained";
    static const std::string name = std::string(Entry::kName) + "_update",
                             along = std::string(Entry::kName) + "_step";
    return (c.along ? along : name).c_str();
  }
  const Rule rule_;
};

template <class Entry>
std::unique_ptr<Optimizer> make(const OptimizerConfig& c) {
  Entry::check(c);
  std::unique_ptr<Optimizer> out;
  Entry::with_rule(c, [&](const auto& rule) {
    using Rule = std::decay_t<decltype(rule)>;
    if constexpr (std::is_same_v<Rule, AlongRule>)
      out = std::make_unique<RuleOptimizer<Entry, Rule>>(c, rule);
    else
      out = std::make_unique<RuleOptimizer<Entry, Rule, Driver<Entry>>>(c, rule);
  });
  return out;
}

template <class Entry>
OptimReach reach_of() {
  OptimReach reach = own_reach<Entry>();
  if (!kDirects<Entry>)
    Entry::with_rule({}, [&]<class Rule>(const Rule&) { reach = kReach<Rule>; });
  return reach;
}

template <class Entry>
auto note_of() -> std::string (*)(const OptimizerConfig&) {
  if constexpr (requires { Entry::note; }) return Entry::note;
  return nullptr;
}

struct Made {
  OptimFacts facts;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config);
};

const std::vector<Made>& entries() {
  static const std::vector<Made> list = [] {
    std::vector<Made> all;
    for_each_rule([&]<class Entry>(Entry) {
      all.push_back({{Entry::kName, Entry::kUses, Entry::aliases(), Entry::settings(),
                      Entry::defaults(), reach_of<Entry>(), kKeepsOthers<Entry>, note_of<Entry>()},
                     make<Entry>});
    });
    // What is proposed to whoever asks for none that is there.
    std::stable_partition(all.begin(), all.end(),
                          [](const Made& m) { return std::string_view(m.facts.name) == "adamw"; });
    return all;
  }();
  return list;
}

const Made* find_entry(std::string_view name) {
  for (const Made& m : entries()) {
    if (name == m.facts.name) return &m;
    for (const char* alias : m.facts.aliases)
      if (name == alias) return &m;
  }
  return nullptr;
}

}  // namespace

Optimizer::Optimizer(OptimizerConfig config, const std::vector<OptimState>& states,
                     OptimReach reach)
    : config_(std::move(config)), reach_(reach) {
  for (const OptimState& s : states) {
    state_names_.emplace_back(s.name);
    squares_.push_back(s.squares);
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  const OptimName name = optim_name(config.name);
  const Made* entry = name.facts == nullptr ? nullptr : find_entry(name.facts->name);
  if (entry == nullptr) {
    std::vector<std::string> known;
    for (const Made& m : entries()) {
      known.emplace_back(m.facts.name);
      known.insert(known.end(), m.facts.aliases.begin(), m.facts.aliases.end());
    }
    const NameAdvice a = name_advice("optim", config.name, known);
    refuse(a.expected, "optim: " + config.name, a.advice);
  }
  const OptimFacts& facts = entry->facts;
  OptimizerConfig resolved = config;
  resolved.name = facts.name;
  if (name.says_state) resolved.state = name.state;
  check_base_settings(resolved);
  if (facts.uses & kUsesBetas)
    check_betas(resolved, facts.defaults.adam_beta2 > 0 ? "0.99" : "0.999");
  if (facts.uses & kUsesEpsilon) check_epsilon(resolved);
  refuse_unused_settings(resolved, facts);
  check_args(resolved, facts);
  check_compensation(resolved, facts.reach, facts.keeps_others);
  check_percentile(resolved, facts.reach);
  require(resolved.groups.size() <= kMostOptimGroups, "groups of an optimizer that fit its table");
  std::unique_ptr<Optimizer> made = entry->make(resolved);
  if (made->state_names().size() == (clips_by_percentile(resolved) ? 1u : 0u) &&
      resolved.state != StateForm::f32)
    refuse(fmt::format("an optimizer with states, to rest in {}", to_string(resolved.state)),
           fmt::format("optim: {}, which has none", facts.name),
           fmt::format("{}optim={}", facts.uses & kUsesMomentum ? "sgd_momentum=0.9, or " : "",
                       facts.name));
  return made;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Made& m : entries()) names.emplace_back(m.facts.name);
  return names;
}

const std::vector<OptimFacts>& optimizer_facts() {
  static const std::vector<OptimFacts> facts = [] {
    std::vector<OptimFacts> all;
    for (const Made& m : entries()) all.push_back(m.facts);
    return all;
  }();
  return facts;
}

const OptimFacts* find_optimizer(std::string_view name) {
  return optim_name(name).facts;
}

OptimName optim_name(std::string_view name) {
  OptimName out;
  if (out.paged = name.starts_with("paged_"); out.paged) name.remove_prefix(6);
  const Made* entry = find_entry(name);
  for (const StateFormFacts& form : state_forms())
    for (const std::string_view end : form.ends) {
      if (entry != nullptr || end.empty() || !name.ends_with(end)) continue;
      entry = find_entry(name.substr(0, name.size() - end.size()));
      out.state = form.form;
      out.says_state = true;
    }
  out.facts = entry == nullptr ? nullptr : &entry->facts;
  return out;
}

std::string optimizer_text(const OptimizerConfig& c) {
  OptimName name = optim_name(c.name);
  if (!name.says_state) name.state = c.state;
  return name.text();
}

std::string OptimName::text() const {
  std::string out = facts == nullptr ? "" : facts->name;
  if (state != StateForm::f32) out += std::string("_") + to_string(state);
  return out;
}

}  // namespace snug
