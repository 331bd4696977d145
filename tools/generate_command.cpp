// snug generate: continues a text.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/trainer/generator.h"
#include "tools/trainer/inference.h"

namespace snug {

int generate_command(const Arguments& arguments) {
  InferenceOptions options;
  GenerationOptions generation;
  std::string prompt;
  int64_t seed = 42;
  bool echo = true, no_echo = false;
  ArgumentParser parser("generate", "continues a text with a trained model.");
  parser.option("--model", options.model, "DIR", "folder with config.json, weights and tokenizer")
      .required()
      .option("--prompt", prompt, "TEXT", "what to continue")
      .required()
      .option("--max-new-tokens", generation.max_new_tokens, "N", "tokens to add at most")
      .option("--temperature", generation.sampling.temperature, "X", "0: greedy")
      .option("--top-k", generation.sampling.top_k, "K", "the K most likely tokens only; 0: off")
      .option("--top-p", generation.sampling.top_p, "P",
              "the most likely tokens that reach P; 1: off")
      .option("--seed", seed, "N", "the same seed gives the same text")
      .option("--precision", options.precision, "NAME", "fp32 or bf16")
      .bytes("--memory", options.memory, "budget (default: what is free less a reserve)")
      .option("--threads", options.threads, "N", "threads; 0: all processors")
      .flag("--no-echo", no_echo, "print the continuation without the prompt")
      .example("snug generate --model run1/final --prompt \"Once upon a time\"")
      .example(
          "snug generate --model run1/final --prompt \"def main\" --temperature 0 --max-new-tokens "
          "100");
  if (!parser.parse(arguments)) return 0;
  echo = !no_echo;
  if (generation.max_new_tokens < 1)
    fail(ErrorCode::usage, "--max-new-tokens of at least 1",
         std::to_string(generation.max_new_tokens), "--max-new-tokens 64");
  if (options.threads < 0)
    fail(ErrorCode::usage, "--threads of at least 0", std::to_string(options.threads),
         "--threads 2");
  generation.sampling.seed = static_cast<uint64_t>(seed);

  std::vector<int32_t> ids;
  Inference in = open_inference(
      options,
      [&](const ModelSpec& spec, const std::optional<Tokenizer>& tokenizer, InferenceOptions& o) {
        if (!tokenizer)
          fail(ErrorCode::data, fmt::format("a tokenizer (tokenizer.json) in {}", o.model), "none",
               "copy the tokenizer's files into the folder");
        tokenizer->encode(prompt, ids);
        const auto count = static_cast<int64_t>(ids.size());
        if (count < 1 || count >= spec.P)
          fail(ErrorCode::usage, fmt::format("a prompt of 1 to {} tokens", spec.P - 1),
               fmt::format("{} tokens", count),
               count < 1 ? "--prompt \"Once upon a time\"" : "a shorter prompt");
        o.kv_length = count + std::min(generation.max_new_tokens, spec.P - count);
      });
  if (const auto eos = in.tokenizer->eos_id()) generation.stop_token = *eos;
  // Tokens that the tokenizer cannot spell, and padding, are never drawn.
  Sampler sampler(std::min(in.model->spec().V, in.tokenizer->vocab_size()), generation.sampling);
  if (echo) std::fputs(prompt.c_str(), stdout);
  // Tokens end inside characters: only whole ones are printed as they come.
  std::string pending;
  const GenerationEnd end = generate(*in.session, sampler, ids, generation, [&](int32_t token) {
    pending.append(in.tokenizer->token_bytes(token));
    const size_t whole = utf8_complete_prefix(pending);
    std::fwrite(pending.data(), 1, whole, stdout);
    std::fflush(stdout);
    pending.erase(0, whole);
    return true;
  });
  std::fwrite(pending.data(), 1, pending.size(), stdout);
  std::fputc('\n', stdout);
  if (end == GenerationEnd::cache_full)
    fmt::print(stderr, "note: stopped at the model's {} positions\n", in.plan.decisions.kv_length);
  return 0;
}

}  // namespace snug
