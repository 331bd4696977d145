// Metrics against scikit-learn 1.9.1 (accuracy_score, f1_score, matthews_corrcoef) and scipy 1.17.1
// (pearsonr, spearmanr).
#include <gtest/gtest.h>

#include <cmath>

#include "layers/tasks/metrics.h"
#include "layers/tasks/preference.h"

namespace snug {
namespace {

ModelSpec spec_of(HeadKind head, Problem problem, size_t labels) {
  ModelSpec spec;
  spec.head = head;
  spec.problem = problem;
  spec.labels.resize(labels);
  return spec;
}

void expect(const Metrics& metrics, std::initializer_list<Metric> want) {
  const MetricList got = metrics.values();
  ASSERT_EQ(static_cast<size_t>(got.count), want.size());
  for (const Metric& w : want) EXPECT_NEAR(got.at(w.name), w.value, 1e-12) << w.name;
  const Metric* m = got.begin();
  for (const Metric& w : want) {
    EXPECT_EQ(m->name, w.name);
    EXPECT_NEAR(m->value, w.value, 1e-12) << w.name;
    ++m;
  }
}

void add_classes(Metrics& metrics, size_t K, const std::vector<int>& labels,
                 const std::vector<int>& guesses) {
  for (size_t i = 0; i < labels.size(); ++i) {
    std::vector<float> logits(K, -1.0f);
    logits[static_cast<size_t>(guesses[i])] = 0.5f;
    metrics.add(logits, labels[i]);
  }
  metrics.add(std::vector<float>(K, 0.0f), -100);
}

TEST(Metrics, TwoClasses) {
  Metrics m(spec_of(HeadKind::sequence_classification, Problem::single_label, 2), 0);
  EXPECT_EQ(m.values().count, 0);
  for (int round = 0; round < 2; ++round) {  // cleared, it begins anew
    m.clear();
    add_classes(m, 2, {1, 0, 1, 1, 0, 1, 0, 0, 1, 1}, {1, 0, 0, 1, 1, 1, 0, 0, 1, 0});
    expect(m, {{"accuracy", 0.7},
               {"f1", 0.7272727272727273},
               {"matthews_correlation", 0.408248290463863}});
  }
}

TEST(Metrics, FourClassesAndTokens) {
  const std::vector<int> labels = {0, 1, 2, 2, 1, 0, 3, 3, 0, 1, 2},
                         guesses = {0, 2, 2, 2, 1, 1, 3, 0, 0, 1, 1};
  Metrics m(spec_of(HeadKind::sequence_classification, Problem::single_label, 4), 0);
  add_classes(m, 4, labels, guesses);
  expect(m, {{"accuracy", 0.6363636363636364},
             {"f1", 0.6428571428571428},
             {"matthews_correlation", 0.5114957546028551}});
  Metrics tokens(spec_of(HeadKind::token_classification, Problem::single_label, 4), 0);
  add_classes(tokens, 4, labels, guesses);
  expect(tokens, {{"accuracy", 0.6363636363636364}});
}

TEST(Metrics, SeveralLabels) {
  Metrics m(spec_of(HeadKind::sequence_classification, Problem::multi_label, 3), 0);
  const float labels[4][3] = {{1, 0, 1}, {0, 0, 1}, {1, 1, 0}, {0, 1, 1}};
  const float logits[4][3] = {{1, -2, 3}, {0.5, -1, 1}, {2, -1, -1}, {-1, 1, 4}};
  for (int i = 0; i < 4; ++i)
    m.add(std::span<const float>(logits[i]), std::span<const float>(labels[i]));
  const float nothing[3] = {std::nanf(""), 0, 0};
  m.add(std::span<const float>(logits[0]), std::span<const float>(nothing));
  expect(m, {{"accuracy", 0.5}, {"f1", 0.8571428571428571}});
  // A probability of one half exactly is no label, as torch.round has it.
  const float half[3] = {1, 0, 1};
  m.add(std::span<const float>(half), std::span<const float>(labels[0]));
  expect(m, {{"accuracy", 0.6}, {"f1", 16.0 / 18.0}});
}

TEST(Metrics, Regression) {
  Metrics m(spec_of(HeadKind::sequence_classification, Problem::regression, 1), 8);
  const float a[] = {0.5, 1.25, -0.75, 3, 2, 2, 0.125}, b[] = {0.25, 1.5, 0, 2.5, 2.5, 1, -0.5};
  for (int i = 0; i < 7; ++i) m.add(std::span(a + i, 1), std::span(b + i, 1));
  expect(m, {{"pearson", 0.8691616177592719}, {"spearman", 0.8818181818181818}});
  m.clear();
  m.add(std::span(a, 1), std::span(b, 1));
  m.add(std::span(a, 1), std::span(b + 1, 1));
  expect(m, {{"pearson", 0}, {"spearman", 0}});  // what does not vary
}

// What can be asked for is what comes.
TEST(Metrics, NamesAreThoseOfTheValues) {
  for (const HeadKind head : {HeadKind::sequence_classification, HeadKind::token_classification})
    for (const Problem problem :
         {Problem::single_label, Problem::multi_label, Problem::regression}) {
      const ModelSpec spec = spec_of(head, problem, 2);
      Metrics m(spec, 2);
      const std::vector<float> logits = {0.5f, -1.0f}, values = {1.0f, 0.0f};
      if (head == HeadKind::token_classification || problem == Problem::single_label)
        m.add(logits, 0);
      else
        m.add(logits, values);
      const MetricList got = m.values();
      const auto names = metric_names(spec);
      ASSERT_EQ(static_cast<size_t>(got.count), names.size());
      for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(got.list[i].name, names[i]);
    }
  for (const HeadKind head : {HeadKind::causal_lm, HeadKind::masked_lm}) {
    EXPECT_FALSE(has_metrics(head));
    EXPECT_TRUE(metric_names(spec_of(head, Problem::single_label, 2)).empty());
  }
}

// Rewards of pairs, batch after batch: the least and the greatest are those of all, on either side of 0.
TEST(Metrics, RewardsOfSeveralBatches) {
  const auto batch = [](std::vector<float> rewards, std::vector<float> margins) {
    const auto view = [](std::vector<float>& v) {
      View x;
      x.data = v.data();
      x.shape = {static_cast<int64_t>(v.size())};
      x.place = Place::cpu;
      x.name = Name("test");
      return x;
    };
    PreferenceSums sums;
    sums.add_rewards(view(rewards), view(margins));
    return sums;
  };
  const auto expect_means = [](const PreferenceSums& all, std::initializer_list<Metric> want) {
    const MetricList got = all.means(PreferenceForm::rewards);
    ASSERT_EQ(static_cast<size_t>(got.count), want.size());
    for (const Metric& w : want) EXPECT_NEAR(got.at(w.name), w.value, 1e-12) << w.name;
  };
  const float none = std::nanf("");
  for (const float sign : {1.0f, -1.0f}) {
    SCOPED_TRACE(sign);
    PreferenceSums all;
    all.add(PreferenceSums());
    all.add(batch({3 * sign, 1 * sign, 0.25f, 0.75f}, {0, 0, none, none}));
    all.add(batch({none, none}, {none, none}));
    all.add(batch({0.5f * sign, 2.5f * sign, 1.5f * sign, 0.75f * sign}, {0, 0, 0, 0}));
    const bool up = sign > 0;
    expect_means(all, {{"accuracy", up ? 2.0 / 3 : 1.0 / 3},
                       {"margin", 0.75 / 3 * sign},
                       {"mean_reward", 9.25 / 6 * sign},
                       {"min_reward", up ? 0.5 : -3.0},
                       {"max_reward", up ? 3.0 : -0.5}});
  }
}

}  // namespace
}  // namespace snug
