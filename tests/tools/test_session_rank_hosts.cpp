// Ranks whose states, weights or gradients rest with the host of each: the bits are those of what stays.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parallel/nccl.h"
#include "tests/parallel/ranks.h"
#include "tests/tools/rank_session_case.h"

namespace snug {
namespace {

using test::expect_same;
using test::kGpt2;
using test::kLlama;
using test::kNeox;
using Case = test::RankCase;
using Result = test::RankResult;

Result train(const Case& c, int ranks, int zero, int64_t micro, int64_t G, int64_t steps = 3) {
  return test::train_ranks(c, ranks, zero, micro, G, steps);
}

// With the host of each rank: the bits are those of states that stay, whatever is summed when.
TEST(RankSessions, StatesWithTheHost) {
  const auto check_case = [](Case c, int ranks) {
    SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks));
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE("zero " + std::to_string(zero));
      c.away = false;
      const Result here = train(c, ranks, zero, 1, 2 * ranks);
      c.away = true;
      const Result away = train(c, ranks, zero, 1, 2 * ranks);
      EXPECT_TRUE(test::same_bits(away.losses, here.losses));
      EXPECT_TRUE(test::same_bits(away.norms, here.norms));
      EXPECT_TRUE(test::same_bits(away.weights, here.weights));
      EXPECT_TRUE(test::same_bits(away.states, here.states));
      EXPECT_FALSE(away.kept.contains("optimizer") || away.kept.contains("master"));
    }
  };
  check_case({kGpt2, "fp32", "adamw", "block"}, 2);
  check_case({kLlama, "bf16"}, 3);
  check_case({kNeox, "bf16", "adamw", "none", Place::cpu, 0.5, false}, 2);
  check_case({kGpt2, "fp32", "adamw_8bit"}, 2);
  check_case({kLlama, "bf16", "adamw_8bit", "block"}, 3);
  Case c{kGpt2, "fp16", "lion"};
  c.place = Place::emu;
  check_case(c, 2);
  c.optim = "adamw_8bit";
  check_case(c, 2);
}

// Weights and gradients of blocks with the host of each rank, whole ones or its pieces, and updates there; with
// several micro-steps a window, whose gradients come back to be added to.
void check_homes(Case c, int ranks, const std::vector<int>& stages = {0, 1, 2, 3},
                 const std::vector<StreamMode>& modes = {
                     StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
  SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks) +
               (c.away ? ", states" : "") + (c.params_away ? ", weights" : "") +
               (c.gradients_away ? ", gradients" : "") + (c.host_updates ? ", updates" : ""));
  Case here = c;
  here.away = here.params_away = here.gradients_away = here.host_updates = false;
  for (const int zero : stages)
    for (const int64_t micro_steps : {1, 3}) {
      if (c.in_backward && micro_steps > 1) continue;
      const Result stays = train(here, ranks, zero, 1, micro_steps * ranks);
      for (const bool in_turn : {false, true})
        for (const StreamMode mode : modes)
          for (const bool strict : {false, true}) {
            if (strict != (mode == StreamMode::deferred)) continue;
            SCOPED_TRACE("zero " + std::to_string(zero) + ", " + std::to_string(micro_steps) +
                         " micro-steps, " + to_string(mode) + (in_turn ? ", in turn" : "") +
                         (strict ? ", strict" : ""));
            c.in_turn = in_turn;
            c.streams = mode;
            c.strict = strict;
            const Result away = train(c, ranks, zero, 1, micro_steps * ranks);
            expect_same(away, stays);
            EXPECT_TRUE(test::same_bits(away.states, stays.states));
            const auto kept = [](const Result& r, const char* what) {
              const auto found = r.kept.find(what);
              return found == r.kept.end() ? 0 : found->second;
            };
            EXPECT_EQ(kept(away, "weights") < kept(stays, "weights"), c.params_away);
            EXPECT_EQ(kept(away, "gradients") < kept(stays, "gradients"), c.gradients_away);
            EXPECT_EQ(kept(away, "optimizer") + kept(away, "master") == 0, c.away);
          }
    }
}

TEST(RankSessions, GradientsWithTheHost) {
  Case c{kGpt2, "fp32", "adamw", "block"};
  c.gradients_away = true;
  check_homes(c, 2);
  c.precision = "bf16";
  c.away = true;
  check_homes(c, 3, {0, 1, 2, 3}, {StreamMode::deferred});
  c = {kLlama, "fp16", "adamw_8bit"};
  c.away = c.gradients_away = true;
  check_homes(c, 3, {1, 2}, {StreamMode::worker});
}

TEST(RankSessions, WeightsWithTheHost) {
  for (const char* precision : {"fp32", "bf16"}) {
    Case c{kGpt2, precision, "adamw", "block"};
    c.away = c.params_away = true;
    check_homes(c, 2);
    c.gradients_away = true;
    check_homes(c, 2, {0, 1, 2, 3}, {StreamMode::deferred});
  }
  Case c{kLlama, "fp16", "adamw_8bit"};
  c.away = c.params_away = c.gradients_away = true;
  check_homes(c, 3, {0, 1, 2, 3}, {StreamMode::worker});
  c = {kNeox, "bf16", "adamw", "none", Place::cpu, 0.5, false};  // no master
  c.away = c.params_away = true;
  check_homes(c, 2, {1, 3}, {StreamMode::deferred});
}

// A block's pieces are updated as backward leaves it, while its weights are on their way out.
TEST(RankSessions, WeightsWithTheHostUpdatedInBackward) {
  for (const char* precision : {"fp32", "bf16"}) {
    Case c{kGpt2, precision, "adamw", "block"};
    c.max_grad_norm = 0;
    c.away = c.params_away = true;
    Case behind = c;
    c.in_backward = true;
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::string(precision) + ", zero " + std::to_string(zero));
      const Result b = train(behind, 2, zero, 1, 2), in = train(c, 2, zero, 1, 2);
      EXPECT_TRUE(test::same_bits(in.losses, b.losses));
      EXPECT_TRUE(test::same_bits(in.weights, b.weights));
      EXPECT_TRUE(test::same_bits(in.states, b.states));
    }
  }
}

TEST(RankSessions, UpdatesByTheHost) {
  Case c{kGpt2, "bf16", "adamw"};
  c.place = Place::emu;
  c.away = c.gradients_away = c.host_updates = true;
  check_homes(c, 2, {0, 1, 2, 3}, {StreamMode::deferred});
  c.precision = "fp32";
  c.params_away = true;
  check_homes(c, 2, {2, 3}, {StreamMode::deferred});
}

TEST(SlowRankSessions, UpdatesByTheHostOfEveryForm) {
  struct Form {
    const char *precision, *optim;
    bool params;
  };
  for (const Form& f : {Form{"fp32", "adamw_8bit", false},
                        {"bf16", "adamw", false},
                        {"fp16", "lion", false},
                        {"fp32", "lion", true},
                        {"bf16", "adamw_8bit", true},
                        {"fp16", "adamw", true}}) {
    const int ranks = *f.optim == 'l' ? 3 : 2;
    Case c{ranks == 3 ? kLlama : kNeox, f.precision, f.optim, "block"};
    c.place = Place::emu;
    c.away = c.gradients_away = c.host_updates = true;
    c.params_away = f.params;
    check_homes(c, ranks, {1, 2, 3}, {StreamMode::deferred});
  }
  Case c{kGpt2, "bf16", "adamw", "none", Place::emu, 0.5, false};  // no master
  c.away = c.gradients_away = c.host_updates = true;
  check_homes(c, 2, {1, 2, 3}, {StreamMode::worker});
}

// One step late: those of one rank, which have a truth of their own, up to the order of sums; whatever ranks
// share, the same bits.
TEST(RankSessions, UpdatesOneStepLate) {
  for (const char* precision : {"fp32", "bf16"}) {
    Case c{kGpt2, precision, *precision == 'b' ? "adamw_8bit" : "adamw", "block"};
    c.streams = StreamMode::worker;
    c.away = c.gradients_away = c.host_updates = true;
    const Result at_once = train(c, 2, 0, 1, 4, 4);
    c.late = true;
    for (const int64_t windows : {2, 4}) {
      const Result whole = train(c, 2, 0, 1, windows, 4);
      test::expect_close(whole, train(c, 1, 0, 1, windows, 4), *precision == 'f');
      EXPECT_FALSE(test::same_bits(whole.weights, at_once.weights));
      std::vector<Result> of_stage = {whole};
      for (const int zero : {1, 2, 3}) {
        SCOPED_TRACE(std::string(precision) + ", zero " + std::to_string(zero));
        of_stage.push_back(train(c, 2, zero, 1, windows, 4));
        if (zero == 1 || zero == 3 || windows == 2)
          expect_same(of_stage.back(), of_stage[zero == 3 && windows > 2 ? 2 : 0]);
        else
          test::expect_close(of_stage.back(), whole, *precision == 'f');
        Case strict = c;
        strict.streams = StreamMode::deferred;
        strict.strict = true;
        const Result again = train(strict, 2, zero, 1, windows, 4);
        expect_same(again, of_stage.back());
        EXPECT_TRUE(test::same_bits(again.states, of_stage.back().states));
      }
    }
  }
}

// Kernels of devices that NCCL joins.
TEST(RankSessions, NcclHasTheBitsOfWhatStays) {
  test::use_fake_nccl();
  for (const char* precision : {"fp32", "bf16"})
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(std::string(precision) + ", zero " + std::to_string(zero));
      Case c{kGpt2, precision, "adamw", "block"};
      c.place = Place::emu;
      c.streams = StreamMode::deferred;
      const Result stays = train(c, 2, zero, 1, 4, 2);
      c.strict = true;
      c.away = c.params_away = c.gradients_away = c.host_updates = true;
      const Result away = test::train_in([&](const test::RankBody& f) { test::on_ranks(2, f); },
                                         test::Mover::nccl, c, 2, zero, 1, 4, 2);
      expect_same(away, stays);
      EXPECT_TRUE(test::same_bits(away.states, stays.states));
    }
}

}  // namespace
}  // namespace snug
