// What people look at beside the loss: metrics of predictions against labels, as transformers'
// examples and the GLUE benchmark report them.
//
//   single label  accuracy; of two classes F1 of class 1, of more the mean over classes (macro);
//                 Matthews' correlation, of any number of classes (Gorodkin, 2004)
//   multi label   F1 over all decisions (micro, logit above 0), accuracy: rows whose labels all agree
//   regression    Pearson's and Spearman's correlation, the latter with mean ranks of equal values
//   tokens        accuracy
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "layers/parts/spec.h"

namespace snug {

struct Metric {
  std::string_view name;  // "accuracy"
  double value = 0;
};

struct MetricList {
  // Throws internal for a name that is not in it.
  double at(std::string_view name) const;

  std::array<Metric, 12> list{};
  int count = 0;
  void add(std::string_view name, double value) {
    list[static_cast<size_t>(count++)] = {name, value};
  }
  const Metric* begin() const { return list.data(); }
  const Metric* end() const { return list.data() + count; }
};

// False: what a head says is judged by its loss alone (language models).
bool has_metrics(HeadKind head);

// What Metrics::values says of a model, in its order; none of language models.
std::span<const std::string_view> metric_names(const ModelSpec& spec);

// Collects the rows of an evaluation. All memory it will need is taken when it is made.
class Metrics {
 public:
  // `rows`: at most so many are added (read for regression alone).
  Metrics(const ModelSpec& spec, int64_t rows);
  void clear();
  // Logits (K) of a row, and its label or its values (K).
  void add(std::span<const float> logits, int32_t label);
  void add(std::span<const float> logits, std::span<const float> values);
  // None without a row. Correlations of what does not vary are 0.
  MetricList values() const;

 private:
  double spearman() const;

  HeadKind head_;
  Problem problem_;
  int64_t K_, rows_ = 0, right_ = 0;
  std::vector<int64_t> confusion_;  // (K,K): label, prediction
  int64_t true_positive_ = 0, false_positive_ = 0, false_negative_ = 0;
  std::vector<double> predicted_, expected_;  // of regression
  mutable std::vector<int32_t> order_;
  mutable std::vector<double> rank_[2];
};

}  // namespace snug
