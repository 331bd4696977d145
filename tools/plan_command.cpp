// snug plan: what a run will need, without starting it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/files.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/report/report.h"
#include "tools/report/trace.h"
#include "tools/trainer/forecast.h"
#include "tools/trainer/setup.h"

namespace snug {

int plan_command(const Arguments& arguments) {
  bool json = false;
  std::string picture, trace;
  const ConfigArguments a = parse_config_arguments(
      "plan",
      "says what a run will need, byte by byte, without starting it, and draws a step in ten "
      "lines. "
      "Exit code 3 if it does not fit.",
      {"snug plan --config run.yaml memory=256MiB", "snug plan model=gpt2-xl memory=24GiB",
       "snug plan model=gpt2 precision=bf16 recompute=block memory=4GiB --json",
       "snug plan --config run.yaml --picture plan.html --trace plan.trace.json"},
      arguments, [&](ArgumentParser& parser) {
        parser.flag("--json", json, "print the plan as JSON")
            .option("--picture", picture, "FILE",
                    "write the page that a run writes as report.html, drawn from the plan alone")
            .option("--trace", trace, "FILE",
                    "write one step for ui.perfetto.dev: operations, and memory by meaning");
      });
  if (!a.proceed) return 0;
  const RunSetup setup = make_setup(a.config);
  const Plan plan = make_plan(setup.request);
  const StepTimes times = forecast_times(setup.request, plan);
  // A plan that does not fit has a picture too: of what holds the memory.
  if (!picture.empty()) {
    ReportRun run;
    run.title = a.config.output_dir.empty() ? "A plan" : a.config.output_dir;
    run.op_times = times;
    run.ladder = forecast_ladder(setup.request, plan);
    write_atomic(picture, report_html(plan, run));
  }
  if (!trace.empty()) write_atomic(trace, trace_text(plan, predicted_trace(plan, times)));
  if (json) {
    fmt::print("{}\n", plan_json(plan).dump(2));
    return plan.fits ? 0 : 3;
  }
  if (!plan.fits) refuse_plan(plan);
  fmt::print("{}\n{}", plan_text(plan), timeline_text(plan, terminal_glyphs()));
  return 0;
}

}  // namespace snug
