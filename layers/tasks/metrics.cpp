#include "layers/tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"

namespace snug {
namespace {

double correlation(std::span<const double> a, std::span<const double> b) {
  const auto n = static_cast<double>(a.size());
  const double ma = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mb = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i] - mb) * (b[i] - mb);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0.0;
}

// Ranks from 1, the mean of those that equal values share.
void ranks(std::span<const double> values, std::vector<int32_t>& order, std::vector<double>& rank) {
  order.resize(values.size());
  rank.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](size_t i) { return values[static_cast<size_t>(order[i])]; };
  std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return values[static_cast<size_t>(x)] < values[static_cast<size_t>(y)];
  });
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && at(end) == at(i)) ++end;
    const double mean = (static_cast<double>(i + 1) + static_cast<double>(end)) / 2;
    for (; i < end; ++i) rank[static_cast<size_t>(order[i])] = mean;
  }
}

double f1(int64_t tp, int64_t fp, int64_t fn) {
  const int64_t all = 2 * tp + fp + fn;
  return all > 0 ? 2 * static_cast<double>(tp) / static_cast<double>(all) : 0.0;
}

// Of a square table (K,K) of labels by predictions.
double matthews(std::span<const int64_t> table, int64_t K) {
  double right = 0, all = 0, products = 0, labels2 = 0, guesses2 = 0;
  for (int64_t k = 0; k < K; ++k) {
    double label = 0, guess = 0;
    for (int64_t j = 0; j < K; ++j) {
      label += static_cast<double>(table[static_cast<size_t>(k * K + j)]);
      guess += static_cast<double>(table[static_cast<size_t>(j * K + k)]);
    }
    right += static_cast<double>(table[static_cast<size_t>(k * K + k)]);
    all += label;
    products += label * guess;
    labels2 += label * label;
    guesses2 += guess * guess;
  }
  const double below = (all * all - guesses2) * (all * all - labels2);
  return below > 0 ? (right * all - products) / std::sqrt(below) : 0.0;
}

}  // namespace

bool has_metrics(HeadKind head) {
  return head == HeadKind::sequence_classification || head == HeadKind::token_classification;
}

std::span<const std::string_view> metric_names(const ModelSpec& spec) {
  static constexpr std::string_view kOfClasses[] = {"accuracy", "f1", "matthews_correlation"},
                                    kOfValues[] = {"pearson", "spearman"};
  const std::span<const std::string_view> classes = kOfClasses;
  if (!has_metrics(spec.head)) return {};
  if (spec.head == HeadKind::token_classification) return classes.first(1);
  switch (spec.problem) {
    case Problem::single_label:
      return classes;
    case Problem::multi_label:
      return classes.first(2);
    case Problem::regression:
      return kOfValues;
  }
  fail(ErrorCode::internal, "a problem that is known", "another", "report this");
}

double MetricList::at(std::string_view name) const {
  for (const Metric& metric : *this)
    if (metric.name == name) return metric.value;
  fail(ErrorCode::internal, "a metric of the task", std::string(name), "report this");
}

Metrics::Metrics(const ModelSpec& spec, int64_t rows)
    : head_(spec.head), problem_(spec.problem), K_(spec.label_count()) {
  const bool numbers =
      head_ == HeadKind::sequence_classification && problem_ == Problem::regression;
  if (!numbers) {
    confusion_.assign(static_cast<size_t>(K_ * K_), 0);
    return;
  }
  const auto n = static_cast<size_t>(rows * K_);
  for (std::vector<double>* v : {&predicted_, &expected_, &rank_[0], &rank_[1]}) v->reserve(n);
  order_.reserve(n);
}

void Metrics::clear() {
  rows_ = right_ = true_positive_ = false_positive_ = false_negative_ = 0;
  std::fill(confusion_.begin(), confusion_.end(), 0);
  predicted_.clear();
  expected_.clear();
}

void Metrics::add(std::span<const float> logits, int32_t label) {
  if (label < 0) return;
  const auto guess = std::max_element(logits.begin(), logits.end()) - logits.begin();
  ++rows_;
  right_ += guess == label;
  ++confusion_[static_cast<size_t>(label * K_ + guess)];
}

void Metrics::add(std::span<const float> logits, std::span<const float> values) {
  if (std::isnan(values[0])) return;
  ++rows_;
  if (problem_ == Problem::regression) {
    for (size_t k = 0; k < logits.size(); ++k) {
      predicted_.push_back(static_cast<double>(logits[k]));
      expected_.push_back(static_cast<double>(values[k]));
    }
    return;
  }
  bool all = true;
  for (size_t k = 0; k < logits.size(); ++k) {
    const bool guess = logits[k] > 0.0f, label = values[k] > 0.5f;
    true_positive_ += guess && label;
    false_positive_ += guess && !label;
    false_negative_ += !guess && label;
    all = all && guess == label;
  }
  right_ += all;
}

double Metrics::spearman() const {
  ranks(predicted_, order_, rank_[0]);
  ranks(expected_, order_, rank_[1]);
  return correlation(rank_[0], rank_[1]);
}

MetricList Metrics::values() const {
  MetricList m;
  if (rows_ == 0) return m;
  const double accuracy = static_cast<double>(right_) / static_cast<double>(rows_);
  if (head_ == HeadKind::token_classification) {
    m.add("accuracy", accuracy);
    return m;
  }
  switch (problem_) {
    case Problem::single_label: {
      m.add("accuracy", accuracy);
      double sum = 0;
      for (int64_t k = 0; k < K_; ++k) {
        int64_t fp = 0, fn = 0;
        const int64_t tp = confusion_[static_cast<size_t>(k * K_ + k)];
        for (int64_t j = 0; j < K_; ++j) {
          fn += confusion_[static_cast<size_t>(k * K_ + j)];
          fp += confusion_[static_cast<size_t>(j * K_ + k)];
        }
        const double one = f1(tp, fp - tp, fn - tp);
        if (K_ != 2 || k == 1) sum += one;
      }
      m.add("f1", K_ == 2 ? sum : sum / static_cast<double>(K_));
      m.add("matthews_correlation", matthews(confusion_, K_));
      break;
    }
    case Problem::multi_label:
      m.add("accuracy", accuracy);
      m.add("f1", f1(true_positive_, false_positive_, false_negative_));
      break;
    case Problem::regression:
      m.add("pearson", correlation(predicted_, expected_));
      m.add("spearman", spearman());
      break;
  }
  return m;
}

}  // namespace snug
