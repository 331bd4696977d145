#include "engine/data/row_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/chat_rows.h"
#include "engine/data/pair_rows.h"
#include "engine/data/row_labels.h"
#include "engine/data/row_record.h"
#include "engine/io/fingerprint.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {
namespace {

using Content = RowRecord::Content;

// Whether words of a byte-level tokenizer begin with a blank only where the text has one.
bool is_byte_level(const nlohmann::json& steps) {
  if (!steps.is_object()) return false;
  if (const auto type = steps.find("type"); type != steps.end() && *type == "ByteLevel")
    return steps.value("add_prefix_space", true) == false;
  const auto inner = steps.find("pretokenizers");
  return inner != steps.end() && inner->is_array() &&
         std::any_of(inner->begin(), inner->end(), is_byte_level);
}

// What the tokenizer puts around texts.
struct Template {
  int64_t single = 0, pair = 0;  // special tokens
  int64_t before = 0;            // of those of a single text
  bool single_types = false, pair_types = false;
};

Template template_of(const Tokenizer& tokenizer) {
  const int32_t mark = -1;
  const TokenSequence one = tokenizer.with_special_tokens({&mark, 1});
  const TokenSequence two = tokenizer.with_special_tokens({&mark, 1}, {&mark, 1});
  const auto typed = [](const TokenSequence& s) {
    return std::any_of(s.type_ids.begin(), s.type_ids.end(), [](int32_t t) { return t != 0; });
  };
  Template out;
  out.single = static_cast<int64_t>(one.ids.size()) - 1;
  out.pair = static_cast<int64_t>(two.ids.size()) - 2;
  out.before = std::find(one.ids.begin(), one.ids.end(), mark) - one.ids.begin();
  out.single_types = typed(one);
  out.pair_types = typed(two);
  return out;
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n\f\v") == text.npos;
}

// Lengths of two texts that have room for `room` tokens together: the longer is cut first, as
// truncate_encodings of Hugging Face tokenizers does under LongestFirst.
std::pair<size_t, size_t> cut_pair(size_t a, size_t b, size_t room) {
  size_t low = std::min(a, b);
  size_t high = low > room ? low : std::max(low, room - low);
  if (low + high > room) {
    low = room / 2;
    high = low + room % 2;
  }
  return a > b ? std::pair(high, low) : std::pair(low, high);
}

class Reader {
 public:
  Reader(const std::vector<CorpusFile>& files, const Tokenizer* tokenizer,
         const RowOptions& options)
      : files_(files), tokenizer_(tokenizer), o_(options), labels_(options) {
    if (o_.max_length < 1)
      fail(ErrorCode::usage, "a max_length of rows of 1 or more", fmt::format("{}", o_.max_length),
           "set it to 128, for example");
    if (!o_.text_pair_column.empty() && o_.kind != RowKind::sequence)
      fail(ErrorCode::usage, "a text_pair_column for sequence classification alone",
           fmt::format("\"{}\"", o_.text_pair_column), "leave it out");
    if (!o_.text_pair_column.empty() && o_.text_column.empty())
      fail(ErrorCode::usage, "a text_column beside text_pair_column",
           fmt::format("text_pair_column \"{}\" alone", o_.text_pair_column), "name both");
    vocabulary_ = o_.vocab_size > 0 ? o_.vocab_size : tokenizer ? tokenizer->vocab_size() : 0;
    if (!tokenizer) return;
    template_ = template_of(*tokenizer);
    if (o_.kind == RowKind::tokens)
      blank_words_ = is_byte_level(nlohmann::json::parse(tokenizer->spec().pre_tokenizer));
  }

  void survey() {
    for (const CorpusFile& file : files_) {
      if (!file.named &&
          (causal() ? row_form(file.path) != RowSource::records : !has_row_name(file.path))) {
        if (report_.skipped++ == 0) report_.first_skipped = file.path;
        continue;
      }
      sources_.push_back({file.path, {}});
      if (row_form(file.path) == RowSource::table && o_.kind != RowKind::tokens &&
          o_.kind != RowKind::causal)
        sources_.back().columns = row_columns(file.path, o_);
      if (!sources_.back().columns.assumed.empty())
        report_.assumed.push_back(sources_.back().columns.assumed);
      const QuotedBreaks breaks = for_each_record(file.path, o_, sources_.back().columns,
                                                  [&](RowRecord& record) { see(record); });
      if (breaks.count > 0)
        report_.assumed.push_back(fmt::format(
            "{} of {} {} inside of quotes, e.g. at {}:{}; with quoting=none each line "
            "is a record",
            breaks.count == 1 ? "1 line break" : fmt::format("{} line breaks", breaks.count),
            file.path, breaks.count == 1 ? "is" : "are", file.path, breaks.first_line));
    }
    report_.files = static_cast<int64_t>(sources_.size());
    if (!content_)
      fail(ErrorCode::data, "a row to learn from",
           sources_.size() == 1 ? fmt::format("none in {}", sources_.front().path)
                                : fmt::format("none in {} files", sources_.size()),
           single()   ? "give .jsonl or .json with a prompt, completion and label in every row"
           : o_.pairs ? "give .jsonl or .json with a prompt, chosen and rejected in every row"
           : o_.chat  ? "give .jsonl or .json with messages in every row"
           : o_.kind == RowKind::causal
               ? "give .jsonl or .json with input_ids in every row"
               : "give .tsv, .csv, .jsonl or .json with a text and a label in every row, or lines "
                 "of text for masked_lm");
    decide();
  }

  RowReport write(const std::string& out, uint64_t source,
                  const std::function<void(int64_t)>& progress) {
    const uint64_t made_by =
        *content_ == Content::ids || !tokenizer_ ? 0 : tokenizer_->fingerprint();
    writer_.emplace(out, form_, vocabulary_ + o_.front.count, made_by, source);
    for (const Source& file : sources_)
      for_each_record(file.path, o_, file.columns, [&](RowRecord& record) {
        make(record);
        if (progress && writer_->size() % 1024 == 0) progress(writer_->size());
      });
    finish();
    writer_->commit(report_);
    return report_;
  }

 private:
  struct Source {
    std::string path;
    RowColumns columns;
  };

  bool wants_labels() const { return o_.labels && o_.kind != RowKind::text; }
  bool places() const { return !wants_labels() && o_.places && o_.kind != RowKind::sequence; }
  bool causal() const { return o_.kind == RowKind::causal; }
  bool given_ids() const { return *content_ == Content::ids; }

  void see(const RowRecord& record) {
    if (!content_) {
      content_ = record.content;
      first_ = record.where;
    }
    if (*content_ != record.content)
      fail(ErrorCode::data, "text in every row, or input_ids in every row",
           fmt::format("one kind at {} and another at {}", first_, record.where),
           "make two files of them");
    any_types_ = any_types_ || !record.types.empty();
    any_pair_ = any_pair_ || record.has_pair;
    labels_left_ = labels_left_ || record.labels_left;
    // Labels of tokens that are given as ids are ids themselves.
    if (record.content != Content::ids || o_.kind == RowKind::sequence) labels_.see(record);
  }

  void decide() {
    if (!given_ids() && !tokenizer_)
      fail(ErrorCode::usage, "a tokenizer for rows of text",
           fmt::format("none, and text at {}", first_),
           "name it with tokenizer, or give rows of input_ids");
    if (given_ids() && vocabulary_ < 1)
      fail(ErrorCode::usage, "the model's vocabulary size for rows of input_ids", "none",
           "name the model or its tokenizer");
    const int64_t around = given_ids() ? 0 : any_pair_ ? template_.pair : template_.single;
    if (o_.max_length <= around)
      fail(ErrorCode::usage,
           fmt::format("a max_length above the {} special tokens of a row", around),
           fmt::format("{}", o_.max_length),
           fmt::format("max_length={}, for example", 8 * around + 8));
    form_.types = causal()      ? o_.pairs != nullptr
                  : given_ids() ? any_types_
                  : any_pair_   ? template_.pair_types
                                : template_.single_types;
    if (labels_left_)
      report_.assumed.push_back("labels of the rows are not used: this task draws its own");
    if (*content_ == Content::words && blank_words_)
      report_.assumed.push_back("words are read with a blank before them, as this tokenizer's are");
    form_.token_labels = places();
    if (rewarded()) form_.label = RowLabel::values, form_.values = 1;
    if (!wants_labels()) return;
    form_.token_labels = o_.kind == RowKind::tokens || causal();
    if (given_ids() && form_.token_labels) {
      report_.label_names = o_.label_names;
    } else {
      labels_.settle();
      report_.label_names = labels_.names();
      if (!labels_.assumed().empty()) report_.assumed.push_back(labels_.assumed());
    }
    if (!form_.token_labels) {
      report_.problem_type = to_string(labels_.problem());
      const bool one = labels_.problem() == ProblemType::single_label;
      form_.label = one ? RowLabel::class_id : RowLabel::values;
      form_.values = one ? 0 : labels_.values();
    }
    const bool counted = labels_.problem() != ProblemType::regression;
    report_.label_counts.assign(
        counted ? std::max(report_.label_names.size(), static_cast<size_t>(form_.values)) : 0, 0);
  }

  void make(RowRecord& record) {
    tokens_.clear(), types_.clear(), row_labels_.clear(), values_.clear();
    class_id_ = kIgnoredLabel;
    const bool made = given_ids()                   ? make_ids(record)
                      : *content_ == Content::words ? make_words(record)
                                                    : make_text(record);
    if (!made) {
      if (report_.empty++ == 0) report_.first_empty = record.where;
      if (o_.seen) o_.seen(record, false);
      return;
    }
    if (places()) place(record);
    if (wants_labels() && o_.kind == RowKind::sequence) label(record);
    if (rewarded()) values_ = {record.margin};
    if (!form_.types) types_.clear();
    put_in_front();
    const bool trains =
        form_.token_labels
            ? std::any_of(row_labels_.begin() + (causal() ? 1 : 0), row_labels_.end(),
                          [](int32_t l) { return l != kIgnoredLabel; })
            : form_.label != RowLabel::class_id || class_id_ != kIgnoredLabel;
    if (wants_labels() && !trains && report_.unlabelled++ == 0)
      report_.first_unlabelled = record.where;
    writer_->append({.tokens = tokens_,
                     .types = types_,
                     .token_labels = row_labels_,
                     .class_id = class_id_,
                     .values = values_});
    if (o_.seen) o_.seen(record, true);
  }

  void put_in_front() {
    const FrontTokens& front = o_.front;
    if (front.count == 0) return;
    require(causal() && types_.empty(), "causal rows behind tokens in front");
    const auto n = static_cast<size_t>(front.count);
    tokens_.insert(tokens_.begin(), n, 0);
    front.write(tokens_.data());
    if (!front.asked && !row_labels_.empty()) row_labels_.front() = kIgnoredLabel;
    row_labels_.insert(row_labels_.begin(), n, kIgnoredLabel);
  }

  bool rewarded() const { return o_.pairs && o_.pairs->use() == PairUse::rewards; }
  bool single() const { return o_.pairs && o_.pairs->single(); }

  // Where answers are asked for; make_words knows where words begin.
  void place(const RowRecord& record) {
    if (record.content == Content::words) return;
    row_labels_.assign(tokens_.size(), kIgnoredLabel);
    for (size_t t = 0; t < tokens_.size(); ++t)
      if (o_.kind == RowKind::tokens || tokens_[t] == o_.marked)
        row_labels_[t] = static_cast<int32_t>(t);
  }

  void note_cut(const RowRecord& record) {
    if (report_.cut++ == 0) report_.first_cut = record.where;
  }

  bool make_text(const RowRecord& record) {
    if (is_blank(record.text) && (!record.has_pair || is_blank(record.pair))) return false;
    first_ids_.clear(), second_ids_.clear();
    tokenizer_->encode(record.text, first_ids_);
    if (record.has_pair) tokenizer_->encode(record.pair, second_ids_);
    if (first_ids_.empty() && second_ids_.empty()) return false;
    const auto room =
        static_cast<size_t>(o_.max_length - (record.has_pair ? template_.pair : template_.single));
    if (first_ids_.size() + second_ids_.size() > room) {
      note_cut(record);
      const auto [first, second] = record.has_pair
                                       ? cut_pair(first_ids_.size(), second_ids_.size(), room)
                                       : std::pair(room, size_t{0});
      first_ids_.resize(first);
      second_ids_.resize(second);
    }
    TokenSequence row = record.has_pair ? tokenizer_->with_special_tokens(first_ids_, second_ids_)
                                        : tokenizer_->with_special_tokens(first_ids_);
    tokens_ = std::move(row.ids);
    types_ = std::move(row.type_ids);
    return true;
  }

  bool make_words(const RowRecord& record) {
    const bool labelled = wants_labels();
    if (labelled &&
        (record.labels != RowRecord::Labels::list || record.label.size() != record.words.size()))
      fail(ErrorCode::data, "a label for each word of a row",
           fmt::format("{}: {} words and {} labels", record.where, record.words.size(),
                       record.labels == RowRecord::Labels::list ? record.label.size() : 0),
           "write one label a word, \"O\" where there is nothing to find");
    const auto room = static_cast<size_t>(o_.max_length - template_.single);
    first_ids_.clear();
    for (size_t i = 0; i < record.words.size(); ++i) {
      const size_t before = first_ids_.size();
      if (blank_words_)
        tokenizer_->encode(" " + record.words[i], first_ids_);
      else
        tokenizer_->encode(record.words[i], first_ids_);
      // Of words that are cut off, too, labels must be known ones.
      const int32_t id = labelled   ? labels_.class_of(record.label[i], record.where)
                         : places() ? static_cast<int32_t>(i)
                                    : kIgnoredLabel;
      if (first_ids_.size() == before) {
        ++report_.lost_words;
        continue;
      }
      row_labels_.resize(first_ids_.size(), kIgnoredLabel);
      row_labels_[before] = id;
      if (labelled && before < room) count(id);
    }
    if (first_ids_.empty()) {
      row_labels_.clear();
      return false;
    }
    if (first_ids_.size() > room) {
      note_cut(record);
      first_ids_.resize(room);
      row_labels_.resize(room);
    }
    TokenSequence row = tokenizer_->with_special_tokens(first_ids_);
    tokens_ = std::move(row.ids);
    types_ = std::move(row.type_ids);
    row_labels_.insert(row_labels_.begin(), static_cast<size_t>(template_.before), kIgnoredLabel);
    row_labels_.resize(tokens_.size(), kIgnoredLabel);
    if (!form_.token_labels) row_labels_.clear();
    return true;
  }

  bool make_ids(RowRecord& record) {
    const size_t given = record.ids.size();
    const auto same = [&](const char* what, size_t n) {
      if (n != given)
        fail(ErrorCode::data, fmt::format("as many {} as input_ids in a row", what),
             fmt::format("{}: {} input_ids and {} {}", record.where, given, n, what),
             "write one for each token");
    };
    size_t n = given;
    if (!record.mask.empty()) {
      same("attention_mask", record.mask.size());
      const auto zero = std::find(record.mask.begin(), record.mask.end(), 0);
      n = static_cast<size_t>(zero - record.mask.begin());
      const bool ones = std::all_of(record.mask.begin(), zero, [](int64_t m) { return m == 1; });
      const bool rest = std::all_of(zero, record.mask.end(), [](int64_t m) { return m == 0; });
      if (!ones || !rest)
        fail(ErrorCode::data, "an attention_mask of ones, and zeros where padding is at its end",
             fmt::format("{}: something else, from place {} on", record.where, ones ? n : 0),
             "leave attention_mask out, or pad on the right");
    }
    if (!record.types.empty()) same("token_type_ids", record.types.size());
    // The next token is learned where nobody says otherwise.
    const bool labelled = form_.token_labels && wants_labels() && record.trained.empty() &&
                          !(causal() && record.labels == RowRecord::Labels::none);
    if (labelled && record.labels != RowRecord::Labels::list)
      fail(ErrorCode::data, "labels, a list as long as input_ids, in every row",
           fmt::format("{}: {}", record.where,
                       record.labels == RowRecord::Labels::one ? "one label" : "none"),
           "write labels with -100 where nothing is to be learned");
    if (labelled) same("labels", record.label.size());
    if (n == 0) return false;
    if (record.cut) note_cut(record);
    if (n > static_cast<size_t>(o_.max_length)) {
      note_cut(record);
      n = static_cast<size_t>(o_.max_length);
    }
    // Of what is cut off, too, ids must be known ones.
    for (size_t i = 0; i < given; ++i)
      if (record.ids[i] < 0 || record.ids[i] >= vocabulary_)
        fail(ErrorCode::data, fmt::format("input_ids from 0 to {}", vocabulary_ - 1),
             fmt::format("{}: {} at place {}", record.where, record.ids[i], i),
             "use the tokenizer of this model, or give the vocabulary size it was made with");
    for (size_t i = 0; i < record.types.size(); ++i)
      if (record.types[i] < 0 || record.types[i] >= INT32_MAX)
        fail(ErrorCode::data, "token_type_ids of 0 and above",
             fmt::format("{}: {} at place {}", record.where, record.types[i], i),
             "write 0 for the first text and 1 for the second");
    for (size_t i = 0; causal() && !o_.pairs && i < record.types.size(); ++i)
      if (record.types[i] != 0)
        fail(ErrorCode::data, "token_type_ids of 0 alone for a causal language model",
             fmt::format("{}: {} at place {}", record.where, record.types[i], i),
             "leave token_type_ids out");
    for (size_t i = 0; i < n; ++i) tokens_.push_back(static_cast<int32_t>(record.ids[i]));
    types_.assign(record.types.begin(), record.types.end());
    types_.resize(n, 0);
    for (size_t i = 0; labelled && i < n; ++i) {
      const RawLabel& l = record.label[i];
      const auto classes =
          causal()
              ? static_cast<double>(vocabulary_)
              : static_cast<double>(o_.label_names.empty() ? INT32_MAX - 1 : o_.label_names.size());
      if (!l.integer || (l.value != kIgnoredLabel && (l.value < 0 || l.value >= classes)))
        fail(ErrorCode::data,
             causal() ? fmt::format("tokens from 0 to {}, or -100, as labels of input_ids",
                                    vocabulary_ - 1)
             : o_.label_names.empty()
                 ? std::string("ids of 0 and above, or -100, as labels of input_ids")
                 : fmt::format("ids from 0 to {}, or -100, as labels of input_ids",
                               o_.label_names.size() - 1),
             fmt::format("{}: {} at place {}", record.where, l.text, i),
             "write -100 where nothing is to be learned");
      row_labels_.push_back(static_cast<int32_t>(l.value));
      count(row_labels_.back());
    }
    if (causal() && !labelled) row_labels_ = tokens_;
    for (size_t i = 0; i < n && !record.trained.empty(); ++i)
      if (!record.trained[i]) row_labels_[i] = kIgnoredLabel;
    return true;
  }

  void label(const RowRecord& record) {
    const bool class_id = form_.label == RowLabel::class_id;
    // An empty list is a label of several classes, none of which is set.
    if (record.label.empty() && (record.labels != RowRecord::Labels::list || class_id))
      fail(ErrorCode::data, "a label in every row of input_ids",
           fmt::format("{}: none", record.where), "write it under \"label\"");
    if (class_id) {
      class_id_ = labels_.class_of(record.label.front(), record.where);
      count(class_id_);
      return;
    }
    labels_.values_of(record, values_);
    if (labels_.problem() != ProblemType::multi_label) return;
    for (size_t i = 0; i < values_.size(); ++i)
      if (values_[i] >= 0.5f) count(static_cast<int32_t>(i));
  }

  void count(int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) < report_.label_counts.size())
      ++report_.label_counts[static_cast<size_t>(id)];
  }

  void finish() {
    const RowFacts& facts = writer_->facts();
    report_.rows = facts.rows;
    report_.tokens = facts.tokens;
    report_.longest = facts.longest;
    if (report_.rows == 0)
      fail(ErrorCode::data,
           rewarded() ? "a pair of which no answer with its prompt is longer than max_length"
           : single() ? "a record whose prompt leaves room for an answer"
           : o_.pairs ? "a pair whose prompt leaves room for an answer"
                      : "a row with text",
           fmt::format("{} without, the first at {}", report_.empty, report_.first_empty),
           rewarded() ? "raise max_length"
           : o_.pairs ? "raise max_length: the prompt of each fills it"
           : o_.chat  ? "look at its messages"
           : causal() ? "look at its input_ids and its attention_mask"
                      : "name the column of the text with text_column");
    if (wants_labels() && report_.unlabelled == report_.rows)
      fail(ErrorCode::data,
           o_.chat    ? "an assistant's turn to learn in some row"
           : causal() ? "a label that is not -100 behind the first token of some row"
                      : "a label that is not -100 in some row",
           fmt::format("{} rows, {}, the first at {}", report_.rows,
                       o_.chat ? "none of which trains a token" : "all of whose labels are ignored",
                       report_.first_unlabelled),
           o_.chat ? "raise max_length if they are behind it, or look at the roles: assistant"
                   : "raise max_length if the labels are behind it, or correct the labels");
  }

  const std::vector<CorpusFile>& files_;
  const Tokenizer* tokenizer_;
  const RowOptions& o_;
  RowLabels labels_;
  int64_t vocabulary_ = 0;
  Template template_;
  bool blank_words_ = false;

  std::vector<Source> sources_;
  std::optional<Content> content_;
  std::string first_;
  bool any_types_ = false, any_pair_ = false, labels_left_ = false;

  RowForm form_;
  RowReport report_;
  std::optional<RowFileWriter> writer_;
  std::vector<int32_t> first_ids_, second_ids_, tokens_, types_, row_labels_;
  int32_t class_id_ = kIgnoredLabel;
  std::vector<float> values_;
};

}  // namespace

RowReport write_rows(const std::vector<CorpusFile>& files, const Tokenizer* tokenizer,
                     const RowOptions& options, const std::string& out,
                     const std::function<void(int64_t)>& progress) {
  Reader reader(files, tokenizer, options);
  reader.survey();
  return reader.write(out, rows_fingerprint(files, tokenizer, options), progress);
}

uint64_t rows_fingerprint(const std::vector<CorpusFile>& files, const Tokenizer* tokenizer,
                          const RowOptions& options) {
  const RowOptions& o = options;
  Fingerprint all;
  const auto add = [&](const std::string& part) {
    all.add(fmt::format("{} {} ", part.size(), part));
  };
  add(fingerprint_text(corpus_fingerprint(files, {.text_column = "", .quotes = o.quotes})));
  for (const CorpusFile& file : files) add(file.named || has_row_name(file.path) ? "y" : "n");
  for (const CorpusFile& file : files) add(std::to_string(static_cast<int>(row_form(file.path))));
  for (const std::string& column : {o.text_column, o.text_pair_column, o.label_column}) add(column);
  for (const std::string& name : o.label_names) add(name);
  for (const int64_t number :
       {static_cast<int64_t>(o.kind), o.header ? int64_t{*o.header} : 2, int64_t{o.labels},
        o.max_length, static_cast<int64_t>(o.problem_type), o.vocab_size, int64_t{o.places},
        int64_t{o.marked}, o.front.asked ? o.front.count : -o.front.count})
    add(std::to_string(number));
  if (o.chat) add(fingerprint_text(o.chat->fingerprint()));
  if (o.pairs) add("pairs " + fingerprint_text(o.pairs->fingerprint()));
  if (tokenizer) {
    add(fingerprint_text(tokenizer->fingerprint()));
    const int32_t mark = -1;
    for (const TokenSequence& s : {tokenizer->with_special_tokens({&mark, 1}),
                                   tokenizer->with_special_tokens({&mark, 1}, {&mark, 1})})
      for (size_t i = 0; i < s.ids.size(); ++i) add(fmt::format("{}:{}", s.ids[i], s.type_ids[i]));
  }
  return all.digest();
}

}  // namespace snug
