// On the CPU and in the emulator against the formula in double; the factor's gradient against complex
// steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/magnitude.h"
#include "layers/ops/magnitude_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

struct NormVariant {
  int64_t O, I, R;
  float s;
};

const NormVariant kNormVariants[] = {
    {1, 1, 1, 1.0f}, {3, 7, 2, 0.5f}, {33, 257, 3, -2.0f}, {70, 600, 16, 0.25f}};

TEST(Magnitude, RowNormsMatchTheFormula) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const NormVariant& v : kNormVariants) {
      SCOPED_TRACE(fmt::format("{}x{} rank {} {}", v.O, v.I, v.R, to_string(t)));
      Values w = normal_values(v.O * v.I, 1, t), b = normal_values(v.O * v.R, 3, t);
      const Values a = normal_values(v.R * v.I, 2, t);
      // A row that makes nothing.
      std::fill_n(w.begin(), v.I, 0.0);
      std::fill_n(b.begin(), v.R, 0.0);
      Values norms;
      for (int64_t j = 0; j < v.O; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < v.I; ++i) {
          double value = w[static_cast<size_t>(j * v.I + i)];
          for (int64_t r = 0; r < v.R; ++r)
            value += static_cast<double>(v.s) * b[static_cast<size_t>(j * v.R + r)] *
                     a[static_cast<size_t>(r * v.I + i)];
          sum += value * value;
        }
        norms.push_back(std::sqrt(sum));
      }
      const auto body = [&](auto& c) {
        const View to = c.output("norms", {v.O}, t), of_w = c.input("w", {v.O, v.I}, t, w),
                   of_a = c.input("a", {v.R, v.I}, t, a), of_b = c.input("b", {v.O, v.R}, t, b);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>)
          adapted_row_norms_on(c.queue(), to, of_w, of_a, of_b, v.s, 64);
        else
          adapted_row_norms(c.ctx(), to, of_w, of_a, of_b, v.s);
      };
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body)})
        EXPECT_TRUE(close(o["norms"], norms, tolerance(t, v.R + 20)));
      EXPECT_EQ(out.flops, 2 * v.O * v.I * (v.R + 1));
    }
}

TEST(Magnitude, ColumnNormsMatchTheFormula) {
  const NormVariant variants[] = {{1, 1, 1, 1.0f},
                                  {7, 3, 2, 0.5f},
                                  {257, 33, 3, -2.0f},
                                  {130, 70, 37, 0.25f},
                                  {9000, 2, 1, 0.5f}};
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const NormVariant& v : variants) {
      const int64_t V = v.O, I = v.I;
      SCOPED_TRACE(fmt::format("{}x{} rank {} {}", V, I, v.R, to_string(t)));
      Values e = normal_values(V * I, 1, t), b = normal_values(I * v.R, 3, t);
      const Values a = normal_values(V * v.R, 2, t);
      // A column that makes nothing.
      for (int64_t row = 0; row < V; ++row) e[static_cast<size_t>(row * I)] = 0;
      std::fill_n(b.begin(), v.R, 0.0);
      Values norms;
      for (int64_t i = 0; i < I; ++i) {
        double sum = 0;
        for (int64_t row = 0; row < V; ++row) {
          double value = e[static_cast<size_t>(row * I + i)];
          for (int64_t r = 0; r < v.R; ++r)
            value += static_cast<double>(v.s) * a[static_cast<size_t>(row * v.R + r)] *
                     b[static_cast<size_t>(i * v.R + r)];
          sum += value * value;
        }
        norms.push_back(std::sqrt(sum));
      }
      const auto body = [&](auto& c) {
        const View to = c.output("norms", {I}, t), of_e = c.input("e", {V, I}, t, e),
                   of_a = c.input("a", {V, v.R}, t, a), of_b = c.input("b", {I, v.R}, t, b);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>)
          adapted_column_norms_on(c.queue(), to, of_e, of_a, of_b, v.s, 64);
        else
          adapted_column_norms(c.ctx(), to, of_e, of_a, of_b, v.s);
      };
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body)})
        EXPECT_TRUE(close(o["norms"], norms, tolerance(t, v.R + 20)));
      EXPECT_EQ(out.flops, 2 * V * I * (v.R + 1));
    }
}

TEST(Magnitude, FactorsAndTheirSlopes) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool add : {false, true})
      for (const bool normed : {false, true}) {
        constexpr int64_t O = 300;
        const Values m = normal_values(O, 1, t), dg = normal_values(O, 3),
                     old = normal_values(O, 4);
        Values norms = normal_values(O, 2, t, 0.2, 2);
        norms[7] = 0;  // of a row that makes nothing
        Values g = m;
        for (size_t j = 0; normed && j < g.size(); ++j) g[j] = j == 7 ? 1.0 : m[j] / norms[j];
        Values dm = complex_step_gradient(
            [&](const auto& x) {
              Complex sum = 0;
              for (size_t j = 0; j < x.size(); ++j)
                sum += normed ? (j == 7 ? Complex(1.0) : x[j] / norms[j]) * dg[j] : x[j] * dg[j];
              return sum;
            },
            m);
        for (size_t j = 0; add && j < dm.size(); ++j) dm[j] += old[j];
        const auto body = [&](auto& c) {
          const View of_g = c.output("g", {O}, DType::f32), one = c.output("one", {O}, DType::f32),
                     of_m = c.input("m", {O}, t, m), of_norms = c.input("norms", {O}, t, norms),
                     of_dg = c.input("dg", {O}, DType::f32, dg),
                     of_dm = c.inout("dm", {O}, DType::f32, old);
          const View by = normed ? of_norms : View();
          if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
            magnitude_factor_on(c.queue(), of_g, of_m, by, 64);
            magnitude_factor_on(c.queue(), one, View(), View(), 64);
            magnitude_factor_backward_on(c.queue(), {of_dm, add}, of_dg, by, 64);
          } else {
            magnitude_factor_forward(c.ctx(), of_g, of_m, by);
            magnitude_factor_forward(c.ctx(), one, {}, {});
            magnitude_factor_backward(c.ctx(), {of_dm, add}, of_dg, by);
          }
        };
        const Outputs plain = run_in_all_modes(body);
        const int64_t by = normed ? O * size_of(t) : 0;
        EXPECT_EQ(plain.flops, 2 * O + (add ? 2 : 1) * O);
        EXPECT_EQ(plain.bytes_moved, 4 * O + O * size_of(t) + by  // of m and the norms g
                                         + 4 * O                  // one
                                         + 4 * O + by + (add ? 8 : 4) * O);
        for (const Outputs& o : {plain, run_in_all_schedules(body)}) {
          EXPECT_TRUE(close(o["g"], g, tolerance(DType::f32, 2)));
          EXPECT_EQ(o["one"], Values(static_cast<size_t>(O), 1.0));
          EXPECT_TRUE(close(o["dm"], dm, tolerance(DType::f32, 2)));
        }
      }
}

TEST(Magnitude, RefusesOtherShapes) {
  expect_error(ErrorCode::shape, {"adapted_row_norms: b", "(4,2)"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      adapted_row_norms(c.ctx(), c.output("norms", {4}, DType::f32),
                        c.output("w", {4, 8}, DType::f32), c.output("a", {3, 8}, DType::f32),
                        c.output("b", {4, 2}, DType::f32), 1.0f);
    });
  });
  expect_error(ErrorCode::shape, {"adapted_column_norms: a", "(3,2)"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      adapted_column_norms(c.ctx(), c.output("norms", {8}, DType::f32),
                           c.output("e", {4, 8}, DType::f32), c.output("a", {3, 2}, DType::f32),
                           c.output("b", {8, 2}, DType::f32), 1.0f);
    });
  });
  expect_error(ErrorCode::unsupported, {"dm of dtype f32|bf16", "f16"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      magnitude_factor_backward(c.ctx(), {c.output("dm", {4}, DType::f16), false},
                                c.output("dg", {4}, DType::f32), {});
    });
  });
}

}  // namespace
}  // namespace snug::test
