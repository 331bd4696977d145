// What the labels of rows mean: which problem they pose, and the classes that they name.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/data/row_record.h"

namespace snug {

// Sees all labels, settles what they mean, then reads them one by one.
class RowLabels {
 public:
  static constexpr size_t kMostClasses = 65536;
  static constexpr size_t kMostBytes = 256;  // of a label's name

  explicit RowLabels(const RowOptions& options) : options_(options) {}

  void see(const RowRecord& record);  // throws data for a name of more than kMostBytes
  // Throws data for labels that cannot be of the problem that is asked for, or too many classes.
  void settle();

  ProblemType problem() const { return problem_; }
  int64_t values() const { return values_; }  // K of regression and multi-label
  const std::vector<std::string>& names() const { return names_; }
  const std::string& assumed() const { return assumed_; }

  // The class of a label, -100 of the integer -100 that names none. Throws data for others.
  int32_t class_of(const RawLabel& label, const std::string& where) const;
  // out[0, K). Throws data for labels that are none of the problem, or another number of them.
  void values_of(const RowRecord& record, std::vector<float>& out) const;

 private:
  bool given() const { return !options_.label_names.empty(); }
  void settle_classes();
  [[noreturn]] void fail_empty() const;
  std::string examples() const;

  const RowOptions& options_;
  ProblemType problem_ = ProblemType::automatic;
  int64_t values_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::string assumed_;
  bool hot_ = false;  // multi-label: a number for each class, and not the classes that are set

  // What was seen.
  std::set<std::string> texts_;
  std::set<int64_t> integers_;
  bool any_ = false, words_ = false, fractions_ = false, shares_ = true;
  int64_t length_ = -1;  // of all lists; -2: they differ
  std::string first_list_, first_single_, first_word_, first_other_length_, overflow_;
};

}  // namespace snug
