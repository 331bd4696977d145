// What the search records on the place `plan`, and what it reads off that: sessions whole, blocks,
// and what any plan of a micro-batch and head chunk takes at least.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/plan_search.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

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

// What residents and programs other than micro-steps and evaluation mind.
Decisions of_rest_beside_residents(const Decisions& d) {
  Decisions c = d;
  c.head_rows = 0;
  c.recompute = c.offload = {};
  return c;
}

}  // namespace

std::unique_ptr<Session> PlanSearch::record(const Decisions& d) const {
  auto session = std::make_unique<Session>(Place::plan, *request_.model, d, request_.optimizer,
                                           request_.settings);
  session->open();
  return session;
}

Recordings::Packed PlanSearch::packed(const Decisions& d) {
  const auto found = recordings_->packed.find(d);
  if (found != recordings_->packed.end()) return found->second;
  const std::unique_ptr<Session> session = record(d);
  Schedule& s = session->schedule();
  pack(s, d);
  return recordings_->packed[d] = {s.arena_bytes(), s.host_bytes()};
}

int64_t PlanSearch::packed_at_least(const Decisions& d) const {
  const auto found = recordings_->packed_rests.find(of_rest_beside_residents(d));
  return found != recordings_->packed_rests.end() ? found->second : 0;
}

void PlanSearch::pack(Schedule& s, const Decisions& d) const {
  std::vector<Recordings::Placed>& placed = recordings_->placed[d];
  if (placed.empty()) {
    s.pack();
    int64_t rest = 0;
    for (int i = 0; i < s.size(); ++i) {
      const Program& p = s.at(i);
      placed.push_back({p.packing, p.host_packing, p.base, p.host_base});
      if (!is_micro_step(p) && p.name.view() != "eval") rest = std::max(rest, p.end());
    }
    recordings_->packed_rests[of_rest_beside_residents(d)] = round_up(rest, kArenaUnit);
    return;
  }
  require(static_cast<int>(placed.size()) == s.size(), "a schedule of as many programs as before");
  for (int i = 0; i < s.size(); ++i) {
    Program& p = s.at(i);
    const Recordings::Placed& from = placed[static_cast<size_t>(i)];
    require(from.packing.offsets.size() == p.tensors.size(), "the tensors that were packed before");
    p.packing = from.packing;
    p.host_packing = from.host_packing;
    p.base = from.base;
    p.host_base = from.host_base;
  }
}

// Of a step whose rows are compared: mismatched ones are about as many.
double PlanSearch::evaluations(const Decisions& d) const {
  return static_cast<double>(ceil_div(rank_batch(request_), d.eval_batch));
}

double PlanSearch::step_seconds(const Schedule& s, const Decisions& d) const {
  if (d.micro_batch <= 0) return 0;
  double seconds = 0;
  for (const StepPart& part : step_parts(s, ceil_div(rank_batch(request_), d.micro_batch)))
    seconds +=
        static_cast<double>(part.runs) * cost_->seconds(s.at(part.program), d.micro_batch * d.T);
  const double compares =
      d.pairs.compared() && d.eval_batch > 0
          ? evaluations(d) * cost_->seconds(s.at(s.find("eval")), d.eval_batch * d.T)
          : 0;
  return judged(d, seconds + compares);
}

namespace {

// What all programs of a model mind, or all blocks of it: those of its kind, and those that a search tries.
Decisions of_model(const Decisions& d, bool blocks) {
  Decisions c;
  for (const Decision& row : decision_table())
    if (row.tries != nullptr && (row.of_blocks || !blocks)) row.copy(d, c);
  c.T = d.T;
  c.packing_boundaries = d.packing_boundaries;
  c.rows_per_window = d.rows_per_window;  // of the last block, if it chooses them
  c.packed_weights = d.packed_weights;
  c.ranks = d.ranks;
  c.zero = d.zero;
  c.staged = d.staged;
  return c;
}

// What a block minds: where the states rest is nothing to one that does not update.
Decisions of_block(const Decisions& d) {
  Decisions b = of_model(d, true);
  b.micro_batch = d.micro_batch;
  b.gradients = d.gradients;
  b.update_in_backward = d.update_in_backward;
  b.offload_optimizer = d.update_in_backward && d.offload_optimizer;
  return b;
}

}  // namespace

const ModelOptions& PlanSearch::block_options(const Decisions& d) {
  const Decisions key = of_block(d);
  const auto found = recordings_->blocks.find(key);
  if (found != recordings_->blocks.end()) return found->second;
  return recordings_->blocks[key] = record_block_options(*request_.model, key, request_.optimizer,
                                                         request_.settings, *cost_);
}

const StackOptions& PlanSearch::stack_options(const Decisions& d) {
  const Decisions key = of_block(d);
  const auto found = recordings_->stacks.find(key);
  if (found != recordings_->stacks.end()) return found->second;
  return recordings_->stacks[key] = record_stack_options(
             *request_.model, key, request_.optimizer, request_.settings, *cost_, block_options(d));
}

LinkedProblem& PlanSearch::linked(const Config& c) {
  const Decisions key = of_block(c.decisions);
  const auto found = linked_of_.find(key);
  if (found != linked_of_.end()) return found->second;
  return linked_of_[key] = linked_problem(stack_problem(c));
}

namespace {

// What each of the programs minds of the decisions.
Decisions of_common(const Decisions& d) {
  Decisions c = of_model(d, false);
  c.offload_params = d.offload_params;
  c.pairs = d.pairs;
  c.token_logits = d.token_logits;
  return c;
}

Decisions of_micro_steps(const Decisions& d) {
  Decisions c = of_common(d);
  c.micro_batch = d.micro_batch;
  c.head_rows = d.head_rows;
  c.recompute = d.recompute;
  c.offload = d.offload;
  c.gradients = d.gradients;
  c.update_in_backward = d.update_in_backward;
  c.offload_gradients = d.offload_gradients;
  c.update_on_host = d.update_on_host;  // which sums up squares there
  c.delayed_update = d.delayed_update;  // in the first one
  c.offload_optimizer = (d.update_in_backward || d.delayed_update) && d.offload_optimizer;
  return c;
}

Decisions of_evaluation(const Decisions& d) {
  Decisions c = of_common(d);
  c.eval_batch = d.eval_batch;
  c.head_rows = d.head_rows;
  return c;
}

Decisions of_rest(const Decisions& d) {
  Decisions c = d;
  c.micro_batch = c.head_rows = c.eval_batch = 0;
  c.recompute = c.offload = {};
  return c;
}

// The most that is alive at once of a program's own tensors, as the packer rounds them.
Recordings::Bytes most_bytes(const Program& p) {
  int64_t last = p.ticks;
  for (const TensorRecord& t : p.tensors)
    last = std::max({last, t.born, t.died == kNever ? 0 : t.died});
  Recordings::Bytes most;
  std::vector<int64_t> change;
  const auto look = [&](Residence residence, int64_t alignment, int64_t& out) {
    change.assign(static_cast<size_t>(last) + 1, 0);
    for (const TensorRecord& t : p.tensors) {
      if (t.residence != residence) continue;
      const int64_t bytes = round_up(t.bytes, alignment);
      change[static_cast<size_t>(t.born)] += bytes;
      if (t.died != kNever) change[static_cast<size_t>(t.died)] -= bytes;
    }
    int64_t live = 0;
    for (const int64_t delta : change) out = std::max(out, live += delta);
  };
  look(Residence::device, kTensorAlignment, most.device);
  if (std::any_of(p.tensors.begin(), p.tensors.end(),
                  [](const TensorRecord& t) { return t.residence == Residence::host; }))
    look(Residence::host, kHostAlignment, most.host);
  return most;
}

void raise(Recordings::Bytes& most, const Recordings::Bytes& other) {
  most.device = std::max(most.device, other.device);
  most.host = std::max(most.host, other.host);
}

// Of a program and those below it in the tree.
Recordings::Bytes most_bytes(const Schedule& s, int program) {
  Recordings::Bytes below;
  for (int i = program + 1; i < s.size(); ++i)
    if (s.at(i).parent == program) raise(below, most_bytes(s, i));
  const Recordings::Bytes own = most_bytes(s.at(program));
  return {own.device + below.device, own.host + below.host};
}

}  // namespace

const Recordings::MicroSteps& PlanSearch::micro_steps(const Decisions& d, const Schedule& s) {
  Recordings::MicroSteps& m = recordings_->micro_programs[of_micro_steps(d)];
  const int64_t rows = d.micro_batch * d.T;
  const Program& first = s.at(s.find("micro_first"));
  const Program& p = s.at(s.find("micro_next"));
  for (int i = 0; i < s.size(); ++i)
    if (is_micro_step(s.at(i))) raise(m, most_bytes(s.at(i)));
  m.first = cost_->seconds(s.at(s.find(only_micro_step(s))), rows);
  m.next = cost_->seconds(p, rows);
  m.gain_first = gain_of_packing(first, rows);
  m.gain_next = gain_of_packing(p, rows);
  // The head's ops lie between the passes, the embedding's outside them.
  const auto head = ticks_of(p, "head");
  m.between = most_live_bytes(p, head.first, head.second);
  m.between_back = most_live_bytes(p, head.second, head.second);
  for (const OpRecord& op : p.ops)
    if (op.scope.view() == "head") m.last = cost_->seconds(op, rows);
  m.outside = std::max(most_live_bytes(p, 0, tick_of(p.ops.front())),
                       most_live_bytes(p, tick_of(p.ops.back()), p.ticks));
  return m;
}

// A session records what no other one has recorded: programs mind few of the decisions each.
const Recordings::Whole& PlanSearch::whole(const Decisions& d) {
  const auto found = recordings_->whole.find(d);
  if (found != recordings_->whole.end()) return found->second;
  Recordings& known = *recordings_;
  Recordings::Whole w;
  if (d.micro_batch <= 0) {
    const std::unique_ptr<Session> session = record(d);
    w.bound = session->schedule().lower_bound();
    w.host = session->schedule().lower_bound(Residence::host);
    return known.whole[d] = w;
  }
  const auto micro = known.micro_programs.find(of_micro_steps(d));
  const auto evaluation = known.evaluations.find(of_evaluation(d));
  const auto rest = known.rests.find(of_rest(d));
  const bool has_micro = micro != known.micro_programs.end();
  const bool has_evaluation = d.eval_batch == 0 || evaluation != known.evaluations.end();
  const bool has_rest = rest != known.rests.end();
  std::unique_ptr<Session> session;
  if (has_rest) {
    session = std::make_unique<Session>(Place::plan, *request_.model, d, request_.optimizer,
                                        request_.settings);
    session->open({.micro_steps = !has_micro, .evaluation = !has_evaluation});
  } else {
    session = record(d);
  }
  const Schedule& s = session->schedule();
  const Program& root = s.at(s.find("root"));

  if (!has_rest) {
    Recordings::Rest& r = known.rests[of_rest(d)];
    for (int i = 0; i < s.size(); ++i) {
      const bool other = is_micro_step(s.at(i)) || s.at(i).name.view() == "eval";
      if (s.at(i).parent == 0 && !other) raise(r, most_bytes(s, i));
    }
    r.update = s.at(s.find("update"));
    r.by_rows = std::any_of(r.update.ops.begin(), r.update.ops.end(),
                            [](const OpRecord& op) { return !op.variant.empty(); });
    r.seconds = cost_->seconds(r.update, d.micro_batch * d.T);
  }
  const Recordings::Rest& r = known.rests.at(of_rest(d));
  const Recordings::MicroSteps& m = has_micro ? micro->second : micro_steps(d, s);
  Recordings::Bytes others = r;
  double compares = 0;  // seconds
  if (d.eval_batch > 0) {
    Recordings::Evaluation& e = known.evaluations[of_evaluation(d)];
    if (!has_evaluation) {
      raise(e, most_bytes(s, s.find("eval")));
      e.seconds = cost_->seconds(s.at(s.find("eval")), d.eval_batch * d.T);
    }
    raise(others, e);
    if (d.pairs.compared() && d.micro_batch > 0) compares = evaluations(d) * e.seconds;
  }
  const Recordings::Bytes residents = most_bytes(root);
  w.bound = round_up(residents.device + std::max(others.device, m.device), kArenaUnit);
  w.host = round_up(residents.host + std::max(others.host, m.host), kArenaUnit);
  w.first = m.first;
  w.next = m.next;
  w.update = (r.by_rows ? cost_->seconds(r.update, d.micro_batch * d.T) : r.seconds) + compares;
  w.base = most_live_bytes(root, root.ticks, root.ticks);
  for (const TensorRecord& t : root.tensors)
    if (t.residence == Residence::device && t.category != Category::batch) w.residents += t.bytes;
  w.between = m.between;
  w.between_back = m.between_back;
  w.last = m.last;
  w.gain_first = m.gain_first;
  w.gain_next = m.gain_next;
  w.others = round_up(std::max(residents.device + others.device, w.base + m.outside), kArenaUnit);
  return known.whole[d] = w;
}

PlanSearch::Config* PlanSearch::config(const Key& key) {
  std::unique_ptr<Config>& slot = configs_[key];
  if (slot) return slot.get();
  slot = std::make_unique<Config>();
  Config& c = *slot;
  c.decisions = decide(key);
  c.moved = key.way.moved;
  const Recordings::Whole& w = whole(c.decisions);
  c.bound = w.bound;
  c.host = w.host;
  if (key.micro <= 0) return slot.get();
  c.micro_steps = static_cast<double>(ceil_div(rank_batch(request_), key.micro));
  c.seconds = c.floor = w.first + (c.micro_steps - 1) * w.next + w.update;
  c.gain.forward = w.gain_first.forward + (c.micro_steps - 1) * w.gain_next.forward;
  c.gain.both = w.gain_first.both + (c.micro_steps - 1) * w.gain_next.both;
  c.update = w.update;
  if (key.way.streams()) c.base = w.residents;
  c.layered = layers_ && !key.way.streams() && key.way.offload.none();
  if (!c.layered) return slot.get();

  const ModelOptions& ways = block_options(c.decisions);
  // Of the input alone, as recorded.
  const int64_t saved = ways.saved();
  c.base = w.base;
  c.others = w.others;
  c.tail = w.between - saved;
  c.tail_back = w.between_back - saved;
  c.last = w.last;
  c.outside = c.seconds;
  for (size_t k = 0; k < ways.kinds.size(); ++k)
    c.outside -= c.micro_steps * static_cast<double>(ways.layers(k)) *
                 ways.kinds[k].options.back().seconds();
  c.floor = c.outside;
  for (size_t k = 0; k < ways.kinds.size(); ++k) {
    double layer = INFINITY;
    for (const LayerOption& o : ways.kinds[k].options) layer = std::min(layer, o.seconds());
    c.floor += c.micro_steps * static_cast<double>(ways.layers(k)) * layer;
  }
  return slot.get();
}

const PlanSearch::Elements& PlanSearch::elements() {
  Elements& e = elements_;
  if (e.trainable > 0) return e;
  const ParamTable& table = request_.model->params();
  const StateSet states = make_optimizer(request_.optimizer)->states(table);
  for (int i = 0; i < table.size(); ++i) {
    const int64_t own = table[i].trainable ? table[i].real_elements() : 0;
    e.trainable += own;
    e.states += states.bytes_of(i, own);
    if (table[i].part < 0) continue;
    const int64_t weights =
        table[i].coded() ? table[i].code_bytes
                         : table[i].real_elements() * size_of(request_.model->precision().compute);
    e.parts_bytes += weights;
    if (table[i].part >= request_.model->first_backward()) e.parts_bytes_again += weights;
    e.trainable_parts += own;
    e.parts_states += states.bytes_of(i, own);
  }
  return e;
}

// Of plans that leave nothing with the host but what the user set there, what is away computes the
// same ops or more in forward and backward, the update of a layer in backward left out. Where there
// are none, nothing is known.
double PlanSearch::micro_floor(const Key& key) {
  if (ways_.empty()) return 0;
  Gradients gradients = key.gradients;
  const bool as_set = key.way.states_away == states_away_.front() && !key.way.streams();
  if (!as_set) gradients.second = false;
  const auto [found, news] =
      micro_floors_.try_emplace({key.micro, key.head_rows, gradients}, INFINITY);
  if (!news) return found->second;
  double least = INFINITY;
  for (const Way& way : ways_) {
    if (way.moved) break;
    const Config& c = *config({key.micro, key.head_rows, gradients, way});
    least = std::min(least, c.floor - c.update);
  }
  // Sums and differences of seconds round.
  return found->second = std::max(0.0, least == INFINITY ? 0.0 : least * (1 - 1e-9));
}

const PlanSearch::UpdateFloor& PlanSearch::update_floor(const Key& key) {
  const bool words[] = {key.gradients.first == DType::f32,
                        key.gradients.second,
                        key.way.states_away,
                        key.way.params_away,
                        key.way.grads_away,
                        key.way.updates_away,
                        key.way.late};
  size_t index = 0;
  for (const bool word : words) index = 2 * index + (word ? 1 : 0);
  UpdateFloor& known = update_floors_[index];
  if (known.recorded) return known;
  const auto rest = recordings_->rests.find(of_rest(decide(key)));
  if (rest != recordings_->rests.end() && !rest->second.by_rows)
    return known = {rest->second.seconds * (1 - 1e-9), true};
  if (key.gradients.second) return known;  // of what is of no layer
  const Elements& e = elements();
  int64_t bytes = 0;
  if (key.way.updates_away && !key.way.params_away)
    bytes = e.trainable * size_of(request_.model->precision().compute);
  if (key.way.states_away && !key.way.updates_away)
    bytes += e.states + masters_away(key.way, e.trainable);
  // For their norm, and again to be applied.
  if (key.way.grads_away && !key.way.updates_away)
    bytes += 2 * e.trainable_parts * size_of(key.gradients.first);
  return known = {cost_->copies_seconds(share(1) * static_cast<double>(bytes)), false};
}

std::vector<PlanSearch::Open> PlanSearch::open_configs(int64_t room) {
  std::vector<Open> open;
  for (const int64_t micro : micros()) {
    if (!block_fits(micro, room)) continue;
    for (const int64_t rows : head_chunks(micro))
      for (const Gradients& gradient : gradients(micro))
        for (const bool states : states_away_)
          open.push_back(
              {micro, rows, gradient, states, floor({micro, rows, gradient, stack_way(states)})});
  }
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.floor < b.floor; });
  return open;
}

std::vector<PlanSearch::Bounded> PlanSearch::bounded() {
  std::vector<Bounded> list;
  std::vector<Key> keys;
  for (const int64_t micro : micros())
    for (const int64_t rows : head_chunks(micro))
      for (const Gradients& gradient : gradients(micro)) {
        for (const Way& way : ways_)
          if (way.moved) keys.push_back({micro, rows, gradient, way});
        for (const Way& way : streamed_)
          if (!way.grads_away || !gradient.second) keys.push_back({micro, rows, gradient, way});
      }
  const auto bound = [&](const Key& key) {
    return key.way.streams() ? streamed_bounds(key).seconds() : floor(key);
  };
  for (const Key& key : keys) list.push_back({decide(key), bound(key), 0, 0});
  for (const Key& key : keys) config(key);
  for (size_t i = 0; i < keys.size(); ++i) {
    list[i].behind = bound(keys[i]);
    list[i].seconds = config(keys[i])->floor;
  }
  return list;
}

}  // namespace snug
