#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/blas/matmul_cpu.h"
#include "tests/layers/ops/attention_case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/grid.h"

namespace snug::test {
namespace {

// Lengths around the blocks of 64, widths around the lanes of 16, all kinds of head sharing.
const Sizes kSizes[] = {
    {1, 1, 1, 1, 4, true, DType::f32},     {2, 2, 2, 1, 8, true, DType::f32},
    {1, 17, 3, 3, 33, true, DType::f32},   {2, 64, 2, 2, 64, true, DType::f32},
    {1, 65, 4, 2, 16, true, DType::f32},   {2, 130, 3, 1, 8, true, DType::f32},
    {1, 200, 2, 2, 64, true, DType::f32},  {1, 1, 2, 2, 5, false, DType::f32},
    {2, 17, 4, 2, 7, false, DType::f32},   {1, 130, 2, 1, 33, false, DType::f32},
    {1, 70, 1, 1, 256, true, DType::f32},  {2, 65, 3, 3, 64, true, DType::bf16},
    {1, 200, 2, 1, 33, true, DType::bf16}, {2, 130, 2, 2, 16, false, DType::bf16},
    {2, 17, 6, 2, 128, true, DType::bf16}, {1, 67, 2, 2, 1, true, DType::bf16},
    {1, 270, 2, 1, 64, true, DType::bf16}, {1, 70, 1, 1, 256, false, DType::bf16},
    {2, 65, 3, 3, 64, true, DType::f16},   {1, 200, 2, 1, 33, true, DType::f16},
    {2, 130, 2, 2, 16, false, DType::f16}, {1, 67, 2, 2, 1, true, DType::f16},
};

TEST(Attention, MatchesTheReferenceInEveryMode) {
  for (const Sizes& s : grid(kSizes)) {
    SCOPED_TRACE(name_of(s));
    const AttentionCase c = case_of(s);
    expect_every_form(c, s.dtype, spec_of(c));
  }
}

// A negative scale turns the order of the scores round; at zero all visible keys weigh the same.
TEST(Attention, TakesAnyScale) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const double scale : {-0.3, 0.0, 1e-20, 1.7}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(dtype), scale));
      AttentionCase c = case_of({1, 70, 2, 1, 12, true, dtype});
      c.scale = static_cast<float>(scale);
      expect_every_form(c, dtype, spec_of(c));
    }
}

// The fp32 forms agree bit for bit, on f32 and on bf16.
TEST(Attention, TheInstructionSetOfFloatsDoesNotShow) {
  if (!attention_blocks_has_avx512()) GTEST_SKIP() << "this machine has no AVX-512";
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = case_of({1, 140, 3, 1, 40, true, dtype});
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.2f;
    const Data data = data_of(c, dtype);
    const Outputs a =
        run_both(c, dtype, data, spec, false, some_state(), 1, &attention_blocks_avx2());
    const Outputs b =
        run_both(c, dtype, data, spec, false, some_state(), 1, &attention_blocks_avx512());
    for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(a[name], b[name]) << name;
  }
}

TEST(Attention, ChoosesPairsWhereTheMatrixProductDoes) {
  const AttentionBlocks& chosen = attention_blocks(DType::bf16);
  EXPECT_FALSE(attention_blocks(DType::f32).pairs);
  EXPECT_EQ(chosen.pairs, matmul_best(DType::bf16, DType::bf16) == MatmulKernel::avx512_bf16 ||
                              matmul_best(DType::bf16, DType::bf16) == MatmulKernel::amx_bf16);
  EXPECT_EQ(chosen.step > 1, matmul_best(DType::bf16, DType::bf16) == MatmulKernel::amx_bf16);
  EXPECT_EQ(std::string(attention_blocks(DType::f32).name),
            attention_blocks_has_avx512() ? "avx512" : "avx2");
}

TEST(Attention, BackwardIsTheComplexStepGradient) {
  for (const Sizes& s : kSizes) {
    if (s.dtype != DType::f32 || s.T > 130 || s.D > 64) continue;
    SCOPED_TRACE(name_of(s));
    const AttentionCase c = case_of(s);
    const Data data = data_of(c, s.dtype);
    const auto indices = sample_indices(data.qkv.size(), s.T > 64 ? 24 : 60);
    const Values gradient = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(attention_reference(c, z), data.dout);
        },
        data.qkv, indices);
    const Values closed = attention_gradient(c, data.qkv, data.dout);
    EXPECT_TRUE(close(pick(closed, indices), gradient, 1e-13));
    const Outputs got = run_both(c, s.dtype, data, spec_of(c), false);
    // The sample may miss the largest elements, which set the scale of the error.
    const double whole = relative_error(closed, Values(closed.size(), 0.0), 1.0);
    EXPECT_TRUE(close(pick(got["dqkv"], indices), gradient, tolerance(s.dtype, c.T + c.D),
                      std::max(whole, 1e-3)));
  }
}

TEST(Attention, KeyLengthsHideTheRest) {
  for (const bool causal : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      AttentionCase c = case_of({4, 130, 2, 1, 8, causal, dtype});
      c.key_lengths = {1, 64, 77, 130};
      const Data data = data_of(c, dtype);
      const Truth truth(c, dtype, data);
      for (const AttentionBlocks* form : forms(dtype)) {
        const Outputs got = run_both(c, dtype, data, spec_of(c), form == forms(dtype).back(),
                                     some_state(), 1, form);
        truth.expect(*form, got);
        // Keys and values nobody sees get a gradient of exactly zero.
        const Values dqkv = got["dqkv"];
        for (int64_t b = 0; b < c.B; ++b)
          for (int64_t j = static_cast<int64_t>(c.key_lengths[static_cast<size_t>(b)]); j < c.T;
               ++j)
            for (int64_t d = 0; d < c.D; ++d) {
              EXPECT_EQ(dqkv[c.k(b, j, 0, d)], 0);
              EXPECT_EQ(dqkv[c.v(b, j, 0, d)], 0);
            }
      }
    }
}

// Scores of several thousands: only a softmax that subtracts the maximum survives. The rounding
// error of a score is absolute, |s| units, and becomes a relative error of a probability.
TEST(Attention, LargeScoresStayFinite) {
  const AttentionCase c = case_of({1, 130, 2, 2, 16, true, DType::f32});
  const Data data = data_of(c, DType::f32, 60);
  const Outputs got = run_both(c, DType::f32, data, spec_of(c));
  std::vector<double> lse;
  const Values out = attention_reference<double>(c, data.qkv, &lse);
  double highest = 0;
  for (const double l : lse) highest = std::max(highest, std::fabs(l));
  EXPECT_GT(highest, 5000);
  const double allowed = highest * unit_roundoff(DType::f32) * 2 * std::sqrt(16.0);
  EXPECT_TRUE(close(got["out"], out, allowed));
  EXPECT_TRUE(close(got["lse"], lse, tolerance(DType::f32, c.D)));
}

// Scores that double with every block of keys: what the powers are taken against rises with them,
// and the sums so far are scaled, also those of queries that share lanes with others that need not.
TEST(Attention, ScoresThatRiseWithTheKeysScaleTheSums) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool causal : {false, true}) {
      const AttentionCase c = case_of({1, 330, 2, 1, 16, causal, dtype});
      Data data = data_of(c, dtype);
      for (int64_t j = 0; j < c.T; ++j)
        for (int64_t d = 0; d < c.D; ++d)
          data.qkv[c.k(0, j, 0, d)] *= static_cast<double>(int64_t{1} << j / kAttentionBlock);
      const Truth truth(c, dtype, data);
      for (const AttentionBlocks* form : forms(dtype))
        truth.expect(*form, run_both(c, dtype, data, spec_of(c), false, some_state(), 1, form));
    }
}

// More keys than tile-matrix units keep packed, and a count of them that fills no tile; then with
// queries that see keys of two parts, and some behind the last key that see none. With many threads
// a piece is one block of queries.
void expect_more_keys_than_stay(const AttentionBlocks& form) {
  AttentionCase windowed = case_of({1, 2200, 2, 1, 5, true, DType::bf16});
  windowed.window = 77;
  windowed.key_lengths = {2070};
  for (const AttentionCase& c : {case_of({1, 2131, 1, 1, 8, true, DType::bf16}), windowed}) {
    const Data data = data_of(c, DType::bf16);
    const Truth truth(c, DType::bf16, data);
    const Outputs one = run_both(c, DType::bf16, data, spec_of(c), false, some_state(), 1, &form);
    truth.expect(form, one);
    for (const int threads : {2, 16}) {
      const Outputs more =
          run_both(c, DType::bf16, data, spec_of(c), false, some_state(), threads, &form);
      for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(one[name], more[name]) << name;
    }
  }
}
TEST(Attention, MoreKeysThanStayPacked) {
  if (!attention_blocks_has_amx()) GTEST_SKIP() << "SlowAttention has it on emulated tiles";
  expect_more_keys_than_stay(attention_blocks_amx());
}
TEST(SlowAttention, MoreKeysThanStayPacked) {
  if (!attention_blocks_has_avx512_bf16()) GTEST_SKIP() << "no AVX-512 with BF16 here";
  expect_more_keys_than_stay(attention_blocks_amx_emulated());
}

TEST(AttentionDropout, MatchesTheReferenceWithThePromisedMask) {
  for (const Sizes& s :
       {Sizes{2, 1, 1, 1, 4, true, DType::f32}, Sizes{2, 67, 2, 1, 8, true, DType::f32},
        Sizes{1, 130, 3, 3, 33, false, DType::f32}, Sizes{2, 130, 2, 2, 16, true, DType::bf16},
        Sizes{1, 70, 2, 1, 24, true, DType::f16}}) {
    SCOPED_TRACE(name_of(s));
    AttentionCase c = case_of(s);
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.3f;
    spec.site = 9;
    c.mask = mask_of(c, spec, some_state());
    expect_every_form(c, s.dtype, spec);
  }
}

// With equal scores and values of one, an output is the mean of the factors of its row.
TEST(AttentionDropout, KeepsTheMeanAndChangesWithEveryPartOfTheKey) {
  AttentionCase c = case_of({2, 256, 4, 4, 4, false, DType::f32});
  AttentionSpec spec = spec_of(c);
  spec.dropout = 0.25f;
  spec.site = 1;
  const Data data = {Values(static_cast<size_t>(c.B * c.T * c.width()), 1.0),
                     Values(static_cast<size_t>(c.B * c.T * c.H * c.D), 1.0)};
  const auto out_of = [&](const AttentionSpec& s, const StepState& state) {
    return run_both(c, DType::f32, data, s, false, state)["out"];
  };
  const Values out = out_of(spec, some_state());
  double mean = 0;
  for (const double x : out) mean += x / static_cast<double>(out.size());
  // 2*4*256*256 draws of a factor of variance p / (1 - p): five standard deviations.
  EXPECT_NEAR(mean, 1, 5 * std::sqrt(0.25 / 0.75 / (2 * 4 * 256 * 256.0)));

  StepState other = some_state();
  other.seed += 1;
  EXPECT_NE(out_of(spec, other), out);
  other = some_state();
  other.step += 1;
  EXPECT_NE(out_of(spec, other), out);
  other = some_state();
  other.first_sample += 1;
  const Values shifted = out_of(spec, other);
  EXPECT_NE(shifted, out);
  // Sample 1 of the first run is sample 0 of the shifted one.
  const auto half = static_cast<std::ptrdiff_t>(out.size() / 2);
  EXPECT_TRUE(std::equal(shifted.begin(), shifted.begin() + half, out.begin() + half));
  AttentionSpec other_site = spec;
  other_site.site = 2;
  EXPECT_NE(out_of(other_site, some_state()), out);
}

TEST(AttentionDropout, ASplitIntoMicroBatchesChangesNothing) {
  const AttentionCase c = case_of({4, 67, 2, 2, 8, true, DType::f32});
  AttentionSpec spec = spec_of(c);
  spec.dropout = 0.1f;
  const Data data = data_of(c, DType::f32);
  const Outputs whole = run_both(c, DType::f32, data, spec, false);
  for (int64_t b = 0; b < c.B; ++b) {
    AttentionCase one = c;
    one.B = 1;
    const auto part = [&](const Values& v) {
      const auto n = static_cast<std::ptrdiff_t>(v.size()) / c.B;
      return Values(v.begin() + b * n, v.begin() + (b + 1) * n);
    };
    StepState state = some_state();
    state.first_sample += b;
    const Outputs got =
        run_both(one, DType::f32, {part(data.qkv), part(data.dout)}, spec, false, state);
    for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(got[name], part(whole[name])) << name;
  }
}

// Few heads for the threads take the two-pass backward, many the one-pass, and the number of blocks
// that are packed together follows the threads too: the bits are the same.
TEST(Attention, EveryNumberOfThreadsGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool causal : {true, false}) {
      AttentionCase c = case_of({2, 331, 4, 2, 24, causal, dtype});
      AttentionSpec spec = spec_of(c);
      spec.dropout = 0.2f;
      c.key_lengths = {331, 170};
      const Data data = data_of(c, dtype);
      for (const AttentionBlocks* form : forms(dtype)) {
        const Outputs one = run_both(c, dtype, data, spec, false, some_state(), 1, form);
        for (const int threads : grid(std::vector{3, 2, 4, 5, 16})) {
          const Outputs many = run_both(c, dtype, data, spec, false, some_state(), threads, form);
          for (const char* name : {"out", "lse", "dqkv"})
            EXPECT_EQ(many[name], one[name]) << form->name << " " << threads;
        }
      }
    }
}

TEST(Attention, WorkspaceDoesNotGrowWithTheSquareOfT) {
  const auto planned = [](int64_t T) {
    AttentionCase c = case_of({1, T, 2, 2, 8, true, DType::f32});
    return run_both(c, DType::f32, data_of(c, DType::f32), spec_of(c), false).planned_bytes;
  };
  const int64_t a = planned(512), b = planned(1024), d = planned(1536);
  EXPECT_NEAR(static_cast<double>(d - b), static_cast<double>(b - a), 8192);
  EXPECT_LT(d, 1536 * 1536);  // one byte for every element of one head's matrix
}

TEST(Attention, ReportsItsFlopsAndBytes) {
  AttentionCase c = case_of({2, 10, 3, 1, 4, true, DType::f32});
  const Outputs got = run_both(c, DType::f32, data_of(c, DType::f32), spec_of(c), false);
  EXPECT_EQ(got.flops, (4 + 10) * 2 * 3 * 4 * 55);
  constexpr int64_t kQkv = 2 * 10 * (3 + 1 + 1) * 4 * 4, kOut = 2 * 10 * 3 * 4 * 4,
                    kLse = 2 * 3 * 10 * 4;
  EXPECT_EQ(got.bytes_moved, kQkv + kOut + kLse + 2 * kQkv + 2 * kOut + kLse)
      << "dqkv and dout too";
  EXPECT_EQ(got.ops, (std::vector<std::string>{"attention_forward", "attention_backward"}));
  // Random numbers take time and are no FLOPs, so with dropout the ops have other names.
  AttentionSpec spec = spec_of(c);
  spec.dropout = 0.5f;
  const Outputs dropped = run_both(c, DType::f32, data_of(c, DType::f32), spec, false);
  EXPECT_EQ(dropped.flops, got.flops);
  EXPECT_EQ(dropped.ops,
            (std::vector<std::string>{"attention_dropout_forward", "attention_dropout_backward"}));
}

struct Generation {
  Values out, cache_k, cache_v;
};

// Feeds tokens [0, total) in pieces of the given sizes, with the caches carried between them.
Generation generate(const AttentionCase& c, DType dtype, const Values& qkv, int64_t P,
                    const std::vector<int64_t>& pieces, bool all_modes,
                    const AttentionBlocks* blocks = nullptr) {
  const AttentionBlocks& form = blocks ? *blocks : attention_blocks(dtype);
  Generation g;
  g.out.assign(static_cast<size_t>(c.B * c.T * c.H * c.D), 0);
  g.cache_k.assign(static_cast<size_t>(c.B * P * c.G * c.D), 7);
  g.cache_v = g.cache_k;
  int64_t position = 0;
  for (const int64_t n : pieces) {
    Values rows;
    for (int64_t b = 0; b < c.B; ++b) {
      const auto first = qkv.begin() + (b * c.T + position) * c.width();
      rows.insert(rows.end(), first, first + n * c.width());
    }
    StepState state{};
    state.position = position;
    const Body body = [&](Case& t) {
      const View x = t.input("qkv", {c.B * n, c.width()}, dtype, rows);
      const View k = t.inout("cache_k", {c.B, P, c.G, c.D}, dtype, g.cache_k);
      const View v = t.inout("cache_v", {c.B, P, c.G, c.D}, dtype, g.cache_v);
      const View out = t.output("out", {c.B * n, c.H * c.D}, dtype);
      attention_cached_forward_by(form, t.ctx(), out, k, v, x, c.B, n, spec_of(c),
                                  t.step_state(state));
    };
    const Outputs got = all_modes ? run_in_all_modes(body) : run_on_plan_and_cpu({}, body);
    const Values out = got["out"];
    for (int64_t b = 0; b < c.B; ++b)
      std::copy_n(out.begin() + b * n * c.H * c.D, n * c.H * c.D,
                  g.out.begin() + (b * c.T + position) * c.H * c.D);
    g.cache_k = got["cache_k"];
    g.cache_v = got["cache_v"];
    position += n;
  }
  return g;
}

TEST(AttentionCached, EqualsTheFullForwardBitForBit) {
  for (const int64_t window : {0, 3, 70})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      AttentionCase c = case_of({2, 140, 4, 2, 12, true, dtype});
      c.window = window;
      if (window == 70) c.softcap = 0.75;
      const Data data = data_of(c, dtype);
      for (const AttentionBlocks* form : forms(dtype)) {
        SCOPED_TRACE(form->name);
        const bool modes = form == forms(dtype).back();
        const Values full =
            run_both(c, dtype, data, spec_of(c), false, some_state(), 1, form)["out"];
        EXPECT_EQ(generate(c, dtype, data.qkv, 140, {140}, modes, form).out, full);
        EXPECT_EQ(generate(c, dtype, data.qkv, 150, {1, 63, 1, 1, 70, 4}, modes, form).out, full);
        // Token by token over the end of a block of 64.
        std::vector<int64_t> pieces = {60};
        pieces.insert(pieces.end(), 8, 1);
        pieces.push_back(72);
        EXPECT_EQ(generate(c, dtype, data.qkv, 141, pieces, false, form).out, full);
      }
    }
}

// A ring of the fewest rows, written around twice, in every form.
TEST(AttentionCached, ARingHasTheBitsOfTheWholeSequence) {
  for (const int64_t window : {5, 96})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      AttentionCase c = case_of({2, 293, 4, 2, 12, true, dtype});
      c.window = window;
      const Data data = data_of(c, dtype);
      ASSERT_EQ(attention_ring(window, 16), 128);
      std::vector<int64_t> pieces(18, 16);
      pieces.insert(pieces.end(), 5, 1);
      for (const AttentionBlocks* form : forms(dtype)) {
        SCOPED_TRACE(form->name);
        const Values full =
            run_both(c, dtype, data, spec_of(c), false, some_state(), 1, form)["out"];
        EXPECT_EQ(generate(c, dtype, data.qkv, 128, pieces, false, form).out, full);
      }
    }
}

// One block of queries and more keys than stay packed: they meet them part by part.
TEST(AttentionCached, MoreKeysThanStayPacked) {
  const AttentionCase c = case_of({1, 2, 2, 1, 8, true, DType::bf16});
  const int64_t P = 2112, position = 2100;
  const Data data = data_of(c, DType::bf16);
  const Values keys = normal_values(P * c.G * c.D, 21, DType::bf16);
  const Values values = normal_values(P * c.G * c.D, 22, DType::bf16);
  StepState state{};
  state.position = position;
  // The whole sequence: what is cached, then the new tokens, of which alone the queries count.
  AttentionCase whole = c;
  whole.T = position + c.T;
  Values qkv(static_cast<size_t>(whole.T * whole.width()), 0.0);
  for (int64_t j = 0; j < whole.T; ++j)
    for (int64_t d = 0; d < c.D; ++d) {
      const auto at = static_cast<size_t>(j * c.D + d);
      const int64_t i = j - position;
      qkv[whole.k(0, j, 0, d)] = i < 0 ? keys[at] : data.qkv[c.k(0, i, 0, d)];
      qkv[whole.v(0, j, 0, d)] = i < 0 ? values[at] : data.qkv[c.v(0, i, 0, d)];
      for (int64_t h = 0; i >= 0 && h < c.H; ++h)
        qkv[whole.q(0, j, h, d)] = data.qkv[c.q(0, i, h, d)];
    }
  for (const AttentionBlocks* form : forms(DType::bf16)) {
    SCOPED_TRACE(form->name);
    const Outputs got = run_on_plan_and_cpu({}, [&](Case& t) {
      const View x = t.input("qkv", {c.T, c.width()}, DType::bf16, data.qkv);
      const View k = t.inout("cache_k", {1, P, c.G, c.D}, DType::bf16, keys);
      const View v = t.inout("cache_v", {1, P, c.G, c.D}, DType::bf16, values);
      const View out = t.output("out", {c.T, c.H * c.D}, DType::bf16);
      attention_cached_forward_by(*form, t.ctx(), out, k, v, x, 1, c.T, spec_of(c),
                                  t.step_state(state));
    });
    std::vector<double> p;
    for (int64_t i = 0; i < c.T; ++i)
      for (int64_t h = 0; h < c.H; ++h) {
        attention_row(whole, qkv, 0, h, position + i, &p);
        for (int64_t d = 0; d < c.D; ++d) {
          double want = 0;
          for (int64_t j = 0; j < whole.T; ++j)
            want += p[static_cast<size_t>(j)] * qkv[whole.v(0, j, h, d)];
          // Roundings of p are independent, so their sum is far below that of the result.
          EXPECT_NEAR(got["out"][c.o(0, i, h, d)], want, 0x1p-8 * std::fabs(want) + 1e-3);
        }
      }
  }
}

TEST(AttentionCached, WritesTheNewRowsAndNoOthers) {
  const AttentionCase c = case_of({2, 5, 4, 2, 3, true, DType::f32});
  const Data data = data_of(c, DType::f32);
  const int64_t P = 8;
  const Generation g = generate(c, DType::f32, data.qkv, P, {2, 3}, false);
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t j = 0; j < P; ++j)
      for (int64_t h = 0; h < c.H; ++h)
        for (int64_t d = 0; d < c.D; ++d) {
          const auto at = static_cast<size_t>(((b * P + j) * c.G + h / 2) * c.D + d);
          EXPECT_EQ(g.cache_k[at], j < c.T ? data.qkv[c.k(b, j, h, d)] : 7);
          EXPECT_EQ(g.cache_v[at], j < c.T ? data.qkv[c.v(b, j, h, d)] : 7);
        }
}

TEST(AttentionCached, RefusesAFullCache) {
  const AttentionCase c = case_of({1, 4, 1, 1, 2, true, DType::f32});
  const Data data = data_of(c, DType::f32);
  expect_error(ErrorCode::usage,
               {"at most P=3 tokens in the key/value cache", "2 new tokens at position 2",
                "plan a longer cache"},
               [&] {
                 generate(c, DType::f32, data.qkv, 3, {2, 2}, false);
               });
}

}  // namespace
}  // namespace snug::test
