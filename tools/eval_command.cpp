// snug eval: loss and perplexity of a model folder on text or token files.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/trainer/evaluate.h"
#include "tools/trainer/inference.h"
#include "tools/trainer/scratch_folder.h"

namespace snug {
int eval_command(const Arguments& arguments) {
  InferenceOptions options;
  RunConfig config;
  bool json = false;
  int64_t length = 0;
  options.eval_batch = 4;
  ArgumentParser parser("eval", "loss and perplexity of a model on a text.");
  parser.option("--model", options.model, "DIR", "folder with config.json and model.safetensors")
      .required()
      .options("--data", config.eval_data, "FILE",
               "text, .jsonl, .csv, .tsv, also as .gz or .zst, or .bin token files, folders, "
               "patterns")
      .required()
      .option("--max-length", length, "T",
              "tokens of a sample (default: the model's, at most 1024)")
      .option("--batch-size", options.eval_batch, "B", "samples at a time")
      .option("--text-column", config.text_column, "NAME",
              "key of the text in .jsonl, column in .csv and .tsv")
      .option("--max-samples", config.max_eval_samples, "N",
              "evaluate the first N samples only; 0: all")
      .option("--precision", options.precision, "NAME", "fp32 or bf16")
      .bytes("--memory", options.memory, "budget (default: what is free less a reserve)")
      .option("--threads", options.threads, "N", "threads; 0: all processors")
      .flag("--json", json, "one JSON object: loss, perplexity, tokens")
      .example("snug eval --model run1/final --data heldout.txt")
      .example("snug eval --model run1/final --data 'books/*.txt' --max-length 256 --json");
  if (!parser.parse(arguments)) return 0;
  if (parser.given("--text-column")) config.origins["text_column"] = "command line";
  if (options.eval_batch < 1)
    fail(ErrorCode::usage, "--batch-size of at least 1", std::to_string(options.eval_batch),
         "--batch-size 4");

  const auto not_negative = [](const char* flag, int64_t value) {
    if (value < 0)
      fail(ErrorCode::usage, fmt::format("{} of at least 0", flag), std::to_string(value),
           "snug eval --help");
  };
  not_negative("--max-length", length);
  not_negative("--max-samples", config.max_eval_samples);
  not_negative("--threads", options.threads);

  RunData data;
  Inference in = open_inference(options, [&](const ModelSpec& spec,
                                             const std::optional<Tokenizer>& tokenizer,
                                             InferenceOptions& o) {
    o.T = length > 0 ? length : std::min<int64_t>(1024, spec.P);
    if (o.T > spec.P || o.T < 1)
      fail(ErrorCode::usage, fmt::format("--max-length of 1 to {}, the model's positions", spec.P),
           std::to_string(o.T), fmt::format("--max-length {}", spec.P));
    const ScratchFolder scratch("eval");  // gone before the work starts: open files need no name
    data = prepare_data(config, tokenizer, spec.V, o.T, scratch.path(), false);
    o.eval_batch = std::min(o.eval_batch, data.eval_samples);
  });
  const EvalResult r = evaluate_samples(*in.session, data, data.eval_samples);
  if (json) {
    fmt::print("{}\n", nlohmann::json({{"loss", r.loss},
                                       {"perplexity", std::exp(r.loss)},
                                       {"tokens", r.tokens},
                                       {"samples", data.eval_samples},
                                       {"max_length", in.plan.decisions.T},
                                       {"seconds", r.seconds},
                                       {"engine_bytes", in.plan.engine_bytes}})
                           .dump());
  } else {
    fmt::print("data: {}\nloss {:.6f}  perplexity {:.4f}  over {} tokens in {} samples of {}\n",
               data.text, r.loss, std::exp(r.loss), r.tokens, data.eval_samples,
               in.plan.decisions.T);
  }
  return 0;
}

}  // namespace snug
