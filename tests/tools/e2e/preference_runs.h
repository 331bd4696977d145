// Runs that learn pairs beside a small model, which is their reference.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {

class PreferenceRuns : public testing::Test {
 protected:
  PreferenceRuns() {
    w_.trained("base", {"max_steps=8"});
    std::string pairs;
    for (int i = 0; i < 12; ++i)
      pairs += Json({{"prompt", sentences(1, static_cast<unsigned>(i)).substr(0, 16)},
                     {"chosen", " the cat"},
                     {"rejected", i % 2 == 0 ? " a dog sees it and runs" : " no"}})
                   .dump() +
               "\n";
    spill(w_.path("pairs.jsonl"), pairs);
  }
  std::vector<std::string> with(const std::vector<std::string>& more = {}) const {
    return joined({"model=" + w_.path("base/final"), "tokenizer=null", "task=dpo",
                   "train_data=" + w_.path("pairs.jsonl"), "eval_data=" + w_.path("pairs.jsonl"),
                   "eval_fraction=0", "peft=lora", "lora_r=4", "target_modules=all-linear",
                   "max_length=24", "global_batch_size=6", "learning_rate=0.01"},
                  more);
  }
  // A run with save_steps=5 that lost power after step 5 goes on under another policy: the same bits.
  void expect_goes_on(const std::string& whole, const std::string& parts,
                      const std::vector<std::string>& keys, const std::string& weights) const {
    lose_power_after(w_, whole, parts, 5);
    w_.trained(parts, with(joined(keys, {"resume=latest", "recompute=block"})));
    EXPECT_EQ(w_.curve(whole), w_.curve(parts));
    EXPECT_TRUE(slurp(w_.path(whole + "/final/" + weights)) ==
                slurp(w_.path(parts + "/final/" + weights)));
  }
  Workspace w_;
};

}  // namespace snug::e2e
