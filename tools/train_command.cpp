// snug train.
#include <cstdlib>

#include "parallel/launch.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/setup/setup.h"
#include "tools/trainer/trainer.h"

namespace snug {

int train_command(const Arguments& arguments) {
  const ConfigArguments a = parse_config_arguments(
      "train",
      "trains a model inside a memory budget; the peak is printed before a byte is reserved.",
      {"snug train --config run.yaml memory=256MiB",
       "snug train model=gpt2 train_data=corpus.txt tokenizer=tok.json output_dir=run1 memory=4GiB "
       "max_steps=1000",
       "snug train --config run1/config.resolved.yaml resume=latest"},
      arguments);
  if (!a.proceed) return 0;
  refuse_target(a.config, "train");
  if (a.config.ranks > 1 && std::getenv(kRankVariable) == nullptr)
    return launch_ranks(static_cast<int>(a.config.ranks));
  return train(a.config);
}

}  // namespace snug
