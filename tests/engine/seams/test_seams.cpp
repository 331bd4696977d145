// The table of parameters and the plain stores over it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "engine/seams/state_store.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

// A small model: an embedding of 300 tokens padded to 384 rows, a matrix, a frozen vector, a bias.
struct Small {
  ParamTable table;
  int wte, weight, frozen, bias;
  Small() {
    wte = table.add({.name = Name("wte"), .shape = {384, 5}, .rows = 300});
    weight = table.add({.name = Name("w"), .shape = {16, 16}});
    frozen = table.add({.name = Name("frozen"), .shape = {7}, .trainable = false});
    bias = table.add({.name = Name("b"), .shape = {257}, .group = kGroupNoDecay});
  }
};

// make(ctx) returns a store, as the root program; use(ctx, store) is a program on top of it. Both
// are recorded on plan and run on cpu.
template <class Make, class Use>
void on_plan_and_cpu(Make&& make, Use&& use) {
  Schedule schedule;
  schedule.add(Name("root"), -1, true);
  schedule.add(Name("step"), 0, false);
  const auto both = [&](Context& ctx) {
    decltype(make(ctx)) store;  // outlives the root program, as resident tensors must
    ctx.program(schedule, 0, [&] { store = make(ctx); });
    ctx.program(schedule, 1, [&] { use(ctx, *store); });
  };
  Context plan(Place::plan, {});
  both(plan);
  schedule.pack();
  Context cpu(Place::cpu, {});
  cpu.reserve(schedule);
  both(cpu);
}

TEST(ParamTable, OffsetsAreAlignedAndDoNotOverlap) {
  const Small m;
  int64_t end = 0;
  for (const int i : m.table.by_offset()) {
    EXPECT_EQ(m.table[i].offset % 256, 0);
    EXPECT_GE(m.table[i].offset, end);
    EXPECT_LT(m.table[i].offset - end, 256);
    end = m.table[i].offset + m.table[i].elements();
  }
  EXPECT_EQ(m.table[m.wte].offset, 0);
  EXPECT_EQ(m.table[m.weight].offset, 2048);  // 1920 rounded up
  EXPECT_EQ(m.table[m.bias].offset, 2304);
  EXPECT_EQ(m.table.trained_elements(), 2304 + 512);
  EXPECT_EQ(m.table[m.frozen].offset, 2816);  // what is frozen lies behind
  EXPECT_EQ(m.table.flat_elements(), 2816 + 256);
  EXPECT_EQ(m.table.by_offset(), (std::vector<int>{m.wte, m.weight, m.bias, m.frozen}));
  EXPECT_EQ(m.table.real_trained_elements(), m.table.real_elements() - 7);
}

// Whatever the order in which parameters come.
TEST(ParamTable, WhatIsFrozenByNameLiesBehind) {
  ParamTable table([](std::string_view name) { return name.starts_with("f"); });
  const int f1 = table.add({.name = Name("f1"), .shape = {300}});
  const int a = table.add({.name = Name("a"), .shape = {10}});
  const int f2 = table.add({.name = Name("f2"), .shape = {1}});
  const int b = table.add({.name = Name("b"), .shape = {256}});
  EXPECT_EQ(table.by_offset(), (std::vector<int>{a, b, f1, f2}));
  EXPECT_EQ(table[a].offset, 0);
  EXPECT_EQ(table[b].offset, 256);
  EXPECT_EQ(table[f1].offset, 512);
  EXPECT_EQ(table[f2].offset, 1024);
  EXPECT_EQ(table.trained_elements(), 512);
  EXPECT_EQ(table.flat_elements(), 1280);
  EXPECT_FALSE(table[f1].trainable);
  EXPECT_TRUE(table[a].trainable);
}

TEST(ParamTable, PaddedRowsAreNotReal) {
  const Small m;
  EXPECT_EQ(m.table[m.wte].elements(), 1920);
  EXPECT_EQ(m.table[m.wte].real_elements(), 1500);
  EXPECT_EQ(m.table[m.weight].rows, 16) << "all rows are real unless said otherwise";
  EXPECT_EQ(m.table.real_elements(), 1500 + 256 + 7 + 257);
}

TEST(ParamTable, ScalarsAndEmptyTables) {
  ParamTable t;
  EXPECT_EQ(t.real_elements(), 0);
  EXPECT_EQ(t.flat_elements(), 0);
  EXPECT_EQ(t.find("x"), -1);
  const int s = t.add({.name = Name("scalar"), .shape = {}});
  EXPECT_EQ(t[s].real_elements(), 1);
  EXPECT_EQ(t.flat_elements(), 256);
}

TEST(ParamTable, FindAndRules) {
  Small m;
  EXPECT_EQ(m.table.find("wte"), m.wte);
  EXPECT_EQ(m.table.find("b"), m.bias);
  EXPECT_EQ(m.table.find("wt"), -1);
  expect_error(ErrorCode::internal, {"one parameter of each name"},
               [&] { m.table.add({.name = Name("wte"), .shape = {1}}); });
  expect_error(ErrorCode::internal, {"no more real rows than a parameter has"}, [&] {
    m.table.add({.name = Name("n"), .shape = {4, 2}, .rows = 5});
  });
  EXPECT_EQ(m.table.size(), 4);
}

// What ranks cut: runs of one part, all trained or all frozen, fill whole pieces for every rank.
TEST(ParamTable, RunsThatRanksCut) {
  for (const int ranks : {1, 2, 3, 7}) {
    ParamTable table([](std::string_view name) { return name == "h.0.f"; }, ranks);
    table.add({.name = Name("wte"), .shape = {384, 5}, .rows = 300});
    for (int l = 0; l < 2; ++l) {
      const std::string h = "h." + std::to_string(l);
      table.add({.name = Name(h + ".w"), .shape = {33, 33}, .part = l});
      table.add({.name = Name(h + ".f"), .shape = {7}, .part = l});
      table.add({.name = Name(h + ".b"), .shape = {257}, .part = l});
    }
    table.add({.name = Name("ln"), .shape = {3}});
    const int64_t step = int64_t{256} * ranks;
    int64_t end = 0;
    for (size_t k = 0; k < table.by_offset().size(); ++k) {
      const ParamInfo& p = table[table.by_offset()[k]];
      EXPECT_EQ(p.offset, end) << p.name.view();
      end = table.end_of(table.by_offset()[k]);
      const int64_t room = (p.elements() + 255) / 256 * 256;
      const bool last = k + 1 == table.by_offset().size();
      const ParamInfo* next = last ? nullptr : &table[table.by_offset()[k + 1]];
      if (next && next->part == p.part && next->trainable == p.trainable)
        EXPECT_EQ(end, p.offset + room) << p.name.view();
      else
        EXPECT_EQ(end, (p.offset + room + step - 1) / step * step) << p.name.view();
    }
    EXPECT_EQ(table.flat_elements(), end);
    EXPECT_EQ(table.trained_elements(), table[table.find("h.0.f")].offset);
  }
}

}  // namespace
}  // namespace snug
