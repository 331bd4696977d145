#include "tools/report/step_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "tools/session/step_parts.h"

namespace snug {
namespace {

constexpr double kStateFloor = 0.15;  // share of the axis that is dealt out evenly to all states
constexpr double kSegmentFloor =
    0.12;  // least share of a program, before all are scaled to fill the axis
constexpr double kCrowded = 0.75;  // share of residents above which the rest is shown enlarged
constexpr size_t kLayerGroups = 6;

// "h.3.attn" -> "h.3": the scope up to its first number. Empty if it has none.
std::string layer_of(std::string_view scope) {
  size_t begin = 0;
  while (begin < scope.size()) {
    const size_t end = std::min(scope.find('.', begin), scope.size());
    const std::string_view word = scope.substr(begin, end - begin);
    if (!word.empty() &&
        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
      return std::string(scope.substr(0, end));
    begin = end + 1;
  }
  return "";
}

// Widths of the states of a program, not yet normalised, and the op that each shows.
StepSegment make_segment(const Plan& plan, int index, const StepTimes& times) {
  const Program& p = plan.schedule.at(index);
  StepSegment segment;
  segment.program = index;
  segment.label = p.name.str();
  for (const StepPart& part : step_parts(plan.schedule, plan.accumulation))
    if (part.program == index && part.runs > 1)
      segment.label += fmt::format(", {} times", part.runs);
  const auto states = static_cast<size_t>(std::max<int64_t>(0, p.ticks)) + 1;
  segment.x.assign(states + 1, 0.0);
  segment.op.assign(states, -1);
  const std::vector<double> seconds = times.of(plan.schedule, index);
  segment.spans = op_spans(p, seconds);
  double clock = 0;
  for (size_t k = 0; k < p.ops.size(); ++k) {
    const int64_t state = std::clamp<int64_t>(p.ops[k].time, 0, static_cast<int64_t>(states) - 1);
    if (op_stream(p.ops[k]) != 0) continue;
    // With what it waited for before it, so that copies lie where they are in time.
    segment.x[static_cast<size_t>(state)] += segment.spans[k].end - clock;
    clock = segment.spans[k].end;
    segment.op[static_cast<size_t>(state)] = static_cast<int32_t>(k);
  }
  for (const OpSpan& span : segment.spans) {  // copies that are waited for at the end
    segment.x[states - 1] += std::max(0.0, span.end - clock);
    clock = std::max(clock, span.end);
  }
  segment.start.assign(states + 1, 0.0);
  for (size_t k = 0; k < states; ++k) segment.start[k + 1] = segment.start[k] + segment.x[k];
  for (size_t k = 1; k < states; ++k)
    if (segment.op[k] < 0) segment.op[k] = segment.op[k - 1];
  return segment;
}

// From work in each state to positions in [0, 1].
void place_segments(std::vector<StepSegment>& segments) {
  double work = 0, states = 0;
  for (const StepSegment& s : segments) {
    for (size_t k = 0; k + 1 < s.x.size(); ++k) work += s.x[k];
    states += static_cast<double>(s.states());
  }
  std::vector<double> share;
  double sum = 0;
  for (StepSegment& s : segments) {
    double width = 0;
    for (size_t k = 0; k + 1 < s.x.size(); ++k) {
      s.x[k] = (work > 0 ? (1 - kStateFloor) * s.x[k] / work : 0) + kStateFloor / states;
      width += s.x[k];
    }
    const double wanted = std::max(width, kSegmentFloor);
    for (size_t k = 0; k + 1 < s.x.size(); ++k) s.x[k] *= wanted / width;
    share.push_back(wanted);
    sum += wanted;
  }
  double at = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    std::vector<double>& x = segments[i].x;
    const double begin = at / sum;
    double local = 0;
    for (size_t k = 0; k + 1 < x.size(); ++k) {
      const double width = x[k] / sum;
      x[k] = begin + local;
      local += width;
    }
    at += share[i];
    x.back() = at / sum;
  }
}

// Which band a tensor belongs to; bands are made on the way and sorted at the end.
class Bands {
 public:
  Bands(const Schedule& schedule, const std::vector<StepSegment>& segments) {
    std::vector<std::string> layers;
    for (const StepSegment& segment : segments)
      for (const TensorRecord& t : schedule.at(segment.program).tensors)
        if (t.category == Category::activations)
          if (std::string layer = layer_of(t.scope.view());
              !layer.empty() && group_.emplace(layer, 0).second)
            layers.push_back(std::move(layer));
    const size_t groups = std::min(kLayerGroups, layers.size());
    labels_.assign(1, "");
    for (size_t g = 0; g < groups; ++g) {
      const size_t first = g * layers.size() / groups, end = (g + 1) * layers.size() / groups;
      for (size_t k = first; k < end; ++k) group_[layers[k]] = static_cast<int>(g) + 1;
      labels_.push_back(first + 1 == end ? " " + layers[first]
                                         : " " + layers[first] + " to " + layers[end - 1]);
    }
  }

  int slot(const TensorRecord& t, bool resident) const {
    int group = 0;
    if (!resident && t.category == Category::activations)
      if (const auto it = group_.find(layer_of(t.scope.view())); it != group_.end())
        group = it->second;
    return ((resident ? 0 : 1) * kCategories + static_cast<int>(t.category)) *
               static_cast<int>(kLayerGroups + 1) +
           group;
  }
  static constexpr int slots() { return 2 * kCategories * static_cast<int>(kLayerGroups + 1); }
  StepBand band(int slot) const {
    const int per = static_cast<int>(kLayerGroups + 1);
    StepBand b;
    b.group = slot % per;
    b.category = static_cast<Category>(slot / per % kCategories);
    b.resident = slot / per < kCategories;
    b.label = to_string(b.category) + labels_[static_cast<size_t>(b.group)];
    return b;
  }

 private:
  std::map<std::string, int> group_;
  std::vector<std::string> labels_;
};

}  // namespace

std::vector<int> step_programs(const Plan& plan) {
  const Schedule& s = plan.schedule;
  std::vector<int> list;
  const auto add = [&](const char* name) {
    if (const int i = s.find(name); i >= 0) list.push_back(i);
  };
  for (const StepPart& part : step_parts(s, plan.accumulation)) list.push_back(part.program);
  if (list.empty())
    for (const char* name : {"eval", "prefill", "decode"}) add(name);
  if (list.empty())
    for (int i = 0; i < s.size(); ++i)
      if (!s.at(i).resident) list.push_back(i);
  if (list.empty() && s.size() > 0) list.push_back(0);
  if (s.size() > 0) {
    const int peak = s.peak_program();
    const bool shown =
        std::any_of(list.begin(), list.end(), [&](int i) { return is_ancestor(s, peak, i); });
    if (!shown) list.push_back(peak);
  }
  return list;
}

bool is_ancestor(const Schedule& schedule, int ancestor, int program) {
  for (int i = program; i >= 0; i = schedule.at(i).parent)
    if (i == ancestor) return true;
  return false;
}

int64_t address_of(const Program& program, size_t k) {
  return program.base + (k < program.packing.offsets.size() ? program.packing.offsets[k] : 0);
}

double StepView::x_of(const StepMoment& m) const {
  const std::vector<double>& x = segments[static_cast<size_t>(m.segment)].x;
  return (x[static_cast<size_t>(m.state)] + x[static_cast<size_t>(m.state) + 1]) / 2;
}

const Program& StepView::program_of(const StepMoment& m) const {
  return schedule->at(segments[static_cast<size_t>(m.segment)].program);
}

std::string StepView::op_of(const StepMoment& m) const {
  const int32_t k = segments[static_cast<size_t>(m.segment)].op[static_cast<size_t>(m.state)];
  if (k < 0) return "start";
  return op_label(program_of(m).ops[static_cast<size_t>(k)]);
}

std::vector<HeldTensor> StepView::held(const StepMoment& m) const {
  std::vector<HeldTensor> list;
  const int index = segments[static_cast<size_t>(m.segment)].program;
  for (int i = index; i >= 0; i = schedule->at(i).parent) {
    const Program& p = schedule->at(i);
    for (size_t k = 0; k < p.tensors.size(); ++k)
      if (in_device_arena(p.tensors[k]) &&
          (i != index || (p.tensors[k].born < m.state && m.state <= p.tensors[k].died)))
        list.push_back({&p.tensors[k], i, k, address_of(p, k)});
  }
  std::stable_sort(list.begin(), list.end(), [](const HeldTensor& a, const HeldTensor& b) {
    return a.tensor->bytes > b.tensor->bytes;
  });
  return list;
}

CategoryBytes StepView::bytes_at(const StepMoment& m) const {
  return schedule->live(segments[static_cast<size_t>(m.segment)].program, m.state - 1);
}

int64_t StepView::crowding_residents() const {
  int64_t least = INT64_MAX, highest = 0;
  for (const StepColumn& c : columns) {
    int64_t resident = 0;
    for (size_t b = 0; b < bands.size(); ++b)
      if (bands[b].resident) resident += c.bytes[b];
    least = std::min(least, resident);
    highest = std::max(highest, c.total);
  }
  const bool crowded =
      highest > least && static_cast<double>(least) > kCrowded * static_cast<double>(highest);
  return crowded ? least : 0;
}

double StepSegment::x_at(double seconds) const {
  const auto after = std::upper_bound(start.begin(), start.end(), seconds);
  if (after == start.begin()) return x.front();
  if (after == start.end()) return x.back();
  const auto s = static_cast<size_t>(after - start.begin()) - 1;
  return x[s] + (x[s + 1] - x[s]) * (seconds - start[s]) / (start[s + 1] - start[s]);
}

StepView make_step_view(const Plan& plan, int columns, const StepTimes& times) {
  StepView view;
  view.source = times.source;
  view.times_text = times.text;
  view.schedule = &plan.schedule;
  const Schedule& schedule = plan.schedule;
  for (const int i : step_programs(plan)) view.segments.push_back(make_segment(plan, i, times));
  if (view.segments.empty()) return view;
  place_segments(view.segments);

  const Bands bands(schedule, view.segments);
  std::vector<int> band_of(static_cast<size_t>(Bands::slots()), -1);
  const auto for_tensors = [&](const StepSegment& segment, auto&& body) {
    for (int i = segment.program; i >= 0; i = schedule.at(i).parent)
      for (const TensorRecord& t : schedule.at(i).tensors)
        if (t.bytes > 0 && in_device_arena(t))
          body(t, bands.slot(t, i != segment.program || schedule.at(i).resident), i);
  };
  for (const StepSegment& segment : view.segments)
    for_tensors(segment, [&](const TensorRecord&, int slot, int) {
      band_of[static_cast<size_t>(slot)] = 0;
    });
  for (int slot = 0; slot < Bands::slots(); ++slot)
    if (band_of[static_cast<size_t>(slot)] == 0) {
      band_of[static_cast<size_t>(slot)] = static_cast<int>(view.bands.size());
      view.bands.push_back(bands.band(slot));
    }

  view.columns.resize(static_cast<size_t>(columns));
  for (StepColumn& c : view.columns) c.total = -1;
  int64_t highest = -1;
  StepMoment fullest;
  const int peak = schedule.peak_program();
  bool peak_found = false;
  for (size_t g = 0; g < view.segments.size(); ++g) {
    const StepSegment& segment = view.segments[g];
    const auto states = static_cast<size_t>(segment.states());
    const auto clamp_state = [&](int64_t s) {
      return static_cast<size_t>(std::clamp<int64_t>(s, 0, static_cast<int64_t>(states)));
    };
    // By band, the change on entering each state.
    std::vector<std::vector<int64_t>> change(view.bands.size(),
                                             std::vector<int64_t>(states + 1, 0));
    for_tensors(segment, [&](const TensorRecord& t, int slot, int program) {
      std::vector<int64_t>& row = change[static_cast<size_t>(band_of[static_cast<size_t>(slot)])];
      const bool own = program == segment.program;
      const size_t from = own ? clamp_state(t.born + 1) : 0;
      const size_t to = own && t.died != kNever ? clamp_state(t.died + 1) : states;
      if (from >= to) return;
      row[from] += t.bytes;
      row[to] -= t.bytes;
    });
    std::vector<int64_t> now(view.bands.size(), 0);
    for (size_t s = 0; s < states; ++s) {
      int64_t total = 0;
      for (size_t b = 0; b < now.size(); ++b) total += now[b] += change[b][s];
      const StepMoment moment{static_cast<int>(g), static_cast<int64_t>(s)};
      if (total > highest) {
        highest = total;
        fullest = moment;
      }
      const auto first = static_cast<int>(segment.x[s] * columns);
      const auto end = static_cast<int>(segment.x[s + 1] * columns + 0.999999);
      for (int c = std::max(0, first); c < std::min(columns, std::max(end, first + 1)); ++c) {
        StepColumn& column = view.columns[static_cast<size_t>(c)];
        if (total > column.total) column = {moment, now, total};
      }
    }
    if (segment.program == peak && !peak_found && !schedule.at(peak).resident) {
      peak_found = true;
      view.peak = {static_cast<int>(g), std::clamp<int64_t>(schedule.at(peak).packing.peak_time + 1,
                                                            0, static_cast<int64_t>(states) - 1)};
    }
  }
  if (!peak_found) view.peak = fullest;
  for (StepColumn& c : view.columns)  // a rounding error can leave a column untouched
    if (c.total < 0) c = {fullest, std::vector<int64_t>(view.bands.size(), 0), 0};
  return view;
}

}  // namespace snug
