#include "tools/trainer/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "layers/models/recompute.h"

namespace snug {
namespace {

// Enough to prove the optimum of most stacks; beyond it the plan says how far it may be.
constexpr int64_t kLabels = 3000;
constexpr int64_t kArenaUnit = 4096;  // Schedule::arena_bytes() rounds up to it

constexpr const char* kPresets[] = {"none", "norms", "norms+mlp", "mlp+attention+norms", "block"};

// Where a program's ops of one scope begin and end, in ticks.
std::pair<int64_t, int64_t> ticks_of(const Program& p, std::string_view scope) {
  int64_t first = INT64_MAX, last = 0;
  for (const OpRecord& op : p.ops)
    if (op.scope.view() == scope) {
      first = std::min(first, tick_of(op));
      last = std::max(last, tick_of(op));
    }
  return {first, last};
}

}  // namespace

PlanSearch::PlanSearch(const PlanRequest& request) : request_(request), cost_(request.cost) {
  if (cost_ == nullptr) {
    own_cost_ = std::make_unique<CostModel>(
        CostModel::uncalibrated(plan_instruction_set(), request.settings.threads));
    cost_ = own_cost_.get();
  }
  const PlanRequest& r = request;
  const bool trains = r.global_batch > 0, use_host = trains && r.use_host;
  const bool open = r.recompute == "auto" && trains;
  const bool choose = r.offload == "auto" && use_host;  // what is offloaded
  const std::string fixed = r.offload == "auto" ? "none" : r.offload;
  layers_ = open && fixed == "none";
  stacks_ = layers_ && choose && r.model->spec().L > 1;

  if (trains && r.offload_optimizer != "cpu") states_away_.push_back(false);
  const bool some =
      !make_optimizer(r.optimizer)->state_names().empty() || r.model->precision().separate_master();
  if (trains &&
      (r.offload_optimizer == "cpu" || (r.offload_optimizer == "auto" && use_host && some)))
    states_away_.push_back(true);
  if (!trains) states_away_.push_back(false);

  std::vector<std::string> again, away = {fixed};
  if (open && !layers_)
    again.assign(std::begin(kPresets), std::end(kPresets));
  else
    again.emplace_back(layers_ ? "block" : r.recompute == "auto" ? "none" : r.recompute);
  if (choose && !layers_) away = {"none", "inputs", "block"};
  for (const bool states : states_away_)
    for (const std::string& offload : away)
      for (const std::string& recompute : again)
        if (away.size() + again.size() == 2 || policies_combine(recompute, offload, *r.model))
          ways_.push_back({recompute, offload, states,
                           (choose && offload != "none") || (states && states_away_.size() > 1)});
  std::stable_sort(ways_.begin(), ways_.end(),
                   [](const Way& x, const Way& y) { return x.moved < y.moved; });
  streamed_ = streamed_ways();
  if (trains && (r.offload_params == "cpu" || r.offload_gradients == "cpu")) {
    ways_.clear();
    layers_ = stacks_ = false;
  }
}

// What changes least first: of equally fast plans it is taken.
std::vector<PlanSearch::Gradients> PlanSearch::gradients(int64_t micro) const {
  const PlanRequest& r = request_;
  // In backward nothing is known of the norm of all gradients, nor of a later micro-step.
  const bool in_backward = r.global_batch > 0 && r.max_grad_norm == 0 && micro >= r.global_batch &&
                           !r.model->precision().loss_scaling();
  std::vector<Gradients> list;
  for (const DType t : {DType::f32, DType::bf16}) {
    const bool allowed = t == DType::f32 || (r.bf16_gradients && r.global_batch > 0);
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
  if (r.evaluate) d.eval_batch = r.eval_batch > 0 ? r.eval_batch : std::max<int64_t>(1, key.micro);
  d.kv_length = r.kv_length;
  d.kv_rows = r.kv_length > 0 ? r.kv_rows : 1;
  d.prefill = r.kv_length > 0 ? std::min<int64_t>(32, r.kv_length) : 0;
  d.max_grad_norm = r.max_grad_norm;
  d.loss_scaling = r.loss_scaling;
  d.save = r.save;
  d.packing_boundaries = r.packing_boundaries;
  if (r.save && r.global_batch > 0) d.save_ring = save_ring_bytes(r);
  d.packed_weights = r.packed_weights.value_or(WeightPacking::none);
  return d;
}

// The largest first.
std::vector<int64_t> PlanSearch::micros() const {
  const PlanRequest& r = request_;
  if (r.global_batch <= 0) return {0};
  if (r.micro_batch > 0) return {std::min(r.micro_batch, r.global_batch)};
  if (r.bitwise) return {r.global_batch};
  std::vector<int64_t> list;  // divisors
  for (int64_t d = 1; d * d <= r.global_batch; ++d)
    if (r.global_batch % d == 0) {
      list.push_back(d);
      if (d != r.global_batch / d) list.push_back(r.global_batch / d);
    }
  std::sort(list.begin(), list.end(), std::greater<>());
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

std::unique_ptr<Session> PlanSearch::record(const Decisions& d) const {
  auto session = std::make_unique<Session>(Place::plan, *request_.model, d, request_.optimizer,
                                           request_.settings);
  session->open();
  return session;
}

double PlanSearch::step_seconds(const Schedule& s, const Decisions& d) const {
  if (d.micro_batch <= 0) return 0;
  const auto of = [&](const char* name) {
    return cost_->seconds(s.at(s.find(name)), d.micro_batch * d.T);
  };
  const auto accumulation = static_cast<double>(ceil_div(request_.global_batch, d.micro_batch));
  return of("micro_first") + (accumulation - 1) * of("micro_next") + of("update");
}

const BlockOptions& PlanSearch::block_options(const Decisions& d) {
  // Where the states rest is nothing to a block that does not update.
  const std::tuple key{d.micro_batch, Gradients{d.gradients, d.update_in_backward},
                       d.update_in_backward && d.offload_optimizer};
  const auto found = blocks_.find(key);
  if (found != blocks_.end()) return found->second;
  return blocks_[key] = record_block_options(*request_.model, d, request_.optimizer,
                                             request_.settings, *cost_);
}

const StackOptions& PlanSearch::stack_options(const Decisions& d) {
  const std::pair key{d.micro_batch, d.gradients};
  const auto found = stacks_of_.find(key);
  if (found != stacks_of_.end()) return found->second;
  return stacks_of_[key] = record_stack_options(*request_.model, d, request_.optimizer,
                                                request_.settings, *cost_, block_options(d).names);
}

PlanSearch::Config* PlanSearch::config(const Key& key) {
  std::unique_ptr<Config>& slot = configs_[key];
  if (slot) return slot.get();
  slot = std::make_unique<Config>();
  Config& c = *slot;
  c.decisions = decide(key);
  c.moved = key.way.moved;
  const std::unique_ptr<Session> session = record(c.decisions);
  const Schedule& s = session->schedule();
  c.bound = s.lower_bound();
  c.host = s.lower_bound(Residence::host);
  c.seconds = step_seconds(s, c.decisions);
  if (key.way.streams())
    for (const TensorRecord& t : s.at(s.find("root")).tensors)
      if (t.residence == Residence::device && t.category != Category::batch) c.base += t.bytes;
  if (!layers_ || key.way.streams()) return slot.get();

  const BlockOptions& block = block_options(c.decisions);
  const LayerOption& least = block.options.back();  // the input alone, as recorded
  const int64_t L = request_.model->spec().L;
  const Program& p = s.at(s.find("micro_next"));
  const Program& root = s.at(s.find("root"));
  c.base = most_live_bytes(root, root.ticks, root.ticks);
  // The head's ops lie between the passes, the embedding's outside them.
  const auto head = ticks_of(p, "head");
  c.tail = most_live_bytes(p, head.first, head.second) - L * least.saved;
  c.tail_back = most_live_bytes(p, head.second, head.second) - L * least.saved;
  for (const OpRecord& op : p.ops)
    if (op.scope.view() == "head") c.last = cost_->seconds(op, key.micro * request_.T);
  const int64_t outside = std::max(most_live_bytes(p, 0, tick_of(p.ops.front())),
                                   most_live_bytes(p, tick_of(p.ops.back()), p.ticks));
  c.others = round_up(
      std::max(s.lower_bound_except({"micro_first", "micro_next"}), c.base + outside), kArenaUnit);
  c.micro_steps = static_cast<double>(ceil_div(request_.global_batch, key.micro));
  c.update = cost_->seconds(s.at(s.find("update")), key.micro * request_.T);
  c.outside = c.seconds - c.micro_steps * static_cast<double>(L) * least.seconds();
  return slot.get();
}

double PlanSearch::floor(int64_t micro, int64_t head_rows) {
  double least = INFINITY;
  for (const Gradients& gradient : gradients(micro))
    for (const Way& way : ways_) {
      if (way.moved) break;
      const Config& c = *config({micro, head_rows, gradient, way});
      double seconds = c.seconds;
      if (layers_) {
        double layer = INFINITY;
        for (const LayerOption& o : block_options(c.decisions).options)
          layer = std::min(layer, o.seconds());
        seconds = c.outside + c.micro_steps * static_cast<double>(request_.model->spec().L) * layer;
      }
      least = std::min(least, seconds);
    }
  return least;
}

PlanSearch::Choice PlanSearch::solve(const Config& c, int64_t room, double tolerance,
                                     double* bound) {
  Choice choice;
  choice.decisions = c.decisions;
  choice.host_bytes = c.host;
  choice.moved = c.moved;
  *bound = c.seconds;
  const PlanRequest& r = request_;
  if (r.host_budget > 0 && c.host > r.host_budget) return choice;
  // What the host's arena takes of the free memory is not the device's.
  if (c.host > 0 && r.free_bytes > 0) {
    if (!one_memory() && c.host > r.free_bytes) return choice;
    if (one_memory()) room = std::min(room, r.free_bytes - c.host);
  }
  const bool streams = c.decisions.offload_params || c.decisions.offload_gradients;
  if (!layers_ || streams) {
    choice.feasible = c.bound <= room;
    choice.engine_bytes = c.bound;
    choice.step_seconds = c.seconds;
    const size_t ways = streams ? streamed_.size() : ways_.size();
    choice.optimality = ways > 1 ? "the fastest of the presets" : "fixed by recompute";
    return choice;
  }
  if (c.others > room) return choice;
  const BlockOptions& block = block_options(c.decisions);
  LayerProblem p;
  p.kinds.push_back(block.options);
  p.layers.assign(static_cast<size_t>(request_.model->spec().L), 0);
  p.tail = c.tail;
  if (room < kNoLimit) p.limit = room / kArenaUnit * kArenaUnit - c.base;
  const LayerSolution s =
      solve_layers(p, {.two_group_tolerance = tolerance, .most_labels = kLabels});
  if (!s.feasible) return choice;
  *bound = c.outside + c.micro_steps * s.bound;
  choice.step_seconds = c.outside + c.micro_steps * s.seconds;
  choice.engine_bytes = std::max(c.others, round_up(c.base + s.peak, kArenaUnit));
  choice.feasible = true;
  choice.optimality = optimality_text(s);
  std::vector<std::string> names;
  for (const int k : s.choice) names.push_back(block.names[static_cast<size_t>(k)]);
  choice.decisions.recompute = recompute_text(names);
  return choice;
}

PlanSearch::Choice PlanSearch::best(int64_t room) {
  const Choice& groups = best_of_groups(room);
  return stacks_ ? with_mixed(room, groups) : groups;
}

const PlanSearch::Choice& PlanSearch::best_of_groups(int64_t room) {
  const auto found = of_groups_.find(room);
  if (found != of_groups_.end()) return found->second;
  double bound = INFINITY;
  const Choice unmoved = best_way(room, false, {}, &bound);
  Choice best = best_way(room, true, unmoved, &bound);
  if (stacks_) best = best_stack(room, std::move(best));
  best = best_streamed(room, std::move(best));
  best.bound_seconds = std::min(best.step_seconds, bound);
  best.unmoved_seconds = unmoved.feasible ? unmoved.step_seconds : 0.0;
  return of_groups_[room] = std::move(best);
}

// Bytes that the inputs of all blocks take together.
double PlanSearch::inputs(int64_t micro) const {
  const ModelSpec& spec = request_.model->spec();
  return static_cast<double>(micro) * static_cast<double>(request_.T * spec.C * spec.L) *
         static_cast<double>(size_of(request_.model->precision().compute));
}

PlanSearch::Choice PlanSearch::best_way(int64_t room, bool moved, Choice best, double* least) {
  struct Open {
    const Config* config;
    double bound;
  };
  std::vector<Open> open;
  for (const int64_t micro : micros())
    for (const int64_t rows : head_chunks(micro))
      for (const Way& way : ways_) {
        if (way.moved != moved) continue;
        // Every way to run a block keeps its input, if it is not offloaded: where these alone do
        // not fit nothing is recorded.
        if (way.offload == "none" && inputs(micro) > static_cast<double>(room)) continue;
        if (moved && best.feasible && floor(micro, rows) >= best.step_seconds) continue;
        for (const Gradients& gradient : gradients(micro)) {
          const Config* c = config({micro, rows, gradient, way});
          double bound = 0;
          if (solve(*c, room, 1.0, &bound).feasible) open.push_back({c, bound});
        }
      }
  // Of equal ones the larger micro-batch and chunk stay first.
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.bound < b.bound; });
  for (const Open& o : open) {
    if (best.feasible && o.bound >= best.step_seconds) break;
    double bound = 0;
    // The exact solution: a plan that is preferred for its form would make a larger budget slower.
    Choice choice = solve(*o.config, room, 0.0, &bound);
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
  p.layers = request_.model->spec().L;
  p.tail = c.tail;
  p.tail_back = c.tail_back;
  p.hidden = c.last;
  if (request_.host_budget > 0) p.host_limit = request_.host_budget - c.host;
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

// Of stacks that offload, updates in backward are not looked at.
const PlanSearch::Config& PlanSearch::stack_config(int64_t micro, int64_t head_rows,
                                                   DType gradients, bool states_away) {
  for (const Way& way : ways_)
    if (way.states_away == states_away) return *config({micro, head_rows, {gradients, false}, way});
  fail(ErrorCode::internal, "a residence of the states that is to be looked at", "another",
       "this is a defect in Snug: please report it");
}

std::vector<PlanSearch::Choice> PlanSearch::stacks(int64_t micro, int64_t head_rows,
                                                   bool states_away, DType gradients) {
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
  struct Open {
    int64_t micro, rows;
    DType gradients;
    bool states_away;
    double floor;
  };
  std::vector<Open> open;
  for (const int64_t micro : micros()) {
    if (!block_fits(micro, room)) continue;
    for (const int64_t rows : head_chunks(micro))
      for (const Gradients& gradient : gradients(micro))
        for (const bool states : states_away_)
          if (!gradient.second)
            open.push_back({micro, rows, gradient.first, states, floor(micro, rows)});
  }
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.floor < b.floor; });
  for (const Open& o : open) {
    if (best.feasible && o.floor >= best.step_seconds) break;
    const Config& c = stack_config(o.micro, o.rows, o.gradients, o.states_away);
    if (c.others > room) continue;
    StackProblem p = stack_problem(c);
    if (room < kNoLimit) p.limit = room / kArenaUnit * kArenaUnit - c.base;
    if (request_.free_bytes > 0) {
      if (one_memory())
        p.sum_limit = request_.free_bytes / kArenaUnit * kArenaUnit - c.base - c.host;
      p.host_limit =
          std::min(p.host_limit, request_.free_bytes - c.host - (one_memory() ? c.others : 0));
    }
    const double below = best.feasible ? (best.step_seconds - c.outside) / c.micro_steps : INFINITY;
    for (const StackPlan& plan : stack_plans(p, below)) {
      if (best.feasible && c.outside + c.micro_steps * plan.bound >= best.step_seconds) break;
      Choice choice = choice_of(c, p, plan);
      choice.step_seconds = seconds_of(c, choice.decisions);
      if (!best.feasible || choice.step_seconds < best.step_seconds) best = std::move(choice);
    }
  }
  return best;
}

// The update is that of the configuration: slots are nothing to it.
double PlanSearch::seconds_of(const Config& c, const Decisions& d) {
  const std::string key =
      fmt::format("{} {} {} {} {} {}", d.micro_batch, d.head_rows, to_string(d.gradients),
                  d.recompute, d.offload, d.offload_optimizer);
  const auto found = seconds_.find(key);
  if (found != seconds_.end()) return found->second;
  Session session(Place::plan, *request_.model, d, request_.optimizer, request_.settings);
  session.open_micro_steps();
  const auto of = [&](const char* name) {
    return cost_->seconds(session.schedule().at(session.schedule().find(name)),
                          d.micro_batch * d.T);
  };
  return seconds_[key] = of("micro_first") + (c.micro_steps - 1) * of("micro_next") + c.update;
}

// Fewer rows and smaller chunks never need more, so they are the last of their lists. More
// recompute may: in a model of one layer the slots that come back meet the same gradients as those
// that stayed. So the presets are asked too.
const std::vector<PlanSearch::Choice>& PlanSearch::least() {
  if (!least_.empty()) return least_;
  std::vector<Choice>& list = least_;
  const auto add = [&](const Key& key) {
    Choice c;
    c.feasible = true;
    c.moved = key.way.moved;
    c.decisions = decide(key);
    const std::unique_ptr<Session> session = record(c.decisions);
    c.engine_bytes = session->schedule().lower_bound();
    c.host_bytes = session->schedule().lower_bound(Residence::host);
    c.step_seconds = step_seconds(session->schedule(), c.decisions);
    c.optimality = "the smallest";
    list.push_back(std::move(c));
  };
  const auto add_all = [&](int64_t micro, const Gradients& gradient, const Way& way) {
    Key key{micro, head_chunks(micro).back(), gradient, way};
    if (!layers_ || way.streams()) return add(key);
    const Config& c = *config(key);
    for (const char* preset : kPresets) {
      key.way.recompute = preset;
      add(key);
    }
    const BlockOptions& block = block_options(c.decisions);
    LayerProblem p;
    p.kinds.push_back(block.options);
    p.layers.assign(static_cast<size_t>(request_.model->spec().L), 0);
    p.tail = c.tail;
    const LayerSolution s = least_peak(p);
    std::vector<std::string> names;
    for (const int k : s.choice) names.push_back(block.names[static_cast<size_t>(k)]);
    key.way.recompute = recompute_text(names);
    if (s.feasible) add(key);
    if (!stacks_ || gradient.second) return;
    const StackProblem stack = stack_problem(c);
    StackPlan plan;
    if (!least_stack(stack, &plan)) return;
    key.way.recompute = stack_recompute(stack, plan);
    key.way.offload = stack_offload(stack, plan);
    key.way.moved = true;
    add(key);
  };
  // Of the dtypes the one of the fewest bytes; an update in backward needs the whole batch at once.
  const int64_t fewest = micros().back(), most = micros().front();
  const Gradients last = gradients(most).back();
  std::vector<Way> all = ways_;
  all.insert(all.end(), streamed_.begin(), streamed_.end());
  for (const Way& way : all) {
    if (way.grads_away && deep() && request_.recompute == "auto" && way.recompute != "block")
      continue;
    if (!request_.update_in_backward || !*request_.update_in_backward)
      add_all(fewest, {last.first, false}, way);
    if (last.second && !way.grads_away) add_all(most, {last.first, true}, way);
  }
  std::stable_sort(list.begin(), list.end(), [](const Choice& a, const Choice& b) {
    return a.engine_bytes < b.engine_bytes;
  });
  return list;
}

}  // namespace snug
