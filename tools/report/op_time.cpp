#include "tools/report/op_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/memory/context.h"

namespace snug {

double op_seconds(const OpRecord& op) {
  return std::max(static_cast<double>(op.flops) / 50e9, static_cast<double>(op.bytes) / 10e9);
}

int op_stream(const OpRecord& op) {
  if (const std::string_view name = op.name; name == kReadDisk || name == kWriteDisk)
    return kDiskLane;
  return static_cast<int>(op.stream);
}

const char* lane_name(int stream) {
  switch (stream) {
    case 0:
      return "compute";
    case 1:
      return "to host";
    case 2:
      return "to device";
    case kHost:
      return "host";
    case kRanks:
      return "ranks";
    case kDiskLane:
      return "disk";
    default:
      return "another stream";
  }
}

bool in_device_arena(const TensorRecord& tensor) {
  return tensor.residence == Residence::device;
}

std::vector<double> StepTimes::of(const Schedule& schedule, int program) const {
  const std::vector<OpRecord>& ops = schedule.at(program).ops;
  for (const auto& [index, seconds] : programs)
    if (index == program && seconds.size() == ops.size()) return seconds;
  std::vector<double> seconds;
  seconds.reserve(ops.size());
  for (const OpRecord& op : ops) seconds.push_back(op_seconds(op));
  return seconds;
}

StepTimes predicted_times(const Plan& plan, const std::function<double(const OpRecord&)>& seconds,
                          const std::string& text) {
  StepTimes times;
  times.source = StepTimes::Source::predicted;
  times.text = text;
  for (int i = 0; i < plan.schedule.size(); ++i) {
    times.programs.emplace_back(i, std::vector<double>());
    for (const OpRecord& op : plan.schedule.at(i).ops)
      times.programs.back().second.push_back(seconds(op));
  }
  return times;
}

std::string short_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} µs", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string op_label(const OpRecord& op) {
  return op.scope.empty() ? std::string(op.name) : op.scope.str() + " " + op.name;
}

}  // namespace snug
