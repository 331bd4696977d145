// snug bench ops: every op of the training step at the configuration's shapes, against the roofs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/bench.h"
#include "tools/calibrate/median.h"
#include "tools/cli/argument_parser.h"

namespace snug {

int bench_ops(const Arguments& arguments) {
  int64_t repeat = 7;
  bool json = false;
  const ConfigArguments a = parse_config_arguments(
      "bench ops",
      "times every operation of a configuration's training step: a median over whole steps, so "
      "that "
      "what an operation finds in the caches is what it finds in training. The roofs are measured "
      "before and after, and the larger of each counts; of a CPU's memory also between the steps, "
      "and the median of those counts.",
      {"snug bench ops model=gpt2 precision=bf16 max_length=1024 global_batch_size=4",
       "snug bench ops --config run.yaml --repeat 15 --json"},
      arguments, [&](ArgumentParser& parser) {
        parser.option("--repeat", repeat, "N", "steps that are timed, after one that is not")
            .flag("--json", json, "print the figures as JSON");
      });
  if (!a.proceed) return 0;
  if (repeat < 2)
    fail(ErrorCode::usage, "--repeat of at least 2", std::to_string(repeat), "--repeat 5");
  BenchRun run(a.config);
  const Roofs before = run.roofs();
  run.step();
  OpTimes ops;
  run.session().context().set_listener(&ops);
  Times times;
  // What memory gives moves with the machine's neighbours: it is asked in the minutes of the steps.
  std::unique_ptr<MemoryRoofs> memory;
  if (run.plan().place == Place::cpu) memory = std::make_unique<MemoryRoofs>(run.plan().threads);
  std::vector<Roofs> between;
  for (int64_t i = 0; i < repeat; ++i) {
    if (memory) between.push_back(memory->measure());
    times.seconds.push_back(run.step());
    ops.end_window();
  }
  if (memory) between.push_back(memory->measure());
  memory.reset();
  const Roofs after = run.roofs();
  Roofs roofs = larger(before, after);
  nlohmann::json between_json;
  std::string between_line;
  if (!between.empty()) {
    const auto spread = [&](double Roofs::*rate, const char* key) {
      std::vector<double> rates;
      for (const Roofs& r : between) rates.push_back(r.*rate);
      const double median = median_of(rates);
      const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
      between_json[key] = {{"median", median}, {"least", *least}, {"most", *most}};
      between_line +=
          fmt::format("{} {} {:.1f} ({:.1f} to {:.1f})", between_line.empty() ? "" : ",", key,
                      median * 1e-9, *least * 1e-9, *most * 1e-9);
      roofs.*rate = median;
    };
    spread(&Roofs::read_bytes, "read_bytes");
    spread(&Roofs::copy_bytes, "copy_bytes");
    spread(&Roofs::stream_bytes, "stream_bytes");
  }
  nlohmann::json list = nlohmann::json::array();
  double inside = 0;
  if (!json) {
    fmt::print("roofs before, {}\n", to_string(before));
    fmt::print("roofs after,  {}\n", to_string(after));
    if (!between.empty())
      fmt::print("memory between the steps, median of {}, which counts (least to most):{} GB/s\n",
                 between.size(), between_line);
    fmt::print("step: median {:.3f} s of {}, noise {:.1f} %\n\n", times.median(),
               times.seconds.size(), 100.0 * times.noise());
    fmt::print("{:<12} {:<24} {:<24} {:>6} {:>9} {:>7} {:>9} {:>8} {:>6}  {}\n", "program", "op",
               "of", "calls", "ms/call", "noise", "GFLOP/s", "GB/s", "roof", "kernel");
  }
  for (const OpRow& r : ops.rows()) {
    const double each = r.times.median();
    const auto flops = static_cast<double>(r.flops), bytes = static_cast<double>(r.bytes);
    const bool product = narrow_product(roofs, r.variant);
    const double share = roof_share(roofs, flops, bytes, each, product);
    inside += each * static_cast<double>(r.calls);
    if (json) {
      list.push_back(
          {{"program", r.program},
           {"op", r.op},
           {"of", product_text(r)},
           {"calls_per_step", r.calls},
           {"seconds_per_call", each},
           {"fastest_seconds", r.times.least()},
           {"noise", r.times.noise()},
           {"flops_per_call", r.flops},
           {"bytes_per_call", r.bytes},
           {"flops_per_second", flops / each},
           {"bytes_per_second", bytes / each},
           {"roof_share", share},
           {"bound_by", flops / roofs.flops(product) > bytes / roofs.memory_bytes() ? "arithmetic"
                                                                                    : "memory"}});
      if (!r.variant.empty()) list.back()["kernel"] = r.variant;
    } else {
      fmt::print("{:<12} {:<24} {:<24} {:>6} {:>9.3f} {:>6.1f}% {:>9.1f} {:>8.2f} {:>5.0f}%  {}\n",
                 r.program, r.op, product_text(r), r.calls, each * 1e3, 100.0 * r.times.noise(),
                 flops / each * 1e-9, bytes / each * 1e-9, 100.0 * share, r.variant);
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json({{"step_seconds", times.median()},
                                       {"step_noise", times.noise()},
                                       {"step_times", times.seconds},
                                       {"seconds_in_ops", inside},
                                       {"roofs", roofs_json(roofs)},
                                       {"roofs_before", roofs_json(before)},
                                       {"roofs_after", roofs_json(after)},
                                       {"memory_between", between_json},
                                       {"ops", list}})
                           .dump(2));
    return 0;
  }
  fmt::print(
      "\nin operations {:.1f} % of the step; roof: of arithmetic or of memory traffic, "
      "whichever is nearer\n",
      100.0 * inside / times.median());
  return 0;
}

}  // namespace snug
