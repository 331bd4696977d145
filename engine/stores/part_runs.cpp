#include "engine/stores/part_runs.h"

#include <fmt/format.h>

#include <algorithm>

namespace snug {

std::vector<PartRun> part_runs(const ParamTable& table) {
  std::vector<PartRun> runs;
  for (const int i : table.by_offset()) {
    const ParamInfo& p = table[i];
    if (runs.empty() || runs.back().part != p.part || runs.back().trained != p.trainable ||
        table[runs.back().param].frozen_table() != p.frozen_table())
      runs.push_back({p.part, i, p.trainable, p.offset, 0});
    runs.back().elements = table.end_of(i) - runs.back().first;
  }
  return runs;
}

std::vector<PartRun> trained_runs(const ParamTable& table) {
  std::vector<PartRun> runs = part_runs(table);
  std::erase_if(runs, [](const PartRun& r) { return !r.trained; });
  return runs;
}

std::vector<int> run_of_params(const ParamTable& table) {
  const std::vector<PartRun> runs = part_runs(table);
  std::vector<int> list(static_cast<size_t>(table.size()), -1);
  size_t run = 0;
  for (const int i : table.by_offset()) {
    while (table[i].offset >= runs[run].first + runs[run].elements) ++run;
    list[static_cast<size_t>(i)] = static_cast<int>(run);
  }
  return list;
}

Name run_name(const char* what, const ParamTable& table, const PartRun& run) {
  if (run.part < 0) return Name(fmt::format("{}.{}", what, table[run.param].name.view()));
  return Name(fmt::format("{}.part{}{}", what, run.part, run.trained ? "" : ".frozen"));
}

std::span<const StateSpan> spans_of(std::span<const StateSpan> spans, const PartRun& run) {
  const auto at = [&](int64_t offset) {
    return std::partition_point(spans.begin(), spans.end(),
                                [&](const StateSpan& s) { return s.offset < offset; });
  };
  return {at(run.first), at(run.first + run.elements)};
}

void arrive(Context& ctx, DeviceCopy& copy, StreamId stream) {
  if (ctx.current(copy.moved)) ctx.wait_event(stream, copy.moved);
  copy.moved = {};
}

}  // namespace snug
