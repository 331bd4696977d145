// Planned is measured, to the byte, over sizes, batches, lengths, policies and precisions.
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

TEST(SlowMatrix, PlannedIsMeasured) {
  const Workspace w;
  const char* const models[] = {
      "{type: gpt2, n_layer: 1, n_embd: 24, n_head: 3, n_positions: 17}",
      "{type: gpt2, n_layer: 3, n_embd: 40, n_head: 2, n_positions: 96, n_inner: 72}",
      "{type: gpt2, n_layer: 2, n_embd: 128, n_head: 2, n_positions: 300, vocab_size: 1000}",
  };
  const char* const batches[][2] = {{"1", "1"}, {"6", "2"}, {"5", "5"}};
  const char* const policies[] = {"none", "norms+attention", "block", "auto"};
  std::set<int64_t> heights;
  int runs = 0;
  for (const char* model : models) {
    for (const auto& batch : batches) {
      for (const char* policy : policies) {
        // Every other run: the rest of the keys that move memory.
        const bool odd = runs % 2 == 1, third = runs % 3 == 1;
        std::vector<std::string> keys = {std::string("model=") + model,
                                         std::string("global_batch_size=") + batch[0],
                                         std::string("per_device_train_batch_size=") + batch[1],
                                         std::string("recompute=") + policy,
                                         odd ? "precision=bf16" : "precision=fp32",
                                         "max_length=" + std::string(third ? "17" : "16"),
                                         third ? "threads=2" : "threads=1",
                                         "max_steps=3",
                                         "save_steps=2"};
        if (odd) keys.emplace_back("sample_prompt=the cat");
        if (odd) keys.emplace_back("sample_tokens=4");
        if (third) keys.emplace_back("eval_fraction=0");
        if (runs % 5 == 4) keys.emplace_back("head_rows=7");
        if (runs % 5 == 3) keys.emplace_back("optim=sgd");
        const std::string name = "run" + std::to_string(runs++);
        SCOPED_TRACE(name + " " + model + " " + policy);
        w.trained(name, keys);
        expect_planned_is_measured(w, name);
        heights.insert(w.json(name + "/plan.json")["engine_bytes"].get<int64_t>());
      }
    }
  }
  EXPECT_EQ(runs, 36);
  EXPECT_GT(heights.size(), 25u) << "the configurations differ";
}

}  // namespace
}  // namespace snug::e2e
