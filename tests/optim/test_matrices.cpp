// Optimizers that look at matrices, muon and adam_mini: the bits of every place, matrices side by side in
// one parameter, what of them is kept, and what is refused.
#include "engine/stores/plain_states.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

// Queries, keys and values in one; a row of padding; more elements than a chunk; a norm and biases.
ParamTable layers() {
  ParamTable table;
  table.add({.name = Name("wte"), .shape = {40, 24}, .rows = 37});
  table.add({.name = Name("ln.weight"), .shape = {24}, .group = kGroupNoDecay});
  table.add({.name = Name("ln.bias"), .shape = {24}, .group = kGroupNoDecay});
  table.add({.name = Name("qkv"), .shape = {32, 24}, .linear = true, .part = 0});
  table.add({.name = Name("qkv.bias"), .shape = {32}, .group = kGroupNoDecay, .part = 0});
  table.add({.name = Name("wide"), .shape = {5, 331}, .linear = true, .part = 0});
  table.add({.name = Name("tall"), .shape = {1030, 16}, .linear = true, .part = 0});
  return table;
}
std::vector<std::vector<OptimPiece>> pieces_of_layers() {
  return {{}, {}, {}, {{16, 4}, {8, 4}, {8}}, {}, {{5}}, {{1030}}};
}

struct Updates {
  const char* name;
  DType held = DType::f32, weights = DType::f32, gradient = DType::f32;
  bool found_inf = false;
  OptimArgs args = {};
  ParamTable table = layers();
  std::vector<std::vector<OptimPiece>> pieces = pieces_of_layers();

  OptimizerConfig config() const {
    OptimizerConfig c;
    c.name = name;
    c.weight_decay = 0.1;
    c.args = args;
    c.pieces = pieces;
    return c;
  }
  Body body() const {
    return [this](Case& c) {
      const auto optimizer = make_optimizer(config());
      const int64_t n = table.flat_elements();
      UpdateTargets t;
      t.master = c.inout("master", {n}, held, rounded(normal_values(n, 1), held));
      if (weights != DType::f32)
        t.weights = c.inout("weights", {n}, weights, Values(static_cast<size_t>(n), 7.0));
      PlainStateStore store(c.ctx(), table, optimizer->states(table));
      for (int64_t i = 0; i < 3; ++i) {
        t.gradients = c.input("gradients", {n}, gradient,
                              rounded(normal_values(n, static_cast<uint32_t>(10 + i)), gradient));
        StepState s = plain_state();
        s.seed = 42;
        s.step = s.updates = i;
        s.loss_scale = 4;
        s.clip_factor = 0.75f;
        s.found_inf = found_inf && i == 1;
        optimizer->prepare_step(s);
        optimizer->update(c.ctx(), t, store, c.step_state(s));
      }
    };
  }
};

class Matrices : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Matrices, ::testing::Values("muon", "adam_mini"),
                         [](const auto& i) { return std::string(i.param); });

// What the plan is told of a step of one matrix of 6 x 10 elements: counted by hand.
TEST_P(Matrices, SayWhatTheyComputeAndMove) {
  Updates u{.name = GetParam(), .gradient = DType::bf16};
  u.table = ParamTable();
  u.table.add({.name = Name("w"), .shape = {6, 10}, .linear = true, .part = 0});
  u.pieces = {{{6}}};
  const int64_t n = 60, steps = 3, muls = 5;  // Newton-Schulz in five rounds
  const Outputs out = run_on_plan_and_cpu({}, u.body());
  const auto expect_cost = [&](const char* op, int64_t flops, int64_t bytes) {
    SCOPED_TRACE(op);
    ASSERT_EQ(out.costs.count(op), 1u);
    EXPECT_EQ(out.costs.at(op).first, steps * flops);
    EXPECT_EQ(out.costs.at(op).second, steps * bytes);
  };
  if (u.name == std::string("adam_mini")) {
    // A second moment of each of the six rows: the gradient is read for it, and again for the
    // direction, which the first moment's reading and writing go along with.
    expect_cost("adam_mini_squares", 3 * n, 2 * n + 2 * 4 * 6);
    expect_cost("adam_mini_direction", 8 * n, 2 * n + 2 * 4 * n + 4 * n);
    return;
  }
  expect_cost("muon_momentum", 6 * n, 2 * n + 2 * 4 * n + 4 * n);
  expect_cost("muon_normalize", 3 * n, 2 * 4 * n + 4 * n);
  // X X^T, its square, and the product with X, of 6 rows and 10 columns.
  const int64_t round = 2 * 6 * 6 * 10 + 2 * 6 * 6 * 6 + 2 * 6 * 6 * 10;
  EXPECT_GE(out.costs.at("matmul").first, steps * muls * round);
  EXPECT_LE(out.costs.at("matmul").first, steps * muls * (round + 4 * 6 * 10));
}

TEST_P(Matrices, HaveTheSameBitsOnEveryPlace) {
  for (const auto& [held, weights] :
       {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::bf16),
        std::pair(DType::bf16, DType::f32)})
    for (const bool found_inf : {false, true}) {
      const Updates run{
          .name = GetParam(), .held = held, .weights = weights, .found_inf = found_inf};
      expect_equal_bits(run_on_emu(run.body()), run_in_all_modes(run.body()));
    }
}

// bf16 gradients are widened, which is exact.
TEST_P(Matrices, ReadGradientsInBf16) {
  const Updates rounded_ones{.name = GetParam(), .gradient = DType::bf16};
  EXPECT_NE(run_in_all_modes(rounded_ones.body())["master"],
            run_on_plan_and_cpu({}, Updates{.name = GetParam()}.body())["master"]);
}

TEST_P(Matrices, RefuseStatesThatDoNotRestInFp32) {
  for (const char* form : {"_8bit", "_bf16"}) {
    OptimizerConfig config;
    config.name = GetParam() + std::string(form);
    expect_error(ErrorCode::usage,
                 {GetParam(), " with states in fp32", "states in ", "optim=", GetParam()},
                 [&] { make_optimizer(config); });
  }
}

TEST_P(Matrices, RefuseParametersInPieces) {
  const Updates run{.name = GetParam()};
  const auto optimizer = make_optimizer(run.config());
  expect_error(ErrorCode::unsupported,
               {"matrices in one piece for ", GetParam(), "a cut of parameter 3",
                "a store that the optimizer's states() made"},
               [&] {
                 run_on_plan_and_cpu({}, [&](Case& c) {
                   const View flat = c.inout("master", {1024}, DType::f32, Values(1024, 0.5));
                   CaseStore store({{3, 0, 0, 256}, {3, 0, 256, 512}}, {flat, flat});
                   store.seconds = 3;
                   optimizer->update(c.ctx(), {flat, {}, flat}, store, c.step_state(plain_state()));
                 });
               });
}

// Of embeddings, norms and biases two.
TEST(MatricesOfMuon, HaveOneState) {
  const ParamTable table = layers();
  const StateSet set = make_optimizer(Updates{.name = "muon"}.config())->states(table);
  EXPECT_TRUE(set.whole);
  EXPECT_EQ(set.bytes_of(0, 37 * 24), 8 * 37 * 24);
  EXPECT_EQ(set.bytes_of(1, 24), 8 * 24);
  EXPECT_EQ(set.bytes_of(3, 32 * 24), 4 * 32 * 24);
  EXPECT_EQ(set.bytes_of(6, 1030 * 16), 4 * 1030 * 16);
}

TEST(BlocksOfAdamMini, HaveANumberEach) {
  const ParamTable table = layers();
  const StateSet set = make_optimizer(Updates{.name = "adam_mini"}.config())->states(table);
  EXPECT_TRUE(set.whole);
  EXPECT_EQ(set.bytes_of(0, 37 * 24), 4 * (37 * 24 + 37));
  EXPECT_EQ(set.bytes_of(1, 24), 4 * (24 + 1));
  EXPECT_EQ(set.bytes_of(2, 24), 8 * 24);
  EXPECT_EQ(set.bytes_of(3, 32 * 24), 4 * (32 * 24 + 4 + 2 + 8));
  EXPECT_EQ(set.bytes_of(6, 1030 * 16), 4 * (1030 * 16 + 1030));
}

// Side by side in one parameter they are updated as alone, bit for bit.
TEST_P(Matrices, SideBySideAreAsAlone) {
  ParamTable joined, apart;
  joined.add({.name = Name("w"), .shape = {32, 32}, .linear = true, .part = 0});
  for (const int64_t rows : {16, 8, 8})  // multiples of 256 elements: the same places
    apart.add({.name = Name("w" + std::to_string(apart.size())),
               .shape = {rows, 32},
               .linear = true,
               .part = 0});
  const Updates one{.name = GetParam(), .table = joined, .pieces = {{{16, 8}, {8, 8}, {8}}}};
  const Updates three{.name = GetParam(), .table = apart, .pieces = {{{16, 8}}, {{8, 8}}, {{8}}}};
  const Values whole = run_on_plan_and_cpu({}, one.body())["master"];
  EXPECT_EQ(whole, run_on_plan_and_cpu({}, three.body())["master"]);
  const Updates no_pieces{.name = GetParam(), .table = joined, .pieces = {{{32}}}};
  EXPECT_NE(whole, run_on_plan_and_cpu({}, no_pieces.body())["master"]);
}

// With exact arithmetic all singular values of a step would be near 1; the published coefficients put them
// between 0.68 and 1.13. Of rows that are orthogonal, the step of the first update is each row at a length.
TEST(MatricesOfMuon, GoAlongRowsOfEqualLength) {
  ParamTable table;
  table.add({.name = Name("w"), .shape = {4, 64}, .linear = true, .part = 0});
  OptimizerConfig config;
  config.name = "muon";
  config.pieces = {{{4}}};
  Values gradient(256, 0.0);
  for (size_t row = 0; row < 4; ++row)
    for (size_t j = 0; j < 16; ++j)
      gradient[row * 64 + row * 16 + j] = j % 3 == 0 ? 0.5 * (row + 1.0) : -0.25 * (row + 1.0);
  for (const double bf16_products : {0.0, 1.0}) {
    config.args = {{"ns_bf16", bf16_products}};
    const auto optimizer = make_optimizer(config);
    const Outputs out = run_in_all_modes([&](Case& c) {
      const View master = c.inout("master", {256}, DType::f32, Values(256, 0.0));
      const View g = c.input("gradients", {256}, DType::f32, gradient);
      PlainStateStore store(c.ctx(), table, optimizer->states(table));
      StepState s = plain_state(1.0);
      optimizer->prepare_step(s);
      optimizer->update(c.ctx(), {master, {}, g}, store, c.step_state(s));
    });
    const Values p = out["master"];
    for (size_t row = 0; row < 4; ++row) {
      double length = 0;
      for (size_t j = 0; j < 64; ++j) length += p[row * 64 + j] * p[row * 64 + j];
      EXPECT_GT(std::sqrt(length), 0.67) << row;
      EXPECT_LT(std::sqrt(length), 1.14) << row;
      EXPECT_LT(p[row * 64 + row * 16] * gradient[row * 64 + row * 16], 0) << row;
    }
  }
}

TEST(MatricesOfMuon, RefuseSettingsThatAreNone) {
  const auto refused = [](OptimArgs args, std::initializer_list<const char*> words) {
    OptimizerConfig config;
    config.name = "muon";
    config.args = std::move(args);
    expect_error(ErrorCode::usage, words, [&] { make_optimizer(config); });
  };
  refused({{"ns_steps", 2.5}}, {"a whole number of ns_steps", "ns_steps: 2.5", "ns_steps=5"});
  refused({{"ns_bf16", 0.5}}, {"ns_bf16 of optim_args as 0 or 1", "ns_bf16: 0.5"});
  refused({{"momentum", 1}}, {"momentum", "1"});
  OptimizerConfig config;
  config.name = "muon";
  config.learning_rate = 0;
  config.args = {{"aux_lr", 1e-3}};
  expect_error(ErrorCode::usage, {"a learning_rate above 0 beside aux_lr", "aux_lr: 0.001"},
               [&] { make_optimizer(config); });
}

}  // namespace
}  // namespace snug::test
