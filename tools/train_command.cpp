// snug train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "parallel/launch.h"
#include "parallel/rendezvous.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/setup/rank_setup.h"
#include "tools/setup/setup.h"
#include "tools/trainer/trainer.h"

namespace snug {

namespace {

// Another launcher's word on ranks is one of the command line, before the other keys are looked at.
Arguments with_ranks(Arguments arguments, const std::optional<ForeignPlace>& place) {
  const bool said = std::any_of(arguments.begin(), arguments.end(),
                                [](const std::string& word) { return word.starts_with("ranks="); });
  if (place && !said) arguments.push_back(fmt::format("ranks={}", place->size));
  return arguments;
}

}  // namespace

int train_command(const Arguments& arguments) {
  std::optional<ForeignPlace> place;
  if (std::getenv(kRankVariable) == nullptr) place = foreign_place();
  const ConfigArguments a = parse_config_arguments(
      "train",
      "trains a model inside a memory budget; the peak is printed before a byte is reserved.",
      {"snug train --config run.yaml memory=256MiB",
       "snug train model=gpt2 train_data=corpus.txt tokenizer=tok.json output_dir=run1 memory=4GiB "
       "max_steps=1000",
       "snug train --config run1/config.resolved.yaml resume=latest"},
      with_ranks(arguments, place));
  if (!a.proceed) return 0;
  refuse_target(a.config, "train");
  RunConfig config = a.config;
  if (std::getenv(kRankVariable) == nullptr) {
    if (place) adopt_ranks(config, place->size, place->said);
    check_running_ranks(config);
    if (config.ranks > 1 && !place) return launch_ranks(static_cast<int>(config.ranks));
  }
  return train(config);
}

}  // namespace snug
