#include "tools/session/shorter_steps.h"

namespace snug {

bool keeps_to(const Program& shorter, const Program& whole) {
  if (shorter.tensors.size() != whole.tensors.size() || shorter.ops.size() != whole.ops.size() ||
      shorter.syncs.size() != whole.syncs.size() || shorter.ticks != whole.ticks)
    return false;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const TensorRecord &a = shorter.tensors[i], &b = whole.tensors[i];
    if (!(a.name == b.name) || a.bytes > b.bytes || a.born != b.born || a.died != b.died ||
        a.residence != b.residence)
      return false;
  }
  for (size_t i = 0; i < whole.ops.size(); ++i) {
    const OpRecord &a = shorter.ops[i], &b = whole.ops[i];
    if (std::string_view(a.name) != b.name || a.time != b.time || a.stream != b.stream)
      return false;
  }
  for (size_t i = 0; i < whole.syncs.size(); ++i) {
    const SyncRecord &a = shorter.syncs[i], &b = whole.syncs[i];
    if (a.kind != b.kind || a.stream != b.stream || a.event != b.event || a.time != b.time)
      return false;
  }
  return true;
}

std::vector<int64_t> shorter_steps(Place place, const Model& model, const Decisions& decisions,
                                   const OptimizerConfig& optimizer, const Settings& settings,
                                   const Schedule& schedule) {
  const int64_t B = decisions.micro_batch;
  std::vector<int64_t> run(static_cast<size_t>(B) + 1, B);
  if (place == Place::cuda || settings.graphs) return run;
  constexpr int64_t kTried = 16;
  const int64_t step = (B + kTried - 1) / kTried;
  Decisions d = decisions;
  d.eval_batch = d.kv_length = d.save_ring = 0;
  d.save = false;
  Settings on_plan = settings;
  on_plan.target = place;
  for (int64_t n = (B - 1) / step * step; n > 0; n -= step) {
    d.micro_batch = n;
    Session shorter(Place::plan, model, d, optimizer, on_plan);
    shorter.open({.micro_steps = true});
    bool keeps = true;
    for (const char* program : {"micro_first", "micro_next"})
      keeps &= keeps_to(shorter.schedule().at(shorter.schedule().find(program)),
                        schedule.at(schedule.find(program)));
    if (!keeps) continue;
    for (int64_t used = 0; used <= n; ++used) run[static_cast<size_t>(used)] = n;
  }
  return run;
}

}  // namespace snug
