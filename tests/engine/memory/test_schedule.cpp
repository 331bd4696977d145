// The tree of programs: where each begins, what the arena holds and what it is for.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/core/units.h"
#include "tests/engine/memory/program_run.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;
using test::floats;
using test::set_op;

// root (resident): weights 1000 + moments 2000 floats
//   train: x 500 alive throughout, y 300 then z 700
//   generate (resident): cache 4000
//     decode: t 100
struct Tree {
  Schedule schedule;
  int root, train, generate, decode;
  Context plan{Place::plan, {}};
  std::vector<Tensor> kept;

  Tree() {
    root = schedule.add(Name("root"), -1, true);
    train = schedule.add(Name("train"), root, false);
    generate = schedule.add(Name("generate"), root, true);
    decode = schedule.add(Name("decode"), generate, false);
    record(plan, [](const View&) {});
  }
  template <class F>
  void record(Context& ctx, F&& see) {
    const auto make = [&](const char* name, int64_t n, Category c) {
      Tensor t = floats(ctx, name, n, c);
      see(t.view());
      return t;
    };
    ctx.program(schedule, root, [&] {
      kept.push_back(make("weights", 1000, Category::weights));
      kept.push_back(make("moments", 2000, Category::optimizer));
    });
    ctx.program(schedule, train, [&] {
      const Tensor x = make("x", 500, Category::activations);
      make("y", 300, Category::activations);
      make("z", 700, Category::logits);
    });
    ctx.program(schedule, generate,
                [&] { kept.push_back(make("cache", 4000, Category::kv_cache)); });
    ctx.program(schedule, decode, [&] { make("t", 100, Category::workspace); });
  }
};

int64_t padded(int64_t floats_count) {
  return round_up(4 * floats_count, kTensorAlignment);
}

TEST(Schedule, BasesFollowTheTree) {
  Tree t;
  t.schedule.pack();
  const int64_t root_end = padded(1000) + padded(2000);
  EXPECT_EQ(t.schedule.at(t.root).base, 0);
  EXPECT_EQ(t.schedule.at(t.root).end(), root_end);
  EXPECT_EQ(t.schedule.at(t.train).base, root_end);
  EXPECT_EQ(t.schedule.at(t.train).end(), root_end + padded(500) + padded(700));
  EXPECT_EQ(t.schedule.at(t.generate).base, root_end);
  EXPECT_EQ(t.schedule.at(t.decode).base, root_end + padded(4000));
  EXPECT_EQ(t.schedule.at(t.decode).end(), root_end + padded(4000) + padded(100));
  EXPECT_EQ(t.schedule.peak_program(), t.decode);
  EXPECT_EQ(t.schedule.arena_bytes(), round_up(root_end + padded(4000) + padded(100), 4096));
  EXPECT_EQ(t.schedule.lower_bound(), t.schedule.arena_bytes());
}

TEST(Schedule, LowerBoundNeedsNoPackingAndHoldsForRandomOnes) {
  Tree t;
  const int64_t bound = t.schedule.lower_bound();
  EXPECT_EQ(bound, round_up(padded(1000) + padded(2000) + padded(4000) + padded(100), 4096));
  t.schedule.pack();
  EXPECT_EQ(t.schedule.arena_bytes(), bound);
  for (uint64_t seed = 1; seed < 30; ++seed) {
    t.schedule.pack({}, seed);
    EXPECT_GE(t.schedule.arena_bytes(), bound);
    for (int i = 0; i < t.schedule.size(); ++i) {
      const Program& p = t.schedule.at(i);
      check_packing(intervals_of(p), p.packing.offsets, kTensorAlignment);
      EXPECT_EQ(p.base, p.parent < 0 ? 0 : t.schedule.at(p.parent).end());
    }
  }
}

// A program like the one before it lies as that does; one that differs in a birth, an end, bytes or
// the arena of a tensor does not.
TEST(Schedule, EqualProgramsLieAlike) {
  const auto tensor = [](int64_t born, int64_t died, int64_t bytes) {
    TensorRecord t;
    t.born = born;
    t.died = died;
    t.bytes = bytes;
    return t;
  };
  Program like;
  like.ticks = 6;
  like.tensors = {tensor(0, 3, 2048), tensor(1, 5, 1024), tensor(4, kNever, 2048)};
  std::vector<Program> others(4, like);
  others[0].tensors[2].born = 2;
  others[1].tensors[0].died = 5;
  others[2].tensors[1].bytes = 4096;
  others[3].tensors[1].residence = Residence::host;
  for (const Program& other : others)
    for (const bool first : {true, false}) {
      Schedule s;
      s.add(Name("root"), -1, true);
      for (int i = 0; i < 3; ++i) {
        const int k = s.add(Name("p" + std::to_string(i)), 0, false);
        const Program& from = (i == 0) == first ? other : like;
        s.at(k).tensors = from.tensors;
        s.at(k).ticks = from.ticks;
      }
      s.pack();
      for (int k = 1; k <= 3; ++k) {
        const Program& p = s.at(k);
        const std::vector<Interval> here = intervals_of(p), away = intervals_of(p, Residence::host);
        check_packing(here, p.packing.offsets, kTensorAlignment);
        check_packing(away, p.host_packing.offsets, kHostAlignment);
        EXPECT_EQ(p.packing.height, pack(here).height);
        EXPECT_EQ(p.host_packing.height, pack(away, {.alignment = kHostAlignment}).height);
      }
      EXPECT_EQ(s.at(2).packing.offsets, s.at(3).packing.offsets);
    }
}

TEST(Schedule, BytesByMeaningSumToTheArena) {
  Tree t;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    t.schedule.pack({}, seed);
    int64_t padding = -1;
    const CategoryBytes at = t.schedule.at_peak(&padding);
    EXPECT_EQ(std::accumulate(at.begin(), at.end(), padding), t.schedule.arena_bytes());
    EXPECT_GE(padding, 0);
  }
  t.schedule.pack();
  int64_t padding = 0;
  const CategoryBytes at = t.schedule.at_peak(&padding);
  const auto of = [](const CategoryBytes& b, Category c) { return b[static_cast<size_t>(c)]; };
  EXPECT_EQ(of(at, Category::weights), 4000);
  EXPECT_EQ(of(at, Category::optimizer), 8000);
  EXPECT_EQ(of(at, Category::kv_cache), 16000);
  EXPECT_EQ(of(at, Category::workspace), 400);
  EXPECT_EQ(of(at, Category::activations), 0) << "another branch of the tree";

  // train: x born 0, y 1..2, z 3..4, x dies 5.
  const CategoryBytes with_y = t.schedule.live(t.train, 1);
  EXPECT_EQ(of(with_y, Category::activations), 4 * 800);
  EXPECT_EQ(of(with_y, Category::logits), 0);
  EXPECT_EQ(of(with_y, Category::weights), 4000);
  EXPECT_EQ(of(with_y, Category::kv_cache), 0);
  const CategoryBytes with_z = t.schedule.live(t.train, 3);
  EXPECT_EQ(of(with_z, Category::activations), 4 * 500);
  EXPECT_EQ(of(with_z, Category::logits), 4 * 700);
  EXPECT_EQ(of(t.schedule.live(t.train, 5), Category::activations), 0);
}

TEST(Schedule, RunsWherePlannedAndNoWhereElse) {
  Tree t;
  t.schedule.pack();
  Context cpu(Place::cpu, {});
  cpu.reserve(t.schedule);
  EXPECT_EQ(cpu.arena_bytes(), t.schedule.arena_bytes());
  EXPECT_EQ(cpu.resident_bytes(), t.schedule.arena_bytes());
  t.kept.clear();
  std::vector<View> views;
  t.record(cpu, [&](const View& v) { views.push_back(v); });
  const auto* arena =
      static_cast<const std::byte*>(views[0].data) - t.schedule.at(t.root).packing.offsets[0];
  for (const View& v : views) {
    const auto* p = static_cast<const std::byte*>(v.data);
    EXPECT_GE(p, arena);
    EXPECT_LE(p + v.bytes(), arena + cpu.arena_bytes()) << v.name.view();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % kTensorAlignment, 0u);
  }
  // The tensors of train and of generate lie above the root's, on the same bytes.
  const auto offset = [&](size_t i) {
    return static_cast<const std::byte*>(views[i].data) - arena;
  };
  EXPECT_EQ(std::min(offset(2), offset(4)), t.schedule.at(t.root).end());
  EXPECT_EQ(offset(5), t.schedule.at(t.root).end());
  EXPECT_EQ(offset(6), t.schedule.at(t.generate).end());
  EXPECT_EQ(cpu.resident_bytes(), t.schedule.arena_bytes());
  t.kept.clear();
}

TEST(Schedule, FindAndTheRulesOfTheTree) {
  Tree t;
  EXPECT_EQ(t.schedule.find("generate"), t.generate);
  EXPECT_EQ(t.schedule.find("other"), -1);
  expect_error(ErrorCode::internal, {"exactly one root"},
               [&] { t.schedule.add(Name("b"), -1, true); });
  expect_error(ErrorCode::internal, {"a parent that exists"},
               [&] { t.schedule.add(Name("b"), 17, true); });
  expect_error(ErrorCode::internal, {"a resident parent"},
               [&] { t.schedule.add(Name("b"), t.train, false); });
  Schedule empty;
  expect_error(ErrorCode::internal, {"exactly one root"}, [&] { empty.add(Name("b"), 0, true); });
}

TEST(Schedule, AddressesStayWhenProgramsAreAdded) {
  Schedule s;
  s.add(Name("root"), -1, true);
  const Program* first = &s.at(0);
  for (int i = 0; i < 200; ++i) s.add(Name("p"), 0, false);
  EXPECT_EQ(first, &s.at(0));
}

TEST(Schedule, CostsAreTheSumsOfTheOps) {
  test::Recorded r([](Context& ctx) {
    const Tensor a = floats(ctx, "a", 8), b = floats(ctx, "b", 8);
    set_op(ctx, a, 1);
    test::mix_op(ctx, b, a, a);
  });
  EXPECT_EQ(r.program().flops(), 24);
  EXPECT_EQ(r.program().bytes_moved(), 32 + 96);
}

TEST(Category, NamesAreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kCategories; ++i) names.insert(to_string(static_cast<Category>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kCategories));
  EXPECT_EQ(names.count("?"), 0u);
  EXPECT_STREQ(to_string(Category::kv_cache), "kv_cache");
}

}  // namespace
}  // namespace snug
