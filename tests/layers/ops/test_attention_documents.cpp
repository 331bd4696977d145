// Documents of packed sequences kept apart: every form against the reference, and the promises
// about bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/rng.h"
#include "layers/ops/document_start_simt.h"
#include "tests/layers/ops/attention_case.h"
#include "tests/support/emu.h"
#include "tests/support/gradient.h"
#include "tests/support/grid.h"

namespace snug::test {
namespace {

Lengths ones(int64_t T) {
  return Lengths(static_cast<size_t>(T), 1);
}

struct Packing {
  Sizes sizes;
  std::vector<Lengths> documents;
};
// Documents of one token, that begin and end at the edges of blocks of 64 or beside them, that fill
// blocks, and that a block of queries sees nothing of while it sees others; one, two and six
// blocks, so that pieces of one and of more blocks are met. The widest head last.
std::vector<Packing> packings() {
  std::vector<Packing> list;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool causal : {true, false}) {
      list.push_back({{1, 1, 1, 1, 4, causal, t}, {{1}}});
      list.push_back({{2, 5, 2, 1, 8, causal, t}, {{1, 1, 1, 1, 1}, {2, 3}}});
      list.push_back({{2, 67, 2, 2, 33, causal, t}, {{33, 32, 2}, {1, 66}}});
      list.push_back({{1, 130, 2, 1, 16, causal, t}, {ones(130)}});
      list.push_back({{2, 130, 4, 2, 8, causal, t}, {{64, 64, 2}, {63, 1, 1, 65}}});
      list.push_back({{1, 200, 3, 1, 64, causal, t}, {{31, 2, 70, 1, 90, 6}}});
      list.push_back({{1, 331, 2, 2, 24, causal, t}, {{1, 62, 2, 63, 65, 1, 130, 7}}});
      list.push_back({{2, 192, 2, 1, 40, causal, t}, {{192}, {191, 1}}});
      list.push_back({{1, 90, 1, 1, 256, causal, t}, {{17, 70, 3}}});
    }
  return list;
}

std::string name_of(const Packing& p) {
  std::string text = test::name_of(p.sizes);
  for (const Lengths& lengths : p.documents) text += fmt::format(" {} documents", lengths.size());
  return text;
}

TEST(AttentionDocuments, MatchTheReferenceInEveryMode) {
  for (const Packing& p : grid(packings())) {
    SCOPED_TRACE(name_of(p));
    const AttentionCase c = packed(p.sizes, p.documents);
    expect_every_form(c, p.sizes.dtype, spec_of(c));
  }
}

// Lengths drawn, short and long, with the form this machine takes; every other pair of draws is
// bidirectional.
TEST(AttentionDocuments, MatchTheReferenceHoweverTheyLie) {
  for (uint64_t draw = 0; draw < 40; ++draw) {
    auto random = [n = draw * 1000](uint64_t below) mutable {
      return static_cast<int64_t>(mix64(++n) % below);
    };
    const DType dtype = draw % 2 == 0 ? DType::f32 : DType::bf16;
    const Sizes s{1 + random(2), 1 + random(300), 2, 1 + random(2), 8, draw / 2 % 2 == 0, dtype};
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
    if (p.sizes.dtype != DType::f32 || p.sizes.T > 130 || p.sizes.D > 64) continue;
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
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      AttentionCase c = packed({2, 150, 2, 1, 16, causal, dtype}, {{20, 50, 1, 79}, {64, 86}});
      AttentionSpec spec = spec_of(c);
      spec.dropout = 0.3f;
      spec.site = 9;
      c.mask = mask_of(c, spec, some_state());
      expect_every_form(c, dtype, spec);
    }
}

TEST(AttentionDocuments, OneDocumentHasTheBitsOfNone) {
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t T : {1, 64, 270}) {
        AttentionCase c = case_of({2, T, 4, 2, 24, causal, dtype});
        AttentionSpec spec = spec_of(c);
        spec.dropout = 0.2f;
        const Data data = data_of(c, dtype);
        for (const AttentionBlocks* form : forms(dtype))
          for (const int threads : {1, 5}) {
            c.document_start.clear();
            const Outputs none = run_both(c, dtype, data, spec, false, some_state(), threads, form);
            c.document_start.assign(static_cast<size_t>(c.B * c.T), 0.0);
            const Outputs one = run_both(c, dtype, data, spec, false, some_state(), threads, form);
            for (const char* name : {"out", "lse", "dqkv"})
              EXPECT_EQ(one[name], none[name]) << name;
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
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c = packed({1, 330, 4, 2, 24, causal, dtype}, {lengths});
      const Data data = data_of(c, dtype);
      for (const AttentionBlocks* form : forms(dtype))
        for (const int threads : {1, 7}) {
          const Outputs whole =
              run_both(c, dtype, data, spec_of(c), false, some_state(), threads, form);
          int64_t begin = 0;
          for (const int64_t length : lengths) {
            if (begin % kAttentionBlock == 0) {
              AttentionCase one = case_of({1, length, 4, 2, 24, causal, dtype});
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
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c = packed({1, 200, 2, 1, 16, causal, dtype}, {lengths});
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

// Blocks of keys before a block's first document, and without causal behind its last, are not even
// read, nor are blocks of queries by the sums over them: values there that are no numbers, which a
// product by zero would pass on, stay where they are.
TEST(AttentionDocuments, BlocksOfOtherDocumentsArePassedOver) {
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c = packed({1, 464, 2, 1, 16, causal, dtype}, {{128, 64, 150, 42, 80}});
      for (const auto& [begin, end] : {std::pair{0, 128}, {192, 464}, {384, 464}}) {
        if (causal && begin > 0) continue;
        Data data = data_of(c, dtype);
        const double nan = std::numeric_limits<double>::quiet_NaN();
        std::fill_n(data.qkv.begin() + begin * c.width(), (end - begin) * c.width(), nan);
        std::fill_n(data.dout.begin() + begin * c.H * c.D, (end - begin) * c.H * c.D, nan);
        for (const AttentionBlocks* form : forms(dtype))
          for (const int threads : {1, 7}) {
            SCOPED_TRACE(fmt::format("{} {} {}..{}", form->name, threads, begin, end));
            const Outputs got =
                run_both(c, dtype, data, spec_of(c), false, some_state(), threads, form);
            const Values out = got["out"], dqkv = got["dqkv"];
            const auto expect_finite = [&](int64_t from, int64_t to) {
              for (const double x : rows_of(out, c.H * c.D, from, to - from))
                ASSERT_TRUE(std::isfinite(x));
              for (const double x : rows_of(dqkv, c.width(), from, to - from))
                ASSERT_TRUE(std::isfinite(x));
            };
            expect_finite(0, begin);
            expect_finite(end, c.T);
          }
      }
    }
}

// A document by itself is the same attention: to the rounding of another order of sums where it
// does not begin with a block.
TEST(AttentionDocuments, AreWhatTheyAreAlone) {
  const Lengths lengths = {1, 70, 9, 65, 35};
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c = packed({1, 180, 2, 1, 12, causal, dtype}, {lengths});
      const Data data = data_of(c, dtype);
      std::vector<Outputs> whole;
      for (const AttentionBlocks* form : forms(dtype))
        whole.push_back(run_both(c, dtype, data, spec_of(c), false, some_state(), 2, form));
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        const AttentionCase one = case_of({1, length, 2, 1, 12, causal, dtype});
        const Data part = {rows_of(data.qkv, c.width(), begin, length),
                           rows_of(data.dout, c.H * c.D, begin, length)};
        const Truth truth(one, dtype, part);
        for (size_t f = 0; f < whole.size(); ++f) {
          const AttentionBlocks* form = forms(dtype)[f];
          SCOPED_TRACE(fmt::format("from {}", begin));
          Outputs alone = run_both(one, dtype, part, spec_of(one), false, some_state(), 2, form);
          truth.expect(*form, alone);
          const auto put = [&](const char* name, int64_t width, int64_t of, int64_t to) {
            for (Output& o : alone.all)
              if (o.name == name)
                store_values(o.bytes.data() + to * width * length * size_of(o.dtype), o.dtype,
                             rows_of(whole[f][name], width, of, length));
          };
          put("out", c.H * c.D, begin, 0);
          put("dqkv", c.width(), begin, 0);
          for (int64_t h = 0; h < c.H; ++h) put("lse", 1, h * c.T + begin, h);
          truth.expect(*form, alone);
        }
        begin += length;
      }
    }
}

// A plan knows no data, and without causal holds the ends beside the starts: no workspace more.
TEST(AttentionDocuments, APlanHoldsTheSameBytesWhateverTheirLengths) {
  const auto planned = [](bool causal, const std::vector<Lengths>& documents) {
    const AttentionCase c = packed({2, 512, 2, 1, 16, causal, DType::bf16}, documents);
    return run_both(c, DType::bf16, data_of(c, DType::bf16), spec_of(c), false).planned_bytes;
  };
  for (const bool causal : {true, false})
    EXPECT_EQ(planned(causal, {{512}, {512}}), planned(causal, {ones(512), {10, 200, 302}}));
  const std::vector<Lengths> documents = {{100, 412}, {512}};
  EXPECT_EQ(planned(false, documents) - planned(true, documents), 2 * 512 * 4);
}

TEST(DocumentEnd, IsWhereTheNextDocumentBegins) {
  for (const auto& documents : {std::vector<Lengths>{{1}},
                                {{5}, {1, 4}},
                                {ones(70)},
                                {{3, 1, 60}, {64}, {63, 1}},
                                {{300, 1, 2, 200}, {1, 502}}}) {
    const Values starts = starts_of(documents);
    const auto B = static_cast<int64_t>(documents.size());
    const int64_t T = static_cast<int64_t>(starts.size()) / B;
    Values ends;
    for (const Lengths& lengths : documents) {
      int64_t end = 0;
      for (const int64_t length : lengths)
        ends.insert(ends.end(), static_cast<size_t>(length), static_cast<double>(end += length));
    }
    const Body body = [&](Case& c) {
      document_end(c.ctx(), c.output("ends", {B, T}, DType::i32),
                   c.input("starts", {B, T}, DType::i32, starts), B, T);
    };
    const Outputs cpu = run_in_all_modes(body);
    EXPECT_EQ(cpu["ends"], ends);
    EXPECT_EQ(cpu.bytes_moved, 8 * B * T);
    EXPECT_EQ(run_on_emu(body)["ends"], ends);
    const Outputs kernel = run_in_all_schedules([&](EmuCase& c) {
      document_end_on(c.queue(), c.output("ends", {B, T}, DType::i32),
                      c.input("starts", {B, T}, DType::i32, starts), 32);
    });
    EXPECT_EQ(kernel["ends"], ends);
  }
}

TEST(AttentionDocuments, EveryNumberOfThreadsGivesTheSameBits) {
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c =
          packed({2, 331, 4, 2, 24, causal, dtype}, {{100, 1, 27, 150, 53}, {20, 20, 200, 91}});
      AttentionSpec spec = spec_of(c);
      spec.dropout = 0.2f;
      const Data data = data_of(c, dtype);
      for (const AttentionBlocks* form : forms(dtype)) {
        const Outputs one = run_both(c, dtype, data, spec, false, some_state(), 1, form);
        for (const int threads : grid(std::vector{3, 2, 5, 16})) {
          const Outputs many = run_both(c, dtype, data, spec, false, some_state(), threads, form);
          for (const char* name : {"out", "lse", "dqkv"})
            EXPECT_EQ(many[name], one[name]) << form->name << " " << threads;
        }
      }
    }
}

// Scores of thousands: a query's first blocks of keys may hold nothing it sees.
TEST(AttentionDocuments, LargeScoresStayFinite) {
  for (const bool causal : {true, false}) {
    const AttentionCase c = packed({1, 200, 2, 2, 16, causal, DType::f32}, {{70, 60, 70}});
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
}

// Bytes of each tensor that a pass over windows makes.
std::vector<int64_t> planned_bytes(const AttentionBlocks& blocks, int64_t B, int64_t T,
                                   AttentionSpec spec, DType dtype, int threads) {
  Context ctx(Place::plan, {.threads = threads});
  Schedule schedule;
  const int index = schedule.add(Name("p"), -1, false);
  ctx.program(schedule, index, [&] {
    const auto make = [&](const char* name, Shape shape, DType t) {
      return ctx.tensor(Name(name), shape, t, Category::activations);
    };
    const int64_t width = (spec.H + 2 * spec.G) * spec.D;
    const Tensor qkv = make("qkv", {B * T, width}, dtype),
                 out = make("out", {B * T, spec.H * spec.D}, dtype),
                 lse = make("lse", {B, spec.H, T}, DType::f32),
                 dqkv = make("dqkv", {B * T, width}, dtype),
                 starts = make("starts", {B, T}, DType::i32),
                 state = make("state", step_state_shape(), DType::u8);
    spec.document_start = starts;
    if (!spec.causal) spec.document_end = starts;
    attention_forward_by(blocks, ctx, out, lse, qkv, B, T, spec, state);
    attention_backward_by(blocks, ctx, dqkv, out, qkv, out, lse, B, T, spec, state);
  });
  std::vector<int64_t> bytes;
  for (const TensorRecord& t : schedule.at(index).tensors) bytes.push_back(t.bytes);
  return bytes;
}

// A micro-batch runs fewer and shorter windows than planned in what was planned.
TEST(AttentionDocuments, FewerAndShorterWindowsTakeNoMoreRoom) {
  const std::pair<const AttentionBlocks*, DType> forms[] = {
      {&attention_blocks_avx2(), DType::f32},
      {&attention_blocks_avx512(), DType::f32},
      {&attention_blocks_avx512_bf16(), DType::bf16},
      {&attention_blocks_amx_emulated(), DType::bf16}};
  for (const auto& [blocks, dtype] : forms)
    for (const int threads : {1, 2, 5, 16, 64})
      for (const auto& [H, G, D] : {std::tuple{12, 12, 32}, {4, 2, 64}, {1, 1, 8}, {3, 1, 33}})
        for (const auto& [B, T] : {std::pair{9, 64}, {3, 130}, {2, 700}, {1, 2100}}) {
          AttentionSpec spec;
          spec.H = H, spec.G = G, spec.D = D;
          spec.causal = threads % 2 == 0;
          spec.dropout = D == 32 ? 0.1f : 0.0f;
          const auto planned = planned_bytes(*blocks, B, T, spec, dtype, threads);
          const std::vector<int64_t> lengths = {1,   5,   63,  64,   65,    127,
                                                200, 511, 640, 2048, T - 1, T};
          for (int b = 1; b <= B; ++b)
            for (const int64_t t : lengths) {
              if (t > T) continue;
              const auto needed = planned_bytes(*blocks, b, t, spec, dtype, threads);
              ASSERT_EQ(needed.size(), planned.size());
              for (size_t i = 0; i < needed.size(); ++i)
                ASSERT_LE(needed[i], planned[i]) << blocks->name << " " << threads << " " << B
                                                 << " " << T << " " << b << " " << t;
            }
        }
}

}  // namespace
}  // namespace snug::test
