// What must not change the numbers of a run, and what may by rounding only.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

// fp32 sums of up to some hundred terms of both signs, taken in another order, differ by some
// hundred epsilon of 6e-8; five steps of a rate of 0.01 carry that on.
constexpr double kOrderOfSums = 1e-5;

void expect_close(const Workspace& w, const std::string& a, const std::string& b) {
  const std::vector<Json> left = w.metrics(a), right = w.metrics(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
      if (!left[i].contains(key)) continue;
      EXPECT_NEAR(left[i][key].get<double>(), right[i][key].get<double>(),
                  kOrderOfSums * left[i][key].get<double>())
          << key << " of line " << i << " of " << b;
    }
  }
}

// Dropout is on: its bits belong to the sample, whatever micro-batch the sample is in.
TEST(Batches, AccumulationEqualsTheWholeBatch) {
  const Workspace w;
  w.trained("6", {"max_steps=5", "per_device_train_batch_size=6"});
  for (const char* size : {"3", "2", "1"}) {
    w.trained(size, {"max_steps=5", std::string("per_device_train_batch_size=") + size});
    EXPECT_EQ(w.json(std::string(size) + "/plan.json")["decisions"]["micro_batch"],
              std::stoi(size));
    expect_close(w, "6", size);
    EXPECT_LT(w.json(std::string(size) + "/plan.json")["engine_bytes"],
              w.json("6/plan.json")["engine_bytes"]);
  }
  w.trained("steps", {"max_steps=5", "gradient_accumulation_steps=3"});
  EXPECT_EQ(w.curve("steps"), w.curve("2"));
}

// One sample, and weights that do not move: what differs from step to step is what was dropped.
TEST(Batches, EveryStepDropsSomethingElse) {
  const Workspace w;
  spill(w.path("one.bin"), raw_tokens(numbered_tokens(33, 200)));
  const std::vector<std::string> keys = {"train_data=" + w.path("one.bin"),
                                         "eval_fraction=0",
                                         "max_length=32",
                                         "global_batch_size=1",
                                         "max_steps=4",
                                         "learning_rate=1e-30",
                                         "lr_scheduler_type=constant",
                                         "weight_decay=0"};
  for (const char* p : {"0", "0.3"}) {
    std::vector<std::string> more = keys;
    for (const char* key : {"model.resid_pdrop=", "model.embd_pdrop=", "model.attn_pdrop="})
      more.push_back(std::string(key) + p);
    w.trained(p, more);
    const std::vector<double> losses = w.losses(p);
    ASSERT_EQ(losses.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
      for (size_t k = 0; k < i; ++k)
        EXPECT_EQ(losses[i] == losses[k], p == std::string("0")) << i << " " << k << " " << p;
  }
}

TEST(SlowBatches, ThreadsDoNotChangeABit) {
  const Workspace w;
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string one = std::string("one-") + precision, two = std::string("two-") + precision;
    const std::string key = std::string("precision=") + precision;
    w.trained(one, {key, "max_length=64"});
    w.trained(two, {key, "max_length=64", "threads=2"});
    EXPECT_EQ(w.curve(one), w.curve(two));
    EXPECT_TRUE(slurp(w.path(one + "/final/model.safetensors")) ==
                slurp(w.path(two + "/final/model.safetensors")));
    EXPECT_EQ(w.json(two + "/memory.json")["allocations_after_start"], no_allocations());
  }
}

TEST(Batches, RecomputeDoesNotChangeABit) {
  const Workspace w;
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string base = std::string("none-") + precision;
    const std::string key = std::string("precision=") + precision;
    w.trained(base, {key, "recompute=none"});
    for (const char* policy :
         {"norms", "norms+mlp", "norms+mlp+attention", "block", "{1: block}"}) {
      const std::string name = std::string(policy) + precision;
      w.trained(name, {key, std::string("recompute=") + policy});
      EXPECT_EQ(w.curve(base), w.curve(name)) << policy;
      EXPECT_TRUE(slurp(w.path(base + "/final/model.safetensors")) ==
                  slurp(w.path(name + "/final/model.safetensors")))
          << policy;
      EXPECT_NE(w.json(base + "/plan.json")["hash"], w.json(name + "/plan.json")["hash"]);
    }
  }
}

TEST(Batches, TheSeedMatters) {
  const Workspace w;
  w.trained("a");
  w.trained("b", {"seed=7"});
  w.trained("c", {"data_seed=7"});
  w.trained("zero", {"data_seed=0"});  // a seed like any other
  w.trained("d");
  EXPECT_NE(w.losses("a"), w.losses("b"));
  EXPECT_NE(w.losses("a"), w.losses("c"));
  EXPECT_NE(w.losses("a"), w.losses("zero"));
  EXPECT_EQ(w.curve("a"), w.curve("d"));
}

}  // namespace
}  // namespace snug::e2e
