// snug bench: runs the step that `train` would run, on random tokens, and says where the time goes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "optim/clip.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/trainer/roofs.h"
#include "tools/trainer/setup.h"

namespace snug {
namespace {

struct Row {
  std::string program, op;
  int64_t flops = 0, bytes = 0;  // of one call
  int64_t calls = 0;
  double seconds = 0;
};

// Sums the time of ops that are alike: same program, name, FLOPs and bytes.
class Collector final : public OpListener {
 public:
  void op_done(const Program& program, int32_t op, double seconds) override {
    const OpRecord& r = program.ops[static_cast<size_t>(op)];
    Row& row = rows_[{program.name.str(), r.name, r.flops, r.bytes}];
    row.program = program.name.str();
    row.op = r.name;
    row.flops = r.flops;
    row.bytes = r.bytes;
    ++row.calls;
    row.seconds += seconds;
  }
  std::vector<Row> sorted() const {
    std::vector<Row> rows;
    for (const auto& [key, row] : rows_) rows.push_back(row);
    std::sort(rows.begin(), rows.end(),
              [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
    return rows;
  }

 private:
  std::map<std::tuple<std::string, std::string, int64_t, int64_t>, Row> rows_;
};

}  // namespace

int bench_command(const Arguments& arguments) {
  int64_t steps = 3;
  bool json = false;
  const ConfigArguments a = parse_config_arguments(
      "bench",
      "times the training step of a configuration, operation by operation, on random tokens.",
      {"snug bench model=gpt2 precision=bf16 max_length=1024 global_batch_size=4",
       "snug bench model=gpt2 threads=1 --steps 5 --json"},
      arguments, [&](ArgumentParser& parser) {
        parser.option("--steps", steps, "N", "timed optimizer steps, after one that is not")
            .flag("--json", json, "print the figures as JSON");
      });
  if (!a.proceed) return 0;
  RunSetup setup = make_setup(a.config);
  setup.request.evaluate = false;
  setup.request.kv_length = 0;
  const Plan plan = make_plan(setup.request);
  if (!plan.fits) refuse_plan(plan);
  const Roofs roofs = measure_roofs(plan.threads);

  Session session(Place::cpu, *setup.model, plan.decisions, setup.request.optimizer,
                  setup.request.settings, &plan.schedule);
  session.open();
  init_parameters(setup.model->params(), session.master(), 42, plan.threads);
  session.load();
  const int64_t B = plan.decisions.micro_batch, T = plan.decisions.T;
  const auto random_tokens = [&](uint64_t draw) {
    for (int64_t i = 0; i < B * T; ++i) {
      const uint64_t x = mix64(draw * 1000003 + static_cast<uint64_t>(i));
      session.tokens().as<int32_t>()[i] =
          static_cast<int32_t>(x % static_cast<uint64_t>(setup.model->spec().V));
      session.targets().as<int32_t>()[i] =
          static_cast<int32_t>((x >> 32) % static_cast<uint64_t>(setup.model->spec().V));
    }
  };
  Collector collector;
  std::vector<double> times;
  for (int64_t step = 0; step <= std::max<int64_t>(1, steps); ++step) {
    if (step == 1) session.context().set_listener(&collector);
    const double started = monotonic_seconds();
    session.begin_window(42, step, plan.global_batch * T);
    for (int64_t m = 0; m < plan.accumulation; ++m) {
      random_tokens(static_cast<uint64_t>(step * plan.accumulation + m));
      session.state().first_sample = m * B;
      session.micro(m == 0);
    }
    for (float& rate : session.state().learning_rate) rate = 1e-4f;
    session.optimizer().prepare_step(session.state());
    session.update();
    ++session.state().updates;
    if (step > 0) times.push_back(monotonic_seconds() - started);
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double tokens = static_cast<double>(plan.accumulation * B * T);
  const bool narrow = setup.model->precision().compute == DType::bf16;
  const double roof = narrow && roofs.bf16_flops > 0 ? roofs.bf16_flops : roofs.fp32_flops;
  const double model_rate = setup.model->flops_per_token(T) * tokens / median;
  const std::vector<Row> rows = collector.sorted();
  double total = 0;
  for (const Row& r : rows) total += r.seconds;

  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Row& r : rows)
      list.push_back({{"program", r.program},
                      {"op", r.op},
                      {"calls", r.calls},
                      {"seconds", r.seconds},
                      {"flops_per_call", r.flops},
                      {"bytes_per_call", r.bytes}});
    fmt::print("{}\n",
               nlohmann::json({{"step_seconds", median},
                               {"tokens_per_second", tokens / median},
                               {"model_flops_per_second", model_rate},
                               {"engine_bytes", plan.engine_bytes},
                               {"runtime_bytes_measured",
                                process_private_bytes() - session.context().resident_bytes()},
                               {"roofs",
                                {{"fp32_flops", roofs.fp32_flops},
                                 {"bf16_flops", roofs.bf16_flops},
                                 {"copy_bytes", roofs.copy_bytes}}},
                               {"ops", list}})
                   .dump(2));
    return 0;
  }
  fmt::print("{}\n", plan_text(plan));
  fmt::print(
      "roofs measured now, {} threads: fp32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s, copy {:.1f} "
      "GB/s\n",
      plan.threads, roofs.fp32_flops * 1e-9, roofs.bf16_flops * 1e-9, roofs.copy_bytes * 1e-9);
  fmt::print(
      "step: median {:.3f} s of {} (fastest {:.3f}), {:.0f} tokens/s, {:.0f} GFLOP/s of model "
      "arithmetic = {:.1f} % of the {} roof\n\n",
      median, times.size(), times.front(), tokens / median, model_rate * 1e-9,
      100.0 * model_rate / roof, narrow ? "bf16" : "fp32");
  fmt::print("{:<12} {:<24} {:>6} {:>9} {:>6} {:>10} {:>9} {:>6}\n", "program", "op", "calls",
             "ms/call", "share", "GFLOP/s", "GB/s", "roof");
  for (const Row& r : rows) {
    const double each = r.seconds / static_cast<double>(r.calls);
    const double rate = static_cast<double>(r.flops) / each;
    const double traffic = static_cast<double>(r.bytes) / each;
    // Whichever roof is nearer is the one that can bound the op.
    const double share = std::max(rate / roof, traffic / roofs.copy_bytes);
    fmt::print("{:<12} {:<24} {:>6} {:>9.3f} {:>5.1f}% {:>10.1f} {:>9.2f} {:>5.0f}%\n", r.program,
               r.op, r.calls, each * 1e3, 100.0 * r.seconds / total, rate * 1e-9, traffic * 1e-9,
               100.0 * share);
    if (r.seconds < 0.001 * total) break;
  }
  return 0;
}

}  // namespace snug
