#include "tools/cli/config_arguments.h"

#include <cstdio>
#include <cstdlib>

#include "tools/cli/argument_parser.h"
#include "tools/config/keys.h"
#include "tools/config/run_place.h"

namespace snug {

ConfigArguments parse_config_arguments(std::string_view command, std::string_view summary,
                                       const std::vector<std::string>& examples,
                                       const std::vector<std::string>& arguments,
                                       const std::function<void(ArgumentParser&)>& more) {
  ConfigArguments result;
  bool print = false;
  ArgumentParser parser{std::string(command), std::string(summary)};
  parser.option("--config", result.config_path, "FILE", "the run's configuration, YAML or JSON")
      .flag("--print-config", print, "print every key with its value and stop")
      .positionals(
          "key=value", result.overrides,
          "sets a key, nested ones with dots: memory=8GiB model.n_layer=6; wins over FILE");
  if (more) more(parser);
  for (const std::string& example : examples) parser.example(example);
  parser.epilog([] { return "\nkeys of the configuration\n" + config_help(help_columns()); });
  if (!parser.parse(arguments)) {
    result.proceed = false;
    return result;
  }
  result.config = load_config(result.config_path, result.overrides);
  follow_moved_run(result.config, result.config_path);
  // Launchers set it for each of their processes, whose ranks have shares of their own.
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  if (threads != nullptr && *threads != '\0' && !result.config.is_set("threads") &&
      std::getenv("WORLD_SIZE") == nullptr && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr &&
      std::getenv("PMI_SIZE") == nullptr && std::getenv("SLURM_NTASKS") == nullptr)
    result.config.notes.push_back(
        std::string("OMP_NUM_THREADS=") + threads +
        " does not say how many threads there are, since a run is to be the same without it; "
        "threads=" +
        threads + " does");
  for (const std::string& note : result.config.notes)
    std::fputs(("Note: " + note + ".\n").c_str(), stderr);
  if (print) {
    std::fputs(resolved_yaml(result.config).c_str(), stdout);
    result.proceed = false;
  }
  return result;
}

}  // namespace snug
