// Adapters against PEFT in float64 on models of four families: a new one changes nothing; loss,
// every gradient and ten AdamW steps of one that has learned; the same bits in every policy, packing
// and place; what is frozen costs nothing; files.
#include <gtest/gtest.h>

#include <map>

#include "engine/core/rng.h"
#include "tests/layers/models/peft_golden.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::error_of;
using test::expect_error;
using test::near;
using test::PeftGolden;
using test::PeftOptions;
using test::PeftRun;

class PeftGoldens : public testing::TestWithParam<const char*> {
 protected:
  PeftGolden golden_{GetParam()};
};

TEST_P(PeftGoldens, ANewAdapterChangesNothing) {
  const PeftGolden& g = golden_;
  if (!g.config.modules_to_save.empty() || g.config.bias != "none" || g.in_front() ||
      !adapter_method(g.config.method).of_peft)
    return;  // drawn, or as they were; or before all that is there; or nearly nothing at first
  PeftRun plain(g, PeftModel{}, {}), fresh(g, {.fresh = true});
  const double loss = fresh.step();
  if (g.file.find("first_loss")) {
    const double first = g.numbers("first_loss")[0];
    EXPECT_LT(std::fabs(loss - first) / first, 1e-5);
    return;
  }
  if (g.four_bits())
    EXPECT_NE(loss, plain.step());
  else
    EXPECT_EQ(loss, plain.step());
  EXPECT_LT(std::fabs(loss - g.base_loss()) / g.base_loss(), near(g).first_loss);
}

// A and B that are made of the weights: PEFT's, up to the sign that a singular pair has, a row of A and its
// column of B.
TEST_P(PeftGoldens, FirstWeightsAreThoseOfPeft) {
  const PeftGolden& g = golden_;
  if (!g.file.find("first_loss")) return;
  PeftRun fresh(g, {.fresh = true});
  std::map<std::string, std::vector<double>> sign_of;  // by module, of each row of A
  const auto compare = [&](bool rows) {
    fresh.compare(
        "first.", fresh.session().master().as<float>(),
        [&](const std::string& name, std::vector<double> got, const std::vector<double>& first) {
          if (name.ends_with(".lora_embedding_B")) return;  // drawn
          const bool a = name.ends_with(".lora_A.weight"), b = name.ends_with(".lora_B.weight");
          if (rows != a) return;
          std::vector<double>& signs = sign_of[name.substr(0, name.rfind(".lora_"))];
          if (a) {
            const auto r = static_cast<size_t>(g.file.at(name).shape[0]), in = got.size() / r;
            for (size_t i = 0; i < r; ++i) {
              double along = 0;
              for (size_t c = 0; c < in; ++c) along += got[i * in + c] * first[i * in + c];
              signs.push_back(g.config.init_lora_weights == "olora" || along > 0 ? 1 : -1);
              for (size_t c = 0; c < in; ++c) got[i * in + c] *= signs[i];
            }
          }
          for (size_t i = 0; b && i < got.size(); ++i) got[i] *= signs.at(i % signs.size());
          EXPECT_LT(error_of(got, first), 1e-5) << name;
        });
  };
  compare(true);
  compare(false);
  EXPECT_FALSE(sign_of.empty());
}

TEST_P(PeftGoldens, LossAndEveryGradientMatchFloat64) {
  const PeftGolden& g = golden_;
  const double expected = g.numbers("loss")[0];
  for (const char* recompute : {"none", "block"})
    for (const int64_t micro : {int64_t{0}, int64_t{1}}) {
      PeftRun run(g, {.recompute = recompute, .micro = micro});
      EXPECT_LT(std::fabs(run.step() - expected) / expected, near(g).first_loss);
      run.compare("grad.", run.flat_gradients(),
                  [&](const std::string& name, const auto& got, const auto& of_peft) {
                    EXPECT_LT(error_of(got, of_peft), near(g).first_gradient)
                        << name << " " << recompute << micro;
                  });
    }
}

TEST_P(PeftGoldens, TenAdamWStepsMatchPyTorch) {
  const PeftGolden& g = golden_;
  PeftRun run(g);
  const std::vector<double> losses = g.numbers("adamw_losses"),
                            norms = g.numbers("adamw_grad_norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    const double loss = run.step();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step],
              (step == 0 ? near(g).first_loss : near(g).loss))
        << "step " << step;
    const double norm = std::sqrt(run.session().state().grad_square_sum);
    EXPECT_LT(std::fabs(norm - norms[step]) / norms[step], near(g).norm) << "step " << step;
  }
}

TEST_P(PeftGoldens, EveryPolicyAndPackingHasTheSameBits) {
  const PeftGolden& g = golden_;
  for (const char* precision : {"fp32", "bf16"}) {
    PeftRun plain(g, {.precision = precision});
    EXPECT_EQ(plain.session().context().resident_bytes(), plain.schedule().arena_bytes());
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    const auto same = [&](const PeftOptions& o, const std::string& what) {
      PeftRun run(g, o);
      EXPECT_EQ(run.step(), loss) << precision << " " << what;
      EXPECT_EQ(run.gradients(), gradients) << precision << " " << what;
    };
    for (const char* recompute : {"norms", "mlp", "attention", "block"})
      same({.precision = precision, .recompute = recompute, .threads = 1}, recompute);
    for (const char* offload : {"inputs", "block"})
      same({.precision = precision, .offload = offload}, offload);
    for (const WeightPacking packed : {WeightPacking::forward, WeightPacking::both})
      same({.precision = precision, .packed = packed}, to_string(packed));
  }
}

TEST_P(PeftGoldens, EmulatedKernelsMatchFloat64) {
  const PeftGolden& g = golden_;
  PeftRun run(g, {.threads = 1, .place = Place::emu});
  EXPECT_EQ(run.session().context().resident_bytes(), run.schedule().arena_bytes());
  const std::vector<double> losses = g.numbers("adamw_losses");
  for (size_t step = 0; step < 2; ++step) {
    const double loss = run.step();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step],
              (step == 0 ? near(g).first_loss : near(g).loss))
        << "step " << step;
    if (step == 0)
      run.compare("grad.", run.flat_gradients(),
                  [&](const std::string& name, const auto& got, const auto& of_peft) {
                    EXPECT_LT(error_of(got, of_peft), near(g).first_gradient) << name;
                  });
    run.update();
  }
}

// The frozen base and the adapters come a layer at a time: every gradient has the same bits, and so
// has every loss after it, in which an update shows.
TEST_P(PeftGoldens, AStreamedBaseHasTheSameBits) {
  const PeftGolden& g = golden_;
  if (g.encoder) return;  // whose run has no such decisions
  for (const char* precision : {"fp32", "bf16"})
    for (const char* recompute : {"none", "block"}) {
      PeftRun plain(g, {.precision = precision, .recompute = recompute}),
          streamed(g, {.precision = precision, .recompute = recompute, .streamed = true});
      EXPECT_EQ(streamed.session().context().host_resident_bytes(),
                streamed.schedule().host_bytes());
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(plain.step(), streamed.step()) << precision << recompute << step;
        EXPECT_EQ(plain.gradients(), streamed.gradients()) << precision << recompute << step;
        plain.update();
        streamed.update();
      }
    }
}

// What is trained has gradients, masters and states, and nothing else has; a frozen product saves no
// input for its own sake.
TEST_P(PeftGoldens, WhatIsFrozenIsFree) {
  const PeftGolden& g = golden_;
  PeftRun run(g);
  const ParamTable& table = run.model().params();
  EXPECT_EQ(run.session().stores().flat_gradients().elements(), table.trained_elements());
  EXPECT_EQ(table.real_trained_elements(), g.peft.trained);
  for (int i = 0; i < table.size(); ++i) {
    const std::string name = table[i].name.str();
    EXPECT_EQ(table[i].trainable, !g.peft.frozen(name)) << name;
    EXPECT_TRUE(table[i].trainable || !is_adapter_name(name) || g.config.freeze_a ||
                is_shared_adapter_name(name))
        << name;
    if (!table[i].linear) continue;
    const std::string layer = name.substr(0, name.rfind('.'));
    if (!layer.ends_with("mlp.c_proj") || run.model().adapters().contains(layer)) continue;
    // Nobody else reads the activation.
    const Body& body = run.model().block(table[i].part).body();
    const int act = body.find_slot("act");
    EXPECT_EQ(body.backward_reader(act), -1) << name;
  }
}

// Masks in backward are those of forward, and no split of a batch sees others.
TEST_P(PeftGoldens, GradientsUnderDropoutAreSlopes) {
  const PeftGolden& g = golden_;
  PeftConfig config = g.config;
  if (!adapter_method(config.method).takes("lora_dropout")) return;  // which drop nothing
  if (config.codec == "int8") return;  // whose loss is one of steps: gradients are not its slopes
  config.lora_dropout = 0.3;
  const PeftModel peft = resolve_peft(g.spec(), config);
  PeftRun run(g, peft), split(g, peft, {.recompute = "block", .micro = 1});
  const double undropped = g.numbers("loss")[0], loss = run.step();
  const bool drops = std::any_of(peft.adapters.begin(), peft.adapters.end(),
                                 [](const auto& a) { return !a.second.table; });
  EXPECT_EQ(std::fabs(loss - undropped) / undropped > 1e-5, drops)
      << "nothing was dropped, or what is read of tables";
  if (!g.encoder) {
    EXPECT_LT(std::fabs(split.step() - loss) / loss, 1e-5);
  }
  const int64_t n = run.model().params().trained_elements();
  std::vector<float> gradient(static_cast<size_t>(n), 0.0f);
  for (int i = 0; i < run.model().params().size(); ++i) {
    const ParamInfo& p = run.model().params()[i];
    // The norm that DoRA holds constant makes those of A and B no slopes.
    const bool held = config.use_dora && p.name.view().find(".lora_") != std::string_view::npos &&
                      p.shape.rank() == 2;
    if (p.trainable && !held)
      std::copy_n(run.flat_gradients() + p.offset, p.elements(), gradient.begin() + p.offset);
  }
  double square = 0;
  for (const float x : gradient) square += static_cast<double>(x) * static_cast<double>(x);
  const double norm = std::sqrt(square), h = 2e-3;
  float* weights = run.session().master().as<float>();
  const std::vector<float> original(weights, weights + n);
  const auto loss_at = [&](double distance) {
    for (size_t i = 0; i < gradient.size(); ++i)
      weights[i] = static_cast<float>(static_cast<double>(original[i]) +
                                      distance * static_cast<double>(gradient[i]) / norm);
    return run.step();
  };
  const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
  EXPECT_NEAR(slope / norm, 1.0, 3e-3);
}

// What a run saves is what PEFT's folder held, and comes back with the same bits.
TEST_P(PeftGoldens, FilesComeBack) {
  const PeftGolden& g = golden_;
  if (g.encoder) return;  // whose run plans no saving
  PeftRun run(g);
  const TempFolder folder;
  const SafetensorsLayout layout = weights_layout(run.model(), DType::f32, "0123456789abcdef");
  run.session().save_model(folder / kAdapterWeights, layout);
  write_adapter_config(run.model(), g.config, folder.path());
  const SafetensorsReader saved(folder / kAdapterWeights);
  for (const SafeTensor& t : saved.tensors()) {
    const SafeTensor& of_peft = g.file.at(t.name);
    ASSERT_EQ(t.shape, of_peft.shape) << t.name;
    if (g.config.encoded && t.name == "prompt_embeddings") {  // which follows from the others
      EXPECT_LT(error_of(test::numbers_of(t), test::numbers_of(of_peft)), 1e-6);
      continue;
    }
    EXPECT_EQ(std::memcmp(t.data, of_peft.data, static_cast<size_t>(t.bytes)), 0) << t.name;
  }
  // The names in its config mean the same modules, and the file says how the base rested.
  EXPECT_EQ(trained_base_form(folder.path()), base_form(g.config));
  PeftConfig again = read_adapter_config(folder.path());
  EXPECT_EQ(resolve_peft(g.spec(), again).modules, g.peft.modules);
  PeftRun back(g, {.fresh = true});
  EXPECT_TRUE(back.load(folder.path()).empty());
  EXPECT_EQ(back.step(), run.step());
  expect_error(ErrorCode::data,
               {"the base that", "weights 0123456789abcdef", "another one, weights fedc"}, [&] {
                 load_adapter(back.session().context(), back.model(), folder.path(),
                              back.session().resting(), "fedc");
               });
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PeftGoldens,
                         testing::Values("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l",
                                         "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x",
                                         "y", "z", "aa", "ab", "ac", "ad", "ae", "af", "ag", "ah",
                                         "ai", "aj", "ak", "al", "am", "an", "ao", "ap", "aq", "ar",
                                         "as", "at", "au", "av", "aw", "ax", "ay", "az", "ba", "bb",
                                         "bc", "bd", "be", "bf", "bg", "bh", "bi", "bj", "bk", "bl",
                                         "bm", "bn", "bo", "bp", "ma", "mb", "mc", "md", "me", "mf",
                                         "mg", "ea", "eb", "ec", "ed", "ee"),
                         [](const auto& named) { return std::string(named.param); });

// A folder of PEFT's has the rows that an encoder made, and not the encoder: they are what a run that goes on
// trains, and what the others read.
TEST(Peft, RowsOfAnEncoderAreReadAlone) {
  for (const char* name : {"as", "at", "au", "ay", "az", "bm", "bn", "bo", "bp"}) {
    SCOPED_TRACE(name);
    PeftGolden g(name);
    g.config.encoded = false;
    g.peft = resolve_peft(g.spec(), g.config);
    PeftRun run(g);
    const double expected = g.numbers("loss")[0];
    EXPECT_LT(std::fabs(run.step() - expected) / expected, 1e-5);
    EXPECT_EQ(run.model().params().real_trained_elements(),
              g.file.at("prompt_embeddings").elements());
  }
}

// Of several patterns that fit a module the first of the file counts, as in PEFT.
TEST(Peft, TheFirstPatternCounts) {
  const PeftGolden g("c");
  PeftConfig config;
  config.lora_r = 4;
  config.target_modules = {"q_proj"};
  config.alpha_pattern = {{"layers.0.self_attn.(q|v)_proj", 32.0}, {"(q|k)_proj", 4.0}};
  config.rank_pattern = {{"self_attn.q_proj", 2}, {"q_proj", 3}};
  const PeftModel peft = resolve_peft(g.spec(), config);
  std::vector<float> scales;
  for (const auto& [layer, adapter] : peft.adapters) {
    EXPECT_EQ(adapter.rank(), 2) << layer;
    scales.push_back(adapter.pieces.front().scale);
  }
  EXPECT_EQ(scales, (std::vector<float>{16, 2}));
}

// One regular expression means all modules that it fits as a whole, and is met by any of them.
TEST(Peft, AnExpressionIsMetByAModule) {
  const PeftGolden g("c");
  PeftConfig config;
  config.target_expression = true;
  config.target_modules = {".*\\.[01]\\.self_attn\\.(q|v)_proj"};
  EXPECT_EQ(resolve_peft(g.spec(), config).adapters.size(), 2u);
  config.target_modules = {".*\\.1\\.self_attn\\.q_proj"};
  EXPECT_EQ(resolve_peft(g.spec(), config).adapters.size(), 1u);
  for (const char* nothing : {".*\\.self_attn\\.z_proj", "self_attn\\.q_proj"}) {
    config.target_modules = {nothing};
    EXPECT_THROW(resolve_peft(g.spec(), config), Error) << nothing;
  }
}

// Modules that are one parameter here are drawn as one, which ranks of their own would change.
TEST(Peft, ModulesOfOneLayerAreDrawnByOneRank) {
  const PeftGolden g("c");
  for (const int64_t other : {2, 8}) {
    PeftConfig config;
    config.lora_r = 4;
    config.target_modules = {"q_proj", "k_proj"};
    config.rank_pattern = {{"k_proj", other}};
    EXPECT_EQ(resolve_peft(g.spec(), config).adapters.begin()->second.rank(), 4 + other);
    config.init_lora_weights = "gaussian";
    const std::string found = "gaussian, and ranks 4 and " + std::to_string(other);
    expect_error(
        ErrorCode::unsupported,
        {"modules of one layer have ranks of their own", found.c_str(), "init_lora_weights=true"},
        [&] { resolve_peft(g.spec(), config); });
  }
}

TEST(Peft, TokensInFrontAreTheMostOfAnyLayer) {
  const std::vector<std::vector<int64_t>> cases = {{},        {0, 0},    {3},
                                                   {3, 5, 0}, {5, 3, 1}, {0, 2, 7}};
  for (const std::vector<int64_t>& fronts : cases) {
    Adapters adapters;
    int64_t most = 0;
    for (size_t i = 0; i < fronts.size(); ++i) {
      adapters["h." + std::to_string(i)].front = fronts[i];
      most = std::max(most, fronts[i]);
    }
    EXPECT_EQ(front_tokens(adapters), most) << testing::PrintToString(fronts);
  }
}

}  // namespace
}  // namespace snug
