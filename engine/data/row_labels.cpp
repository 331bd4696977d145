#include "engine/data/row_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

bool is_ignored(const RawLabel& label) {
  return label.integer && label.value == kIgnoredLabel;
}

}  // namespace

ProblemType parse_problem_type(const std::string& word) {
  if (word == "auto") return ProblemType::automatic;
  for (const ProblemType type :
       {ProblemType::regression, ProblemType::single_label, ProblemType::multi_label})
    if (word == to_string(type)) return type;
  fail(ErrorCode::usage,
       "problem_type as auto, regression, single_label_classification or "
       "multi_label_classification",
       fmt::format("\"{}\"", word), "leave it out: the labels tell");
}

const char* to_string(ProblemType type) {
  switch (type) {
    case ProblemType::automatic:
      return "auto";
    case ProblemType::regression:
      return "regression";
    case ProblemType::single_label:
      return "single_label_classification";
    case ProblemType::multi_label:
      return "multi_label_classification";
  }
  fail(ErrorCode::internal, "a problem type", "another", "report this");
}

void RowLabels::see(const RowRecord& record) {
  if (record.labels == RowRecord::Labels::none) return;
  any_ = true;
  const bool list = record.labels == RowRecord::Labels::list;
  std::string& first = list ? first_list_ : first_single_;
  if (first.empty()) first = record.where;
  const auto length = static_cast<int64_t>(record.label.size());
  if (list && length_ == -1) length_ = length;
  if (list && length_ != length && first_other_length_.empty()) {
    first_other_length_ = record.where;
    length_ = -2;
  }
  for (const RawLabel& label : record.label) {
    shares_ = shares_ && label.number && label.value >= 0 && label.value <= 1;
    if (is_ignored(label)) continue;
    if (!label.number && first_word_.empty()) first_word_ = record.where;
    words_ = words_ || !label.number;
    fractions_ = fractions_ || (label.number && !label.integer);
    if (label.text.size() > kMostBytes)
      fail(ErrorCode::data, fmt::format("labels of at most {} bytes", kMostBytes),
           fmt::format("{}: one of {}: {}...", record.where, label.text.size(),
                       beginning_utf8(label.text, 40)),
           "name the column of the labels with label_column; this one looks like text");
    if (given() || !overflow_.empty()) continue;
    texts_.insert(label.text);
    if (label.integer) integers_.insert(static_cast<int64_t>(label.value));
    if (texts_.size() > kMostClasses) overflow_ = record.where;
  }
}

void RowLabels::settle() {
  problem_ = options_.problem_type;
  const bool tokens = options_.kind == RowKind::tokens;
  if (tokens) {
    problem_ = ProblemType::single_label;
  } else if (problem_ == ProblemType::automatic) {
    if (!first_list_.empty())
      problem_ = ProblemType::multi_label;
    else if (options_.label_names.size() == 1 || (fractions_ && !words_ && !given()))
      problem_ = ProblemType::regression;
    else
      problem_ = ProblemType::single_label;
  }
  if (!tokens && !first_list_.empty() && !first_single_.empty())
    fail(ErrorCode::data, "lists as labels in every row, or in none",
         fmt::format("a list at {} and none at {}", first_list_, first_single_),
         "write all labels alike");
  if (!tokens && problem_ == ProblemType::single_label && !first_list_.empty())
    fail(ErrorCode::data, "one label in every row (single_label_classification)",
         fmt::format("{}: a list", first_list_),
         "set problem_type to multi_label_classification, or leave it out");
  if (problem_ == ProblemType::regression) {
    if (words_)
      fail(ErrorCode::data, "numbers as labels of a regression",
           fmt::format("{}: a word", first_word_),
           "name the column of the numbers with label_column, or set problem_type to "
           "single_label_classification");
    if (length_ == -2)
      fail(ErrorCode::data, "as many numbers in every row's label",
           fmt::format("another number of them at {}", first_other_length_), "complete the labels");
    values_ = first_list_.empty() ? 1 : length_;
    if (values_ == 0) fail_empty();
    if (given() && static_cast<int64_t>(options_.label_names.size()) != values_)
      fail(ErrorCode::data,
           fmt::format("{} numbers in a label, as there are names of labels",
                       options_.label_names.size()),
           fmt::format("{} in {}", values_, first_list_.empty() ? first_single_ : first_list_),
           "use the model that these labels are for, or correct id2label");
    names_ = options_.label_names;
    return;
  }
  if (problem_ == ProblemType::multi_label) {
    hot_ = !first_list_.empty() && length_ >= 1 && shares_ &&
           (!given() || static_cast<int64_t>(options_.label_names.size()) == length_);
    if (hot_) {
      values_ = length_;
      names_ = options_.label_names;
      assumed_ = fmt::format("a list of {0} numbers as label is one number for each of {0} classes",
                             length_);
      return;
    }
  }
  settle_classes();
  if (problem_ != ProblemType::multi_label) return;
  values_ = static_cast<int64_t>(names_.size());
  if (values_ == 0 && any_) fail_empty();
}

void RowLabels::fail_empty() const {
  fail(ErrorCode::data, "something in the label of some row",
       fmt::format("empty lists, the first at {}", first_list_),
       "name the key of the labels with label_column");
}

std::string RowLabels::examples() const {
  std::string list;
  for (const std::string& name : names_) {
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", beginning_utf8(name, 40));
    if (list.size() > 200) return list + " ...";
  }
  return list;
}

void RowLabels::settle_classes() {
  if (!overflow_.empty())
    fail(ErrorCode::data, fmt::format("at most {} different labels", kMostClasses),
         fmt::format("more, at {}", overflow_),
         "name the column of the labels with label_column, or set problem_type to regression");
  const bool integers = !words_ && !fractions_;
  if (given()) {
    names_ = options_.label_names;
  } else if (integers) {
    for (const int64_t v : integers_) names_.push_back(fmt::format("{}", v));
    if (!integers_.empty() &&
        (*integers_.begin() != 0 || *integers_.rbegin() != static_cast<int64_t>(names_.size()) - 1))
      assumed_ = fmt::format("the labels {} are the classes 0 to {}, in this order", examples(),
                             names_.size() - 1);
  } else {
    names_.assign(texts_.begin(), texts_.end());
  }
  for (size_t i = 0; i < names_.size(); ++i)
    if (!ids_.emplace(names_[i], static_cast<int32_t>(i)).second)
      fail(ErrorCode::data, "names of labels that differ (id2label)",
           fmt::format("\"{}\" twice", beginning_utf8(names_[i], 40)), "give each class its name");
}

int32_t RowLabels::class_of(const RawLabel& label, const std::string& where) const {
  if (const auto at = ids_.find(label.text); at != ids_.end()) return at->second;
  if (label.number && label.value == std::floor(label.value) && std::abs(label.value) < 0x1p53) {
    const auto number = static_cast<int64_t>(label.value);
    if (const auto at = ids_.find(fmt::format("{}", number)); at != ids_.end()) return at->second;
    if (number == kIgnoredLabel) return kIgnoredLabel;
    if (given() && number >= 0 && number < static_cast<int64_t>(names_.size()))
      return static_cast<int32_t>(number);
  }
  const std::vector<std::string_view> known(names_.begin(), names_.end());
  fail(ErrorCode::data,
       fmt::format("one of the {} labels {}{}", names_.size(), examples(),
                   given() ? ", or its number from 0" : ""),
       fmt::format("{}: \"{}\"", where, beginning_utf8(label.text, 80)),
       suggestion(label.text, known,
                  "correct the label, leave the row out, or train on rows that have them all"));
}

void RowLabels::values_of(const RowRecord& record, std::vector<float>& out) const {
  if (problem_ == ProblemType::regression || hot_) {
    require(static_cast<int64_t>(record.label.size()) == values_,
            "labels of one length, as settled");
    out.clear();
    for (const RawLabel& label : record.label) out.push_back(static_cast<float>(label.value));
    return;
  }
  out.assign(static_cast<size_t>(values_), 0.0f);
  for (const RawLabel& label : record.label) {
    const int32_t id = class_of(label, record.where);
    if (id >= 0) out[static_cast<size_t>(id)] = 1.0f;
  }
}

}  // namespace snug
