// snug inspect: what a file or folder holds.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/inspect/inspect.h"

namespace snug {

int inspect_command(const Arguments& arguments) {
  std::vector<std::string> paths;
  InspectOptions options;
  bool json = false;
  ArgumentParser parser("inspect",
                        "says what a file or folder holds: safetensors, GGUF, model folders, "
                        "checkpoints, runs, tokenizers, token files.");
  parser.positionals("PATH", paths, "what to look at")
      .required()
      .flag("--stats", options.stats, "read every value: least, largest, mean, NaN and infinity")
      .flag("--json", json, "one JSON object a path and line")
      .example("snug inspect run1/final --stats")
      .example("snug inspect run1/checkpoint-500 --json")
      .example("snug inspect model.gguf");
  if (!parser.parse(arguments)) return 0;
  bool first = true;
  for (const std::string& path : paths) {
    const nlohmann::ordered_json facts = inspect(path, options);
    if (json)
      fmt::print("{}\n",
                 facts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    else
      fmt::print("{}{}", first ? "" : "\n", inspect_text(facts));
    first = false;
  }
  return 0;
}

}  // namespace snug
