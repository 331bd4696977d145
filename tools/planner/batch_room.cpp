#include "tools/planner/batch_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

struct FixedBatch {
  int64_t sequences = 0;
  int64_t layers = 1;  // whose inputs it keeps
  std::string what, advice;
};

// Those that the planner does not choose. What a checkpoint pins has run before.
std::vector<FixedBatch> fixed_batches(const PlanRequest& r) {
  std::vector<FixedBatch> list;
  const bool trains = r.global_batch > 0;
  if (trains && !r.pinned && (r.micro_batch > 0 || r.bitwise)) {
    FixedBatch b;
    b.sequences = r.micro_batch > 0 ? std::min(r.micro_batch, r.global_batch) : r.global_batch;
    if (r.offload.none()) b.layers = r.model->backward_layers();
    b.what = "micro-batch";
    b.advice = r.keys.micro > 0          ? "a smaller per_device_train_batch_size"
               : r.keys.accumulation > 0 ? "a larger gradient_accumulation_steps"
                                         : "a smaller global batch, or bitwise=false";
    list.push_back(std::move(b));
  }
  if (r.evaluate && r.eval_batch > 0) {
    FixedBatch b;
    b.sequences = r.eval_batch;
    b.what = "batch of evaluation";
    b.advice = trains ? "a smaller per_device_eval_batch_size" : "a smaller --batch-size";
    list.push_back(std::move(b));
  }
  return list;
}

// On a CPU the budget is RAM. One that was not set is what is free.
bool free_is_less(const PlanRequest& r) {
  return r.settings.target != Place::cuda && r.reserve == 0 && r.free_bytes > 0 &&
         (r.budget == 0 || r.free_bytes < r.budget);
}

int64_t room_of(const PlanRequest& r) {
  return free_is_less(r) ? r.free_bytes : r.budget;
}

double bytes_of_sequence(const PlanRequest& r, const FixedBatch& b) {
  return static_cast<double>(r.T * r.model->spec().C * b.layers) *
         static_cast<double>(size_of(r.model->precision().compute));
}

std::optional<FixedBatch> without_room(const PlanRequest& r) {
  if (room_of(r) <= 0 || r.T <= 0) return std::nullopt;
  for (FixedBatch& b : fixed_batches(r))
    if (b.sequences > PlanSearch::kMostRows / r.T &&
        bytes_of_sequence(r, b) * static_cast<double>(b.sequences) >
            static_cast<double>(room_of(r)))
      return std::move(b);
  return std::nullopt;
}

}  // namespace

bool has_batch_room(const PlanRequest& r) {
  return !without_room(r);
}

void check_batch_room(const PlanRequest& r) {
  const auto b = without_room(r);
  if (!b) return;
  const int64_t room = room_of(r);
  const double sequence = bytes_of_sequence(r, *b);
  const double bytes = std::min(sequence * static_cast<double>(b->sequences), 9e18);
  std::string found = free_is_less(r) ? fmt::format("{} B ({}) free now", room, human_bytes(room))
                                      : fmt::format("memory of {} B ({})", room, human_bytes(room));
  if (!free_is_less(r) && r.reserve > 0)
    found +=
        fmt::format(", which is what is free now less a reserve of {}", human_bytes(r.reserve));
  fail(ErrorCode::out_of_memory,
       fmt::format("memory of more than {} for what lies between the layers alone, of a {} of {} "
                   "sequences of {} tokens",
                   human_bytes(static_cast<int64_t>(bytes)), b->what, b->sequences, r.T),
       found,
       fmt::format("{}: {} sequences have room between the layers, fewer with all else", b->advice,
                   static_cast<int64_t>(static_cast<double>(room) / sequence)));
}

std::optional<Error> batch_refusal(const PlanRequest& r) {
  try {
    check_batch_room(r);
  } catch (const Error& refusal) {
    return refusal;
  }
  return std::nullopt;
}

}  // namespace snug
