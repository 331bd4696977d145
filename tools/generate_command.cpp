// snug generate: continues texts.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/infer/generation.h"
#include "tools/infer/generation_config.h"
#include "tools/infer/generation_output.h"
#include "tools/infer/prompt_file.h"
#include "tools/infer/talk.h"
#include "tools/session/tell.h"
#include "tools/setup/chat_setup.h"

namespace snug {
namespace {

struct GenerateArguments {
  InferenceOptions model;
  GenerationRequest request;
  std::string prompt, prompts, early_stopping = "false";
  int64_t seed = 42;
  bool no_echo = false, json = false, chat = false, generation_config = false;
  std::string system, chat_template;
  int64_t length = 0;
};

void add_flags(ArgumentParser& parser, GenerateArguments& a) {
  GenerationOptions& o = a.request.options;
  parser.option("--model", a.model.model, "DIR", "folder with config.json, weights and tokenizer")
      .required()
      .option("--adapter", a.model.adapter, "DIR",
              "a PEFT folder for the model, as final/ of a run with peft: used unmerged")
      .option("--base-form", a.model.base_form, "FORM",
              "how linear weights of the blocks rest: full, in 4 bits as nf4, nf4-double, fp4 or "
              "fp4-double, or int8; auto: as those that the adapter was trained over")
      .option("--prompt", a.prompt, "TEXT", "what to continue")
      .option("--prompts", a.prompts, "FILE",
              "prompts, one a line, or of .jsonl an object {\"prompt\": ...} a line; prints JSON "
              "lines, in the order of the file; lines of white space alone are none")
      .option("--max-new-tokens", o.max_new_tokens, "N", "tokens to add at most")
      .option("--min-new-tokens", o.rules.min_new_tokens, "N",
              "no end-of-text token before N new tokens")
      .options("--stop", a.request.stops, "TEXT",
               "end before this text; may be given more than once (a line's end: $'\\n')")
      .option("--temperature", o.sampling.temperature, "X", "0: greedy")
      .option("--top-k", o.sampling.top_k, "K",
              "the K most likely tokens only, and those as likely as the last of them; 0: off")
      .option("--top-p", o.sampling.top_p, "P", "the most likely tokens that reach P; 1: off")
      .option("--min-p", o.sampling.min_p, "P",
              "tokens at least P times as likely as the most likely one; 0: off")
      .option("--repetition-penalty", o.rules.repetition_penalty, "X",
              "divides the scores of tokens that were there, the prompt's too; 1: off")
      .option("--no-repeat-ngram-size", o.rules.no_repeat_ngram_size, "N",
              "no N tokens in a row come twice; 0: off")
      .option("--num-beams", a.request.beams.beams, "K",
              "beam search with K beams instead of sampling; 1: off")
      .option("--length-penalty", a.request.beams.length_penalty, "X",
              "beam search divides scores by length^X: above 0 prefers long texts, below 0 short")
      .option(
          "--early-stopping", a.early_stopping, "WHEN",
          "beam search ends with K finished texts (true), when a better one is unlikely (false) "
          "or impossible (never)")
      .option("--num-return-sequences", a.request.sequences, "N", "continuations of each prompt")
      .option(
          "--logprobs", o.logprobs, "K",
          "log probability of every new token under the model, and the K most likely ones there "
          "(default: none)")
      .option("--seed", a.seed, "N", "the same seed gives the same texts, at any batch size")
      .option("--batch-size", a.request.batch_size, "B",
              "texts, with --num-beams prompts, decoded together (default: up to 8 rows that fit)")
      .flag("--json", a.json, "JSON instead of text, one object a line")
      .flag("--chat", a.chat,
            "talk to a chat model by its folder's chat template: each line of standard input is a "
            "turn, or --prompt the only one; /reset begins again")
      .option("--system", a.system, "TEXT", "of --chat: what a system message says first")
      .option("--chat-template", a.chat_template, "FILE",
              "of --chat: a Jinja template in place of the folder's")
      .option("--max-length", a.length, "T",
              "of --chat: tokens of the whole talk (default: the model's positions, at most 4096)")
      .flag("--use-generation-config", a.generation_config,
            "take what the folder's generation_config.json says of sampling and lengths, and show "
            "it; flags go before it")
      .flag("--no-echo", a.no_echo, "print the continuation without the prompt")
      .option("--precision", a.model.precision, "NAME",
              "fp32, bf16 or fp16; tf32 with --device cuda")
      .option("--device", a.model.device, "NAME",
              "cpu (auto is that too), cuda or cuda:N, or emu, the emulator of GPUs")
      .bytes("--memory", a.model.memory, "budget (default: what is free less a reserve)")
      .threads(a.model.threads, "threads; auto: one per core the process may use")
      .example("snug generate --model run1/final --prompt \"Once upon a time\"")
      .example(
          "snug generate --model run1/final --prompt \"def main\" --temperature 0 --max-new-tokens "
          "100")
      .example("snug generate --model run1/final --prompt \"Q:\" --top-p 0.9 --stop \"Q:\"")
      .example("snug generate --model run1/final --chat --system \"Be brief.\"")
      .example("snug generate --model run1/final --prompt \"The\" --num-beams 4 --logprobs 3")
      .example("snug generate --model run1/final --prompts prompts.txt --batch-size 16 > out.jsonl")
      .epilog([] {
        return std::string(
            "\nA text ends at eos_token_id of generation_config.json, else of config.json, else "
            "the\n"
            "tokenizer's. Penalties and filters act in this order: repetition penalty, n-grams, "
            "end of\n"
            "text, temperature, top-k, top-p, min-p. JSON has index, sequence, prompt, text, "
            "tokens,\n"
            "prompt_tokens, finish_reason (length, eos, stop, positions: the model has no more,\n"
            "no_token: all are forbidden), score (beam search), logprobs.\n");
      });
}

// What was given and would do nothing.
void check_combinations(const ArgumentParser& parser, const GenerateArguments& a) {
  const bool text = parser.given("--prompt"), file = parser.given("--prompts");
  for (const char* flag : {"--system", "--chat-template", "--max-length"})
    if (parser.given(flag) && !a.chat)
      fail(ErrorCode::usage, fmt::format("--chat with {}", flag), "none", "add --chat");
  if (a.chat) {
    for (const char* flag : {"--prompts", "--num-beams", "--num-return-sequences", "--batch-size",
                             "--logprobs", "--no-echo"})
      if (parser.given(flag))
        fail(ErrorCode::usage, fmt::format("{} without --chat, which is one talk", flag), "both",
             "leave one of them out");
    if (parser.given("--max-length") && a.length < 2)
      fail(ErrorCode::usage, "--max-length of at least 2", std::to_string(a.length),
           "--max-length 4096");
  }
  if (text == file && !a.chat)
    fail(ErrorCode::usage, "--prompt or --prompts for snug generate, one of them",
         text ? "both" : "none", "snug generate --model run1/final --prompt \"Once upon a time\"");
  const bool beams = a.request.beam_search();
  for (const char* flag : {"--temperature", "--top-k", "--top-p", "--min-p"})
    if (beams && parser.given(flag) &&
        !(flag == std::string("--temperature") && a.request.options.sampling.temperature == 0.0))
      fail(ErrorCode::usage, fmt::format("{} without --num-beams: beam search does not draw", flag),
           fmt::format("{} with --num-beams {}", flag, a.request.beams.beams),
           "leave one of them out");
  if (beams && parser.given("--seed"))
    fail(ErrorCode::usage, "--seed without --num-beams: beam search does not draw",
         fmt::format("--seed with --num-beams {}", a.request.beams.beams), "leave --seed out");
  // A seed with greedy search is left: it keeps its meaning when the temperature is raised.
  for (const char* flag : {"--top-k", "--top-p", "--min-p"})
    if (a.request.options.sampling.temperature == 0.0 && parser.given(flag))
      fail(ErrorCode::usage,
           fmt::format("{} with a --temperature above 0: greedy search takes the likeliest token",
                       flag),
           fmt::format("{} with --temperature 0", flag), "leave one of them out");
  for (const char* flag : {"--length-penalty", "--early-stopping"})
    if (!beams && parser.given(flag))
      fail(ErrorCode::usage, fmt::format("--num-beams above 1 with {}", flag),
           fmt::format("--num-beams {}", a.request.beams.beams), "--num-beams 4");
  if (parser.given("--batch-size") && !file && (beams || a.request.sequences == 1))
    fail(ErrorCode::usage, "--batch-size with --prompts or several --num-return-sequences",
         "one text", "leave it out");
  if (parser.given("--batch-size") && a.request.batch_size == 0)
    fail(ErrorCode::usage, "--batch-size of 1 to 1024", "0", "--batch-size 8");
  if (parser.given("--logprobs") && a.request.options.logprobs < 0)
    fail(ErrorCode::usage, "--logprobs of 0 to 100", std::to_string(a.request.options.logprobs),
         "--logprobs 5");
}

// The prompts by number.
struct Prompts {
  std::optional<PromptFile> file;
  std::string one;

  int64_t size() const { return file ? file->size() : 1; }
  std::string text(int64_t i) const { return file ? file->prompt(i) : one; }
};

// Throws unless it has tokens and the model the positions for them: the last one, which need not be
// fed, follows a prompt that takes them all.
int64_t checked_tokens(const Prompts& prompts, int64_t i, const Tokenizer& tokenizer, int64_t P) {
  const auto count = static_cast<int64_t>(tokenizer.encode(prompts.text(i)).size());
  if (count >= 1 && count <= P) return count;
  const char* advice = count < 1 ? "--prompt \"Once upon a time\"" : "a shorter prompt";
  if (prompts.file)
    fail(ErrorCode::data,
         fmt::format("a prompt of 1 to {} tokens in {}", P, prompts.file->where(i)),
         fmt::format("{} tokens", count), count < 1 ? "another prompt" : advice);
  fail(ErrorCode::usage, fmt::format("a prompt of 1 to {} tokens", P),
       fmt::format("{} tokens", count), advice);
}

void note_end(GenerationEnd end, int64_t positions) {
  if (end == GenerationEnd::cache_full)
    tell(stderr, "note: stopped at the model's {} positions\n", positions);
  if (end == GenerationEnd::no_token)
    tell(stderr, "note: stopped where every token is forbidden\n");
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// One line of input, without its end; none at the end of the input.
std::optional<std::string> next_line(bool terminal) {
  if (terminal) show("> ");
  std::string line;
  for (int c = std::getchar();; c = std::getchar()) {
    if (c == EOF && line.empty()) return std::nullopt;
    if (c == EOF || c == '\n') break;
    if (line.size() >= (1 << 20))
      fail(ErrorCode::data, "turns of at most 1 MiB", "a longer line", "put less into one");
    line += static_cast<char>(c);
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

int chat(GenerateArguments& a, bool one_turn) {
  RunConfig config;
  config.model = a.model.model;
  config.chat_template = a.chat_template;
  config.origins["chat_template"] = "command line";
  std::optional<ChatEncoder> encoder;
  Inference in = open_inference(a.model, [&](const ModelSpec& spec,
                                             const std::optional<Tokenizer>& tokenizer,
                                             InferenceOptions& o) {
    if (!tokenizer)
      fail(ErrorCode::data, fmt::format("a tokenizer (tokenizer.json) in {}", o.model), "none",
           "copy the tokenizer's files into the folder");
    const ChatRows rows = chat_rows_of(config, *tokenizer, spec);
    if (!rows.encoder())
      fail(ErrorCode::data, fmt::format("a chat template in {} for --chat", o.model),
           "neither chat_template.jinja nor chat_template in tokenizer_config.json",
           "--chat-template FILE.jinja, or --prompt for a model that only continues texts");
    encoder = rows.encoder();
    o.kv_length = std::min(spec.P, a.length > 0 ? a.length : int64_t{4096});
    if (a.length > spec.P)
      fail(ErrorCode::usage, fmt::format("--max-length of 2 to {}, the model's positions", spec.P),
           std::to_string(a.length), fmt::format("--max-length {}", spec.P));
    o.kv_rows = 1;
    a.request.options.rules.stop_tokens = stop_tokens(o.model, spec, *tokenizer);
    // A template may end turns with a token that no file names.
    if (const auto eos = tokenizer->eos_id()) {
      auto& stops = a.request.options.rules.stop_tokens;
      if (std::find(stops.begin(), stops.end(), *eos) == stops.end()) stops.push_back(*eos);
    }
  });
  Talk talk(in, *encoder, a.request, a.system);
  const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  std::function<void(const std::string&)> shown;
  if (!a.json) shown = show;
  const auto turn = [&](const std::string& line) {
    const GeneratedText answer = talk.say(line, shown);
    if (a.json) {
      nlohmann::json j = nlohmann::json::parse(text_json(answer, a.request, *in.tokenizer, line));
      j["turn"] = talk.turns() - 1;
      j["cached_tokens"] = talk.cached();
      j.erase("index");
      j.erase("sequence");
      show(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    } else {
      show("\n");
      note_end(answer.end, text_room(*in.session));
    }
  };
  if (one_turn) {
    turn(a.prompt);
    return 0;
  }
  while (const std::optional<std::string> line = next_line(terminal)) {
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    if (*line == "/reset")
      talk.begin_again();
    else
      turn(*line);
  }
  if (terminal) show("\n");
  return 0;
}

}  // namespace

int generate_command(const Arguments& arguments) {
  GenerateArguments a;
  ArgumentParser parser("generate", "continues texts with a trained model.");
  add_flags(parser, a);
  if (!parser.parse(arguments)) return 0;
  check_combinations(parser, a);
  if (a.generation_config)
    tell(stderr, "generation_config.json: {}\n",
         use_generation_config(
             a.model.model, [&](const char* flag) { return parser.given(flag); }, a.request));
  a.request.beams.early_stopping = parse_early_stopping(a.early_stopping);
  check_generation(a.request);
  a.request.options.sampling.seed = static_cast<uint64_t>(a.seed);
  if (const ModelSpec spec = inference_spec(a.model); spec.head != HeadKind::causal_lm)
    fail(ErrorCode::unsupported, "a causal language model, such as a GPT-2, for snug generate",
         fmt::format("{} of type {} with a head for {} in {}",
                     spec.encoder() ? "an encoder" : "a decoder", spec.family, to_string(spec.head),
                     a.model.model),
         fmt::format("snug predict --model {} --data FILE", a.model.model));
  // A reader that goes away (head) ends the program as it ends others, whatever started it.
  std::signal(SIGPIPE, SIG_DFL);
  if (a.chat) return chat(a, parser.given("--prompt"));

  Prompts prompts;
  prompts.one = a.prompt;
  if (parser.given("--prompts")) prompts.file.emplace(a.prompts);
  Inference in = open_inference(
      a.model,
      [&](const ModelSpec& spec, const std::optional<Tokenizer>& tokenizer, InferenceOptions& o) {
        if (!tokenizer)
          fail(ErrorCode::data, fmt::format("a tokenizer (tokenizer.json) in {}", o.model), "none",
               "copy the tokenizer's files into the folder");
        for (int64_t i = 0; i < prompts.size(); ++i) {
          const int64_t count = checked_tokens(prompts, i, *tokenizer, spec.P);
          const int64_t length = count + std::min(a.request.options.max_new_tokens, spec.P - count);
          o.kv_length = std::max(o.kv_length, length);
        }
        o.kv_rows = wanted_rows(a.request, prompts.size());
        o.kv_rows_least = a.request.batch_size > 0 ? 0 : a.request.unit();
        RuleOptions& rules = a.request.options.rules;
        rules.stop_tokens = stop_tokens(o.model, spec, *tokenizer);
        if (rules.stop_tokens.empty() && rules.min_new_tokens > 0)
          fail(ErrorCode::usage,
               fmt::format("a stop token for --min-new-tokens to forbid: eos_token_id in {0}/"
                           "generation_config.json or {0}/config.json, or one of the tokenizer",
                           o.model),
               "none: texts of this model end by --max-new-tokens and --stop alone",
               "leave --min-new-tokens out");
      });
  const Tokenizer& tokenizer = *in.tokenizer;
  const auto ids = [&](int64_t i) { return tokenizer.encode(prompts.text(i)); };
  const auto echo = [&](int64_t i) {
    return a.no_echo ? std::nullopt : std::optional<std::string>(prompts.text(i));
  };

  if (a.json || prompts.file) {
    generate_texts(in, a.request, prompts.size(), ids, [&](const GeneratedText& text) {
      show(text_json(text, a.request, tokenizer, echo(text.prompt)) + "\n");
    });
    return 0;
  }
  const bool streams = !a.request.beam_search() && a.request.sequences == 1;
  if (streams && !a.no_echo) show(a.prompt);
  std::function<void(const std::string&)> shown;
  if (streams) shown = show;
  generate_texts(
      in, a.request, 1, ids,
      [&](const GeneratedText& text) {
        std::string rest;
        if (a.request.sequences > 1)
          rest = fmt::format(
              "--- {} of {}{}\n", text.sequence + 1, a.request.sequences,
              a.request.beam_search() ? fmt::format(", score {:.4f}", text.score) : std::string());
        if (!streams) rest += echo(0).value_or("") + text.text;
        rest += "\n";
        if (a.request.options.logprobs >= 0) rest += "\n" + chances_text(text, tokenizer);
        show(rest);
        note_end(text.end, text_room(*in.session));
      },
      shown);
  return 0;
}

}  // namespace snug
