// snug doctor: what this machine has, and what stands in the way of training.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/inspect/machine.h"

namespace snug {

int doctor_command(const Arguments& arguments) {
  MachineOptions options;
  bool json = false;
  ArgumentParser parser(
      "doctor",
      "says what this machine has (processor, memory, libraries, disk, limits) and "
      "what to do where something stands in the way; exit code 1 if training "
      "cannot start.");
  parser.option("--folder", options.folder, "DIR", "whose disk to look at")
      .flag("--json", json, "one JSON object: problems, checks")
      .example("snug doctor")
      .example("snug doctor --folder /data/runs --json");
  if (!parser.parse(arguments)) return 0;
  const std::vector<Finding> findings = examine_machine(options);
  if (json)
    fmt::print("{}\n", machine_json(findings).dump(
                           -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    fmt::print("{}", machine_text(findings));
  for (const Finding& f : findings)
    if (f.level == Level::problem) return 1;
  return 0;
}

}  // namespace snug
