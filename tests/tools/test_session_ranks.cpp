// Ranks that share a step: whatever each keeps, weights, states, losses and norms have the same bits;
// they are those of one rank up to the order of sums; bytes are those that were planned, on each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "parallel/rank_comm.h"
#include "tests/parallel/mpi.h"
#include "tests/parallel/nccl.h"
#include "tests/parallel/ranks.h"
#include "tests/tools/rank_session_case.h"

namespace snug {
namespace {

using test::expect_close;
using test::expect_same;
using test::kGpt2;
using test::kLlama;
using test::kNeox;
using test::Mover;
using test::train_in;
using Case = test::RankCase;
using Result = test::RankResult;
using Body = test::RankBody;
using World = test::RankWorld;

Result train(const Case& c, int ranks, int zero, int64_t micro, int64_t G, int64_t steps = 3) {
  return test::train_ranks(c, ranks, zero, micro, G, steps);
}

void check(const Case& c, int ranks, int64_t micro, int64_t G) {
  SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim + " " +
               c.recompute +
               (c.master  ? ""
                : c.kahan ? " kahan"
                          : " no master") +
               ", ranks " + std::to_string(ranks));
  const bool once = micro * ranks >= G;  // one micro-step a window
  const bool wide = !std::strcmp(c.precision, "fp32");
  const Result plain = train(c, ranks, 0, micro, G);
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE("zero " + std::to_string(zero));
    const Result r = train(c, ranks, zero, micro, G);
    if (once || zero == 1) {
      expect_same(r, plain);
      if (!std::strcmp(c.optim, "adamw")) {
        EXPECT_TRUE(test::same_bits(r.states, plain.states));
      }
    } else {
      // Micro-steps are added after ranks are: another order of sums, the same from 2 to 3.
      expect_close(r, plain, wide);
      if (zero == 3) expect_same(r, train(c, ranks, 2, micro, G));
    }
    const auto less = [&](const char* what) { return r.kept.at(what) < plain.kept.at(what); };
    EXPECT_TRUE(less("optimizer"));
    EXPECT_EQ(less("gradients"), zero >= 2);
    EXPECT_EQ(less("weights"), zero >= 3);
  }
  expect_close(plain, train(c, 1, 0, micro, G), wide);
}

TEST(RankSessions, StagesHaveTheSameBitsAndOneRanksNumbers) {
  check({kGpt2}, 2, 2, 4);
  check({kGpt2, "bf16"}, 3, 1, 3);
  check({kLlama, "fp16", "adamw_8bit"}, 2, 2, 3);
  check({kNeox, "fp32", "lion", "block"}, 3, 2, 5);
}

TEST(RankSessions, SeveralMicroStepsAWindow) {
  check({kGpt2, "fp32", "adamw", "block"}, 2, 1, 5);
  check({kLlama, "bf16"}, 3, 1, 7);
}

// What the seed rounds an element by depends on its place in the whole range, not in a piece.
TEST(RankSessions, WeightsWithoutAMaster) {
  Case c{kGpt2, "bf16"};
  c.master = false;
  check(c, 2, 1, 2);
  check({kLlama, "bf16", "adamw_8bit", "none", Place::cpu, 0.5, false}, 3, 1, 3);
  check({kNeox, "bf16", "adamw", "none", Place::cpu, 0.5, false, true}, 2, 1, 2);
}

// A block's gradients are summed, applied and gone as backward leaves it: the bits are those of ranks that
// keep them, of one rank those of itself. Norms are summed in the order of backward.
TEST(RankSessions, UpdatesInBackward) {
  const auto check_case = [](Case c, int ranks) {
    SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks));
    c.max_grad_norm = 0;
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE("zero " + std::to_string(zero));
      c.in_backward = false;
      const Result behind = train(c, ranks, zero, 2, 2 * ranks - 1);
      c.in_backward = true;
      const Result in = train(c, ranks, zero, 2, 2 * ranks - 1);
      EXPECT_TRUE(test::same_bits(in.losses, behind.losses));
      EXPECT_TRUE(test::same_bits(in.weights, behind.weights));
      EXPECT_TRUE(test::same_bits(in.states, behind.states));
      for (size_t i = 0; i < in.norms.size(); ++i)
        EXPECT_NEAR(in.norms[i] / behind.norms[i], 1, 1e-12);
      if (zero < 2) {
        EXPECT_LT(in.kept.at("gradients"), behind.kept.at("gradients"));
      }
    }
  };
  check_case({kGpt2, "fp32", "adamw", "block"}, 2);
  check_case({kLlama, "bf16", "adamw_8bit"}, 3);
  Case c{kNeox, "bf16"};
  c.master = false;
  check_case(c, 2);
}

// Beside compute, as late as events allow: a missing one would be bits that were not there yet, or no more.
void check_beside(Case c, int ranks, int64_t micro, int64_t G) {
  SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim + " " +
               c.recompute + ", ranks " + std::to_string(ranks));
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE("zero " + std::to_string(zero));
    c.in_turn = true, c.streams = StreamMode::immediate, c.strict = false;
    const Result in_turn = train(c, ranks, zero, micro, G);
    c.in_turn = false;
    for (const StreamMode mode :
         {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
      SCOPED_TRACE(to_string(mode));
      c.streams = mode;
      for (const bool strict : {false, true}) {
        c.strict = strict;
        const Result beside = train(c, ranks, zero, micro, G);
        expect_same(beside, in_turn);
        EXPECT_TRUE(test::same_bits(beside.states, in_turn.states));
        // The gradients of two blocks where there were those of one.
        if (!strict) {
          EXPECT_GE(beside.engine, in_turn.engine);
        }
      }
    }
  }
}

TEST(RankSessions, CollectivesBesideComputeChangeNoBit) {
  check_beside({kGpt2}, 2, 2, 4);
  check_beside({kGpt2, "bf16", "adamw", "block"}, 2, 1, 6);  // of three micro-steps
  check_beside({kLlama, "fp16", "adamw_8bit"}, 3, 1, 5);
  Case c{kNeox};
  c.max_grad_norm = 0;
  c.in_backward = true;
  check_beside(c, 2, 1, 2);
  c.in_backward = false;
  c.away = true;
  check_beside(c, 2, 1, 4);
}

TEST(RankSessions, OnTheEmulatedPlace) {
  Case c{kGpt2};
  c.place = Place::emu;
  check(c, 2, 1, 2);
}

TEST(SlowRankSessions, EveryBlockFormPrecisionAndRankCount) {
  for (const char* model : {kGpt2, kLlama, kNeox})
    for (const char* precision : {"fp32", "bf16", "fp16"})
      for (const char* optim : {"adamw", "adamw_8bit"})
        for (const int ranks : {2, 3, 4, 7}) check({model, precision, optim}, ranks, 1, ranks);
}

// What one rank finds not finite, all skip; losses and squares are summed from rank 0 on.
TEST(RankSessions, WhatARankFindsAllKnow) {
  constexpr int kSize = 3;
  Schedule schedule;
  schedule.add(Name("root"), -1, true);
  schedule.add(Name("step"), 0, false);
  const auto record = [&](Context& ctx, Comm& comm, auto&& set) {
    Tensor state;
    ctx.program(schedule, 0, [&] {
      state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
    });
    set(state.view());
    ctx.program(schedule, 1, [&] { comm.sum_step(ctx, state); });
    return state;
  };
  Context plan(Place::plan, {});
  RankComm planned(kSize, false);
  record(plan, planned, [](const View&) {});
  schedule.pack();
  test::on_ranks(kSize, [&](int rank, Group& group) {
    const auto transport = group.transport();
    RankComm comm(*transport);
    Context ctx(Place::cpu, {});
    ctx.reserve(schedule);
    const Tensor state = record(ctx, comm, [&](const View& v) {
      StepState& s = *step_state(v) = StepState{};
      s.loss_sum = 1 + rank;
      s.loss_tokens = 10 * (1 + rank);
      s.grad_square_sum = 100 * (1 + rank);
      s.found_inf = rank == 1;
      s.first_bad_element = rank == 0 ? -1 : 50 - rank;
    });
    const StepState& s = *step_state(state.view());
    EXPECT_EQ(s.loss_sum, 6);
    EXPECT_EQ(s.loss_tokens, 60);
    EXPECT_EQ(s.grad_square_sum, 600);
    EXPECT_EQ(s.found_inf, 1);
    EXPECT_EQ(s.first_bad_element, 48);
    group.barrier("read");
  });
}

// Open MPI moves bytes alone: a rank of it has the bits of its piece that threads of one process have.
void check_mpi(MpiGroup& group, const Case& c) {
  const int ranks = group.size();
  const World world = [&](const Body& f) { f(group.rank(), group); };
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim +
                 ", zero " + std::to_string(zero));
    const int64_t windows = c.in_backward ? ranks : 2 * ranks - 1;
    const Result here = train(c, ranks, zero, 1, windows);
    const Result apart = train_in(world, Mover::messages, c, ranks, zero, 1, windows);
    EXPECT_TRUE(test::same_bits(apart.losses, here.losses));
    EXPECT_TRUE(test::same_bits(apart.norms, here.norms));
    EXPECT_FALSE(apart.weight_pieces.empty() || apart.state_pieces.empty());
    EXPECT_EQ(apart.state_pieces.size() < here.state_pieces.size(), zero > 0);
    for (const auto& [first, values] : apart.weight_pieces)
      EXPECT_TRUE(test::same_bits(values, here.weight_pieces.at(first))) << first;
    for (const auto& [at, bytes] : apart.state_pieces)
      EXPECT_TRUE(bytes == here.state_pieces.at(at)) << std::get<1>(at);
  }
}

TEST(MpiSessions, HaveTheBitsOfThoseThatShareMemory) {
  NEEDS_MPIRUN();
  for (const int size : {2, 3, 4})
    test::on_mpi(size, [](MpiGroup& group) {
      for (const char* precision : {"fp32", "bf16", "fp16"})
        for (const char* optim : {"adamw", "adamw_8bit"})
          check_mpi(group, {group.size() == 3 ? kLlama : kGpt2, precision, optim});
      Case c{kNeox, "bf16"};  // what is summed in 16 bits
      c.master = false;
      c.max_grad_norm = 0;
      c.in_backward = true;
      check_mpi(group, c);
      c = {kGpt2};
      c.streams = StreamMode::deferred;
      c.strict = true;
      check_mpi(group, c);
    });
}

// Kernels, NCCL's bytes and the same sums: the bits are those of ranks that read each other's memory.
void check_nccl(const Case& c, int ranks, int64_t windows) {
  test::use_fake_nccl();
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim +
                 ", ranks " + std::to_string(ranks) + ", zero " + std::to_string(zero));
    const Result here = train(c, ranks, zero, 1, windows, 2);
    const Result apart = train_in([&](const Body& f) { test::on_ranks(ranks, f); }, Mover::nccl, c,
                                  ranks, zero, 1, windows, 2);
    expect_same(apart, here);
    EXPECT_TRUE(test::same_bits(apart.states, here.states));
    EXPECT_FALSE(here.losses.empty() || here.weights.empty() || here.states.empty());
  }
}

TEST(RankSessions, NcclHasTheBitsOfSharedMemory) {
  Case c{kGpt2};
  c.place = Place::emu;
  for (const bool late : {false, true}) {
    c.streams = late ? StreamMode::deferred : StreamMode::immediate;
    c.strict = late;
    check_nccl(c, 2, 3);  // two micro-steps a window
  }
  c.model = kLlama, c.precision = "bf16", c.optim = "adamw_8bit";
  check_nccl(c, 3, 3);
}

TEST(SlowRankSessions, NcclOfEveryPrecisionAndRankCount) {
  for (const char* precision : {"fp32", "bf16", "fp16"})
    for (const char* optim : {"adamw", "adamw_8bit"})
      for (const int ranks : {2, 3, 4}) {
        Case c{ranks == 3 ? kLlama : kGpt2, precision, optim};
        c.place = Place::emu;
        check_nccl(c, ranks, ranks + 1);
      }
}

// States, gradients and weights of all ranks together are little more than those of one.
TEST(RankSessions, PiecesAddUpToTheWhole) {
  const Case c{
      R"({"type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 256, "n_layer": 2,
                   "n_head": 4})"};
  const Result one = train(c, 1, 0, 1, 1, 0);
  for (const int ranks : {2, 4}) {
    const Result r = train(c, ranks, 3, 1, ranks, 0);
    for (const char* what : {"weights", "gradients", "optimizer"})
      EXPECT_LT(static_cast<double>(r.kept.at(what) * ranks),
                1.02 * static_cast<double>(one.kept.at(what)))
          << what;
  }
}

}  // namespace
}  // namespace snug
