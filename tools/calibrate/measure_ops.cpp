#include "tools/calibrate/measure_ops.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/core/rng.h"
#include "layers/models/family.h"
#include "tools/calibrate/median.h"
#include "tools/session/session.h"

namespace snug {
namespace {

// As the step that a plan predicts: neither the fastest nor one that other work interrupted.
double usual(std::vector<double> seconds) {
  return median_of(seconds, Middle::lower);
}

// Collects the seconds of every op of the programs that a step runs.
class StepTimes final : public OpListener {
 public:
  void op_done(const Program& program, int32_t op, double seconds) override {
    times_[{&program, op}].push_back(seconds);
  }
  // Of equal ops the median over steps of their mean in one: of short ops now and then one takes
  // several times as long, and so does its part of every step. Seconds of a step and its ops.
  // With `packing` packed products and the packing alone count.
  std::pair<double, int64_t> into(OpRates& rates, bool packing) const {
    struct Sum {
      std::vector<double> seconds;  // by step
      int64_t ops = 0;
    };
    std::map<std::tuple<std::string, int64_t, int64_t>, Sum> sums;
    for (const auto& [where, list] : times_) {
      const OpRecord& op = where.first->ops[static_cast<size_t>(where.second)];
      if (op.stream != kCompute) continue;
      if (packing && !is_packed(op.variant.view()) && std::string_view(op.name) != kPackOp)
        continue;
      Sum& sum = sums[{OpRates::key(op), op.flops, op.bytes}];
      sum.seconds.resize(list.size());
      for (size_t step = 0; step < list.size(); ++step) sum.seconds[step] += list[step];
      ++sum.ops;
    }
    std::pair<double, int64_t> all{0, 0};
    for (const auto& [what, sum] : sums) {
      const double seconds = usual(sum.seconds);
      rates.add(std::get<0>(what),
                {static_cast<double>(std::get<1>(what)), static_cast<double>(std::get<2>(what)),
                 seconds / static_cast<double>(sum.ops)});
      all.first += seconds;
      all.second += sum.ops;
    }
    return all;
  }

 private:
  std::map<std::pair<const Program*, int32_t>, std::vector<double>> times_;
};

struct Sample {
  int64_t C, H, V, T, B, head_rows;
  // With dropout ops take longer by the random numbers they draw, which are no FLOPs and no bytes:
  // they have names of their own, and both kinds are measured. The long models are trained with it
  // alone: nearly all of their ops are the same without.
  bool without_dropout = true, with_dropout = true;
  // Once also with packed weights. Not where sizes near by have them and the model is large: its
  // second arena takes as long as its steps.
  bool packed = true;
};
// Tiny and small, with few and with many rows, so that work and intensity vary apart; long; the
// width of GPT-2, whose products and update do not fit a cache, with chunks of the head that are
// short and long, and of very few rows of its whole vocabulary, where each chunk reads and writes
// all of the largest matrix.
constexpr Sample kShapes[] = {{128, 2, 512, 64, 4, 256},
                              {128, 4, 1024, 128, 16, 1024},
                              {256, 4, 1024, 1024, 1, 1024},
                              {384, 6, 1024, 256, 16, 1024, false},
                              {768, 12, 8192, 256, 2, 256, false},
                              {768, 12, 50304, 64, 1, 64, true, false, false},
                              {768, 12, 8192, 1024, 1, 1024, true, true, false},
                              {768, 12, 8192, 1024, 4, 1024, false}};
// Of a GPU: from few rows to many, with the vocabulary and the widths of GPT-2.
constexpr Sample kGpuShapes[] = {{256, 4, 1024, 256, 4, 1024},
                                 {768, 12, 50304, 1024, 1, 1024},
                                 {768, 12, 50304, 1024, 8, 8192},
                                 {1600, 25, 50304, 1024, 4, 4096}};
// The emulator's times mean nothing: that they can be taken is what is tried.
constexpr Sample kEmulatedShapes[] = {{16, 2, 64, 8, 1, 8}};

std::span<const Sample> shapes_of(Place place) {
  if (place == Place::cuda) return kGpuShapes;
  if (place == Place::emu) return kEmulatedShapes;
  return kShapes;
}

// The layers of each: between them the ops of all ways to recompute, fused and apart.
constexpr const char* kRecompute = "0: act, 1: fc+mid";
constexpr double kDropout = 0.1;
constexpr int64_t kLeastSteps = 4, kMostSteps = 200;  // the first is not timed
constexpr double kBriefStep = 0.1;                    // seconds

ModelSpec spec_of(const Sample& s, double dropout) {
  const nlohmann::json map = {
      {"type", "gpt2"},        {"vocab_size", s.V},     {"n_positions", s.T},
      {"n_embd", s.C},         {"n_layer", 2},          {"n_head", s.H},
      {"embd_pdrop", dropout}, {"attn_pdrop", dropout}, {"resid_pdrop", dropout}};
  return resolve_model("", map.dump()).spec;
}

// Seconds of a program by what is known so far; 0 for what is not.
double forecast(const Program& program, const OpRates& rates) {
  double sum = 0;
  for (const OpRecord& op : program.ops) sum += std::max(0.0, rates.seconds(op));
  return sum;
}

// The seconds between two ops that explain best, in shares of a step, what steps take beyond their
// ops.
class Between {
 public:
  void add(double step, double in_ops, int64_t ops) {
    const double share = static_cast<double>(ops) / step;
    above_ += share * std::max(0.0, step - in_ops) / step;
    below_ += share * share;
  }
  double seconds() const { return below_ > 0 ? above_ / below_ : 0.0; }

 private:
  double above_ = 0, below_ = 0;
};

// A small model in training.
class Trained {
 public:
  Trained(const Sample& shape, const Model& model, const Decisions& d, const Settings& settings,
          const Schedule& schedule, const Trained* like = nullptr)
      : tokens_(d.micro_batch * d.T),
        session_(settings.target, model, d, OptimizerConfig(), settings, &schedule) {
    session_.open();
    if (like == nullptr)
      init_parameters(session_.context(), model.params(), session_.resting(), 1);
    else
      std::memcpy(session_.master().data, like->session_.master().data,
                  static_cast<size_t>(session_.master().bytes()));
    session_.load();
    for (int64_t i = 0; i < tokens_; ++i) {
      const uint64_t x = mix64(static_cast<uint64_t>(i) + 1);
      session_.tokens().as<int32_t>()[i] = static_cast<int32_t>(x % static_cast<uint64_t>(shape.V));
      session_.targets().as<int32_t>()[i] = session_.tokens().as<int32_t>()[i];
    }
  }
  // Seconds. Of packed weights one micro-step says all: their products are the same in each.
  double step(OpListener* listener, bool accumulate = true) {
    session_.context().set_listener(listener);
    const double started = monotonic_seconds();
    session_.begin_window(1, k_++, 2 * tokens_);
    for (float& rate : session_.state().learning_rate) rate = 1e-4f;
    session_.optimizer().prepare_step(session_.state());
    session_.micro(true, !accumulate);
    if (accumulate) session_.micro(false, true);
    session_.update();
    ++session_.state().updates;
    const double seconds = monotonic_seconds() - started;
    session_.context().set_listener(nullptr);
    return seconds;
  }

 private:
  int64_t tokens_, k_ = 0;
  Session session_;
};

// `seconds` is its share, `most` what its least number of steps may take.
void measure(const Sample& shape, double dropout, DType compute, const Settings& settings,
             double seconds, double most, OpRates& rates, Between& between) {
  const Model model(spec_of(shape, dropout), Precision{.compute = compute});
  Decisions d;
  d.T = shape.T;
  d.micro_batch = shape.B;
  d.head_rows = shape.head_rows;
  d.recompute = kRecompute;
  d.max_grad_norm = 1;
  d.loss_scaling.init_scale = 1;  // of fp16: no gradient overflows, so no update is passed over
  const auto planned = [&](const Decisions& decisions) {
    auto plan =
        std::make_unique<Session>(Place::plan, model, decisions, OptimizerConfig(), settings);
    plan->open();
    plan->schedule().pack();
    return plan;
  };
  const int64_t room =
      make_device(settings.target, settings.gpu)->memory_info().available_bytes / 2;
  const std::unique_ptr<Session> plan = planned(d);
  const int64_t bytes = plan->schedule().arena_bytes();
  double forecasted = 0;
  for (const char* name : {"micro_first", "micro_next", "update"})
    forecasted += forecast(plan->schedule().at(plan->schedule().find(name)), rates);
  if (!rates.empty() && (forecasted * kLeastSteps > most || bytes > room)) return;
  Trained plain(shape, model, d, settings, plan->schedule());

  // The same with packed weights, step for step in turn with it, so that what the machine does
  // meanwhile is done to both: what packing gains is less than that.
  std::unique_ptr<Session> packed_plan;
  std::unique_ptr<Trained> packed;
  if (settings.target == Place::cpu && shape.packed && (dropout == 0 || !shape.without_dropout)) {
    d.packed_weights = WeightPacking::both;
    packed_plan = planned(d);
    const Schedule& s = packed_plan->schedule();
    const std::vector<TensorRecord>& residents = s.at(s.find("root")).tensors;
    const bool copies = std::any_of(residents.begin(), residents.end(), [](const TensorRecord& t) {
      return t.category == Category::packed_weights;
    });
    if (copies && (rates.empty() || bytes + s.arena_bytes() <= room))
      packed = std::make_unique<Trained>(shape, model, d, settings, s, &plain);
  }

  // Of a long step what lies between its ops is nothing. In a short one ops are listened to every
  // other time: what listening takes is no part of a step.
  const bool brief = plain.step(nullptr) < kBriefStep;
  if (packed) packed->step(nullptr, false);
  StepTimes times, packed_times;
  std::vector<double> steps;
  const double end = monotonic_seconds() + seconds;
  for (int64_t k = 1; k < kMostSteps && (k < kLeastSteps || monotonic_seconds() < end); ++k) {
    plain.step(&times);
    if (packed) packed->step(&packed_times, false);
    if (brief) {
      steps.push_back(plain.step(nullptr));
      ++k;
    }
  }
  const auto [in_ops, ops] = times.into(rates, false);
  if (packed) packed_times.into(rates, true);
  if (brief) between.add(usual(steps), in_ops, ops);
}

}  // namespace

OpRates measure_ops(DType compute, const Settings& settings, double seconds) {
  OpRates rates;
  Between between;
  const std::span<const Sample> shapes = shapes_of(settings.target);
  const auto trained = [](const Sample& s) { return int{s.without_dropout} + int{s.with_dropout}; };
  double models = 0;
  for (const Sample& shape : shapes) models += trained(shape);
  const double share = seconds / models;
  const double most = seconds > 0 ? 0.6 * seconds : std::numeric_limits<double>::infinity();
  for (const Sample& shape : shapes) {
    if (shape.without_dropout) measure(shape, 0, compute, settings, share, most, rates, between);
    if (shape.with_dropout)
      measure(shape, kDropout, compute, settings, share, most, rates, between);
    if (seconds <= 0) break;
  }
  // Of a GPU the ops' times are its own, and the queue hides what lies between them.
  if (settings.target == Place::cpu) rates.set_between(between.seconds());
  return rates;
}

}  // namespace snug
