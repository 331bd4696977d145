// Encoders from a table of rows to labels: train, evaluate, predict, look at the data, convert.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "tests/tools/e2e/encoders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

std::vector<Json> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<Json> list;
  for (std::string line; std::getline(in, line);) list.push_back(Json::parse(line));
  return list;
}

Json evaluated(const std::string& model, const std::string& data,
               const std::vector<std::string>& more = {}) {
  const Outcome o = run(joined({"eval", "--model", model, "--data", data, "--json"}, more));
  EXPECT_EQ(o.code, 0) << o.err;
  return o.code == 0 ? Json::parse(o.out) : Json::object();
}

std::vector<Json> predicted(const std::string& model, const std::string& data,
                            const std::vector<std::string>& more = {}) {
  const Outcome o = run(joined({"predict", "--model", model, "--data", data, "--json"}, more));
  EXPECT_EQ(o.code, 0) << o.err;
  return o.code == 0 ? lines_of(o.out) : std::vector<Json>();
}

TEST(Encoders, LearnTwoWordsAndSayThem) {
  const Workspace w;
  make_encoder_data(w);
  const Outcome o = train_encoder(w, "run");
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  expect_planned_is_measured(w, "run");
  const Json last = w.metrics("run").back();
  ASSERT_TRUE(last.contains("eval_accuracy")) << last;
  EXPECT_EQ(last["eval_accuracy"], 1.0);

  // The folder gives the run's last loss again, whatever the windows are.
  const std::string model = w.path("run/final");
  const Json all = evaluated(model, w.path("dev.tsv"));
  EXPECT_NEAR(all["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-6);
  EXPECT_EQ(all["accuracy"], 1.0);
  EXPECT_EQ(all["rows"], 40);
  EXPECT_EQ(all["task"], "sequence_classification");
  const Json small =
      evaluated(model, w.path("dev.tsv"), {"--batch-size", "1", "--max-length", "16"});
  EXPECT_NEAR(small["loss"].get<double>(), all["loss"].get<double>(), 1e-6);
  EXPECT_EQ(evaluated(model, w.path("dev.tsv"), {"--max-samples", "3"})["rows"], 3);
  const Outcome text = run({"eval", "--model", model, "--data", w.path("dev.tsv")});
  EXPECT_NE(text.out.find("accuracy 1.0000"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("over 40 rows"), std::string::npos) << text.out;

  // Labels in the data are not looked at, and rows come in their order, empty ones too.
  const std::vector<Json> rows = predicted(model, w.path("dev.tsv"));
  ASSERT_EQ(rows.size(), 40u);
  double loss = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string label = i % 2 == 0 ? "good" : "bad";
    EXPECT_EQ(rows[i]["row"], i);
    EXPECT_EQ(rows[i]["label"], label) << rows[i];
    EXPECT_EQ(rows[i]["score"], rows[i]["probabilities"][label]);
    const double good = rows[i]["probabilities"]["good"], bad = rows[i]["probabilities"]["bad"];
    EXPECT_NEAR(good + bad, 1.0, 1e-12);
    loss -= std::log(rows[i]["score"].get<double>()) / 40;
  }
  EXPECT_NEAR(loss, all["loss"].get<double>(), 1e-6);  // the same probabilities as the loss has
  spill(w.path("texts.txt"), "a good film\n\na bad film\n\n");
  const std::vector<Json> texts = predicted(model, w.path("texts.txt"), {"--batch-size", "1"});
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_EQ(texts[0]["label"], "good");
  EXPECT_TRUE(texts[1]["label"].is_null());
  EXPECT_EQ(texts[2]["label"], "bad");
  EXPECT_EQ(texts[3]["row"], 3);
  const Outcome table = run({"predict", "--model", model, "--data", w.path("texts.txt")});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("     2  bad"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("a bad film"), std::string::npos) << table.out;
  const std::vector<std::string> to_file = {"predict",
                                            "--model",
                                            model,
                                            "--data",
                                            w.path("texts.txt"),
                                            "--output",
                                            w.path("labels.jsonl")};
  EXPECT_EQ(run(to_file).code, 0);
  EXPECT_EQ(lines_of(slurp(w.path("labels.jsonl"))), texts);
  EXPECT_EQ(run(to_file).code, 2);  // there is one
  EXPECT_EQ(run(joined(to_file, {"--overwrite"})).code, 0);

  // Folder to folder.
  const Outcome half = run(
      {"convert", "--model", model, "--to", "hf", "--dtype", "bf16", "--output", w.path("half")});
  EXPECT_EQ(half.code, 0) << half.err;
  EXPECT_EQ(evaluated(w.path("half"), w.path("dev.tsv"))["accuracy"], 1.0);
  const Outcome seen = run({"inspect", model});
  EXPECT_EQ(seen.code, 0) << seen.err;
  EXPECT_NE(seen.out.find("BertForSequenceClassification"), std::string::npos) << seen.out;
  // Weights that say nothing: half of the file is no number. The longest row is looked at first.
  std::filesystem::copy(model, w.path("broken"));
  std::string bytes = slurp(w.path("broken/model.safetensors"));
  for (size_t at = bytes.size() - 40000; at < bytes.size(); at += 4)
    bytes.replace(at, 4, std::string("\x00\x00\xc0\x7f", 4));
  spill(w.path("broken/model.safetensors"), bytes);
  const Outcome broken =
      run({"predict", "--model", w.path("broken"), "--data", w.path("dev.tsv"), "--json"});
  EXPECT_EQ(broken.code, 2);
  EXPECT_NE(broken.err.find("expected finite logits of the model\n  found: others for row 3\n"
                            "  try:   --precision fp32; if it stays, its weights are not finite: "
                            "take an earlier checkpoint"),
            std::string::npos)
      << broken.err;
  const Outcome why = run({"explain", "--run", w.path("run"), "--peak"});
  EXPECT_EQ(why.code, 0) << why.err;
}

// What is computed for nothing is said before and behind; nothing of it is padding of rows.
TEST(Encoders, TheShareOfEmptyRowsIsKnown) {
  const Workspace w;
  make_encoder_data(w);
  const Outcome o = train_encoder(
      w, "run", {"max_steps=13", "per_device_train_batch_size=1", "num_train_epochs=1"});
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  // 200 rows of 5 to 17 tokens, 12.5 steps of 16: the share by hand, of the windows of 64 tokens.
  const Json plan = w.json("run/plan.json");
  const double expected = plan["empty_share"];
  double sum = 0;
  int steps = 0;
  for (const Json& line : w.metrics("run")) {
    if (!line.contains("empty_share")) continue;
    EXPECT_EQ(line["idle_share"], 0.0);  // a window alone runs what it has
    const double tokens = (1 - line["empty_share"].get<double>()) * 64;
    // So many windows that no fewer would do.
    bool whole = false;
    for (int windows = 1; windows <= 16; ++windows) {
      const double all = tokens * windows;
      whole = whole || (std::fabs(all - std::round(all)) < 1e-3 && all > 64 * (windows - 1) - 17);
    }
    EXPECT_TRUE(whole) << line;
    sum += line["empty_share"].get<double>();
    ++steps;
  }
  ASSERT_EQ(steps, 13);
  EXPECT_NEAR(sum / steps, expected, 0.05);
  char text[64];
  std::snprintf(text, sizeof text, "about %.1f %% of the planned rows stay empty", 100 * expected);
  EXPECT_NE(o.out.find(text), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(" computed, 0.0 % of them empty, none padded"), std::string::npos) << o.out;
  // The predicted rate is of tokens that are there.
  const double tokens = plan["predicted_tokens_per_second"].get<double>() *
                        plan["predicted_step_seconds"].get<double>();
  EXPECT_NEAR(tokens / (1 - expected) / 64, std::round(tokens / (1 - expected) / 64), 1e-6);
}

// A benchmark makes up rows with targets for every head: a step has a head's ops of both directions.
TEST(Encoders, EveryHeadIsBenchmarked) {
  for (const auto& [task, op] : {std::pair{"masked_lm", "head_loss"},
                                 {"sequence_classification", "class_loss"},
                                 {"token_classification", "class_loss"}}) {
    const Outcome o =
        run({"bench",
             "model={type: bert, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: "
             "2, intermediate_size: 64, vocab_size: 300, max_position_embeddings: 64}",
             std::string("task=") + task, "max_length=32", "global_batch_size=4", "--steps", "1",
             "--json", "--no-roofs"});
    ASSERT_EQ(o.code, 0) << task << o.err;
    EXPECT_NE(o.out.find(op), std::string::npos) << task;
  }
}

TEST(Encoders, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Workspace w;
  make_encoder_data(w);
  const std::vector<std::string> constant = {"lr_scheduler_type=constant", "warmup_steps=0",
                                             "save_steps=6"};
  ASSERT_EQ(train_encoder(w, "whole", joined(constant, {"max_steps=12"})).code, 0);
  ASSERT_EQ(train_encoder(w, "halved", joined(constant, {"max_steps=6"})).code, 0);
  const Outcome o = train_encoder(w, "halved", joined(constant, {"max_steps=12", "resume=latest"}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(w.losses("halved"), w.losses("whole"));
  EXPECT_EQ(slurp(w.path("halved/final/model.safetensors")),
            slurp(w.path("whole/final/model.safetensors")));
}

// What memory is given changes what is kept, and no number.
TEST(Encoders, SmallerBudgetsGiveTheSameLosses) {
  const Workspace w;
  make_encoder_data(w);
  const std::vector<std::string> one = {"max_steps=6", "per_device_train_batch_size=2",
                                        "packed_weights=none", "head_rows=64"};
  ASSERT_EQ(train_encoder(w, "none", joined(one, {"recompute=none"})).code, 0);
  ASSERT_EQ(train_encoder(w, "block", joined(one, {"recompute=block"})).code, 0);
  expect_planned_is_measured(w, "block");
  EXPECT_LT(w.json("block/plan.json")["engine_bytes"], w.json("none/plan.json")["engine_bytes"]);
  EXPECT_EQ(w.losses("none"), w.losses("block"));
  EXPECT_EQ(slurp(w.path("none/final/model.safetensors")),
            slurp(w.path("block/final/model.safetensors")));
  const std::string last = slurp(w.path("none/final/model.safetensors"));
  const std::pair<const char*, std::vector<std::string>> homes[] = {
      {"away", {"offload_optimizer=cpu", "host_memory=64MiB"}},
      {"streamed", {"offload_optimizer=cpu", "offload_params=cpu", "host_memory=64MiB"}},
      {"gradients", {"offload_optimizer=cpu", "offload_gradients=cpu", "host_memory=64MiB"}},
      {"activations", {"offload=block", "host_memory=64MiB"}},
      {"packed", {"packed_weights=both"}},
      {"threads", {"threads=2"}}};
  for (const auto& [name, keys] : homes) {
    const Outcome moved = train_encoder(w, name, joined(one, joined({"recompute=none"}, keys)));
    ASSERT_EQ(moved.code, 0) << name << moved.err;
    expect_planned_is_measured(w, name);
    EXPECT_EQ(w.losses(name), w.losses("none")) << name;
    EXPECT_EQ(slurp(w.path(std::string(name) + "/final/model.safetensors")), last) << name;
  }
  const int64_t least = w.json("block/plan.json")["minimum_bytes"];
  const Outcome o = train_encoder(w, "least", joined(one, {"memory=" + std::to_string(least)}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(w.losses("least"), w.losses("none"));
}

// Windows of a step are those that the rows trained on need.
TEST(Encoders, LongRowsToEvaluateDoNotMakeMoreWindows) {
  const Workspace w;
  make_encoder_data(w);
  std::string rows;
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 24; ++k) rows += "the cat ";
    rows += i % 2 == 0 ? "\tgood\n" : "\tbad\n";
  }
  spill(w.path("long.tsv"), rows);
  const auto windows = [&](const char* data) {
    const Outcome o =
        train_encoder(w, std::string("run-") + data,
                      {"max_steps=1", "global_batch_size=8", "eval_data=" + w.path(data)});
    EXPECT_EQ(o.code, 0) << o.err;
    const size_t at = o.out.find("8 rows a step, in about ");
    EXPECT_NE(at, std::string::npos) << o.out;
    return o.out.substr(at, o.out.find(',', at + 20) - at);
  };
  EXPECT_EQ(windows("long.tsv"), windows("dev.tsv"));
}

TEST(Encoders, HiddenTokensAreLearnedAndFilledIn) {
  const Workspace w;
  make_encoder_data(w);
  const Outcome o = train_encoder(w, "masked",
                                  {"task=masked_lm", "train_data=" + w.path("lines.txt"),
                                   "eval_data=" + w.path("lines.txt"), "max_steps=150"});
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  std::vector<double> evals;
  for (const Json& line : w.metrics("masked"))
    if (line.contains("eval_loss")) evals.push_back(line["eval_loss"]);
  ASSERT_GE(evals.size(), 2u);
  EXPECT_LT(evals.back(), 0.7 * evals.front());
  const Json all = evaluated(w.path("masked/final"), w.path("lines.txt"));
  EXPECT_NEAR(all["loss"].get<double>(), evals.back(), 1e-5);
  EXPECT_NEAR(all["perplexity"].get<double>(), std::exp(all["loss"].get<double>()), 1e-9);
  EXPECT_GT(all["tokens"], 0);
  EXPECT_EQ(evaluated(w.path("masked/final"), w.path("lines.txt"))["loss"], all["loss"]);

  spill(w.path("masks.txt"), "the cat sees the [MASK] road.\nno mask\n");
  const std::vector<Json> rows = predicted(w.path("masked/final"), w.path("masks.txt"));
  ASSERT_EQ(rows.size(), 2u);
  ASSERT_EQ(rows[0]["masks"].size(), 1u);
  EXPECT_TRUE(rows[1]["masks"].empty());
  const Json& tokens = rows[0]["masks"][0]["tokens"];
  ASSERT_EQ(tokens.size(), 5u);
  double before = 1;
  for (const Json& token : tokens) {
    EXPECT_LE(token["score"].get<double>(), before);
    before = token["score"];
  }
  const Outcome table =
      run({"predict", "--model", w.path("masked/final"), "--data", w.path("masks.txt")});
  EXPECT_NE(table.out.find("no mask in it"), std::string::npos) << table.out;
}

TEST(Encoders, WordsGetLabels) {
  const Workspace w;
  make_encoder_data(w);
  const Outcome o =
      train_encoder(w, "words",
                    {"task=token_classification", "train_data=" + w.path("words.jsonl"),
                     "eval_data=" + w.path("words.jsonl"), "max_steps=60"});
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  EXPECT_EQ(w.metrics("words").back()["eval_accuracy"], 1.0);
  const Json all = evaluated(w.path("words/final"), w.path("words.jsonl"));
  EXPECT_EQ(all["accuracy"], 1.0);
  EXPECT_EQ(all["tokens"], 80);
  // Of JSON and of lines of text; what is cut off has no label.
  spill(w.path("line.txt"), "a good film\n");
  const std::vector<Json> rows = predicted(w.path("words/final"), w.path("line.txt"));
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[0]["words"].size(), 3u);
  EXPECT_EQ(rows[0]["words"][1]["word"], "good");
  EXPECT_EQ(rows[0]["words"][1]["label"], "B");
  EXPECT_EQ(rows[0]["words"][0]["label"], "O");
  const std::vector<Json> cut =
      predicted(w.path("words/final"), w.path("line.txt"), {"--max-length", "4"});
  EXPECT_TRUE(cut[0]["words"][2]["label"].is_null()) << cut[0];
  EXPECT_EQ(predicted(w.path("words/final"), w.path("words.jsonl")).size(), 20u);
}

TEST(Encoders, SeveralLabelsAndValues) {
  const Workspace w;
  make_encoder_data(w);
  std::string several, values;
  for (int i = 0; i < 40; ++i) {
    several += Json({{"text", i % 2 == 0 ? "a good film" : "a bad film"},
                     {"labels", i % 2 == 0 ? Json({1.0, 0.0, 1.0}) : Json({0.0, 1.0, 1.0})}})
                   .dump() +
               "\n";
    values += i % 2 == 0 ? "a good film\t1.5\n" : "a bad film\t-0.5\n";
  }
  spill(w.path("several.jsonl"), several);
  spill(w.path("values.tsv"), values);
  ASSERT_EQ(train_encoder(
                w, "several",
                {"train_data=" + w.path("several.jsonl"), "eval_data=" + w.path("several.jsonl")})
                .code,
            0);
  const Json of_several = predicted(w.path("several/final"), w.path("several.jsonl")).front();
  EXPECT_EQ(of_several["labels"], Json({"LABEL_0", "LABEL_2"})) << of_several;
  EXPECT_EQ(evaluated(w.path("several/final"), w.path("several.jsonl"))["accuracy"], 1.0);
  ASSERT_EQ(
      train_encoder(w, "values",
                    {"train_data=" + w.path("values.tsv"), "eval_data=" + w.path("values.tsv")})
          .code,
      0);
  const std::vector<Json> of_values = predicted(w.path("values/final"), w.path("values.tsv"));
  EXPECT_NEAR(of_values[0]["value"].get<double>(), 1.5, 0.5);
  EXPECT_NEAR(of_values[1]["value"].get<double>(), -0.5, 0.5);
  // What is read by people has the same numbers, shorter.
  const auto table = [&](const char* model, const char* data) {
    const Outcome o = run({"predict", "--model", w.path(model), "--data", w.path(data)});
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  const std::string in_words = table("values/final", "values.tsv");
  for (size_t row = 0; row < 2; ++row) {
    char number[32];
    std::snprintf(number, sizeof number, "  %.6g ", of_values[row]["value"].get<double>());
    EXPECT_NE(in_words.find(number), std::string::npos) << number << "\n" << in_words;
  }
  const std::string labels = table("several/final", "several.jsonl");
  for (const auto& [name, score] : of_several["probabilities"].items()) {
    char number[64];
    std::snprintf(number, sizeof number, "%s %.4f", name.c_str(), score.get<double>());
    EXPECT_NE(labels.find(number), std::string::npos) << number << "\n" << labels;
  }
  // Of weights that are all zero every probability is one half, which is no label.
  const std::string file = w.path("several/final/model.safetensors"), bytes = slurp(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  spill(file, bytes.substr(0, 8 + header) + std::string(bytes.size() - 8 - header, '\0'));
  const Json of_none = predicted(w.path("several/final"), w.path("several.jsonl")).front();
  EXPECT_EQ(of_none["probabilities"]["LABEL_1"], 0.5) << of_none;
  EXPECT_EQ(of_none["labels"], Json::array()) << of_none;
  const Json pearson = evaluated(w.path("values/final"), w.path("values.tsv"));
  EXPECT_GT(pearson["pearson"], 0.99) << pearson;
}

TEST(Encoders, ThePreviewShowsTokensLabelsAndMasks) {
  const Workspace w;
  make_encoder_data(w);
  const auto preview = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = encoder_arguments(w, "preview", more);
    words[0] = "preview";
    words.insert(words.begin(), "data");
    const Outcome o = run(words);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  const Json j = Json::parse(preview({"--json", "-n", "4"}));
  ASSERT_EQ(j["samples"].size(), 4u);
  EXPECT_EQ(j["labels"], Json({"bad", "good"}));
  for (const Json& sample : j["samples"]) {
    const std::string label = sample["label"];
    EXPECT_NE(sample["text"].get<std::string>().find(label), std::string::npos) << sample;
    EXPECT_TRUE(sample["text"].get<std::string>().starts_with("[CLS] ")) << sample;
  }
  // What the file has in sum is what its rows have.
  const Json all = Json::parse(preview({"--json", "-n", "1000"}));
  size_t tokens = 0, longest = 0;
  std::set<int64_t> rows;
  for (const Json& sample : all["samples"])
    if (rows.insert(sample["row"].get<int64_t>()).second) {
      tokens += sample["tokens"].size();
      longest = std::max(longest, sample["tokens"].size());
    }
  const Outcome said = run(encoder_arguments(w, "one", {"max_steps=1"}));
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_NE(said.out.find("train_data: " + std::to_string(rows.size()) + " rows, " +
                          std::to_string(tokens) + " tokens, longest " + std::to_string(longest)),
            std::string::npos)
      << said.out;
  spill(w.path("several.jsonl"),
        "{\"text\": \"a good film\", \"labels\": [1.0, 0.0, 1.0]}\n"
        "{\"text\": \"a bad film\", \"labels\": [0.0, 1.0, 1.0]}\n");
  const Json several = Json::parse(
      preview({"--json", "-n", "2", "global_batch_size=2", "train_data=" + w.path("several.jsonl"),
               "eval_data=" + w.path("several.jsonl")}));
  ASSERT_EQ(several["samples"].size(), 2u);
  for (const Json& sample : several["samples"])
    EXPECT_EQ(sample["values"], sample["text"].get<std::string>().find("good") != std::string::npos
                                    ? Json({1.0, 0.0, 1.0})
                                    : Json({0.0, 1.0, 1.0}));
  const std::string text = preview({"-n", "1", "--held-out"});
  EXPECT_NE(text.find("[CLS]"), std::string::npos) << text;
  const std::string masked = preview({"task=masked_lm", "train_data=" + w.path("lines.txt"),
                                      "eval_data=" + w.path("lines.txt"), "-n", "20"});
  EXPECT_NE(masked.find("[MASK]{{"), std::string::npos) << masked;
  const std::string words =
      preview({"task=token_classification", "train_data=" + w.path("words.jsonl"),
               "eval_data=" + w.path("words.jsonl"), "-n", "5"});
  EXPECT_NE(words.find("film{{O}}"), std::string::npos) << words;
  EXPECT_FALSE(exists(w.path("preview")));
  std::vector<std::string> behind = encoder_arguments(w, "preview");
  behind[0] = "preview";
  behind.insert(behind.begin(), "data");
  const Outcome o = run(joined(behind, {"--held-out", "--first", "40"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("expected --first below 40, the rows held out\n  found: 40\n"
                       "  try:   --first 0"),
            std::string::npos)
      << o.err;
}

}  // namespace
}  // namespace snug::e2e
