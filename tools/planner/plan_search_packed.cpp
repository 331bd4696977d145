// Packed weights, where the request leaves them open: the same search again with them, beside it.
//
//   fastest(room)  = the faster of the two searches' under that room, both judged
//   what the other search does not ask is what cannot be faster than what this one has:
//     a plan with packed weights, less the copies, fits without them in less room,
//     and is there slower by no more than its products gain
// Both are exact, so that a larger budget is still never slower.
#include <algorithm>
#include <cmath>

#include "engine/blas/kernel_table.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"

namespace snug {

// Each product counts that reads a weight by its layout: those of other operands may be among them.
// Of the plain op's bytes, to which those of a copy are equal where N is whole panels.
Recordings::Gain PlanSearch::gain_of_packing(const Program& program, int64_t rows) {
  Recordings::Gain gain;
  if (!cost_->packing()) return gain;
  for (const OpRecord& op : program.ops) {
    const std::string_view variant = op.variant.view();
    const bool forward = variant.starts_with("nt ");
    if (is_packed(variant) || !(forward || variant.starts_with("nn "))) continue;
    OpRecord packed = op;
    packed.variant = packed_variant(op.variant);
    const double less = std::max(0.0, cost_->seconds(op, rows) - cost_->seconds(packed, rows));
    gain.both += less;
    if (forward) gain.forward += less;
  }
  return gain;
}

Name PlanSearch::packed_variant(Name plain) {
  const auto found = packed_variants_.find(plain.view());
  if (found != packed_variants_.end()) return found->second;
  const Name packed(plain.str() + std::string(kPackedSuffix));
  return packed_variants_.try_emplace(plain.view(), packed).first->second;
}

// Beside what rests with the host, and beside what a user or a plan fixed, it is not looked at; nor
// where it was not measured: what is predicted then is no gain.
bool PlanSearch::packing_open() const {
  const PlanRequest& r = request_;
  // Without the host's memory auto is none.
  if (!r.offload.none() && !r.offload.open()) return false;
  for (const ResidenceKey& key : residence_keys())
    if (r.*key.asked == "cpu") return false;
  return unpacked_ == nullptr && !r.packed_weights && r.global_batch > 0 && !r.use_host &&
         r.settings.target == Place::cpu && cost_->packing();
}

void PlanSearch::open_packed_searches() {
  if (packed_searches_open_) return;
  packed_searches_open_ = true;
  if (!packing_open()) return;
  packed_searches_.reserve(2);  // each is pointed to
  for (const WeightPacking packing : {WeightPacking::both, WeightPacking::forward}) {
    const std::vector<PackedCopy> copies =
        packed_copies(request_.model->params(), request_.model->precision().compute, packing,
                      request_.settings.kernels);
    if (copies.empty()) return;
    PackedSearch& p = packed_searches_.emplace_back();
    p.index = packing == WeightPacking::both ? 0 : 1;
    p.request = request_;
    p.request.packed_weights = packing;
    p.request.cost = cost_;
    p.copies = placed_bytes(copies);
    for (const PackedCopy& copy : copies)
      p.packing += cost_->seconds({"matmul_pack", {}, 0, copy.weight_bytes + copy.bytes, 0}, 1);
    p.search = std::make_unique<PlanSearch>(p.request, recordings_);
    p.search->unpacked_ = this;
    p.search->packed_as_ = &p;
  }
}

// Of a step, as it is judged; 0 where nothing is known.
double PlanSearch::packing_floor(const Key& key) {
  const Config& c = *unpacked_->config(key);
  return packed_as_ == nullptr ? 0 : unpacked_->packing_floor(c, *packed_as_);
}

// Every way to run a block has at most the products of the one that is recorded, which computes all
// of the block twice. Sums of seconds round.
double PlanSearch::gain(const Config& c, const PackedSearch& p) const {
  return p.index == 0 ? c.gain.both : c.gain.forward;
}

double PlanSearch::packing_floor(const Config& c, const PackedSearch& p) const {
  return (1 + kPackingMargin) * (1 - 1e-9) * (c.floor - gain(c, p) + p.packing);
}

PlanSearch::Choice PlanSearch::best_packed(PackedSearch& p, int64_t room, Choice best) {
  if (!best.feasible || (room < kNoLimit && room <= p.copies)) return best;
  // Whether any configuration could be faster, were there all the room there could be.
  double share = 0;
  bool some = false;
  for (const auto& [key, config] : configs_) {
    if (config->floor <= 0) continue;
    some = some || packing_floor(*config, p) < best.step_seconds;
    share = std::max(share, gain(*config, p) / config->floor);
  }
  if (!some) return best;
  // And by what is left beside the copies.
  if (room < kNoLimit) {
    const Choice left = best_unpacked(round_up(room - p.copies, kArenaUnit));
    if (!left.feasible) return best;
    const double least = (left.bound_seconds * (1 - share) + p.packing) * (1 - 1e-9);
    if ((1 + kPackingMargin) * least >= best.step_seconds) return best;
  }
  p.search->below_ = best.step_seconds;
  const Choice& packed = p.search->best_of_groups(room);
  if (!packed.feasible) return best;
  const double bound = std::min(best.bound_seconds, packed.bound_seconds);
  if (packed.step_seconds < best.step_seconds) best = packed;
  best.bound_seconds = std::min(best.step_seconds, bound);
  return best;
}

PlanSearch::Choice PlanSearch::best(int64_t room, bool bounded) {
  Choice best = best_unpacked(room, bounded);
  open_packed_searches();
  for (PackedSearch& p : packed_searches_) best = best_packed(p, room, std::move(best));
  return with_tried(room, std::move(best), bounded);
}

// What is tried frees memory and takes time: not where all the memory there could be has no faster plan.
PlanSearch::Choice PlanSearch::with_tried(int64_t room, Choice best, bool bounded) {
  if (tried_.empty() || room >= kNoLimit) return best;
  if (fastest_ < 0) fastest_ = best_unpacked(kNoLimit, false).step_seconds;
  for (const std::unique_ptr<Tried>& tried : tried_) {
    if (best.feasible && best.step_seconds <= fastest_) break;
    Choice other = tried->search->best(room, bounded);
    if (!other.feasible) continue;
    const double bound =
        best.feasible ? std::min(best.bound_seconds, other.bound_seconds) : other.bound_seconds;
    if (!best.feasible || other.step_seconds < best.step_seconds) {
      if (tried->hosts && !other.moved)
        other.unmoved_seconds = best.feasible ? best.step_seconds : 0;
      other.moved = other.moved || tried->hosts;
      best = std::move(other);
    }
    best.bound_seconds = bound;
  }
  return best;
}

}  // namespace snug
