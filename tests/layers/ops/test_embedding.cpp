#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/embedding.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/embedding.h"

namespace snug::test {
namespace {

struct Sizes {
  int64_t b, t, c, vocabulary, positions, position;
};
constexpr Sizes kSizes[] = {{1, 1, 1, 1, 1, 0},     {1, 5, 3, 7, 9, 4},    {17, 1, 31, 5, 4, 3},
                            {2, 65, 33, 50, 65, 0}, {3, 4, 64, 11, 16, 7}, {1, 17, 768, 20, 17, 0},
                            {2, 3, 300, 4, 3, 0}};

StepState state_at(int64_t position) {
  StepState s{};
  s.position = position;
  return s;
}

// `to`: the dtype of the gradients.
void check(const Sizes& s, DType t, bool learned, bool add, const Values& starts = {},
           DType to = DType::f32) {
  SCOPED_TRACE(fmt::format("B{}_T{}_C{}_{}{}{}{}_to_{}", s.b, s.t, s.c, to_string(t),
                           learned ? "_wpe" : "", add ? "_add" : "",
                           starts.empty() ? "" : "_documents", to_string(to)));
  const int64_t n = s.b * s.t;
  const Values tokens = index_values(n, s.vocabulary, 1);
  const Values wte = normal_values(s.vocabulary * s.c, 2, t);
  const Values wpe = learned ? normal_values(s.positions * s.c, 3, t) : Values();
  const Values dy = normal_values(n * s.c, 4, t);
  const Values dwte0 = normal_values(s.vocabulary * s.c, 5, to);
  const Values dwpe0 = normal_values(s.positions * s.c, 6, to);
  const StepState state = state_at(s.position);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View vtokens = c.input("tokens", {s.b, s.t}, DType::i32, tokens);
    const View vstate = c.step_state(state);
    const View vwte = c.input("wte", {s.vocabulary, s.c}, t, wte);
    const View vwpe = learned ? c.input("wpe", {s.positions, s.c}, t, wpe) : View();
    const View documents =
        starts.empty() ? View() : c.input("document_start", {s.b, s.t}, DType::i32, starts);
    embedding_forward(c.ctx(), c.output("y", {n, s.c}, t), vtokens, vwte, vwpe, vstate, documents);
    const auto gradient = [&](const char* name, Shape shape, const Values& old) {
      return GradView{add ? c.inout(name, shape, to, old) : c.output(name, shape, to), add};
    };
    embedding_backward(c.ctx(), gradient("dwte", {s.vocabulary, s.c}, dwte0),
                       learned ? gradient("dwpe", {s.positions, s.c}, dwpe0) : GradView{},
                       c.input("dy", {n, s.c}, t, dy), vtokens, vstate, documents);
  });

  EXPECT_TRUE(close(out["y"], embedding_reference(wte, wpe, tokens, s.t, s.c, s.position, starts),
                    tolerance(t, 1)));
  const auto limit = static_cast<size_t>(std::clamp<int64_t>(400000 / (n * s.c), 30, 500));
  const auto compare = [&](const char* name, const Values& at, const Values& old, const auto& f) {
    const std::vector<size_t> some = sample_indices(at.size(), limit);
    Values truth = complex_step_gradient(f, at, some);
    for (size_t k = 0; add && k < some.size(); ++k) truth[k] += old[some[k]];
    EXPECT_TRUE(close(pick(out[name], some), truth, tolerance(to, n))) << name;
  };
  using C = Complex;
  compare("dwte", wte, dwte0, [&](const std::vector<C>& w) {
    return weighted_sum(embedding_reference(w, widen<C>(wpe), tokens, s.t, s.c, s.position, starts),
                        dy);
  });
  if (learned)
    compare("dwpe", wpe, dwpe0, [&](const std::vector<C>& w) {
      return weighted_sum(
          embedding_reference(widen<C>(wte), w, tokens, s.t, s.c, s.position, starts), dy);
    });
  EXPECT_EQ(out.ops, (std::vector<std::string>{"embedding_forward", "embedding_backward"}));
}

TEST(Embedding, MatchesTheReference) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool add : {false, true}) check(s, t, true, add);
  check(kSizes[1], DType::f32, false, true);
  check(kSizes[3], DType::bf16, false, false);
  check(kSizes[3], DType::f16, true, false);
}

TEST(Embedding, GradientsMayBeBf16) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool add : {false, true}) check(s, t, true, add, {}, DType::bf16);
  check(kSizes[3], DType::f32, false, true, {}, DType::bf16);
}

// However often a token or a position comes, its row is rounded once: a thousand rows that would
// each vanish beside what is there are seen together. Rows that nothing is added to keep their
// bits.
TEST(Embedding, GradientsInBf16AreRoundedOnce) {
  const int64_t n = 1024, c = 3;
  const Values dy(static_cast<size_t>(n * c), 0x1p-10);
  for (const bool add : {false, true}) {
    const Outputs out = run_in_all_modes([&](Case& k) {
      const auto gradient = [&](const char* name, int64_t rows) {
        const Values ones(static_cast<size_t>(rows * c), 1.0);
        return GradView{add ? k.inout(name, {rows, c}, DType::bf16, ones)
                            : k.output(name, {rows, c}, DType::bf16),
                        add};
      };
      // Documents of one token: every row is at position 0.
      Values starts(static_cast<size_t>(n));
      for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<double>(i);
      embedding_backward(k.ctx(), gradient("dwte", 4), gradient("dwpe", n),
                         k.input("dy", {n, c}, DType::f32, dy),
                         k.input("tokens", {1, n}, DType::i32, Values(static_cast<size_t>(n), 2.0)),
                         {}, k.input("starts", {1, n}, DType::i32, starts));
    });
    const double rest = add ? 1 : 0;
    Values dwte(12, rest), dwpe(static_cast<size_t>(n * c), rest);
    for (size_t i = 0; i < 3; ++i) dwte[6 + i] = dwpe[i] = rest + 1;
    EXPECT_EQ(out["dwte"], dwte);
    EXPECT_EQ(out["dwpe"], dwpe);
  }
}

// Positions begin anew with every document: a document at t begins at position 0 again.
TEST(Embedding, PositionsBeginAnewWithEveryDocument) {
  const auto starts_of = [](const Sizes& s, int64_t every) {
    Values starts;
    for (int64_t b = 0; b < s.b; ++b)
      for (int64_t t = 0; t < s.t; ++t)
        // Sequences are cut at other places.
        starts.push_back(t < b + 1 ? 0 : static_cast<double>(b + 1 + (t - b - 1) / every * every));
    return starts;
  };
  for (const Sizes& s : {kSizes[0], kSizes[3], kSizes[4], kSizes[6]})
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t every : {1, 3, 40})
        for (const DType to : {DType::f32, DType::bf16})
          // Half of the cases add: each period does once, and each dtype of the gradients.
          check(s, t, true, (every == 3) != (to == DType::bf16), starts_of(s, every), to);
  check(kSizes[3], DType::f32, false, true, starts_of(kSizes[3], 7));
}

// One document has the bits of none, and starts that are none are refused before anything is read.
TEST(Embedding, DocumentsAreCheckedAndOneChangesNothing) {
  const auto run = [](const Values& starts, Shape shape, bool backward) {
    return run_on_plan_and_cpu({}, [&](Case& c) {
      const View tokens = c.input("tokens", {2, 3}, DType::i32, {3, 1, 3, 0, 2, 3});
      const View documents =
          starts.empty() ? View() : c.input("document_start", shape, DType::i32, starts);
      if (backward)
        embedding_backward(c.ctx(), {c.output("dwte", {4, 5}, DType::f32), false},
                           {c.output("dwpe", {4, 5}, DType::f32), false},
                           c.input("dy", {6, 5}, DType::f32, normal_values(30, 4)), tokens, {},
                           documents);
      else
        embedding_forward(c.ctx(), c.output("y", {6, 5}, DType::f32), tokens,
                          c.input("wte", {4, 5}, DType::f32, normal_values(20, 1)),
                          c.input("wpe", {4, 5}, DType::f32, normal_values(20, 2)), {}, documents);
    });
  };
  for (const bool backward : {false, true}) {
    EXPECT_TRUE(run(Values(6, 0.0), {2, 3}, backward) == run({}, {}, backward));
    expect_error(ErrorCode::data,
                 {"document_start 1 or 2 at position 2 of sequence 1", "found: 3", "first token"},
                 [&] {
                   run({0, 1, 2, 0, 1, 3}, {2, 3}, backward);
                 });
    expect_error(ErrorCode::data, {"document_start 0 at position 0 of sequence 0", "found: -1"},
                 [&] {
                   run({-1, 1, 2, 0, 1, 2}, {2, 3}, backward);
                 });
    expect_error(ErrorCode::shape, {"document_start of shape (B,T)=(2,3)", "(3,2) i32"}, [&] {
      run(Values(6, 0.0), {3, 2}, backward);
    });
  }
}

// fp32 tables under bf16 activations; no state means position 0.
TEST(Embedding, MixesDtypes) {
  const Values wte = normal_values(12, 1), wpe = normal_values(12, 2, DType::bf16);
  const Outputs out = run_in_all_modes([&](Case& c) {
    embedding_forward(
        c.ctx(), c.output("y", {2, 3}, DType::bf16), c.input("tokens", {1, 2}, DType::i32, {3, 1}),
        c.input("wte", {4, 3}, DType::f32, wte), c.input("wpe", {4, 3}, DType::bf16, wpe), {});
  });
  EXPECT_TRUE(
      close(out["y"], embedding_reference(wte, wpe, {3, 1}, 2, 3, 0), tolerance(DType::bf16, 1)));
}

TEST(Embedding, FrozenTablesCostNothing) {
  const Outputs out = run_on_plan_and_cpu({}, [](Case& c) {
    embedding_backward(c.ctx(), {}, {}, c.output("dy", {2, 3}, DType::f32),
                       c.input("tokens", {1, 2}, DType::i32, {0, 0}), {});
  });
  EXPECT_TRUE(out.ops.empty());
}

// Tokens and positions are data: an error names them, and nothing was written.
TEST(Embedding, RefusesTokensAndPositionsOutOfRange) {
  const auto forward = [](const Values& tokens, int64_t position) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_forward(
          c.ctx(), c.output("y", {6, 3}, DType::f32), c.input("tokens", {2, 3}, DType::i32, tokens),
          c.input("wte", {10, 3}, DType::f32, Values(30, 0.0)),
          c.input("wpe", {5, 3}, DType::f32, Values(15, 0.0)), c.step_state(state_at(position)));
    });
  };
  const auto backward = [](const Values& tokens, int64_t position) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_backward(
          c.ctx(), {c.output("dwte", {10, 3}, DType::f32), false},
          {c.output("dwpe", {5, 3}, DType::f32), false}, c.output("dy", {6, 3}, DType::f32),
          c.input("tokens", {2, 3}, DType::i32, tokens), c.step_state(state_at(position)));
    });
  };
  const auto both = [&](std::initializer_list<const char*> words, const Values& tokens,
                        int64_t position) {
    expect_error(ErrorCode::data, words, [&] { forward(tokens, position); });
    expect_error(ErrorCode::data, words, [&] { backward(tokens, position); });
  };
  forward({0, 9, 1, 2, 3, 4}, 2);
  backward({0, 9, 1, 2, 3, 4}, 2);
  both({"tokens of [0,Vp)=[0,10)", "token 10 in sequence 1 at position 4", "tokenizer"},
       {0, 9, 1, 2, 3, 10}, 2);
  both({"token -100 in sequence 0 at position 1"}, {0, -100, 1, 2, 3, 4}, 0);
  both({"positions of [0,P)=[0,5)", "positions 3 to 5", "max_length"}, {0, 0, 0, 0, 0, 0}, 3);
  both({"positions -1 to 1"}, {0, 0, 0, 0, 0, 0}, -1);
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  const auto forward = [](Shape y, Shape tokens, DType token_dtype, Shape wte, Shape wpe) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_forward(c.ctx(), c.output("y", y, DType::f32),
                        c.output("tokens", tokens, token_dtype), c.output("wte", wte, DType::f32),
                        c.output("wpe", wpe, DType::f32), {});
    });
  };
  const DType i32 = DType::i32;
  expect_error(ErrorCode::shape, {"y of shape (N,C)=(6,4)", "y (5,4) f32"}, [&] {
    forward({5, 4}, {2, 3}, i32, {9, 4}, {9, 4});
  });
  expect_error(ErrorCode::shape, {"tokens of shape (B,T)", "tokens (6) i32"}, [&] {
    forward({6, 4}, {6}, i32, {9, 4}, {9, 4});
  });
  expect_error(ErrorCode::unsupported, {"tokens of dtype i32", "tokens (2,3) i64"}, [&] {
    forward({6, 4}, {2, 3}, DType::i64, {9, 4}, {9, 4});
  });
  expect_error(ErrorCode::shape, {"wte of shape (Vp,C)", "wte (9) f32"}, [&] {
    forward({6, 4}, {2, 3}, i32, {9}, {9, 4});
  });
  expect_error(ErrorCode::shape, {"wpe of shape (P,C)=(9,4)", "wpe (9,5) f32"}, [&] {
    forward({6, 4}, {2, 3}, i32, {9, 4}, {9, 5});
  });
  expect_error(ErrorCode::unsupported, {"dwte of dtype f32|bf16", "dwte (9,4) f16"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_backward(c.ctx(), {c.output("dwte", {9, 4}, DType::f16), false}, {},
                         c.output("dy", {6, 4}, DType::f32), c.output("tokens", {2, 3}, i32), {});
    });
  });
  expect_error(ErrorCode::shape, {"dwte of shape (Vp,C)=(9,4)", "dwte (9,5) f32"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_backward(c.ctx(), {c.output("dwte", {9, 5}, DType::f32), false}, {},
                         c.output("dy", {6, 4}, DType::f32), c.output("tokens", {2, 3}, i32), {});
    });
  });
}

}  // namespace
}  // namespace snug::test
