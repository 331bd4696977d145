// snug plan: what a run will need, without starting it.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/files.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/cli/output_file.h"
#include "tools/cli/terminal.h"
#include "tools/commands.h"
#include "tools/config/make_schedule.h"
#include "tools/planner/batch_room.h"
#include "tools/planner/comparison.h"
#include "tools/planner/ladder.h"
#include "tools/planner/offers.h"
#include "tools/planner/plan_search.h"
#include "tools/report/ladder_svg.h"
#include "tools/report/report.h"
#include "tools/report/scale.h"
#include "tools/report/trace.h"
#include "tools/session/tell.h"
#include "tools/setup/setup.h"
#include "tools/trainer/forecast.h"

namespace snug {

namespace {

// The keys of the contract for a plan that was not made.
nlohmann::json unplanned_json(const PlanRequest& request, const Error& why) {
  nlohmann::json j = {{"fits", false},
                      {"budget_bytes", request.budget > 0 ? nlohmann::json(request.budget)
                                                          : nlohmann::json(nullptr)},
                      {"sentence", fmt::format("Does not fit: expected {}; found {}; try {}.",
                                               why.expected(), why.found(), why.advice())}};
  for (const char* key :
       {"engine_bytes", "runtime_bytes", "host_bytes", "minimum_bytes",
        "predicted_tokens_per_second", "packing", "categories", "decisions", "hash"})
    j[key] = nullptr;
  return j;
}

void tell_undrawn(std::initializer_list<std::string> files) {
  for (const std::string& file : files)
    if (!file.empty()) tell(stderr, "Note: {} is not written: there is no plan to draw\n", file);
}

int sweep_budgets(PlanRequest request, const std::string& sweep, const std::string& svg,
                  bool json) {
  std::vector<int64_t> budgets = parse_sweep(sweep);
  std::sort(budgets.begin(), budgets.end());
  request.reserve = 0;
  request.whole_device = false;
  request.budget = budgets.back();
  if (json && batch_refusal(request)) {
    // The keys of a rung, and those of a plan.
    Ladder one;
    one.rungs.emplace_back();
    nlohmann::json rung = ladder_json(one)[0];
    for (nlohmann::json& value : rung) value = nullptr;
    nlohmann::json rungs = nlohmann::json::array();
    budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
    for (const int64_t budget : budgets) {
      request.budget = budget;
      rung.update(unplanned_json(request, *batch_refusal(request)));
      rungs.push_back(rung);
    }
    fmt::print("{}\n", rungs.dump(2));
    tell_undrawn({svg});
    return 3;
  }
  check_batch_room(request);
  const Ladder ladder = staircase(make_ladder(request, budgets));
  if (!svg.empty()) write_atomic(svg, ladder_svg(ladder));
  if (json)
    fmt::print("{}\n", ladder_json(ladder).dump(2));
  else
    fmt::print("{}", fit_terminal(ladder_text(ladder)));
  return !ladder.rungs.empty() && ladder.rungs.back().fits ? 0 : 3;
}

// The same configuration with every value of a key. What is known and not built is a row with the
// reason; anything else that is wrong with a value ends it.
int compare_plans(const ConfigArguments& a, const std::string& text, bool json) {
  Comparison all = parse_comparison(text);
  bool any = false;
  for (ComparedPlan& one : all.plans) {
    std::vector<std::string> overrides = a.overrides;
    overrides.push_back(fmt::format("{}={}", all.key, one.value));
    try {
      RunSetup setup = make_setup(load_config(a.config_path, overrides));
      forget_free_bytes(setup.request);
      check_batch_room(setup.request);
      PlanSearch search(setup.request);
      one.plan = make_plan(setup.request, search);
      one.parameters = setup.model->params().real_elements();
      const ParamTable& table = setup.model->params();
      one.state = state_weight(make_optimizer(setup.request.optimizer)->states(table), table);
      any = any || one.plan.fits;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      one.refused = e.found();
    }
  }
  if (json)
    fmt::print("{}\n", comparison_json(all).dump(2));
  else
    fmt::print("{}", fit_terminal(comparison_text(all)));
  return any ? 0 : 3;
}

// The configuration's share of a step, on more and more ranks.
int scale_plans(const ConfigArguments& a, const std::string& text, const std::string& svg,
                bool json) {
  const std::vector<int64_t> list = parse_scale(text);
  if (a.config.target.empty())
    fail(ErrorCode::usage, "a target for --scale: ranks of this machine share its cores", "none",
         "target=h100");
  const RunSetup first = make_setup(a.config);
  const PlanRequest& given = first.request;
  const int64_t share = ceil_div(samples_per_step(given), int64_t{given.ranks});
  Scale scale;
  for (const int64_t ranks : list) {
    std::vector<std::string> overrides = a.overrides;
    for (const char* key : {"global_batch_tokens=null", "gradient_accumulation_steps=null"})
      overrides.emplace_back(key);
    overrides.push_back(fmt::format("global_batch_size={}", share * ranks));
    overrides.push_back(fmt::format("ranks={}", ranks));
    if (ranks == 1) {  // which have nothing to say of one
      overrides.emplace_back("zero=auto");
      overrides.emplace_back("link=null");
    }
    RunSetup setup = make_setup(load_config(a.config_path, overrides));
    forget_free_bytes(setup.request, true);
    setup.request.whole_device = false;  // the fastest plans are compared
    PlanSearch search(setup.request);
    scale.plans.push_back({ranks, make_plan(setup.request, search)});
  }
  settle_scale(scale);
  if (!svg.empty()) write_atomic(svg, scale_svg(scale));
  if (json)
    fmt::print("{}\n", scale_json(scale).dump(2));
  else
    fmt::print("{}", fit_terminal(scale_text(scale)));
  return scale.plans.back().plan.fits ? 0 : 3;
}

}  // namespace

int plan_command(const Arguments& arguments) {
  bool json = false;
  std::string picture, trace, sweep, svg, compare, scale;
  bool overwrite = false;
  const ConfigArguments a = parse_config_arguments(
      "plan",
      "says what a run will need, byte by byte, without starting it, and draws a step in ten "
      "lines. "
      "Exit code 3 if it does not fit.",
      {"snug plan --config run.yaml memory=256MiB", "snug plan model=gpt2-xl memory=24GiB",
       "snug plan model=gpt2 precision=bf16 recompute=block memory=4GiB --json",
       "snug plan --config run.yaml --picture plan.html --trace plan.trace.json",
       "snug plan model=gpt2-xl precision=bf16 target=rtx4090",
       "snug plan model=gpt2 max_length=1024 per_device_train_batch_size=1 --compare "
       "optim=adamw,lion,rmsprop",
       "snug plan model=gpt2-xl precision=bf16 target=h100 link=400GbE ranks=8 --scale 1..4096",
       "snug plan model=gpt2 global_batch_size=32 --sweep 2GiB..16GiB --svg ladder.svg"},
      arguments, [&](ArgumentParser& parser) {
        parser.flag("--json", json, "print the plan as JSON")
            .option("--picture", picture, "FILE",
                    "write the page that a run writes as report.html, drawn from the plan alone")
            .option("--trace", trace, "FILE",
                    "write one step for ui.perfetto.dev: operations, and memory by meaning")
            .option(
                "--sweep", sweep, "BUDGETS",
                "plan under many budgets in place of memory: FROM..TO, FROM..TO/COUNT or a list "
                "(2GiB,4GiB)")
            .option("--compare", compare, "KEY=VALUES",
                    "plan with each of these values of a key and say what it saves and why: "
                    "optim=adamw,lion")
            .option("--scale", scale, "RANKS",
                    "plan for more and more ranks, each with the share of a step that it has "
                    "here: 1..64")
            .option("--svg", svg, "FILE",
                    "with --sweep or --scale: draw tokens/s by budget, or by ranks, into a file")
            .flag("--overwrite", overwrite,
                  "replace files that are there, also if they are no pictures of a plan");
      });
  if (!a.proceed) return 0;
  check_output_file(picture, "--picture", overwrite, kReportMark);
  check_output_file(trace, "--trace", overwrite, kTraceMark);
  const auto svg_mark = scale.empty() ? kLadderMark : kScaleMark;
  check_output_file(svg, "--svg", overwrite, svg_mark);
  std::vector<std::string> read = {a.config_path, a.config.tokenizer};
  for (const auto& data : {a.config.train_data, a.config.eval_data})
    read.insert(read.end(), data.begin(), data.end());
  check_output_is_no_input(picture, "--picture", read, kReportMark);
  check_output_is_no_input(trace, "--trace", read, kTraceMark);
  check_output_is_no_input(svg, "--svg", read, svg_mark);
  if (!scale.empty()) {
    for (const auto& [flag, given] : {std::pair{"--picture", !picture.empty()},
                                      {"--trace", !trace.empty()},
                                      {"--sweep", !sweep.empty()},
                                      {"--compare", !compare.empty()}})
      if (given)
        fail(ErrorCode::usage, fmt::format("--scale without {}", flag), "both",
             fmt::format("leave {} out", flag));
    return scale_plans(a, scale, svg, json);
  }
  if (!compare.empty()) {
    for (const auto& [flag, given] : {std::pair{"--picture", !picture.empty()},
                                      {"--trace", !trace.empty()},
                                      {"--sweep", !sweep.empty()},
                                      {"--svg", !svg.empty()}})
      if (given)
        fail(ErrorCode::usage, fmt::format("--compare without {}, which is of one plan", flag),
             "both", fmt::format("leave {} out", flag));
    return compare_plans(a, compare, json);
  }
  RunSetup setup = make_setup(a.config);
  const int64_t free = forget_free_bytes(setup.request, !sweep.empty());
  if (!sweep.empty() && (!picture.empty() || !trace.empty()))
    fail(ErrorCode::usage, "--picture and --trace without --sweep, since they draw one plan",
         "--sweep " + sweep, "the same without --sweep, or --svg for the ladder");
  if (!sweep.empty() && !a.config.plan.empty())
    fail(ErrorCode::usage, "--sweep without a plan to follow, since it plans for each budget",
         fmt::format("plan: {} ({})", a.config.plan, a.config.where("plan")), "plan=null");
  if (!sweep.empty()) return sweep_budgets(setup.request, sweep, svg, json);
  if (!svg.empty())
    fail(ErrorCode::usage, "--svg with --sweep or --scale, which it draws", "--svg alone",
         "--sweep 2GiB..24GiB --svg " + svg);
  if (const auto refusal = batch_refusal(setup.request)) {
    if (!json) throw *refusal;
    fmt::print("{}\n", unplanned_json(setup.request, *refusal).dump(2));
    tell_undrawn({picture, trace});
    return 3;
  }
  PlanSearch search(setup.request);
  Plan plan = make_plan(setup.request, search);
  if (free > 0) plan.free_bytes = free;
  if (!plan.fits) plan.offers = plan_offers(setup.request, plan, search.recordings());
  const StepTimes times = forecast_times(setup.request, plan);
  // A plan that does not fit has a picture too: of what holds the memory.
  if (!picture.empty()) {
    ReportRun run;
    run.title = a.config.output_dir.empty() ? "A plan" : a.config.output_dir;
    run.op_times = times;
    run.ladder = forecast_ladder(setup.request, plan, search);
    write_atomic(picture, report_html(plan, run));
  }
  if (!trace.empty()) write_atomic(trace, trace_text(plan, predicted_trace(plan, times)));
  if (json) {
    fmt::print("{}\n", plan_json(plan).dump(2));
    return plan.fits ? 0 : 3;
  }
  if (!plan.fits) refuse_plan(plan);
  const int columns = terminal_columns();
  fmt::print("{}\n{}", fit_columns(plan_text(plan), columns),
             timeline_text(plan, terminal_glyphs(), columns));
  // With num_train_epochs alone the steps are known when the data is.
  if (a.config.max_steps > 0 || clock_alone(a.config))
    if (const std::string idle = idle_rates(a.config, a.config.max_steps); !idle.empty())
      fmt::print("Warning: {}.\n", idle);
  if (plan.free_bytes > 0 && !host_fits(plan))
    fmt::print(
        "Note: {} of this machine's RAM are free for it now, less than this plan takes: a run here "
        "is planned with less, or refused.\n",
        human_bytes(plan.free_bytes));
  return 0;
}

}  // namespace snug
