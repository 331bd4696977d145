#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/kernels/kernels.h"
#include "layers/ops/embedding.h"
#include "tests/support/case.h"
#include "tests/support/emu.h"
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

// A table of token types, and whether every token names its own.
struct Types {
  int64_t kinds = 0;
  bool named = true;
};

// `to`: the dtype of the gradients.
void check(const Sizes& s, DType t, bool learned, bool add, const Values& starts = {},
           DType to = DType::f32, const Types& typing = {}) {
  SCOPED_TRACE(fmt::format("B{}_T{}_C{}_{}{}{}{}_to_{}_K{}{}", s.b, s.t, s.c, to_string(t),
                           learned ? "_wpe" : "", add ? "_add" : "",
                           starts.empty() ? "" : "_documents", to_string(to), typing.kinds,
                           typing.named ? "" : "_unnamed"));
  const bool typed = typing.kinds > 0;
  const int64_t n = s.b * s.t;
  const Values tokens = index_values(n, s.vocabulary, 1);
  const Values wte = normal_values(s.vocabulary * s.c, 2, t);
  const Values wpe = learned ? normal_values(s.positions * s.c, 3, t) : Values();
  const Values dy = normal_values(n * s.c, 4, t);
  const Values dwte0 = normal_values(s.vocabulary * s.c, 5, to);
  const Values dwpe0 = normal_values(s.positions * s.c, 6, to);
  const Values types = typed && typing.named ? index_values(n, typing.kinds, 7) : Values();
  const Values wtt = normal_values(typing.kinds * s.c, 8, t);
  const Values dwtt0 = normal_values(typing.kinds * s.c, 9, to);
  const StepState state = state_at(s.position);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View vtokens = c.input("tokens", {s.b, s.t}, DType::i32, tokens);
    const View vstate = c.step_state(state);
    const View vwte = c.input("wte", {s.vocabulary, s.c}, t, wte);
    const View vwpe = learned ? c.input("wpe", {s.positions, s.c}, t, wpe) : View();
    const View documents =
        starts.empty() ? View() : c.input("document_start", {s.b, s.t}, DType::i32, starts);
    const View vtypes = types.empty() ? View() : c.input("types", {s.b, s.t}, DType::i32, types);
    const View vwtt = typed ? c.input("wtt", {typing.kinds, s.c}, t, wtt) : View();
    embedding_forward(c.ctx(), c.output("y", {n, s.c}, t), vtokens, vwte, vwpe, vstate, documents,
                      vtypes, vwtt);
    const auto gradient = [&](const char* name, Shape shape, const Values& old) {
      return GradView{add ? c.inout(name, shape, to, old) : c.output(name, shape, to), add};
    };
    embedding_backward(c.ctx(), gradient("dwte", {s.vocabulary, s.c}, dwte0),
                       learned ? gradient("dwpe", {s.positions, s.c}, dwpe0) : GradView{},
                       c.input("dy", {n, s.c}, t, dy), vtokens, vstate, documents, vtypes,
                       typed ? gradient("dwtt", {typing.kinds, s.c}, dwtt0) : GradView{});
  });

  const auto reference = [&](const auto& w, const auto& p, const auto& kind) {
    return embedding_reference(w, p, tokens, s.t, s.c, s.position, starts, types, kind);
  };
  EXPECT_TRUE(close(out["y"], reference(wte, wpe, wtt), tolerance(t, typed ? 2 : 1)));
  const auto limit = static_cast<size_t>(std::clamp<int64_t>(400000 / (n * s.c), 30, 500));
  const auto compare = [&](const char* name, const Values& at, const Values& old, const auto& f) {
    const std::vector<size_t> some = sample_indices(at.size(), limit);
    Values truth = complex_step_gradient(f, at, some);
    for (size_t k = 0; add && k < some.size(); ++k) truth[k] += old[some[k]];
    EXPECT_TRUE(close(pick(out[name], some), truth, tolerance(to, n))) << name;
  };
  using C = Complex;
  const auto zte = widen<C>(wte), zpe = widen<C>(wpe), ztt = widen<C>(wtt);
  compare("dwte", wte, dwte0,
          [&](const std::vector<C>& z) { return weighted_sum(reference(z, zpe, ztt), dy); });
  if (learned)
    compare("dwpe", wpe, dwpe0,
            [&](const std::vector<C>& z) { return weighted_sum(reference(zte, z, ztt), dy); });
  if (typed)
    compare("dwtt", wtt, dwtt0,
            [&](const std::vector<C>& z) { return weighted_sum(reference(zte, zpe, z), dy); });
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

// Tokens behind the vocabulary are rows of a second table: as if both were one, of which some of the rows have
// a gradient.
TEST(Embedding, TokensInFrontMatchTheReference) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool add : {false, true}) {
        SCOPED_TRACE(fmt::format("B{}_T{}_C{}_{}{}", s.b, s.t, s.c, to_string(t), add));
        const DType to = s.c % 2 == 0 ? DType::bf16 : DType::f32;
        const int64_t n = s.b * s.t, K = 3;
        const Values tokens = index_values(n, s.vocabulary + K, 1);
        Values both = normal_values((s.vocabulary + K) * s.c, 2, t);
        const auto split = both.begin() + s.vocabulary * s.c;
        const Values wte(both.begin(), split), front(split, both.end());
        const float beside = add ? 1.0f : 5.5f;  // of those of the vocabulary alone
        std::for_each(both.begin(), split, [&](double& x) { x *= static_cast<double>(beside); });
        const Values wpe = normal_values(s.positions * s.c, 3, t),
                     dy = normal_values(n * s.c, 4, t);
        const Values before = normal_values(K * s.c, 5, to);
        const StepState state = state_at(s.position);
        const Outputs out = run_in_all_modes([&](Case& c) {
          const View vtokens = c.input("tokens", {s.b, s.t}, DType::i32, tokens);
          embedding_forward(c.ctx(), c.output("y", {n, s.c}, t), vtokens,
                            c.input("wte", {s.vocabulary, s.c}, t, wte),
                            c.input("wpe", {s.positions, s.c}, t, wpe), c.step_state(state), {}, {},
                            {}, {c.input("front", {K, s.c}, t, front), beside});
          embedding_front_backward(
              c.ctx(),
              {add ? c.inout("dfront", {K, s.c}, to, before) : c.output("dfront", {K, s.c}, to),
               add},
              c.input("dy", {n, s.c}, t, dy), vtokens, s.vocabulary);
        });
        const auto reference = [&](const auto& w, const auto& p) {
          return embedding_reference(w, p, tokens, s.t, s.c, s.position);
        };
        EXPECT_TRUE(close(out["y"], reference(both, wpe), tolerance(t, 1)));
        std::vector<size_t> of_front(static_cast<size_t>(K * s.c));
        std::iota(of_front.begin(), of_front.end(), wte.size());
        const auto zpe = widen<Complex>(wpe);
        Values truth = complex_step_gradient(
            [&](const std::vector<Complex>& z) { return weighted_sum(reference(z, zpe), dy); },
            both, of_front);
        for (size_t i = 0; add && i < truth.size(); ++i) truth[i] += before[i];
        EXPECT_TRUE(close(out["dfront"], truth, tolerance(to, n)));
      }
}

TEST(Embedding, TypesMatchTheReference) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const Types& k : {Types{1, false}, Types{2, true}, Types{3, false}, Types{4, true}})
        // Half of the cases add.
        check(s, t, true, k.kinds % 4 < 2, {}, k.kinds == 2 ? DType::bf16 : DType::f32, k);
  for (const bool add : {false, true})
    for (const DType to : {DType::f32, DType::bf16}) {
      check(kSizes[3], DType::bf16, true, add, {}, to, {2, true});
      check(kSizes[1], DType::f32, false, add, {}, to, {2, true});  // no learned positions
    }
  // More than 32 chunks of 16 rows.
  check({5, 130, 3, 7, 130, 0}, DType::f32, true, true, {}, DType::f32, {2, true});
  Values starts(130);
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<double>(i % 65 / 7 * 7);
  check(kSizes[3], DType::f16, true, false, starts, DType::f32, {2, true});
}

// (wte + wtt) + wpe, rounded once: in another order, or with a rounding between, 1 is lost.
TEST(Embedding, TheSumHasOneOrder) {
  const auto sum = [](DType t, double token, double kind, double place) {
    return run_in_all_modes([&](Case& c) {
      embedding_forward(c.ctx(), c.output("y", {1, 1}, t),
                        c.input("tokens", {1, 1}, DType::i32, {0}),
                        c.input("wte", {1, 1}, t, {token}), c.input("wpe", {1, 1}, t, {place}), {},
                        {}, {}, c.input("wtt", {1, 1}, t, {kind}));
    })["y"];
  };
  EXPECT_EQ(sum(DType::f32, 0x1p24, -0x1p24, 1), Values{1});
  EXPECT_EQ(sum(DType::f32, 0x1p24, 1, -0x1p24), Values{0});
  EXPECT_EQ(sum(DType::bf16, 0x1p10, 1, -0x1p10), Values{1});
}

// A table whose positions begin at row 2, as RoBERTa's: its rows from there on, and so the
// gradient, whose first rows are the owner's.
TEST(Embedding, PositionsMayBeginInTheMiddleOfATable) {
  constexpr int64_t kFirst = 2, B = 3, T = 5, C = 7, P = 9, V = 6;
  const Values tokens = index_values(B * T, V, 1), wte = normal_values(V * C, 2),
               wpe = normal_values(P * C, 3), dy = normal_values(B * T * C, 4),
               before = normal_values(P * C, 5);
  const Body body = [&](Case& c) {
    const View ids = c.input("tokens", {B, T}, DType::i32, tokens);
    const View places = c.input("wpe", {P, C}, DType::f32, wpe).rows(kFirst, P - kFirst);
    embedding_forward(c.ctx(), c.output("y", {B * T, C}, DType::f32), ids,
                      c.input("wte", {V, C}, DType::f32, wte), places, {});
    const View g = c.input("dy", {B * T, C}, DType::f32, dy);
    const View assigned = c.output("assigned", {P, C}, DType::f32),
               added = c.inout("added", {P, C}, DType::f32, before);
    fill_zero(c.ctx(), assigned.rows(0, kFirst));
    embedding_backward(c.ctx(), {}, {assigned.rows(kFirst, P - kFirst), false}, g, ids, {});
    embedding_backward(c.ctx(), {}, {added.rows(kFirst, P - kFirst), true}, g, ids, {});
  };
  const Outputs out = run_in_all_modes(body);
  EXPECT_TRUE(close(out["y"], embedding_reference(wte, wpe, tokens, T, C, kFirst),
                    tolerance(DType::f32, 1)));
  const Values truth = complex_step_gradient(
      [&](const std::vector<Complex>& z) {
        return weighted_sum(embedding_reference(widen<Complex>(wte), z, tokens, T, C, kFirst), dy);
      },
      wpe);
  EXPECT_TRUE(close(out["assigned"], truth, tolerance(DType::f32, B)));
  Values sum = truth;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i];
  EXPECT_TRUE(close(out["added"], sum, tolerance(DType::f32, B)));
  for (size_t i = 0; i < kFirst * C; ++i) {
    EXPECT_EQ(out["assigned"][i], 0);
    EXPECT_EQ(out["added"][i], before[i]);
  }
  expect_equal_bits(run_on_emu(body), out);
  // One place more than the rows from there on.
  expect_error(ErrorCode::data, {"positions of [0,P)=[0,4)", "positions 0 to 4"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_forward(c.ctx(), c.output("y", {B * T, C}, DType::f32),
                        c.input("tokens", {B, T}, DType::i32, tokens),
                        c.input("wte", {V, C}, DType::f32, wte),
                        c.output("wpe", {6, C}, DType::f32).rows(kFirst, 4), {});
    });
  });
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

// Of sequences longer than the table each document must fit: one of P tokens does, one of P + 1 not.
TEST(Embedding, DocumentsAreAsLongAsTheTableAtMost) {
  const auto run = [](const Values& starts) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      embedding_forward(c.ctx(), c.output("y", {6, 3}, DType::f32),
                        c.input("tokens", {1, 6}, DType::i32, Values(6)),
                        c.input("wte", {4, 3}, DType::f32, Values(12)),
                        c.input("wpe", {3, 3}, DType::f32, Values(9)), {},
                        c.input("document_start", {1, 6}, DType::i32, starts));
    });
  };
  EXPECT_NO_THROW(run({0, 0, 0, 3, 3, 3}));
  EXPECT_NO_THROW(run({0, 1, 1, 1, 4, 4}));
  for (const Values& starts : {Values{0, 0, 0, 0, 4, 4}, Values{0, 1, 2, 2, 2, 2}})
    expect_error(ErrorCode::data, {"positions of [0,P)=[0,3)", "positions 0 to 3", "max_length"},
                 [&] { run(starts); });
}

// Types are data too; nothing is asked of them where their gradient is not wanted.
TEST(Embedding, RefusesTypesThatDoNotFit) {
  struct Call {
    Shape types{2, 3}, wtt{2, 4};
    Values values = {0, 1, 0, 1, 0, 1};
    DType type_dtype = DType::i32, wtt_dtype = DType::f32;
    bool has_table = true;
  };
  const auto run = [](const Call& a, bool backward) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View tokens = c.input("tokens", {2, 3}, DType::i32, Values(6, 0.0));
      const View types = c.input("types", a.types, a.type_dtype, a.values);
      if (backward)
        embedding_backward(
            c.ctx(), {c.output("dwte", {9, 4}, DType::f32), false}, {},
            c.input("dy", {6, 4}, DType::f32, Values(24, 0.0)), tokens, {}, {}, types,
            a.has_table ? GradView{c.output("dwtt", a.wtt, a.wtt_dtype), false} : GradView{});
      else
        embedding_forward(c.ctx(), c.output("y", {6, 4}, DType::f32), tokens,
                          c.input("wte", {9, 4}, DType::f32, Values(36, 0.0)), {}, {}, {}, types,
                          a.has_table ? c.output("wtt", a.wtt, a.wtt_dtype) : View());
    });
  };
  for (const bool backward : {false, true}) {
    const auto refuse = [&](ErrorCode code, std::initializer_list<const char*> words,
                            const Call& a) {
      expect_error(code, words, [&] { run(a, backward); });
    };
    run({}, backward);
    refuse(ErrorCode::data,
           {"types of [0,K)=[0,2)", "type 2 in sequence 1 at place 1", "type_vocab_size is 2"},
           {.values = {0, 1, 0, 1, 2, 1}});
    refuse(ErrorCode::data, {"type -1 in sequence 0 at place 2"}, {.values = {0, 1, -1, 1, 2, 1}});
    refuse(ErrorCode::shape, {"types of shape (B,T)=(2,3)", "types (3,2) i32"}, {.types = {3, 2}});
    refuse(ErrorCode::unsupported, {"types of dtype i32", "types (2,3) i64"},
           {.type_dtype = DType::i64});
    refuse(ErrorCode::shape, {"(K,C)=(2,4)", "(2,5) f32"}, {.wtt = {2, 5}});
    refuse(ErrorCode::shape, {"a type at least", "(0,4) f32"}, {.wtt = {0, 4}});
    refuse(ErrorCode::unsupported, {backward ? "dwtt of dtype f32|bf16" : "wtt of dtype f32"},
           {.wtt_dtype = DType::f16});
  }
  expect_error(ErrorCode::usage, {"a table wtt for the types", "types (2,3) i32 and no wtt"},
               [&] { run({.has_table = false}, false); });
  run({.values = Values(6, 5.0), .has_table = false}, true);
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
