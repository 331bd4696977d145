// The kernels in the emulator against the whole matrix of probabilities in double, element by
// element, as the CPU's forms.
#include <cmath>
#include <limits>

#include "layers/ops/attention_simt.h"
#include "layers/ops/document_start_simt.h"
#include "tests/layers/ops/attention_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

struct Variant {
  Sizes sizes;
  int threads = 64;
  bool shifted = false;
  float dropout = 0;
  std::vector<double> key_lengths = {}, document_start = {};
  double scale = NAN;  // that of the width
  int64_t window = 0;
  double softcap = 0;
};

Outputs run_emulated(const AttentionCase& c, const Variant& v, const Data& data,
                     AttentionSpec spec) {
  const DType dtype = v.sizes.dtype;
  return run_in_all_schedules(
      [&](EmuCase& t) {
        const View qkv = t.input("qkv", {c.B * c.T, c.width()}, dtype, data.qkv);
        const View dout = t.input("dout", {c.B * c.T, c.H * c.D}, dtype, data.dout);
        const View out = t.output("out", {c.B * c.T, c.H * c.D}, dtype);
        const View lse = t.output("lse", {c.B, c.H, c.T}, DType::f32);
        const View dqkv = t.output("dqkv", {c.B * c.T, c.width()}, dtype);
        const View delta = t.output("delta", {c.B, c.H, c.T}, DType::f32);
        const View state = v.dropout > 0 ? t.step_state(some_state()) : View();
        if (!c.key_lengths.empty())
          spec.key_lengths = t.input("key_lengths", {c.B}, DType::i32, c.key_lengths);
        if (!c.document_start.empty())
          spec.document_start = t.input("document_start", {c.B, c.T}, DType::i32, c.document_start);
        if (!c.document_start.empty() && !c.causal) {
          spec.document_end = t.output("document_end", {c.B, c.T}, DType::i32);
          document_end_on(t.queue(), spec.document_end, spec.document_start, v.threads);
        }
        attention_check(spec, c.B, c.T, state);
        attention_forward_on(t.queue(), out, lse, qkv, c.B, c.T, spec, state, v.threads);
        attention_backward_on(t.queue(), dqkv, delta, dout, qkv, out, lse, c.B, c.T, spec, state,
                              v.threads);
      },
      v.shifted);
}

Outputs check(const Variant& v) {
  SCOPED_TRACE(fmt::format("{} threads {} shifted {} dropout {}", name_of(v.sizes), v.threads,
                           v.shifted, v.dropout));
  AttentionCase c = case_of(v.sizes);
  if (!std::isnan(v.scale)) c.scale = static_cast<float>(v.scale);
  c.window = v.window;
  c.softcap = static_cast<float>(v.softcap);
  c.key_lengths = v.key_lengths;
  c.document_start = v.document_start;
  AttentionSpec spec = spec_of(c);
  spec.dropout = v.dropout;
  spec.site = 9;
  if (v.dropout > 0) c.mask = mask_of(c, spec, some_state());
  const Data data = data_of(c, v.sizes.dtype);
  const Truth truth(c, v.sizes.dtype, data);
  Outputs got = run_emulated(c, v, data, spec);
  // Float or, on tensor cores, p and ds rounded.
  truth.expect("kernels", v.sizes.dtype != DType::f32, got);
  return got;
}

constexpr DType kF32 = DType::f32, kBf16 = DType::bf16, kF16 = DType::f16;

TEST(AttentionSimt, MatchesTheReference) {
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 4, true, kF32},
                         {2, 2, 2, 1, 8, true, kF32},
                         {1, 33, 3, 3, 33, true, kF32},
                         {1, 65, 4, 2, 16, true, kF32},
                         {1, 1, 2, 2, 5, false, kF32},
                         {2, 17, 4, 2, 7, false, kF32},
                         {1, 70, 2, 1, 12, false, kF32},
                         {1, 40, 2, 2, 64, true, kBf16},
                         {1, 67, 2, 2, 1, true, kBf16},
                         {2, 34, 6, 2, 24, true, kBf16},
                         {1, 40, 2, 1, 32, false, kF16},
                         {1, 37, 2, 1, 33, true, kF16}})
    check({.sizes = s});
}

TEST(AttentionSimt, Softcaps) {
  for (const DType dtype : {kF32, kBf16, kF16})
    for (const double cap : {0.3, 2.0, 50.0}) {
      check({.sizes = {1, 67, 4, 2, 12, true, dtype}, .softcap = cap});
      check(
          {.sizes = {2, 70, 2, 1, 33, true, dtype}, .dropout = 0.3f, .window = 20, .softcap = cap});
    }
}

TEST(AttentionSimt, AnyWidth) {
  for (const int64_t D : {2, 96, 112, 128, 129, 256}) {
    check({.sizes = {1, 33, 1, 1, D, true, kF32}});
    check({.sizes = {1, 18, 2, 1, D, D<100, D> 100 ? kBf16 : kF16}});
  }
}

// The block that a run gets (0) fits the shared memory of every device, and so do its kernels'
// declared arrays beside the tiles.
TEST(SlowAttentionSimt, WidestHeadsInTheBlockOfARun) {
  for (const DType dtype : {kF32, kBf16, kF16})
    check({.sizes = {1, 70, 2, 1, 256, true, dtype}, .threads = 0, .dropout = 0.3f});
}

// Rows whose maximum moves from a tile of keys to a later one, in both halves of a warp's rows.
TEST(AttentionSimt, ManyTilesOfKeys) {
  for (const Sizes& s : {Sizes{1, 130, 1, 1, 16, false, kBf16},
                         {1, 100, 1, 1, 40, true, kF16},
                         {1, 60, 1, 1, 136, false, kBf16}})
    check({.sizes = s});
}

TEST(AttentionSimt, AnyBlock) {
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      check({.sizes = {1, 45, 2, 1, 16, true, kBf16}, .threads = threads, .shifted = shifted});
}

TEST(AttentionSimt, TheSizeOfABlockDoesNotShow) {
  const auto run = [](DType dtype, int threads) {
    return check({.sizes = {1, 75, 2, 1, 20, true, dtype}, .threads = threads, .dropout = 0.2f});
  };
  for (const DType dtype : {kF32, kBf16}) {
    const Outputs one = run(dtype, 32);
    expect_equal_bits(one, run(dtype, 64));
    expect_equal_bits(one, run(dtype, 128));
  }
}

TEST(AttentionSimt, KeyLengths) {
  for (const bool causal : {false, true})
    for (const DType dtype : {kF32, kBf16, kF16})
      check({.sizes = {3, 45, 2, 1, 8, causal, dtype}, .key_lengths = {1, 32, 41}});
}

TEST(AttentionSimt, Documents) {
  for (const bool causal : {true, false})
    for (const DType dtype : {kF32, kBf16, kF16}) {
      Variant v{.sizes = {2, 101, 2, 1, 8, causal, dtype},
                .document_start = starts_of({{5, 32, 33, 1, 30}, {32, 32, 37}})};
      check(v);
      v.dropout = 0.3f;
      check(v);
    }
  // Every token its own, blocks that documents fill, and heads of other tiles: of f32 beyond 112
  // and 128, of tensor cores beyond 128.
  for (const DType dtype : {kF32, kBf16}) {
    check(
        {.sizes = {1, 67, 2, 2, 12, false, dtype}, .document_start = starts_of({Lengths(67, 1)})});
    check({.sizes = {1, 192, 2, 1, 16, false, dtype},
           .threads = 128,
           .document_start = starts_of({{64, 64, 64}})});
    for (const int64_t D : {120, 136})
      check({.sizes = {1, 70, 1, 1, D, false, dtype}, .document_start = starts_of({{3, 50, 17}})});
  }
}

// Tiles of keys before the documents of a tile of queries, and behind them, are not even read: what
// is no number there stays there.
TEST(AttentionSimt, TilesOfOtherDocumentsArePassedOver) {
  for (const DType dtype : {kF32, kBf16}) {
    const AttentionCase c = packed({1, 192, 2, 1, 8, false, dtype}, {{64, 30, 34, 64}});
    Data data = data_of(c, dtype);
    for (const int64_t begin : {0, 128}) {
      const double nan = std::numeric_limits<double>::quiet_NaN();
      std::fill_n(data.qkv.begin() + begin * c.width(), 64 * c.width(), nan);
      std::fill_n(data.dout.begin() + begin * c.H * c.D, 64 * c.H * c.D, nan);
    }
    const Outputs got =
        run_emulated(c, {.sizes = {1, 192, 2, 1, 8, false, dtype}}, data, spec_of(c));
    const Values out = got["out"], dqkv = got["dqkv"];
    for (int64_t i = 64 * c.H * c.D; i < 128 * c.H * c.D; ++i)
      ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(i)])) << i;
    for (int64_t i = 64 * c.width(); i < 128 * c.width(); ++i)
      ASSERT_TRUE(std::isfinite(dqkv[static_cast<size_t>(i)])) << i;
  }
}

// Windows of one key, of the last key of a tile alone (2, 34), within a tile of 32, over its edge,
// and longer than the sequence; with key lengths some queries see nothing.
TEST(AttentionSimt, Windows) {
  for (const DType dtype : {kF32, kBf16, kF16})
    for (const int64_t window : {1, 2, 7, 32, 33, 34, 500})
      check({.sizes = {1, 70, 2, 1, 8, true, dtype}, .window = window});
  check({.sizes = {3, 80, 2, 1, 8, true, kF32}, .key_lengths = {1, 33, 75}, .window = 9});
  check({.sizes = {1, 70, 2, 2, 12, true, kBf16}, .dropout = 0.3f, .window = 20});
  check({.sizes = {1, 40, 1, 1, 160, true, kF32}, .window = 11});
  Variant v{.sizes = {1, 100, 2, 1, 8, true, kF32}, .window = 30};
  for (int64_t t = 0; t < 100; ++t) v.document_start.push_back(t < 20 ? 0 : 20);
  check(v);
}

TEST(AttentionSimt, DropoutDrawsTheMaskOfTheCpu) {
  for (const DType dtype : {kF32, kBf16, kF16})
    for (const bool causal : {false, true})
      check({.sizes = {2, 39, 2, 1, 12, causal, dtype}, .dropout = 0.3f});
  check({.sizes = {1, 40, 1, 1, 160, true, kBf16}, .dropout = 0.5f});
  // Bounds that are the number of a pair, and the next: its upper half alone does not decide.
  const StepState s = some_state();
  const RandomKey key = random_key(s.seed, static_cast<uint64_t>(s.step), 9);
  for (const auto& [query, k] : {std::pair{37u, 21u}, {29u, 13u}, {18u, 3u}}) {
    const float u =
        channel_uniform(key, static_cast<uint64_t>(s.first_sample), query, (1u << 20) + k);
    for (const DType dtype : {kF32, kBf16})
      for (const float dropout : {u, std::nextafter(u, 1.0f)})
        check({.sizes = {1, 39, 2, 1, 12, true, dtype}, .dropout = dropout});
  }
}

TEST(AttentionSimt, AnyScale) {
  for (const double scale : {-0.3, 0.0, 1e-20, 1.7})
    check({.sizes = {1, 40, 2, 1, 12, true, kF32}, .scale = scale});
}

// The whole sequence on the place emu, and the same tokens in pieces over a cache of P positions,
// whose rows beyond the last token must stay as they are; a ring holds the last of every row.
Values cached(const AttentionCase& c, DType dtype, const Values& qkv, int64_t P,
              const std::vector<int64_t>& pieces, uint64_t order) {
  Settings settings;
  settings.emulated_order = order;
  settings.poison = true;
  settings.guard_bytes = 64;
  const auto n_out = static_cast<size_t>(c.B * c.T * c.H * c.D);
  Values out(n_out), k(static_cast<size_t>(c.B * P * c.G * c.D), 7), v = k;
  int64_t position = 0;
  for (const int64_t n : pieces) {
    Values rows;
    for (int64_t b = 0; b < c.B; ++b) {
      const auto first = qkv.begin() + (b * c.T + position) * c.width();
      rows.insert(rows.end(), first, first + n * c.width());
    }
    StepState state{};
    state.position = position;
    const Outputs got = run_on_emu(
        [&](Case& t) {
          const View x = t.input("qkv", {c.B * n, c.width()}, dtype, rows);
          attention_cached_forward(t.ctx(), t.output("out", {c.B * n, c.H * c.D}, dtype),
                                   t.inout("k", {c.B, P, c.G, c.D}, dtype, k),
                                   t.inout("v", {c.B, P, c.G, c.D}, dtype, v), x, c.B, n,
                                   spec_of(c), t.step_state(state));
        },
        settings);
    const Values piece = got["out"];
    for (int64_t b = 0; b < c.B; ++b)
      std::copy_n(piece.begin() + b * n * c.H * c.D, n * c.H * c.D,
                  out.begin() + (b * c.T + position) * c.H * c.D);
    k = got["k"];
    v = got["v"];
    position += n;
  }
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t j = 0; j < P; ++j)
      for (int64_t h = 0; h < c.H; h += c.H / c.G)
        for (int64_t d = 0; d < c.D; ++d) {
          const auto at = static_cast<size_t>(((b * P + j) * c.G + h / (c.H / c.G)) * c.D + d);
          const int64_t held = j < c.T ? j + (c.T - 1 - j) / P * P : -1;
          EXPECT_EQ(k[at], held >= 0 ? qkv[static_cast<size_t>(c.k(b, held, h, d))] : 7);
          EXPECT_EQ(v[at], held >= 0 ? qkv[static_cast<size_t>(c.v(b, held, h, d))] : 7);
        }
  return out;
}

Values whole_sequence(const AttentionCase& c, DType dtype, const Values& qkv) {
  return run_on_emu([&](Case& t) {
    attention_forward(t.ctx(), t.output("out", {c.B * c.T, c.H * c.D}, dtype),
                      t.output("lse", {c.B, c.H, c.T}, kF32),
                      t.input("qkv", {c.B * c.T, c.width()}, dtype, qkv), c.B, c.T, spec_of(c),
                      t.step_state(StepState{}));
  })["out"];
}

TEST(AttentionSimt, CachedHasTheBitsOfTheWholeSequence) {
  for (const int64_t window : {0, 5, 34})
    for (const Sizes& s : {Sizes{2, 41, 4, 2, 12, true, kF32},
                           {1, 41, 2, 1, 16, true, kBf16},
                           {1, 41, 2, 1, 160, true, kF32},
                           {1, 35, 2, 2, 5, true, kF16}}) {
      SCOPED_TRACE(fmt::format("{} window {}", name_of(s), window));
      AttentionCase c = case_of(s);
      c.window = window;
      if (window == 5) c.softcap = 0.75;
      const Data data = data_of(c, s.dtype);
      const Values whole = whole_sequence(c, s.dtype, data.qkv);
      EXPECT_EQ(cached(c, s.dtype, data.qkv, s.T, {s.T}, 0), whole);
      EXPECT_EQ(cached(c, s.dtype, data.qkv, s.T + 6, {1, 30, 1, 1, s.T - 33}, 77), whole);
    }
}

// A ring of the fewest rows, written around twice and more.
TEST(AttentionSimt, ARingHasTheBitsOfTheWholeSequence) {
  for (const int64_t window : {5, 96})
    for (const Sizes& s : {Sizes{2, 290, 2, 1, 12, true, kF32},
                           {1, 290, 2, 1, 16, true, kBf16},
                           {1, 270, 1, 1, 160, true, kF16}}) {
      SCOPED_TRACE(fmt::format("{} window {}", name_of(s), window));
      AttentionCase c = case_of(s);
      c.window = window;
      const Data data = data_of(c, s.dtype);
      const Values whole = whole_sequence(c, s.dtype, data.qkv);
      std::vector<int64_t> pieces(static_cast<size_t>(s.T / 16), 16);
      pieces.resize(pieces.size() + static_cast<size_t>(s.T % 16), 1);
      ASSERT_EQ(attention_ring(window, 16), 128);
      EXPECT_EQ(cached(c, s.dtype, data.qkv, 128, pieces, 77), whole);
    }
}

// Scores of thousands: nothing overflows, and a query's first tile may hold nothing near its
// maximum. An argument of e^x is then off by its own last place.
TEST(AttentionSimt, LargeScores) {
  const Variant v{.sizes = {1, 70, 1, 1, 8, true, kF32}};
  AttentionCase c = case_of(v.sizes);
  c.scale = 300;
  const Data data = data_of(c, kF32);
  const Outputs got = run_emulated(c, v, data, spec_of(c));
  Values lse;
  const Values out = attention_reference<double>(c, data.qkv, &lse);
  const double largest = *std::max_element(lse.begin(), lse.end());
  EXPECT_GT(largest, 1000);
  EXPECT_TRUE(close(got["lse"], lse, tolerance(kF32, c.T + c.D)));
  EXPECT_TRUE(close(got["out"], out, tolerance(kF32, c.T + c.D) * largest));
  for (const double x : got["dqkv"]) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace snug::test
