#include "tools/planner/plan_search.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "layers/models/recompute.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/residence.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

// Enough to prove the optimum of most stacks; beyond it the plan says how far it may be.
constexpr int64_t kLabels = 3000;

}  // namespace

PlanSearch::PlanSearch(const PlanRequest& request, std::shared_ptr<Recordings> recordings)
    : request_(request), cost_(request.cost), recordings_(std::move(recordings)) {
  if (cost_ == nullptr) {
    own_cost_ = std::make_unique<CostModel>(
        CostModel::uncalibrated(plan_instruction_set(), request.settings.threads));
    cost_ = own_cost_.get();
  }
  const PlanRequest& r = request;
  const bool trains = r.global_batch > 0, use_host = trains && r.use_host;
  const bool open = r.recompute.open() && trains;
  const bool choose = r.offload.open() && use_host;  // what is offloaded
  const LayerWords fixed = r.offload.open() ? LayerWords() : r.offload;
  // Of weights that are gathered a layer ahead the presets are looked at, as of streamed ones.
  layers_ = open && fixed.none() && r.zero < 3;
  stacks_ = layers_ && choose && r.model->backward_layers() > 1 && layers_save_alike(*r.model);

  if (trains && r.offload_optimizer != "cpu") states_away_.push_back(false);
  const bool some =
      !make_optimizer(r.optimizer)->state_names().empty() || r.model->precision().separate_master();
  if (trains && (r.offload_optimizer == "cpu" ||
                 (r.offload_optimizer == "auto" && (use_host || r.paged_states) && some)))
    states_away_.push_back(true);
  if (!trains) states_away_.push_back(false);

  std::vector<LayerWords> again, away = {fixed};
  if (open && !layers_)
    again = presets();
  else
    again.push_back(layers_ ? presets().back() : r.recompute.open() ? LayerWords() : r.recompute);
  if (choose && !layers_) away = {"none", "inputs", "block"};
  const auto add = [&](const std::vector<LayerWords>& aways,
                       const std::vector<LayerWords>& agains) {
    for (const bool states : states_away_)
      for (const LayerWords& offload : aways)
        for (const LayerWords& recompute : agains)
          if (aways.size() + agains.size() == 2 || policies_combine(recompute, offload, *r.model))
            ways_.push_back({recompute, offload, states,
                             (choose && !offload.none()) || (states && states_away_.size() > 1)});
  };
  add(away, again);
  // A lone layer is no stack: what it may leave with the host is looked at preset by preset.
  if (layers_ && choose && !stacks_) add({"inputs", "block"}, presets());
  std::stable_sort(ways_.begin(), ways_.end(),
                   [](const Way& x, const Way& y) { return x.moved < y.moved; });
  streamed_ = streamed_ways();
  if (trains) open_tried();
  if (trains && (r.offload_params == "cpu" || r.offload_gradients == "cpu")) {
    ways_.clear();
    layers_ = stacks_ = false;
  }
}

// What changes least first: of equally fast plans it is taken.
std::vector<PlanSearch::Gradients> PlanSearch::gradients(int64_t micro) const {
  const PlanRequest& r = request_;
  // In backward nothing is known of the norm of all gradients, nor of a later micro-step.
  const bool in_backward = r.global_batch > 0 && r.rows == 0 && r.max_grad_norm == 0 &&
                           micro * r.ranks >= r.global_batch &&
                           !r.model->precision().loss_scaling() && !states_on_disk(r);
  std::vector<Gradients> list;
  for (const DType t : {DType::f32, DType::bf16}) {
    // Allowed is not asked for: on a place that has no kernels for them they are not looked at.
    const bool kernels = t == DType::f32 || r.settings.target == Place::cpu;
    const bool allowed = t == DType::f32 || (r.bf16_gradients && r.global_batch > 0 && kernels);
    if (r.gradients ? t != *r.gradients : !allowed) continue;
    const bool fixed = r.update_in_backward.has_value();
    if (!fixed || !*r.update_in_backward) list.emplace_back(t, false);
    if (in_backward && (!fixed || *r.update_in_backward)) list.emplace_back(t, true);
  }
  require(!list.empty(), "gradients that these keys and the plan that is followed both allow");
  return list;
}

Decisions PlanSearch::decide(const Key& key) const {
  const PlanRequest& r = request_;
  Decisions d;
  d.T = r.T;
  d.micro_batch = key.micro;
  d.head_rows = key.head_rows;
  d.gradients = key.gradients.first;
  d.update_in_backward = key.gradients.second;
  d.recompute = key.way.recompute;
  d.offload = key.way.offload;
  d.offload_optimizer = key.way.states_away;
  d.offload_params = key.way.params_away;
  d.offload_gradients = key.way.grads_away;
  d.update_on_host = key.way.updates_away;
  d.delayed_update = key.way.late;
  d.states_on_disk = states_on_disk(r);
  if (r.evaluate) d.eval_batch = r.eval_batch > 0 ? r.eval_batch : std::max<int64_t>(1, key.micro);
  d.kv_length = r.kv_length;
  d.kv_rows = r.kv_length > 0 ? r.kv_rows : 1;
  d.prefill = r.kv_length > 0 ? std::min<int64_t>(32, r.kv_length) : 0;
  d.max_grad_norm = r.max_grad_norm;
  d.loss_scaling = r.loss_scaling;
  d.save = r.save;
  d.packing_boundaries = r.packing_boundaries;
  d.rows_per_window = r.rows_per_window;
  d.pairs = r.pairs;
  d.token_logits = r.token_logits;
  if (r.save && r.global_batch > 0) d.save_ring = save_ring_bytes(r);
  d.packed_weights = r.packed_weights.value_or(WeightPacking::none);
  d.ranks = r.ranks;
  d.zero = r.global_batch > 0 ? r.zero : 0;
  d.staged = r.staged;
  if (r.global_batch > 0)
    for (const Decision& row : decision_table())
      if (row.tries != nullptr) row.decide(r, d);
  return d;
}

// With each value of a decision that is left open and tried; of two such every pair once.
void PlanSearch::open_tried() {
  PlanRequest rest = request_;
  for (const Decision& row : decision_table()) {
    if (row.tries == nullptr || !row.asked_for(rest).empty()) continue;
    const bool hosts = std::holds_alternative<const ResidenceKey*>(row.decided);
    for (const std::string& value : row.tries(rest)) {
      Tried& tried = *tried_.emplace_back(std::make_unique<Tried>(rest, hosts));
      Decisions d;
      row.set(value, d);
      row.fix(d, tried.request);
      tried.search = std::make_unique<PlanSearch>(tried.request, recordings_);
    }
    row.fix(Decisions(), rest);
  }
}

// The largest first.
std::vector<int64_t> PlanSearch::micros() const {
  const PlanRequest& r = request_;
  if (r.global_batch <= 0) return {0};
  const int64_t windows = rank_batch(r);
  if (r.micro_batch > 0) return {std::min(r.micro_batch, windows)};
  if (r.bitwise) return {windows};
  std::vector<int64_t> list;  // divisors
  for (int64_t d = 1; d * d <= windows; ++d)
    if (windows % d == 0) {
      list.push_back(d);
      if (d != windows / d) list.push_back(windows / d);
    }
  std::sort(list.begin(), list.end(), std::greater<>());
  const auto small = std::find_if(list.begin(), list.end() - 1,
                                  [&](int64_t micro) { return micro <= kMostRows / r.T; });
  list.erase(list.begin(), small);
  return list;
}

std::vector<int64_t> PlanSearch::head_chunks(int64_t micro) const {
  const PlanRequest& r = request_;
  const int64_t N = std::max({micro, r.eval_batch, int64_t{1}}) * r.T;
  if (r.head_rows > 0) return {std::min(r.head_rows, N)};
  if (r.bitwise) return {std::min<int64_t>(1024, N)};
  std::vector<int64_t> list;
  for (const int64_t rows : {1024, 256, 64})
    if (list.empty() || rows < list.back()) list.push_back(std::min<int64_t>(rows, N));
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

PlanSearch::Choice PlanSearch::solve(const Config& c, int64_t room, double tolerance,
                                     double* bound) {
  Choice choice;
  choice.decisions = c.decisions;
  choice.host_bytes = c.host;
  choice.moved = c.moved;
  *bound = judged(c.decisions, c.seconds);
  const PlanRequest& r = request_;
  if (r.host_budget > 0 && c.host > r.host_budget) return choice;
  // What the host's arena takes of the free memory is not the device's.
  if (c.host > 0 && r.free_bytes > 0) {
    if (!one_memory() && c.host > r.free_bytes) return choice;
    if (one_memory()) room = std::min(room, r.free_bytes - c.host);
  }
  if (!c.layered) {
    const bool streams = c.decisions.offload_params || c.decisions.offload_gradients;
    choice.feasible = c.bound <= room;
    choice.engine_bytes = c.bound;
    choice.step_seconds = *bound;
    const size_t ways = streams ? streamed_.size() : ways_.size();
    choice.optimality = ways > 1 ? "the fastest of the presets" : "fixed by recompute";
    return choice;
  }
  if (c.others > room) return choice;
  const ModelOptions& ways = block_options(c.decisions);
  LayerProblem p = ways.problem();
  p.tail = c.tail;
  if (room < kNoLimit) p.limit = room / kArenaUnit * kArenaUnit - c.base;
  const LayerSolution s =
      solve_layers(p, {.two_group_tolerance = tolerance, .most_labels = kLabels});
  if (!s.feasible) return choice;
  *bound = judged(c.decisions, c.outside + c.micro_steps * s.bound);
  choice = choice_of(c, ways, s);
  choice.feasible = true;
  choice.optimality = optimality_text(s);
  return choice;
}

PlanSearch::Choice PlanSearch::choice_of(const Config& c, const ModelOptions& ways,
                                         const LayerSolution& s) {
  Choice choice;
  choice.decisions = c.decisions;
  choice.moved = c.moved;
  choice.host_bytes = c.host;
  choice.step_seconds = judged(c.decisions, c.outside + c.micro_steps * s.seconds);
  choice.engine_bytes = std::max(c.others, round_up(c.base + s.peak, kArenaUnit));
  std::vector<LayerWords> names;
  for (size_t l = 0; l < s.choice.size(); ++l)
    names.push_back(
        ways.kinds[static_cast<size_t>(ways.of_layer[l])].names[static_cast<size_t>(s.choice[l])]);
  if (!names.empty())
    names.insert(names.begin(), static_cast<size_t>(ways.below), LayerWords(names.front()));
  choice.decisions.recompute = LayerWords::of(names);
  return choice;
}

PlanSearch::Choice PlanSearch::best_unpacked(int64_t room, bool bounded) {
  const Choice& groups = best_of_groups(room);
  return stacks_ ? with_mixed(room, groups, bounded) : groups;
}

const PlanSearch::Choice& PlanSearch::best_of_groups(int64_t room) {
  const auto found = of_groups_.find(room);
  if (found != of_groups_.end()) return found->second;
  double bound = INFINITY;
  // What the user set there, weights and gradients too, is not the search's doing.
  const Choice unmoved = best_streamed(room, false, best_way(room, false, {}, &bound));
  Choice best = best_way(room, true, unmoved, &bound);
  if (stacks_) best = best_stack(room, std::move(best));
  best = best_streamed(room, true, std::move(best));
  best.bound_seconds = std::min(best.step_seconds, bound);
  best.unmoved_seconds = unmoved.feasible ? unmoved.step_seconds : 0.0;
  return of_groups_[room] = std::move(best);
}

// Bytes that the inputs of all blocks take together.
double PlanSearch::inputs(int64_t micro) const {
  const Model& model = *request_.model;
  return static_cast<double>(micro) *
         static_cast<double>(request_.T * model.spec().C * model.backward_layers()) *
         static_cast<double>(size_of(request_.model->precision().compute));
}

PlanSearch::Choice PlanSearch::best_way(int64_t room, bool moved, Choice best, double* least) {
  struct Solved {
    size_t config;
    double bound;
  };
  std::vector<const Config*> looked_at;
  for (const int64_t micro : micros())
    for (const int64_t rows : head_chunks(micro))
      for (const Way& way : ways_) {
        if (way.moved != moved) continue;
        // Every way to run a block keeps its input, if it is not offloaded: where these alone do
        // not fit nothing is recorded.
        if (way.offload.none() && inputs(micro) > static_cast<double>(room)) continue;
        for (const Gradients& gradient : gradients(micro)) {
          const Key key{micro, rows, gradient, way};
          if (moved && best.feasible && floor(key) >= best.step_seconds) continue;
          if (unpacked_ != nullptr && packing_floor(key) >= below_) continue;
          looked_at.push_back(config(key));
        }
      }
  // What two groups take at most says of most others that they need no solution.
  std::vector<size_t> order(looked_at.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return looked_at[a]->floor < looked_at[b]->floor; });
  std::vector<Solved> open;
  double known = best.feasible ? best.step_seconds : INFINITY;
  for (const size_t i : order) {
    if (looked_at[i]->floor * (1 - 1e-9) > known) break;
    double bound = 0;
    const Choice choice = solve(*looked_at[i], room, 1.0, &bound);
    if (!choice.feasible) continue;
    open.push_back({i, bound});
    known = std::min(known, choice.step_seconds);
  }
  // Of equal ones the larger micro-batch and chunk stay first.
  std::sort(open.begin(), open.end(), [](const Solved& a, const Solved& b) {
    return a.bound != b.bound ? a.bound < b.bound : a.config < b.config;
  });
  for (const Solved& o : open) {
    if (best.feasible && o.bound >= best.step_seconds) break;
    double bound = 0;
    // The exact solution: a plan that is preferred for its form would make a larger budget slower.
    Choice choice = solve(*looked_at[o.config], room, 0.0, &bound);
    *least = std::min(*least, bound);
    // An update in backward does the same work: what the sums of seconds round is no reason for it.
    const double most = best.step_seconds * (choice.decisions.update_in_backward ? 1 - 1e-9 : 1.0);
    if (choice.feasible && (!best.feasible || choice.step_seconds < most)) best = std::move(choice);
  }
  return best;
}

StackProblem PlanSearch::stack_problem(const Config& c) {
  StackProblem p;
  p.options = &stack_options(c.decisions);
  p.layers = request_.model->backward_layers();
  p.tail = c.tail;
  p.tail_back = c.tail_back;
  p.hidden = c.last;
  if (request_.host_budget > 0) p.host_limit = request_.host_budget - c.host;
  if (request_.free_bytes > 0) {
    if (one_memory()) p.sum_limit = request_.free_bytes / kArenaUnit * kArenaUnit - c.base - c.host;
    p.host_limit =
        std::min(p.host_limit, request_.free_bytes - c.host - (one_memory() ? c.others : 0));
  }
  return p;
}

PlanSearch::Choice PlanSearch::choice_of(const Config& c, const StackProblem& p,
                                         const StackPlan& plan) {
  Choice choice;
  choice.feasible = choice.moved = true;
  choice.decisions = c.decisions;
  choice.decisions.recompute = stack_recompute(p, plan);
  choice.decisions.offload = stack_offload(p, plan);
  choice.engine_bytes = std::max(c.others, round_up(c.base + plan.peak, kArenaUnit));
  choice.host_bytes = c.host + plan.host;
  choice.optimality = "the fastest of the stacks whose first layers offload";
  return choice;
}

const PlanSearch::Config& PlanSearch::stack_config(int64_t micro, int64_t head_rows,
                                                   const Gradients& gradients, bool states_away) {
  return *config({micro, head_rows, gradients, stack_way(states_away)});
}

const PlanSearch::Way& PlanSearch::stack_way(bool states_away) const {
  for (const Way& way : ways_)
    if (way.states_away == states_away) return way;
  fail(ErrorCode::internal, "a residence of the states that is to be looked at", "another",
       "this is a defect in Snug: please report it");
}

std::vector<PlanSearch::Choice> PlanSearch::stacks(int64_t micro, int64_t head_rows,
                                                   bool states_away, Gradients gradients) {
  std::vector<Choice> list;
  if (!stacks_) return list;
  const Config& c = stack_config(micro, head_rows, gradients, states_away);
  const StackProblem p = stack_problem(c);
  for (const StackPlan& plan : stack_plans(p, INFINITY)) {
    list.push_back(choice_of(c, p, plan));
    list.back().step_seconds = c.outside + c.micro_steps * plan.bound;
  }
  return list;
}

PlanSearch::Choice PlanSearch::best_stack(int64_t room, Choice best) {
  for (const Open& o : open_configs(room)) {
    if (best.feasible && o.floor >= best.step_seconds) break;
    best = best_stack(room, stack_config(o.micro, o.rows, o.gradients, o.states), std::move(best));
  }
  return best;
}

PlanSearch::Choice PlanSearch::best_stack(int64_t room, const Config& c, Choice best) {
  if (c.others > room) return best;
  StackProblem p = stack_problem(c);
  if (room < kNoLimit) p.limit = room / kArenaUnit * kArenaUnit - c.base;
  constexpr double kAway = 1 + kHostMargin;
  const double below =
      best.feasible ? (best.step_seconds / kAway - c.outside) / c.micro_steps : INFINITY;
  const std::vector<StackPlan> plans = stack_plans(p, below);
  if (plans.empty()) return best;
  // A bound of three streams is closer than that of their sums: the plan for which it is least,
  // recorded first, says of most others that they need no record. Order and choice stay the same.
  LinkedProblem& streams = linked(c);
  set_limits(c, room, streams);
  const auto at_least = [&](const StackPlan& plan) {
    const double seconds = evaluate_linked(streams, linked_choice(p, plan)).seconds;
    return kAway * (c.outside + c.micro_steps * seconds * (1 - 1e-9));
  };
  constexpr size_t kFirst = 64;
  const StackPlan* promising = nullptr;
  double least = INFINITY;
  for (size_t i = 0; i < std::min(kFirst, plans.size()); ++i)
    if (const double seconds = at_least(plans[i]); seconds < least)
      least = seconds, promising = &plans[i];
  double known = best.feasible ? best.step_seconds : INFINITY;
  if (least < known) known = std::min(known, seconds_of(c, choice_of(c, p, *promising).decisions));
  for (const StackPlan& plan : plans) {
    if (best.feasible && kAway * (c.outside + c.micro_steps * plan.bound) >= best.step_seconds)
      break;
    if (at_least(plan) > known) continue;
    Choice choice = choice_of(c, p, plan);
    choice.step_seconds = seconds_of(c, choice.decisions);
    known = std::min(known, choice.step_seconds);
    // An update in backward does the same work: what the sums of seconds round is no reason.
    const double most = best.step_seconds * (c.decisions.update_in_backward ? 1 - 1e-9 : 1.0);
    if (!best.feasible || choice.step_seconds < most) best = std::move(choice);
  }
  return best;
}

double PlanSearch::judged(const Decisions& d, double seconds) {
  if (d.packed_weights != WeightPacking::none) seconds *= 1 + kPackingMargin;
  return !d.offload.none() || rests_away(d) ? seconds * (1 + kHostMargin) : seconds;
}

// As it is judged. The update is that of the configuration: slots are nothing to it.
double PlanSearch::seconds_of(const Config& c, const Decisions& d) {
  auto found = recordings_->micro_steps.find(d);
  if (found == recordings_->micro_steps.end()) {
    Session session(Place::plan, *request_.model, d, request_.optimizer, request_.settings);
    session.open({.micro_steps = true});
    const auto of = [&](const char* name) {
      return cost_->seconds(session.schedule().at(session.schedule().find(name)),
                            d.micro_batch * d.T);
    };
    found = recordings_->micro_steps
                .try_emplace(d, of(only_micro_step(session.schedule())), of("micro_next"))
                .first;
  }
  const auto& [first, next] = found->second;
  return judged(d, first + (c.micro_steps - 1) * next + c.update);
}

// Fewer rows and smaller chunks never need more, so they are the last of their lists. More
// recompute may: in a model of one layer the slots that come back meet the same gradients as those
// that stayed. So the presets are asked too.
const std::vector<PlanSearch::Choice>& PlanSearch::least() {
  if (!least_.empty()) return least_;
  std::vector<Choice>& list = least_;
  const auto add = [&](Choice c) {
    c.feasible = true;
    c.optimality = "the smallest";
    list.push_back(std::move(c));
  };
  const auto add_recorded = [&](const Config& c) {
    Choice choice;
    choice.moved = c.moved;
    choice.decisions = c.decisions;
    choice.engine_bytes = c.bound;
    choice.host_bytes = c.host;
    choice.step_seconds = c.seconds;
    add(std::move(choice));
  };
  const auto add_all = [&](int64_t micro, const Gradients& gradient, const Way& way) {
    const Config& c = *config({micro, head_chunks(micro).back(), gradient, way});
    if (!c.layered) return add_recorded(c);
    const ModelOptions& ways = block_options(c.decisions);
    LayerProblem p = ways.problem();
    p.tail = c.tail;
    for (const LayerWords& preset : presets()) {
      std::vector<int> of_kind;
      for (const BlockOptions& kind : ways.kinds) {
        const auto name = std::find(kind.names.begin(), kind.names.end(), preset);
        if (name == kind.names.end()) break;  // another way is beaten in nothing
        of_kind.push_back(static_cast<int>(name - kind.names.begin()));
      }
      if (of_kind.size() < ways.kinds.size()) continue;
      std::vector<int> choice;
      for (const int kind : ways.of_layer) choice.push_back(of_kind[static_cast<size_t>(kind)]);
      add(choice_of(c, ways, evaluate_layers(p, choice)));
    }
    if (const LayerSolution s = least_peak(p); s.feasible) add(choice_of(c, ways, s));
    if (!stacks_) return;
    const StackProblem stack = stack_problem(c);
    StackPlan plan;
    if (!least_stack(stack, &plan)) return;
    add(choice_of(c, stack, plan));
    // A way for each layer, where that takes fewer pages than what there is so far and the host has
    // room for.
    int64_t fewest = list.back().engine_bytes;
    for (const Choice& other : list)
      if ((request_.host_budget == 0 || other.host_bytes <= request_.host_budget) &&
          (request_.free_bytes == 0 ||
           (one_memory() ? other.engine_bytes : 0) + other.host_bytes <= request_.free_bytes))
        fewest = std::min(fewest, other.engine_bytes);
    LinkedProblem& linked_problem = linked(c);
    set_limits(c, kNoLimit, linked_problem);
    const LinkedSolution s = least_linked(linked_problem, fewest - kArenaUnit - c.base + 1);
    if (s.feasible && c.others < fewest) add(choice_of(c, s));
  };
  // Of the dtypes the one of the fewest bytes; an update in backward needs the whole batch at once.
  const int64_t fewest = micros().back(), most = micros().front();
  const Gradients last = gradients(most).back();
  std::vector<std::pair<int64_t, Gradients>> asked;
  if (!request_.update_in_backward || !*request_.update_in_backward)
    asked.push_back({fewest, {last.first, false}});
  if (last.second) asked.push_back({most, {last.first, true}});
  for (const Way& way : ways_)
    for (const auto& [micro, gradient] : asked) add_all(micro, gradient, way);
  for (const auto& [micro, gradient] : asked) {
    // From the last of those with the same with the host, which recomputes most: what saves more
    // than the least whole arena so far needs no record. Most recomputation is not always least
    // memory.
    std::map<std::tuple<LayerWords, bool, bool, bool, bool, bool>, int64_t> bytes_of;
    const auto before = static_cast<std::ptrdiff_t>(list.size());
    for (auto way = streamed_.rbegin(); way != streamed_.rend(); ++way) {
      if (way->grads_away && gradient.second) continue;  // which has none to keep
      const std::tuple kind{way->offload,    way->states_away,  way->params_away,
                            way->grads_away, way->updates_away, way->late};
      const auto known = bytes_of.find(kind);
      const Key key{micro, head_chunks(micro).back(), gradient, *way};
      if (known != bytes_of.end() && streamed_saved(key) >= known->second) continue;
      const size_t added = list.size();
      add_all(micro, gradient, *way);
      int64_t& least =
          bytes_of.try_emplace(kind, std::numeric_limits<int64_t>::max()).first->second;
      for (size_t i = added; i < list.size(); ++i) least = std::min(least, list[i].engine_bytes);
    }
    std::reverse(list.begin() + before, list.end());
  }
  for (const std::unique_ptr<Tried>& tried : tried_)
    for (Choice c : tried->search->least()) {
      c.moved = c.moved || tried->hosts;
      list.push_back(std::move(c));
    }
  std::stable_sort(list.begin(), list.end(), [](const Choice& a, const Choice& b) {
    return a.engine_bytes < b.engine_bytes;
  });
  return list;
}

}  // namespace snug
