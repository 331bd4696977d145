#include "engine/stores/summed_gradients.h"

#include <algorithm>

namespace snug {

void SummedGradSink::begin(bool last_of_window) {
  last_ = last_of_window && !comm_.in_turn();
  std::fill(begun_.begin(), begun_.end(), char{0});
}

// One after the other, so that what others send has one room.
void SummedGradSink::begin_run(Context& ctx, size_t run) {
  const ShardRun& r = shards_.runs()[run];
  const View all = plain_.flat().rows(r.first, r.elements);
  Comm::arrive(ctx, flight_);
  flight_ = in_pieces_ ? comm_.begin_reduce_scatter(
                             ctx, {all.rows(comm_.rank() * r.piece, r.piece), false}, all, nullptr)
                       : comm_.begin_all_reduce(ctx, all, nullptr);
}

void SummedGradSink::part_done(Context& ctx, int part) {
  if (!last_ || part < 0) return;
  for (size_t i = 0; i < begun_.size(); ++i)
    if (shards_.runs()[i].part == part && begun_[i] == 0) {
      begun_[i] = 1;
      begin_run(ctx, i);
    }
}

void SummedGradSink::settle(Context& ctx) {
  if (!last_) return;
  for (size_t i = 0; i < begun_.size(); ++i)
    if (begun_[i] == 0) begin_run(ctx, i);
  Comm::arrive(ctx, flight_);
}

void SummedGradSink::sum(Context& ctx) {
  for (size_t i = 0; i < shards_.runs().size(); ++i) {
    begin_run(ctx, i);
    Comm::arrive(ctx, flight_);
  }
}

}  // namespace snug
