#include "tools/setup/row_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/corpus.h"
#include "engine/data/pair_rows.h"
#include "engine/data/row_record.h"
#include "engine/io/fingerprint.h"
#include "tools/config/values.h"
#include "tools/setup/chat_setup.h"
#include "tools/setup/run_data.h"

namespace snug {
namespace {

RowKind kind_of(HeadKind head) {
  switch (head) {
    case HeadKind::sequence_classification:
      return RowKind::sequence;
    case HeadKind::token_classification:
      return RowKind::tokens;
    case HeadKind::masked_lm:
      return RowKind::text;
    case HeadKind::causal_lm:
      return RowKind::causal;
  }
  fail(ErrorCode::internal, "a head that is known", "another", "report this");
}

bool classifies(HeadKind head) {
  return head == HeadKind::sequence_classification || head == HeadKind::token_classification;
}

ProblemType type_of(const RunConfig& config, const ModelSpec& spec, bool known) {
  if (config.problem_type != "auto") return parse_problem_type(config.problem_type);
  if (!known) return ProblemType::automatic;
  return spec.problem == Problem::regression    ? ProblemType::regression
         : spec.problem == Problem::multi_label ? ProblemType::multi_label
                                                : ProblemType::single_label;
}

Problem problem_of(const std::string& word) {
  if (word == to_string(ProblemType::regression)) return Problem::regression;
  if (word == to_string(ProblemType::multi_label)) return Problem::multi_label;
  return Problem::single_label;
}

MaskingOptions masking_of(const RunConfig& config, const Tokenizer& tokenizer, int64_t V) {
  MaskingOptions m;
  m.probability = config.mlm_probability;
  m.vocab_size = V;
  m.special = special_tokens(tokenizer);
  if (config.whole_word_mask) m.continues = word_continuations(tokenizer);
  for (const char* name : {"[MASK]", "<mask>"})
    if (const auto id = tokenizer.token_to_id(name)) m.mask_id = static_cast<int32_t>(*id);
  if (m.mask_id < 0)
    fail(ErrorCode::usage, "a tokenizer with a mask token, [MASK] or <mask>, for task: masked_lm",
         fmt::format("none in {}",
                     config.tokenizer.empty() ? "the model's folder" : config.tokenizer),
         "the tokenizer of a BERT or RoBERTa");
  return m;
}

}  // namespace

bool gives_token_rows(const RunConfig& config) {
  if (config.text_column != RunConfig().text_column) return false;
  for (const auto* given : {&config.train_data, &config.eval_data}) {
    if (given->empty()) continue;
    try {
      if (holds_token_rows(expand_corpus(*given, config.output_dir))) return true;
    } catch (const Error&) {
      continue;  // whoever reads it says why
    }
  }
  return false;
}

PairDecision pair_decision(const RunConfig& config) {
  PairDecision d;
  if (!learns_pairs(config.task)) return d;
  d.per_window = 1;
  if (config.task == "reward") {
    d.reward = RewardLoss{config.center_rewards_coefficient};
    return d;
  }
  const std::optional<PairLossKind> kind = find_pair_loss(config.loss_type);
  require(kind.has_value(), "a loss_type that the configuration has checked");
  d.loss = {.kind = *kind,
            .beta = config.beta,
            .label_smoothing = config.label_smoothing,
            .gamma = config.simpo_gamma,
            .desirable = config.desirable_weight,
            .undesirable = config.undesirable_weight};
  d.cached = config.reference_of_start() && d.has_reference();
  return d;
}

void check_pair_length(const ModelSpec& spec, int64_t max_length, const RunConfig& config) {
  const int64_t most = spec.rope.original_positions / 2;
  if (spec.rope.by_length(max_length) || !spec.rope.by_length(2 * max_length)) return;
  fail(ErrorCode::unsupported,
       fmt::format("a max_length of at most {} for task: {}, half of the length from which this "
                   "model's longrope scales otherwise",
                   most, config.task),
       fmt::format("max_length: {} ({})", max_length, config.where("max_length")),
       fmt::format("max_length={}", most));
}

int64_t masked_rows(int64_t T, double p) {
  const auto n = static_cast<double>(T);
  return std::min<int64_t>(
      T, static_cast<int64_t>(std::ceil(n * p + 6 * std::sqrt(n * p * (1 - p)))) + 1);
}

namespace {

// What the model cannot take of rows that are well-formed.
void check_rows(const RowFile& file, const ModelSpec& spec, const std::string& source) {
  // Without token types none are read, as DistilBERT's tokenizer says none.
  if (spec.types > 0 && file.facts().type_count > spec.types)
    fail(ErrorCode::data,
         fmt::format("token types from 0 to {}, as the model has {}", spec.types - 1,
                     count_of(spec.types, "token type")),
         fmt::format("{} in {}", file.facts().type_count - 1, source),
         spec.types == 1 ? "a tokenizer that marks second texts with no type, as RoBERTa's"
                         : "the tokenizer of this model");
}

}  // namespace

// Sums of what conversations are made of, said with their rows.
struct RowData::Chats {
  int64_t turns = 0, open_turns = 0, trained = 0, equal = 0, pairs = 0, desirable = 0;
  std::string first_open, first_equal;

  void add(const RowRecord& record, int64_t max_length) {
    if (record.trained.empty()) return;
    if (record.equal && equal++ == 0) first_equal = record.where;
    pairs += !record.types.empty();
    desirable += !record.types.empty() && record.types.front() == 0;
    turns += record.turns;
    if (record.open_turns > 0 && open_turns == 0) first_open = record.where;
    open_turns += record.open_turns;
    const auto n = std::min<size_t>(record.trained.size(), static_cast<size_t>(max_length));
    for (size_t i = 1; i < n; ++i) trained += record.trained[i];
  }
};

RowFile RowData::read(const std::vector<std::string>& given, const char* key,
                      const RunConfig& config, const std::optional<Tokenizer>& tokenizer,
                      RowOptions& options, ModelSpec& spec, const PrepareRoom& room) {
  const bool labelled = options.labels && classifies(head_) && !pairs_.any();
  if (given.empty())
    fail(ErrorCode::usage, fmt::format("{} as a file, folder or pattern", key), "none",
         fmt::format("{}=rows.tsv", key));
  const std::string path =
      fmt::format("{}/{}.rows", folder_.path(), &given == &config.train_data ? "train" : "eval");
  *chats_ = {};
  const std::vector<CorpusFile> files = expand_corpus(given, config.output_dir);
  apply_room(room, files, false, options);
  const RowReport report = write_rows(files, tokenizer ? &*tokenizer : nullptr, options, path);
  text_ += fmt::format("{}{}: {}, {} tokens, longest {}", text_.empty() ? "" : "; ", key,
                       count_of(report.rows, options.pairs ? pairs_.noun() : "row"), report.tokens,
                       report.longest);
  if (report.cut > 0)
    text_ +=
        fmt::format(" ({} cut to {} tokens, e.g. {})", report.cut,
                    options.pairs && !pairs_.single() ? options.max_length / 2 : options.max_length,
                    report.first_cut);
  if (report.empty > 0)
    text_ += fmt::format(" ({} {}left out, e.g. {})", report.empty,
                         pairs_.reward   ? "longer than max_length "
                         : options.pairs ? "whose prompt alone fills max_length "
                                         : "empty ",
                         report.first_empty);
  if (report.unlabelled > 0)
    text_ += fmt::format(" ({} {}, e.g. {})", report.unlabelled,
                         options.chat ? "with nothing to train" : "without a label",
                         report.first_unlabelled);
  if (chats_->pairs > 0 && !pairs_.reward)
    text_ += fmt::format(", {} of them of answers", chats_->trained);
  if (pairs_.single()) {
    text_ += fmt::format(", {} desirable", chats_->desirable);
    if (&given == &config.train_data)
      if (std::string note = balance_note(chats_->desirable, report.rows, config.desirable_weight,
                                          config.undesirable_weight);
          !note.empty())
        notes_.push_back(std::move(note));
  }
  if (chats_->equal > 0)
    notes_.push_back(fmt::format(
        "chosen and rejected are the same in {} of {}, e.g. {}: nothing is to be preferred there",
        chats_->equal, key, chats_->first_equal));
  if (chats_->turns > 0)
    text_ +=
        fmt::format(", {} of them trained in {}", chats_->trained, count_of(chats_->turns, "turn"));
  if (chats_->open_turns > 0)
    notes_.push_back(fmt::format(
        "{} of {} in {} have no end token behind them, e.g. {}: the model does not learn to stop",
        chats_->open_turns, count_of(chats_->turns, "turn"), key, chats_->first_open));
  for (const std::string& line : report.assumed) notes_.push_back(line);
  if (labelled && options.label_names.empty() && !report.label_names.empty()) {
    options.label_names = report.label_names;  // of what comes next too
    spec.labels = report.label_names;
  }
  if (labelled && head_ == HeadKind::sequence_classification && !report.problem_type.empty()) {
    spec.problem = problem_of(report.problem_type);
    options.problem_type = parse_problem_type(report.problem_type);
  }
  RowFile file(path, tokenizer ? std::optional(tokenizer->fingerprint()) : std::nullopt);
  const auto name_labels = [&](int64_t count) {
    spec.labels.clear();
    for (int64_t i = 0; i < count; ++i) spec.labels.push_back("LABEL_" + std::to_string(i));
  };
  if (labelled && file.form().label == RowLabel::values && spec.label_count() != file.form().values)
    name_labels(file.form().values);
  // Labels of tokens that are given as ids have no names.
  if (labelled && file.form().token_labels && options.label_names.empty()) {
    name_labels(file.facts().class_count);
    options.label_names = spec.labels;
  }
  check_rows(
      file, spec,
      given.size() == 1 ? given.front() : count_of(static_cast<int64_t>(given.size()), "source"));
  mean_length_ = std::max(1.0, report.mean_length());
  return file;
}

RowData::RowData(const RunConfig& config, const std::optional<Tokenizer>& tokenizer,
                 ModelSpec& spec, bool known, int64_t T, int64_t G, const RowUse& use)
    : folder_("rows"), head_(spec.head), pairs_(pair_decision(config)), T_(T) {
  if (pairs_.any() && !pairs_.single()) {
    check_pair_length(spec, T, config);
    T_ = 2 * T;
  }
  padding_ = static_cast<int32_t>(spec.pad_token);
  RowOptions options;
  options.kind = pairs_.any() ? RowKind::causal : kind_of(head_);
  if (config.text_column != RunConfig().text_column) options.text_column = config.text_column;
  options.text_pair_column = config.text_pair_column;
  options.label_column = config.label_column;
  options.max_length = T_;
  options.front = use.front;
  T_ += use.front.count;
  options.vocab_size = spec.V;
  options.quotes = parse_quoting(config.quoting, "quoting");
  options.labels = use.labels;
  options.places = !use.labels;
  options.seen = use.seen;
  if (classifies(head_) && known && !pairs_.any()) options.label_names = spec.labels;
  if (head_ == HeadKind::sequence_classification && !pairs_.any())
    options.problem_type = type_of(config, spec, known);
  if (head_ == HeadKind::masked_lm && !use.labels && tokenizer)
    options.marked = masking_of(config, *tokenizer, spec.V).mask_id;
  Chats chats;
  std::optional<ChatRows> chat;
  std::optional<PairRows> pairs, mismatched;
  OtherAnswers answers;
  if (pairs_.any()) {
    if (tokenizer) chat.emplace(chat_rows_of(config, *tokenizer, spec));
    pairs.emplace(chat ? &*chat : nullptr, T,
                  pairs_.reward                      ? PairUse::rewards
                  : pairs_.single()                  ? PairUse::single
                  : facts_of(pairs_.loss.kind).whole ? PairUse::means
                                                     : PairUse::answers,
                  &answers);
    options.pairs = &*pairs;
    options.seen = [&](const RowRecord& record, bool made) {
      if (made) chats.add(record, T_);
      if (use.seen) use.seen(record, made);
    };
  }
  if (config.task == "sft") {
    if (!tokenizer)
      fail(ErrorCode::usage, "a tokenizer for task: sft", "none",
           "tokenizer=tok.json, or model=FOLDER with one");
    chat.emplace(chat_rows_of(config, *tokenizer, spec));
    options.chat = &*chat;
    options.seen = [&](const RowRecord& record, bool made) {
      if (made) chats.add(record, T);
      if (use.seen) use.seen(record, made);
    };
    if (const auto& encoder = chat->encoder()) {
      if (encoder->chat().has_generation())
        notes_.push_back(
            "trained is what {% generation %} of the chat template marks, and no more");
      if (encoder->chat().names_time())
        notes_.push_back(
            "the chat template writes today's date: rows are others on another day, and a resume "
            "too");
    }
  }
  chats_ = &chats;
  const std::vector<std::string> asked = spec.labels;
  std::optional<RowFile> train, eval, train_others, eval_others;
  const auto read_mismatched = [&](const std::vector<std::string>& given,
                                   std::optional<RowFile>& to) {
    if (!pairs_.compared()) return;
    mismatched.emplace(chat ? &*chat : nullptr, T, PairUse::mismatched, &answers);
    RowOptions other = options;
    other.pairs = &*mismatched;
    to.emplace(read_others(given, config, tokenizer, other, use.room));
    answers = {};
  };
  if (use.train && !config.train_data.empty()) {
    train.emplace(
        read(config.train_data, "train_data", config, tokenizer, options, spec, use.room));
    read_mismatched(config.train_data, train_others);
  }
  const double mean = mean_length_;
  if (!config.eval_data.empty() || !use.train) {
    eval.emplace(read(config.eval_data, use.train ? "eval_data" : "data", config, tokenizer,
                      options, spec, use.room));
    read_mismatched(config.eval_data, eval_others);
  }
  if (train) mean_length_ = mean;
  chats_ = nullptr;
  problem_ = spec.problem;
  if (!use.train) {
    require(!use.labels || spec.labels == asked,
            "labels that the model has, as write_rows sees to");
    // Rows of a mask each need room for the logits of a whole window.
    const RowFacts& facts = eval->facts();
    const bool masks = head_ == HeadKind::masked_lm && !use.labels;
    const int64_t longest = std::max(facts.longest, eval_others ? eval_others->facts().longest : 0);
    if (!spec.rope.by_length(T_))
      T_ = masks ? longest : std::clamp(std::max(facts.tokens, longest), longest, T_);
  }

  RowDatasetOptions d;
  d.T = T_;
  d.global_batch = std::max<int64_t>(1, G);
  d.seed = static_cast<uint64_t>(config.data_seed >= 0 ? config.data_seed : config.seed);
  // Twice as many rows as fit on the mean: windows are seldom full of short ones alone.
  d.max_rows_per_window = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(2.0 * static_cast<double>(T_) / mean_length_)), 1, T_);
  d.last_token = spec.causal && head_ != HeadKind::causal_lm;
  d.padding = padding_;
  if (head_ == HeadKind::causal_lm || pairs_.any()) {
    d.shift_labels = true;
    d.pairs = pairs_.any();
    d.single = pairs_.single();
    d.whole_chosen = d.pairs && !pairs_.reward && facts_of(pairs_.loss.kind).whole;
    // The head reads all tokens, so that rows that are no pairs take no room of their own.
    if (!d.pairs) d.max_rows_per_window = 0;
    if (d.pairs) pairs_.per_window = d.max_rows_per_window;
  } else if (head_ == HeadKind::masked_lm && use.labels) {
    require(tokenizer.has_value(), "a tokenizer, which write_rows asked for");
    d.masking = masking_of(config, *tokenizer, spec.V);
    d.max_targets_per_window = masked_rows(T_, config.mlm_probability);
  } else if (head_ != HeadKind::sequence_classification) {
    d.max_targets_per_window = T_;
  }
  rows_per_window_ =
      d.max_targets_per_window > 0 ? d.max_targets_per_window : d.max_rows_per_window;
  if (head_ == HeadKind::causal_lm) rows_per_window_ = 0;
  if (pairs_.reward) rows_per_window_ = 2 * pairs_.per_window;
  if (pairs_.reward) {
    pair_places_.resize(static_cast<size_t>(pairs_.per_window));
    margins_.resize(pair_places_.size());
  }
  d.max_eval_rows = config.max_eval_samples;
  if (train) {
    d.eval_fraction = config.eval_fraction;
    train_.emplace(std::move(*train), d);
    if (train_others) train_others_.emplace(std::move(*train_others), d);
    windows_ = most_windows();
  }
  if (eval) {
    d.eval_fraction = 0;
    d.shuffle = false;
    eval_.emplace(std::move(*eval), d);
    if (eval_others) eval_others_.emplace(std::move(*eval_others), d);
  }
  eval_rows_ = eval_ || config.eval_fraction > 0 ? evaluated().eval_rows() : 0;
  if (eval_rows_ > 0 && use.labels)
    check_evaluated(config, use.train ? "max_eval_samples" : "--max-samples");
}

// Which steps are looked at depends on the data alone.
int64_t RowData::most_windows() {
  constexpr int64_t kSteps = 32;
  const int64_t steps =
      std::clamp<int64_t>(train_->train_rows() / train_->options().global_batch, 1, kSteps);
  int64_t most = 1;
  for (int64_t step = 0; step < steps; ++step) most = std::max(most, train_->windows(step));
  return most;
}

// A mean over no target would be the lowest loss there is.
void RowData::check_evaluated(const RunConfig& config, const char* key) {
  for (int64_t e = 0; e < eval_steps(); ++e)
    if (evaluated().eval_trained(e) > 0) return;
  fail(ErrorCode::data, fmt::format("a target to evaluate in {}", count_of(eval_rows_, "row")),
       "none: all their labels are ignored",
       fmt::format("{}other rows to evaluate", config.max_eval_samples > 0
                                                   ? fmt::format("a larger {}, or ", key)
                                                   : std::string()));
}

void RowData::check_trained(int64_t steps) {
  const int64_t G = train_->options().global_batch;
  const int64_t epoch = (train_->train_rows() - 1) / G + 1;
  const int64_t looked = steps > 0 ? std::min(steps, epoch) : epoch;
  for (int64_t step = 0; step < looked; ++step)
    if (train_->trained(step) > 0) return;
  fail(ErrorCode::data,
       fmt::format("a target to train in the run's {}",
                   count_of(std::min(looked * G, train_->train_rows()), "row")),
       "none: all their labels are ignored",
       looked < epoch ? "more steps, or other rows" : "other rows");
}

std::string RowData::fingerprint() const {
  return fingerprint_text(train_->file().fingerprint());
}

RowBlock RowData::block(Session& s) {
  RowBlock b;
  b.tokens = s.tokens().as<int32_t>();
  b.document_start = s.document_start_or_null();
  if (s.token_types().defined()) b.types = s.token_types().as<int32_t>();
  if (head_ == HeadKind::causal_lm) {
    b.targets = s.targets().as<int32_t>();
    if (pairs_.any()) b.pairs = reinterpret_cast<PairPlace*>(s.pairs().as<int32_t>());
    if (!reference_.empty()) b.rows = row_numbers_.data();
  } else if (pairs_.reward) {
    return b;  // fill_rewards says the rest
  } else if (head_ == HeadKind::sequence_classification) {
    b.first = s.head_index().as<int32_t>();
    if (problem_ == Problem::single_label)
      b.labels = s.head_targets().as<int32_t>();
    else
      b.values = s.head_targets().as<float>();
  } else {
    b.target_at = s.head_index().as<int32_t>();
    b.target_labels = s.head_targets().as<int32_t>();
  }
  return b;
}

namespace {

// A place without a row has no target: NaN says so where targets are numbers.
void ignore_empty(const RowBlock& b, int64_t places, int64_t K) {
  if (!b.values) return;
  for (int64_t i = 0; i < places; ++i)
    if (b.first[i] < 0) std::fill(b.values + i * K, b.values + (i + 1) * K, std::nanf(""));
}

}  // namespace

// The head reads the last token of each answer, and a pair that is none says so by its margin. A window at a
// time, since what says where its pairs are is room for one.
void RowData::fill_rewards(bool evaluation, int64_t step, int64_t first_window, int64_t count,
                           const RowBlock& block, Session& s) {
  const int64_t R = pairs_.per_window;
  for (int64_t w = 0; w < count; ++w) {
    const int64_t at = w * block.stride;
    RowBlock one = block;
    one.tokens += at;
    one.document_start += at;
    one.pairs = pair_places_.data();
    one.values = margins_.data();
    show(evaluation, step, first_window + w, 1, one);
    int32_t* index = s.head_index().as<int32_t>() + 2 * w * R;
    float* targets = s.head_targets().as<float>() + 2 * w * R;
    for (int64_t r = 0; r < R; ++r) {
      const PairPlace& p = pair_places_[static_cast<size_t>(r)];
      const bool none = p.chosen < 0;
      const int32_t bounds[] = {p.chosen, p.rejected, p.end};
      for (int64_t side = 0; side < 2; ++side) {
        const int32_t begin = bounds[side];
        index[2 * r + side] =
            none ? -1
                 : static_cast<int32_t>(
                       at + begin +
                       last_token_of(one.tokens + begin, bounds[side + 1] - begin, padding_));
        targets[2 * r + side] = none ? std::nanf("") : margins_[static_cast<size_t>(r)];
      }
    }
  }
}

Session::Extent RowData::extent(int64_t step, int64_t first_window, const Session& s) {
  const RowExtent e = train_->extent(step, first_window, s.decisions().micro_batch);
  return s.fit(false, e.windows, e.tokens);
}

// Returns the tokens from one window to the next.
int64_t RowData::use_for_eval(int64_t e, int64_t first_window, Session& s) {
  const RowExtent needed = evaluated().eval_extent(e, first_window, s.decisions().eval_batch);
  const Session::Extent extent = s.fit(true, needed.windows, needed.tokens);
  s.use(extent);
  return extent.tokens;
}

void RowData::fill(int64_t step, int64_t first_window, Session& s) {
  RowBlock b = block(s);
  const int64_t B = s.decisions().micro_batch;
  const Session::Extent e = extent(step, first_window, s);
  s.use(e);
  b.stride = e.tokens;
  if (pairs_.reward) return fill_rewards(false, step, first_window, B, b, s);
  train_->fill(step, first_window, B, b);
  place_reference(reference_of(false, false), B, s);
  place_compared(B, s);
  ignore_empty(b, B * rows_per_window_, s.model().spec().label_count());
}

void RowData::fill_eval(int64_t e, int64_t first_window, Session& s) {
  RowBlock b = block(s);
  const int64_t B = s.decisions().eval_batch;
  b.stride = use_for_eval(e, first_window, s);
  if (pairs_.reward) return fill_rewards(true, e, first_window, B, b, s);
  evaluated().fill_eval(e, first_window, B, b);
  place_reference(reference_of(true, false), B, s);
  place_compared(B, s);
  ignore_empty(b, B * rows_per_window_, s.model().spec().label_count());
}

void RowData::show(bool evaluation, int64_t step, int64_t first_window, int64_t count,
                   const RowBlock& out) {
  if (evaluation)
    evaluated().fill_eval(step, first_window, count, out);
  else
    train_->fill(step, first_window, count, out);
}

const std::vector<RowData::Place>& RowData::fill_places(int64_t e, int64_t first_window,
                                                        Session& s) {
  const int64_t B = s.decisions().eval_batch, R = eval_->options().max_rows_per_window,
                M = rows_per_window_;
  const bool sequences = head_ == HeadKind::sequence_classification;
  const auto size = [](auto& v, int64_t n) { v.resize(static_cast<size_t>(n)); };
  size(places_, B * M), size(row_numbers_, B * R), size(first_, B * R), size(place_of_, B * M);
  RowBlock b = block(s);
  b.stride = use_for_eval(e, first_window, s);
  b.labels = b.target_labels = nullptr;
  b.values = nullptr;
  b.rows = row_numbers_.data();
  if (!sequences) {
    b.first = first_.data();
    b.target_labels = place_of_.data();
  }
  eval_->fill_eval(e, first_window, B, b);
  const View& targets = s.head_targets();
  if (targets.dtype == DType::i32)
    std::fill_n(targets.as<int32_t>(), targets.elements(), kIgnoredLabel);
  else
    std::fill_n(targets.as<float>(), targets.elements(), std::nanf(""));
  for (int64_t i = 0; i < B * M; ++i) {
    Place& p = places_[static_cast<size_t>(i)];
    p = {};
    if (sequences) {
      p.row = row_numbers_[static_cast<size_t>(i)];
      continue;
    }
    const int32_t at = b.target_at[i];
    if (at < 0) continue;
    // The last row of the window that begins at or before it.
    for (int64_t r = i / M * R; r < (i / M + 1) * R && first_[static_cast<size_t>(r)] >= 0; ++r)
      if (first_[static_cast<size_t>(r)] <= at) p.row = row_numbers_[static_cast<size_t>(r)];
    p.place = place_of_[static_cast<size_t>(i)];
  }
  return places_;
}

}  // namespace snug
