// packing_boundaries from the user's side: training, evaluation and the preview keep the documents
// of a sample apart, resume holds on to it, and data that does not say where they end is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const char* const kApart = "packing_boundaries=true";

// Records of one to four short sentences.
std::string records(int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += Json({{"text", sentences(1 + i % 4, static_cast<unsigned>(i))}}).dump() + "\n";
  return out;
}

class Documents : public Workspace {
 public:
  Documents() { spill(path("a.jsonl"), records(200)); }
  std::vector<std::string> keys(std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"train_data=" + path("a.jsonl"), kApart, "save_steps=6", "eval_steps=6"});
    return more;
  }
  // A tokenizer without a token that ends a text, and so texts of a letter that are one token: 400
  // of them in ones.jsonl, and long.jsonl with a long text behind.
  void write_ones() const {
    Json bare = json("tok.json");
    bare["added_tokens"] = Json::array();
    bare["model"]["vocab"]["unused"] = bare["model"]["vocab"].at("<|endoftext|>");
    bare["model"]["vocab"].erase("<|endoftext|>");
    spill(path("bare.json"), bare.dump());
    std::string ones;
    for (int i = 0; i < 400; ++i) ones += "{\"text\": \"a\"}\n";
    spill(path("ones.jsonl"), ones);
    spill(path("long.jsonl"), ones + Json({{"text", sentences(60, 3)}}).dump() + "\n");
  }
};

TEST(PackingBoundaries, TrainsEvaluatesAndPlansToTheByte) {
  const Documents w;
  const Outcome apart = w.trained("apart", w.keys());
  EXPECT_NE(apart.out.find("documents kept apart"), std::string::npos) << apart.out;
  expect_planned_is_measured(w, "apart");
  EXPECT_EQ(w.json("apart/plan.json")["decisions"]["packing_boundaries"], true);
  EXPECT_NE(slurp(w.path("apart/config.resolved.yaml")).find("packing_boundaries: true"),
            std::string::npos);
  // Other numbers than crossing documents; the other trainer's name means the same.
  w.trained("crossing", {"train_data=" + w.path("a.jsonl"), "save_steps=6", "eval_steps=6"});
  EXPECT_NE(w.curve("apart"), w.curve("crossing"));
  EXPECT_EQ(w.json("crossing/plan.json")["decisions"]["packing_boundaries"], false);
  std::vector<std::string> other = w.keys();
  other[1] = "neat_packing=true";
  w.trained("other", other);
  EXPECT_EQ(w.curve("other"), w.curve("apart"));
  // The same in micro-batches that recompute, up to the order of the sums over micro-batches.
  w.trained("small", w.keys({"per_device_train_batch_size=2", "recompute=block"}));
  const std::vector<double> a = w.losses("apart"), b = w.losses("small");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-3 * a[i]) << i;
  w.trained("bf16", w.keys({"precision=bf16"}));
  EXPECT_NEAR(w.losses("bf16").back(), a.back(), 0.1 * a.back());
}

// A file as text and as tokens with their index is the same run.
TEST(PackingBoundaries, TokenFilesWithTheirIndexServe) {
  const Documents w;
  w.trained("text", w.keys());
  std::vector<std::string> tokens = w.keys();
  tokens[0] = "train_data=" + w.path("text/data/train.bin");
  w.trained("tokens", tokens);
  EXPECT_EQ(w.curve("tokens"), w.curve("text"));
}

TEST(PackingBoundaries, ResumeHoldsOnToIt) {
  const Documents w;
  w.trained("whole", w.keys());
  fs::copy(w.path("whole"), w.path("run"), fs::copy_options::recursive);
  for (const char* name : {"run/checkpoint-12", "run/final", "run/memory.json"})
    fs::remove_all(w.path(name));
  EXPECT_EQ(w.json("run/checkpoint-6/snug_state.json")["pinned"]["packing_boundaries"], true);
  std::vector<std::string> crossing = w.keys({"resume=latest"});
  crossing[1] = "packing_boundaries=false";
  const Outcome refused = w.train("run", crossing);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("packing_boundaries as in "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("found: false"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("packing_boundaries=true, or a new run"), std::string::npos)
      << refused.err;
  w.trained("run", w.keys({"resume=latest"}));
  EXPECT_EQ(w.curve("run"), w.curve("whole"));
  EXPECT_EQ(slurp(w.path("run/final/model.safetensors")),
            slurp(w.path("whole/final/model.safetensors")));
  // The places of documents are data too: other ones over the same tokens are other data.
  fs::copy(w.path("whole/data/train.bin"), w.path("moved.bin"));
  fs::copy(w.path("whole/data/train.bin.idx"), w.path("moved.bin.idx"));
  std::vector<std::string> tokens = w.keys({"eval_fraction=0", "eval_steps=200"});
  tokens[0] = "train_data=" + w.path("moved.bin");
  w.trained("moved", tokens);
  std::string index = slurp(w.path("moved.bin.idx"));
  --index[32];  // the first document ends one token earlier
  spill(w.path("moved.bin.idx"), index);
  tokens.insert(tokens.end(), {"resume=latest", "max_steps=14"});
  const Outcome other = w.train("moved", tokens);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("the training data of "), std::string::npos) << other.err;
}

TEST(PackingBoundaries, ThePreviewShowsWhatIsNotTrained) {
  const Documents w;
  const auto preview = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"data",
                                      "preview",
                                      "--json",
                                      "-n",
                                      "40",
                                      "tokenizer=" + w.path("tok.json"),
                                      "max_length=16",
                                      "train_data=" + w.path("a.jsonl")};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json apart = preview({kApart}), crossing = preview({});
  EXPECT_EQ(apart["packing_boundaries"], true);
  EXPECT_EQ(crossing["packing_boundaries"], false);
  int untrained = 0;
  for (size_t i = 0; i < 40; ++i) {
    std::vector<int> a, b;  // the tokens are the same, trained or not
    for (const Json& span : apart["samples"][i]["spans"]) {
      for (const Json& id : span["tokens"]) a.push_back(id);
      if (!span["trained"] && a.size() > 1) {
        EXPECT_EQ(span["tokens"].size(), 1u);
        EXPECT_EQ(span["document_start"], true);
        ++untrained;
      }
    }
    for (const Json& span : crossing["samples"][i]["spans"])
      for (const Json& id : span["tokens"]) b.push_back(id);
    EXPECT_EQ(a, b);
    EXPECT_EQ(a.size(), 17u);
  }
  EXPECT_GT(untrained, 10);
  const Outcome text = run({"data", "preview", "-n", "4", "tokenizer=" + w.path("tok.json"),
                            "max_length=64", "train_data=" + w.path("a.jsonl"), kApart});
  EXPECT_NE(text.out.find("Documents are kept apart"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("|document|"), std::string::npos) << text.out;
}

// The loss of a text of documents is the mean over their tokens but the first, each document alone.
TEST(PackingBoundaries, EvaluationTakesDocumentsApart) {
  const Documents w;
  w.trained("run", w.keys({"max_length=64"}));
  const auto eval = [&](const std::string& file, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"eval", "--model", w.path("run/final"), "--data", w.path(file), "--max-length",
                 "64", "--memory", "64MiB", "--threads", "1", "--json"});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  };
  // One window of 65 tokens: the same document again and again, and so the same loss as once.
  std::string once = "{\"text\": \"a b c d e f g\"}\n", many;
  for (int i = 0; i < 40; ++i) many += once;
  spill(w.path("many.jsonl"), many);
  const Json apart = eval("many.jsonl", {"--packing-boundaries"});
  const Json crossing = eval("many.jsonl", {});
  EXPECT_EQ(apart["packing_boundaries"], true);
  EXPECT_LT(apart["tokens"], crossing["tokens"]);
  // A window's first document is cut wherever the window begins: the first window is whole.
  const Json first = eval("many.jsonl", {"--packing-boundaries", "--max-samples", "1"});
  const Json strided = eval("many.jsonl", {"--stride", "1", "--max-samples", "1"});
  EXPECT_GT(first["tokens"].get<int>(), 40);
  EXPECT_LT(first["tokens"].get<int>(), 64);
  EXPECT_NE(first["loss"], strided["loss"]);

  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& parts) {
    words.insert(words.begin(), {"eval", "--model", w.path("run/final"), "--packing-boundaries"});
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    for (const std::string& part : parts)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  };
  refused({"--data", w.path("many.jsonl"), "--stride", "8"},
          {"--stride or --packing-boundaries, not both", "leave --stride out"});
  spill(w.path("q.jsonl"), "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n");
  refused({"--choices", w.path("q.jsonl")},
          {"--packing-boundaries only with --data", "leave them out"});
  spill(w.path("raw.bin"), raw_tokens(numbered_tokens(300, 100)));
  refused({"--data", w.path("raw.bin"), "--max-length", "16"},
          {"raw.bin.idx, for packing_boundaries (command line)", "no such file"});
}

TEST(PackingBoundaries, DataWithoutDocumentsIsRefused) {
  const Documents w;
  const auto refused = [&](const std::string& name, const std::vector<std::string>& more,
                           const std::vector<std::string>& parts) {
    std::vector<std::string> words = more;
    words.emplace_back(kApart);
    const Outcome outcome = w.train(name, words);
    EXPECT_EQ(outcome.code, 2) << name;
    for (const std::string& part : parts)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
    EXPECT_FALSE(exists(w.path(name)));
  };
  spill(w.path("raw.bin"), raw_tokens(numbered_tokens(3000, 200)));
  refused("raw", {"train_data=" + w.path("raw.bin")},
          {"the ends of documents, " + w.path("raw.bin") + ".idx",
           "for packing_boundaries (command line)", "no such file", "give the text"});
  refused("raw-eval", {"eval_fraction=0", "eval_data=" + w.path("raw.bin")}, {"raw.bin.idx"});
  // The index that was made with the tokens serves; without it they do not.
  w.trained("run", w.keys({"max_steps=2"}));
  fs::copy(w.path("run/data/train.bin"), w.path("alone.bin"));
  refused("alone", {"train_data=" + w.path("alone.bin")}, {"alone.bin.idx", "no such file"});
  w.write_ones();
  refused("ones", {"train_data=" + w.path("ones.jsonl"), "tokenizer=" + w.path("bare.json")},
          {"a document of two tokens or more for ", "400 documents of one token each",
           "leave packing_boundaries out"});
  for (const char* key : {"reset_attention_mask", "reset_position_ids", "eod_mask_loss"}) {
    const Outcome outcome = w.train("megatron", {std::string(key) + "=true"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("packing_boundaries does all three"), std::string::npos)
        << outcome.err;
  }
}

// Samples whose documents all have one token hold nothing to learn from or to compare with.
TEST(PackingBoundaries, SamplesWithoutATarget) {
  const Documents w;
  w.write_ones();
  const auto expect_parts = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
  };
  const std::vector<std::string> bare = {"tokenizer=" + w.path("bare.json"), kApart,
                                         "eval_fraction=0", "max_length=32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), bare.begin(), bare.end());
    return more;
  };
  // Their loss would be the best of all: no run begins. One sample more that has a target, and it
  // does.
  const std::string eval = "eval_data=" + w.path("long.jsonl");
  const Outcome one = w.train("one", with({eval, "max_eval_samples=1"}));
  EXPECT_EQ(one.code, 2) << one.out;
  expect_parts(one.err, {"data: expected a target to evaluate in 1 sample for packing_boundaries "
                         "(command line)\n",
                         "  found: none: no token of theirs follows another of its document\n",
                         "  try:   a larger max_eval_samples, other data to evaluate, or leave "
                         "packing_boundaries out\n"});
  EXPECT_FALSE(exists(w.path("one")));
  w.trained("one", with({eval, "max_eval_samples=14", "save_steps=6"}));
  for (const Json& line : w.metrics("one")) {
    EXPECT_GT(line.value("eval_loss", 9.0), 0.1) << line;
  }
  const std::vector<std::string> command = {
      "eval",         "--model", w.path("one/final"),   "--data", w.path("long.jsonl"),
      "--max-length", "32",      "--packing-boundaries"};
  std::vector<std::string> first = command;
  first.insert(first.end(), {"--max-samples", "2"});
  const Outcome none = run(first);
  EXPECT_EQ(none.code, 2) << none.out;
  expect_parts(none.err, {"a target to evaluate in 2 samples", "a larger --max-samples, other"});
  EXPECT_EQ(run(command).code, 0);

  // Held out by document: those of one token in a quarter of the data.
  std::string most;
  for (int i = 0; i < 400; ++i)
    most += i == 200 ? "{\"text\": \"a b c d\"}\n" : "{\"text\": \"a\"}\n";
  spill(w.path("most.jsonl"), most);
  std::vector<std::string> held = with({"train_data=" + w.path("most.jsonl"), "max_length=8"});
  held[2] = "eval_fraction=0.25";
  const Outcome tail = w.train("held", held);
  EXPECT_EQ(tail.code, 2) << tail.out;
  expect_parts(tail.err, {"a target to evaluate in ", "try:   other data to evaluate, or leave"});
}

// Steps of samples without a target are skipped and counted: weights, optimizer and schedule stay,
// whatever is saved, resumed or accumulated between.
TEST(PackingBoundaries, AStepWithoutATargetIsSkipped) {
  const Documents w;
  w.write_ones();
  const std::vector<std::string> keys = {"tokenizer=" + w.path("bare.json"),
                                         "train_data=" + w.path("long.jsonl"),
                                         kApart,
                                         "eval_fraction=0",
                                         "max_length=8",
                                         "global_batch_size=1",
                                         "save_steps=1",
                                         "warmup_steps=0",
                                         "lr_scheduler_type=linear"};
  const Outcome o = w.trained("whole", keys);
  int skipped = 0, trained = 0;
  for (const Json& line : w.metrics("whole")) {
    const int step = line["step"];
    const std::string now = w.path("whole/checkpoint-" + std::to_string(step)),
                      before = w.path("whole/checkpoint-" + std::to_string(step - 1));
    const bool same =
        step > 1 && slurp(now + "/model.safetensors") == slurp(before + "/model.safetensors");
    // A step has the rate of the updates before it.
    EXPECT_NEAR(line["learning_rate"].get<double>(), 0.01 * (12 - trained) / 12, 1e-9) << line;
    if (line["loss"].is_null()) {
      ++skipped;
      EXPECT_TRUE(line["grad_norm"].is_null()) << line;
      EXPECT_TRUE(step == 1 || same) << line;
      EXPECT_TRUE(step == 1 ||
                  slurp(now + "/optimizer.safetensors") == slurp(before + "/optimizer.safetensors"))
          << line;
    } else {
      ++trained;
      EXPECT_FALSE(same) << line;
    }
    EXPECT_EQ(line["skipped_steps"], skipped) << line;
  }
  ASSERT_GT(skipped, 1);
  ASSERT_GT(trained, 1);
  EXPECT_EQ(w.json("whole/checkpoint-12/snug_state.json")["updates"], trained);
  EXPECT_NE(o.out.find(": no sample of it has a target (packing_boundaries): skipped"),
            std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("Skipped " + std::to_string(skipped) +
                       " of 12 steps: no sample of theirs has a target (packing_boundaries, "
                       "command line)\n"),
            std::string::npos)
      << o.out;
  expect_planned_is_measured(w, "whole");

  for (const int step : {3, 6}) {
    const std::string name = "parts" + std::to_string(step);
    lose_power_after(w, "whole", name, step);
    const Outcome resumed = w.trained(name, joined(keys, {"resume=latest"}));
    expect_same_run(w, "whole", name);
    EXPECT_NE(resumed.out.find("Skipped " + std::to_string(skipped) + " of 12"), std::string::npos)
        << resumed.out;
  }
  // Some micro-steps of a step have no target; the same samples are skipped on another place.
  spill(w.path("mostly.jsonl"),
        slurp(w.path("ones.jsonl")) + Json({{"text", sentences(10, 3)}}).dump() + "\n");
  const std::vector<std::string> two =
      joined(keys, {"global_batch_size=2", "train_data=" + w.path("mostly.jsonl")});
  w.trained("once", two);
  w.trained("twice", joined(two, {"per_device_train_batch_size=1"}));
  w.trained("emu", joined(two, {"device=emu"}));
  const std::vector<Json> once = w.metrics("once");
  for (const char* other : {"twice", "emu"}) {
    const std::vector<Json> lines = w.metrics(other);
    ASSERT_EQ(lines.size(), once.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["skipped_steps"], once[i]["skipped_steps"]) << other;
      ASSERT_EQ(lines[i]["loss"].is_null(), once[i]["loss"].is_null()) << other;
      if (once[i]["loss"].is_null()) continue;
      const double loss = once[i]["loss"];
      EXPECT_NEAR(lines[i]["loss"].get<double>(), loss, 1e-3 * loss) << other;
    }
  }
  EXPECT_GT(once.back()["skipped_steps"], 0);
}

// Known before the start: where no sample of the run has a target it does not begin.
TEST(PackingBoundaries, ARunWithoutATargetIsRefused) {
  const Documents w;
  w.write_ones();
  const std::vector<std::string> keys = {"tokenizer=" + w.path("bare.json"), kApart,
                                         "eval_fraction=0", "max_length=8", "global_batch_size=1"};
  // The two tokens of the last document are in no sample.
  std::string ones;
  for (int i = 0; i < 401; ++i) ones += i < 400 ? "{\"text\": \"a\"}\n" : "{\"text\": \"ab\"}\n";
  spill(w.path("tail.jsonl"), ones);
  const auto refused = [&](const std::vector<std::string>& more, const std::string& text) {
    const Outcome o = w.train("run", joined(keys, more));
    EXPECT_EQ(o.code, 2) << o.out;
    EXPECT_EQ(o.err, text);
    EXPECT_FALSE(exists(w.path("run")));
  };
  const std::string found =
      " for packing_boundaries (command line)\n  found: none: no token of theirs follows another "
      "of its document\n  try:   ";
  refused({"train_data=" + w.path("tail.jsonl"), "max_steps=50"},
          "data: expected a target to train in the run's 50 samples" + found +
              "other data, or leave packing_boundaries out\n");
  // A run so short that it comes to none; longer, as the message says, it begins.
  std::vector<std::string> ends;
  for (int seed = 1; seed <= 20; ++seed) {
    ends = {"train_data=" + w.path("long.jsonl"), "data_seed=" + std::to_string(seed)};
    if (w.train("seeds", joined(keys, joined(ends, {"max_steps=1", "overwrite=true"}))).code == 2)
      break;
  }
  refused(joined(ends, {"max_steps=1"}),
          "data: expected a target to train in the run's 1 sample" + found +
              "more steps, other data, or leave packing_boundaries out\n");
  w.trained("run", joined(keys, joined(ends, {"max_steps=12"})));
}

}  // namespace
}  // namespace snug::e2e
