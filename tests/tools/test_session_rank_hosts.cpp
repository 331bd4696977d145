// Ranks whose states, weights or gradients rest with the host of each: the bits are those of what stays.
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

// Where each rank has all weights and gradients those of blocks may rest with its host too, and be updated there;
// with several micro-steps a window, of which the last sums them over ranks.
void check_whole(Case c, int ranks,
                 const std::vector<StreamMode>& modes = {
                     StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
  SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks) +
               (c.params_away ? ", weights" : "") + (c.gradients_away ? ", gradients" : "") +
               (c.host_updates ? ", updates" : ""));
  Case here = c;
  here.away = here.params_away = here.gradients_away = here.host_updates = false;
  for (const int64_t micro_steps : {1, 3}) {
    const Result stays = train(here, ranks, 0, 1, micro_steps * ranks);
    for (const bool in_turn : {false, true})
      for (const StreamMode mode : modes) {
        SCOPED_TRACE(std::to_string(micro_steps) + " micro-steps, " + to_string(mode) +
                     (in_turn ? ", in turn" : ""));
        c.in_turn = in_turn;
        c.streams = mode;
        const Result away = train(c, ranks, 0, 1, micro_steps * ranks);
        expect_same(away, stays);
        EXPECT_TRUE(test::same_bits(away.states, stays.states));
        EXPECT_EQ(away.kept.at("weights") < stays.kept.at("weights"), c.params_away);
        EXPECT_EQ(away.kept.at("gradients") < stays.kept.at("gradients"), c.gradients_away);
      }
  }
}

TEST(RankSessions, WeightsAndGradientsWithTheHost) {
  for (const char* precision : {"fp32", "bf16"})
    for (const bool params : {true, false}) {
      Case c{kGpt2, precision, "adamw", "block"};
      c.away = true;
      c.params_away = params;
      check_whole(c, 2);
      c.gradients_away = true;
      check_whole(c, 2);
    }
  Case c{kLlama, "fp16", "adamw_8bit"};
  c.away = c.params_away = c.gradients_away = true;
  check_whole(c, 3);
}

TEST(RankSessions, UpdatesByTheHost) {
  Case c{kGpt2, "bf16", "adamw"};
  c.place = Place::emu;
  c.away = c.gradients_away = c.host_updates = true;
  check_whole(c, 2, {StreamMode::deferred});
  c.precision = "fp32";
  c.params_away = true;
  check_whole(c, 2, {StreamMode::deferred});
}

}  // namespace
}  // namespace snug
