// Search, scores, log probabilities and filters against transformers' generate() on the same
// weights (tests/golden/generate_make.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "tests/support/folders.h"
#include "tools/infer/beam_search.h"
#include "tools/infer/generation.h"
#include "tools/infer/generation_output.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kGolden = source_folder() + "/tests/golden/";

const Json& expected() {
  static const Json j = parse_json_file(kGolden + "generate_expected.json");
  return j;
}

// The fixture's model in a session of some rows.
class Fixture {
 public:
  explicit Fixture(int64_t rows) {
    const std::string folder = testing::TempDir() + "snug_generation_" + std::to_string(getpid()) +
                               "_" + std::to_string(reinterpret_cast<uintptr_t>(this));
    fs::create_directory(folder);
    std::ofstream(folder + "/config.json") << expected()["config"].dump();
    fs::copy(kGolden + "eval_model.safetensors", folder + "/model.safetensors");
    fs::copy(kGolden + "tokenizer_gpt2.json", folder + "/tokenizer.json");
    InferenceOptions o;
    o.model = folder;
    o.memory = int64_t{256} << 20;
    o.threads = 1;
    o.kv_rows = rows;
    in = open_inference(o, [](const ModelSpec& spec, const auto&, InferenceOptions& options) {
      options.kv_length = spec.P;
    });
    fs::remove_all(folder);
  }
  std::vector<GeneratedText> texts(const GenerationRequest& request,
                                   const std::vector<std::string>& prompts) {
    std::vector<GeneratedText> out;
    generate_texts(
        in, request, static_cast<int64_t>(prompts.size()),
        [&](int64_t i) { return in.tokenizer->encode(prompts[static_cast<size_t>(i)]); },
        [&](const GeneratedText& text) { out.push_back(text); });
    return out;
  }
  Inference in;
};

GenerationRequest request_of(const Json& c) {
  const Json& options = c["options"];
  GenerationRequest r;
  GenerationOptions& o = r.options;
  o.sampling.temperature = 0.0;
  o.max_new_tokens = options["max_new_tokens"];
  o.rules.min_new_tokens = options.value("min_new_tokens", 0);
  o.rules.repetition_penalty = options.value("repetition_penalty", 1.0);
  o.rules.no_repeat_ngram_size = options.value("no_repeat_ngram_size", 0);
  o.rules.stop_tokens = c["eos"].get<std::vector<int32_t>>();
  o.logprobs = 3;
  r.beams.beams = options.value("num_beams", 1);
  r.beams.length_penalty = options.value("length_penalty", 1.0);
  const Json early = options.value("early_stopping", Json(false));
  r.beams.early_stopping =
      parse_early_stopping(early.is_string() ? early.get<std::string>() : early.dump());
  r.sequences = options.value("num_return_sequences", 1);
  return r;
}

// Logits of this model are below 32, and are right to 1e-5 of the largest (test_generator.cpp); a
// log probability has the error of a logit and of the sum. transformers adds scores in float: 2^-24
// of a sum of n log probabilities above -16, n times.
constexpr double kLogprob = 2 * 32 * 1e-5;
double score_tolerance(double tokens, double penalty) {
  return (tokens * kLogprob + tokens * tokens * 16 * 0x1p-24) / std::pow(tokens, penalty);
}

void check_case(Fixture& f, const Json& c) {
  SCOPED_TRACE(c["prompt"].dump() + " " + c["options"].dump() + " eos " + c["eos"].dump());
  const GenerationRequest r = request_of(c);
  const std::vector<GeneratedText> got = f.texts(r, {c["prompt"]});
  ASSERT_EQ(got.size(), c["expected"].size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Json& want = c["expected"][i];
    ASSERT_EQ(Json(got[i].ids), want["tokens"]) << "sequence " << i;
    EXPECT_EQ(finish_reason(got[i].end), want["finish_reason"].get<std::string>());
    EXPECT_EQ(got[i].sequence, static_cast<int64_t>(i));
    const size_t n = got[i].ids.size();
    if (want.contains("score")) {
      EXPECT_NEAR(got[i].score, want["score"].get<double>(),
                  score_tolerance(static_cast<double>(n + 1), r.beams.length_penalty));
    }
    ASSERT_EQ(got[i].chances.size(), 4 * n);
    for (size_t t = 0; t < n; ++t) {
      const TokenChance* chance = got[i].chances.data() + 4 * t;
      EXPECT_EQ(chance[0].id, got[i].ids[t]);
      EXPECT_NEAR(chance[0].logprob, want["logprobs"][t].get<double>(), kLogprob);
      for (size_t k = 1; k < 4; ++k) EXPECT_EQ(chance[k].id, want["top"][t][k - 1]);
      if (chance[1].id == chance[0].id) {
        EXPECT_EQ(chance[1].logprob, chance[0].logprob);
      }
    }
  }
}

TEST(GenerationGolden, GreedyWithPenaltiesIsThatOfTransformers) {
  Fixture f(1);
  for (const Json& c : expected()["greedy"]) check_case(f, c);
}

TEST(GenerationGolden, BeamSearchIsThatOfTransformers) {
  Fixture f(4);
  for (const Json& c : expected()["beam"]) check_case(f, c);
}

std::vector<std::string> prompts() {
  std::vector<std::string> list;
  for (const Json& c : expected()["greedy"])
    if (list.empty() || list.back() != c["prompt"]) list.push_back(c["prompt"]);
  return {list.begin(), list.begin() + 6};
}

void expect_same(const std::vector<GeneratedText>& a, const std::vector<GeneratedText>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(a[i].prompt, b[i].prompt);
    EXPECT_EQ(a[i].sequence, b[i].sequence);
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].text, b[i].text);
    EXPECT_EQ(a[i].end, b[i].end);
    EXPECT_EQ(a[i].score, b[i].score);
    ASSERT_EQ(a[i].chances.size(), b[i].chances.size());
    for (size_t k = 0; k < a[i].chances.size(); ++k)
      EXPECT_EQ(a[i].chances[k].logprob, b[i].chances[k].logprob) << k;  // to the bit
  }
}

// Prompts of 1 to 20 tokens, fewer rows than texts, more rows than texts.
TEST(GenerationGolden, TextsDoNotDependOnWhatIsDecodedTogether) {
  GenerationRequest r;
  r.options.max_new_tokens = 25;
  r.options.sampling = {.temperature = 1.3, .top_k = 40, .top_p = 0.95, .seed = 9, .min_p = 0.01};
  r.options.rules.repetition_penalty = 1.1;
  r.options.logprobs = 1;
  r.sequences = 3;
  Fixture one(1);
  const std::vector<GeneratedText> alone = one.texts(r, prompts());
  ASSERT_EQ(alone.size(), 18u);
  EXPECT_NE(alone[0].ids, alone[1].ids);
  EXPECT_NE(alone[0].ids, alone[3].ids);
  for (const int64_t rows : {2, 5, 18, 20}) {
    Fixture f(rows);
    expect_same(f.texts(r, prompts()), alone);
  }
  // The first prompts of a longer list are what they are alone.
  r.sequences = 1;
  const std::vector<GeneratedText> first = one.texts(r, {prompts()[0]});
  EXPECT_EQ(first[0].ids, alone[0].ids);
}

TEST(GenerationGolden, BeamsOfSeveralPromptsTogether) {
  GenerationRequest r;
  r.options.max_new_tokens = 18;
  r.options.rules.stop_tokens = expected()["beam"][1]["eos"].get<std::vector<int32_t>>();
  r.options.logprobs = 0;
  r.beams = {.beams = 3, .length_penalty = 0.6, .early_stopping = EarlyStopping::never};
  r.sequences = 2;
  Fixture one(3);
  const std::vector<GeneratedText> alone = one.texts(r, prompts());
  ASSERT_EQ(alone.size(), 12u);
  for (const int64_t rows : {6, 7, 18}) {
    Fixture f(rows);
    expect_same(f.texts(r, prompts()), alone);
  }
}

// The model has 48 positions: a text may be one token longer, since the last is not fed.
TEST(GenerationGolden, TheModelsPositionsEndATextAtAnyBatch) {
  GenerationRequest r;
  r.options.max_new_tokens = 1000;
  r.options.sampling.temperature = 0.0;
  Fixture f(4), one(1);
  const std::vector<GeneratedText> alone = one.texts(r, prompts());
  for (const GeneratedText& t : alone) {
    EXPECT_EQ(t.end, GenerationEnd::cache_full);
    EXPECT_EQ(static_cast<int64_t>(t.ids.size()) + t.prompt_tokens, 49);
  }
  expect_same(f.texts(r, prompts()), alone);
  r.beams.beams = 2;
  for (const GeneratedText& t : f.texts(r, prompts())) {
    EXPECT_EQ(t.end, GenerationEnd::cache_full);
    EXPECT_EQ(static_cast<int64_t>(t.ids.size()) + t.prompt_tokens, 49);
  }
}

// A stop string that is found in a text ends it there, in beam search as in sampling.
TEST(GenerationGolden, StopStringsEndTexts) {
  Fixture f(3);
  GenerationRequest r;
  r.options.max_new_tokens = 20;
  r.options.sampling.temperature = 0.0;
  for (const int64_t beams : {1, 3}) {
    r.beams.beams = beams;
    r.stops.clear();
    const GeneratedText whole = f.texts(r, {"The cat sat on"})[0];
    ASSERT_EQ(whole.end, GenerationEnd::length);
    // Some bytes in the middle, at no boundary of tokens.
    size_t from = whole.text.size() / 2;
    while ((static_cast<uint8_t>(whole.text[from]) & 0xC0u) == 0x80u) ++from;
    size_t to = from + 3;
    while (to < whole.text.size() && (static_cast<uint8_t>(whole.text[to]) & 0xC0u) == 0x80u) ++to;
    r.stops = {"not in the text", whole.text.substr(from, to - from)};
    const GeneratedText cut = f.texts(r, {"The cat sat on"})[0];
    if (beams == 1) {
      EXPECT_EQ(cut.end, GenerationEnd::stopped);
      EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(r.stops[1])));
      EXPECT_LT(cut.ids.size(), whole.ids.size());
    } else {
      for (const GeneratedText& t : f.texts(r, {"The cat sat on"}))
        EXPECT_EQ(t.text.find(r.stops[1]), std::string::npos) << t.text;
    }
  }
}

TEST(GenerationGolden, NothingIsLeftToChoose) {
  Fixture f(2);
  GenerationRequest r;
  r.options.max_new_tokens = 48;
  r.options.sampling.temperature = 0.0;
  r.options.rules.stop_tokens.resize(static_cast<size_t>(f.in.model->spec().V));
  for (size_t i = 0; i < r.options.rules.stop_tokens.size(); ++i)
    r.options.rules.stop_tokens[i] = static_cast<int32_t>(i);
  r.options.rules.min_new_tokens = 5;
  for (const int64_t beams : {1, 2}) {
    r.beams.beams = beams;
    const std::vector<GeneratedText> texts = f.texts(r, {"A"});
    EXPECT_EQ(texts[0].end, GenerationEnd::no_token);
    EXPECT_TRUE(texts[0].ids.empty());
  }
}

// A stop string may begin with the last byte of the token two before one of a single byte.
TEST(GenerationGolden, BeamsLookBackAsFarAsAStopStringReaches) {
  Fixture f(2);
  GenerationRequest r;
  r.options.sampling.temperature = 0.0;
  r.options.rules.no_repeat_ngram_size = 2;
  r.beams.beams = r.sequences = 2;
  int tried = 0;
  for (r.options.max_new_tokens = 3; r.options.max_new_tokens <= 24; ++r.options.max_new_tokens) {
    r.stops.clear();
    const GeneratedText whole = f.texts(r, {"A"})[0];
    const size_t n = whole.ids.size();
    if (n < 3 || f.in.tokenizer->token_bytes(whole.ids[n - 1]).size() != 1) continue;
    const std::string before(f.in.tokenizer->token_bytes(whole.ids[n - 3]));
    const std::string stop = before.substr(before.size() - 1) +
                             std::string(f.in.tokenizer->token_bytes(whole.ids[n - 2])) +
                             std::string(f.in.tokenizer->token_bytes(whole.ids[n - 1]));
    if (whole.text.find(stop) + stop.size() != whole.text.size()) continue;
    ++tried;
    r.stops = {stop};
    const GeneratedText stopped = f.texts(r, {"A"})[0];
    EXPECT_EQ(stopped.ids, whole.ids);
    EXPECT_EQ(stopped.end, GenerationEnd::stopped) << stop;
  }
  EXPECT_GT(tried, 0);
}

// Where stop tokens are the likeliest of every beam, enough is looked at for as many beams to go on. As
// transformers 5.24 has it, given the same probabilities at every step (rotations_and_beams.py).
TEST(GenerationGolden, BeamsGoOnBehindSeveralStopTokens) {
  const std::vector<float> p = {0.46f, 0.44f, 0.06f, 0.04f};
  GenerationOptions options;
  options.max_new_tokens = 3;
  options.rules.stop_tokens = {0, 1};
  TokenRules rules(4, options.rules);
  const std::vector<int32_t> prompt = {2};
  BeamSearch search(rules, 4, 4, prompt, options,
                    {.beams = 2, .length_penalty = 3.0, .early_stopping = EarlyStopping::never},
                    nullptr);
  std::vector<float> logits;
  for (int row = 0; row < 2; ++row)
    for (const float x : p) logits.push_back(std::log(x));
  int32_t next[2], source[2];
  int steps = 1;
  while (search.step(logits.data(), 4, next, source)) ++steps;
  EXPECT_EQ(steps, 3);
  ASSERT_EQ(search.texts().size(), 2u);
  const double scores[] = {-0.23716112971305847, -0.23880748450756073};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(search.texts()[i].ids, (std::vector<int32_t>{2, 2}));
    EXPECT_EQ(search.texts()[i].end, GenerationEnd::stop_token);
    EXPECT_NEAR(search.texts()[i].score, scores[i], 1e-6);
  }
}

// Of equal scores the earlier beam's and the smaller id's go on, where the list is full too: two beams
// stop and so fill half of the four that are looked at.
TEST(GenerationGolden, OfEqualBeamsTheEarlierGoesOn) {
  GenerationOptions options;
  options.max_new_tokens = 5;
  options.rules.stop_tokens = {0};
  TokenRules rules(5, options.rules);
  const std::vector<int32_t> prompt = {2};
  BeamSearch search(rules, 5, 5, prompt, options,
                    {.beams = 2, .length_penalty = 3.0, .early_stopping = EarlyStopping::never},
                    nullptr);
  int32_t next[2], source[2];
  const auto step = [&](const std::vector<float>& p) {
    std::vector<float> logits;
    for (int row = 0; row < 2; ++row)
      for (const float x : p) logits.push_back(std::log(x));
    EXPECT_TRUE(search.step(logits.data(), 5, next, source));
  };
  step({0.2f, 0.2f, 0.2f, 0.2f, 0.2f});
  EXPECT_EQ(std::pair(next[0], next[1]), std::pair(1, 2));
  step({0.6f, 0.1f, 0.1f, 0.1f, 0.1f});
  EXPECT_EQ(std::pair(next[0], next[1]), std::pair(1, 2));
  EXPECT_EQ(std::pair(source[0], source[1]), std::pair(0, 0));
}

// A negative penalty makes a longer text worse, so that "never" has no longest one to hope for. As
// transformers has it, whose stop token is unlikely for two steps and likely then (the same script).
TEST(GenerationGolden, ANegativePenaltyLooksNoFurtherThanTheNextToken) {
  const std::vector<float> early = {0.9f, 0.08f, 0.01f, 0.01f}, late = {0.08f, 0.9f, 0.01f, 0.01f};
  GenerationOptions options;
  options.max_new_tokens = 40;
  options.rules.stop_tokens = {1};
  TokenRules rules(4, options.rules);
  const std::vector<int32_t> prompt = {2};
  BeamSearch search(rules, 4, 4, prompt, options,
                    {.beams = 2, .length_penalty = -1.0, .early_stopping = EarlyStopping::never},
                    nullptr);
  int32_t next[2], source[2];
  int steps = 0;
  for (bool more = true; more; ++steps) {
    std::vector<float> logits;
    for (int row = 0; row < 2; ++row)
      for (const float x : steps < 2 ? early : late) logits.push_back(std::log(x));
    more = search.step(logits.data(), 4, next, source);
  }
  ASSERT_EQ(search.texts().size(), 2u);
  const std::vector<int32_t> ids[] = {{0, 0}, {}};
  const double scores[] = {-0.9482448101043701, -2.525728702545166};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(search.texts()[i].ids, ids[i]);
    EXPECT_NEAR(search.texts()[i].score, scores[i], 1e-6);
  }
}

SamplingOptions sampling_of(const Json& options) {
  return {.temperature = options.value("temperature", 1.0),
          .top_k = options.value("top_k", 0),
          .top_p = options.value("top_p", 1.0),
          .min_p = options.value("min_p", 0.0)};
}

// Probabilities are quotients of float sums in transformers: 2^-24 times some tens of terms.
constexpr double kProbability = 1e-5;

std::vector<double> probabilities(std::span<const Sampler::Candidate> list, size_t V) {
  std::vector<double> p(V, 0.0);
  double total = 0;
  for (const Sampler::Candidate& c : list) total += c.weight;
  for (const Sampler::Candidate& c : list) p[static_cast<size_t>(c.id)] = c.weight / total;
  return p;
}

// Of equally likely tokens at the edge of top_p, transformers keeps what a sort that is not stable
// puts last and we keep the smaller ids; as many, so probabilities are compared by size then.
TEST(GenerationGolden, FiltersAreThoseOfTransformers) {
  int64_t in_order = 0, cases = 0;
  for (const Json& c : expected()["filters"]) {
    SCOPED_TRACE(c["logits"].dump() + " " + c["options"].dump());
    const auto logits = c["logits"].get<std::vector<float>>();
    auto want = c["probabilities"].get<std::vector<double>>();
    Sampler sampler(static_cast<int64_t>(logits.size()), sampling_of(c["options"]));
    std::vector<double> got = probabilities(sampler.candidates(logits.data()), logits.size());
    bool same = true;
    for (size_t i = 0; i < got.size(); ++i) same = same && (got[i] > 0) == (want[i] > 0);
    ++cases;
    in_order += same;
    if (!same) {
      for (size_t i = 0; i < got.size(); ++i)
        if (got[i] > 0 && want[i] == 0) {
          // One as likely was kept in its place.
          bool found = false;
          for (size_t j = 0; j < got.size(); ++j)
            found = found || (got[j] == 0 && want[j] > 0 && logits[i] == logits[j] && i < j);
          EXPECT_TRUE(found) << i;
        }
      std::sort(got.begin(), got.end());
      std::sort(want.begin(), want.end());
    }
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], kProbability) << i;
  }
  EXPECT_GT(cases, 300);
  EXPECT_GT(in_order, cases / 2);
}

TEST(GenerationGolden, RulesAreThoseOfTransformers) {
  for (const Json& c : expected()["rules"]) {
    SCOPED_TRACE(c["history"].dump() + " " + c["options"].dump());
    auto scores = c["logits"].get<std::vector<float>>();
    const auto V = static_cast<int64_t>(scores.size());
    const Json& options = c["options"];
    TokenRules rules(V, {.repetition_penalty = options.value("repetition_penalty", 1.0),
                         .no_repeat_ngram_size = options.value("no_repeat_ngram_size", 0),
                         .min_new_tokens = options.value("min_new_tokens", 0),
                         .stop_tokens = c["eos"].get<std::vector<int32_t>>()});
    EXPECT_TRUE(rules.active());
    const auto history = c["history"].get<std::vector<int32_t>>();
    rules.apply(scores.data(), history, c["new_tokens"]);
    if (!options.contains("temperature"))
      for (size_t i = 0; i < scores.size(); ++i) {
        if (c["scores"][i].is_null())
          EXPECT_EQ(scores[i], -std::numeric_limits<float>::infinity()) << i;
        else
          // Six digits in the file: half a unit of the last.
          EXPECT_NEAR(scores[i], c["scores"][i].get<float>(), 6e-6 * std::fabs(scores[i])) << i;
      }
    Sampler sampler(V, sampling_of(options));
    const std::vector<double> got = probabilities(sampler.candidates(scores.data()), scores.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], c["probabilities"][i].get<double>(), kProbability) << i;
  }
}

}  // namespace
}  // namespace snug
