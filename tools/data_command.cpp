// snug data preview: the samples of a run as it would see them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/cli/dispatch.h"
#include "tools/cli/terminal.h"
#include "tools/commands.h"
#include "tools/session/tell.h"
#include "tools/setup/run_data.h"
#include "tools/setup/scratch_folder.h"
#include "tools/setup/setup.h"

namespace snug {
namespace {

constexpr int64_t kDefaultLength = 1024;

// Tokens of a sample that follow each other, are all trained or not, and lie in one document.
struct Span {
  bool trained = false, document_start = false;
  std::vector<int32_t> ids;
};

// The T + 1 tokens of a sample. The first is context alone; a token is trained if it is a target.
std::vector<Span> spans_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                           const std::vector<int32_t>& positions, int32_t last) {
  std::vector<Span> spans;
  const size_t T = tokens.size();
  for (size_t i = 0; i <= T; ++i) {
    const bool trained = i > 0 && targets[i - 1] >= 0;
    // Where documents are kept apart the first token of one is no target.
    const bool start = i > 0 && (i < T ? positions[i] == 0 : !trained);
    if (spans.empty() || start || spans.back().trained != trained)
      spans.push_back({trained, start, {}});
    spans.back().ids.push_back(i < T ? tokens[i] : last);
  }
  return spans;
}

std::string text_of(const Span& span, const std::optional<Tokenizer>& tokenizer) {
  return tokenizer ? sanitize_utf8(tokenizer->decode(span.ids))
                   : fmt::format("{} ", fmt::join(span.ids, " "));
}

std::string sample_text(const std::vector<Span>& spans, const std::optional<Tokenizer>& tokenizer,
                        bool terminal) {
  std::string out;
  for (const Span& span : spans) {
    if (span.document_start) out += terminal ? "\x1b[33m|document|\x1b[0m" : "|document|";
    const std::string text = printable_utf8(text_of(span, tokenizer), LineBreaks::kept);
    if (terminal)
      out += fmt::format("{}{}\x1b[0m", span.trained ? "\x1b[32m" : "\x1b[2m", text);
    else
      out += span.trained ? "{{" + text + "}}" : text;
  }
  return out + (out.ends_with('\n') ? "" : "\n");
}

// A row as the head sees it.
class RowPreview {
 public:
  // Steps of one row each: sample k is step k, with the labels and the masks of the run.
  RowPreview(const RunSetup& setup)
      : setup_(setup), spec_(setup.model->spec()), T_(setup.request.T) {
    ModelSpec spec = spec_;
    rows_.emplace(setup.config, setup.tokenizer, spec, true, setup.sizes.max_length, 1);
    for (std::vector<int32_t>* v : {&tokens_, &types_, &targets_})
      v->resize(static_cast<size_t>(T_));
    first_.resize(static_cast<size_t>(T_)), labels_.resize(first_.size());
    numbers_.resize(first_.size()), starts_.resize(first_.size()), pairs_.resize(first_.size());
    values_.resize(first_.size() * static_cast<size_t>(std::max<int64_t>(1, spec_.label_count())));
  }
  RowData& rows() { return *rows_; }

  void read(bool held_out, int64_t k) {
    form_ = rows_->form(held_out);
    rows_->show(held_out, k, 0, 1,
                {.tokens = tokens_.data(),
                 .document_start = starts_.data(),
                 .types = types_.data(),
                 .targets = targets_.data(),
                 .first = first_.data(),
                 .labels = labels_.data(),
                 .values = values_.data(),
                 .rows = numbers_.data(),
                 .pairs = pairs_.data()});
    // What is behind the row is a row of nothing, which begins where it ends.
    length_ = 0;
    while (length_ < T_ && starts_[static_cast<size_t>(length_)] == 0) ++length_;
    if (rows_->pairs().any()) length_ = pairs_.front().end;
  }

  nlohmann::json json(int64_t k) const {
    const auto list = [&](const std::vector<int32_t>& v) {
      return std::vector<int32_t>(v.begin(), v.begin() + length_);
    };
    nlohmann::json j = {{"sample", k}, {"row", numbers_.front()}, {"tokens", list(tokens_)}};
    if (form_.types) j["token_type_ids"] = list(types_);
    if (rows_->pairs().reward) {
      j["margin"] = values_.front();
    } else if (spec_.head == HeadKind::sequence_classification) {
      if (form_.label == RowLabel::class_id)
        j["label"] = label(labels_.front());
      else
        j["values"] = std::vector<float>(values_.begin(), values_.begin() + form_.values);
    } else {
      j["targets"] = list(targets_);
    }
    if (setup_.tokenizer) j["text"] = plain();
    if (rows_->pairs().single()) {
      j["label"] = pairs_.front().chosen_tokens > 0;
      j["trained"] = pairs_.front().chosen_tokens + pairs_.front().rejected_tokens;
      return j;
    }
    if (rows_->pairs().any()) j["rejected_begins"] = pairs_.front().rejected;
    if (rows_->pairs().any() && !rows_->pairs().reward) {
      j["trained_chosen"] = trained_chosen();
      j["trained_rejected"] = pairs_.front().rejected_tokens;
    }
    return j;
  }

  std::string text(int64_t k, bool held_out) const {
    std::string out =
        fmt::format("\nsample {}{}: row {}", k, held_out ? " held out" : "", numbers_.front());
    if (rows_->pairs().reward) {
      if (values_.front() != 0) out += fmt::format(", margin {:g}", values_.front());
    } else if (spec_.head == HeadKind::sequence_classification) {
      if (form_.label == RowLabel::class_id)
        out += ", label " + label(labels_.front());
      else
        for (int64_t i = 0; i < form_.values; ++i)
          out += fmt::format("{}{} {:g}", i == 0 ? ", " : "  ",
                             spec_.labels[static_cast<size_t>(i)], values_[static_cast<size_t>(i)]);
    }
    return out + "\n" + plain() + "\n";
  }

 private:
  // A conversation as its text, what is trained of it between brackets.
  std::string talk() const {
    if (!rows_->pairs().any()) return talk(0, length_);
    const PairPlace& pair = pairs_.front();
    if (rows_->pairs().single())
      return fmt::format("{}desirable, {} of {} tokens trained\n{}",
                         pair.chosen_tokens > 0 ? "" : "un",
                         pair.chosen_tokens + pair.rejected_tokens, length_, talk(0, length_));
    if (rows_->pairs().reward)
      return fmt::format("chosen, {} tokens\n{}\nrejected, {} tokens\n{}",
                         pair.rejected - pair.chosen, talk(0, pair.rejected),
                         pair.end - pair.rejected, talk(pair.rejected, pair.end));
    const std::string answer =
        pair.step_pairs > 0 ? fmt::format(", {} of them the answer", pair.chosen_tokens) : "";
    return fmt::format(
        "chosen, {} of {} tokens trained{}\n{}\nrejected, {} of {} tokens trained\n{}",
        trained_chosen(), pair.rejected - pair.chosen, answer, talk(0, pair.rejected),
        pair.rejected_tokens, pair.end - pair.rejected, talk(pair.rejected, pair.end));
  }
  // A loss that learns the whole sequence learns all but its first token.
  int32_t trained_chosen() const {
    const PairPlace& pair = pairs_.front();
    return pair.step_pairs > 0 ? pair.rejected - pair.chosen - 1 : pair.chosen_tokens;
  }
  std::string talk(int64_t begin, int64_t end) const {
    std::string out;
    for (int64_t t = begin; t < end;) {
      std::vector<int32_t> ids;
      const auto trained = [&](int64_t at) {
        return at > begin && targets_[static_cast<size_t>(at) - 1] >= 0 && !rows_->pairs().reward;
      };
      const bool of_span = trained(t);
      for (; t < end && trained(t) == of_span; ++t) ids.push_back(tokens_[static_cast<size_t>(t)]);
      const std::string text =
          printable_utf8(sanitize_utf8(setup_.tokenizer->decode(ids)), LineBreaks::kept);
      out += of_span ? "{{" + text + "}}" : text;
    }
    return out;
  }
  // Tokens as the vocabulary has them; what is learned of one stands behind it.
  std::string plain() const {
    const bool chats = setup_.config.task == "sft" || rows_->pairs().any();
    if (chats && setup_.tokenizer) return talk();
    std::string out;
    for (int64_t t = 0; t < length_; ++t) {
      const auto i = static_cast<size_t>(t);
      out += out.empty() ? "" : " ";
      if (rows_->pairs().reward) {
        out += (t == pairs_.front().rejected ? "| " : "") + token(tokens_[i]);
        continue;
      }
      if (spec_.head == HeadKind::causal_lm) {
        // What is learned of a token stands with the one before it.
        const int32_t target = t > 0 ? targets_[i - 1] : kIgnoredLabel;
        out += target == tokens_[i] ? "{{" + token(target) + "}}" : token(tokens_[i]);
        if (target >= 0 && target != tokens_[i]) out += "{{" + token(target) + "}}";
        continue;
      }
      out += token(tokens_[i]);
      if (spec_.head == HeadKind::sequence_classification || targets_[i] < 0) continue;
      out += "{{" + (spec_.head == HeadKind::masked_lm ? token(targets_[i]) : label(targets_[i])) +
             "}}";
    }
    return out;
  }
  std::string token(int32_t id) const {
    return setup_.tokenizer ? printable_utf8(setup_.tokenizer->token_text(id), LineBreaks::shown)
                            : std::to_string(id);
  }
  std::string label(int32_t id) const {
    if (id < 0) return "none";
    return static_cast<size_t>(id) < spec_.labels.size() ? spec_.labels[static_cast<size_t>(id)]
                                                         : std::to_string(id);
  }

  const RunSetup& setup_;
  const ModelSpec& spec_;
  int64_t T_, length_ = 0;
  RowForm form_;
  std::optional<RowData> rows_;
  std::vector<int32_t> tokens_, types_, targets_, starts_, first_, labels_;
  std::vector<float> values_;
  std::vector<int64_t> numbers_;
  std::vector<PairPlace> pairs_;
};

struct Wanted {
  int64_t count = 3, first = 0;
  bool json = false, held_out = false;
};

int preview_rows(const RunSetup& setup, const Wanted& w) {
  for (const std::string& note : setup.rows->notes()) tell(stderr, "Note: {}.\n", note);
  RowPreview preview(setup);
  const RowData& rows = preview.rows();
  if (w.held_out && rows.eval_rows() == 0)
    fail(ErrorCode::usage, "eval_data or eval_fraction for --held-out", "neither",
         "eval_fraction=0.05");
  if (!w.held_out && rows.train_rows() == 0)
    fail(ErrorCode::usage, "train_data for rows to train on", "none", "--held-out");
  const int64_t last = w.held_out ? rows.eval_rows() : INT64_MAX;
  if (w.first >= last)
    fail(ErrorCode::usage, fmt::format("--first below {}, the rows held out", last),
         std::to_string(w.first), "--first 0");
  const HeadKind head = setup.model->spec().head;
  nlohmann::json list = nlohmann::json::array();
  if (!w.json)
    fmt::print("Data: {}; {} {} to train on, {} held out\n{}", rows.text(), rows.train_rows(),
               rows.pairs().any() ? rows.pairs().nouns() : "rows", rows.eval_rows(),
               rows.pairs().reward  ? ""
               : rows.pairs().any() ? "Tokens whose probability is learned stand in {{ }}.\n"
               : head == HeadKind::sequence_classification ? ""
               : head == HeadKind::masked_lm
                   ? "What was there before masking stands in {{ }} behind each target.\n"
               : head == HeadKind::causal_lm
                   ? "Trained tokens stand in {{ }}; a label that is another, behind its token.\n"
                   : "The label of a word stands in {{ }} behind its first token.\n");
  for (int64_t k = w.first; k < std::min(last, w.first + w.count); ++k) {
    preview.read(w.held_out, k);
    if (w.json)
      list.push_back(preview.json(k));
    else
      fmt::print("{}", preview.text(k, w.held_out));
  }
  if (w.json)
    fmt::print("{}\n",
               nlohmann::json({{"data", rows.text()},
                               {"max_length", setup.sizes.max_length},
                               {"task", rows.pairs().any() ? setup.config.task
                                                           : to_string(setup.model->spec().head)},
                               {"labels", setup.model->spec().labels},
                               {"train_samples", rows.train_rows()},
                               {"eval_samples", rows.eval_rows()},
                               {"held_out", w.held_out},
                               {"samples", list}})
                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

int preview(const Arguments& arguments) {
  int64_t count = 3, first = 0;
  bool json = false, held_out = false;
  const ConfigArguments a = parse_config_arguments(
      "data preview",
      "shows the samples a run would learn from, in its order: decoded, the trained tokens "
      "highlighted, with the places where documents begin. Text is tokenised as the run would.",
      {"snug data preview --config run.yaml -n 5",
       "snug data preview train_data=corpus.jsonl.zst tokenizer=tok.json max_length=128 --json"},
      arguments, [&](ArgumentParser& parser) {
        parser.option("-n", count, "N", "samples to show")
            .option("--first", first, "K", "the first of them; training samples go on over epochs")
            .flag("--held-out", held_out, "samples held out for evaluation instead")
            .flag("--json", json, "print one JSON object");
      });
  if (!a.proceed) return 0;
  if (count < 0 || first < 0)
    fail(ErrorCode::usage, "-n and --first of at least 0",
         fmt::format("-n {} --first {}", count, first), "-n 3 --first 0");

  refuse_target(a.config, "data preview");
  RunConfig config = a.config;
  std::optional<Tokenizer> tokenizer;
  int64_t V = 65536, T = config.max_length > 0 ? config.max_length : kDefaultLength;
  if (config.model.empty() && config.model_config_json.empty()) {
    // The data can be looked at before a model is chosen.
    if (gives_token_rows(config))
      fail(ErrorCode::usage,
           "a model for rows of input_ids, whose vocabulary and labels they are of", "none",
           "model=gpt2, for example");
    if (config.task != "auto" && config.task != "causal_lm")
      fail(ErrorCode::usage,
           fmt::format("a model for task: {}, which says what its rows are", config.task), "none",
           "model=gpt2, for example");
    if (!config.tokenizer.empty()) tokenizer = Tokenizer::load(config.tokenizer);
    if (tokenizer) V = tokenizer->vocab_size();
  } else {
    RunSetup setup = make_setup(config, true);
    if (setup.model->spec().head != HeadKind::causal_lm || setup.rows) {
      if (!setup.rows)
        fail(ErrorCode::usage, "train_data or eval_data for snug data preview", "neither",
             "train_data=rows.tsv");
      return preview_rows(setup,
                          {.count = count, .first = first, .json = json, .held_out = held_out});
    }
    tokenizer = setup.tokenizer;
    V = setup.model->spec().V;
    T = setup.request.T - setup.model->front().count;  // what stands in front is no text
  }
  const ScratchFolder scratch("data");
  const RunData data =
      prepare_data(config, tokenizer, V, T, scratch.path(), true, {.budget = config.memory});
  if (held_out && data.eval_samples == 0)
    fail(ErrorCode::usage, "eval_data or eval_fraction for --held-out", "neither",
         "eval_fraction=0.05");
  const int64_t last = held_out ? data.eval_samples : INT64_MAX;
  if (first >= last)
    fail(ErrorCode::usage, fmt::format("--first below {}, the samples held out", last),
         std::to_string(first), "--first 0");
  count = std::min(count, last - first);

  const bool terminal = lively_terminal(1);
  const WindowDataset& from = held_out && data.eval ? *data.eval : *data.train;
  nlohmann::json list = nlohmann::json::array();
  if (!json)
    fmt::print("Data: {}; {} samples of {} tokens to train on, {} held out\n{}\n", data.text,
               data.train_samples, T, data.eval_samples,
               terminal ? "Trained tokens are green; |document| is where one begins."
                        : "Trained tokens stand in {{ }}; |document| is where one begins.");
  if (!json && config.packing_boundaries)
    fmt::print("Documents are kept apart: a token sees its own document only.\n");
  std::vector<int32_t> tokens(static_cast<size_t>(T)), targets(tokens.size()),
      positions(tokens.size()), starts(tokens.size());
  for (int64_t k = first; k < first + count; ++k) {
    const bool tail = held_out && !data.eval;  // of the training files, by documents or their end
    const auto fill = [&](int32_t* document_start) {
      if (held_out)
        data.fill_eval(k, 1, tokens.data(), targets.data(), document_start);
      else
        from.fill(k, 1, tokens.data(), targets.data(), document_start);
    };
    fill(nullptr);
    const int32_t end = targets.back();  // what it is, be it trained or not
    if (config.packing_boundaries) fill(starts.data());
    if (tail)
      from.eval_positions(k, positions.data());
    else
      from.positions(k, positions.data());
    const WindowDataset::Place place = tail ? from.eval_place(k) : from.place(k);
    // Tokens made for this command alone have no name that means anything.
    const std::string& path = from.file(place.file).path();
    const std::string file = path.starts_with(scratch.path()) ? "the text" : sanitize_utf8(path);
    const std::vector<Span> spans = spans_of(tokens, targets, positions, end);
    if (!json) {
      fmt::print("\nsample {}{}: window {} of {}\n{}", k,
                 held_out
                     ? " held out"
                     : fmt::format(" of epoch {}", k / std::max<int64_t>(1, data.train_samples)),
                 place.window, file, sample_text(spans, tokenizer, terminal));
      continue;
    }
    nlohmann::json parts = nlohmann::json::array();
    for (const Span& span : spans)
      parts.push_back({{"trained", span.trained},
                       {"document_start", span.document_start},
                       {"tokens", span.ids},
                       {"text", tokenizer ? nlohmann::json(text_of(span, tokenizer))
                                          : nlohmann::json(nullptr)}});
    list.push_back({{"sample", k}, {"window", place.window}, {"file", file}, {"spans", parts}});
  }
  if (json) {
    int64_t documents = data.train->documents();
    fmt::print("{}\n", nlohmann::json({{"data", data.text},
                                       {"max_length", T},
                                       {"packing_boundaries", config.packing_boundaries},
                                       {"train_tokens", data.train_tokens},
                                       {"train_samples", data.train_samples},
                                       {"eval_samples", data.eval_samples},
                                       {"documents", documents < 0 ? nlohmann::json(nullptr)
                                                                   : nlohmann::json(documents)},
                                       {"held_out_documents", data.train->held_out_documents()},
                                       {"held_out", held_out},
                                       {"samples", list}})
                           .dump());
  }
  return 0;
}

constexpr const char* kEpilog = R"(
examples
  snug data preview --config run.yaml -n 5
  snug data preview train_data=corpus.jsonl.zst tokenizer=tok.json max_length=128
)";

}  // namespace

int data_command(const Arguments& arguments) {
  return run_group({"snug data",
                    "shows what a run would learn from",
                    {{"preview", "samples in the order of training", preview}},
                    kEpilog},
                   arguments);
}

}  // namespace snug
