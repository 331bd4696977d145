#include "engine/memory/program.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/memory/context.h"

namespace snug {

const char* to_string(Category category) {
  switch (category) {
    case Category::weights:
      return "weights";
    case Category::master:
      return "master";
    case Category::gradients:
      return "gradients";
    case Category::optimizer:
      return "optimizer";
    case Category::state:
      return "state";
    case Category::batch:
      return "batch";
    case Category::kv_cache:
      return "kv_cache";
    case Category::activations:
      return "activations";
    case Category::recomputed:
      return "recomputed";
    case Category::logits:
      return "logits";
    case Category::workspace:
      return "workspace";
    case Category::offload:
      return "offload";
    case Category::packed_weights:
      return "packed_weights";
  }
  return "?";
}

int64_t Program::flops() const {
  int64_t sum = 0;
  for (const OpRecord& op : ops) sum += op.flops;
  return sum;
}

int64_t Program::bytes_moved() const {
  int64_t sum = 0;
  for (const OpRecord& op : ops) sum += op.stream == kCompute ? op.bytes : 0;
  return sum;
}

int64_t Program::bytes_copied(StreamId stream) const {
  int64_t sum = 0;
  for (const OpRecord& op : ops) {
    // What passes between the host and a disk is on a stream of copies too, and crosses no link.
    const std::string_view of_op = op.name;
    if (op.stream == stream && of_op != kReadDisk && of_op != kWriteDisk) sum += op.bytes;
    if (stream == kToDevice) sum += op.link_bytes;
  }
  return sum;
}

int Schedule::add(Name name, int parent, bool resident) {
  require(programs_.empty() == (parent < 0), "exactly one root program, added first");
  require(parent < size(), "a parent that exists");
  require(parent < 0 || at(parent).resident, "a resident parent");
  programs_.emplace_back();
  programs_.back().name = name;
  programs_.back().parent = parent;
  programs_.back().resident = resident;
  return size() - 1;
}

int Schedule::find(std::string_view name) const {
  for (int i = 0; i < size(); ++i)
    if (at(i).name.view() == name) return i;
  return -1;
}

std::vector<Interval> intervals_of(const Program& program, Residence residence) {
  std::vector<Interval> intervals;
  intervals.reserve(program.tensors.size());
  for (const TensorRecord& t : program.tensors)
    intervals.push_back({t.born, std::min(t.died, program.ticks + 1),
                         t.residence == residence ? t.bytes : int64_t{0}});
  return intervals;
}

namespace {

int64_t alignment_of(Residence residence) {
  return residence == Residence::host ? kHostAlignment : kTensorAlignment;
}

// Whether both have tensors of the same bytes and lives, in the same order: then one packing serves
// both.
bool same_lives(const Program& a, const Program& b) {
  return a.tensors.size() == b.tensors.size() &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    [&](const TensorRecord& x, const TensorRecord& y) {
                      return x.born == y.born && x.bytes == y.bytes && x.residence == y.residence &&
                             std::min(x.died, a.ticks + 1) == std::min(y.died, b.ticks + 1);
                    });
}

Packing pack_program(const Program& program, Residence residence, const PackOptions& options,
                     uint64_t shuffle) {
  const std::vector<Interval> intervals = intervals_of(program, residence);
  Packing packing = snug::pack(intervals, options);
  if (shuffle == 0) return packing;
  packing.offsets = pack_random(intervals, options.alignment, shuffle);
  packing.height = 0;
  for (size_t i = 0; i < intervals.size(); ++i)
    packing.height = std::max(packing.height,
                              packing.offsets[i] + round_up(intervals[i].bytes, options.alignment));
  return packing;
}

}  // namespace

int64_t Schedule::lower_bound_except(std::initializer_list<std::string_view> names,
                                     Residence residence) const {
  // Sums of tensors that no memory holds must not wrap around: a model of that size is refused.
  constexpr int64_t kMost = int64_t{1} << 61;
  std::vector<int64_t> base(programs_.size(), 0);
  std::vector<__int128> change;  // of live bytes, at every tick
  int64_t highest = 0;
  for (size_t i = 0; i < programs_.size(); ++i) {
    const Program& p = programs_[i];
    if (std::find(names.begin(), names.end(), p.name.view()) != names.end()) continue;
    // What ends at a tick makes room for what is born at it.
    int64_t last = p.ticks;
    for (const TensorRecord& t : p.tensors)
      last = std::max({last, t.born, t.died == kNever ? 0 : t.died});
    change.assign(static_cast<size_t>(last) + 1, 0);
    for (const TensorRecord& t : p.tensors) {
      if (t.residence != residence) continue;
      const int64_t bytes = round_up(t.bytes, alignment_of(residence));
      change[static_cast<size_t>(t.born)] += bytes;
      if (t.died != kNever) change[static_cast<size_t>(t.died)] -= bytes;
    }
    __int128 live = 0, most = 0;
    for (const __int128 delta : change) most = std::max(most, live += delta);
    base[i] = std::min(kMost, (p.parent >= 0 ? base[static_cast<size_t>(p.parent)] : 0) +
                                  static_cast<int64_t>(std::min<__int128>(most, kMost)));
    highest = std::max(highest, base[i]);
  }
  return round_up(highest, 4096);
}

void Schedule::pack(const PackOptions& options, uint64_t shuffle) {
  PackOptions host = options;
  host.alignment = std::max(options.alignment, kHostAlignment);
  // Micro-steps have the same tensors, whether their gradients are added or not, and where greedy
  // orders miss the bound packing takes longer than recording.
  const Program* before = nullptr;
  for (Program& p : programs_) {
    if (before != nullptr && shuffle == 0 && same_lives(*before, p)) {
      p.packing = before->packing;
      p.host_packing = before->host_packing;
    } else {
      p.packing = pack_program(p, Residence::device, options, shuffle);
      p.host_packing = pack_program(p, Residence::host, host, shuffle);
    }
    before = &p;
    p.base = p.parent >= 0 ? at(p.parent).end() : 0;
    p.host_base = p.parent >= 0 ? at(p.parent).host_end() : 0;
  }
}

int64_t Schedule::arena_bytes() const {
  int64_t highest = 0;
  for (const Program& p : programs_) highest = std::max(highest, p.end());
  return round_up(highest, 4096);
}

int64_t Schedule::host_bytes() const {
  int64_t highest = 0;
  for (const Program& p : programs_) highest = std::max(highest, p.host_end());
  return round_up(highest, 4096);
}

int64_t Schedule::disk_bytes() const {
  int64_t sum = 0;
  for (const Program& p : programs_) sum += p.disk_bytes;
  return sum;
}

int Schedule::peak_program() const {
  int best = 0;
  for (int i = 1; i < size(); ++i)
    if (at(i).end() > at(best).end()) best = i;
  return best;
}

CategoryBytes Schedule::live(int program, int64_t time) const {
  CategoryBytes bytes{};
  for (int i = program; i >= 0; i = at(i).parent)
    for (const TensorRecord& t : at(i).tensors)
      if (t.residence == Residence::device && (i != program || (t.born <= time && time < t.died)))
        bytes[static_cast<size_t>(t.category)] += t.bytes;
  return bytes;
}

CategoryBytes Schedule::at_peak(int64_t* padding) const {
  const int peak = peak_program();
  const CategoryBytes bytes = live(peak, at(peak).packing.peak_time);
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  *padding = arena_bytes() - sum;
  return bytes;
}

}  // namespace snug
