// snug plan: what a run will need, without starting it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/report/report.h"
#include "tools/trainer/setup.h"

namespace snug {

int plan_command(const Arguments& arguments) {
  bool json = false;
  const ConfigArguments a = parse_config_arguments(
      "plan",
      "says what a run will need, byte by byte, without starting it. Exit code 3 if it does not "
      "fit.",
      {"snug plan --config run.yaml memory=256MiB", "snug plan model=gpt2-xl memory=24GiB",
       "snug plan model=gpt2 precision=bf16 recompute=block memory=4GiB --json"},
      arguments,
      [&](ArgumentParser& parser) { parser.flag("--json", json, "print the plan as JSON"); });
  if (!a.proceed) return 0;
  const RunSetup setup = make_setup(a.config);
  const Plan plan = make_plan(setup.request);
  if (json) {
    fmt::print("{}\n", plan_json(plan).dump(2));
    return plan.fits ? 0 : 3;
  }
  if (!plan.fits) refuse_plan(plan);
  fmt::print("{}\n{}", plan_text(plan), timeline_text(plan));
  return 0;
}

}  // namespace snug
