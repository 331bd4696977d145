// The learning rate of a run: that of the schedule, step by step, and what is said before a run
// whose rate is 0, or whose warm-up does not end, and at a resume after which it jumps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kQuiet = {"eval_fraction=0"};

std::vector<double> rates(const Workspace& w, const std::string& name) {
  std::vector<double> list;
  for (const Json& line : w.metrics(name))
    if (line.contains("learning_rate")) list.push_back(line["learning_rate"].get<double>());
  return list;
}

// All weights of a checkpoint, as they lie in its file.
std::vector<float> weights(const Workspace& w, const std::string& checkpoint) {
  const std::string bytes = slurp(w.path(checkpoint + "/model.safetensors"));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::vector<float> values((bytes.size() - 8 - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + 8 + header, values.size() * sizeof(float));
  return values;
}

struct Schedule {
  const char* type;
  const char* warmup;
  std::vector<double> factors;  // of get_scheduler in transformers 5.24, before its step() 1 to 8
};

const std::vector<Schedule> kSchedules = {
    {"linear", "3", {0, 1.0 / 3, 2.0 / 3, 1, 0.8, 0.6, 0.4, 0.2}},
    {"cosine", "2", {0, 0.5, 1, 0.9330127019, 0.75, 0.5, 0.25, 0.0669872981}},
    {"cosine",
     "0",
     {1, 0.9619397663, 0.8535533906, 0.6913417162, 0.5, 0.3086582838, 0.1464466094, 0.0380602337}},
    {"constant_with_warmup", "4", {0, 0.25, 0.5, 0.75, 1, 1, 1, 1}},
};

TEST(Rates, AreThoseOfTransformers) {
  const Workspace w;
  for (const Schedule& s : kSchedules) {
    w.trained("run", joined(kQuiet, {"max_steps=8", "overwrite=true",
                                     std::string("lr_scheduler_type=") + s.type,
                                     std::string("warmup_steps=") + s.warmup}));
    const std::vector<double> seen = rates(w, "run");
    ASSERT_EQ(seen.size(), s.factors.size());
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_NEAR(seen[i], 0.01 * s.factors[i], 1e-9) << s.type << " step " << i + 1;
  }
}

// Plain SGD moves the weights by the rate times the gradient, whose norm is logged.
TEST(Rates, AreWhatMovesTheWeights) {
  const Workspace w;
  const Schedule& s = kSchedules[0];
  w.trained("run", joined(kQuiet, {"max_steps=8", "save_steps=1", "optim=sgd", "weight_decay=0",
                                   "max_grad_norm=0", "learning_rate=0.1", "warmup_steps=3",
                                   "lr_scheduler_type=linear"}));
  const std::vector<Json> lines = w.metrics("run");
  std::vector<float> before = weights(w, "run/checkpoint-1");
  for (size_t step = 2; step <= 8; ++step) {
    const std::vector<float> after = weights(w, "run/checkpoint-" + std::to_string(step));
    double square = 0;
    for (size_t i = 0; i < after.size(); ++i)
      square += std::pow(static_cast<double>(after[i]) - static_cast<double>(before[i]), 2);
    const double expected = 0.1 * s.factors[step - 1] * lines[step - 1]["grad_norm"].get<double>();
    EXPECT_NEAR(std::sqrt(square), expected, 1e-3 * expected) << step;
    before = after;
  }
}

TEST(Rates, ARunThatLearnsNothingIsTold) {
  const Workspace w;
  const struct {
    std::vector<std::string> keys;
    const char* said;
  } rows[] = {
      {{"learning_rate=0"},
       "nothing will be learned: the learning rate is 0 (learning_rate: 0 (command line))"},
      {{"max_steps=1", "warmup_steps=1"},
       "nothing will be learned: the warm-up takes all of the run's 1 steps (warmup_steps: 1 "
       "(command line)), and begins at 0"},
      {{"max_steps=2", "warmup_steps=5"},
       "the warm-up takes all of the run's 2 steps (warmup_steps: 5 (command line)): the learning "
       "rate rises to 0.002 and not to 0.01"},
  };
  for (const auto& row : rows) {
    const std::string said = std::string("Warning: ") + row.said + ".\n";
    const Outcome o =
        w.trained("run", joined(joined({"max_steps=2", "overwrite=true"}, kQuiet), row.keys));
    const size_t at = o.out.find(said);
    ASSERT_NE(at, std::string::npos) << o.out << "\nlacks " << said;
    EXPECT_LT(at, o.out.find("step      1")) << "before the start";
    const Outcome plan = run(joined(
        {"plan", "model=gpt2", "max_steps=2", "learning_rate=0.01", "memory=8GiB"}, row.keys));
    EXPECT_NE(plan.out.find(said), std::string::npos) << plan.out << plan.err;
  }
  const Outcome usual = w.trained("run", joined(kQuiet, {"max_steps=2", "overwrite=true"}));
  EXPECT_EQ(usual.out.find("Warning"), std::string::npos) << usual.out;
}

TEST(Rates, ARateThatJumpsAtAResumeIsTold) {
  const Workspace w;
  const std::vector<std::string> linear =
      joined(kQuiet, {"lr_scheduler_type=linear", "warmup_steps=0", "learning_rate=1e-3"});
  const std::string jumps = "the learning rate jumps";
  EXPECT_EQ(w.trained("run", joined(linear, {"max_steps=10"})).out.find(jumps), std::string::npos);
  const Outcome longer = w.trained("run", joined(linear, {"max_steps=20", "resume=latest"}));
  EXPECT_NE(longer.out.find("Note: the learning rate jumps from 0.0001 at step 10 to 0.0005 at "
                            "step 11.\n"),
            std::string::npos)
      << longer.out;
  const std::vector<double> seen = rates(w, "run");
  ASSERT_EQ(seen.size(), 20u);
  EXPECT_NEAR(seen[9], 1e-4, 1e-10);
  EXPECT_NEAR(seen[10], 5e-4, 1e-10);
  // Of the same schedule, and of one that goes on as it was, there is nothing to say.
  const std::vector<std::string> still = joined(kQuiet, {"lr_scheduler_type=constant"});
  w.trained("still", joined(still, {"max_steps=4"}));
  for (const char* steps : {"max_steps=8", "max_steps=10"}) {
    const Outcome o = w.trained("still", joined(still, {steps, "resume=latest"}));
    EXPECT_EQ(o.out.find(jumps), std::string::npos) << o.out;
  }
}

// A group without a rate keeps its weights while the others learn; a resume says what changed.
TEST(Rates, GroupsHaveTheirOwn) {
  const Workspace w;
  const std::vector<std::string> still = {
      "param_groups=[{params: 'wpe|\\.bias$', learning_rate: 0}]", "save_steps=6"};
  const Outcome six = w.trained("six", joined(still, {"max_steps=6"}));
  EXPECT_NE(six.err.find("param_groups: 14 parameters ("), std::string::npos) << six.err;
  w.trained("twelve", still);
  const SafetensorsFolder a(w.path("six/final")), b(w.path("twelve/final"));
  int equal = 0, other = 0;
  for (const SafeTensor* t : a.tensors()) {
    const SafeTensor& u = b.at(t->name);
    const bool same = std::memcmp(t->data, u.data, static_cast<size_t>(t->bytes)) == 0;
    const bool kept =
        t->name.find("wpe") != std::string::npos || t->name.find(".bias") != std::string::npos;
    EXPECT_EQ(same, kept) << t->name;
    ++(same ? equal : other);
  }
  EXPECT_GT(equal, 10);
  EXPECT_GT(other, 10);
  const Outcome on = w.trained("six", {"resume=latest", "max_steps=12"});
  EXPECT_NE((on.out + on.err).find("param_groups null instead of [{params: "), std::string::npos)
      << on.out << on.err;
}

}  // namespace
}  // namespace snug::e2e
