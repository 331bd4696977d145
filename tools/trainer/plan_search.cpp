#include "tools/trainer/plan_search.h"

#include <algorithm>
#include <cmath>
#include <functional>

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
  const bool open = request.recompute == "auto" && request.global_batch > 0;
  layers_ = open && request.offload == "none";
  if (open && !layers_) {
    for (const char* preset : kPresets)
      if (policies_combine(preset, request.offload, *request.model)) presets_.emplace_back(preset);
  } else {
    presets_.push_back(layers_                               ? "block"
                       : open || request.recompute == "auto" ? "none"
                                                             : request.recompute);
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
    list.emplace_back(t, false);
    if (in_backward) list.emplace_back(t, true);
  }
  return list;
}

Decisions PlanSearch::decide(int64_t micro, int64_t head_rows, Gradients gradients,
                             const std::string& recompute) const {
  const PlanRequest& r = request_;
  Decisions d;
  d.T = r.T;
  d.micro_batch = micro;
  d.head_rows = head_rows;
  d.gradients = gradients.first;
  d.update_in_backward = gradients.second;
  d.recompute = recompute;
  d.offload = r.offload;
  d.offload_optimizer = r.offload_optimizer && r.global_batch > 0;
  if (r.evaluate) d.eval_batch = r.eval_batch > 0 ? r.eval_batch : std::max<int64_t>(1, micro);
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
  const std::pair key{d.micro_batch, Gradients{d.gradients, d.update_in_backward}};
  const auto found = blocks_.find(key);
  if (found != blocks_.end()) return found->second;
  return blocks_[key] = record_block_options(*request_.model, d, request_.optimizer,
                                             request_.settings, *cost_);
}

PlanSearch::Config* PlanSearch::config(int64_t micro, int64_t head_rows, Gradients gradients,
                                       const std::string& recompute) {
  std::unique_ptr<Config>& slot = configs_[{micro, head_rows, gradients, recompute}];
  if (slot) return slot.get();
  slot = std::make_unique<Config>();
  Config& c = *slot;
  c.decisions = decide(micro, head_rows, gradients, recompute);
  const std::unique_ptr<Session> session = record(c.decisions);
  const Schedule& s = session->schedule();
  c.bound = s.lower_bound();
  c.host = s.lower_bound(Residence::host);
  c.seconds = step_seconds(s, c.decisions);
  if (!layers_) return slot.get();

  const BlockOptions& block = block_options(c.decisions);
  const LayerOption& least = block.options.back();  // the input alone, as recorded
  const int64_t L = request_.model->spec().L;
  const Program& p = s.at(s.find("micro_next"));
  const Program& root = s.at(s.find("root"));
  c.base = most_live_bytes(root, root.ticks, root.ticks);
  // The head's ops lie between the passes, the embedding's outside them.
  const auto head = ticks_of(p, "head");
  c.tail = most_live_bytes(p, head.first, head.second) - L * least.saved;
  const int64_t outside = std::max(most_live_bytes(p, 0, tick_of(p.ops.front())),
                                   most_live_bytes(p, tick_of(p.ops.back()), p.ticks));
  c.others = round_up(
      std::max(s.lower_bound_except({"micro_first", "micro_next"}), c.base + outside), kArenaUnit);
  c.micro_steps = static_cast<double>(ceil_div(request_.global_batch, micro));
  c.outside = c.seconds - c.micro_steps * static_cast<double>(L) * least.seconds();
  return slot.get();
}

PlanSearch::Choice PlanSearch::solve(const Config& c, int64_t room, double tolerance,
                                     double* bound) {
  Choice choice;
  choice.decisions = c.decisions;
  choice.host_bytes = c.host;
  *bound = c.seconds;
  const PlanRequest& r = request_;
  if (r.host_budget > 0 && c.host > r.host_budget) return choice;
  // What the host's arena takes of the free memory is not the device's.
  if (c.host > 0 && r.free_bytes > 0) room = std::min(room, r.free_bytes - c.host);
  if (!layers_) {
    choice.feasible = c.bound <= room;
    choice.engine_bytes = c.bound;
    choice.step_seconds = c.seconds;
    choice.optimality =
        presets_.size() > 1 ? "the fastest of the recompute presets" : "fixed by recompute";
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
  choice.gap = s.gap();
  std::vector<std::string> names;
  for (const int k : s.choice) names.push_back(block.names[static_cast<size_t>(k)]);
  choice.decisions.recompute = recompute_text(names);
  return choice;
}

PlanSearch::Choice PlanSearch::best(int64_t room) {
  struct Open {
    const Config* config;
    double bound;
  };
  std::vector<Open> open;
  const ModelSpec& spec = request_.model->spec();
  for (const int64_t micro : micros()) {
    // Every way to run a block keeps its input, if it is not offloaded: where these alone do not
    // fit nothing is recorded.
    const double inputs = static_cast<double>(micro) *
                          static_cast<double>(request_.T * spec.C * spec.L) *
                          static_cast<double>(size_of(request_.model->precision().compute));
    if (request_.offload == "none" && inputs > static_cast<double>(room)) continue;
    for (const int64_t rows : head_chunks(micro))
      for (const Gradients& gradient : gradients(micro))
        for (const std::string& preset : presets_) {
          const Config* c = config(micro, rows, gradient, preset);
          double bound = 0;
          if (solve(*c, room, 1.0, &bound).feasible) open.push_back({c, bound});
        }
  }
  // Of equal ones the larger micro-batch and chunk stay first.
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.bound < b.bound; });
  Choice best;
  for (const Open& o : open) {
    if (best.feasible && o.bound >= best.step_seconds) break;
    double bound = 0;
    // The exact solution: a plan that is preferred for its form would make a larger budget slower.
    Choice choice = solve(*o.config, room, 0.0, &bound);
    // An update in backward does the same work: what the sums of seconds round is no reason for it.
    const double most = best.step_seconds * (choice.decisions.update_in_backward ? 1 - 1e-9 : 1.0);
    if (choice.feasible && (!best.feasible || choice.step_seconds < most)) best = std::move(choice);
  }
  return best;
}

// Fewer rows and smaller chunks never need more, so they are the last of their lists. More
// recompute may: in a model of one layer the slots that come back meet the same gradients as those
// that stayed. So the presets are asked too.
const std::vector<PlanSearch::Choice>& PlanSearch::least() {
  if (!least_.empty()) return least_;
  std::vector<Choice>& list = least_;
  const auto add = [&](int64_t micro, int64_t rows, const Gradients& gradient,
                       const std::string& recompute) {
    Choice c;
    c.feasible = true;
    c.decisions = decide(micro, rows, gradient, recompute);
    const std::unique_ptr<Session> session = record(c.decisions);
    c.engine_bytes = session->schedule().lower_bound();
    c.host_bytes = session->schedule().lower_bound(Residence::host);
    c.step_seconds = step_seconds(session->schedule(), c.decisions);
    c.optimality = "the smallest";
    list.push_back(std::move(c));
  };
  const auto add_all = [&](int64_t micro, const Gradients& gradient) {
    const int64_t rows = head_chunks(micro).back();
    if (!layers_) {
      for (const std::string& preset : presets_) add(micro, rows, gradient, preset);
      return;
    }
    for (const char* preset : kPresets) add(micro, rows, gradient, preset);
    const Config& c = *config(micro, rows, gradient, presets_.front());
    const BlockOptions& block = block_options(c.decisions);
    LayerProblem p;
    p.kinds.push_back(block.options);
    p.layers.assign(static_cast<size_t>(request_.model->spec().L), 0);
    p.tail = c.tail;
    const LayerSolution s = least_peak(p);
    std::vector<std::string> names;
    for (const int k : s.choice) names.push_back(block.names[static_cast<size_t>(k)]);
    if (s.feasible) add(micro, rows, gradient, recompute_text(names));
  };
  // Of the dtypes the one of the fewest bytes; an update in backward needs the whole batch at once.
  const int64_t fewest = micros().back(), most = micros().front();
  const DType dtype = gradients(most).back().first;
  add_all(fewest, {dtype, false});
  if (gradients(most).back().second) add_all(most, {dtype, true});
  std::stable_sort(list.begin(), list.end(), [](const Choice& a, const Choice& b) {
    return a.engine_bytes < b.engine_bytes;
  });
  return list;
}

}  // namespace snug
