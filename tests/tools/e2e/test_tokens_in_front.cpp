// Virtual tokens in front of every sequence, from the command: prompt tuning. That they compute what PEFT does
// is said by tests/layers/models/test_peft_golden.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

class AdaptersInFront : public testing::Test {
 protected:
  AdaptersInFront() { w_.trained("base", {"max_steps=8"}); }
  std::vector<std::string> with(const std::vector<std::string>& more) const {
    return joined(
        {"model=" + base_, "tokenizer=null", "peft=prompt_tuning", "num_virtual_tokens=4"}, more);
  }
  Json json_of(const std::vector<std::string>& words) const {
    const Outcome o = run(joined(words, {"--json", "--threads", "1"}));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? Json::parse(o.out) : Json();
  }
  double loss(const std::vector<std::string>& more) const {
    return json_of(joined({"eval", "--model", base_, "--data", w_.path("text.txt")}, more))["loss"]
        .get<double>();
  }
  std::vector<int> ids_of(const std::string& text) const {
    const Outcome o = run({"tokenizer", "encode", "--tokenizer", base_ + "/tokenizer.json"}, text);
    EXPECT_EQ(o.code, 0) << o.err;
    std::istringstream in(o.out);
    std::vector<int> ids;
    for (int id = 0; in >> id;) ids.push_back(id);
    return ids;
  }
  std::vector<float> embeddings(const std::string& of_run) const {
    const SafetensorsReader file(w_.path(of_run + "/final/adapter_model.safetensors"));
    EXPECT_EQ(file.tensors().size(), 1u);
    const SafeTensor& t = file.at("prompt_embeddings");
    EXPECT_EQ(t.shape, (std::vector<int64_t>{4, 32}));
    std::vector<float> values(128);
    convert(t.dtype, t.data, 128, values.data());
    return values;
  }
  Workspace w_;
  std::string base_ = w_.path("base/final");
};

TEST_F(AdaptersInFront, ARunLeavesAPeftFolderThatIsUsedBesideTheModel) {
  const std::vector<std::string> keys =
      with({"learning_rate=0.05", "save_steps=5", "eval_steps=4"});
  w_.trained("run", keys);
  expect_planned_is_measured(w_, "run");
  const Json config = w_.json("run/final/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "PROMPT_TUNING");
  EXPECT_EQ(config["num_virtual_tokens"], 4);
  EXPECT_EQ(config["token_dim"], 32);
  EXPECT_EQ(config["num_layers"], 2);
  EXPECT_EQ(config["prompt_tuning_init"], "RANDOM");
  EXPECT_FALSE(config.contains("target_modules"));
  const std::vector<float> learned = embeddings("run");

  lose_power_after(w_, "run", "parts", 5);
  w_.trained("parts", joined(keys, {"resume=latest", "recompute=block"}));
  EXPECT_EQ(w_.curve("run"), w_.curve("parts"));
  EXPECT_EQ(embeddings("parts"), learned);

  const std::string adapter = w_.path("run/final");
  const std::vector<std::string> used = {"--adapter", adapter, "--max-length", "32"};
  const double whole = loss(used);
  w_.trained("new", joined(keys, {"learning_rate=1e-30", "max_steps=1", "eval_steps=1"}));
  EXPECT_GT(std::fabs(whole - loss({"--adapter", w_.path("new/final"), "--max-length", "32"})),
            1e-5 * whole)
      << "nothing was learned";
  // Windows side by side are windows at a stride of their length, but for what begins the text.
  EXPECT_NEAR(loss(joined(used, {"--stride", "31"})), whole, 0.05 * whole);

  w_.trained("on", {"model=" + base_, "tokenizer=null", "adapter=" + adapter, "max_steps=2"});
  EXPECT_NEAR(w_.metrics("on").front()["eval_loss"].get<double>(), w_.last_eval_loss("run"), 1e-6);
  const Outcome facts = run({"inspect", adapter});
  EXPECT_NE(facts.out.find("PROMPT_TUNING"), std::string::npos) << facts.out << facts.err;
}

struct Encoded {
  std::vector<std::string> keys;
  const char* type;
  std::vector<int64_t> shape;  // of prompt_embeddings
  size_t tensors = 1;          // of a run's folder: with the encoder's
};

const Encoded kEncoded[] = {
    {{"peft=p_tuning", "encoder_hidden_size=24"}, "P_TUNING", {4, 32}, 8},
    {{"peft=prefix_tuning"}, "PREFIX_TUNING", {4, 128}},
    {{"peft=prefix_tuning", "prefix_projection=true"}, "PREFIX_TUNING", {4, 128}, 6},
    {{"peft=p_tuning", "encoder_reparameterization_type=LSTM"}, "P_TUNING", {4, 32}, 22},
};

// A run, the same with a break, another that goes on from its folder and uses of it; and of the rows alone, as PEFT
// saves them.
TEST_F(AdaptersInFront, RowsOfEncodersAndPrefixesAreLearned) {
  for (size_t k = 0; k < std::size(kEncoded); ++k) {
    const Encoded& of = kEncoded[k];
    SCOPED_TRACE(fmt::format("{}", fmt::join(of.keys, " ")));
    const auto name = [&](const char* word) { return fmt::format("{}{}", word, k); };
    const std::vector<std::string> keys =
        joined(with({"learning_rate=0.02", "save_steps=5", "eval_steps=4"}), of.keys);
    w_.trained(name("run"), keys);
    expect_planned_is_measured(w_, name("run"));
    const Json config = w_.json(name("run") + "/final/adapter_config.json");
    EXPECT_EQ(config["peft_type"], of.type);
    EXPECT_EQ(config["num_attention_heads"], 4);
    EXPECT_EQ(config["encoder_hidden_size"], k == 0 ? 24 : 32);
    const std::string weights = "/final/adapter_model.safetensors";
    const SafetensorsReader file(w_.path(name("run") + weights));
    EXPECT_EQ(file.tensors().size(), of.tensors);
    EXPECT_EQ(file.at("prompt_embeddings").shape, of.shape);

    lose_power_after(w_, name("run"), name("parts"), 5);
    w_.trained(name("parts"), joined(keys, {"resume=latest", "recompute=block"}));
    EXPECT_EQ(w_.curve(name("run")), w_.curve(name("parts")));
    EXPECT_TRUE(slurp(w_.path(name("run") + weights)) == slurp(w_.path(name("parts") + weights)));

    // Of ranks that each have pieces: the same tensors, and rows that follow from the joined ones.
    w_.trained(name("ranks0"), joined(keys, {"ranks=2", "zero=0"}));
    w_.trained(name("ranks1"), joined(keys, {"ranks=2", "zero=1"}));
    expect_planned_is_measured(w_, name("ranks1"));
    EXPECT_TRUE(slurp(w_.path(name("ranks0") + weights)) ==
                slurp(w_.path(name("ranks1") + weights)));

    const std::string adapter = w_.path(name("run") + "/final");
    const std::vector<std::string> used = {"--adapter", adapter, "--max-length", "32"};
    const double whole = loss(used);
    w_.trained(name("new"), joined(keys, {"learning_rate=1e-30", "max_steps=1", "eval_steps=1"}));
    EXPECT_GT(loss({"--adapter", w_.path(name("new") + "/final"), "--max-length", "32"}),
              whole * (1 + 1e-4))
        << "nothing was learned";
    const std::vector<std::string> more = {"model=" + base_, "tokenizer=null", "adapter=" + adapter,
                                           "max_steps=2"};
    w_.trained(name("on"), more);
    EXPECT_NEAR(w_.metrics(name("on")).front()["eval_loss"].get<double>(),
                w_.last_eval_loss(name("run")), 1e-5);
    EXPECT_EQ(SafetensorsReader(w_.path(name("on") + weights)).tensors().size(), of.tensors);
    const Outcome facts = run({"inspect", adapter});
    EXPECT_NE(facts.out.find(of.type), std::string::npos) << facts.out << facts.err;
    const Outcome merged =
        run({"merge", "--model", base_, "--adapter", adapter, "--output", w_.path("merged")});
    EXPECT_EQ(merged.code, 2) << merged.out;
    if (of.tensors == 1) continue;

    // The rows alone.
    const std::string bare = w_.path(name("bare"));
    std::filesystem::create_directory(bare);
    spill(bare + "/adapter_config.json", slurp(adapter + "/adapter_config.json"));
    const SafeTensor& rows = file.at("prompt_embeddings");
    const SafetensorsLayout layout({{"format", "pt"}}, {{rows.name, rows.dtype, rows.shape}});
    SafetensorsWriter writer(bare + "/adapter_model.safetensors", layout);
    writer.begin(rows.name);
    writer.append(rows.data, rows.bytes);
    writer.end();
    writer.commit();
    EXPECT_EQ(loss({"--adapter", bare, "--max-length", "32"}), whole);
    const Outcome rest = w_.trained(
        name("rest"), {"model=" + base_, "tokenizer=null", "adapter=" + bare, "max_steps=2"});
    EXPECT_NE(rest.err.find(bare + " has no encoder: its rows are trained themselves"),
              std::string::npos)
        << rest.err;
    EXPECT_NEAR(w_.metrics(name("rest")).front()["eval_loss"].get<double>(),
                w_.last_eval_loss(name("run")), 1e-5);
    EXPECT_EQ(SafetensorsReader(w_.path(name("rest") + weights)).tensors().size(), 1u);
  }
}

// What a cache says of texts, fed in pieces and together, is what an evaluation says of them.
TEST_F(AdaptersInFront, GenerationAndEvaluationAgree) {
  for (const char* peft : {"prompt_tuning", "prefix_tuning"}) {
    SCOPED_TRACE(peft);
    w_.trained(peft, with({"learning_rate=0.05", std::string("peft=") + peft}));
    const std::string adapter = w_.path(std::string(peft) + "/final");
    const std::vector<std::string> greedy = {
        "generate",         "--model", base_,       "--adapter",     adapter,
        "--max-new-tokens", "6",       "--no-echo", "--temperature", "0",
        "--logprobs",       "0",       "--json"};
    spill(w_.path("prompts.txt"), "the\nthe sea and the\n");
    const Outcome together = run(joined(greedy, {"--prompts", w_.path("prompts.txt")}));
    ASSERT_EQ(together.code, 0) << together.err;
    std::vector<Json> texts;
    std::istringstream lines(together.out);
    for (std::string line; std::getline(lines, line);) texts.push_back(Json::parse(line));
    ASSERT_EQ(texts.size(), 2u);
    const char* const prompts[] = {"the", "the sea and the"};
    for (size_t i = 0; i < 2; ++i) {
      const Json alone =
          json_of({"generate", "--model", base_, "--adapter", adapter, "--max-new-tokens", "6",
                   "--no-echo", "--temperature", "0", "--logprobs", "0", "--prompt", prompts[i]});
      EXPECT_EQ(alone["text"], texts[i]["text"]);
      double sum = 0;
      for (const Json& chance : alone["logprobs"]) sum += chance["logprob"].get<double>();
      std::vector<int> tokens = ids_of(prompts[i]);
      Json labels = std::vector<int>(tokens.size(), -100);
      for (const Json& id : alone["tokens"]) {
        tokens.push_back(id.get<int>());
        labels.push_back(id);
      }
      spill(w_.path("rows.jsonl"), Json({{"input_ids", tokens}, {"labels", labels}}).dump() + "\n");
      const Json scored = json_of(
          {"eval", "--model", base_, "--adapter", adapter, "--data", w_.path("rows.jsonl")});
      EXPECT_EQ(scored["tokens"], alone["tokens"].size());
      EXPECT_NEAR(scored["loss"].get<double>() * static_cast<double>(alone["tokens"].size()), -sum,
                  1e-4);
    }
  }
}

// Rows of tokens behind labels that begin late are windows; those with a label of the first token ask the last
// virtual token for it.
TEST_F(AdaptersInFront, RowsAreWindows) {
  w_.trained("run", with({"learning_rate=0.05"}));
  const std::vector<std::string> used = {"eval", "--model", base_, "--adapter",
                                         w_.path("run/final")};
  std::vector<int> tokens = ids_of(slurp(w_.path("text.txt")).substr(0, 400));
  ASSERT_GE(tokens.size(), 17u);
  tokens.resize(17);
  const auto row = [&](bool first) {
    Json labels = tokens;
    if (!first) labels[0] = -100;
    spill(w_.path("rows.jsonl"), Json({{"input_ids", tokens}, {"labels", labels}}).dump() + "\n");
    return json_of(joined(used, {"--data", w_.path("rows.jsonl")}));
  };
  const Json without = row(false), whole = row(true);
  EXPECT_EQ(without["tokens"], 16);
  EXPECT_EQ(whole["tokens"], 17);
  EXPECT_GT(std::fabs(whole["loss"].get<double>() * 17 - without["loss"].get<double>() * 16), 0.01);

  // Of a prefix nothing is asked, as of PEFT's.
  w_.trained("prefix", with({"peft=prefix_tuning", "max_steps=1"}));
  spill(w_.path("rows.jsonl"), Json({{"input_ids", tokens}, {"labels", tokens}}).dump() + "\n");
  const Json asked = json_of({"eval", "--model", base_, "--adapter", w_.path("prefix/final"),
                              "--data", w_.path("rows.jsonl")});
  EXPECT_EQ(asked["tokens"], 16);
}

// Rows in front are read as they are, also where a family multiplies those of its table (Gemma).
TEST_F(AdaptersInFront, BeginsAsATextDoes) {
  w_.trained("gemma", {"model={type: gemma, hidden_size: 32, intermediate_size: 64, "
                       "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, "
                       "head_dim: 16, max_position_embeddings: 64}",
                       "max_steps=1"});
  for (const bool gemma : {false, true}) {
    SCOPED_TRACE(gemma);
    if (gemma) base_ = w_.path("gemma/final");
    const std::string name = gemma ? "scaled" : "run";
    w_.trained(name, with({"prompt_tuning_init=TEXT", "prompt_tuning_init_text=the sea",
                           "learning_rate=1e-30", "max_steps=1"}));
    const Json config = w_.json(name + "/final/adapter_config.json");
    EXPECT_EQ(config["prompt_tuning_init"], "TEXT");
    EXPECT_EQ(config["prompt_tuning_init_text"], "the sea");
    EXPECT_EQ(config["tokenizer_name_or_path"], base_);
    const std::vector<int> tokens = ids_of("the sea");
    ASSERT_FALSE(tokens.empty());
    const SafetensorsReader file(base_ + "/model.safetensors");
    const SafeTensor& table =
        file.at(gemma ? "model.embed_tokens.weight" : "transformer.wte.weight");
    std::vector<float> rows(static_cast<size_t>(table.elements()));
    convert(table.dtype, table.data, table.elements(), rows.data());
    const float scale = gemma ? std::sqrt(32.0f) : 1.0f;
    const std::vector<float> began = embeddings(name);
    for (size_t k = 0; k < 4; ++k)
      for (size_t c = 0; c < 32; ++c)
        EXPECT_NEAR(began[k * 32 + c],
                    scale * rows[static_cast<size_t>(tokens[k % tokens.size()]) * 32 + c], 1e-6);
  }
}

TEST_F(AdaptersInFront, WhatTheyAreNotForIsRefused) {
  w_.trained("run", with({"max_steps=1"}));
  const std::string adapter = w_.path("run/final"), text = w_.path("text.txt");
  const auto refused = [&](const Outcome& o, const std::vector<std::string>& texts) {
    EXPECT_EQ(o.code, 2) << o.err;
    for (const std::string& said : texts)
      EXPECT_NE(o.err.find(said), std::string::npos) << said << "\n in " << o.err;
  };
  refused(run({"merge", "--model", base_, "--adapter", adapter, "--output", w_.path("merged")}),
          {"an adapter that weights can take up",
           "virtual tokens lie in front of every sequence (" + adapter,
           "--adapter, which use it beside the model"});
  EXPECT_FALSE(exists(w_.path("merged")));
  refused(
      run({"eval", "--model", base_, "--adapter", adapter, "--data", text, "--packing-boundaries"}),
      {"windows of one sequence for " + adapter, "leave --packing-boundaries out"});
  spill(w_.path("pairs.jsonl"), "{\"prompt\": \"a\", \"chosen\": \" b\", \"rejected\": \" c\"}\n");
  refused(run({"eval", "--model", base_, "--adapter", adapter, "--data", w_.path("pairs.jsonl"),
               "--task", "dpo"}),
          {"windows of one sequence for " + adapter, "--task dpo"});
  refused(w_.train("dpo", with({"task=dpo", "train_data=" + w_.path("pairs.jsonl")})),
          {"a task of single sequences for peft: prompt_tuning", "task: dpo", "peft=lora"});
  refused(run({"convert", "--model", adapter, "--to", "gguf", "--output", w_.path("a.gguf")}),
          {"--model as a folder with a whole model",
           adapter + ", 4 tokens in front of sequences, which no model folder has",
           "--model " + base_ + ": the base; snug eval and generate take the adapter beside it"});
  // The base alone is converted, as said.
  EXPECT_EQ(run({"convert", "--model", base_, "--to", "gguf", "--output", w_.path("a.gguf")}).code,
            0);
  spill(w_.path("rows.tsv"), "text\tlabel\nred\t0\nblue\t1\n");
  refused(w_.train("rows", with({"task=sequence_classification", "packing_boundaries=null",
                                 "train_data=" + w_.path("rows.tsv"), "eval_fraction=0"})),
          {"a causal language model for peft: prompt_tuning", "peft=lora"});
}

}  // namespace
}  // namespace snug::e2e
