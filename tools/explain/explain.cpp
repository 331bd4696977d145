#include "tools/explain/explain.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/stores/part_runs.h"
#include "engine/stores/state_places.h"
#include "layers/models/recompute.h"
#include "optim/settings.h"
#include "tools/costs/matrix_pieces.h"
#include "tools/costs/state_bytes.h"
#include "tools/report/op_time.h"
#include "tools/report/step_view.h"
#include "tools/report/tensor_facts.h"

namespace snug {
namespace {

bool fits(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

int64_t sum_of(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  return sum;
}

ExplainFacts shape_facts(const Shape& shape) {
  ExplainFacts list = ExplainFacts::array();
  for (int i = 0; i < shape.rank(); ++i) list.push_back(shape[i]);
  return list;
}

ExplainFacts op_facts(const Program& p, int32_t op) {
  if (op < 0) return nullptr;
  return {
      {"op", op_label(p.ops[static_cast<size_t>(op)])}, {"number", op + 1}, {"of", p.ops.size()}};
}

// The op that runs in a state, or the last before it.
std::string op_at(const Program& p, int64_t state) {
  std::string label = "start";
  for (const OpRecord& op : p.ops)
    if (op.time <= state) label = op_label(op);
  return label;
}

// Of the device's arena: the category offload is the host's.
int64_t device_bytes(const Plan& plan) {
  return sum_of(plan.categories) - plan.categories[static_cast<size_t>(Category::offload)];
}

ExplainFacts peak_facts(const Plan& plan) {
  const int peak = plan.schedule.peak_program();
  const Program& p = plan.schedule.at(peak);
  return {
      {"program", p.name.str()}, {"op", op_at(p, peak_state(p))}, {"bytes", device_bytes(plan)}};
}

bool alive_at_peak(const Plan& plan, int program, const TensorRecord& t) {
  if (!in_device_arena(t)) return false;
  const int peak = plan.schedule.peak_program();
  if (program != peak) return is_ancestor(plan.schedule, program, peak);
  const int64_t state = peak_state(plan.schedule.at(peak));
  return t.born < state && state <= t.died;
}

// What else lies in these bytes: tensors of the same program at other times, and of programs that
// run at other times. Of micro_first and micro_next, which are alike, only the own one.
ExplainFacts same_bytes(const Plan& plan, int program, size_t k) {
  const Schedule& s = plan.schedule;
  const TensorRecord& t = s.at(program).tensors[k];
  const int64_t begin = address_of(s.at(program), k), end = begin + t.bytes;
  struct Other {
    std::string program;
    const TensorRecord* tensor;
    int64_t bytes;
  };
  std::vector<Other> others;
  if (s.at(program).resident || !in_device_arena(t)) return ExplainFacts::array();
  const bool micro = s.at(program).name.view().starts_with("micro_");
  for (int i = 0; i < s.size(); ++i) {
    const Program& p = s.at(i);
    if (i != program && micro && p.name.view().starts_with("micro_")) continue;
    if (i != program && is_ancestor(s, i, program)) continue;
    for (size_t j = 0; j < p.tensors.size(); ++j) {
      if ((i == program && j == k) || !in_device_arena(p.tensors[j])) continue;
      const int64_t from = address_of(p, j), to = from + p.tensors[j].bytes;
      const int64_t shared = std::min(end, to) - std::max(begin, from);
      if (shared > 0) others.push_back({p.name.str(), &p.tensors[j], shared});
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Other& a, const Other& b) { return a.bytes > b.bytes; });
  ExplainFacts list = ExplainFacts::array();
  for (const Other& o : others)
    list.push_back({{"tensor", o.tensor->name.str()},
                    {"program", o.program},
                    {"bytes", o.tensor->bytes},
                    {"shared_bytes", o.bytes}});
  return list;
}

ExplainFacts life_facts(const Plan& plan, int program, size_t k) {
  const Program& p = plan.schedule.at(program);
  const TensorRecord& t = p.tensors[k];
  const TensorOps ops = ops_of(p, t);
  const bool resident = p.resident;
  const int64_t peak = device_bytes(plan);
  return {
      {"program", p.name.str()},
      {"scope", t.scope.str()},
      {"shape", shape_facts(t.shape)},
      {"dtype", to_string(t.dtype)},
      {"bytes", t.bytes},
      {"category", to_string(t.category)},
      {"resident", resident},
      {"arena", in_device_arena(t) ? "device" : "host"},
      {"address", in_device_arena(t) ? address_of(p, k) : p.host_base + p.host_packing.offsets[k]},
      {"born", resident ? ExplainFacts(nullptr) : op_facts(p, ops.first)},
      {"ends", resident ? ExplainFacts(nullptr) : op_facts(p, ops.last)},
      {"why", why_there(p, k)},
      {"alive_at_peak", alive_at_peak(plan, program, t)},
      {"share_of_peak", peak > 0 ? static_cast<double>(t.bytes) / static_cast<double>(peak) : 0.0},
      {"same_bytes", same_bytes(plan, program, k)}};
}

// The slot of a block that a tensor is, with its policy and the stages of forward around it.
ExplainFacts slot_facts(const Plan& plan, const Model& model, const std::string& name) {
  if (plan.decisions.micro_batch <= 0) return nullptr;
  const LayerPolicies policies =
      parse_policies(plan.decisions.recompute, plan.decisions.offload, model);
  for (int64_t l = 0; l < model.spec().L; ++l) {
    const Body& body = model.block(l).body();
    for (int i = 0; i < body.slots(); ++i) {
      if (body.slot(i).name.view() != name) continue;
      ExplainFacts readers = ExplainFacts::array();
      for (const Stage& stage : body.stages())
        if (std::find(stage.inputs.begin(), stage.inputs.end(), i) != stage.inputs.end())
          readers.push_back(stage.name.str());
      const int producer = body.producer(i);
      // What a block leaves is the next one's input, and goes as that does.
      const bool left = i == body.find_slot("out") && l + 1 < model.spec().L;
      const int64_t block = left ? l + 1 : l;
      const int slot = left ? model.block(block).body().find_slot("x") : i;
      return {
          {"block", l},
          {"policy", to_string(policies[static_cast<size_t>(block)][static_cast<size_t>(slot)])},
          {"written_by",
           producer < 0 ? ExplainFacts(nullptr)
                        : ExplainFacts(body.stages()[static_cast<size_t>(producer)].name.str())},
          {"read_in_forward_by", readers}};
    }
  }
  return nullptr;
}

// The optimizer's states.
StateSet states_of(const Plan& plan, const Model& model) {
  const ParamTable& table = model.params();
  OptimizerConfig config;
  if (const auto name = plan.made_for.find("optim"); name != plan.made_for.end())
    config.name = name->second;
  if (const auto args = plan.made_for.find("optim_args"); args != plan.made_for.end())
    config.args = parse_optim_args(args->second);
  if (optim_name(config.name).facts->uses & kUsesMomentum) config.sgd_momentum = 0.5;
  add_pieces(config, model);
  StateSet states = make_optimizer(config)->states(table);
  if (lie_flat(states)) return states;
  // Whether embeddings keep f32 shows in the bytes; windows round them up a little.
  config.state_in_f32 = embeddings_of(table);
  StateSet kept = make_optimizer(config)->states(table);
  int64_t extent = 0;
  for (const TensorRecord& t : plan.schedule.at(0).tensors)
    if (t.name == states.names[0]) extent = t.shape.elements();
  const auto off = [&](const StateSet& set) {
    return std::abs(StatePlaces(whole_parameter_spans(table), set).bytes() - extent);
  };
  return off(kept) < off(states) ? kept : states;
}

// Elements of the parameter that a tensor of the host holds: master weights are of what is trained,
// weights and gradients of the parts, states of the real rows of what is trained.
int64_t host_elements(const TensorRecord& t, const ParamInfo& info, const Name& own_weights,
                      const StateSet& states) {
  const std::string name = t.name.str();
  if (name == "master") return info.trainable ? info.elements() : 0;
  if (name == "weights") return info.part >= 0 && info.trainable ? info.elements() : 0;
  if (!info.trainable && t.name == own_weights) return info.elements();
  if (name == "weights.tables") return info.frozen_table() ? info.elements() : 0;
  if (name == "gradients") return info.part >= 0 && info.trainable ? info.elements() : 0;
  const bool state =
      std::find(states.names.begin(), states.names.end(), t.name) != states.names.end();
  return state && info.trainable ? info.real_elements() : 0;
}

// What rests for the whole run: of all parameters in one tensor, by part, or with the host, where
// a parameter's own address is not known.
ExplainFacts parameter_facts(const Plan& plan, const Model& model, const ParamInfo& info) {
  const Program& root = plan.schedule.at(0);
  const ParamTable& table = model.params();
  const StateSet states = states_of(plan, model);
  // Which state a tensor is, where they do not lie flat; else -1.
  const auto state_at_places = [&](const TensorRecord& t) {
    const auto state = std::find(states.names.begin(), states.names.end(), t.name);
    if (lie_flat(states) || !info.trainable || state == states.names.end()) return -1;
    return static_cast<int>(state - states.names.begin());
  };
  const int param = table.find(info.name.view());
  PartRun run{};
  for (const PartRun& r : part_runs(table))
    if (r.first <= info.offset && info.offset < r.first + r.elements) run = r;
  ExplainFacts held = ExplainFacts::array();
  int64_t bytes = 0, host_bytes = 0;
  for (size_t k = 0; k < root.tensors.size(); ++k) {
    const TensorRecord& t = root.tensors[k];
    const int64_t size = size_of(t.dtype);
    int64_t own = info.elements() * size;
    ExplainFacts address = nullptr;
    if (info.coded()) {  // of all in one tensor, or by part with the host
      const std::string name = t.name.str();
      own = info.code_bytes;
      if (name == "weights.codes")
        address = address_of(root, k) + info.offset;
      else if (name == fmt::format("weights.codes.part{}", info.part))
        host_bytes += own;
      else
        continue;
    } else if (const int state = state_at_places(t); state >= 0) {
      own = states.form_of(state, param).bytes(states.numbers(state, param, info.real_elements()));
      if (own == 0) continue;
      if (t.residence == Residence::host)
        host_bytes += own;
      else
        address = address_of(root, k) +
                  StatePlaces(whole_parameter_spans(table), states, state).offset_of(info.offset);
    } else if (t.residence == Residence::host) {
      own = host_elements(t, info, run_name("weights", table, run), states) * size;
      if (own == 0) continue;
      host_bytes += own;
    } else {
      const bool flat = t.category == Category::weights || t.category == Category::master ||
                        t.category == Category::gradients || t.category == Category::optimizer;
      if (!flat) continue;
      const bool table_away = t.shape.elements() == table.tables_first();
      if (table_away && info.frozen_table() && table.tables_first() < table.flat_elements())
        continue;
      const bool all = t.shape.elements() == table.flat_elements() || table_away ||
                       (info.trainable && t.shape.elements() == table.trained_elements());
      if (all && t.name.view().find('.') == std::string_view::npos)
        address = address_of(root, k) + info.offset * size;
      else if (t.name == run_name("weights", table, run) ||
               t.name == run_name("gradients", table, run))
        address = address_of(root, k) + (info.offset - run.first) * size;
      else
        continue;
    }
    held.push_back({{"tensor", t.name.str()},
                    {"category", to_string(t.category)},
                    {"dtype", to_string(t.dtype)},
                    {"arena", in_device_arena(t) ? "device" : "host"},
                    {"address", address},
                    {"bytes", own}});
    bytes += own;
  }
  return {{"name", info.name.str()},
          {"shape", shape_facts(info.shape)},
          {"elements", info.real_elements()},
          {"trainable", info.trainable},
          {"bytes", bytes},
          {"host_bytes", host_bytes},
          {"held", held}};
}

ExplainFacts operation_facts(const Plan& plan, int program, size_t k) {
  const Program& p = plan.schedule.at(program);
  const OpRecord& op = p.ops[k];
  ExplainFacts makes = ExplainFacts::array(), ends = ExplainFacts::array();
  for (const TensorRecord& t : p.tensors) {
    const TensorOps ops = ops_of(p, t);
    if (ops.first == static_cast<int32_t>(k)) makes.push_back(t.name.str());
    if (ops.last == static_cast<int32_t>(k) && t.died != kNever) ends.push_back(t.name.str());
  }
  int64_t alive = 0;
  for (const LiveTensor& l : live_tensors(plan.schedule, program, op.time))
    alive += plan.schedule.at(l.program).tensors[l.index].bytes;
  return {{"program", p.name.str()},
          {"op", op_label(op)},
          {"number", k + 1},
          {"of", p.ops.size()},
          {"stream", lane_name(op_stream(op))},
          {"flops", op.flops},
          {"bytes", op.bytes},
          {"variant", op.variant.str()},
          {"alive_bytes", alive},
          {"makes", makes},
          {"ends", ends}};
}

[[noreturn]] void unknown_name(const std::string& pattern, const std::set<std::string>& names) {
  std::vector<std::pair<int, std::string>> near;
  for (const std::string& name : names) near.emplace_back(edit_distance(pattern, name), name);
  std::sort(near.begin(), near.end());
  std::string list;
  for (size_t i = 0; i < std::min<size_t>(3, near.size()); ++i)
    list += (list.empty() ? "" : ", ") + near[i].second;
  fail(ErrorCode::usage, "a tensor, a parameter or an operation of this plan",
       fmt::format("\"{}\"", pattern),
       fmt::format("the nearest are {}; 'h.0.*' shows those of a block", list));
}

}  // namespace

ExplainFacts explain(const Plan& plan, const Model& model, const std::string& pattern) {
  const Schedule& s = plan.schedule;
  ExplainFacts tensors = ExplainFacts::array(), parameters = ExplainFacts::array(),
               ops = ExplainFacts::array();
  std::set<std::string> names;
  std::map<std::string, size_t> place;  // of a name among `tensors`
  for (int i = 0; i < s.size(); ++i) {
    const Program& p = s.at(i);
    for (size_t k = 0; k < p.tensors.size(); ++k) {
      const std::string name = p.tensors[k].name.str();
      names.insert(name);
      if (!fits(pattern, name)) continue;
      const auto [at, fresh] = place.emplace(name, tensors.size());
      if (fresh)
        tensors.push_back({{"name", name},
                           {"slot", slot_facts(plan, model, name)},
                           {"lives", ExplainFacts::array()}});
      tensors[at->second]["lives"].push_back(life_facts(plan, i, k));
    }
    for (size_t k = 0; k < p.ops.size(); ++k) {
      const OpRecord& op = p.ops[k];
      std::string dotted = op_label(op);
      std::replace(dotted.begin(), dotted.end(), ' ', '.');
      names.insert(op.name);
      if (fits(pattern, op.name) || fits(pattern, op_label(op)) ||
          (pattern.find_first_of("*?") == std::string::npos && pattern == dotted))
        ops.push_back(operation_facts(plan, i, k));
    }
  }
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& info = model.params()[i];
    names.insert(info.name.str());
    if (fits(pattern, info.name.str())) parameters.push_back(parameter_facts(plan, model, info));
  }
  if (tensors.empty() && parameters.empty() && ops.empty()) unknown_name(pattern, names);
  return {{"query", pattern},   {"engine_bytes", plan.engine_bytes}, {"peak", peak_facts(plan)},
          {"tensors", tensors}, {"parameters", parameters},          {"ops", ops}};
}

ExplainFacts explain_peak(const Plan& plan, size_t most) {
  const Schedule& s = plan.schedule;
  const int peak = s.peak_program();
  const std::vector<LiveTensor> live = live_tensors(s, peak, peak_state(s.at(peak)));
  ExplainFacts holders = ExplainFacts::array(), categories = ExplainFacts::object();
  int64_t rest = 0;
  const auto all = static_cast<double>(std::max<int64_t>(1, device_bytes(plan)));
  for (size_t i = 0; i < live.size(); ++i) {
    const Program& p = s.at(live[i].program);
    const TensorRecord& t = p.tensors[live[i].index];
    if (i >= most) {
      rest += t.bytes;
      continue;
    }
    holders.push_back({{"name", t.name.str()},
                       {"program", p.name.str()},
                       {"scope", t.scope.str()},
                       {"category", to_string(t.category)},
                       {"bytes", t.bytes},
                       {"share", static_cast<double>(t.bytes) / all},
                       {"address", address_of(p, live[i].index)},
                       {"why", why_there(p, live[i].index)}});
  }
  for (size_t c = 0; c < kCategories; ++c)
    if (plan.categories[c] > 0 && static_cast<Category>(c) != Category::offload)
      categories[to_string(static_cast<Category>(c))] = plan.categories[c];
  ExplainFacts facts = peak_facts(plan);
  facts["engine_bytes"] = plan.engine_bytes;
  facts["padding"] = plan.padding;
  facts["categories"] = categories;
  facts["holders"] = holders;
  facts["others"] = {{"count", live.size() - holders.size()}, {"bytes", rest}};
  return facts;
}

}  // namespace snug
