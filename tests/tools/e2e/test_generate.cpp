// snug generate as a user sees it: text as it is made, prompts from files, JSON, and every flag's
// refusal. What is generated is compared with transformers in
// tests/tools/test_generation_golden.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tests/support/folders.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = source_folder() + "/tests/golden/";

// The fixture of eval_make.py as a model folder, `model`: 48 positions, random bytes and all.
class Model : public Workspace {
 public:
  Model() : expected(Json::parse(slurp(kGolden + "generate_expected.json"))) {
    fs::create_directory(path("model"));
    spill(path("model/config.json"), expected["config"].dump());
    fs::copy(kGolden + "eval_model.safetensors", path("model/model.safetensors"));
    fs::copy(kGolden + "tokenizer_gpt2.json", path("model/tokenizer.json"));
  }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> list = {"generate", "--model", path("model"), "--threads", "1"};
    if (std::find(more.begin(), more.end(), "--memory") == more.end())
      list.insert(list.end(), {"--memory", "64MiB"});
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  std::string text(const std::vector<std::string>& more) const {
    const Outcome o = run(words(more));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  }
  std::vector<Json> lines(const std::vector<std::string>& more) const {
    const std::string out = text(more);
    std::vector<Json> list;
    for (size_t at = 0; at < out.size();) {
      const size_t end = out.find('\n', at);
      list.push_back(Json::parse(out.substr(at, end - at)));
      at = end + 1;
    }
    return list;
  }
  Json expected;
};

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Flags have the names of transformers' arguments, and their meaning.
TEST(Generate, FlagsDoWhatTheArgumentsOfTransformersDo) {
  const Model m;
  for (const char* kind : {"greedy", "beam"}) {
    const Json& cases = m.expected[kind];
    for (size_t i = 0; i < cases.size(); i += 7) {
      const Json& c = cases[i];
      std::vector<std::string> words = {"--prompt", c["prompt"], "--json"};
      if (kind == std::string("greedy")) words.insert(words.end(), {"--temperature", "0"});
      for (const auto& [key, value] : c["options"].items()) {
        words.push_back(flag_of(key));
        words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
      }
      spill(m.path("model/generation_config.json"), Json({{"eos_token_id", c["eos"]}}).dump());
      const std::vector<Json> got = m.lines(words);
      ASSERT_EQ(got.size(), c["expected"].size()) << c;
      for (size_t s = 0; s < got.size(); ++s) {
        EXPECT_EQ(got[s]["tokens"], c["expected"][s]["tokens"]) << c;
        EXPECT_EQ(got[s]["finish_reason"], c["expected"][s]["finish_reason"]) << c;
        EXPECT_EQ(got[s]["prompt"], c["prompt"]);
        EXPECT_EQ(got[s]["sequence"], s);
        EXPECT_EQ(got[s].contains("score"), kind == std::string("beam"));
      }
    }
  }
}

TEST(Generate, StreamsWholeCharactersAsTheyAreMade) {
  const Model m;
  const std::vector<std::string> words = m.words(
      {"--prompt", "The cat", "--max-new-tokens", "30", "--temperature", "3", "--seed", "5"});
  const std::string whole = run(words).out;
  Child child(words);
  std::string seen;
  int pieces = 0;
  for (std::string piece = child.next(); !piece.empty(); piece = child.next(), ++pieces) {
    // A model of random weights makes bytes that are no characters: they are replaced, and no piece
    // ends inside of one.
    for (size_t i = 0; i < piece.size();) {
      const auto lead = static_cast<uint8_t>(piece[i]);
      const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      ASSERT_TRUE(lead < 0x80 || (lead >= 0xC2 && lead < 0xF5)) << pieces;
      ASSERT_LE(i + size, piece.size()) << "a piece ends inside a character";
      for (size_t k = 1; k < size; ++k)
        ASSERT_EQ(static_cast<uint8_t>(piece[i + k]) & 0xC0u, 0x80u);
      i += size;
    }
    seen += piece;
  }
  EXPECT_EQ(seen, whole);
  EXPECT_GT(pieces, 8);
  EXPECT_EQ(child.finish().code, 0);
}

TEST(Generate, StopStringsAreNotPrinted) {
  const Model m;
  const std::vector<std::string> base = {"--prompt", "The cat", "--no-echo", "--temperature", "0"};
  const std::string whole = m.text(base);
  const auto with = [&](const std::vector<std::string>& stops) {
    std::vector<std::string> words = base;
    for (const std::string& stop : stops) words.insert(words.end(), {"--stop", stop});
    return m.text(words);
  };
  // Every three bytes of the text that are characters of one byte: most span two tokens.
  int tried = 0;
  for (size_t at = 2; at + 4 < whole.size() && tried < 6; at += 3) {
    const std::string stop = whole.substr(at, 3);
    if (std::any_of(stop.begin(), stop.end(), [](char c) { return (c & 0x80) != 0; })) continue;
    EXPECT_EQ(with({"never there", stop}), whole.substr(0, whole.find(stop)) + "\n") << stop;
    ++tried;
  }
  EXPECT_GT(tried, 2);
  EXPECT_EQ(with({"never there"}), whole);
}

// The same of beams, of which the last token is looked at with as much before it as a stop string
// may reach back.
TEST(Generate, StopStringsEndBeams) {
  const Model m;
  spill(m.path("model/generation_config.json"), R"({"eos_token_id": []})");
  const std::vector<std::string> base = {"--prompt",
                                         "Once upon a time",
                                         "--json",
                                         "--no-echo",
                                         "--num-beams",
                                         "4",
                                         "--num-return-sequences",
                                         "4",
                                         "--max-new-tokens",
                                         "30",
                                         "--early-stopping",
                                         "true",
                                         "--no-repeat-ngram-size",
                                         "2"};
  const std::string whole = m.lines(base)[0]["text"];
  int tried = 0;
  for (size_t at = 0; at + 8 < whole.size(); ++at) {
    const std::string stop = whole.substr(at, 4);
    if (std::any_of(stop.begin(), stop.end(), [](char c) { return (c & 0x80) != 0; })) continue;
    std::vector<std::string> words = base;
    words.insert(words.end(), {"--stop", "never there", "--stop", stop});
    int stopped = 0;
    for (const Json& line : m.lines(words)) {
      EXPECT_EQ(line["text"].get<std::string>().find(stop), std::string::npos) << line;
      stopped += line["finish_reason"] == "stop";
    }
    EXPECT_GT(stopped, 0) << stop;
    ++tried;
  }
  EXPECT_GT(tried, 2) << whole;
}

// The weights of position 30 are no numbers: what ended before a prompt comes to it is printed.
TEST(Generate, TextsAreHandedOutAsTheirBatchesEnd) {
  const Model m;
  std::string weights = slurp(m.path("model/model.safetensors"));
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), 8);
  const Json tensors = Json::parse(weights.substr(8, header));
  const size_t row = 8 + header +
                     tensors["transformer.wpe.weight"]["data_offsets"][0].get<size_t>() +
                     30 * tensors["transformer.wpe.weight"]["shape"][1].get<size_t>() * 4;
  std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(row),
              tensors["transformer.wpe.weight"]["shape"][1].get<size_t>() * 4, '\xff');
  spill(m.path("model/model.safetensors"), weights);
  spill(m.path("p.txt"), "A\nB\n" + std::string(40, 'x') + "\nC\n");
  const Outcome o = run(m.words({"--prompts", m.path("p.txt"), "--max-new-tokens", "4",
                                 "--batch-size", "1", "--temperature", "0"}));
  EXPECT_EQ(o.code, 2) << o.out;
  EXPECT_NE(o.err.find("NaN and infinities only"), std::string::npos) << o.err;
  std::vector<int> indices;
  for (size_t at = o.out.find("\"index\":"); at != std::string::npos;
       at = o.out.find("\"index\":", at + 1))
    indices.push_back(std::stoi(o.out.substr(at + 8)));
  EXPECT_EQ(indices, (std::vector<int>{0, 1})) << o.out << "C is finished and waits for its turn";
}

TEST(Generate, PromptsFromAFileInTheirOrderAtAnyBatchSize) {
  const Model m;
  spill(m.path("p.txt"), "The cat sat on\n\nA\nOnce upon a time there was\nnumbers: 1, 2\nB\n");
  const std::vector<std::string> words = {"--prompts",
                                          m.path("p.txt"),
                                          "--max-new-tokens",
                                          "12",
                                          "--num-return-sequences",
                                          "2",
                                          "--seed",
                                          "3"};
  const std::vector<Json> lines = m.lines(words);
  ASSERT_EQ(lines.size(), 10u);
  const char* const prompts[] = {"The cat sat on", "A", "Once upon a time there was",
                                 "numbers: 1, 2", "B"};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i / 2);
    EXPECT_EQ(lines[i]["sequence"], i % 2);
    EXPECT_EQ(lines[i]["prompt"], prompts[i / 2]);
    EXPECT_EQ(lines[i]["tokens"].size(), 12u);
    EXPECT_EQ(lines[i]["finish_reason"], "length");
  }
  EXPECT_NE(lines[0]["tokens"], lines[1]["tokens"]);
  for (const char* batch : {"1", "3", "100"}) {
    std::vector<std::string> more = words;
    more.insert(more.end(), {"--batch-size", batch});
    EXPECT_EQ(m.lines(more), lines) << batch;
  }
  // The same prompts as objects; the text of one prompt is that of its line with number 0.
  spill(m.path("p.jsonl"), "{\"prompt\": \"The cat sat on\", \"id\": 7}\n{\"prompt\": \"A\"}\n");
  const std::vector<Json> objects =
      m.lines({"--prompts", m.path("p.jsonl"), "--max-new-tokens", "12", "--seed", "3"});
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0]["text"], lines[0]["text"]);
  EXPECT_EQ(m.text({"--prompt", "The cat sat on", "--max-new-tokens", "12", "--seed", "3"}),
            "The cat sat on" + objects[0]["text"].get<std::string>() + "\n");
  // Without the prompt.
  EXPECT_FALSE(m.lines({"--prompt", "A", "--json", "--no-echo"})[0].contains("prompt"));
}

// A prompt may take all 48 positions: the token after it is not fed. One of n tokens has room for
// 49 - n, which is an end like any other, and a token more is one too many.
TEST(Generate, EndsAtTheLastPosition) {
  const Model m;
  for (int n = 46; n <= 48; ++n) {
    std::string prompt;  // letters and digits are never one token
    for (int i = 0; i < n; ++i) prompt += i % 2 == 0 ? "a" : "7";
    const int room = 49 - n;
    for (const char* beams : {"1", "3"})
      for (const int wanted : {room, room + 1}) {
        SCOPED_TRACE(testing::Message() << n << " tokens, " << beams << " beams, " << wanted);
        std::vector<std::string> words = {"--prompt",
                                          prompt,
                                          "--json",
                                          "--num-beams",
                                          beams,
                                          "--max-new-tokens",
                                          std::to_string(wanted)};
        if (beams == std::string("1")) words.insert(words.end(), {"--temperature", "0"});
        const std::vector<Json> lines = m.lines(words);
        ASSERT_EQ(lines.size(), 1u);
        const Json& got = lines[0];
        EXPECT_EQ(got["prompt_tokens"], n);
        EXPECT_EQ(got["tokens"].size(), static_cast<size_t>(room));
        EXPECT_EQ(got["finish_reason"], wanted == room ? "length" : "positions");
      }
  }
}

TEST(Generate, TextOfSeveralSequencesAndLogProbabilities) {
  const Model m;
  const std::string beams = m.text({"--prompt", "A", "--num-beams", "3", "--num-return-sequences",
                                    "2", "--max-new-tokens", "3", "--logprobs", "2"});
  EXPECT_EQ(beams.rfind("--- 1 of 2, score -", 0), 0u) << beams;
  EXPECT_NE(beams.find("\n--- 2 of 2, score -"), std::string::npos) << beams;
  // Three tokens, twice, each with two others.
  size_t count = 0;
  for (size_t at = beams.find("   of \""); at != std::string::npos;
       at = beams.find("   of \"", at + 1))
    ++count;
  EXPECT_EQ(count, 6u) << beams;
  const std::vector<Json> json =
      m.lines({"--prompt", "A", "--json", "--logprobs", "2", "--temperature", "0"});
  for (const Json& token : json[0]["logprobs"]) {
    EXPECT_EQ(token["top"].size(), 2u);
    EXPECT_EQ(token["top"][0]["id"], token["id"]) << "greedy takes the likeliest";
    EXPECT_EQ(token["top"][0]["logprob"], token["logprob"]);
    EXPECT_LE(token["top"][1]["logprob"].get<double>(), token["logprob"].get<double>());
  }
  EXPECT_EQ(m.text({"--prompt", "A", "--num-return-sequences", "2"}).rfind("--- 1 of 2\nA", 0), 0u);
}

TEST(Generate, AReaderThatGoesAwayEndsItQuietly) {
  const Model m;
  std::string line;
  for (const std::string& word : m.words({"--prompt", "A", "--max-new-tokens", "40"}))
    line += " '" + word + "'";
  for (const char* before : {"", "trap '' PIPE; "}) {
    const Outcome o = shell(std::string(before) + "$SNUG" + line + " | head -c 1");
    EXPECT_EQ(o.out, "A");
    EXPECT_EQ(o.err, "");
  }
}

// Rows that were not asked for give way to the budget; those that were are refused.
TEST(Generate, RowsFollowTheBudget) {
  const Model m;
  std::string prompts;
  for (int i = 0; i < 8; ++i) prompts += "The cat sat on\n";
  spill(m.path("p.txt"), prompts);
  const auto refusal =
      run(m.words({"--prompts", m.path("p.txt"), "--batch-size", "8", "--memory", "1MiB"}));
  EXPECT_EQ(refusal.code, 3) << refusal.err;
  EXPECT_NE(refusal.err.find("fewer sequences at a time (--batch-size, --num-beams)"),
            std::string::npos)
      << refusal.err;
  // What one row needs, from its refusal.
  const auto least = [&](const char* batch) {
    const Outcome o =
        run(m.words({"--prompts", m.path("p.txt"), "--batch-size", batch, "--memory", "1MiB"}));
    const std::string mark = "at least ";
    const size_t at = o.err.find(mark);
    EXPECT_NE(at, std::string::npos) << o.err;
    // Of one row there are no fewer.
    EXPECT_EQ(o.err.find("fewer sequences at a time") != std::string::npos, batch[0] != '1');
    return std::stoll(o.err.substr(at + mark.size()));
  };
  const long long one = least("1"), eight = least("8");
  EXPECT_LT(one, eight);
  const auto in = [&](long long bytes, std::vector<std::string> more) {
    more.insert(more.end(), {"--prompts", m.path("p.txt"), "--memory", std::to_string(bytes)});
    return run(m.words(more));
  };
  const Outcome fits = in(eight, {"--batch-size", "8"}), follows = in(one, {});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_EQ(follows.code, 0) << follows.err;
  EXPECT_EQ(follows.out, fits.out);
  EXPECT_EQ(in(eight - 1, {"--batch-size", "8"}).code, 3);
  EXPECT_EQ(in(one - 1, {}).code, 3);
}

TEST(Generate, EveryBadValueIsExplained) {
  const Model m;
  spill(m.path("p.txt"), "A\n");
  spill(m.path("empty.jsonl"), "{\"prompt\": \"\"}\n");
  spill(m.path("long.txt"), "A\n" + sentences(20, 1).substr(0, 600) + "\n");
  std::string line = sentences(20, 1);
  std::replace(line.begin(), line.end(), '\n', ' ');
  spill(m.path("long.txt"), "A\n\n" + line + "\n");
  spill(m.path("bad.jsonl"), "{\"prompt\": \"A\"}\n{\"text\": \"B\"}\n");
  spill(m.path("none.txt"), "\n\n");
  struct Case {
    std::vector<std::string> words;
    std::vector<std::string> says;
    bool prompt = true;
  };
  const Case cases[] = {
      {{}, {"--prompt or --prompts for snug generate, one of them", "none"}, false},
      {{"--prompts", m.path("p.txt")}, {"--prompt or --prompts", "both"}},
      {{"--max-new-tokens", "0"}, {"--max-new-tokens of at least 1", "0", "--max-new-tokens 64"}},
      {{"--max-new-tokens", "many"}, {"--max-new-tokens", "many"}},
      {{"--min-new-tokens", "-1"}, {"min_new_tokens of at least 0", "-1", "--min-new-tokens 10"}},
      {{"--min-new-tokens", "65"}, {"--min-new-tokens of at most --max-new-tokens, 64", "65"}},
      {{"--temperature", "-0.5"}, {"a finite temperature of at least 0", "-0.5"}},
      {{"--temperature", "warm"}, {"--temperature", "warm"}},
      {{"--top-k", "-2"}, {"top_k of at least 0", "-2", "--top-k 50"}},
      {{"--top-k", "1.5"}, {"--top-k", "1.5"}},
      {{"--top-p", "0"}, {"top_p in (0, 1]", "0", "--top-p 0.95"}},
      {{"--top-p", "1.01"}, {"top_p in (0, 1]", "1.01"}},
      {{"--min-p", "1.5"}, {"min_p in [0, 1]", "1.5", "--min-p 0.05"}},
      {{"--min-p", "-0.1"}, {"min_p in [0, 1]", "-0.1"}},
      {{"--repetition-penalty", "0"},
       {"a finite repetition_penalty above 0", "0", "--repetition-penalty 1.1"}},
      {{"--repetition-penalty", "-1"}, {"repetition_penalty above 0", "-1"}},
      {{"--no-repeat-ngram-size", "-3"},
       {"no_repeat_ngram_size of at least 0", "-3", "--no-repeat-ngram-size 3"}},
      {{"--stop", ""}, {"--stop as text of at least one character", "an empty one"}},
      {{"--stop", "\xFF"}, {"--stop as text", "not UTF-8"}},
      {{"--num-beams", "0"}, {"--num-beams of 1 to 256", "0", "--num-beams 4"}},
      {{"--num-beams", "9223372036854775807"}, {"--num-beams of 1 to 256"}},
      {{"--num-beams", "2", "--temperature", "0.5"},
       {"--temperature without --num-beams", "--num-beams 2", "leave one of them out"}},
      {{"--num-beams", "2", "--top-k", "5"}, {"--top-k without --num-beams"}},
      {{"--num-beams", "2", "--top-p", "0.5"}, {"--top-p without --num-beams"}},
      {{"--num-beams", "2", "--min-p", "0.5"}, {"--min-p without --num-beams"}},
      {{"--num-beams", "2", "--length-penalty", "1e400"}, {"--length-penalty"}},
      {{"--num-beams", "2", "--length-penalty", "-51"},
       {"--length-penalty of -50 to 50", "-51", "--length-penalty 1"}},
      {{"--num-beams", "2", "--early-stopping", "sometimes"},
       {"--early-stopping as true, false or never", "\"sometimes\"", "--early-stopping true"}},
      {{"--length-penalty", "2"}, {"--num-beams above 1 with --length-penalty", "--num-beams 1"}},
      {{"--early-stopping", "true"}, {"--num-beams above 1 with --early-stopping"}},
      {{"--num-beams", "2", "--num-return-sequences", "3"},
       {"--num-return-sequences of at most --num-beams, 2", "3", "--num-beams 3"}},
      {{"--num-return-sequences", "0"}, {"--num-return-sequences of 1 to 256", "0"}},
      {{"--num-return-sequences", "257"}, {"--num-return-sequences of 1 to 256", "257"}},
      {{"--num-return-sequences", "2", "--temperature", "0"},
       {"a --temperature above 0 or --num-beams", "2 sequences of greedy search", "all the same"}},
      {{"--logprobs", "-1"}, {"--logprobs of 0 to 100", "-1", "--logprobs 5"}},
      {{"--logprobs", "101"}, {"--logprobs of 0 to 100", "101"}},
      {{"--batch-size", "4"}, {"--batch-size with --prompts", "one text", "leave it out"}},
      {{"--batch-size", "0", "--prompts", m.path("p.txt")}, {"--batch-size of 1 to 1024"}, false},
      {{"--batch-size", "-4", "--prompts", m.path("p.txt")}, {"--batch-size of 1 to 1024"}, false},
      {{"--batch-size", "1025", "--prompts", m.path("p.txt")}, {"of 1 to 1024", "1025"}, false},
      {{"--prompts", m.path("none.txt")}, {"prompts in ", "none.txt", "a prompt a line"}, false},
      {{"--prompts", m.path("missing.txt")}, {"missing.txt"}, false},
      {{"--prompts", m.path("model")}, {"model"}, false},
      {{"--prompts", m.path("bad.jsonl")}, {"\"prompt\" in ", "bad.jsonl:2", "no such key"}, false},
      {{"--prompts", m.path("long.txt")},
       {"a prompt of 1 to 48 tokens in ", "long.txt:3", "a shorter prompt"},
       false},
      {{"--prompts", m.path("empty.jsonl")},
       {"a prompt of 1 to 48 tokens in ", "empty.jsonl:1", "0 tokens", "another prompt"},
       false},
      {{"--prompt-file", "x"}, {"--prompt-file", "--prompt"}, false},
      {{"--seed", "x"}, {"--seed", "x"}},
      {{"--precision", "fp7"}, {"fp7"}},
      {{"--memory", "lots"}, {"--memory", "lots"}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> words = c.words;
    if (c.prompt) words.insert(words.end(), {"--prompt", "A"});
    const Outcome o = run(m.words(words));
    std::string name;
    for (const std::string& word : c.words) name += word + " ";
    EXPECT_EQ(o.code, 2) << name << o.out << o.err;
    EXPECT_EQ(o.out, "") << name;
    for (const char* part : {": expected ", "\n  found: ", "\n  try:   "})
      EXPECT_NE(o.err.find(part), std::string::npos) << name << o.err;
    for (const std::string& part : c.says)
      EXPECT_NE(o.err.find(part), std::string::npos) << name << part << "\nin " << o.err;
  }
  spill(m.path("model/generation_config.json"), "{\"eos_token_id\": \"end\"}");
  const Outcome o = run(m.words({"--prompt", "A"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("eos_token_id as an integer or a list of integers"), std::string::npos)
      << o.err;
}

TEST(Generate, HelpNamesEveryFlag) {
  const Outcome o = run({"generate", "--help"});
  EXPECT_EQ(o.code, 0);
  for (const char* flag : {"--prompt ",
                           "--prompts",
                           "--max-new-tokens",
                           "--min-new-tokens",
                           "--stop",
                           "--temperature",
                           "--top-k",
                           "--top-p",
                           "--min-p",
                           "--repetition-penalty",
                           "--no-repeat-ngram-size",
                           "--num-beams",
                           "--length-penalty",
                           "--early-stopping",
                           "--num-return-sequences",
                           "--logprobs",
                           "--seed",
                           "--batch-size",
                           "--json",
                           "--no-echo"})
    EXPECT_NE(o.out.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace snug::e2e
