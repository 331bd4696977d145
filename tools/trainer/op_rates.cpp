#include "tools/trainer/op_rates.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/io/json.h"
#include "layers/models/family.h"
#include "tools/trainer/session.h"

namespace snug {
namespace {

// Other work on the machine can only make an op slower.
double least_of(const std::vector<double>& list) {
  return *std::min_element(list.begin(), list.end());
}

// Collects the seconds of every op of the programs that a step runs.
class StepTimes final : public OpListener {
 public:
  void op_done(const Program& program, int32_t op, double seconds) override {
    times_[{&program, op}].push_back(seconds);
  }
  void into(OpRates& rates) {
    struct Sum {
      double seconds = 0;
      int64_t ops = 0;
    };
    std::map<std::pair<std::string, double>, Sum> sums;
    for (auto& [where, list] : times_) {
      const OpRecord& op = where.first->ops[static_cast<size_t>(where.second)];
      Sum& sum = sums[{OpRates::key(op), OpRates::work(op)}];
      sum.seconds += least_of(list);
      ++sum.ops;
    }
    for (const auto& [what, sum] : sums)
      rates.add(what.first, {what.second, sum.seconds / static_cast<double>(sum.ops)});
  }

 private:
  std::map<std::pair<const Program*, int32_t>, std::vector<double>> times_;
};

struct Sample {
  int64_t C, H, L, V, T, B, head_rows;
  const char* recompute;
};
// Small; wide as GPT-2, whose products and update do not fit a cache; long. What is made again
// alone is no op of a plain step: the activation.
constexpr Sample kShapes[] = {{128, 2, 2, 512, 64, 4, 256, "act"},
                              {768, 12, 1, 8192, 256, 2, 512, "norms"},
                              {256, 4, 1, 1024, 1024, 2, 1024, "none"}};

ModelSpec spec_of(const Sample& s) {
  const nlohmann::json map = {{"type", "gpt2"},    {"vocab_size", s.V}, {"n_positions", s.T},
                              {"n_embd", s.C},     {"n_layer", s.L},    {"n_head", s.H},
                              {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}, {"resid_pdrop", 0.0}};
  return resolve_model("", map.dump()).spec;
}

void measure(const Sample& shape, DType compute, const Settings& settings, double seconds,
             OpRates& rates) {
  const Model model(spec_of(shape), parse_precision(compute == DType::bf16 ? "bf16" : "fp32"));
  Decisions d;
  d.T = shape.T;
  d.micro_batch = shape.B;
  d.head_rows = shape.head_rows;
  d.recompute = shape.recompute;
  d.max_grad_norm = 1;
  OptimizerConfig optimizer;
  Session plan(Place::plan, model, d, optimizer, settings);
  plan.open();
  plan.schedule().pack();
  Session session(Place::cpu, model, d, optimizer, settings, &plan.schedule());
  session.open();
  init_parameters(model.params(), session.master(), 1, settings.threads);
  session.load();
  const int64_t n = d.micro_batch * d.T;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t x = mix64(static_cast<uint64_t>(i) + 1);
    session.tokens().as<int32_t>()[i] = static_cast<int32_t>(x % static_cast<uint64_t>(shape.V));
    session.targets().as<int32_t>()[i] = session.tokens().as<int32_t>()[i];
  }
  const auto step = [&](int64_t k) {
    session.begin_window(1, k, 2 * n);
    for (float& rate : session.state().learning_rate) rate = 1e-4f;
    session.optimizer().prepare_step(session.state());
    session.micro(true);
    session.micro(false);
    session.update();
    ++session.state().updates;
  };
  step(0);
  StepTimes times;
  session.context().set_listener(&times);
  const double end = monotonic_seconds() + seconds;
  int64_t k = 1;
  do step(k++);
  while (k < 200 && (k < 4 || monotonic_seconds() < end));
  times.into(rates);
}

}  // namespace

std::string OpRates::key(const OpRecord& op) {
  std::string key = op.name;
  if (!op.variant.empty()) key += " " + op.variant.str();
  return key;
}

double OpRates::work(const OpRecord& op) {
  return static_cast<double>(op.variant.empty() ? op.bytes : op.flops);
}

void OpRates::add(const std::string& key, OpSample sample) {
  std::vector<OpSample>& list = samples_[key];
  const auto at =
      std::lower_bound(list.begin(), list.end(), sample,
                       [](const OpSample& a, const OpSample& b) { return a.work < b.work; });
  if (at != list.end() && at->work == sample.work)
    at->seconds = (at->seconds + sample.seconds) / 2;
  else
    list.insert(at, sample);
}

double OpRates::seconds(const OpRecord& op) const {
  const auto found = samples_.find(key(op));
  if (found == samples_.end()) return -1;
  const std::vector<OpSample>& list = found->second;
  const double w = work(op);
  const OpSample& least = list.front();
  const OpSample& most = list.back();
  if (w <= 0 || most.work <= 0) return least.seconds;
  if (w >= most.work) return most.seconds * w / most.work;
  // Below the smallest there is little work and the same call.
  if (w <= least.work) return least.seconds * std::max(0.1, w / least.work);
  const auto above = std::lower_bound(
      list.begin(), list.end(), w, [](const OpSample& s, double value) { return s.work < value; });
  const OpSample &b = *above, &a = *std::prev(above);
  if (a.work <= 0 || a.seconds <= 0 || b.seconds <= 0) return b.seconds * w / b.work;
  const double slope = std::log(b.seconds / a.seconds) / std::log(b.work / a.work);
  return a.seconds * std::pow(w / a.work, slope);
}

nlohmann::json OpRates::json() const {
  nlohmann::json j = nlohmann::json::object();
  for (const auto& [key, list] : samples_)
    for (const OpSample& s : list) j[key].push_back({s.work, s.seconds});
  return j;
}

OpRates OpRates::parse(const nlohmann::json& j, const std::string& where) {
  require_object(j, where);
  OpRates rates;
  for (const auto& [key, list] : j.items()) {
    const auto wrong = [&, &found = list] {  // Clang 14 captures no structured binding by itself
      fail(ErrorCode::data, "pairs of work and seconds in " + where, json_brief(found),
           "measure again with snug calibrate --force");
    };
    if (!list.is_array() || list.empty()) wrong();
    for (const nlohmann::json& pair : list) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number())
        wrong();
      const double work = pair[0].get<double>(), seconds = pair[1].get<double>();
      if (!(work >= 0 && work < 1e30 && seconds >= 0 && seconds < 1e9)) wrong();
      rates.add(key, {work, seconds});
    }
  }
  return rates;
}

OpRates measure_ops(DType compute, int threads, const KernelTable& kernels, double seconds) {
  Settings settings;
  settings.threads = threads;
  settings.kernels = &kernels;
  OpRates rates;
  for (const Sample& shape : kShapes)
    measure(shape, compute, settings, seconds / static_cast<double>(std::size(kShapes)), rates);
  return rates;
}

}  // namespace snug
