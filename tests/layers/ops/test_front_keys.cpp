// On the CPU and in the emulator against the formula in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/front_keys_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

constexpr int64_t kFirst = 50;  // of the virtual tokens

struct Variant {
  int64_t B, T, Q, K, W;
  FrontKeys f;
  bool add = false;
};

const Variant kVariants[] = {
    {.B = 1, .T = 3, .Q = 3, .K = 1, .W = 2, .f = {kFirst, 1, 0, 2}},
    {.B = 3, .T = 7, .Q = 12, .K = 4, .W = 24, .f = {kFirst, 4, 8, 8}},
    {.B = 3, .T = 7, .Q = 12, .K = 4, .W = 24, .f = {kFirst, 4, 16, 8}, .add = true},
    {.B = 2, .T = 40, .Q = 900, .K = 20, .W = 600, .f = {kFirst, 300, 0, 600}},
};

// Rows of sequences that begin with all virtual tokens.
Values tokens_of(const Variant& v) {
  Values ids;
  for (int64_t row = 0; row < v.B * v.T; ++row) {
    const int64_t t = row % v.T;
    ids.push_back(static_cast<double>(t < v.K ? kFirst + t : (7 * row) % kFirst));
  }
  return ids;
}

TEST(FrontKeys, MatchesTheFormulaOnBothPlaces) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const DType of_table : {t, DType::f32})
      for (const Variant& v : kVariants) {
        SCOPED_TRACE(fmt::format("{}x{} {} {}", v.B, v.T, v.W, to_string(t)));
        const int64_t N = v.B * v.T;
        const FrontKeys& f = v.f;
        const Values ids = tokens_of(v);
        const Values y = normal_values(N * v.Q, 1, t), table = normal_values(v.K * v.W, 2, t),
                     dy = normal_values(N * v.Q, 3, t),
                     before = normal_values(v.K * v.W, 4, of_table);
        Values put = y, left = dy, sums(static_cast<size_t>(v.K * v.W), 0.0);
        if (v.add) sums = before;
        for (int64_t row = 0; row < N; ++row) {
          const int64_t k = static_cast<int64_t>(ids[static_cast<size_t>(row)]) - kFirst;
          for (int64_t c = 0; k >= 0 && c < f.width; ++c) {
            const auto wide = static_cast<size_t>(row * v.Q + f.column + c),
                       own = static_cast<size_t>(k * v.W + f.at + c);
            put[wide] = table[own];
            sums[own] += dy[wide];
            left[wide] = 0;
          }
        }
        const auto body = [&](auto& c) {
          const View tokens = c.input("tokens", {v.B, v.T}, DType::i32, ids);
          const View rows = c.input("table", {v.K, v.W}, t, table);
          const View into = c.inout("y", {N, v.Q}, t, y);
          const View from = c.inout("dy", {N, v.Q}, t, dy);
          const View dtable = c.inout("dtable", {v.K, v.W}, of_table, before);
          if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
            front_keys_forward_on(c.queue(), into, tokens, rows, f, 64);
            front_keys_backward_on(c.queue(), {dtable, v.add}, from, tokens, v.K, f, 64);
          } else {
            front_keys_forward(c.ctx(), into, tokens, rows, f);
            front_keys_backward(c.ctx(), {dtable, v.add}, from, tokens, v.K, f);
          }
        };
        const Outputs out = run_in_all_modes(body);
        EXPECT_TRUE(close(out["y"], put, 0));
        EXPECT_TRUE(close(out["dy"], left, 0));
        EXPECT_TRUE(close(out["dtable"], sums, tolerance(of_table, v.B + 1)));
        if (!v.add && f.width < v.W) continue;  // what is beside is cleared by an op before
        const Outputs emulated = run_in_all_schedules(body);
        for (const char* name : {"y", "dy", "dtable"}) EXPECT_EQ(emulated[name], out[name]) << name;
      }
}

TEST(FrontKeys, WantsColumnsThatAreThere) {
  const auto refused = [](const char* text, FrontKeys f, int64_t K) {
    expect_error(ErrorCode::shape, {text, "the adapter and the model belong together"}, [&] {
      run_on_plan_and_cpu({}, [&](Case& c) {
        const View tokens = c.input("tokens", {1, 2}, DType::i32, {0, 1});
        const View y = c.inout("y", {2, 4}, DType::f32, Values(8, 0.0));
        const View table = c.inout("table", {2, 6}, DType::f32, Values(12, 0.0));
        front_keys_backward(c.ctx(), {table, false}, y, tokens, K, f);
      });
    });
  };
  refused("with columns 2 to 5", {0, 2, 0, 3}, 2);
  refused("columns 4 to 8 of a table", {0, 0, 4, 4}, 2);
  refused("3 rows of dtable", {0, 0, 0, 4}, 3);
}

}  // namespace
}  // namespace snug::test
