#include "tools/trainer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/trainer/save_ring.h"

namespace snug {
namespace {

// Cheapest first: each recomputes more and keeps less than the one before.
const char* const kPolicies[] = {"none", "norms", "norms+mlp", "norms+mlp+attention", "block"};

struct Candidate {
  Decisions decisions;
  std::unique_ptr<Session> session;  // recorded, not packed
  int64_t lower_bound = 0;
};

Candidate record(const PlanRequest& r, const Decisions& d) {
  Candidate c;
  c.decisions = d;
  c.session = std::make_unique<Session>(Place::plan, *r.model, d, r.optimizer, r.settings);
  c.session->open();
  c.lower_bound = c.session->schedule().lower_bound();
  return c;
}

std::vector<int64_t> micro_candidates(const PlanRequest& r) {
  if (r.global_batch <= 0) return {0};
  if (r.micro_batch > 0) return {std::min(r.micro_batch, r.global_batch)};
  if (r.bitwise) return {r.global_batch};
  std::vector<int64_t> list;  // divisors, the largest first
  for (int64_t d = 1; d * d <= r.global_batch; ++d)
    if (r.global_batch % d == 0) {
      list.push_back(d);
      if (d != r.global_batch / d) list.push_back(r.global_batch / d);
    }
  std::sort(list.begin(), list.end(), std::greater<>());
  return list;
}

std::vector<int64_t> head_candidates(const PlanRequest& r, int64_t N) {
  if (r.head_rows > 0) return {std::min(r.head_rows, N)};
  if (r.bitwise) return {std::min<int64_t>(1024, N)};
  std::vector<int64_t> list;
  for (const int64_t rows : {1024, 256, 64})
    if (list.empty() || rows < list.back()) list.push_back(std::min<int64_t>(rows, N));
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

Decisions decide(const PlanRequest& r, const std::string& recompute, int64_t micro,
                 int64_t head_rows) {
  Decisions d;
  d.T = r.T;
  d.micro_batch = micro;
  d.head_rows = head_rows;
  d.recompute = recompute;
  if (r.evaluate) d.eval_batch = r.eval_batch > 0 ? r.eval_batch : std::max<int64_t>(1, micro);
  d.kv_length = r.kv_length;
  d.kv_rows = r.kv_length > 0 ? r.kv_rows : 1;
  d.prefill = r.kv_length > 0 ? std::min<int64_t>(32, r.kv_length) : 0;
  d.max_grad_norm = r.max_grad_norm;
  d.loss_scaling = r.loss_scaling;
  d.save = r.save;
  d.packing_boundaries = r.packing_boundaries;
  if (r.save && r.global_batch > 0) d.save_ring = save_ring_bytes(r);
  d.packed_weights = r.packed_weights.value_or(WeightPacking::none);
  return d;
}

int64_t rows_of(const PlanRequest& r, int64_t micro) {
  return std::max({micro, r.eval_batch, int64_t{1}}) * r.T;
}

// What would lower the minimum, cheapest first: only what these keys still hold fast.
std::string advice(const PlanRequest& r) {
  std::string text;
  const auto add = [&](const std::string& item) { text += (text.empty() ? "" : ", or ") + item; };
  if (r.global_batch > 0) {
    if (r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none)
      add("packed_weights=none");
    if (r.recompute != "auto" && r.recompute != "block") add("recompute=block");
    if (r.micro_batch > 1) add("a smaller per_device_train_batch_size");
    if (r.micro_batch == 0 && r.bitwise) add("bitwise=false");
    if (r.head_rows > 64) add("head_rows=64");
    if (r.eval_batch > 1) add("per_device_eval_batch_size=1");
    if (r.save && save_ring_bytes(r) >= 1 << 20) add("a smaller save_buffer");
  }
  if (r.T > 1) add("a smaller max_length");
  if (r.kv_rows > 1) add("fewer sequences at a time (--batch-size, --num-beams)");
  add("a smaller model");
  return text;
}

// Each once, in order.
std::vector<KernelChoice> kernels_of(const Schedule& schedule) {
  std::set<std::string_view> seen;
  for (int i = 0; i < schedule.size(); ++i)
    for (const OpRecord& op : schedule.at(i).ops)
      if (!op.variant.empty()) seen.insert(op.variant.view());
  std::vector<KernelChoice> list;
  for (const std::string_view text : seen)
    if (const auto choice = parse_kernel_choice(text)) list.push_back(*choice);
  return list;
}

std::string attention_of(const Schedule& schedule) {
  for (int i = 0; i < schedule.size(); ++i)
    for (const OpRecord& op : schedule.at(i).ops)
      if (op.variant.view().starts_with("attention ")) return op.variant.str().substr(10);
  return "";
}

void finish(Plan& plan, Candidate& c, int64_t budget) {
  c.session->schedule().pack();
  plan.decisions = c.decisions;
  plan.kernels = kernels_of(c.session->schedule());
  plan.attention = attention_of(c.session->schedule());
  plan.schedule = c.session->schedule();
  plan.engine_bytes = plan.schedule.arena_bytes();
  plan.categories = plan.schedule.at_peak(&plan.padding);
  plan.fits = budget == 0 || plan.engine_bytes + plan.runtime_bytes <= budget;
}

}  // namespace

int64_t declared_runtime_bytes(int threads, int64_t vocabulary) {
  // Measured on x86-64 Linux, glibc: 6 MiB of program and library data, 0.2 MiB a thread, up to 0.6
  // KiB a token for a byte-level tokenizer's tables. Declared with room, since a run stops if
  // exceeded.
  return (int64_t{16} << 20) + threads * (int64_t{1} << 20) + vocabulary * 1024;
}

int64_t process_private_bytes() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word)
    if (word == "RssAnon:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return 0;
}

namespace {

int64_t checkpoint_data_bytes(const PlanRequest& r) {
  const auto states = static_cast<int64_t>(make_optimizer(r.optimizer)->state_names().size());
  return r.model->params().real_elements() * 4 * (1 + states);
}

}  // namespace

int64_t save_ring_bytes(const PlanRequest& r) {
  constexpr int64_t kUsual = 4 << 20;
  int64_t bytes = r.save_buffer;
  if (bytes < 0) bytes = kUsual;
  if (bytes == 0) bytes = SaveRing::kSlotBytes;
  bytes = std::min(bytes, checkpoint_data_bytes(r));
  return round_up(std::max(bytes, SaveRing::kLeastBytes), SaveRing::kLeastBytes);
}

namespace {

// What a checkpoint costs: the time of a step's forward and backward is known from below, by its
// arithmetic at the machine's best rate, so the stall is known from above.
void predict_saving(const PlanRequest& r, Plan& plan) {
  if (plan.checkpoint_bytes <= 0 || plan.decisions.save_ring <= 0) return;
  plan.save_background = r.save_buffer != 0;
  plan.save_seconds = static_cast<double>(plan.checkpoint_bytes) / kSaveRate;
  plan.save_stall = plan.save_seconds;
  if (!plan.save_background) return;
  double flops = 0;
  const Schedule& s = plan.schedule;
  if (s.find("micro_first") >= 0)
    flops = static_cast<double>(s.at(s.find("micro_first")).flops()) +
            static_cast<double>(s.at(s.find("micro_next")).flops()) *
                static_cast<double>(std::max<int64_t>(0, plan.accumulation - 1));
  const double meanwhile = r.step_flops_rate > 0 ? flops / r.step_flops_rate : 0.0;
  const auto beyond = static_cast<double>(plan.checkpoint_bytes - plan.decisions.save_ring);
  plan.save_stall = std::max(0.0, beyond / kSaveRate - meanwhile);
}

}  // namespace

Plan make_plan(const PlanRequest& r) {
  const double started = monotonic_seconds();
  Plan plan;
  plan.threads = r.settings.threads;
  plan.budget = r.budget;
  plan.host_budget = r.host_budget;
  plan.reserve = r.reserve;
  plan.advice = advice(r);
  if (r.global_batch > 0) {
    plan.checkpoint_bytes = checkpoint_data_bytes(r);
  }
  plan.global_batch = r.global_batch;
  plan.runtime_bytes = declared_runtime_bytes(r.settings.threads, r.model->spec().V);
  plan.model_text =
      fmt::format("{} {} parameters", r.model->spec().family,
                  human_count(static_cast<double>(r.model->params().real_elements())));

  std::vector<std::string> policies;
  if (r.recompute == "auto" && r.global_batch > 0)
    policies.assign(std::begin(kPolicies), std::end(kPolicies));
  else
    policies.push_back(r.recompute == "auto" ? "none" : r.recompute);
  const std::vector<int64_t> micros = micro_candidates(r);
  const int64_t room = r.budget > 0 ? r.budget - plan.runtime_bytes : INT64_MAX;

  // The smallest engine: what minimum_bytes promises. Fewer rows and smaller chunks never need
  // more, so they are the last of their lists. More recompute may: in a model of one layer the
  // slots that come back meet the same gradients as those that stayed. So every policy is asked.
  const auto least_rows = [&](int64_t micro) {
    return head_candidates(r, rows_of(r, micro)).back();
  };
  std::vector<Candidate> least;
  for (const std::string& policy : policies)
    least.push_back(record(r, decide(r, policy, micros.back(), least_rows(micros.back()))));
  std::stable_sort(least.begin(), least.end(), [](const Candidate& a, const Candidate& b) {
    return a.lower_bound < b.lower_bound;
  });
  Plan smallest = plan;
  for (Candidate& c : least) {
    if (smallest.engine_bytes > 0 && c.lower_bound >= smallest.engine_bytes) break;
    Plan packed = plan;
    finish(packed, c, r.budget);
    if (smallest.engine_bytes == 0 || packed.engine_bytes < smallest.engine_bytes)
      smallest = std::move(packed);
  }
  plan.minimum_bytes = smallest.minimum_bytes = smallest.engine_bytes + plan.runtime_bytes;

  if (smallest.fits) {
    // Each question costs a recording: a policy whose smallest plan is too large is passed over,
    // and so is a micro-batch whose smallest chunks are.
    const auto possible = [&](const std::string& policy) {
      return std::any_of(least.begin(), least.end(), [&](const Candidate& c) {
        return c.decisions.recompute == policy && c.lower_bound <= room;
      });
    };
    const auto choose = [&](const std::string& policy, int64_t micro) {
      // Every policy keeps the input of every block: where these alone do not fit nothing is
      // recorded.
      const ModelSpec& spec = r.model->spec();
      const double inputs = static_cast<double>(micro) *
                            static_cast<double>(r.T * spec.C * spec.L) *
                            static_cast<double>(size_of(r.model->precision().compute));
      if (inputs > static_cast<double>(room)) return false;
      const std::vector<int64_t> chunks = head_candidates(r, rows_of(r, micro));
      Candidate last = record(r, decide(r, policy, micro, chunks.back()));
      if (last.lower_bound > room) return false;
      for (const int64_t rows : chunks) {
        Candidate c =
            rows == chunks.back() ? std::move(last) : record(r, decide(r, policy, micro, rows));
        if (c.lower_bound > room) continue;
        finish(plan, c, r.budget);
        if (plan.fits) return true;
      }
      return false;
    };
    for (const std::string& policy : policies)
      if (!plan.fits && possible(policy))
        for (const int64_t micro : micros)
          if (choose(policy, micro)) break;
  }
  if (!plan.fits) plan = smallest;
  // Decoding reads every weight for one row: from packed copies it does so at the speed of memory,
  // twice as fast, as long as the copies are no larger than the weights: where bf16 is multiplied
  // in fp32 they are twice the size, and nothing is won. A training step gains 1 % at most (a
  // micro-batch of 4096 rows; below 1024 rows the copies cost more than they save), which is not
  // worth a seventh of the memory.
  if (plan.fits && !r.packed_weights && r.global_batch == 0 && r.kv_length > 0) {
    Decisions d = plan.decisions;
    d.packed_weights = WeightPacking::forward;
    Candidate c = record(r, d);
    Plan richer = plan;
    const Schedule& s = c.session->schedule();
    int64_t weights = 0, copies = 0;
    for (const TensorRecord& t : s.at(s.find("root")).tensors) {
      if (t.category == Category::weights) weights += t.bytes;
      if (t.category == Category::packed_weights) copies += t.bytes;
    }
    // Copies are padded to whole panels, which in tiny models is a good part of them.
    const bool pays = copies > 0 && copies < weights + weights / 2 + (1 << 20);
    if (pays && c.lower_bound <= room) finish(richer, c, r.budget);
    if (richer.fits && richer.decisions.packed_weights == d.packed_weights)
      plan = std::move(richer);
  }
  if (plan.decisions.micro_batch > 0)
    plan.accumulation = ceil_div(plan.global_batch, plan.decisions.micro_batch);
  predict_saving(r, plan);
  plan.seconds = monotonic_seconds() - started;
  return plan;
}

}  // namespace snug
