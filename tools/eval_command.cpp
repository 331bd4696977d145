// snug eval: loss and perplexity of a model folder on text, token files or rows of tokens, loss and
// metrics of an encoder on rows, answers to questions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/memory/context.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/config/key_texts.h"
#include "tools/config/keys.h"
#include "tools/infer/choices.h"
#include "tools/infer/evaluate.h"
#include "tools/infer/inference.h"
#include "tools/infer/rows.h"
#include "tools/session/tell.h"
#include "tools/setup/scratch_folder.h"

namespace snug {
namespace {

struct EvalArguments {
  InferenceOptions options;
  RunConfig config;  // of which eval_data and max_eval_samples are used
  std::string choices;
  bool json = false;
  int64_t length = 0, stride = 0;
};

void check_length(int64_t T, int64_t least, int64_t P) {
  if (T > P || T < least)
    fail(ErrorCode::usage, fmt::format("--max-length of {} to {}, the model's positions", least, P),
         std::to_string(T), fmt::format("--max-length {}", P));
}

void check_finite(const EvalResult& r, const std::string& model) {
  if (std::isfinite(r.loss)) return;
  fail(ErrorCode::data, fmt::format("a finite loss of {}", model),
       fmt::format("{} over {} tokens", std::isnan(r.loss) ? "nan" : "inf", r.tokens),
       "--precision fp32; if it stays, its weights are not finite: take an earlier checkpoint");
}

int eval_text(EvalArguments& a) {
  RunData data;
  Inference in = open_inference(a.options, [&](const ModelSpec& spec,
                                               const std::optional<Tokenizer>& tokenizer,
                                               InferenceOptions& o) {
    o.T = a.length > 0 ? a.length : std::min<int64_t>(1024, spec.P);
    check_length(o.T, a.stride > 0 ? 2 : 1, spec.P);
    if (a.stride >= o.T)
      fail(ErrorCode::usage, fmt::format("--stride below --max-length, {}", o.T),
           std::to_string(a.stride),
           fmt::format("--stride {}, or none for samples side by side",
                       std::max<int64_t>(1, o.T / 2)));
    const ScratchFolder scratch("eval");  // gone before the work starts: open files need no name
    // A sliding window cuts the files itself: any text of two tokens will do.
    const bool at_most = a.length == 0 && a.stride == 0;
    data = prepare_data(a.config, tokenizer, spec.V, a.stride > 0 ? 1 : o.T, scratch.path(), false,
                        {.budget = o.host_budget, .key = "--memory ", .set = o.memory > 0}, false,
                        at_most, o.front);
    if (at_most && data.T < o.T) {
      tell(stderr, "Note: no file has {} tokens: samples of {}, as with --max-length {}.\n",
           o.T + 1, data.T, data.T);
      o.T = data.T;
    }
    o.eval_batch = std::min(o.eval_batch, data.eval_samples);
  });
  const int64_t T = in.plan.decisions.T - in.model->front().count;
  const EvalResult r =
      a.stride > 0 ? evaluate_strided(*in.session, *data.eval, a.stride, a.config.max_eval_samples)
                   : evaluate_samples(*in.session, data, data.eval_samples);
  check_finite(r, a.options.model);
  if (a.json) {
    nlohmann::json j = {{"data", data.text},
                        {"loss", r.loss},
                        {"perplexity", std::exp(r.loss)},
                        {"tokens", r.tokens},
                        {"samples", data.eval_samples},
                        {"max_length", T},
                        {"packing_boundaries", a.options.packing_boundaries},
                        {"seconds", r.seconds},
                        {"engine_bytes", in.plan.engine_bytes}};
    if (a.stride > 0) {
      j["stride"] = a.stride;
      j.erase("samples");
    }
    fmt::print("{}\n", j.dump());
  } else {
    fmt::print("data: {}\nloss {:.6f}  perplexity {}  over {} tokens in {}\n", data.text, r.loss,
               perplexity_text(std::exp(r.loss), 4), r.tokens,
               a.stride > 0 ? fmt::format("windows of {}, one every {}", T, a.stride)
                            : fmt::format("{} of {}", count_of(data.eval_samples, "sample"), T));
  }
  return 0;
}

// Rows of an encoder's head, or of tokens.
int eval_rows(EvalArguments& a) {
  RowInference r = open_rows(a.options, a.config, a.length, {});
  for (const std::string& note : r.rows->notes()) tell(stderr, "Note: {}.\n", note);
  const ModelSpec& spec = r.in.model->spec();
  const int64_t rows = r.rows->eval_rows();
  Metrics metrics(spec, rows);
  const RunData data = rows_data(r.rows);
  const EvalResult result = evaluate_samples(*r.in.session, data, rows, &metrics);
  check_finite(result, a.options.model);
  const bool pairs = r.rows->pairs().any();
  const bool masked = spec.head == HeadKind::masked_lm,
             language = !has_metrics(spec.head) && !pairs;
  const bool tokens = spec.head != HeadKind::sequence_classification && !pairs;
  if (pairs && r.rows->pairs().reference() && a.options.adapter.empty())
    tell(stderr,
         "Note: without --adapter the model is its own reference: every reward is 0; --loss-type "
         "orpo "
         "and simpo have none.\n");
  if (a.json) {
    nlohmann::json j = {{"task", pairs ? a.config.task : to_string(spec.head)},
                        {"data", r.rows->text()},
                        {"loss", result.loss},
                        {pairs ? r.rows->pairs().nouns() : "rows", rows},
                        {"max_length", r.in.plan.decisions.T},
                        {"seconds", result.seconds},
                        {"engine_bytes", r.in.plan.engine_bytes}};
    if (tokens) j["tokens"] = result.tokens;  // those with a target
    if (language) j["perplexity"] = std::exp(result.loss);
    for (const Metric& m : result.metrics) j[std::string(m.name)] = m.value;
    fmt::print("{}\n", j.dump());
    return 0;
  }
  std::string line = fmt::format("loss {:.6f}", result.loss);
  if (language) line += "  perplexity " + perplexity_text(std::exp(result.loss), 4);
  for (const Metric& m : result.metrics) line += fmt::format("  {} {:.4f}", m.name, m.value);
  fmt::print("{}\n{}  over {}{}\n", r.rows->text(), line,
             tokens ? fmt::format("{} {}tokens of ", result.tokens,
                                  masked     ? "masked "
                                  : language ? "trained "
                                             : "")
                    : "",
             count_of(rows, pairs ? r.rows->pairs().noun() : "row"));
  return 0;
}

int eval_choices(EvalArguments& a) {
  std::vector<Question> questions = read_questions(a.choices);
  if (a.config.max_eval_samples > 0 &&
      a.config.max_eval_samples < static_cast<int64_t>(questions.size()))
    questions.resize(static_cast<size_t>(a.config.max_eval_samples));
  int64_t most = a.length;  // tokens of a choice
  Inference in = open_inference(
      a.options,
      [&](const ModelSpec& spec, const std::optional<Tokenizer>& tokenizer, InferenceOptions& o) {
        if (!tokenizer)
          fail(ErrorCode::usage, fmt::format("a tokenizer in {} for --choices", a.options.model),
               "none", "copy the tokenizer's files into the model's folder");
        if (a.length > 0) check_length(a.length, 1, spec.P);
        if (most == 0) most = spec.P;
        // As long as the longest question needs: one that is shorter costs as much.
        o.T = std::min(most, longest_question(*tokenizer, questions, most, a.choices));
        o.eval_batch = 1;
      });
  const double started = monotonic_seconds();
  const ChoiceResult r = score_questions(*in.session, *in.tokenizer, questions, most, a.choices);
  const double seconds = monotonic_seconds() - started;
  if (a.json) {
    nlohmann::json scores = nlohmann::json::array();
    for (const std::vector<double>& of_one : r.scores)
      scores.push_back(of_one.empty() ? nlohmann::json() : nlohmann::json(of_one));
    fmt::print("{}\n", nlohmann::json({{"acc", r.acc},
                                       {"acc_stderr", share_error(r.acc, r.questions)},
                                       {"acc_norm", r.acc_norm},
                                       {"acc_norm_stderr", share_error(r.acc_norm, r.questions)},
                                       {"questions", r.questions},
                                       {"choices", r.choices},
                                       {"left_out", r.left_out},
                                       {"scores", scores},
                                       {"max_length", in.plan.decisions.T},
                                       {"seconds", seconds},
                                       {"engine_bytes", in.plan.engine_bytes}})
                           .dump());
  } else {
    fmt::print("acc {:.4f} +- {:.4f}  acc_norm {:.4f} +- {:.4f}  over {} questions, {} choices\n",
               r.acc, share_error(r.acc, r.questions), r.acc_norm,
               share_error(r.acc_norm, r.questions), r.questions, r.choices);
    if (r.left_out > 0)
      fmt::print("left out: {} of {} questions, which cannot be scored; the first is {}\n",
                 r.left_out, r.left_out + r.questions, r.first_left_out);
  }
  return 0;
}

void check_pair_flags(const RunConfig& c) {
  const std::optional<PairLossKind> kind = find_pair_loss(c.loss_type);
  const auto refuse = [](const std::string& expected, const std::string& found,
                         const std::string& advice) {
    fail(ErrorCode::usage, expected, found, advice);
  };
  if (!kind)
    refuse(fmt::format("--loss-type as one of {}", fmt::join(words(pair_loss_names()), ", ")),
           c.loss_type, "--loss-type sigmoid");
  if (!(c.beta > 0)) refuse("--beta above 0", fmt::format("{}", c.beta), "--beta 0.1");
  if (!(c.label_smoothing >= 0 && c.label_smoothing < 0.5) ||
      (c.label_smoothing > 0 && !facts_of(*kind).smoothing))
    refuse("--label-smoothing of 0 and above, below 0.5, of sigmoid and simpo",
           fmt::format("{} of {}", c.label_smoothing, c.loss_type), "leave --label-smoothing out");
  if (!(c.simpo_gamma >= 0) || (c.simpo_gamma != RunConfig().simpo_gamma && c.loss_type != "simpo"))
    refuse("--simpo-gamma of 0 and above, of --loss-type simpo",
           fmt::format("{} of {}", c.simpo_gamma, c.loss_type), "leave --simpo-gamma out");
  const std::pair<const char*, double> weights[] = {{"--desirable-weight", c.desirable_weight},
                                                    {"--undesirable-weight", c.undesirable_weight}};
  for (const auto& [flag, weight] : weights)
    if (!(weight >= 0) || (weight != 1 && !facts_of(*kind).single))
      refuse(fmt::format("{} of 0 and above, of --loss-type kto and apo_zero_unpaired", flag),
             fmt::format("{} of {}", weight, c.loss_type), fmt::format("leave {} out", flag));
  if (facts_of(*kind).single && c.desirable_weight == 0 && c.undesirable_weight == 0)
    refuse("a weight above 0 of desirable answers or undesirable ones", "both 0",
           "leave --desirable-weight out");
}

void check_reward_model(const EvalArguments& a, const ModelSpec& spec) {
  if (!(a.config.center_rewards_coefficient >= 0))
    fail(ErrorCode::usage, "--center-rewards-coefficient of 0 and above",
         fmt::format("{}", a.config.center_rewards_coefficient),
         "leave --center-rewards-coefficient out");
  if (spec.encoder() || spec.label_count() != 1)
    fail(ErrorCode::usage, "a causal model of one label for --task reward",
         fmt::format("{}, {}, in {}", spec.architecture, count_of(spec.label_count(), "label"),
                     a.options.model),
         "snug train model=FOLDER task=reward ..., then --model OUTPUT_DIR/final");
}

// What has no effect for the folder's head is refused.
int eval_what_the_head_reads(EvalArguments& a, const ArgumentParser& parser, bool questions) {
  const ModelSpec spec = inference_spec(a.options);
  const auto only_with = [&](const char* flag, bool good, const char* what) {
    if (parser.given(flag) && !good)
      fail(ErrorCode::usage, fmt::format("{} with {} alone", flag, what),
           fmt::format("{} with the {} model {}", flag, to_string(spec.head), a.options.model),
           fmt::format("leave {} out", flag));
  };
  const bool causal = spec.head == HeadKind::causal_lm, reward = a.options.task == "reward",
             dpo = a.options.task == "dpo", pairs = dpo || reward,
             chats = a.options.task == "sft" || pairs;
  only_with("--choices", !chats, "another --task than sft, dpo and reward");
  if (parser.given("--center-rewards-coefficient") && !reward)
    fail(ErrorCode::usage, "--center-rewards-coefficient with --task reward alone",
         fmt::format("--center-rewards-coefficient with --task {}", a.options.task),
         "leave --center-rewards-coefficient out");
  for (const char* flag : {"--loss-type", "--beta", "--label-smoothing", "--simpo-gamma",
                           "--desirable-weight", "--undesirable-weight"})
    if (parser.given(flag) && !dpo)
      fail(ErrorCode::usage, fmt::format("{} with --task dpo alone", flag),
           fmt::format("{} with --task {}", flag, a.options.task),
           fmt::format("leave {} out", flag));
  only_with("--choices", causal, "a causal_lm model");
  only_with("--stride", causal, "a causal_lm model");
  only_with("--packing-boundaries", causal, "a causal_lm model");
  only_with("--text-pair-column", spec.head == HeadKind::sequence_classification && !reward,
            "a sequence_classification model, on texts");
  only_with("--label-column", !causal && spec.head != HeadKind::masked_lm && !reward,
            "a classification model, on texts");
  if (dpo) check_pair_flags(a.config);
  if (reward) check_reward_model(a, spec);
  if (chats) {
    a.config.task = a.options.task;
    a.config.model = a.options.model;
  }
  if (!causal && !reward) return eval_rows(a);
  if (chats || (!questions && gives_token_rows(a.config))) {
    for (const char* flag : {"--stride", "--packing-boundaries", "--quoting", "--text-column"})
      if (parser.given(flag))
        fail(ErrorCode::usage, fmt::format("{} with text alone", flag),
             fmt::format("{} with {}, {}", flag,
                         pairs   ? "pairs"
                         : chats ? "conversations"
                                 : "rows of input_ids",
                         a.config.eval_data.front()),
             fmt::format("leave {} out", flag));
    return eval_rows(a);
  }
  return questions ? eval_choices(a) : eval_text(a);
}

}  // namespace

int eval_command(const Arguments& arguments) {
  EvalArguments a;
  a.options.eval_batch = 4;
  ArgumentParser parser(
      "eval",
      "loss and perplexity of a model on a text, loss and metrics of an encoder on "
      "rows, or answers to multiple-choice questions.");
  parser.option("--model", a.options.model, "DIR", "folder with config.json and model.safetensors")
      .required()
      .option("--adapter", a.options.adapter, "DIR",
              "a PEFT folder for the model, as final/ of a run with peft: used unmerged")
      .option("--base-form", a.options.base_form, "FORM",
              "how linear weights of the blocks rest: full, in 4 bits as nf4, nf4-double, fp4 or "
              "fp4-double, or int8; auto: as those that the adapter was trained over")
      .options("--data", a.config.eval_data, "FILE",
               "text, .jsonl, .csv, .tsv, also as .gz or .zst, .bin token files, or .jsonl rows of "
               "input_ids; folders, patterns")
      .option("--stride", a.stride, "S",
              "slide windows of --max-length by S tokens: each token is scored once, with as much "
              "before it as fits (0: samples side by side)")
      .option("--choices", a.choices, "FILE",
              "questions, a JSON object a line: query or ctx, choices or endings, gold or label")
      .option(
          "--max-length", a.length, "T",
          "tokens of a sample (default: the model's, at most 1024 for texts, and no more than the "
          "longest file has)")
      .option("--text-column", a.config.text_column, "NAME",
              "key of the text in .jsonl, column in .csv and .tsv")
      .option("--text-pair-column", a.config.text_pair_column, "NAME",
              "of sequence classification: key or column of the second text")
      .option("--label-column", a.config.label_column, "NAME",
              "of classification: key or column of the labels (default: label or labels)")
      .option("--task", a.options.task, "NAME",
              "auto: that of the folder's head; sft: conversations, of which an assistant's turns "
              "count; dpo: pairs of answers, or single ones; reward: the same, by a reward model; "
              "causal_lm, "
              "masked_lm, sequence_classification or "
              "token_classification: another is an error unless the folder has weights for it")
      .option("--loss-type", a.config.loss_type, "NAME", "of --task dpo, as the key of that name")
      .option("--beta", a.config.beta, "B", "of --task dpo, as the key of that name")
      .option("--label-smoothing", a.config.label_smoothing, "S",
              "of --task dpo, as the key of that name")
      .option("--simpo-gamma", a.config.simpo_gamma, "G", "of --task dpo, as the key of that name")
      .option("--desirable-weight", a.config.desirable_weight, "W",
              "of --task dpo, as the key of that name")
      .option("--undesirable-weight", a.config.undesirable_weight, "W",
              "of --task dpo, as the key of that name")
      .option("--center-rewards-coefficient", a.config.center_rewards_coefficient, "K",
              "of --task reward, as the key of that name")
      .option("--quoting", a.config.quoting, "auto|none|minimal",
              "quotes around fields of .csv and .tsv; auto: those of .csv alone")
      .flag("--packing-boundaries", a.options.packing_boundaries,
            "keep the documents of a sample apart, as the key of that name does in training")
      .option("--batch-size", a.options.eval_batch, "B",
              "samples at a time; of an encoder windows of rows")
      .option("--max-samples", a.config.max_eval_samples, "N",
              "evaluate the first N samples, windows or questions only; 0: all")
      .option("--precision", a.options.precision, "NAME",
              "fp32, bf16 or fp16; tf32 with --device cuda")
      .option("--device", a.options.device, "NAME",
              "cpu (auto is that too), cuda or cuda:N, or emu, the emulator of GPUs")
      .bytes("--memory", a.options.memory, "budget (default: what is free less a reserve)")
      .threads(a.options.threads, "threads; auto: one per core the process may use")
      .flag("--json", a.json,
            "one JSON object: loss, perplexity, tokens; of an encoder loss, the task's metrics, "
            "rows; "
            "or acc, acc_norm, scores")
      .example("snug eval --model run1/final --data heldout.txt")
      .example("snug eval --model run1/final --data heldout.txt --stride 128")
      .example("snug eval --model run1/final --task sft --data chats.jsonl")
      .example("snug eval --model BASE --adapter run1/final --task dpo --data pairs.jsonl")
      .example("snug eval --model rewards/final --task reward --data pairs.jsonl")
      .example("snug eval --model bert/final --data dev.tsv --text-column sentence --json")
      .example("snug eval --model run1/final --choices hellaswag.jsonl")
      .example("snug eval --model run1/final --data 'books/*.txt' --max-length 256 --json");
  if (!parser.parse(arguments)) return 0;
  if (parser.given("--text-column")) a.config.origins["text_column"] = "command line";
  parse_quoting(a.config.quoting, "--quoting");
  if (a.options.eval_batch < 1)
    fail(ErrorCode::usage, "--batch-size of at least 1", std::to_string(a.options.eval_batch),
         "--batch-size 4");
  const auto not_negative = [](const char* flag, int64_t value) {
    if (value < 0)
      fail(ErrorCode::usage, fmt::format("{} of at least 0", flag), std::to_string(value),
           "snug eval --help");
  };
  not_negative("--max-length", a.length);
  not_negative("--max-samples", a.config.max_eval_samples);
  not_negative("--stride", a.stride);
  const bool text = parser.given("--data"), questions = parser.given("--choices");
  if (text == questions)
    fail(ErrorCode::usage, "--data or --choices for snug eval, one of them", text ? "both" : "none",
         "snug eval --model run1/final --data heldout.txt");
  if (questions && (a.stride > 0 || parser.given("--batch-size") || parser.given("--text-column") ||
                    parser.given("--quoting") || a.options.packing_boundaries))
    fail(ErrorCode::usage,
         "--stride, --batch-size, --text-column, --quoting and --packing-boundaries only with "
         "--data",
         "--choices", "leave them out");
  if (a.stride > 0 && a.options.packing_boundaries)
    fail(ErrorCode::usage, "--stride or --packing-boundaries, not both", "both",
         "leave --stride out: sliding windows take a file as one document");
  a.config.packing_boundaries = a.options.packing_boundaries;
  if (a.config.packing_boundaries) a.config.origins["packing_boundaries"] = "command line";
  return eval_what_the_head_reads(a, parser, questions);
}

}  // namespace snug
