// snug bench: which of its kinds is asked for; and `step`, the kind without a name: the step that
// `train` would run, on random tokens, and where the time goes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/core/units.h"
#include "tools/bench.h"
#include "tools/cli/argument_parser.h"
#include "tools/session/device_choice.h"
#include "tools/session/gpu_memory.h"

namespace snug {

int bench_command(const Arguments& arguments) {
  if (arguments.empty() || arguments[0].empty() || arguments[0][0] == '-' ||
      arguments[0].find('=') != std::string::npos)
    return bench_step(arguments);
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (arguments[0] == "step") return bench_step(rest);
  if (arguments[0] == "ops") return bench_ops(rest);
  if (arguments[0] == "gemm") return bench_gemm(rest);
  fail(ErrorCode::usage, "step, ops or gemm after snug bench, or nothing for step",
       fmt::format("\"{}\"", arguments[0]),
       suggestion(arguments[0], {"step", "ops", "gemm"}, "snug bench ops model=gpt2"));
}

namespace {

nlohmann::json kind_json(const KindRow& k) {
  return {
      {"op", k.op}, {"calls", k.calls}, {"seconds", k.seconds}, {"predicted_seconds", k.predicted}};
}

}  // namespace

int bench_step(const Arguments& arguments) {
  int64_t steps = 3;
  bool json = false, no_roofs = false;
  const ConfigArguments a = parse_config_arguments(
      "bench",
      "times the training step of a configuration, operation by operation, on random tokens. "
      "`snug bench ops` and `snug bench gemm` look at the operations and the matrix products "
      "more closely.",
      {"snug bench model=gpt2 precision=bf16 max_length=1024 global_batch_size=4",
       "snug bench step model=gpt2 threads=1 --steps 5 --json"},
      arguments, [&](ArgumentParser& parser) {
        parser.option("--steps", steps, "N", "timed optimizer steps, after one that is not")
            .flag("--json", json, "print the figures as JSON")
            .flag("--no-roofs", no_roofs,
                  "with --json: leave out the machine's roofs, which take a second to measure");
      });
  if (!a.proceed) return 0;
  if (no_roofs && !json)
    fail(ErrorCode::usage, "--no-roofs with --json, since the table is shares of the roofs",
         "--no-roofs alone", "snug bench --json --no-roofs");
  if (steps < 1)
    fail(ErrorCode::usage, "--steps of at least 1", std::to_string(steps), "--steps 10");
  BenchRun run(a.config);
  const Plan& plan = run.plan();
  const double startup = seconds_since_start();
  const double first = run.step();
  OpTimes ops;
  Times times;
  // On a GPU a step that is heard is no graph, and marks lie between its ops: it does not count.
  const bool gpu = plan.place == Place::cuda;
  for (int64_t step = 0; gpu && step < steps; ++step) times.seconds.push_back(run.step());
  run.session().context().set_listener(&ops);
  for (int64_t step = 0; step < steps; ++step) {
    const double seconds = run.step();
    if (!gpu) times.seconds.push_back(seconds);
    ops.end_window();
  }
  // Of the memory that the plan's runtime bytes are of: on a GPU its own, if NVML tells.
  const Context& context = run.session().context();
  const int64_t process = process_private_bytes() - context.host_resident_bytes() -
                          (gpu ? 0 : context.resident_bytes());
  const int64_t device =
      gpu ? process_gpu_bytes(gpu_room(run.setup().request.settings.gpu).facts.pci) : -1;
  const nlohmann::json runtime = !gpu          ? nlohmann::json(process)
                                 : device >= 0 ? nlohmann::json(device - context.resident_bytes())
                                               : nlohmann::json();
  const int64_t peak = process_peak_bytes();
  // Last, since its arrays count as the process's peak too.
  const Roofs roofs = no_roofs ? Roofs() : run.roofs();
  const double median = times.median();
  const DType compute = run.setup().model->precision().compute;
  const bool narrow = compute == DType::bf16 || (gpu && compute == DType::f16);
  const double roof = roofs.flops(narrow);
  const double model_rate =
      run.setup().model->flops_per_token(plan.decisions.T) * run.tokens() / median;
  const std::vector<OpRow> rows = ops.rows();
  const auto window = [](const OpRow& r) {
    return r.times.median() * static_cast<double>(r.calls);
  };
  const CostModel& cost = *run.setup().cost;
  const auto predicted = [&](const OpRow& r) {
    return cost.seconds({r.op.c_str(), {}, r.flops, r.bytes, 0, Name(r.variant), r.stream},
                        plan.decisions.micro_batch * plan.decisions.T) -
           (r.stream == kCompute ? cost.between() : 0.0);
  };
  // Copies run beside the ops, so they are no part of the sum that the step is.
  std::vector<OpRow> computes, crosses;
  for (const OpRow& r : rows) (r.stream == kCompute ? computes : crosses).push_back(r);
  const std::vector<KindRow> kinds = op_kinds(computes, predicted);
  const std::vector<KindRow> copies = op_kinds(crosses, predicted);
  // What lies between them: tensors that are born and end, and what a program does of itself.
  KindRow inside{"in ops", 0, 0, 0};
  for (const KindRow& k : kinds) {
    inside.calls += k.calls;
    inside.seconds += k.seconds;
    inside.predicted += k.predicted;
  }
  const KindRow between{"between ops", inside.calls, median - inside.seconds,
                        static_cast<double>(inside.calls) * cost.between()};
  double total = 0;
  for (const OpRow& r : computes) total += window(r);

  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const OpRow& r : rows) {
      double seconds = 0;
      for (const double s : r.times.seconds) seconds += s * static_cast<double>(r.calls);
      list.push_back({{"program", r.program},
                      {"op", r.op},
                      {"of", product_text(r)},
                      {"calls", r.calls * static_cast<int64_t>(r.times.seconds.size())},
                      {"seconds", seconds},
                      {"predicted_seconds_per_call", predicted(r)},
                      {"flops_per_call", r.flops},
                      {"bytes_per_call", r.bytes}});
      if (!r.variant.empty()) list.back()["kernel"] = r.variant;
    }
    nlohmann::json by_kind = nlohmann::json::array();
    for (const KindRow& k : kinds) by_kind.push_back(kind_json(k));
    nlohmann::json by_copy = nlohmann::json::array();
    for (const KindRow& k : copies) by_copy.push_back(kind_json(k));
    fmt::print("{}\n", nlohmann::json({{"step_seconds", median},
                                       {"predicted_step_seconds", plan.step_seconds},
                                       {"prediction", cost.text()},
                                       {"step_times", times.seconds},
                                       {"step_noise", times.noise()},
                                       {"first_step_seconds", first},
                                       {"startup_seconds", startup},
                                       {"tokens_per_second", run.tokens() / median},
                                       {"model_flops_per_second", model_rate},
                                       {"engine_bytes", plan.engine_bytes},
                                       {"runtime_bytes_measured", runtime},
                                       {"host_process_bytes", process},
                                       {"peak_resident_bytes", peak},
                                       {"roofs", no_roofs ? nlohmann::json() : roofs_json(roofs)},
                                       {"kinds", by_kind},
                                       {"in_ops", kind_json(inside)},
                                       {"between_ops", kind_json(between)},
                                       {"copies", by_copy},
                                       {"ops", list}})
                           .dump(2));
    return 0;
  }
  fmt::print("{}\n", plan_text(plan));
  fmt::print("roofs measured now, {}\n", to_string(roofs));
  fmt::print(
      "step: median {:.3f} s of {} (fastest {:.3f}, noise {:.1f} %), {:.0f} tokens/s, {:.0f} "
      "GFLOP/s of model arithmetic = {:.1f} % of the {} roof\n",
      median, times.seconds.size(), times.least(), 100.0 * times.noise(), run.tokens() / median,
      model_rate * 1e-9, 100.0 * model_rate / roof, roofs.is_bf16(narrow) ? "bf16" : "fp32");
  fmt::print("start: {:.2f} s until the first step, which took {:.3f} s; peak resident {}\n\n",
             startup, first, human_bytes(peak));
  fmt::print("{:<12} {:<29} {:<24} {:>6} {:>9} {:>9} {:>6} {:>10} {:>9} {:>6}\n", "program", "op",
             "of", "calls", "ms/call", "predicted", "share", "GFLOP/s", "GB/s", "roof");
  for (const OpRow& r : rows) {
    const double each = r.times.median();
    const bool product = narrow_product(roofs, r.variant);
    fmt::print(
        "{:<12} {:<29} {:<24} {:>6} {:>9.3f} {:>9.3f} {:>5.1f}% {:>10.1f} {:>9.2f} {:>5.0f}%\n",
        r.program, r.op, product_text(r), r.calls, each * 1e3, predicted(r) * 1e3,
        100.0 * window(r) / total, static_cast<double>(r.flops) / each * 1e-9,
        static_cast<double>(r.bytes) / each * 1e-9,
        100.0 * roof_share(roofs, static_cast<double>(r.flops), static_cast<double>(r.bytes), each,
                           product));
    if (window(r) < 0.001 * total) break;
  }
  fmt::print("\n{:<29} {:>6} {:>9} {:>9} {:>9}\n", "of a step", "calls", "ms", "predicted",
             "of step");
  std::vector<KindRow> lines = kinds;
  std::erase_if(lines, [&](const KindRow& k) { return k.seconds < 0.001 * total; });
  lines.push_back(inside);
  lines.push_back(between);
  lines.push_back({"the step", inside.calls, median, plan.step_seconds});
  for (const KindRow& k : lines)
    fmt::print("{:<29} {:>6} {:>9.3f} {:>9.3f} {:>+8.1f}%\n", k.op, k.calls, k.seconds * 1e3,
               k.predicted * 1e3, 100.0 * (k.predicted - k.seconds) / median);
  for (const KindRow& k : copies)
    fmt::print("{:<29} {:>6} {:>9.3f} {:>9.3f}  beside them\n", k.op, k.calls, k.seconds * 1e3,
               k.predicted * 1e3);
  return 0;
}

}  // namespace snug
