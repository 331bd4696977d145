// snug predict: what an encoder's head says of rows: labels, values, hidden tokens.
#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/error.h"
#include "engine/data/row_record.h"
#include "engine/io/files.h"
#include "engine/io/text_reader.h"
#include "engine/text/unicode.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/output_file.h"
#include "tools/commands.h"
#include "tools/infer/rows.h"
#include "tools/session/tell.h"
#include "tools/setup/run_data.h"
#include "tools/setup/scratch_folder.h"

namespace snug {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kTop = 5;  // tokens for a mask, as the fill-mask pipeline of transformers gives
constexpr auto kReplace = Json::error_handler_t::replace;

struct PredictArguments {
  InferenceOptions options;
  RunConfig config;  // of which eval_data, max_eval_samples and the columns are used
  std::string output;
  int64_t length = 0;
  bool json = false, overwrite = false;
};

// The records as they were read, in a file, so that any number of them takes no memory: a line of
// JSON each, null for one that makes no row.
class Records {
 public:
  Records() : folder_("predict"), path_(folder_.path() + "/records.jsonl") { file_.emplace(path_); }
  void add(const RowRecord& record, bool made) {
    if (!made) return file_->write("null\n");
    Json line = {{"text", beginning_utf8(record.text, 200)}};
    if (record.content == RowRecord::Content::words) line["words"] = record.words;
    file_->write(line.dump(-1, ' ', false, kReplace) + "\n");
  }
  void rewind() {
    file_->commit();
    reader_.emplace(path_);
  }
  // The next one; none at the end.
  std::optional<Json> next() {
    std::string_view line;
    if (!reader_->next_line(line, INT32_MAX, "")) return std::nullopt;
    return Json::parse(line);
  }

 private:
  ScratchFolder folder_;
  std::string path_;
  std::optional<AtomicFile> file_;
  std::optional<TextReader> reader_;
};

// Answers in the words of the folder.
class Wording {
 public:
  explicit Wording(const Inference& in) : spec_(in.model->spec()), tokenizer_(in.tokenizer) {}

  Json json(int64_t row, const Json& record, const std::vector<Answer>& answers) const {
    Json line = {{"row", row}};
    if (record.is_null())
      line["label"] = nullptr;  // an empty row, of which nothing is said
    else if (spec_.head == HeadKind::masked_lm)
      line["masks"] = masks(answers);
    else if (spec_.head == HeadKind::token_classification)
      line["words"] = words(record, answers);
    else
      sequence(answers.front(), line);
    return line;
  }

  // A line for people, of the same.
  std::string text(int64_t row, const Json& record, const std::vector<Answer>& answers) const {
    if (record.is_null()) return fmt::format("{:>6}  (empty)\n", row);
    std::string line = fmt::format("{:>6}  ", row);
    if (spec_.head == HeadKind::masked_lm) {
      for (size_t i = 0; i < answers.size(); ++i) {
        line += fmt::format("{}mask {}:", i == 0 ? "" : "  ", i);
        for (const auto& [id, score] : answers[i].scores)
          line += fmt::format(" {} {:.3f}", shown(token(id)), score);
      }
      return line + (answers.empty() ? "no mask in it\n" : "\n");
    }
    if (spec_.head == HeadKind::token_classification) {
      for (const Json& word : words(record, answers))
        line +=
            fmt::format("{}/{} ",
                        word.contains("word") ? shown(word["word"].get<std::string>())
                                              : fmt::format("{}", word["place"].get<int64_t>()),
                        word["label"].is_null() ? "-" : shown(word["label"].get<std::string>()));
      line.back() = '\n';
      return line;
    }
    return line + head_text(answers.front()) + "  " + shown(record["text"].get<std::string>()) +
           "\n";
  }

 private:
  const std::string& label(int32_t k) const { return spec_.labels[static_cast<size_t>(k)]; }
  std::string token(int32_t id) const { return sanitize_utf8(tokenizer_->decode({&id, 1})); }
  static std::string shown(const std::string& text) {
    return printable_utf8(text, LineBreaks::shown);
  }
  Json by_label(const Answer& a) const {
    Json out = Json::object();
    for (const auto& [k, score] : a.scores) out[label(k)] = score;
    return out;
  }

  void sequence(const Answer& a, Json& line) const {
    switch (spec_.problem) {
      case Problem::single_label:
        line["label"] = label(a.best().first);
        line["score"] = a.best().second;
        line["probabilities"] = by_label(a);
        return;
      case Problem::multi_label:
        line["labels"] = Json::array();
        for (const auto& [k, score] : a.scores)
          if (score > 0.5) line["labels"].push_back(label(k));
        line["probabilities"] = by_label(a);
        return;
      case Problem::regression:
        if (a.scores.size() == 1)
          line["value"] = a.scores.front().second;
        else
          line["values"] = by_label(a);
        return;
    }
    fail(ErrorCode::internal, "a known problem", "another one", "report this");
  }

  std::string head_text(const Answer& a) const {
    std::string out;
    if (spec_.problem == Problem::single_label)
      return fmt::format("{:<12} {:.4f}", shown(label(a.best().first)), a.best().second);
    if (spec_.problem == Problem::regression && a.scores.size() == 1)
      return fmt::format("{:<10.6g}", a.scores.front().second);
    for (const auto& [k, score] : a.scores)
      out += fmt::format("{}{} {:.4f}", out.empty() ? "" : "  ", shown(label(k)), score);
    return out;
  }

  // Words that were cut off or give no token have no label.
  Json words(const Json& record, const std::vector<Answer>& answers) const {
    Json list = Json::array();
    const auto add = [&](Json word, const Answer* a) {
      if (a) {
        word["label"] = label(a->best().first);
        word["score"] = a->best().second;
      } else {
        word["label"] = nullptr;
      }
      list.push_back(std::move(word));
    };
    if (!record.contains("words")) {  // rows that came as ids
      for (const Answer& a : answers) add({{"place", a.place}}, &a);
      return list;
    }
    size_t next = 0;
    int64_t place = 0;
    for (const Json& word : record["words"]) {
      const bool here = next < answers.size() && answers[next].place == place++;
      add({{"word", word}}, here ? &answers[next] : nullptr);
      if (here) ++next;
    }
    return list;
  }

  Json masks(const std::vector<Answer>& answers) const {
    Json list = Json::array();
    for (const Answer& a : answers) {
      Json tokens = Json::array();
      for (const auto& [id, score] : a.scores)
        tokens.push_back({{"token", token(id)}, {"id", id}, {"score", score}});
      list.push_back({{"place", a.place}, {"tokens", std::move(tokens)}});
    }
    return list;
  }

  const ModelSpec& spec_;
  const std::optional<Tokenizer>& tokenizer_;
};

void check_head(const PredictArguments& a, const ArgumentParser& parser) {
  const ModelSpec spec = inference_spec(a.options);
  if (spec.head == HeadKind::causal_lm)
    fail(ErrorCode::unsupported,
         "a model with a head of masked_lm, sequence_classification or token_classification for "
         "snug predict",
         fmt::format("causal_lm, type {} in {}", spec.family, a.options.model),
         fmt::format("snug generate --model {} --prompt TEXT", a.options.model));
  if (parser.given("--text-pair-column") && spec.head != HeadKind::sequence_classification)
    fail(ErrorCode::usage, "--text-pair-column with a sequence_classification model alone",
         fmt::format("--text-pair-column with the {} model {}", to_string(spec.head),
                     a.options.model),
         "leave --text-pair-column out");
  if (!a.output.empty() && a.json)
    fail(ErrorCode::usage, "--json or --output, which is JSON lines too", "both",
         "leave --json out");
  if (!a.output.empty()) {
    check_output_file(a.output, "--output", a.overwrite);
    check_output_is_no_input(a.output, "--output", a.config.eval_data);
    check_output_is_no_input(a.output, "--output", {a.options.model});
  }
  if (a.overwrite && a.output.empty())
    fail(ErrorCode::usage, "--overwrite with --output alone", "no --output", "leave it out");
}

}  // namespace

int predict_command(const Arguments& arguments) {
  PredictArguments a;
  a.options.eval_batch = 4;
  ArgumentParser parser("predict",
                        "labels, values, rewards or hidden tokens that a trained model with a head "
                        "for them gives rows of "
                        "text.");
  parser.option("--model", a.options.model, "DIR", "folder with config.json, weights and tokenizer")
      .required()
      .option("--adapter", a.options.adapter, "DIR",
              "a PEFT folder for the model, as final/ of a run with peft: used unmerged")
      .option("--base-form", a.options.base_form, "FORM",
              "how linear weights of the blocks rest: full, in 4 bits as nf4, nf4-double, fp4 or "
              "fp4-double, or int8; auto: as those that the adapter was trained over")
      .options("--data", a.config.eval_data, "FILE",
               "rows: .tsv, .csv, .jsonl, or lines of text; labels in them are not looked at")
      .required()
      .flag("--json", a.json, "a JSON object a row")
      .option("--output", a.output, "FILE", "write that to a file")
      .flag("--overwrite", a.overwrite, "replace the file of --output")
      .option("--text-column", a.config.text_column, "NAME",
              "key or column of the text, by name or number from 0")
      .option("--text-pair-column", a.config.text_pair_column, "NAME",
              "of sequence classification: key or column of the second text")
      .option("--quoting", a.config.quoting, "auto|none|minimal",
              "quotes around fields of .csv and .tsv; auto: those of .csv alone")
      .option("--task", a.options.task, "NAME",
              "auto: that of the folder's head; another is an error unless the folder has weights "
              "for it")
      .option("--max-length", a.length, "T",
              "tokens of a row, longer ones are cut (default: the model's, at most 1024)")
      .option("--batch-size", a.options.eval_batch, "B",
              "windows at a time, each as many rows as fit into --max-length tokens")
      .option("--max-samples", a.config.max_eval_samples, "N", "the first N rows only; 0: all")
      .option("--precision", a.options.precision, "NAME",
              "fp32, bf16 or fp16; tf32 with --device cuda")
      .option("--device", a.options.device, "NAME",
              "cpu (auto is that too), cuda or cuda:N, or emu, the emulator of GPUs")
      .bytes("--memory", a.options.memory, "budget (default: what is free less a reserve)")
      .threads(a.options.threads, "threads; auto: one per core the process may use")
      .example("snug predict --model bert/final --data rows.tsv")
      .example("snug predict --model bert/final --data rows.jsonl --output labels.jsonl")
      .example("echo 'Paris is the [MASK] of France.' > masks.txt")
      .example("snug predict --model bert-base-uncased --task masked_lm --data masks.txt --json")
      .epilog([] {
        return std::string(
            "\nJSON of a row, by the task:\n"
            "  sequence_classification  row, label, score, probabilities; of several labels "
            "labels\n"
            "                           (those above 0.5), probabilities; of regression value\n"
            "  token_classification     row, words: word, label, score; label null: cut off\n"
            "  masked_lm                row, masks: place, tokens: token, id, score, the best "
            "five\n"
            "A row without text has a label of null.\n");
      });
  if (!parser.parse(arguments)) return 0;
  parse_quoting(a.config.quoting, "--quoting");
  for (const auto& [flag, value, least] :
       {std::tuple{"--batch-size", a.options.eval_batch, int64_t{1}},
        std::tuple{"--max-length", a.length, int64_t{0}},
        std::tuple{"--max-samples", a.config.max_eval_samples, int64_t{0}}})
    if (value < least)
      fail(ErrorCode::usage, fmt::format("{} of at least {}", flag, least), std::to_string(value),
           "snug predict --help");
  check_head(a, parser);
  std::signal(SIGPIPE, SIG_DFL);  // a reader that goes away ends the program

  Records records;
  RowInference r = open_rows(a.options, a.config, a.length,
                             {.labels = false, .seen = [&](const RowRecord& record, bool made) {
                                records.add(record, made);
                              }});
  records.rewind();
  for (const std::string& note : r.rows->notes()) tell(stderr, "Note: {}.\n", note);
  const Wording wording(r.in);
  std::optional<AtomicFile> output;
  if (!a.output.empty()) output.emplace(a.output);
  int64_t at = 0;  // records, empty ones too
  const auto say = [&](const Json& record, const std::vector<Answer>& answers) {
    const bool text = !a.json && !output;
    const std::string line =
        text ? wording.text(at, record, answers)
             : wording.json(at, record, answers).dump(-1, ' ', false, kReplace) + "\n";
    ++at;
    if (output)
      output->write(line);
    else
      fmt::print("{}", line);
  };
  const auto skip_empty = [&](std::optional<Json> record) {
    for (; record && record->is_null(); record = records.next()) say(*record, {});
    return record;
  };
  if (!a.json && !output) fmt::print("{}\n", r.rows->text());
  answer_rows(r, kTop, [&](int64_t, const std::vector<Answer>& answers) {
    const std::optional<Json> record = skip_empty(records.next());
    require(record.has_value(), "a record for each row");
    say(*record, answers);
  });
  if (a.config.max_eval_samples == 0) skip_empty(records.next());
  if (output) {
    output->commit();
    fmt::print("{}: {}\n", a.output, count_of(at, "row"));
  }
  return 0;
}

}  // namespace snug
