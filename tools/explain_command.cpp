// snug explain: why a tensor is there, and what holds the peak.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/explain/explain.h"
#include "tools/explain/run_plan.h"
#include "tools/planner/batch_room.h"

namespace snug {

int explain_command(const Arguments& arguments) {
  std::string config_path, run_folder;
  std::vector<std::string> words, names, overrides;
  bool peak = false, json = false;
  ArgumentParser parser(
      "explain",
      "says what a tensor, a parameter or an operation of a plan is: bytes, address, life, why it "
      "is "
      "there, what else lies in its bytes; and what holds the memory at the peak.");
  parser.option("--config", config_path, "FILE", "the run's configuration, YAML or JSON")
      .option("--run", run_folder, "DIR", "the output_dir of a run; in place of a configuration")
      .flag("--peak", peak, "the 20 largest tensors at the peak")
      .flag("--json", json, "one JSON object a line and question")
      .positionals("NAME|key=value", words,
                   "a tensor, parameter or operation, * and ? allowed; keys of the configuration")
      .example("snug explain --config run.yaml h.3.fc")
      .example("snug explain --run run1 --peak")
      .example("snug explain model=gpt2 memory=4GiB 'h.0.*' --json");
  if (!parser.parse(arguments)) return 0;
  for (const std::string& word : words)
    (word.find('=') == std::string::npos ? names : overrides).push_back(word);
  if (names.empty() && !peak)
    fail(ErrorCode::usage, "the name of a tensor, parameter or operation, or --peak", "none",
         "snug explain --config run.yaml h.0.fc");
  if (!run_folder.empty() && (!config_path.empty() || !overrides.empty()))
    fail(ErrorCode::usage, "--run alone, since a run has its configuration",
         overrides.empty() ? "--config beside it" : fmt::format("\"{}\" beside it", overrides[0]),
         fmt::format("--config {}/config.resolved.yaml with keys", run_folder));

  RunPlan run;
  if (!run_folder.empty()) {
    run = plan_of_run(run_folder);
  } else {
    run.setup = make_setup(load_config(config_path, overrides));
    forget_free_bytes(run.setup.request);
    check_batch_room(run.setup.request);
    run.plan = make_plan(run.setup.request);
    if (!run.plan.fits) refuse_plan(run.plan);
  }
  bool first = true;
  const auto print = [&](const ExplainFacts& facts, const std::string& text) {
    if (json)
      fmt::print("{}\n", facts.dump(-1, ' ', false, ExplainFacts::error_handler_t::replace));
    else
      fmt::print("{}{}", first ? "" : "\n", text);
    first = false;
  };
  for (const std::string& name : names) {
    const ExplainFacts facts = explain(run.plan, *run.setup.model, name);
    print(facts, explain_text(facts));
  }
  if (peak) {
    const ExplainFacts facts = explain_peak(run.plan);
    print(facts, explain_peak_text(facts));
  }
  return 0;
}

}  // namespace snug
