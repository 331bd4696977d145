// Documents of packed sequences kept apart: every form against the reference, and the promises
// about bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/rng.h"
#include "tests/layers/ops/attention_case.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

using Lengths = std::vector<int64_t>;  // of the documents of a sequence

AttentionCase packed(const Sizes& s, const std::vector<Lengths>& documents) {
  AttentionCase c = case_of(s);
  for (const Lengths& lengths : documents) {
    double begin = 0;
    for (const int64_t length : lengths) {
      c.document_start.insert(c.document_start.end(), static_cast<size_t>(length), begin);
      begin += static_cast<double>(length);
    }
  }
  EXPECT_EQ(c.document_start.size(), static_cast<size_t>(c.B * c.T));
  return c;
}

Lengths ones(int64_t T) {
  return Lengths(static_cast<size_t>(T), 1);
}

struct Packing {
  Sizes sizes;
  std::vector<Lengths> documents;
};
// Documents of one token, that begin and end at the edges of blocks of 64 or beside them, that fill
// blocks, and that a block of queries sees nothing of while it sees others; one, two and six
// blocks, so that pieces of one and of more blocks are met.
std::vector<Packing> packings() {
  std::vector<Packing> list;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    list.push_back({{1, 1, 1, 1, 4, true, t}, {{1}}});
    list.push_back({{2, 5, 2, 1, 8, true, t}, {{1, 1, 1, 1, 1}, {2, 3}}});
    list.push_back({{2, 67, 2, 2, 33, true, t}, {{33, 32, 2}, {1, 66}}});
    list.push_back({{1, 130, 2, 1, 16, true, t}, {ones(130)}});
    list.push_back({{2, 130, 4, 2, 8, true, t}, {{64, 64, 2}, {63, 1, 1, 65}}});
    list.push_back({{1, 200, 3, 1, 64, true, t}, {{31, 2, 70, 1, 90, 6}}});
    list.push_back({{1, 331, 2, 2, 24, true, t}, {{1, 62, 2, 63, 65, 1, 130, 7}}});
    list.push_back({{2, 192, 2, 1, 40, true, t}, {{192}, {191, 1}}});
  }
  return list;
}

std::string name_of(const Packing& p) {
  std::string text = test::name_of(p.sizes);
  for (const Lengths& lengths : p.documents) text += fmt::format(" {} documents", lengths.size());
  return text;
}

TEST(AttentionDocuments, MatchTheReferenceInEveryMode) {
  for (const Packing& p : packings()) {
    SCOPED_TRACE(name_of(p));
    const AttentionCase c = packed(p.sizes, p.documents);
    expect_every_form(c, p.sizes.dtype, spec_of(c));
  }
}

// Lengths drawn, short and long, with the form this machine takes.
TEST(AttentionDocuments, MatchTheReferenceHoweverTheyLie) {
  for (uint64_t draw = 0; draw < 24; ++draw) {
    auto random = [n = draw * 1000](uint64_t below) mutable {
      return static_cast<int64_t>(mix64(++n) % below);
    };
    const DType dtype = draw % 2 == 0 ? DType::f32 : DType::bf16;
    const Sizes s{1 + random(2), 1 + random(300), 2, 1 + random(2), 8, true, dtype};
    const uint64_t longest = 1 + static_cast<uint64_t>(random(140));
    std::vector<Lengths> documents;
    for (int64_t b = 0; b < s.B; ++b) {
      Lengths lengths;
      for (int64_t left = s.T; left > 0; left -= lengths.back())
        lengths.push_back(std::min(left, 1 + random(longest)));
      documents.push_back(lengths);
    }
    SCOPED_TRACE(fmt::format("{}, documents of at most {}", test::name_of(s), longest));
    const AttentionCase c = packed(s, documents);
    const Data data = data_of(c, dtype);
    Truth(c, dtype, data)
        .expect(attention_blocks(dtype), run_both(c, dtype, data, spec_of(c), false));
  }
}

TEST(AttentionDocuments, BackwardIsTheComplexStepGradient) {
  for (const Packing& p : packings()) {
    if (p.sizes.dtype != DType::f32 || p.sizes.T > 130) continue;
    SCOPED_TRACE(name_of(p));
    const AttentionCase c = packed(p.sizes, p.documents);
    const Data data = data_of(c, DType::f32);
    const auto indices = sample_indices(data.qkv.size(), c.T > 64 ? 24 : 60);
    const Values gradient = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(attention_reference(c, z), data.dout);
        },
        data.qkv, indices);
    const Values closed = attention_gradient(c, data.qkv, data.dout);
    EXPECT_TRUE(close(pick(closed, indices), gradient, 1e-13));
    const Outputs got = run_both(c, DType::f32, data, spec_of(c), false);
    const double whole = relative_error(closed, Values(closed.size(), 0.0), 1.0);
    EXPECT_TRUE(close(pick(got["dqkv"], indices), gradient, tolerance(DType::f32, c.T + c.D),
                      std::max(whole, 1e-3)));
  }
}

TEST(AttentionDocuments, DropoutKeepsItsPlaceInTheWindow) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AttentionCase c = packed({2, 150, 2, 1, 16, true, dtype}, {{20, 50, 1, 79}, {64, 86}});
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.3f;
    spec.site = 9;
    c.mask = mask_of(c, spec, some_state());
    expect_every_form(c, dtype, spec);
  }
}

TEST(AttentionDocuments, OneDocumentHasTheBitsOfNone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t T : {1, 64, 270}) {
      AttentionCase c = case_of({2, T, 4, 2, 24, true, dtype});
      AttentionSpec spec = spec_of(c);
      spec.dropout = 0.2f;
      const Data data = data_of(c, dtype);
      for (const AttentionBlocks* form : forms(dtype))
        for (const int threads : {1, 5}) {
          c.document_start.clear();
          const Outputs none = run_both(c, dtype, data, spec, false, some_state(), threads, form);
          c.document_start.assign(static_cast<size_t>(c.B * c.T), 0.0);
          const Outputs one = run_both(c, dtype, data, spec, false, some_state(), threads, form);
          for (const char* name : {"out", "lse", "dqkv"}) EXPECT_EQ(one[name], none[name]) << name;
          EXPECT_EQ(one.flops, none.flops);
        }
    }
}

Values rows_of(const Values& v, int64_t width, int64_t begin, int64_t count) {
  return {v.begin() + begin * width, v.begin() + (begin + count) * width};
}

// Where a document begins at a multiple of 64 its blocks are those it has alone.
TEST(AttentionDocuments, AtTheEdgesOfBlocksHaveTheBitsTheyHaveAlone) {
  const Lengths lengths = {128, 40, 24, 64, 74};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = packed({1, 330, 4, 2, 24, true, dtype}, {lengths});
    const Data data = data_of(c, dtype);
    for (const AttentionBlocks* form : forms(dtype))
      for (const int threads : {1, 7}) {
        const Outputs whole =
            run_both(c, dtype, data, spec_of(c), false, some_state(), threads, form);
        int64_t begin = 0;
        for (const int64_t length : lengths) {
          if (begin % kAttentionBlock == 0) {
            AttentionCase one = case_of({1, length, 4, 2, 24, true, dtype});
            const Data part = {rows_of(data.qkv, c.width(), begin, length),
                               rows_of(data.dout, c.H * c.D, begin, length)};
            const Outputs alone =
                run_both(one, dtype, part, spec_of(one), false, some_state(), 1, form);
            SCOPED_TRACE(fmt::format("{} {} from {}", form->name, threads, begin));
            EXPECT_EQ(rows_of(whole["out"], c.H * c.D, begin, length), alone["out"]);
            EXPECT_EQ(rows_of(whole["dqkv"], c.width(), begin, length), alone["dqkv"]);
            for (int64_t h = 0; h < c.H; ++h)
              EXPECT_EQ(rows_of(whole["lse"], 1, h * c.T + begin, length),
                        rows_of(alone["lse"], 1, h * length, length));
          }
          begin += length;
        }
      }
  }
}

// What other documents hold changes no bit, in the same blocks neither.
TEST(AttentionDocuments, NothingOfAnotherDocumentIsSeen) {
  const Lengths lengths = {30, 50, 70, 1, 49};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = packed({1, 200, 2, 1, 16, true, dtype}, {lengths});
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.1f;
    const Data data = data_of(c, dtype);
    const Data other = {normal_values(c.T * c.width(), 71, dtype, 5),
                        normal_values(c.T * c.H * c.D, 72, dtype, 5)};
    for (const AttentionBlocks* form : forms(dtype))
      for (const int threads : {1, 7}) {
        const Outputs before = run_both(c, dtype, data, spec, false, some_state(), threads, form);
        int64_t begin = 0;
        for (const int64_t length : lengths) {
          Data changed = other;  // but for this document
          const auto keep = [&](Values& to, const Values& from, int64_t width) {
            std::copy_n(from.begin() + begin * width, length * width, to.begin() + begin * width);
          };
          keep(changed.qkv, data.qkv, c.width());
          keep(changed.dout, data.dout, c.H * c.D);
          const Outputs after =
              run_both(c, dtype, changed, spec, false, some_state(), threads, form);
          SCOPED_TRACE(fmt::format("{} {} from {}", form->name, threads, begin));
          EXPECT_EQ(rows_of(after["out"], c.H * c.D, begin, length),
                    rows_of(before["out"], c.H * c.D, begin, length));
          EXPECT_EQ(rows_of(after["dqkv"], c.width(), begin, length),
                    rows_of(before["dqkv"], c.width(), begin, length));
          begin += length;
        }
      }
  }
}

// Blocks of keys before a block's first document are not even read: values there that are no
// numbers, which a product by zero would pass on, stay where they are.
TEST(AttentionDocuments, BlocksOfEarlierDocumentsArePassedOver) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = packed({1, 400, 2, 1, 16, true, dtype}, {{128, 64, 208}});
    Data data = data_of(c, dtype);
    std::fill_n(data.qkv.begin(), 128 * c.width(), std::numeric_limits<double>::quiet_NaN());
    for (const AttentionBlocks* form : forms(dtype))
      for (const int threads : {1, 7}) {
        const Outputs got =
            run_both(c, dtype, data, spec_of(c), false, some_state(), threads, form);
        for (const double x : rows_of(got["out"], c.H * c.D, 128, 272))
          ASSERT_TRUE(std::isfinite(x)) << form->name;
        for (const double x : rows_of(got["dqkv"], c.width(), 128, 272))
          ASSERT_TRUE(std::isfinite(x)) << form->name;
      }
  }
}

TEST(AttentionDocuments, EveryNumberOfThreadsGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c =
        packed({2, 331, 4, 2, 24, true, dtype}, {{100, 1, 27, 150, 53}, {20, 20, 200, 91}});
    AttentionSpec spec = spec_of(c);
    spec.dropout = 0.2f;
    const Data data = data_of(c, dtype);
    for (const AttentionBlocks* form : forms(dtype)) {
      const Outputs one = run_both(c, dtype, data, spec, false, some_state(), 1, form);
      for (const int threads : {2, 3, 5, 16}) {
        const Outputs many = run_both(c, dtype, data, spec, false, some_state(), threads, form);
        for (const char* name : {"out", "lse", "dqkv"})
          EXPECT_EQ(many[name], one[name]) << form->name << " " << threads;
      }
    }
  }
}

// Scores of thousands: a query's first blocks of keys may hold nothing it sees.
TEST(AttentionDocuments, LargeScoresStayFinite) {
  const AttentionCase c = packed({1, 200, 2, 2, 16, true, DType::f32}, {{70, 60, 70}});
  const Data data = data_of(c, DType::f32, 60);
  const Outputs got = run_both(c, DType::f32, data, spec_of(c));
  std::vector<double> lse;
  const Values out = attention_reference<double>(c, data.qkv, &lse);
  double highest = 0;
  for (const double l : lse) highest = std::max(highest, std::fabs(l));
  EXPECT_GT(highest, 5000);
  EXPECT_TRUE(close(got["out"], out, highest * unit_roundoff(DType::f32) * 2 * std::sqrt(16.0)));
  EXPECT_TRUE(close(got["lse"], lse, tolerance(DType::f32, c.D)));
}

}  // namespace
}  // namespace snug::test
