#include "tools/report/tensor_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tools/report/op_time.h"

namespace snug {

TensorOps ops_of(const Program& p, const TensorRecord& t) {
  const auto count = static_cast<int32_t>(p.ops.size());
  TensorOps found;
  if (t.first_op >= 0 && t.first_op < count) {
    const int64_t time = p.ops[static_cast<size_t>(t.first_op)].time;
    if (t.born < time && time <= t.died) found.first = t.first_op;
  }
  if (found.first < 0) return found;
  found.last = t.died == kNever ? count - 1 : std::clamp(t.last_op - 1, found.first, count - 1);
  return found;
}

int32_t first_backward_op(const Program& p) {
  for (size_t k = 0; k < p.ops.size(); ++k)
    if (std::string_view(p.ops[k].name).find("_backward") != std::string_view::npos)
      return static_cast<int32_t>(k);
  return static_cast<int32_t>(p.ops.size());
}

int64_t made_again(const Program& p, size_t k) {
  for (size_t i = k + 1; i < p.tensors.size(); ++i)
    if (p.tensors[i].name == p.tensors[k].name) return static_cast<int64_t>(i);
  return -1;
}

int64_t made_before(const Program& p, size_t k) {
  for (size_t i = k; i > 0; --i)
    if (p.tensors[i - 1].name == p.tensors[k].name) return static_cast<int64_t>(i - 1);
  return -1;
}

std::string op_text(const Program& p, int32_t op, const char* none) {
  if (op < 0 || op >= static_cast<int32_t>(p.ops.size())) return none;
  return fmt::format("{} (op {} of {})", op_label(p.ops[static_cast<size_t>(op)]), op + 1,
                     p.ops.size());
}

namespace {

std::string resident_reason(const TensorRecord& t) {
  switch (t.category) {
    case Category::weights:
      return "the weights that layers read, resident for the whole run";
    case Category::master:
      return "master weights, which the optimizer updates, resident for the whole run";
    case Category::gradients:
      return "gradients of the parameters, added up over the micro-batches, resident";
    case Category::optimizer:
      return "state of the optimizer, one value a parameter, resident";
    case Category::state:
      return "the numbers of a step (learning rate, sums, counts), resident";
    case Category::batch:
      return "input that the host fills before a program, resident";
    case Category::kv_cache:
      return "keys and values of the tokens so far, resident while text is generated";
    case Category::packed_weights:
      return "copies of the weights in the order kernels read them, resident";
    case Category::offload:
      if (t.name.view() == "weights.tables")
        return "a frozen embedding, in the host's memory, of which the device reads a row a token";
      return "state of the optimizer or weights, in the host's memory; an update passes them "
             "through the device, and weights come before their layer runs";
    case Category::workspace:
      return "space for the host, such as the ring of checkpoints, resident";
    default:
      return "resident: it outlives the programs";
  }
}

}  // namespace

std::string why_there(const Program& p, size_t k) {
  const TensorRecord& t = p.tensors[k];
  if (t.died == kNever || p.resident) return resident_reason(t);
  const TensorOps ops = ops_of(p, t);
  const std::string end = ops.last < 0 ? "the end" : op_label(p.ops[static_cast<size_t>(ops.last)]);
  const int32_t backward = first_backward_op(p);
  const bool crosses = ops.first >= 0 && ops.first < backward && ops.last >= backward;
  switch (t.category) {
    case Category::activations:
      if (crosses) return "kept for backward, which needs it up to " + end;
      if (backward == static_cast<int32_t>(p.ops.size()))
        return "passed on from layer to layer up to " + end;
      if (const int64_t again = made_again(p, k); ops.first < backward && again >= 0)
        return "forward drops it after " + end +
               (p.tensors[static_cast<size_t>(again)].category == Category::recomputed
                    ? "; backward makes it again (recompute)"
                    : "; backward fetches it from the host (offload)");
      if (ops.first >= backward && made_before(p, k) >= 0)
        return "fetched from the host for backward, which needs it up to " + end;
      return "needed up to " + end;
    case Category::recomputed:
      return "made again in backward, since forward dropped it; needed up to " + end;
    case Category::weights:
      return "weights that rest with the host, on the device up to " + end;
    case Category::logits:
      return "a chunk of logits, used up to " + end;
    case Category::workspace:
      return ops.first >= 0 && ops.first == ops.last ? "space that " + end + " works in"
                                                     : "passed on between ops up to " + end;
    case Category::offload:
      return "waits in the host's memory until backward needs it, up to " + end;
    default:
      return "needed up to " + end;
  }
}

int64_t peak_state(const Program& p) {
  return std::clamp<int64_t>(p.packing.peak_time + 1, 0, std::max<int64_t>(0, p.ticks));
}

std::vector<LiveTensor> live_tensors(const Schedule& schedule, int program, int64_t state) {
  std::vector<LiveTensor> list;
  for (int i = program; i >= 0; i = schedule.at(i).parent) {
    const Program& p = schedule.at(i);
    for (size_t k = 0; k < p.tensors.size(); ++k)
      if (in_device_arena(p.tensors[k]) &&
          (i != program || (p.tensors[k].born < state && state <= p.tensors[k].died)))
        list.push_back({i, k});
  }
  const auto bytes = [&](const LiveTensor& t) {
    return schedule.at(t.program).tensors[t.index].bytes;
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const LiveTensor& a, const LiveTensor& b) { return bytes(a) > bytes(b); });
  return list;
}

}  // namespace snug
