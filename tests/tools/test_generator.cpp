// Generation with a KV cache equals running the whole text through the model again for every token.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "layers/ops/attention.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/infer/generator.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 211, .P = 96, .C = 32, .L = 3, .H = 4, .F = 128};

test::RunOptions options_of(int64_t kv_length, int64_t prefill) {
  test::RunOptions o;
  o.decisions.T = 8;
  o.decisions.micro_batch = 1;
  o.decisions.head_rows = 8;
  o.decisions.kv_length = kv_length;
  o.decisions.prefill = prefill;
  o.global_batch = 1;
  o.optimizer.learning_rate = 1e-2;
  return o;
}

// Logits of the last of `tokens`, by a forward pass over all of them, without a cache.
std::vector<float> full_logits(const Model& model, const View& weights,
                               const std::vector<int32_t>& tokens) {
  const auto T = static_cast<int64_t>(tokens.size());
  std::vector<float> out;
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const int forward = schedule.add(Name("forward"), root, false);
  for (const Place place : {Place::plan, Place::cpu}) {
    Context ctx(place, {});
    if (place == Place::cpu) {
      schedule.pack({}, 0);
      ctx.reserve(schedule);
    }
    std::unique_ptr<PlainParamStore> params;
    Tensor ids, state;
    ctx.program(schedule, root, [&] {
      params = std::make_unique<PlainParamStore>(ctx, model.params(), model.precision().compute);
      ids = ctx.tensor(Name("tokens"), {1, T}, DType::i32, Category::batch);
      state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
    });
    if (place == Place::cpu) {
      std::memcpy(params->flat().data, weights.data, static_cast<size_t>(weights.bytes()));
      std::copy(tokens.begin(), tokens.end(), ids.view().as<int32_t>());
      *step_state(state.view()) = StepState{};
    }
    ModelPass pass = model.make_inference_pass();
    ctx.program(schedule, forward, [&] {
      Runtime rt{*params, nullptr, state, nullptr};
      const Tensor hidden = model.hidden(ctx, rt, pass, ids, PassMode::inference);
      const Tensor logits =
          ctx.tensor(Name("logits"), {1, model.spec().Vp()}, DType::f32, Category::logits);
      model.logits(ctx, rt, logits, hidden.view().rows(T - 1, 1));
      if (place == Place::cpu) {
        const float* p = logits.view().as<float>();
        out.assign(p, p + model.spec().V);
      }
    });
  }
  return out;
}

std::vector<int32_t> prompt_of(int64_t length) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i)
    prompt.push_back(static_cast<int32_t>(mix64(static_cast<uint64_t>(i + 3)) % 211));
  return prompt;
}

GenerationOptions greedy(int64_t tokens) {
  GenerationOptions o;
  o.max_new_tokens = tokens;
  o.sampling.temperature = 0.0;
  return o;
}

struct Text {
  std::vector<int32_t> tokens;
  GenerationEnd end;
};
Text text_of(Session& session, const std::vector<int32_t>& prompt, const GenerationOptions& o) {
  Sampler sampler(session.model().spec().V, o.sampling);
  Text t;
  t.end = generate(session, sampler, prompt, o, [&](int32_t token) {
    t.tokens.push_back(token);
    return true;
  });
  return t;
}

// Every decoder of tests/golden goes on as transformers' model does in float64, and a chunk at a time as
// all at once; with room for no more than the text, which by longrope is what chooses the angles.
TEST(Generator, DecodersContinueAsTransformersDo) {
  const std::string path = source_folder() + "/tests/golden/decoder_greedy.json";
  const nlohmann::json texts = parse_json_file(path);
  EXPECT_EQ(texts.size(), 24u);
  for (const auto& [name, text] : texts.items()) {
    SCOPED_TRACE(name);
    const test::Golden golden("decoder_" + name);
    const auto prompt = text.at("prompt").get<std::vector<int32_t>>();
    const auto expected = text.at("tokens").get<std::vector<int32_t>>();
    const auto length = static_cast<int64_t>(prompt.size() + expected.size());
    const Model model(golden.spec, parse_precision("fp32"));
    for (const int64_t prefill : {length, int64_t{3}}) {
      test::SessionRun run(model, options_of(length, prefill));
      Session& session = run.session();
      load_weights(model, golden.path, session.master(), 1);
      session.load();
      const Text got = text_of(session, prompt, greedy(static_cast<int64_t>(expected.size())));
      EXPECT_EQ(got.tokens, expected) << prefill;
    }
  }
}

// fp32: the bound of a whole model, as for logits against transformers. bf16: keys and values rest
// in the cache with the rounding they have without it; the attention of one query sums in another
// order, and where that crosses a rounding boundary a stored value moves by 2^-8 of itself. The sum
// of L such layers, twice over for the residual stream, is 2 L 2^-8.
TEST(Generator, CachedLogitsEqualTheFullForward) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const bool wide = std::string(precision) == "fp32";
    const double bound =
        wide ? 1e-5 : 2.0 * 3 * (std::string(precision) == "bf16" ? 0x1p-8 : 0x1p-11);
    test::SessionRun run(model, options_of(96, 32));
    Session& session = run.session();
    // Shorter than a chunk, one less, exact, one more, two chunks, two and a rest, all positions.
    for (const int64_t length : {1, 7, 31, 32, 33, 64, 77, 96}) {
      std::vector<int32_t> text = prompt_of(length);
      Sampler sampler(model.spec().V, greedy(0).sampling);
      int64_t compared = 0;
      generate(session, sampler, text, greedy(5), [&](int32_t token) {
        const std::vector<float> expected = full_logits(model, session.stores().weights(), text);
        const float* got = session.logits().as<float>();
        double worst = 0, largest = 0;
        for (size_t v = 0; v < expected.size(); ++v) {
          worst = std::max(worst, static_cast<double>(std::fabs(got[v] - expected[v])));
          largest = std::max(largest, static_cast<double>(std::fabs(expected[v])));
        }
        EXPECT_LT(worst / largest, bound) << precision << ", prompt of " << length;
        if (wide) {
          EXPECT_EQ(std::max_element(expected.begin(), expected.end()) - expected.begin(), token);
        }
        text.push_back(token);
        ++compared;
        return true;
      });
      EXPECT_EQ(compared, length == 96 ? 1 : 5);
    }
  }
}

// The text does not depend on how the prompt was cut, on the length of the cache, or on dropout.
TEST(Generator, ChunksAndCacheLengthDoNotMatter) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  std::vector<int32_t> expected;
  for (const auto& [kv, chunk] :
       {std::pair{96, 32}, {60, 32}, {96, 1}, {96, 7}, {60, 60}, {60, 61}}) {
    test::SessionRun run(model, options_of(kv, chunk));
    const Text t = text_of(run.session(), prompt_of(45), greedy(15));
    if (expected.empty()) expected = t.tokens;
    EXPECT_EQ(t.tokens, expected) << "cache " << kv << ", chunk " << chunk;
  }
  EXPECT_EQ(expected.size(), 15u);
  EXPECT_GT(std::set<int32_t>(expected.begin(), expected.end()).size(), 3u);
  test::Tiny tiny = kModel;
  tiny.dropout = 0.5;
  const Model dropping(test::tiny_spec(tiny), parse_precision("fp32"));
  test::SessionRun run(dropping, options_of(96, 32));
  EXPECT_EQ(text_of(run.session(), prompt_of(45), greedy(15)).tokens, expected);
}

// Layers with windows keep rings of keys, which a chunk as long as the cache has no use for: the same
// bits, from fewer bytes, for a text that goes around the ring twice, and for the one after it.
TEST(Generator, WindowsCutTheCache) {
  const ModelSpec spec =
      resolve_model("", R"({"type":"gemma3_text","vocab_size":211,"hidden_size":32,
          "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
          "intermediate_size":48,"max_position_embeddings":320,"sliding_window":6,
          "layer_types":["sliding_attention","full_attention","sliding_attention"]})")
          .spec;
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(spec, parse_precision(precision));
    test::SessionRun whole(model, options_of(320, 160)), cut(model, options_of(320, 16));
    const auto bytes = [](test::SessionRun& run) {
      const Schedule& s = run.session().schedule();
      int64_t sum = 0;
      for (const TensorRecord& t : s.at(s.find("generate")).tensors)
        sum += t.category == Category::kv_cache ? t.bytes : 0;
      return sum;
    };
    const int64_t row = 2 * 2 * 8 * (std::string(precision) == "fp32" ? 4 : 2);  // keys and values
    EXPECT_EQ(bytes(whole), 3 * 320 * row);
    EXPECT_EQ(bytes(cut), (320 + 2 * attention_ring(6, 16)) * row);
    for (const int64_t prompt : {275, 40, 1}) {
      std::vector<std::vector<float>> logits[2];
      for (const bool small : {false, true}) {
        Session& session = (small ? cut : whole).session();
        Sampler sampler(model.spec().V, greedy(0).sampling);
        generate(session, sampler, prompt_of(prompt), greedy(45), [&](int32_t) {
          const float* got = session.logits().as<float>();
          logits[small].emplace_back(got, got + model.spec().V);
          return true;
        });
      }
      EXPECT_EQ(logits[0].size(), 45u);
      EXPECT_TRUE(logits[0] == logits[1]) << precision << ", prompt of " << prompt;
    }
    // What the next token sees must be there: 0 where a ring has let go of it.
    EXPECT_EQ(whole.session().reusable(40, 300), 40);
    EXPECT_EQ(cut.session().reusable(290, 300), 290);
    EXPECT_EQ(cut.session().reusable(40, 300), 0);
  }
}

TEST(Generator, NothingOfTheTextBeforeIsLeft) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of(96, 32));
  const Text first = text_of(run.session(), prompt_of(40), greedy(10));
  const Text other = text_of(run.session(), prompt_of(70), greedy(10));
  EXPECT_NE(other.tokens, first.tokens);
  EXPECT_EQ(text_of(run.session(), prompt_of(40), greedy(10)).tokens, first.tokens);
  // Between steps of training too; and the step changes the model.
  run.train_step(0);
  test::SessionRun trained(model, options_of(96, 32));
  trained.train_step(0);
  EXPECT_EQ(text_of(run.session(), prompt_of(40), greedy(10)).tokens,
            text_of(trained.session(), prompt_of(40), greedy(10)).tokens);
}

TEST(Generator, SamplingIsKeyedBySeed) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of(96, 32));
  GenerationOptions o;
  o.max_new_tokens = 20;
  o.sampling.temperature = 1.5;
  const Text a = text_of(run.session(), prompt_of(5), o);
  EXPECT_EQ(text_of(run.session(), prompt_of(5), o).tokens, a.tokens);
  o.sampling.seed = 7;
  EXPECT_NE(text_of(run.session(), prompt_of(5), o).tokens, a.tokens);
}

TEST(Generator, EndsAreNamed) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of(40, 32));
  Session& session = run.session();
  const Text all = text_of(session, prompt_of(10), greedy(8));
  EXPECT_EQ(all.end, GenerationEnd::length);
  EXPECT_EQ(all.tokens.size(), 8u);
  EXPECT_EQ(text_of(session, prompt_of(10), greedy(0)).tokens.size(), 0u);

  // The stop token is not handed out.
  GenerationOptions o = greedy(8);
  o.rules.stop_tokens = {all.tokens[3]};
  const auto first = std::find(all.tokens.begin(), all.tokens.end(), all.tokens[3]);
  const Text stopped = text_of(session, prompt_of(10), o);
  EXPECT_EQ(stopped.end, GenerationEnd::stop_token);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(all.tokens.begin(), first));

  Sampler sampler(model.spec().V, greedy(0).sampling);
  int calls = 0;
  EXPECT_EQ(
      generate(session, sampler, prompt_of(10), greedy(8), [&](int32_t) { return ++calls < 2; }),
      GenerationEnd::stopped);
  EXPECT_EQ(calls, 2);

  // 35 of 40 places are taken: five tokens are fed back, and the sixth is the last there is.
  const Text full = text_of(session, prompt_of(35), greedy(100));
  EXPECT_EQ(full.end, GenerationEnd::cache_full);
  EXPECT_EQ(full.tokens.size(), 6u);
  const Text brim = text_of(session, prompt_of(40), greedy(100));
  EXPECT_EQ(brim.end, GenerationEnd::cache_full);
  EXPECT_EQ(brim.tokens.size(), 1u);
  EXPECT_EQ(text_of(session, prompt_of(35), greedy(6)).end, GenerationEnd::length);
}

TEST(Generator, RefusesPromptsItCannotHold) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of(40, 32));
  test::expect_error(
      ErrorCode::usage,
      {"a prompt of at least one token", "an empty prompt", "--prompt \"Once upon a time\""},
      [&] { text_of(run.session(), {}, greedy(1)); });
  test::expect_error(
      ErrorCode::usage,
      {"a prompt of at most 40 tokens", "41 tokens", "or a model with more positions"},
      [&] { text_of(run.session(), prompt_of(41), greedy(1)); });
  // A token outside the vocabulary is named, and the session goes on.
  for (const int32_t bad : {-1, 211, 1 << 30})
    test::expect_error(ErrorCode::data, {std::to_string(bad).c_str()}, [&] {
      text_of(run.session(), {3, bad}, greedy(1));
    });
  EXPECT_EQ(text_of(run.session(), prompt_of(3), greedy(2)).tokens.size(), 2u);
}

}  // namespace
}  // namespace snug
