// Sliding windows: every form against the reference, against PyTorch with the mask of transformers,
// and the promises about bits and about what is not read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "engine/io/safetensors.h"
#include "tests/layers/ops/attention_case.h"
#include "tests/support/folders.h"
#include "tests/support/gradient.h"
#include "tests/support/grid.h"

namespace snug::test {
namespace {

constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

AttentionCase windowed(const Sizes& s, int64_t window) {
  AttentionCase c = case_of(s);
  c.window = window;
  return c;
}

// One key, within a block of 64, at its edges and beside them, over more than two blocks, and one
// block of queries that starts in the block of keys where another ends.
TEST(AttentionWindow, MatchesTheReferenceInEveryMode) {
  for (const DType t : kDtypes)
    for (const auto& [s, window] :
         grid(std::vector<std::pair<Sizes, int>>{{{1, 1, 1, 1, 4, true, t}, 1},
                                                 {{2, 67, 2, 2, 33, true, t}, 1},
                                                 {{2, 67, 2, 1, 8, true, t}, 20},
                                                 {{1, 130, 2, 1, 16, true, t}, 63},
                                                 {{1, 200, 3, 1, 64, true, t}, 64},
                                                 {{1, 200, 2, 2, 24, true, t}, 65},
                                                 {{1, 331, 2, 1, 24, true, t}, 100},
                                                 {{2, 192, 2, 1, 40, true, t}, 129}})) {
      SCOPED_TRACE(fmt::format("{} window {}", name_of(s), window));
      const AttentionCase c = windowed(s, window);
      expect_every_form(c, t, spec_of(c));
    }
}

// Queries behind the last key by a window or more see nothing: their rows are zeros, written, and
// so are whole blocks of them.
TEST(AttentionWindow, WithKeyLengthsAQueryMaySeeNothing) {
  for (const DType t : kDtypes) {
    AttentionCase c = windowed({4, 200, 2, 1, 12, true, t}, 10);
    c.key_lengths = {1, 64, 100, 200};
    expect_every_form(c, t, spec_of(c));
    const Data data = data_of(c, t);
    for (const int threads : {1, 16}) {
      const Outputs got = run_both(c, t, data, spec_of(c), false, some_state(), threads);
      const Values out = got["out"], lse = got["lse"], dqkv = got["dqkv"];
      for (int64_t i = 10; i < c.T; ++i) {
        EXPECT_EQ(lse[static_cast<size_t>(i)], 0);
        EXPECT_EQ(out[c.o(0, i, 1, 3)], 0);
        EXPECT_EQ(dqkv[c.q(0, i, 1, 3)], 0);
      }
    }
  }
}

TEST(AttentionWindow, GoesWithDropoutAndDocuments) {
  for (const DType t : kDtypes) {
    AttentionCase c = windowed({1, 150, 2, 1, 16, true, t}, 40);
    for (int64_t i = 0; i < c.T; ++i) c.document_start.push_back(i < 20 ? 0 : (i < 70 ? 20 : 70));
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.3f;
    spec.site = 9;
    c.mask = mask_of(c, spec, some_state());
    expect_every_form(c, t, spec);
  }
}

// Caps far below, around and above the scores; with windows, dropout, and heads that share keys.
TEST(AttentionSoftcap, MatchesTheReferenceInEveryMode) {
  for (const DType t : kDtypes)
    for (const auto& [s, cap, window] : {std::tuple{Sizes{1, 1, 1, 1, 4, true, t}, 2.0, 0},
                                         {{2, 67, 2, 1, 33, true, t}, 0.3, 0},
                                         {{1, 130, 4, 2, 16, true, t}, 1.0, 20},
                                         {{1, 200, 2, 2, 24, true, t}, 50.0, 65}}) {
      SCOPED_TRACE(fmt::format("{} cap {} window {}", name_of(s), cap, window));
      AttentionCase c = windowed(s, window);
      c.softcap = static_cast<float>(cap);
      AttentionSpec spec = spec_of(c);
      expect_every_form(c, t, spec);
      spec.dropout = 0.3f;
      spec.site = 9;
      c.mask = mask_of(c, spec, some_state());
      expect_every_form(c, t, spec);
    }
  AttentionCase c = case_of({1, 70, 2, 1, 8, true, DType::f32});
  c.softcap = 0.5;
  c.scale = -0.7f;  // scores of the other sign
  expect_every_form(c, DType::f32, spec_of(c));
}

TEST(AttentionWindow, BackwardIsTheComplexStepGradient) {
  for (const int64_t window : {1, 5, 70, -5}) {
    AttentionCase c = windowed({1, 90, 2, 1, 8, true, DType::f32}, std::abs(window));
    if (window < 0) c.softcap = 0.8;
    const Data data = data_of(c, DType::f32);
    const auto indices = sample_indices(data.qkv.size(), 30);
    const Values gradient = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(attention_reference(c, z), data.dout);
        },
        data.qkv, indices);
    EXPECT_TRUE(close(pick(attention_gradient(c, data.qkv, data.dout), indices), gradient, 1e-13));
  }
}

Values read(const SafetensorsReader& file, const std::string& name) {
  const SafeTensor& t = file.at(name);
  Values v(static_cast<size_t>(t.elements()));
  if (t.dtype == SafeDType::F64) {
    std::memcpy(v.data(), t.data, static_cast<size_t>(t.bytes));
    return v;
  }
  std::vector<float> f(v.size());
  std::memcpy(f.data(), t.data, static_cast<size_t>(t.bytes));
  std::copy(f.begin(), f.end(), v.begin());
  return v;
}

// scaled_dot_product_attention in float64 under the masks of transformers (sliding_window,
// padding).
TEST(AttentionWindow, IsTheSlidingWindowOfTransformers) {
  const SafetensorsReader file(source_folder() + "/tests/golden/attention_window.safetensors");
  for (const int window : {1, 4, 16, 64}) {
    SCOPED_TRACE(window);
    AttentionCase c = windowed({1, 70, 4, 2, 6, true, DType::f32}, window);
    const Data data = {read(file, "qkv"), read(file, "dout")};
    for (const AttentionBlocks* form : forms(DType::f32)) {
      const Outputs got = run_both(c, DType::f32, data, spec_of(c), false, some_state(), 1, form);
      const std::string key = "window_" + std::to_string(window);
      EXPECT_TRUE(close(got["out"], read(file, key + ".out"), tolerance(DType::f32, c.T + c.D)));
      EXPECT_TRUE(close(got["dqkv"], read(file, key + ".dqkv"), tolerance(DType::f32, c.T + c.D)));
    }
  }
}

TEST(AttentionWindow, OfTheWholeSequenceHasTheBitsOfNone) {
  for (const DType t : kDtypes)
    for (const AttentionBlocks* form : forms(t))
      for (const int threads : {1, 5}) {
        AttentionCase c = case_of({2, 200, 4, 2, 24, true, t});
        const Data data = data_of(c, t);
        const Outputs none = run_both(c, t, data, spec_of(c), false, some_state(), threads, form);
        for (const int64_t window : {int64_t{200}, int64_t{1} << 40}) {
          c.window = window;
          const Outputs all = run_both(c, t, data, spec_of(c), false, some_state(), threads, form);
          for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(all[name], none[name]) << name;
          EXPECT_EQ(all.flops, none.flops);
        }
      }
}

TEST(AttentionWindow, EveryNumberOfThreadsGivesTheSameBits) {
  for (const DType t : kDtypes) {
    AttentionCase c = windowed({2, 331, 4, 2, 24, true, t}, 90);
    c.key_lengths = {331, 170};
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.2f;
    const Data data = data_of(c, t);
    for (const AttentionBlocks* form : forms(t)) {
      const Outputs one = run_both(c, t, data, spec, false, some_state(), 1, form);
      for (const int threads : {2, 3, 16}) {
        const Outputs many = run_both(c, t, data, spec, false, some_state(), threads, form);
        for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(many[name], one[name]) << name;
      }
    }
  }
}

// Blocks of keys before the window are not even read: keys and values there that are no numbers,
// which a product by zero would pass on, stay where they are.
TEST(AttentionWindow, BlocksBeforeItArePassedOver) {
  constexpr int64_t kNever = 128;  // no key before this one is seen by a query from 192 on
  for (const DType t : kDtypes) {
    const AttentionCase c = windowed({1, 400, 2, 1, 16, true, t}, 65);
    Data data = data_of(c, t);
    std::fill_n(data.qkv.begin(), kNever * c.width(), std::numeric_limits<double>::quiet_NaN());
    for (const AttentionBlocks* form : forms(t))
      for (const int threads : {1, 7}) {
        const Outputs got = run_both(c, t, data, spec_of(c), false, some_state(), threads, form);
        const Values out = got["out"], dqkv = got["dqkv"];
        for (int64_t i = kNever + 64; i < c.T; ++i)
          for (int64_t d = 0; d < c.D; ++d) {
            ASSERT_TRUE(std::isfinite(out[c.o(0, i, 0, d)])) << form->name << " " << i;
            ASSERT_TRUE(std::isfinite(dqkv[c.q(0, i, 0, d)])) << form->name << " " << i;
          }
      }
  }
}

TEST(AttentionWindow, IsCountedInTheCost) {
  const AttentionCase c = windowed({2, 10, 3, 1, 4, true, DType::f32}, 4);
  const Outputs got = run_both(c, DType::f32, data_of(c, DType::f32), spec_of(c), false);
  EXPECT_EQ(got.flops, (4 + 10) * 2 * 3 * 4 * (1 + 2 + 3 + 7 * 4));
}

}  // namespace
}  // namespace snug::test
