// Data from the user's side: every form, the cache of tokens, the preview, files that change.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/io/packed.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

// Short documents of the sentences that the tokenizer knows.
std::vector<std::string> documents(int count) {
  std::vector<std::string> list;
  for (int i = 0; i < count; ++i)
    list.push_back(sentences(1 + i % 4, static_cast<unsigned>(i)) + "\"a, b\"\tc");
  return list;
}

std::string csv(const std::vector<std::string>& texts, char separator) {
  std::string out = std::string("id") + separator + "text\r\n";
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string field;
    for (const char c : texts[i]) field += c == '"' ? std::string("\"\"") : std::string(1, c);
    out += std::to_string(i) + separator + '"' + field + "\"\r\n";
  }
  return out;
}

std::string jsonl(const std::vector<std::string>& texts, const char* key = "text") {
  std::string out;
  for (const std::string& text : texts) out += Json({{key, text}}).dump() + "\n";
  return out;
}

Json preview(const Workspace& w, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"data", "preview", "--json", "tokenizer=" + w.path("tok.json"),
                                    "max_length=16"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? Json::parse(outcome.out) : Json();
}

TEST(SlowDataForms, TheSameTokensGiveTheSameRun) {
  const Workspace w;
  const std::vector<std::string> texts = documents(120);
  fs::create_directory(w.path("folder"));
  for (int i = 0; i < 120; ++i) {
    std::string name = std::to_string(i);
    name.insert(0, 3 - name.size(), '0');
    spill(w.path("folder/" + name + ".txt"), texts[static_cast<size_t>(i)]);
  }
  const std::pair<const char*, std::string> forms[] = {{"a.jsonl", jsonl(texts)},
                                                       {"a.jsonl.gz", test::gzip(jsonl(texts))},
                                                       {"a.jsonl.zst", test::zstd(jsonl(texts))},
                                                       {"a.csv", csv(texts, ',')},
                                                       {"a.csv.zst", test::zstd(csv(texts, ','))},
                                                       {"a.tsv.gz", test::gzip(csv(texts, '\t'))}};
  w.trained("folder-run", {"train_data=" + w.path("folder")});
  const std::string curve = w.curve("folder-run");
  EXPECT_NE(curve.find("eval_loss"), std::string::npos);
  for (const auto& [name, content] : forms) {
    spill(w.path(name), content);
    const std::string out = std::string("run-") + name;
    std::vector<std::string> keys = {"train_data=" + w.path(name)};
    if (std::string_view(name).starts_with("a.tsv")) keys.emplace_back("quoting=minimal");
    const Outcome outcome = w.trained(out, keys);
    EXPECT_NE(outcome.out.find("120 documents"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("12 documents held out whole"), std::string::npos) << outcome.out;
    EXPECT_EQ(w.curve(out), curve) << name;
  }
  // And as the token file that one of them left, which says whose tokens it holds.
  const std::string tokens = w.path("run-a.csv/data/train.bin");
  w.trained("tokens", {"train_data=" + tokens});
  EXPECT_EQ(w.curve("tokens"), curve);
  run({"tokenizer", "train", "--vocab-size", "290", "--output", w.path("other.json"),
       w.path("text.txt")});
  const Outcome refused =
      w.train("refused", {"train_data=" + tokens, "tokenizer=" + w.path("other.json")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("tokens of this run's tokenizer"), std::string::npos) << refused.err;
  EXPECT_FALSE(exists(w.path("refused")));
}

// Nothing is planned for a run that has nothing to learn from.
TEST(Data, NoneIsSaidBeforeThePlan) {
  const Workspace w;
  const Outcome o = w.train("run", {"train_data=null"});
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(o.out.find("hash"), std::string::npos) << o.out;
  EXPECT_FALSE(exists(w.path("run")));
}

TEST(DataForms, TheColumnAndItsErrors) {
  const Workspace w;
  spill(w.path("a.jsonl"), jsonl(documents(80), "body"));
  w.trained("run", {"train_data=" + w.path("a.jsonl"), "text_column=body", "max_steps=2"});
  const Outcome eval = run({"eval", "--model", w.path("run/final"), "--data", w.path("a.jsonl"),
                            "--text-column", "body", "--json"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  const Outcome none = w.train("none", {"train_data=" + w.path("a.jsonl")});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("a.jsonl:1: no \"text\", but \"body\""), std::string::npos) << none.err;
  const Outcome made = run({"tokenizer", "train", "--vocab-size", "280", "--output",
                            w.path("t2.json"), "--text-column", "body", w.path("a.jsonl")});
  EXPECT_EQ(made.code, 0) << made.err;
}

// Whoever reads JSON is told of the data what the others are: here, rows that quotes have eaten.
TEST(DataForms, JsonSaysWhatBecameOfTheData) {
  const Workspace w;
  std::string table = "text\n";
  for (int i = 0; i < 80; ++i) table += "the cat sees a red door " + std::to_string(i) + "\n";
  spill(w.path("a.csv"), table + "\"one\ntwo\"\n");
  w.trained("run", {"max_steps=2"});
  const std::string said = "1 line break inside of quotes, e.g. at " + w.path("a.csv") + ":82";
  EXPECT_NE(preview(w, {"train_data=" + w.path("a.csv")})["data"].get<std::string>().find(said),
            std::string::npos);
  const Outcome eval =
      run({"eval", "--model", w.path("run/final"), "--data", w.path("a.csv"), "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_NE(Json::parse(eval.out)["data"].get<std::string>().find(said), std::string::npos)
      << eval.out;
}

// What is skipped is counted, in words that fit the number, and the first of it is named.
TEST(DataForms, FilesThatAreNoTextAreCounted) {
  const Workspace w;
  fs::create_directories(w.path("f"));
  spill(w.path("f/a.txt"), slurp(w.path("text.txt")));
  spill(w.path("f/b.txt"), "no\xff text");
  std::string records;
  for (int i = 0; i < 3; ++i) records += Json({{"text", slurp(w.path("text.txt"))}}).dump() + "\n";
  spill(w.path("f/d.jsonl"), records);
  for (const auto& [files, words] : {std::pair(1, "1 file that is not text skipped, e.g. "),
                                     {2, "2 files that are not text skipped, e.g. "}}) {
    if (files == 2) spill(w.path("f/c.txt"), "nor\xff this");
    const Outcome o =
        w.trained("run", {"train_data=" + w.path("f"), "max_steps=1", "overwrite=true"});
    EXPECT_NE(o.out.find(" (" + (words + w.path("f/b.txt")) + ")"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("2 files, 4 documents, "), std::string::npos) << o.out;
  }
}

// A column that nothing has, and tables without the one that is asked for.
TEST(DataForms, TokenizerTrainSpeaksOfColumns) {
  const Workspace w;
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"tokenizer", "train",    "--vocab-size",
                                      "270",       "--output", w.path("t.json")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Outcome none = train({"--text-column", "body", w.path("text.txt")});
  EXPECT_EQ(none.code, 2);
  for (const char* part : {"a .jsonl, .csv or .tsv file for --text-column",
                           "body, and none in the data", "leave it out"})
    EXPECT_NE(none.err.find(part), std::string::npos) << none.err;
  EXPECT_FALSE(exists(w.path("t.json")));
  fs::create_directories(w.path("f"));
  spill(w.path("f/a.csv"), csv(documents(50), ','));
  spill(w.path("f/b.csv"), "id,body\n1,x\n");
  const Outcome some = train({w.path("f")});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_NE(
      some.out.find("skipped: 1 table without a column \"text\", for example " + w.path("f/b.csv")),
      std::string::npos)
      << some.out;
  // The cache remembers it as well.
  for (const char* name : {"first", "second"}) {
    const Outcome o = w.trained(
        name, {"train_data=" + w.path("f"), "token_cache=" + w.path("cache"), "max_steps=1"});
    EXPECT_NE(o.out.find("1 table without a column \"text\" skipped, e.g. " + w.path("f/b.csv")),
              std::string::npos)
        << o.out;
  }
}

// Made again in the folder of its text, it is the same tokenizer: what the first wrote is no text.
TEST(DataForms, ATokenizerIsNotMadeOfItself) {
  const Workspace w;
  fs::create_directories(w.path("f"));
  spill(w.path("f/a.txt"), sentences(40, 1));
  struct Case {
    const char* output;
    const char* source;
    const char* type;
    std::string writes;
  };
  for (const Case& c :
       {Case{"f/t.json", "f", "bpe", "f/t.json"}, Case{"f/tok", "f", "bpe", "f/tok/tokenizer.json"},
        Case{"f", "f", "wordpiece", "f/tokenizer.json"},
        Case{"f/t.json", "f/*", "bpe", "f/t.json"}}) {
    const auto train = [&] {
      return run({"tokenizer", "train", "--vocab-size", "300", "--overwrite", "--type", c.type,
                  "--output", w.path(c.output), w.path(c.source)});
    };
    const Outcome first = train();
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_EQ(first.out.find("text: "), 0u) << first.out;
    EXPECT_NE(first.out.find(" in 1 file,"), std::string::npos) << first.out;
    const std::string made = slurp(w.path(c.writes));
    const Outcome again = train();
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.out, first.out) << c.output;
    EXPECT_EQ(slurp(w.path(c.writes)), made) << c.output;
    for (const char* name :
         {"f/t.json", "f/tok", "f/tokenizer.json", "f/tokenizer_config.json", "f/vocab.txt"})
      fs::remove_all(w.path(name));
  }
  // Of nothing else there is no text.
  const Outcome none = run({"tokenizer", "train", "--vocab-size", "300", "--overwrite", "--output",
                            w.path("tok.json"), w.path("tok.json")});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("text beside " + w.path("tok.json")), std::string::npos) << none.err;
}

// A tokenizer that puts a space before its text gives a long document the ids of the whole.
TEST(DataForms, TokenizersThatNeedWholeDocumentsGetThem) {
  const Workspace w;
  std::string text;
  while (text.size() < (1 << 20) + 100'000)
    text += "the quick brown fox jumps\nover the lazy dog\n";
  spill(w.path("long.txt"), text);
  Json tokenizer = w.json("tok.json");
  tokenizer["pre_tokenizer"]["add_prefix_space"] = true;
  spill(w.path("prefix.json"), tokenizer.dump());
  w.trained("run", {"train_data=" + w.path("long.txt"), "tokenizer=" + w.path("prefix.json"),
                    "max_steps=1", "eval_fraction=0"});
  const std::string bytes = slurp(w.path("run/data/train.bin")).substr(1024);
  const Outcome whole = run({"tokenizer", "encode", "--tokenizer", w.path("prefix.json")}, text);
  ASSERT_EQ(whole.code, 0) << whole.err;
  std::string ids;
  for (size_t i = 0; i + 2 < bytes.size(); i += 2) {  // less the end of the document
    uint16_t id = 0;
    std::memcpy(&id, bytes.data() + i, 2);
    ids += (i > 0 ? " " : "") + std::to_string(id);
  }
  EXPECT_TRUE(ids + "\n" == whole.out) << ids.size() << " and " << whole.out.size();
}

TEST(TokenCache, IsFoundAgainAndChecked) {
  const Workspace w;
  spill(w.path("a.jsonl"), jsonl(documents(100)));
  const std::vector<std::string> common = {"train_data=" + w.path("a.jsonl"),
                                           "token_cache=" + w.path("cache"), "max_steps=3"};
  const Outcome first = w.trained("first", common);
  EXPECT_NE(first.out.find("as tokens in " + w.path("cache/tokens-")), std::string::npos)
      << first.out;
  EXPECT_FALSE(exists(w.path("first/data")));
  ASSERT_EQ(listing(w.path("cache")).size(), 3u);  // tokens, index, facts
  const std::string file = w.path("cache/" + listing(w.path("cache")).front());
  const auto made = fs::last_write_time(file);
  const Outcome second = w.trained("second", common);
  EXPECT_NE(second.out.find("as tokens found in "), std::string::npos) << second.out;
  EXPECT_EQ(fs::last_write_time(file), made);
  EXPECT_EQ(w.curve("second"), w.curve("first"));
  std::vector<std::string> without = common;
  without[1] = "token_cache=none";
  w.trained("without", without);
  EXPECT_EQ(w.curve("without"), w.curve("first"));
  EXPECT_TRUE(exists(w.path("without/data/train.bin")));
  // A damaged one is made again, and other text gets another.
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(1500).put('\x01');
  const Outcome third = w.trained("third", common);
  EXPECT_NE(third.err.find("made again"), std::string::npos) << third.err;
  EXPECT_EQ(w.curve("third"), w.curve("first"));
  spill(w.path("a.jsonl"), jsonl(documents(101)));
  w.trained("fourth", common);
  EXPECT_EQ(listing(w.path("cache")).size(), 6u);
  spill(w.path("file"), "");
  const Outcome bad = w.train("bad", {"token_cache=" + w.path("file")});
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("token_cache as a folder"), std::string::npos) << bad.err;
}

TEST(DataPreview, ShowsTheSamplesOfTheRun) {
  const Workspace w;
  const std::vector<std::string> texts = documents(100);
  spill(w.path("a.jsonl"), jsonl(texts));
  const std::vector<std::string> keys = {"train_data=" + w.path("a.jsonl"), "eval_fraction=0.1"};
  std::vector<std::string> words = keys;
  EXPECT_EQ(preview(w, words)["samples"].size(), 3u) << "unless -n says how many";
  words.insert(words.end(), {"-n", "5"});
  const Json five = preview(w, words);
  EXPECT_EQ(five["documents"], 100);
  EXPECT_EQ(five["held_out_documents"], 10);
  EXPECT_EQ(five["max_length"], 16);
  ASSERT_EQ(five["samples"].size(), 5u);
  for (const Json& sample : five["samples"]) {
    size_t tokens = 0, trained = 0;
    for (const Json& span : sample["spans"]) {
      tokens += span["tokens"].size();
      if (span["trained"]) trained += span["tokens"].size();
    }
    EXPECT_EQ(tokens, 17u);
    EXPECT_EQ(trained, 16u);
  }
  // From any sample on: the order is a function of its number. An epoch later it is another.
  words = keys;
  words.insert(words.end(), {"-n", "2", "--first", "3"});
  const Json two = preview(w, words);
  EXPECT_EQ(two["samples"][0], five["samples"][3]);
  EXPECT_EQ(two["samples"][1], five["samples"][4]);
  words.back() = std::to_string(five["train_samples"].get<int64_t>());
  EXPECT_NE(preview(w, words)["samples"][0]["window"], five["samples"][0]["window"]);
  const int64_t epoch = five["train_samples"];
  std::vector<std::string> seam = {"data", "preview", "tokenizer=" + w.path("tok.json"),
                                   "max_length=16"};
  seam.insert(seam.end(), keys.begin(), keys.end());
  seam.insert(seam.end(), {"-n", "2", "--first", std::to_string(epoch - 1)});
  const Outcome both = run(seam);
  for (const int64_t k : {epoch - 1, epoch})
    EXPECT_NE(both.out.find("sample " + std::to_string(k) + " of epoch " +
                            std::to_string(k / epoch) + ": "),
              std::string::npos)
        << both.out;
  words = keys;
  words.insert(words.end(), {"-n", "100000", "--held-out"});
  const Json held = preview(w, words);
  EXPECT_EQ(static_cast<int64_t>(held["samples"].size()), held["eval_samples"].get<int64_t>());
  int starts = 0;
  for (const Json& sample : held["samples"])
    for (const Json& span : sample["spans"]) starts += span["document_start"] ? 1 : 0;
  EXPECT_GE(starts, 3);
  EXPECT_LE(starts, 10);

  // For people: marked where colours cannot be, and nothing that moves a cursor.
  spill(w.path("b.jsonl"), jsonl({"go \x1b[2J up \xc2\x9b"
                                  "1m" +
                                  sentences(30, 1)}));
  const Outcome text = run({"data", "preview", "train_data=" + w.path("b.jsonl"), "-n", "1",
                            "tokenizer=" + w.path("tok.json"), "max_length=100", "seed=2"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("Trained tokens stand in {{ }}"), std::string::npos);
  EXPECT_NE(text.out.find("sample 0 of epoch 0: window "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("{{"), std::string::npos);
  const Outcome all = run({"data", "preview", "train_data=" + w.path("b.jsonl"), "-n", "20",
                           "tokenizer=" + w.path("tok.json"), "max_length=100"});
  EXPECT_NE(all.out.find("\\x1b[2J"), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(all.out.find("\xc2\x9b"), std::string::npos);
  // Tokens without a tokenizer are numbers; a model's positions bound the samples.
  spill(w.path("raw.bin"), raw_tokens(numbered_tokens(200, 20)));
  const Outcome ids =
      run({"data", "preview", "train_data=" + w.path("raw.bin"), "max_length=4", "-n", "1",
           "model={type: gpt2, n_layer: 1, n_embd: 8, n_head: 1, "
           "n_positions: 8, vocab_size: 20}"});
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_NE(ids.out.find("{{"), std::string::npos) << ids.out;
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"-n", "-1"},
                                              {"--first", "-2"},
                                              {"--held-out"},
                                              {"train_data=null"}}) {
    std::vector<std::string> line = {"data", "preview", "train_data=" + w.path("a.jsonl"),
                                     "tokenizer=" + w.path("tok.json"), "max_length=16"};
    line.insert(line.end(), bad.begin(), bad.end());
    const Outcome refused = run(line);
    EXPECT_EQ(refused.code, 2) << bad.front();
    EXPECT_NE(refused.err.find("\n  try:   "), std::string::npos) << refused.err;
  }
  words = keys;
  words.insert(words.end(), {"tokenizer=" + w.path("tok.json"), "max_length=16", "--held-out",
                             "--first", "100000"});
  words.insert(words.begin(), {"data", "preview"});
  EXPECT_EQ(run(words).code, 2);
}

// Shortened under the run: what was learned is saved, and the run goes on once the file is back,
// with the bits of one that nothing happened to.
TEST(ChangedData, TheRunStopsAndGoesOn) {
  const Workspace w;
  spill(w.path("ids.bin"), raw_tokens(numbered_tokens(3000, 200)));
  const std::vector<std::string> keys = {"train_data=" + w.path("ids.bin"), "max_steps=12"};
  w.trained("base", keys);
  for (const bool shorter : {true, false}) {
    const std::string name = shorter ? "shorter" : "rewritten";
    fs::copy_file(w.path("ids.bin"), w.path("good.bin"), fs::copy_options::overwrite_existing);
    Child child(w.train_arguments(name, keys));
    ASSERT_TRUE(child.read_until("step      3/"));
    if (shorter) {
      fs::resize_file(w.path("ids.bin"), 1000);
    } else {
      std::fstream(w.path("ids.bin"), std::ios::in | std::ios::out | std::ios::binary)
          .seekp(2000)
          .put('\x33');
    }
    const Outcome outcome = child.finish();
    EXPECT_EQ(outcome.code, 1) << outcome.out;
    EXPECT_NE(outcome.out.find("Stopped at step "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.err.find(w.path("ids.bin")), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(shorter ? "a file of 1000 bytes, 6000 when it was opened"
                                       : "the same size and other content"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("\n  try:   put the file back"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("\n  then:  snug train " + w.path(name)), std::string::npos)
        << outcome.err;
    EXPECT_EQ(w.json(name + "/memory.json")["finished"], false);
    EXPECT_EQ(w.json(name + "/memory.json")["allocations_after_start"], no_allocations());
    // Not with the file as it is now.
    std::vector<std::string> again = keys;
    again.emplace_back("resume=latest");
    EXPECT_EQ(w.train(name, again).code, 2);
    fs::copy_file(w.path("good.bin"), w.path("ids.bin"), fs::copy_options::overwrite_existing);
    w.trained(name, again);
    EXPECT_EQ(w.curve(name), w.curve("base"));
    EXPECT_EQ(slurp(w.path(name + "/final/model.safetensors")),
              slurp(w.path("base/final/model.safetensors")));
  }
}

TEST(Data, MemoryOfReadingIsThatOfItsLongestRecord) {
  const Workspace w;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "{\"text\": \"the cat sees a door\"}\n";
  spill(w.path("a.jsonl"), text);
  w.trained("short", {"train_data=" + w.path("a.jsonl"), "memory=512MiB"});
  constexpr int64_t kLong = 30 << 20;  // in a key that is not read
  text += "{\"text\": \"the end\", \"other\": \"" + std::string(kLong, 'x') + "\"}\n";
  spill(w.path("b.jsonl"), text);
  w.trained("long", {"train_data=" + w.path("b.jsonl"), "memory=512MiB"});
  const auto most = [&](const std::string& run) {
    return w.json(run + "/memory.json")["measured_preparing_bytes"].get<int64_t>();
  };
  // Pages of smaller blocks vary by some.
  EXPECT_GE(most("long"), most("short") + kLong - (1 << 20));
}

TEST(ChangedData, RemovedOrTouchedIsNoMatter) {
  const Workspace w;
  spill(w.path("ids.bin"), raw_tokens(numbered_tokens(3000, 200)));
  const std::vector<std::string> keys = {"train_data=" + w.path("ids.bin"), "max_steps=12"};
  w.trained("base", keys);
  Child child(w.train_arguments("run", keys));
  ASSERT_TRUE(child.read_until("step      3/"));
  fs::last_write_time(w.path("ids.bin"), fs::file_time_type::clock::now());
  ASSERT_TRUE(child.read_until("step      6/"));
  fs::remove(w.path("ids.bin"));
  EXPECT_EQ(child.finish().code, 0);
  EXPECT_EQ(w.curve("run"), w.curve("base"));
}

}  // namespace
}  // namespace snug::e2e
