#include "tools/calibrate/op_bench.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/kernels/kernels.h"
#include "tools/calibrate/median.h"

namespace snug {
namespace {

class Times final : public OpListener {
 public:
  explicit Times(const std::string& op) : op_(op) {}
  void op_done(const Program& program, int32_t op, double took) override {
    const OpRecord& r = program.ops[static_cast<size_t>(op)];
    if (op_ != r.name) return;
    last_ = took;
    flops = r.flops;
    bytes = r.bytes;
  }
  void end_run() { seconds.push_back(last_); }
  std::vector<double> seconds;
  int64_t flops = 0, bytes = 0;

 private:
  const std::string& op_;
  double last_ = 0;
};

void call(Context& ctx, const OpBody& body) {
  std::vector<Tensor> keep;
  body(ctx, keep);
  while (!keep.empty()) keep.pop_back();
}

struct OneProgram {
  OneProgram(Place place, Settings settings, const OpBody& body)
      : place_(place), settings_(settings) {
    settings_.target = place;
    index = schedule.add(Name("bench"), -1, false);
    Context plan(Place::plan, settings_);
    plan.program(schedule, index, [&] { call(plan, body); });
    schedule.pack();
  }
  Settings settings() const { return settings_; }
  Place place() const { return place_; }
  Schedule schedule;
  int index = 0;

 private:
  Place place_;
  Settings settings_;
};

constexpr int kUncounted = 2;

}  // namespace

OpBench bench_op(Place place, const Settings& settings, const std::string& op, int repeats,
                 const OpBody& body) {
  OneProgram p(place, settings, body);
  Context ctx(place, p.settings());
  ctx.reserve(p.schedule);
  Times times(op);
  for (int i = 0; i < kUncounted + repeats; ++i) {
    if (i == kUncounted) ctx.set_listener(&times);
    ctx.program(p.schedule, p.index, [&] { call(ctx, body); });
    if (i >= kUncounted) times.end_run();
  }
  return {median_of(times.seconds, Middle::upper),
          *std::min_element(times.seconds.begin(), times.seconds.end()), times.flops, times.bytes};
}

double bench_program(Place place, const Settings& settings, int repeats, const OpBody& body) {
  OneProgram p(place, settings, body);
  Context ctx(place, p.settings());
  ctx.reserve(p.schedule);
  std::vector<double> seconds;
  for (int i = 0; i < kUncounted + repeats; ++i) {
    const double begin = monotonic_seconds();
    ctx.repeat(p.schedule, p.index, [&] { call(ctx, body); });
    ctx.device().synchronize();
    if (i >= kUncounted) seconds.push_back(monotonic_seconds() - begin);
  }
  return median_of(seconds, Middle::upper);
}

View noise(Context& ctx, std::vector<Tensor>& keep, const char* name, Shape shape, DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "noise in a dtype of numbers");
  keep.push_back(ctx.tensor(Name(name), shape, dtype, Category::workspace));
  const View& v = keep.back();
  const int64_t n = v.elements();
  const View flat = v.reshaped({n});
  // The host writes a first piece, which then doubles where it lies.
  constexpr int64_t kFirst = 1 << 18;
  int64_t there = std::min(n, kFirst);
  if (!ctx.planning()) {
    // The exponent is that of one, sign and mantissa are random; an f32 has its own in the upper half.
    const uint16_t one = dtype == DType::f16 ? 0x3c00 : 0x3f80,
                   random = dtype == DType::f16 ? 0x83ff : 0x807f;
    std::vector<uint16_t> halves(static_cast<size_t>(there * size_of(dtype) / 2));
    for (size_t i = 0; i < halves.size(); ++i) {
      const auto bits = static_cast<uint16_t>(mix64(i) >> 48);
      const bool lower = dtype == DType::f32 && i % 2 == 0;
      halves[i] = lower ? bits : static_cast<uint16_t>((bits & random) | one);
    }
    ctx.write(flat.rows(0, there), halves.data());
  }
  for (int64_t more; there < n; there += more) {
    more = std::min(there, n - there);
    copy(ctx, flat.rows(there, more), flat.rows(0, more));
  }
  return v;
}

View zeros(Context& ctx, std::vector<Tensor>& keep, const char* name, Shape shape, DType dtype) {
  keep.push_back(ctx.tensor(Name(name), shape, dtype, Category::workspace));
  fill_zero(ctx, keep.back());
  return keep.back();
}

}  // namespace snug
