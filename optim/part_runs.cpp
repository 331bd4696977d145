#include "optim/part_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/units.h"

namespace snug {

std::vector<PartRun> part_runs(const ParamTable& table) {
  std::vector<PartRun> runs;
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    if (table.begins_part(i)) runs.push_back({p.part, i, p.offset, 0});
    PartRun& run = runs.back();
    run.elements = round_up(p.offset + p.elements(), kSpanAlignment) - run.first;
  }
  return runs;
}

std::vector<int> run_of_params(const ParamTable& table) {
  std::vector<int> list;
  int run = -1;
  for (int i = 0; i < table.size(); ++i) list.push_back(run += table.begins_part(i) ? 1 : 0);
  return list;
}

Name run_name(const char* what, const ParamTable& table, const PartRun& run) {
  return Name(run.part < 0 ? fmt::format("{}.{}", what, table[run.param].name.view())
                           : fmt::format("{}.part{}", what, run.part));
}

std::span<const StateSpan> spans_of(std::span<const StateSpan> spans, const PartRun& run) {
  const auto at = [&](int64_t offset) {
    return std::partition_point(spans.begin(), spans.end(),
                                [&](const StateSpan& s) { return s.offset < offset; });
  };
  return {at(run.first), at(run.first + run.elements)};
}

void arrive(Context& ctx, DeviceCopy& copy) {
  if (ctx.current(copy.moved)) ctx.wait_event(kCompute, copy.moved);
  copy.moved = {};
}

}  // namespace snug
