// What the search records on the place `plan`, and what it reads off that: sessions whole, blocks,
// and what any plan of a micro-batch and head chunk takes at least.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/trainer/plan_search.h"

namespace snug {
namespace {

constexpr int64_t kArenaUnit = 4096;  // Schedule::arena_bytes() rounds up to it

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

void PlanSearch::pack(Schedule& s, const Decisions& d) const {
  std::vector<Recordings::Placed>& placed = recordings_->placed[d];
  if (placed.empty()) {
    s.pack();
    for (int i = 0; i < s.size(); ++i) {
      const Program& p = s.at(i);
      placed.push_back({p.packing, p.host_packing, p.base, p.host_base});
    }
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

double PlanSearch::step_seconds(const Schedule& s, const Decisions& d) const {
  if (d.micro_batch <= 0) return 0;
  const auto of = [&](const char* name) {
    return cost_->seconds(s.at(s.find(name)), d.micro_batch * d.T);
  };
  const auto accumulation = static_cast<double>(ceil_div(request_.global_batch, d.micro_batch));
  return of("micro_first") + (accumulation - 1) * of("micro_next") + of("update");
}

namespace {

// What a block minds: where the states rest is nothing to one that does not update.
Decisions of_block(const Decisions& d) {
  Decisions b;
  b.T = d.T;
  b.micro_batch = d.micro_batch;
  b.gradients = d.gradients;
  b.update_in_backward = d.update_in_backward;
  b.offload_optimizer = d.update_in_backward && d.offload_optimizer;
  b.packing_boundaries = d.packing_boundaries;
  b.packed_weights = d.packed_weights;
  return b;
}

}  // namespace

const BlockOptions& PlanSearch::block_options(const Decisions& d) {
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
  return recordings_->stacks[key] =
             record_stack_options(*request_.model, key, request_.optimizer, request_.settings,
                                  *cost_, block_options(d).names);
}

LinkedProblem& PlanSearch::linked(const Config& c) {
  const Decisions key = of_block(c.decisions);
  const auto found = linked_of_.find(key);
  if (found != linked_of_.end()) return found->second;
  return linked_of_[key] = linked_problem(stack_problem(c));
}

const Recordings::Whole& PlanSearch::whole(const Decisions& d) {
  const auto found = recordings_->whole.find(d);
  if (found != recordings_->whole.end()) return found->second;
  const std::unique_ptr<Session> session = record(d);
  const Schedule& s = session->schedule();
  Recordings::Whole w;
  w.bound = s.lower_bound();
  w.host = s.lower_bound(Residence::host);
  if (d.micro_batch <= 0) return recordings_->whole[d] = w;
  const int64_t rows = d.micro_batch * d.T;
  const Program& p = s.at(s.find("micro_next"));
  const Program& root = s.at(s.find("root"));
  w.first = cost_->seconds(s.at(s.find("micro_first")), rows);
  w.next = cost_->seconds(p, rows);
  w.update = cost_->seconds(s.at(s.find("update")), rows);
  w.base = most_live_bytes(root, root.ticks, root.ticks);
  for (const TensorRecord& t : root.tensors)
    if (t.residence == Residence::device && t.category != Category::batch) w.residents += t.bytes;
  // The head's ops lie between the passes, the embedding's outside them.
  const auto head = ticks_of(p, "head");
  w.between = most_live_bytes(p, head.first, head.second);
  w.between_back = most_live_bytes(p, head.second, head.second);
  for (const OpRecord& op : p.ops)
    if (op.scope.view() == "head") w.last = cost_->seconds(op, rows);
  const int64_t outside = std::max(most_live_bytes(p, 0, tick_of(p.ops.front())),
                                   most_live_bytes(p, tick_of(p.ops.back()), p.ticks));
  w.others = round_up(
      std::max(s.lower_bound_except({"micro_first", "micro_next"}), w.base + outside), kArenaUnit);
  return recordings_->whole[d] = w;
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
  c.micro_steps = static_cast<double>(ceil_div(request_.global_batch, key.micro));
  c.seconds = w.first + (c.micro_steps - 1) * w.next + w.update;
  c.update = w.update;
  if (key.way.streams()) c.base = w.residents;
  if (!layers_ || key.way.streams()) return slot.get();

  const BlockOptions& block = block_options(c.decisions);
  const LayerOption& least = block.options.back();  // the input alone, as recorded
  const int64_t L = request_.model->spec().L;
  c.base = w.base;
  c.others = w.others;
  c.tail = w.between - L * least.saved;
  c.tail_back = w.between_back - L * least.saved;
  c.last = w.last;
  c.outside = c.seconds - c.micro_steps * static_cast<double>(L) * least.seconds();
  return slot.get();
}

double PlanSearch::floor(int64_t micro, int64_t head_rows) {
  return floors(micro, head_rows).step;
}

// Seconds of the link, one way.
double PlanSearch::link_seconds(double bytes) const {
  OpRecord op{};
  op.name = "copy_to_device";
  op.stream = kToDevice;
  op.bytes = static_cast<int64_t>(bytes);
  return cost_->seconds(op, 1);
}

// The update is behind the micro-steps: with states that rest with the host it takes no less than
// the link does for them, and the micro-steps no less than anywhere.
double PlanSearch::floor_away(int64_t micro, int64_t head_rows, const Gradients& gradients,
                              bool params_away) {
  const Floors& f = floors(micro, head_rows);
  const double behind =
      gradients.second ? 0.0 : std::max(0.0, states_floor(params_away) - f.update);
  return f.step + behind;
}

double PlanSearch::states_floor(bool params_away) const {
  const ParamTable& table = request_.model->params();
  const bool master = params_away || request_.model->precision().separate_master();
  const auto parts = static_cast<double>(make_optimizer(request_.optimizer)->state_names().size()) +
                     (master ? 1.0 : 0.0);
  double elements = 0;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].trainable) elements += static_cast<double>(table[i].real_elements());
  return link_seconds(parts * elements * static_cast<double>(size_of(DType::f32)));
}

const PlanSearch::Floors& PlanSearch::floors(int64_t micro, int64_t head_rows) {
  const auto found = floors_.find({micro, head_rows});
  if (found != floors_.end()) return found->second;
  Floors f;
  double& least = f.step;
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
      f.update = std::max(f.update, c.update);
    }
  return floors_[{micro, head_rows}] = f;
}

}  // namespace snug
