#include "tools/trainer/step_recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/session/step_parts.h"

namespace snug {

StepRecorder::StepRecorder(const Plan& plan, bool trace) : schedule_(plan.schedule), keep_(trace) {
  int64_t ops = 0;
  for (const StepPart& part : step_parts(schedule_, plan.accumulation)) {
    const std::vector<OpRecord>& list = schedule_.at(part.program).ops;
    const auto count = static_cast<int64_t>(list.size());
    seconds_.emplace_back(part.program, std::vector<double>(list.size(), 0.0));
    runs_.push_back(0);
    ops += count * part.runs;
    reserved_ = count;  // the last is the update
  }
  update_ = schedule_.find("update");
  if (keep_) trace_.ops.reserve(static_cast<size_t>(std::min(ops, kMostOps)));
  trace_.measured = true;
}

int StepRecorder::program_of(const Program& program) const {
  for (const auto& [index, seconds] : seconds_)
    if (schedule_.at(index).name == program.name) return index;
  return -1;
}

void StepRecorder::begin_step(Context& ctx, int64_t step) {
  trace_.ops.clear();
  trace_.step = step;
  trace_.left_out = 0;
  leaving_out_ = false;
  for (auto& [index, times] : seconds_) std::fill(times.begin(), times.end(), 0.0);
  std::fill(runs_.begin(), runs_.end(), 0);
  started_ = monotonic_seconds();
  ctx.set_listener(this);
}

void StepRecorder::end_step(Context& ctx) {
  ctx.set_listener(nullptr);
  recorded_ = true;
}

void StepRecorder::op_span(const Program& program, int32_t op, double begin, double end) {
  const double seconds = end - begin;
  const int index = program_of(program);
  if (index < 0) return;
  for (size_t i = 0; i < seconds_.size(); ++i) {
    if (seconds_[i].first != index || op >= static_cast<int32_t>(seconds_[i].second.size()))
      continue;
    seconds_[i].second[static_cast<size_t>(op)] += seconds;
    runs_[i] += op == 0 ? 1 : 0;
  }
  if (!keep_) return;
  // A program is kept whole or not at all, and there is always room for the update.
  if (op == 0) {
    const auto room = static_cast<int64_t>(trace_.ops.capacity() - trace_.ops.size());
    const auto count = static_cast<int64_t>(program.ops.size());
    leaving_out_ = count + (index == update_ ? 0 : reserved_) > room;
    trace_.left_out += leaving_out_ ? 1 : 0;
  }
  if (!leaving_out_ && trace_.ops.size() < trace_.ops.capacity())
    trace_.ops.push_back({index, op, begin - started_, end - started_});
}

StepTimes StepRecorder::times() const {
  if (!recorded_) return {};
  StepTimes times{StepTimes::Source::measured, fmt::format("step {}", trace_.step), seconds_};
  for (size_t i = 0; i < runs_.size(); ++i)
    for (double& t : times.programs[i].second)
      t /= static_cast<double>(std::max<int64_t>(1, runs_[i]));
  return times;
}

}  // namespace snug
