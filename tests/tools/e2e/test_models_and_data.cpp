// Models that go on, and every kind of data.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

double evaluated(const Workspace& w, const std::string& model,
                 const std::vector<std::string>& more) {
  std::vector<std::string> words = {"eval", "--model",   w.path(model), "--max-length",
                                    "32",   "--threads", "1",           "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out).value("loss", -1.0);
}

TEST(FineTuning, GoesOnFromTheWeights) {
  const Workspace w;
  // Without dropout the training loss is the model's.
  const std::vector<std::string> calm = {"model.resid_pdrop=0", "model.embd_pdrop=0",
                                         "model.attn_pdrop=0"};
  std::vector<std::string> first = calm;
  first.emplace_back("max_steps=60");
  w.trained("first", first);
  const double end = w.last_eval_loss("first");
  ASSERT_LT(end, 4.0);

  const Outcome on = w.trained("on", {"model=" + w.path("first/final"), "tokenizer=null",
                                      "max_steps=3", "learning_rate=0.0001"});
  EXPECT_NE(on.out.find("Weights: read from " + w.path("first/final")), std::string::npos);
  EXPECT_EQ(w.metrics("on").front()["eval_loss"], w.metrics("first").back()["eval_loss"])
      << "before a step it is the same model";
  EXPECT_NEAR(w.losses("on").front(), end, 0.3);

  const Outcome anew =
      w.trained("anew", {"model=" + w.path("first/final"), "init=scratch", "max_steps=3"});
  EXPECT_NE(anew.out.find("Weights: random initialisation"), std::string::npos);
  EXPECT_NEAR(w.losses("anew").front(), std::log(300.0), 0.1);

  // A checkpoint is a model folder too, and a model may change what is not its weights.
  w.trained("from", {"model={base: " + w.path("first/checkpoint-60") + ", attn_pdrop: 0.2}",
                     "max_steps=1"});
  EXPECT_EQ(w.metrics("from").front()["eval_loss"], w.metrics("first").back()["eval_loss"]);
}

TEST(FineTuning, Bf16FoldersAreReadAndWritten) {
  const Workspace w;
  w.trained("first", {"max_steps=30", "save_dtype=bf16"});
  w.trained("wide", {"max_steps=30"});
  EXPECT_EQ(w.json("first/final/config.json")["torch_dtype"], "bfloat16");
  EXPECT_LT(slurp(w.path("first/final/model.safetensors")).size(),
            slurp(w.path("wide/final/model.safetensors")).size() * 6 / 10);
  // Weights rounded to 8 bits of mantissa: close, and not the same.
  const double rounded = evaluated(w, "first/final", {"--data", w.path("text.txt")});
  const double whole = evaluated(w, "wide/final", {"--data", w.path("text.txt")});
  EXPECT_NE(rounded, whole);
  EXPECT_NEAR(rounded, whole, 0.01 * whole);
  w.trained("on", {"model=" + w.path("first/final"), "tokenizer=null", "max_steps=1"});
  EXPECT_NEAR(w.losses("on").front(), w.losses("first").back(), 0.4);
}

TEST(Data, TheSameTextInEveryForm) {
  const Workspace w;
  const std::string text = sentences(150, 5);
  w.trained("run", {"max_steps=20"});
  spill(w.path("whole.txt"), text);
  std::filesystem::create_directory(w.path("folder"));
  spill(w.path("folder/a.txt"), text);
  spill(w.path("folder/image.png"), std::string("\x89PNG\0\0\xff\xff", 8));  // skipped
  spill(w.path("one.jsonl"), Json({{"text", text}, {"id", 3}}).dump() + "\n");
  const double loss = evaluated(w, "run/final", {"--data", w.path("whole.txt")});
  EXPECT_GT(loss, 0);
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("folder")}), loss);
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("fold*/*.txt")}), loss);
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("**/a.txt")}), loss);
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("one.jsonl")}), loss);

  // Its tokens, as nanoGPT writes them: what encode prints, and the end of the text.
  const Outcome ids = run({"tokenizer", "encode", "--tokenizer", w.path("tok.json")}, text);
  std::vector<uint16_t> tokens;
  for (size_t at = 0; at < ids.out.size();) {
    tokens.push_back(static_cast<uint16_t>(std::stoi(ids.out.substr(at))));
    at = ids.out.find_first_of(" \n", at) + 1;
  }
  const Outcome end =
      run({"tokenizer", "encode", "--tokenizer", w.path("tok.json")}, "<|endoftext|>");
  tokens.push_back(static_cast<uint16_t>(std::stoi(end.out)));
  spill(w.path("raw.bin"), raw_tokens(tokens));
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("raw.bin")}), loss);
  // The token file a run leaves is data like any other.
  w.trained("by-text", {"eval_fraction=0", "train_data=" + w.path("whole.txt"),
                        "eval_data=" + w.path("whole.txt")});
  EXPECT_EQ(evaluated(w, "run/final", {"--data", w.path("by-text/data/train.bin")}), loss);
  w.trained("by-tokens",
            {"eval_fraction=0", "train_data=" + w.path("raw.bin"), "eval_data=" + w.path("raw.bin"),
             "tokenizer=null", "model.vocab_size=300"});
  EXPECT_EQ(w.losses("by-text"), w.losses("by-tokens"));
  EXPECT_EQ(w.last_eval_loss("by-text"), w.last_eval_loss("by-tokens"));
  // Two files are two documents: no sample crosses the seam.
  EXPECT_NE(
      evaluated(w, "run/final", {"--data", w.path("whole.txt"), "--data", w.path("text.txt")}),
      loss);
}

TEST(Data, EvaluationInPieces) {
  const Workspace w;
  w.trained("run", {"max_steps=20"});
  const double loss = evaluated(w, "run/final", {"--data", w.path("text.txt")});
  for (const char* size : {"1", "3", "64"})
    EXPECT_NEAR(evaluated(w, "run/final", {"--data", w.path("text.txt"), "--batch-size", size}),
                loss, 1e-6 * loss)
        << size;
  const Outcome two = run({"eval", "--model", w.path("run/final"), "--data", w.path("text.txt"),
                           "--max-length", "32", "--threads", "2", "--json"});
  EXPECT_EQ(Json::parse(two.out)["loss"].get<double>(), loss);
  const Outcome some = run({"eval", "--model", w.path("run/final"), "--data", w.path("text.txt"),
                            "--max-samples", "3", "--max-length", "20", "--json"});
  EXPECT_EQ(Json::parse(some.out)["tokens"], 60);
  const Outcome plain = run({"eval", "--model", w.path("run/final"), "--data", w.path("text.txt")});
  EXPECT_EQ(plain.code, 0);
  EXPECT_NE(plain.out.find("perplexity"), std::string::npos);
  const Outcome small = run(
      {"eval", "--model", w.path("run/final"), "--data", w.path("text.txt"), "--memory", "1MiB"});
  EXPECT_EQ(small.code, 3) << small.err;
}

TEST(Data, NanoGptTokensWithoutATokenizer) {
  const Workspace w;
  // 0 1 2 ... : after the 20 tokens of the vocabulary the next one is certain.
  spill(w.path("count.bin"), raw_tokens(numbered_tokens(4000, 20)));
  w.trained("run", {"train_data=" + w.path("count.bin"), "tokenizer=null", "model.vocab_size=20",
                    "max_steps=60"});
  EXPECT_NEAR(w.losses("run").front(), std::log(20.0), 0.1);
  EXPECT_LT(w.last_eval_loss("run"), 0.5);
  EXPECT_FALSE(exists(w.path("run/final/tokenizer.json")));
  EXPECT_FALSE(exists(w.path("run/data"))) << "token files are used where they are";
  expect_planned_is_measured(w, "run");
}

// A GPT-2 without biases: they are zeros from the first step to the folder, which says so, and a run goes
// on from it.
TEST(Models, Gpt2WithoutBiases) {
  const Workspace w;
  w.trained("run", {"max_steps=4", "save_steps=2", "model.bias=false"});
  expect_planned_is_measured(w, "run");
  EXPECT_EQ(w.json("run/final/config.json")["bias"], false);
  const auto biases = [&](const std::string& name) {
    const SafetensorsReader file(w.path(name + "/model.safetensors"));
    int count = 0;
    for (const SafeTensor& t : file.tensors()) {
      if (!t.name.ends_with(".bias")) continue;
      ++count;
      EXPECT_TRUE(std::all_of(t.data, t.data + t.bytes, [](uint8_t b) { return b == 0; }))
          << t.name;
    }
    return count;
  };
  EXPECT_EQ(biases("run/final"), 2 * 6 + 1) << "as transformers has them";
  EXPECT_TRUE(std::isfinite(evaluated(w, "run/final", {"--data", w.path("text.txt")})));
  w.trained("tuned", {"max_steps=2", "model=" + w.path("run/final")});
  EXPECT_EQ(biases("tuned/final"), 2 * 6 + 1);
  EXPECT_EQ(w.json("tuned/final/config.json")["bias"], false);
  EXPECT_EQ(run({"train", w.path("run"), "max_steps=6"}).code, 0);
  EXPECT_EQ(biases("run/final"), 2 * 6 + 1);
  // They learn where the word is taken back.
  w.trained("biased", {"max_steps=2", "model=" + w.path("run/final"), "model.bias=true"});
  EXPECT_FALSE(w.json("biased/final/config.json").contains("bias"));
}

}  // namespace
}  // namespace snug::e2e
