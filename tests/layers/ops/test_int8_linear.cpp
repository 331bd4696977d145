// On the CPU and in the emulator: bitsandbytes' MatMul8bitLt, the formula in double, equal bits on all
// places, for any number of rows at a time, and of parts and fused forms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/io/safetensors.h"
#include "layers/ops/int8_linear.h"
#include "layers/ops/int8_linear_simt.h"
#include "layers/ops/int8_row.h"
#include "layers/ops/linear.h"
#include "layers/ops/residual.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug::test {
namespace {

Values numbers(const SafeTensor& t) {
  std::vector<float> floats(static_cast<size_t>(t.elements()));
  if (t.dtype == SafeDType::U8)
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(t.data[i]);
  else
    convert(t.dtype, t.data, t.elements(), floats.data());
  return {floats.begin(), floats.end()};
}

// A weight in codes: bytes of whole numbers as they are stored, scales, and rows of each piece.
struct Weight {
  Values codes, scales;
  std::vector<int64_t> rows;
  int64_t K;
  float threshold;
};

Values of_rows(const Values& all, int64_t first, int64_t count, int64_t width) {
  return {all.begin() + first * width, all.begin() + (first + count) * width};
}

template <class C>
Int8Weight give(C& c, const Weight& w) {
  static const char* const kNames[] = {"codes0", "codes1", "codes2", "codes3"};
  static const char* const kScales[] = {"scales0", "scales1", "scales2", "scales3"};
  Int8Weight weight;
  weight.threshold = w.threshold;
  int64_t first = 0;
  for (const int64_t rows : w.rows) {
    const auto at = static_cast<size_t>(weight.count++);
    weight.pieces[at] = {
        c.input(kNames[at], {rows, w.K}, DType::u8, of_rows(w.codes, first, rows, w.K)),
        c.input(kScales[at], {rows}, DType::f32, of_rows(w.scales, first, rows, 1))};
    first += rows;
  }
  return weight;
}

struct Operands {
  int64_t N, M;
  DType dtype;
  Values x, bias;  // no bias: none
  Weight weight;
};

Outputs run(const Operands& o, bool everywhere = false) {
  const Body body = [&](Case& c) {
    const View x = c.input("x", {o.N, o.weight.K}, o.dtype, o.x),
               y = c.output("y", {o.N, o.M}, o.dtype);
    const View bias = o.bias.empty() ? View() : c.input("b", {o.M}, o.dtype, o.bias);
    int8_linear_forward(c.ctx(), y, x, give(c, o.weight), bias);
  };
  if (!everywhere) return run_on_plan_and_cpu({}, body);
  const Outputs out = run_in_all_modes(body);
  Settings emulated;
  emulated.target = Place::emu;
  EXPECT_EQ(run_on_plan_and_cpu(emulated, body).all.at(0).bytes, out.all.at(0).bytes);
  return out;
}

// The header's formula; codes as floats give them, sums in double.
Values reference(const Operands& o) {
  const Weight& w = o.weight;
  Values y;
  for (int64_t n = 0; n < o.N; ++n) {
    std::vector<float> h;
    float peak = 0;
    const auto apart = [&](float v) { return w.threshold > 0 && std::fabs(v) >= w.threshold; };
    for (int64_t k = 0; k < w.K; ++k) {
      h.push_back(to_f32(from_f32<f16>(static_cast<float>(o.x[static_cast<size_t>(n * w.K + k)]))));
      if (!apart(h.back())) peak = std::max(peak, std::fabs(h.back()));
    }
    const float factor = peak > 0 ? 127.0f / peak : 0.0f;
    for (int64_t m = 0; m < o.M; ++m) {
      double sum = 0, beyond = 0;
      const double scale = w.scales[static_cast<size_t>(m)];
      for (int64_t k = 0; k < w.K; ++k) {
        const auto at = static_cast<size_t>(k);
        double code = w.codes[static_cast<size_t>(m * w.K + k)];
        if (code > 127) code -= 256;
        if (apart(h[at]))
          beyond += o.x[static_cast<size_t>(n * w.K + k)] * code * scale / 127;
        else
          sum += std::nearbyint(h[at] * factor) * code;
      }
      y.push_back(sum * static_cast<double>(peak) * scale / (127.0 * 127.0) + beyond +
                  (o.bias.empty() ? 0.0 : o.bias[static_cast<size_t>(m)]));
    }
  }
  return y;
}

Weight drawn(const std::vector<int64_t>& rows, int64_t K, float threshold, uint32_t seed) {
  Weight w{{}, {}, rows, K, threshold};
  int64_t M = 0;
  for (const int64_t r : rows) M += r;
  for (const double v : normal_values(M * K, seed)) {
    const double code = std::fmax(-127, std::fmin(127, std::nearbyint(v * 50)));
    w.codes.push_back(code < 0 ? code + 256 : code);
  }
  for (const double v : normal_values(M, seed + 1))
    w.scales.push_back(rounded(std::fabs(v) * 0.1, DType::f32));
  w.scales[0] = 0;
  return w;
}

// (N,K,M) whose widths are no multiples of anything, rows of zeros, outliers few and all.
struct Variant {
  int64_t N, K;
  std::vector<int64_t> rows;
  bool bias;
  float threshold;
};
const Variant kVariants[] = {{1, 1, {1}, false, 6},       {7, 33, {65}, true, 2},
                             {6, 64, {64, 3}, false, 0},  {13, 130, {5, 70, 64}, true, 1},
                             {100, 31, {9}, true, 0.01f}, {3, 1100, {66}, false, 3}};

TEST(Int8Linear, MatchesTheFormulaOnAllPlaces) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(fmt::format("{}x{} {} from {}", v.N, v.K, to_string(t), v.threshold));
      Operands o{v.N, 0, t, normal_values(v.N * v.K, 1, t), {}, drawn(v.rows, v.K, v.threshold, 2)};
      for (const int64_t r : v.rows) o.M += r;
      if (v.bias) o.bias = normal_values(o.M, 4, t);
      if (v.N > 2) std::fill_n(o.x.begin() + v.K, v.K, 0.0);
      if (v.N > 5) o.x[static_cast<size_t>(3 * v.K)] = rounded(30000, t);
      const Outputs out = run(o, true);
      EXPECT_TRUE(close(out["y"], reference(o), tolerance(t, v.K)));
      // A row alone is what it is among others.
      Operands one = o;
      one.N = 1;
      one.x = of_rows(o.x, v.N - 1, 1, v.K);
      EXPECT_EQ(run(one)["y"], of_rows(out["y"], v.N - 1, 1, o.M));
    }
}

TEST(Int8Linear, KernelsHaveTheBitsOfTheLoopsInAnyOrder) {
  for (const DType t : {DType::f32, DType::bf16}) {
    Operands o{
        70, 69, t, normal_values(70 * 37, 1, t), normal_values(69, 4, t), drawn({64, 5}, 37, 2, 2)};
    const int64_t N = o.N, K = 37, words = int8_width(K);
    const Outputs loops = run(o);
    const Outputs kernels = run_in_all_schedules([&](EmuCase& c) {
      const View x = c.input("x", {N, K}, t, o.x), y = c.output("y", {N, o.M}, t),
                 bias = c.input("b", {o.M}, t, o.bias);
      const Int8Input room{c.output("q", {N, words}, DType::u8), c.output("s", {N}, DType::f32),
                           c.output("beyond", {N, words / kInt8Step}, DType::i32),
                           c.output("counts", {N}, DType::i32)};
      const Int8Weight w = give(c, o.weight);
      int8_rows_on(c.queue(), room, x, w.threshold, 64);
      int8_product_on(c.queue(), y, 0, room, x, w.pieces[0], bias);
      int8_product_on(c.queue(), y, 64, room, x, w.pieces[1], bias);
    });
    EXPECT_EQ(kernels["y"], loops["y"]);
  }
}

// Within its constant's 2e-5 of 1 / 127^2, and where its columns are the rows' outliers.
TEST(Int8Linear, IsMatMul8bitLtOfBitsandbytes) {
  const SafetensorsReader file(source_folder() + "/tests/golden/int8_linear.safetensors");
  int outliers = 0;
  for (const auto& c : nlohmann::json::parse(file.metadata().at("cases"))) {
    const auto name = c["name"].get<std::string>();
    SCOPED_TRACE(name);
    const SafeTensor &x = file.at(name + ".x"), &w = file.at("codes/" + name + ".weight");
    Operands o{x.shape[0],
               w.shape[0],
               DType::f32,
               numbers(x),
               numbers(file.at(name + ".bias")),
               {numbers(w),
                numbers(file.at("codes/" + name + ".weight.absmax")),
                {w.shape[0]},
                w.shape[1],
                c["threshold"].get<float>()}};
    for (const double v : o.x) outliers += o.weight.threshold > 0 && std::fabs(v) >= 6;
    EXPECT_TRUE(close(run(o)["y"], numbers(file.at(name + ".y")), 2.5e-5));
  }
  EXPECT_EQ(outliers, 5 * 2 + 3);
}

TEST(Int8Linear, FusedFormsAreTheirParts) {
  const int64_t N = 9, K = 40, M = 24;
  const Weight w = drawn({M}, K, 2, 7);
  for (const DType t : {DType::f32, DType::bf16})
    for (const Place place : {Place::cpu, Place::emu}) {
      Settings settings;
      settings.target = place;
      const Outputs out = run_on_plan_and_cpu(settings, [&](Case& c) {
        const View x = c.input("x", {N, K}, t, normal_values(N * K, 1, t)),
                   residual = c.input("r", {N, M}, t, normal_values(N * M, 2, t)),
                   scale = c.input("scale", {M}, t, normal_values(M, 3, t)),
                   shift = c.input("shift", {M}, t, normal_values(M, 4, t));
        const LinearWeights lw{View(), shift, View(), give(c, w)};
        const auto made = [&](const char* name) { return c.output(name, {N, M}, t); };
        const auto row = [&](const char* name) { return c.output(name, {N}, DType::f32); };
        const View y = made("y"), act = made("act"), pre = made("pre"), sum = made("sum");
        int8_linear_forward(c.ctx(), y, x, lw.int8, shift);
        activation_forward(c.ctx(), made("act parts"), y, Activation::gelu_tanh);
        residual_forward(c.ctx(), made("sum parts"), residual, y, 1, N, {}, {});
        linear_activation_forward(c.ctx(), act, pre, x, lw, Activation::gelu_tanh);
        linear_residual_forward(c.ctx(), sum, {residual, 1, N, {}, {}}, x, lw);
        linear_residual_norm_forward(c.ctx(),
                                     {made("norm"), row("mean"), row("rstd"), scale, shift, 1e-5f},
                                     made("sum too"), {residual, 1, N, {}, {}}, x, lw);
      });
      EXPECT_EQ(out["pre"], out["y"]);
      EXPECT_EQ(out["act"], out["act parts"]);
      EXPECT_EQ(out["sum"], out["sum parts"]);
      EXPECT_EQ(out["sum too"], out["sum parts"]);
    }
}

TEST(Int8Linear, WhatIsNotFiniteStaysSo) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const float threshold : {0.0f, 6.0f})
    for (const double bad : {nan, inf, -inf}) {
      Operands o{2, 3, DType::f32, normal_values(2 * 40, 1), {}, drawn({3}, 40, threshold, 2)};
      o.x[5] = bad;
      const Values y = run(o, true)["y"];
      for (size_t m = 0; m < 3; ++m) {
        EXPECT_FALSE(std::isfinite(y[m]) && m > 0) << bad << " from " << threshold;
        EXPECT_TRUE(std::isfinite(y[3 + m]));
      }
    }
}

TEST(Int8Linear, RefusesOtherShapes) {
  const auto call = [](Shape y, Shape x, DType of_y) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      int8_linear_forward(c.ctx(), c.output("y", y, of_y), c.output("x", x, DType::f32),
                          give(c, drawn({3, 2}, 4, 0, 1)), {});
    });
  };
  expect_error(ErrorCode::shape, {"int8_linear: y", "(2,4)"}, [&] {
    call({2, 4}, {2, 4}, DType::f32);
  });
  expect_error(ErrorCode::shape, {"int8_linear: codes", "(3,4)"}, [&] {
    call({2, 5}, {2, 6}, DType::f32);
  });
  expect_error(ErrorCode::shape, {"int8_linear: x of shape (N,K)"}, [&] {
    call({2, 5}, {8}, DType::f32);
  });
  expect_error(ErrorCode::unsupported, {"int8_linear: y", "bf16"}, [&] {
    call({2, 5}, {2, 4}, DType::bf16);
  });
}

}  // namespace
}  // namespace snug::test
