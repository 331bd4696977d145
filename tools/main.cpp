// snug: the command.
#include <fcntl.h>

#include <cerrno>
#include <csignal>

#include "tools/cli/dispatch.h"
#include "tools/cli/version.h"
#include "tools/cli/waiting.h"
#include "tools/commands.h"

namespace {

constexpr const char* kEpilog = R"(
a first run
  snug tokenizer train --vocab-size 2048 --output tok.json corpus.txt
  snug plan  --config run.yaml memory=256MiB
  snug train --config run.yaml memory=256MiB
  snug eval  --model run1/final --data heldout.txt
  snug generate --model run1/final --prompt "Once upon a time"

an encoder (BERT, RoBERTa, DistilBERT)
  snug train   model=bert-base-uncased/ task=sequence_classification train_data=train.tsv
               eval_data=dev.tsv output_dir=bert
  snug predict --model bert/final --data rows.tsv

exit codes
  0  done
  1  failed
  2  wrong usage or input; nothing was written
  3  the memory budget is infeasible; the message names the smallest that works
  75 stopped by a signal after a checkpoint; the resume command is printed
)";

// A file that is opened takes the lowest free number: with standard output closed what is said
// would go into one of the run's own. These are open the wrong way, so that their use fails as
// before.
void hold_standard_files() {
  for (const int fd : {0, 1, 2})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_files();
  // A file size limit then is an error code (EFBIG) for whoever writes, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  snug::wait_briefly(argv);
  const snug::CommandGroup snug_group = {
      "snug",
      "trains transformers inside the memory you have",
      {{"train", "trains a model inside a memory budget", snug::train_command},
       {"plan", "says what a run will need, byte by byte, without starting it", snug::plan_command},
       {"explain", "why a tensor is there, and what holds the memory at the peak",
        snug::explain_command},
       {"report", "the page of a run, of a killed one too, or of several side by side",
        snug::report_command},
       {"eval",
        "loss and perplexity of a model on a text, metrics of an encoder, answers to questions",
        snug::eval_command},
       {"predict", "labels, values or hidden tokens that a trained encoder gives rows of text",
        snug::predict_command},
       {"generate", "continues a text", snug::generate_command},
       {"tokenizer", "trains tokenizers; turns text into ids and back", snug::tokenizer_command},
       {"data", "shows what a run would learn from", snug::data_command},
       {"convert", "a trained model as GGUF, or with weights of another dtype",
        snug::convert_command},
       {"merge", "a model and an adapter as one model folder", snug::merge_command},
       {"quant", "what weights take and lose in 8 or 4 bits, and the file of codes",
        snug::quant_command},
       {"inspect", "what a file or folder holds", snug::inspect_command},
       {"doctor", "what this machine has, and what stands in the way of training",
        snug::doctor_command},
       {"bench", "where the time of a step goes, operation by operation", snug::bench_command},
       {"calibrate", "measures this machine and keeps what is fastest on it",
        snug::calibrate_command}},
      kEpilog,
      snug::version_text,
      {}};
  return snug::run_main(snug_group, {argv + 1, argv + argc});
}
