// Ops of quant/quantise.h: kernels against the CPU, numbers that are not finite, stochastic
// rounding, sizes of error, and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "engine/core/isa.h"
#include "quant/block.h"
#include "quant/quantile.h"
#include "quant/quantise.h"
#include "tests/quant/quant_case.h"

namespace snug::test {
namespace {

const DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
const int64_t kSizes[] = {1, 63, 64, 65, 255, 256, 257, 4096 + 3};

// A book for codecs that have none: cubes, ascending.
Values some_book() {
  Values book(kMaxCodes);
  for (size_t k = 0; k < book.size(); ++k)
    book[k] = rounded(std::pow((static_cast<double>(k) - 127.5) / 127.5, 3), DType::f32);
  return book;
}
Values book_for(const Codec& c) {
  return c.book_of_data() ? some_book() : Values{};
}

// Every codec, doubled too where it can be, in blocks of its usual size and of another.
std::vector<CodeSpec> all_specs() {
  std::vector<CodeSpec> specs;
  for (const Codec& c : codecs()) {
    specs.emplace_back(c);
    specs.emplace_back(c, c.any_block ? 90 : 32);
    if (c.scales() == 1) specs.emplace_back(c, c.any_block ? 6 : 32, true);
  }
  return specs;
}
std::string name_of(const CodeSpec& s) {
  return fmt::format("{} {}{}", s.codec->name, s.block, s.doubled ? " doubled" : "");
}

StepState some_state() {
  StepState s{};
  s.seed = 0x1234567890abcdull;
  s.step = 5;
  return s;
}

// The outputs of both that have one name.
void expect_shared_bits(const Outputs& a, const Outputs& b) {
  int shared = 0;
  for (const Output& o : a.all)
    for (const Output& p : b.all)
      if (o.name == p.name) {
        ++shared;
        EXPECT_EQ(first_difference(o.bytes, p.bytes, size_of(o.dtype)), -1) << o.name;
      }
  EXPECT_GE(shared, 3);
}

TEST(Quantise, KernelsHaveTheBitsOfTheCpu) {
  const StepState state = some_state();
  for (const CodeSpec& spec : all_specs())
    for (const DType t : kFloats)
      for (const int64_t n : kSizes) {
        const bool stochastic = n == 65 || n == 4099;
        SCOPED_TRACE(fmt::format("{} {} n {}", name_of(spec), to_string(t), n));
        QuantCase q{spec, t, awkward_values(n, 3, t), book_for(*spec.codec)};
        if (stochastic && t != DType::f32) q.state = &state;
        q.first = 1000003;
        q.threads = kBlockSizes[n % 3];
        const auto body = body_of(q);
        const Outputs cpu = run_on_plan_and_cpu({}, body);
        if (n == 4099) {
          expect_equal_bits(run_on_emu(body), cpu);
          continue;
        }
        expect_shared_bits(run_in_all_schedules(body, n % 2 == 1), cpu);
      }
}

TEST(Quantise, HasEqualBitsInAllModes) {
  const StepState state = some_state();
  for (const CodeSpec& spec : all_specs())
    for (const StepState* s : {static_cast<const StepState*>(nullptr), &state}) {
      SCOPED_TRACE(name_of(spec));
      // Over more than one task and one chunk of scales.
      QuantCase q{spec, DType::bf16, awkward_values(70001, 4, DType::bf16), book_for(*spec.codec)};
      q.state = s;
      const Outputs out = run_in_all_modes(body_of(q));
      EXPECT_EQ(out.ops, (std::vector<std::string>{"quantise", "dequantise"}));
      // Each reads one side whole and writes the other; a code is searched for in as many steps as
      // it has bits, and scaled, rounded and packed.
      int64_t coded = 0;
      for (const char* part : {"codes", "scales"})
        coded += static_cast<int64_t>(bytes_of(out, part).size());
      if (spec.doubled) coded += static_cast<int64_t>(bytes_of(out, "scale_codes").size());
      EXPECT_EQ(out.bytes_moved, 2 * (2 * 70001 + coded));
      EXPECT_EQ(out.flops, 70001 * (spec.codec->bits + 4) + 70001);
    }
}

// The entry for 0: another number where a codec has no 0.
double zero_of(const Codec& c) {
  return c.book == nullptr ? 0.0 : static_cast<double>(c.book->values[c.book->zero]);
}

// Zeros come back as zeros, also beside other numbers, and a block of one value as that value where
// the codec can say it.
TEST(Quantise, KeepsZerosAndBlocksOfOneValue) {
  for (const Codec& c : codecs()) {
    SCOPED_TRACE(c.name);
    for (const double value : {0.0, -0.0, 0.37, -3e-5, 1e30}) {
      if (c.book_of_data()) continue;
      const double x = rounded(value, DType::f32);
      const Values y =
          run_on_plan_and_cpu({}, body_of({CodeSpec(c), DType::f32, Values(300, x)}))["y"];
      double allowed = 0x1p-22 * std::fabs(x);
      // A dynamic map has no -1.
      if (x < 0 && c.book != nullptr && c.is_signed && c.book->sorted[0] > -1)
        allowed += -x * (1.0 + static_cast<double>(c.book->sorted[0])) * 1.001;
      if (x < 0 && !c.is_signed) allowed = -x * (1 + zero_of(c));  // nor any of these
      if (x == 0) allowed = 1e-12 * zero_of(c);
      for (const double v : y) ASSERT_LE(std::fabs(v - x), allowed) << x;
    }
    if (c.book_of_data() || zero_of(c) != 0) continue;
    Values mixed = normal_values(300, 5);
    for (size_t i = 0; i < mixed.size(); i += 3) mixed[i] = i % 2 == 0 ? 0.0 : -0.0;
    const Values y = run_on_plan_and_cpu({}, body_of({CodeSpec(c), DType::f32, mixed}))["y"];
    for (size_t i = 0; i < mixed.size(); i += 3) ASSERT_EQ(y[i], 0.0) << i;
  }
}

// From the largest floats to the smallest: no step of a codec overflows, and the error stays within
// the coarsest gap of the code, or within the floors that quant/codec.h states.
TEST(Quantise, TakesTheWholeRangeOfFloats) {
  for (const Codec& c : codecs()) {
    if (c.book_of_data()) continue;
    SCOPED_TRACE(c.name);
    for (const double top : {3.4e38, 1e30, 1e-10, 1e-30, 1e-37, 2e-38, 1e-40, 1.5e-45}) {
      const double low = c.is_signed ? -top : 0;
      const Values x =
          rounded({top, low, top / 3, 0.0, low / 2, -0.0, top / 255, top * 0.9}, DType::f32);
      const Values y = run_on_plan_and_cpu({}, body_of({CodeSpec(c), DType::f32, x}))["y"];
      double allowed = 0.17 * top;  // half of 1/3, the gap of fp4
      if (c.rule == ScaleRule::absmax) allowed = std::max(allowed, std::min(top, 1e-38));
      if (c.rule == ScaleRule::peak) allowed = std::max(allowed, std::min(top, 1e-12));
      allowed = std::max(allowed, 1e-12 * zero_of(c));
      if (c.rule == ScaleRule::integer) allowed = std::max(allowed, std::min(top, 1e-36 / 254));
      if (c.rule == ScaleRule::min_max) allowed = std::max(allowed, std::min(top, 0x1p-127));
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_LE(std::fabs(y[i] - x[i]), allowed * (1 + 1e-6)) << x[i] << " is " << y[i];
    }
  }
}

// A NaN or an infinity takes its block with it, and no other.
TEST(Quantise, HidesNoNumberThatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Codec& c : codecs())
    for (const DType t : kFloats)
      for (const double bad : {std::nan(""), -std::nan(""), inf, -inf}) {
        SCOPED_TRACE(fmt::format("{} {} {}", c.name, to_string(t), bad));
        const CodeSpec spec(c, 32);
        Values x = normal_values(100, 6, t);
        x[40] = bad;
        const auto body = body_of({spec, t, x, book_for(c)});
        const Outputs out = run_on_plan_and_cpu({}, body);
        const Values y = out["y"];
        for (size_t i = 0; i < y.size(); ++i)
          EXPECT_EQ(std::isfinite(y[i]), i / 32 != 1) << i << ": " << y[i];
        expect_equal_bits(run_on_emu(body), out);
      }
}

// Each value becomes one of its two neighbours, the upper one with the right frequency.
TEST(Quantise, RoundsByChanceAndKeepsTheMean) {
  constexpr int kDraws = 4000;
  for (const Codec& c : codecs()) {
    if (c.book_of_data()) continue;
    SCOPED_TRACE(c.name);
    // Two numbers set the range; the others lie between two neighbours.
    const Values numbers = {1.0, -1.0, 0.3, 0.123, 0.0123, -0.6, 0.9, 0.999, 0.5, 0.0, -0.02, -0.4};
    std::vector<float> x(numbers.begin(), numbers.end());
    if (!c.is_signed)
      for (float& v : x) v = std::fabs(v);
    const auto n = static_cast<int64_t>(x.size());
    std::vector<double> sum(x.size(), 0), low(x.size(), 9), high(x.size(), -9);
    for (int d = 0; d < kDraws; ++d) {
      uint8_t codes[16];
      float scales[2], y[16];
      const Draws draws{random_key(9, static_cast<uint64_t>(d), 1), 12};
      encode_block(c, x.data(), n, codes, scales, &draws);
      decode_block(c, y, codes, scales, n);
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] += static_cast<double>(y[i]);
        low[i] = std::min(low[i], static_cast<double>(y[i]));
        high[i] = std::max(high[i], static_cast<double>(y[i]));
      }
    }
    const double least =
        c.is_signed ? (std::string(c.name) == "dynamic8" ? -0.993 : -1.0) : zero_of(c);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto v = static_cast<double>(x[i]);
      if (v < least || std::fabs(v) == 1.0) continue;  // beyond the codes, or an end of the range
      const double gap = high[i] - low[i];
      EXPECT_LE(low[i], v + 1e-6);
      EXPECT_GE(high[i], v - 1e-6);
      // Five standard deviations of a mean of kDraws two-point numbers, and roundings of float.
      EXPECT_NEAR(sum[i] / kDraws, v, 5 * gap / 2 / std::sqrt(kDraws) + 1e-6) << v;
    }
  }
}

TEST(Quantise, RoundsAWindowAsTheWhole) {
  const StepState state = some_state();
  for (const char* name : {"dynamic8", "nf4", "int8"}) {
    SCOPED_TRACE(name);
    const Values x = normal_values(1024, 8);
    QuantCase whole{codec(name), DType::f32, x};
    whole.state = &state;
    QuantCase window{codec(name), DType::f32, Values(x.begin() + 512, x.end())};
    window.state = &state;
    window.first = 512;
    const auto a = run_on_plan_and_cpu({}, body_of(whole)),
               b = run_on_plan_and_cpu({}, body_of(window));
    const Values ca = a["codes"], cb = b["codes"];
    EXPECT_TRUE(std::equal(cb.begin(), cb.end(), ca.end() - static_cast<ptrdiff_t>(cb.size())));
    QuantCase nearest{codec(name), DType::f32, x};
    EXPECT_NE(run_on_plan_and_cpu({}, body_of(nearest))["codes"], ca);
  }
}

// N(0,1) in the usual blocks: mean |error| as published for bitsandbytes (dynamic8, nf4, fp4) or as
// the step of the grid gives it.
struct ErrorRow {
  const char* name;
  double mean_error, allowed;
};
TEST(Quantise, ErrsOnNormalNumbersAsPublished) {
  const ErrorRow rows[] = {{"dynamic8", .0085, .0003},
                           {"nf4", .072798, .0005},
                           {"fp4", .096543, .0005},
                           {"int8", .0060, .0003},
                           {"min_max8", .0056, .0003}};
  const Values x = normal_values(1 << 18, 9);
  for (const ErrorRow& r : rows) {
    SCOPED_TRACE(r.name);
    double sums[2] = {0, 0};
    for (const bool doubled : {false, true}) {
      if (doubled && codec(r.name).scales() == 2) continue;
      const CodeSpec spec(codec(r.name), codec(r.name).block, doubled);
      const Values y = run_on_plan_and_cpu({}, body_of({spec, DType::f32, x}))["y"];
      for (size_t i = 0; i < x.size(); ++i) sums[doubled] += std::fabs(y[i] - x[i]);
      sums[doubled] /= static_cast<double>(x.size());
      EXPECT_NEAR(sums[doubled], r.mean_error, r.allowed) << doubled;
    }
    if (std::string(r.name) == "nf4") {
      EXPECT_LE(sums[1] - sums[0], 2e-4);
    }
  }
}

// Each bound takes the lower entry and the next float the upper one, in loops of eight and in their
// rest: blocks of 32 begin with what sets the scale to 1.
// The worked examples of course notes on quantisation, with their right values. The notes give 218
// for 15 of -20 .. 20 in 0 .. 255, where (15 + 20) / 40 * 255 is 223.1.
// They cut halves off in one block and round them in the next, take 7e9 weights of two bytes for
// 2 GB, and say that NF4 keeps the deviation of a block.
TEST(Quantise, WorkedExamplesOfCourseNotes) {
  const auto codes = [](const char* name, int64_t block, const Values& x, const char* output) {
    const Outputs out =
        run_on_plan_and_cpu({}, body_of({CodeSpec(codec(name), block), DType::f32, x}));
    if (std::string(output) != "codes") return out[output];
    Values q;
    for (const std::byte b : bytes_of(out, "codes"))
      q.push_back(std::string(name) == "int8" ? static_cast<double>(static_cast<int8_t>(b))
                                              : static_cast<double>(b));
    return q;
  };
  const Values x = {-20, 15, 0, 20};
  // s = 40 / 255, in f32 a little more, so that z = rne(-min / s) is 127: 15 is rne(95.6) + 127.
  EXPECT_EQ(codes("min_max8", 4, x, "codes"), (Values{0, 223, 127, 255}));
  EXPECT_EQ(codes("min_max8", 4, x, "y")[2], 0);
  // rne(15 * 127 / 20) = rne(95.25)
  EXPECT_EQ(codes("int8", 4, x, "codes"), (Values{-127, 95, 0, 127}));
  // Halves to even, in every block.
  EXPECT_EQ(codes("int8", 4, {0.5, 1.5, 2.5, 127, 2.5, 3.5, -0.5, -127}, "codes"),
            (Values{0, 2, 2, 127, 2, 4, 0, -127}));
  // NF4 keeps the largest magnitude.
  EXPECT_EQ(codes("nf4", 32, {0.5, -3, 1, 0}, "scales"), (Values{3}));
  const int64_t n = 7'000'000'000;
  EXPECT_EQ(human_bytes(2 * n), "13.04 GiB");
  EXPECT_EQ(human_bytes(CodeSpec(codec("nf4")).bytes(n)), "3.67 GiB");
  EXPECT_EQ(human_bytes(CodeSpec(codec("nf4"), 64, true).bytes(n)), "3.36 GiB");
}

TEST(Quantise, FindsTheEntryAtEveryBound) {
  for (const Codec& c : codecs()) {
    if (c.book == nullptr) continue;
    SCOPED_TRACE(c.name);
    const CodeBook& book = *c.book;
    const CodeSpec spec(c, 512);
    std::vector<std::pair<float, int>> wanted;
    for (int k = 0; k + 1 < book.size; ++k) {
      wanted.emplace_back(float_of_key(book.bounds[k]), k);
      wanted.emplace_back(float_of_key(book.bounds[k] + 1), k + 1);
    }
    for (const auto& [n, narrow] : {std::pair(512, false),
                                    {300, false},
                                    {32, false},
                                    {31, false},
                                    {2, false},
                                    {512, true},
                                    {31, true}}) {
      std::optional<WithoutAvx512> without;
      if (narrow) without.emplace();
      for (size_t at = 0; at < wanted.size(); at += static_cast<size_t>(n - 1)) {
        float x[512] = {c.peak}, scale = 0;
        uint8_t codes[512];
        const size_t count = std::min(wanted.size() - at, static_cast<size_t>(n - 1));
        for (size_t i = 0; i < count; ++i) x[i + 1] = wanted[at + i].first;
        encode_block(spec, x, static_cast<int64_t>(count) + 1, codes, &scale);
        ASSERT_EQ(scale, 1.0f);
        for (size_t i = 0; i < count; ++i) {
          const int code = c.bits == 8  ? codes[i + 1]
                           : i % 2 == 1 ? codes[(i + 1) / 2] >> 4
                                        : codes[(i + 1) / 2] & 15;
          ASSERT_EQ(code, book.codes[wanted[at + i].second]) << wanted[at + i].first << " n " << n;
        }
      }
    }
  }
}

TEST(Quantise, CountsItsBytes) {
  // 4 + 32/64 bits; doubled 4 + 8/64 + 32/(64 * 256) and the offset.
  EXPECT_EQ(CodeSpec(codec("nf4")).bytes(1 << 20), (1 << 19) + 4 * (1 << 14));
  EXPECT_EQ(CodeSpec(codec("nf4"), 64, true).bytes(1 << 20),
            (1 << 19) + (1 << 14) + 4 * (1 << 6) + 4);
  EXPECT_EQ(CodeSpec(codec("dynamic8")).bytes(257), 257 + 8);
  EXPECT_EQ(CodeSpec(codec("min_max8")).bytes(256), 256 + 8);
  EXPECT_EQ(CodeSpec(codec("quantile8")).bytes(10), 10 + 4 + 1024);
  EXPECT_EQ(CodeSpec(codec("fp4")).bytes(3), 2 + 4);
}

TEST(Quantise, TakesNoElements) {
  for (const CodeSpec& spec : all_specs()) {
    if (spec.codec->book_of_data()) continue;
    const auto body = body_of({spec, DType::f32, {}});
    EXPECT_TRUE(run_on_plan_and_cpu({}, body)["y"].empty());
  }
}

TEST(Quantise, RefusesWhatDoesNotFit) {
  expect_error(ErrorCode::usage, {"a codec: dynamic8, dynamic8_unsigned, nf4", "nf5", "nf4"},
               [] { codec("nf5"); });
  expect_error(ErrorCode::usage, {"take one of these", "gptq"}, [] { codec("gptq"); });
  expect_error(ErrorCode::usage,
               {"a block of nf4 of 32, 64, 128 ... or 4096 elements", "a block of 48 elements",
                "take 64, the usual one of nf4"},
               [] { CodeSpec(codec("nf4"), 48); });
  for (const int64_t block : {0, -64, 16, 8192})
    expect_error(ErrorCode::usage, {"a block of dynamic8 of 32"},
                 [&] { CodeSpec(codec("dynamic8"), block); });
  expect_error(ErrorCode::usage, {"a block of int8 of one element or more"},
               [] { CodeSpec(codec("int8"), 0); });
  expect_error(ErrorCode::usage,
               {"doubled scales of a codec that keeps one scale a block", "min_max8, which keeps 2",
                "leave its scales in f32"},
               [] { CodeSpec(codec("min_max8"), 64, true); });

  const auto run = [](DType x, Shape codes, DType code, Shape scales) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      quantise(c.ctx(),
               {c.output("codes", codes, code), c.output("scales", scales, DType::f32), {}, {}, {}},
               c.output("x", {100}, x), codec("nf4"));
    });
  };
  expect_error(ErrorCode::shape, {"codes of shape (bytes)=(50)", "codes (100) u8"},
               [&] { run(DType::f32, {100}, DType::u8, {2}); });
  expect_error(ErrorCode::shape, {"scales of shape (blocks)=(2)", "scales (1) f32"},
               [&] { run(DType::f32, {50}, DType::u8, {1}); });
  expect_error(ErrorCode::unsupported, {"codes of dtype u8", "codes (50) i32"},
               [&] { run(DType::f32, {50}, DType::i32, {2}); });
  expect_error(ErrorCode::unsupported, {"quantise: x of dtype f32|bf16|f16", "x (100) i64"},
               [&] { run(DType::i64, {50}, DType::u8, {2}); });
  expect_error(ErrorCode::shape, {"book of shape (codes)=(256)"}, [] {
    run_on_plan_and_cpu({}, body_of({codec("quantile8"), DType::f32, Values(5, 1)}));
  });

  const auto book = [](const Codec& which, int64_t n, Settings settings = {}) {
    run_on_plan_and_cpu(settings, [&](Case& c) {
      quantile_book(c.ctx(), c.output("book", {kMaxCodes}, DType::f32),
                    c.output("x", {n}, DType::f32), which);
    });
  };
  expect_error(ErrorCode::unsupported,
               {"a codec whose book comes with the data", "nf4", "quantile8"},
               [&] { book(codec("nf4"), 5); });
  expect_error(ErrorCode::shape, {"x of one element or more", "x (0) f32"},
               [&] { book(codec("quantile8"), 0); });
  Settings emu;
  emu.target = Place::emu;
  expect_error(ErrorCode::unsupported, {"quantile_book"},
               [&] { book(codec("quantile8"), 5, emu); });
}

}  // namespace
}  // namespace snug::test
