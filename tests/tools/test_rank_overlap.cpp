// What ranks exchange beside what they compute: where it lies in the record, in the predicted time and in the
// picture, and what it costs in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory/simulate.h"
#include "parallel/rank_comm.h"
#include "tests/tools/session_case.h"
#include "tools/report/pictures.h"
#include "tools/report/step_view.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

constexpr int kRanksOfTest = 4;
constexpr int64_t kLayers = 5;

struct Planned {
  std::unique_ptr<Model> model;
  Schedule schedule;
};

Planned plan_of(int zero, bool in_turn, bool staged = true, const char* recompute = "none") {
  Planned p;
  test::Tiny tiny;
  tiny.L = kLayers;
  p.model = std::make_unique<Model>(test::tiny_spec(tiny), parse_precision("bf16"), nullptr,
                                    Adapters(), kRanksOfTest);
  test::RunOptions o;
  o.decisions.T = 16;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.recompute = recompute;
  o.decisions.max_grad_norm = 1;
  o.decisions.ranks = kRanksOfTest;
  o.decisions.zero = zero;
  o.decisions.staged = staged;
  o.decisions.in_turn = in_turn;
  o.optimizer.name = "adamw";
  p.schedule = test::plan_schedule(*p.model, o);
  return p;
}

// An op of compute takes a second, and a collective so many.
std::vector<double> seconds_of(const Program& p, double collective) {
  std::vector<double> seconds;
  for (const OpRecord& op : p.ops)
    seconds.push_back(received_bytes(op, kRanksOfTest) >= 0 ? collective : 1.0);
  return seconds;
}

struct Lain {
  int64_t collectives = 0, beside = 0;  // that others of compute lie beside
  double step = 0, sum = 0;
};
Lain lie(const Program& p, double collective) {
  const std::vector<double> seconds = seconds_of(p, collective);
  const std::vector<OpSpan> spans = op_spans(p, seconds);
  Lain l;
  l.step = last_end(spans);
  for (size_t i = 0; i < p.ops.size(); ++i) {
    l.sum += seconds[i];
    if (received_bytes(p.ops[i], kRanksOfTest) < 0) continue;
    ++l.collectives;
    bool beside = false;
    for (size_t k = 0; k < p.ops.size(); ++k)
      beside = beside || (p.ops[k].stream == kCompute && spans[k].begin < spans[i].end &&
                          spans[k].end > spans[i].begin && k != i);
    l.beside += beside;
  }
  return l;
}

// Of a window's last micro-step: all but what nothing is left to lie beside.
TEST(RankOverlap, WhatBlocksExchangeLiesBesideOtherBlocks) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE("zero " + std::to_string(zero));
    for (const bool in_turn : {true, false}) {
      const Planned p = plan_of(zero, in_turn);
      const Schedule& s = p.schedule;
      const StepPart part = step_parts(s, 1).front();
      const Program& micro = s.at(part.program);
      EXPECT_EQ(micro.name.view(), zero < 2 && !in_turn ? "micro_only" : "micro_first");
      const Lain l = lie(micro, 3.0);
      if (in_turn) {
        EXPECT_EQ(l.beside, 0);
        EXPECT_DOUBLE_EQ(l.step, l.sum);
        EXPECT_EQ(l.collectives > 0, zero >= 2);
        continue;
      }
      // Of a block its gradients, and at stage 3 its weights twice.
      const int64_t of_blocks = zero == 3 ? 3 * kLayers : kLayers;
      EXPECT_GE(l.collectives, of_blocks);
      // The last block's gradients have the embedding's backward beside them; before the first weights there
      // is nothing.
      const int64_t beside = of_blocks - (zero == 3 ? 1 : 0);
      EXPECT_GE(l.beside, beside);
      // Short ones of blocks are hidden whole.
      EXPECT_LE(l.step, l.sum - 2.9 * static_cast<double>(beside - 1));
    }
  }
}

// A block's weights are asked for while the block before runs, in both directions, and waited for when its
// own first op begins.
TEST(RankOverlap, WeightsComeABlockAhead) {
  const Planned p = plan_of(3, false);
  const Program& micro = p.schedule.at(p.schedule.find("micro_first"));
  const std::vector<OpSpan> spans = op_spans(micro, seconds_of(micro, 0.5));
  const auto span_of = [&](const char* op, const std::string& scope, bool first) {
    OpSpan found{-1, -1};
    for (size_t i = 0; i < micro.ops.size(); ++i)
      if (micro.ops[i].scope.view().starts_with(scope) &&
          (op == nullptr ? micro.ops[i].stream == kCompute
                         : std::string_view(micro.ops[i].name) == op)) {
        if (found.begin < 0 || !first) found = spans[i];
        if (first) break;
      }
    return found;
  };
  for (int64_t l = 1; l < kLayers; ++l) {
    const std::string name = "h." + std::to_string(l), below = "h." + std::to_string(l - 1);
    const OpSpan ahead = span_of("all_gather", name, true);
    EXPECT_GE(ahead.begin, 0.0);
    EXPECT_LE(ahead.begin, span_of(nullptr, below, true).begin) << name;
    // Of the last one there is no way back.
    if (l + 1 == kLayers) continue;
    const OpSpan back = span_of("all_gather", below, false);
    EXPECT_GT(back.begin, ahead.end);
    EXPECT_LE(back.end, span_of(nullptr, below, false).end);
  }
}

// Each in its own room: one collective of a sum at a time, and of gradients in pieces those of two blocks.
TEST(RankOverlap, CostsTheGradientsOfABlockAtMost) {
  for (const int zero : {0, 1, 2, 3})
    for (const bool staged : {false, true})
      for (const char* recompute : {"none", "block"}) {
        SCOPED_TRACE("zero " + std::to_string(zero) + (staged ? " staged " : " ") + recompute);
        const Planned beside = plan_of(zero, false, staged, recompute);
        const Planned in_turn = plan_of(zero, true, staged, recompute);
        int64_t block = 0, room = 0;
        for (const TensorRecord& t :
             beside.schedule.at(step_parts(beside.schedule, 1).front().program).tensors) {
          if (t.name.view().starts_with("gradients.part")) block = std::max(block, t.bytes);
          if (t.name.view() == "ranks.received") room = std::max(room, t.bytes);
        }
        EXPECT_EQ(block > 0, zero >= 2);
        EXPECT_EQ(room > 0, staged);
        EXPECT_LE(beside.schedule.arena_bytes(),
                  in_turn.schedule.arena_bytes() + block + room + 2 * 4096);
      }
}

TEST(RankOverlap, ThePictureHasALaneOfRanks) {
  Planned p = plan_of(3, false);
  Plan plan;
  plan.schedule = p.schedule;
  plan.accumulation = 1;
  plan.decisions.ranks = kRanksOfTest;
  StepTimes times;
  times.source = StepTimes::Source::predicted;
  for (int i = 0; i < plan.schedule.size(); ++i)
    times.programs.emplace_back(i, seconds_of(plan.schedule.at(i), 3.0));
  const std::string html = lanes_picture(make_step_view(plan, 200, times));
  EXPECT_NE(html.find("all_gather"), std::string::npos);
  EXPECT_NE(html.find(">ranks<"), std::string::npos);
}

}  // namespace
}  // namespace snug
