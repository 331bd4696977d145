// What a refusal offers works as it is printed: its keys behind those of the command, with the
// memory that it says is enough, and with no less.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& keys) {
  std::istringstream in(keys);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Words with_memory(const Words& words, int64_t bytes) {
  return joined(words, {"memory=" + std::to_string(bytes)});
}

// A model with enough of everything that something can be won by each kind of change.
const Words kModel = {
    "model={type: gpt2, n_layer: 4, n_embd: 64, n_head: 2, n_positions: 256, resid_pdrop: 0, "
    "embd_pdrop: 0, attn_pdrop: 0}",
    "max_length=128", "eval_fraction=0", "max_steps=2", "save_steps=1"};

// `snug plan --json`, which may be refused.
Json planned(const Workspace& w, const Words& more) {
  Words words = w.train_arguments("planned", more);
  words[0] = "plan";
  words.emplace_back("--json");
  const Outcome outcome = run(words);
  EXPECT_TRUE(outcome.code == 0 || outcome.code == 3) << outcome.err;
  return outcome.out.empty() ? Json::object() : Json::parse(outcome.out);
}

struct Case {
  const char* name;
  Words keys;
  std::string offered;  // one of them
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

class SlowOffers : public testing::TestWithParam<Case> {};

TEST_P(SlowOffers, OfAPlanWorkAsTheyArePrinted) {
  const Workspace w;
  const Words keys = joined(kModel, GetParam().keys);
  const Json refused = planned(w, with_memory(keys, 1 << 20));
  ASSERT_EQ(refused["fits"], false);
  bool seen = false;
  for (const Json& offer : refused["offers"]) {
    const std::string text = offer["keys"];
    SCOPED_TRACE(text);
    seen = seen || text == GetParam().offered;
    const int64_t bytes = offer["minimum_bytes"];
    const Words pasted = joined(keys, split(text));
    const Json enough = planned(w, with_memory(pasted, bytes));
    ASSERT_TRUE(enough.contains("fits"));
    EXPECT_EQ(enough["fits"], true);
    EXPECT_EQ(enough["minimum_bytes"], bytes);
    if (text.find("max_length=") == std::string::npos) {
      EXPECT_EQ(enough["made_for"]["global_batch_size"], refused["made_for"]["global_batch_size"]);
    }
    EXPECT_EQ(planned(w, with_memory(pasted, bytes - 4096))["fits"], false);
  }
  EXPECT_TRUE(seen) << refused["offers"].dump(1);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, SlowOffers,
    testing::Values(Case{"MicroBatch",
                         {"global_batch_size=4", "per_device_train_batch_size=4", "recompute=none"},
                         "per_device_train_batch_size=1"},
                    Case{"Product",
                         {"global_batch_size=null", "per_device_train_batch_size=4",
                          "gradient_accumulation_steps=2"},
                         "per_device_train_batch_size=1 gradient_accumulation_steps=8"},
                    Case{"AccumulationAlone",
                         {"global_batch_size=8", "gradient_accumulation_steps=2"},
                         "per_device_train_batch_size=1 gradient_accumulation_steps=8"},
                    Case{"Tokens",
                         {"global_batch_size=null", "global_batch_tokens=512",
                          "gradient_accumulation_steps=1"},
                         "max_length=64 gradient_accumulation_steps=2"},
                    Case{"TokensAndAll",
                         {"global_batch_size=4", "global_batch_tokens=512",
                          "per_device_train_batch_size=2", "gradient_accumulation_steps=2"},
                         "max_length=64 global_batch_size=8 gradient_accumulation_steps=4"},
                    Case{"OpenMicroBatch",
                         {"global_batch_size=null", "per_device_train_batch_size=1",
                          "gradient_accumulation_steps=4", "max_grad_norm=0", "max_length=16"},
                         "global_batch_size=4 per_device_train_batch_size=null "
                         "gradient_accumulation_steps=null"},
                    Case{"BitwiseBesideAMicroBatch",
                         {"global_batch_size=4", "per_device_train_batch_size=4", "bitwise=true",
                          "tokenizer=null", "model.vocab_size=2048", "train_data=null"},
                         "bitwise=false"}),
    [](const auto& c) { return std::string(c.param.name); });

// A checkpoint's choices are unpinned by what is offered, also where keys say the same.
TEST(SlowOffers, OfAResumedRunWorkAsTheyArePrinted) {
  const Workspace w;
  const Words keys = joined(kModel, {"global_batch_size=null", "per_device_train_batch_size=4",
                                     "gradient_accumulation_steps=1", "head_rows=256"});
  w.trained("run", joined(keys, {"max_steps=1"}));
  const Words resume = joined(keys, {"resume=latest"});
  const Outcome refused = w.train("run", with_memory(resume, 1 << 20));
  ASSERT_EQ(refused.code, 3) << refused.err;
  EXPECT_NE(refused.err.find("for micro-batches of 4 and head chunks of 256 rows, which "),
            std::string::npos)
      << refused.err;
  // "KEYS (then memory of N B, SIZE, is enough..." on a line of its own.
  const std::string then = " (then memory of ";
  int offers = 0;
  bool unpinned = false;
  for (size_t at = refused.err.find(then); at != std::string::npos;
       at = refused.err.find(then, at + 1)) {
    const std::string before = "\n           ";
    const size_t begin = refused.err.rfind(before, at) + before.size();
    const std::string text = refused.err.substr(begin, at - begin);
    SCOPED_TRACE(text);
    const int64_t bytes = std::stoll(refused.err.substr(at + then.size()));
    unpinned = unpinned || text ==
                               "allow=[micro_batch,head_rows] global_batch_size=4 "
                               "per_device_train_batch_size=null gradient_accumulation_steps=null "
                               "head_rows=null";
    const std::string name = "run" + std::to_string(offers++);
    lose_power_after(w, "run", name, 1);
    const Words pasted = joined(resume, split(text));
    EXPECT_EQ(w.train(name, with_memory(pasted, bytes - 4096)).code, 3);
    w.trained(name, with_memory(pasted, bytes));
    expect_planned_is_measured(w, name);
  }
  EXPECT_GE(offers, 3) << refused.err;
  EXPECT_TRUE(unpinned) << refused.err;
  // What is unpinned already is not said to be pinned.
  const auto beside = [&](const std::string& allow) {
    return w.train("run", joined(with_memory(resume, 1 << 20), {allow})).err;
  };
  const std::string rows = beside("allow=[micro_batch]"),
                    none = beside("allow=[micro_batch,head_rows]");
  EXPECT_NE(rows.find(" for head chunks of 256 rows, which "), std::string::npos) << rows;
  EXPECT_EQ(none.find(" pins"), std::string::npos) << none;
}

}  // namespace
}  // namespace snug::e2e
