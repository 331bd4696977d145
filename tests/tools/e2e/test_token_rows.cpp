// Rows of tokens and causal models, no tokenizer anywhere: train, resume, evaluate, look at the data.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

// A fixture tests/golden/rows_<name>.safetensors as a model folder and a file of rows.
class RowFixture {
 public:
  RowFixture(const Workspace& w, const std::string& name) : workspace_(w) {
    bytes_ = slurp(source_folder() + "/tests/golden/rows_" + name + ".safetensors");
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), 8);
    header_ = Json::parse(bytes_.substr(8, size));
    begin_ = 8 + size;
    std::filesystem::create_directory(w.path("model"));
    Json config = Json::parse(header_["__metadata__"]["config"].get<std::string>());
    spill(w.path("model/config.json"), config.dump());
    Json kept = Json::object();
    std::string data;
    for (const auto& [key, tensor] : header_.items()) {
      if (key == "__metadata__" || tensor["dtype"] != "F32") continue;
      kept[key] = tensor;
      kept[key]["data_offsets"] = {data.size(), data.size() + raw(key).size()};
      data += raw(key);
    }
    std::string text = kept.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    size = text.size();
    spill(w.path("model/model.safetensors"),
          std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
    std::string rows;
    const auto ids = list<int64_t>("input_ids"), labels = list<int64_t>("labels");
    int64_t at = 0;
    for (const int64_t n : list<int64_t>("row_lengths")) {
      rows += Json({{"input_ids", std::vector<int64_t>(ids.begin() + at, ids.begin() + at + n)},
                    {"labels", std::vector<int64_t>(labels.begin() + at, labels.begin() + at + n)}})
                  .dump() +
              "\n";
      at += n;
    }
    spill(w.path("rows.jsonl"), rows);
  }
  template <class T>
  std::vector<T> list(const std::string& tensor) const {
    const std::string data = raw(tensor);
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  // As the fixture was trained: all rows in every step.
  std::vector<std::string> arguments(const std::string& output,
                                     const std::vector<std::string>& more = {}) const {
    return joined({"train",
                   "model=" + workspace_.path("model"),
                   "train_data=" + workspace_.path("rows.jsonl"),
                   "eval_data=" + workspace_.path("rows.jsonl"),
                   "max_length=16",
                   "global_batch_size=8",
                   "max_steps=10",
                   "learning_rate=0.001",
                   "lr_scheduler_type=constant",
                   "warmup_steps=0",
                   "weight_decay=0.1",
                   "adam_beta2=0.95",
                   "adam_epsilon=1e-8",
                   "max_grad_norm=1",
                   "precision=fp32",
                   "logging_steps=1",
                   "eval_steps=0",
                   "save_steps=5",
                   "threads=1",
                   "memory=64MiB",
                   "output_dir=" + workspace_.path(output)},
                  more);
  }

 private:
  std::string raw(const std::string& tensor) const {
    const Json& range = header_[tensor]["data_offsets"];
    return bytes_.substr(begin_ + range[0].get<size_t>(),
                         range[1].get<size_t>() - range[0].get<size_t>());
  }

  const Workspace& workspace_;
  std::string bytes_;
  Json header_;
  size_t begin_ = 0;
};

class TokenRows : public testing::TestWithParam<const char*> {};

TEST_P(TokenRows, TrainAsTransformersDoesOnEachRowAlone) {
  const Workspace w;
  const RowFixture fixture(w, GetParam());
  const Outcome o = run(fixture.arguments("run"));
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  expect_planned_is_measured(w, "run");
  const std::vector<double> expected = fixture.list<double>("adamw_losses"), got = w.losses("run");
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i] / expected[i], 1, 1e-5) << i;
  EXPECT_FALSE(exists(w.path("run/tokenizer")));

  // Another micro-batch is another order of sums; recomputation is none; a resume has the bits.
  const std::vector<std::string> one = {"per_device_train_batch_size=2", "packed_weights=none",
                                        "head_rows=32"};
  ASSERT_EQ(run(fixture.arguments("none", joined(one, {"recompute=none"}))).code, 0);
  ASSERT_EQ(run(fixture.arguments("block", joined(one, {"recompute=block"}))).code, 0);
  const std::string last = slurp(w.path("none/final/model.safetensors"));
  EXPECT_EQ(slurp(w.path("block/final/model.safetensors")), last);
  ASSERT_EQ(run(fixture.arguments("half", joined(one, {"max_steps=5"}))).code, 0);
  const Outcome resumed = run(fixture.arguments("half", joined(one, {"resume=latest"})));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(slurp(w.path("half/final/model.safetensors")), last);
  EXPECT_EQ(w.losses("half"), w.losses("none"));

  const Outcome e =
      run({"eval", "--model", w.path("run/final"), "--data", w.path("rows.jsonl"), "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  const Json all = Json::parse(e.out);
  EXPECT_NEAR(all["loss"].get<double>(), w.metrics("run").back()["eval_loss"].get<double>(), 1e-6);
  EXPECT_EQ(all["rows"], 8);
  EXPECT_EQ(all["task"], "causal_lm");
  EXPECT_NEAR(all["perplexity"].get<double>(), std::exp(all["loss"].get<double>()), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenRows, testing::Values("gpt2", "mistral"),
                         [](const auto& named) { return std::string(named.param); });

// The order of rows is that of data_seed, of which 0 is one like any other; without it, that of seed.
TEST(TokenRowsOfGpt2, AreDrawnByTheirSeed) {
  const Workspace w;
  const RowFixture fixture(w, "gpt2");
  const auto curve = [&](const std::string& key) {
    const Outcome o = run(fixture.arguments(
        "run", {"global_batch_size=2", "max_steps=4", "save_steps=0", "overwrite=true", key}));
    EXPECT_EQ(o.code, 0) << o.err;
    return w.curve("run");
  };
  const std::string usual = curve("seed=42"), zero = curve("data_seed=0");
  EXPECT_NE(zero, usual);
  EXPECT_EQ(curve("seed=0"), zero);
  EXPECT_EQ(curve("data_seed=42"), usual);
}

TEST(TokenRowsOfGpt2, ArePlannedAndShown) {
  const Workspace w;
  const RowFixture fixture(w, "gpt2");
  std::vector<std::string> words = fixture.arguments("none");
  words[0] = "plan";
  const Outcome planned = run(words);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("8 rows a step, in about 4 windows of 16 tokens"), std::string::npos)
      << planned.out;
  spill(w.path("few.jsonl"), "{\"input_ids\": [7, 8, 9, 10], \"labels\": [-100, -100, 9, 11]}\n");
  words = fixture.arguments("none", {"train_data=" + w.path("few.jsonl"), "-n", "1"});
  words[0] = "preview";
  words.insert(words.begin(), "data");
  const Outcome shown = run(words);
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("7 8 {{9}} 10{{11}}\n"), std::string::npos) << shown.out;
  const Outcome json = run(joined(words, {"--json"}));
  EXPECT_EQ(Json::parse(json.out)["samples"][0]["targets"], Json({-100, 9, 11, -100}));
  const Outcome bare = run({"data", "preview", "train_data=" + w.path("few.jsonl")});
  EXPECT_EQ(bare.code, 2);
  EXPECT_NE(
      bare.err.find("expected a model for rows of input_ids, whose vocabulary and labels they "
                    "are of\n  found: none\n  try:   model=gpt2, for example"),
      std::string::npos)
      << bare.err;
  const Outcome strided =
      run({"eval", "--model", w.path("model"), "--data", w.path("few.jsonl"), "--stride", "4"});
  EXPECT_EQ(strided.code, 2);
  EXPECT_NE(strided.err.find("expected --stride with text alone\n  found: --stride with rows of "
                             "input_ids, " +
                             w.path("few.jsonl") + "\n  try:   leave --stride out"),
            std::string::npos)
      << strided.err;
  // A data set that keeps its texts: they are read where the text is asked for.
  spill(w.path("both.jsonl"),
        "{\"text\": \"" + std::string(400, 'a') + "\", \"input_ids\": [7, 8]}\n");
  const Outcome text =
      run(fixture.arguments("none", {"train_data=" + w.path("both.jsonl"), "text_column=body"}));
  EXPECT_EQ(text.code, 2);
  EXPECT_NE(text.err.find("tokenizer for the text"), std::string::npos) << text.err;
  EXPECT_FALSE(exists(w.path("none")));
}

}  // namespace
}  // namespace snug::e2e
