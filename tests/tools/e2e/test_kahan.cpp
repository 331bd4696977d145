// Runs of bf16 weights in two numbers (optim/kahan.h): where states rest and where a run was stopped is
// nothing to what it learns; the plan counts two bytes a parameter more; and no other run goes on from it.
#include <gtest/gtest.h>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

using Keys = std::vector<std::string>;

class Kahan : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Kahan, testing::Values("optim=adamw_bf16", "optim=lamb_bf16"),
                         [](const auto& i) { return std::string(i.param).substr(6, 4); });

TEST_P(Kahan, AnyRunLearnsTheSame) {
  const Workspace w;
  const Keys plain = {"precision=bf16",
                      "allow=[no_master,bf16_gradients]",
                      GetParam(),
                      "per_device_train_batch_size=3",
                      "head_rows=64",
                      "save_steps=4",
                      "lr_scheduler_type=constant"};
  const Keys base = joined(plain, {"optim_args=use_kahan_summation=true"});
  const Outcome run = w.trained("whole", joined(base, {"max_steps=8"}));
  expect_planned_is_measured(w, "whole");
  EXPECT_NE(run.out.find("bf16 weights without a master, with a compensation, optimizer states in "
                         "bf16, 6 B a parameter"),
            std::string::npos)
      << run.out;
  w.trained("random", joined(plain, {"max_steps=8"}));
  const auto state = [&](const char* name) {
    return w.json(std::string(name) + "/plan.json")["categories"]["optimizer"].get<int64_t>();
  };
  EXPECT_EQ(state("whole") * 2, state("random") * 3);
  w.trained("resumed", joined(base, {"max_steps=4"}));
  w.trained("resumed", joined(base, {"max_steps=8", "resume=latest"}));
  w.trained("host", joined(base, {"max_steps=8", "offload_optimizer=cpu"}));
  expect_planned_is_measured(w, "host");
  for (const char* name : {"resumed", "host"})
    for (const char* file : {"/final/model.safetensors", "/checkpoint-8/optimizer.safetensors"})
      EXPECT_TRUE(slurp(w.path(std::string(name) + file)) ==
                  slurp(w.path(std::string("whole") + file)))
          << name << file;
  const Outcome other = w.train("resumed", joined(plain, {"max_steps=12", "resume=latest"}));
  EXPECT_EQ(other.code, 2) << other.out << other.err;
  EXPECT_NE(other.err.find("optimizer states without compensation in"), std::string::npos)
      << other.err;
  const Outcome more = w.train("random", joined(base, {"max_steps=12", "resume=latest"}));
  EXPECT_EQ(more.code, 2) << more.out << more.err;
  EXPECT_NE(more.err.find("optimizer states with compensation in"), std::string::npos) << more.err;
  EXPECT_NE(more.err.find("none, of a run without use_kahan_summation"), std::string::npos)
      << more.err;
}

}  // namespace
}  // namespace snug::e2e
