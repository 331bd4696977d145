// A training step under dropout against the formulas in double, with the same masks: the loss, and
// the derivative of the loss along one direction a parameter. A mask that backward draws otherwise
// than forward (another site, sample or step) shows in every parameter before it.
#include "tests/layers/models/gpt2_golden.h"
#include "tests/support/reference/gpt2.h"

namespace snug::test {
namespace {

constexpr uint64_t kSeed = 9;
constexpr int64_t kStep = 4;

// Three rates, so that one in another's place shows.
Golden dropped(const char* fixture) {
  Golden g(fixture);
  g.spec.embedding_dropout = 0.2f;
  g.spec.attention_dropout = 0.3f;
  g.spec.residual_dropout = 0.25f;
  return g;
}

Gpt2Case case_of(const Golden& g) {
  Gpt2Case c;
  c.L = g.spec.L;
  c.C = g.spec.C;
  c.F = g.spec.F;
  c.H = g.spec.H;
  c.V = g.spec.V;
  c.B = g.B;
  c.T = g.T;
  c.epsilon = parse_json(g.file.metadata().at("config"), g.path).at("layer_norm_epsilon");
  c.tied = g.spec.tied;
  c.erf = g.spec.activation == Activation::gelu_erf;
  for (const int64_t id : g.integers("input_ids")) c.tokens.push_back(static_cast<double>(id));
  for (const int64_t id : g.integers("targets")) c.targets.push_back(static_cast<double>(id));
  c.document_start.assign(g.starts.begin(), g.starts.end());
  c.embedding_dropout = g.spec.embedding_dropout;
  c.attention_dropout = g.spec.attention_dropout;
  c.residual_dropout = g.spec.residual_dropout;
  c.seed = kSeed;
  c.step = kStep;
  return c;
}

// 1 or -1 for element i.
double sign(size_t i) {
  return mix64(i) & 1 ? 1 : -1;
}

struct Truth {
  explicit Truth(const Golden& g) {
    const Model model(g.spec, parse_precision("fp32"));
    const Gpt2Case c = case_of(g);
    Gpt2Weights<Complex> weights;
    const auto key = [&](int i) {
      const std::string name = g.name_of(model.params()[i]), prefix = "transformer.";
      return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    };
    for (int i = 0; i < model.params().size(); ++i)
      weights[key(i)] = widen<Complex>(g.numbers(g.name_of(model.params()[i])));
    loss = gpt2_loss_reference(c, weights).real();
    for (int i = 0; i < model.params().size(); ++i) {
      std::vector<Complex>& w = weights.at(key(i));
      const std::vector<Complex> before = w;
      for (size_t k = 0; k < w.size(); ++k) w[k] += Complex(0, sign(k) * kComplexStep);
      slopes.push_back(gpt2_loss_reference(c, weights).imag() / kComplexStep);
      w = before;
    }
  }
  double loss = 0;
  std::vector<double> slopes;  // of each parameter, along its signs
};

// An element of a gradient errs by up to 1e-5 of the largest, as without dropout; the sum of n such
// with signs by sqrt(n) of it.
void expect_truth(const Golden& g, const Truth& truth, GoldenRun& run) {
  EXPECT_LT(std::fabs(run.step_gradients(kSeed, kStep) - truth.loss) / truth.loss, 1e-5);
  for (int i = 0; i < run.model.params().size(); ++i) {
    const std::vector<double> got = run.gradient(i);
    double slope = 0, largest = 0;
    for (size_t k = 0; k < got.size(); ++k) {
      slope += sign(k) * got[k];
      largest = std::max(largest, std::fabs(got[k]));
    }
    EXPECT_NEAR(slope, truth.slopes[static_cast<size_t>(i)],
                1e-5 * largest * std::sqrt(static_cast<double>(got.size())))
        << g.name_of(run.model.params()[i]);
  }
}

void expect_every_run(const Golden& g) {
  const Truth truth(g);
  struct Row {
    const char* recompute;
    int64_t micro;
    Place place;
  };
  for (const Row& row :
       {Row{"none", g.B, Place::cpu}, Row{"block", 1, Place::cpu}, Row{"none", 1, Place::emu}}) {
    SCOPED_TRACE(testing::Message() << to_string(row.place) << " " << row.recompute << " "
                                    << row.micro << " a micro-batch");
    GoldenRun run(g, "fp32", row.recompute, row.micro, 1, row.place);
    expect_truth(g, truth, run);
  }
}

TEST(Gpt2Dropout, LossAndGradientsMatchTheFormulas) {
  expect_every_run(dropped("gpt2_a"));
}

// Documents that begin inside a row, in both rows elsewhere.
TEST(Gpt2Dropout, AlsoWhereDocumentsAreKeptApart) {
  Golden g = dropped("gpt2_a");
  for (int64_t b = 0; b < g.B; ++b)
    for (int64_t t = 0; t < g.T; ++t) g.starts.push_back(t >= 5 + b ? 5 + b : 0);
  expect_every_run(g);
}

// The judge without dropout is judged by transformers.
TEST(Gpt2Dropout, TheFormulasAreThoseOfTransformers) {
  for (const char* fixture : {"gpt2_a", "gpt2_d", "gpt2_f"}) {
    const Golden g(fixture);
    const Truth truth(g);
    const double loss = g.numbers("loss")[0];
    EXPECT_NEAR(truth.loss, loss, 1e-12 * loss) << fixture;
    const Model model(g.spec, parse_precision("fp32"));
    for (int i = 0; i < model.params().size(); ++i) {
      const std::vector<double> expected = g.numbers("grad." + g.name_of(model.params()[i]));
      double slope = 0, size = 0;
      for (size_t k = 0; k < expected.size(); ++k) {
        slope += sign(k) * expected[k];
        size += std::fabs(expected[k]);
      }
      EXPECT_NEAR(truth.slopes[static_cast<size_t>(i)], slope, 1e-12 * size + 1e-15)
          << fixture << " " << g.name_of(model.params()[i]);
    }
  }
}

}  // namespace
}  // namespace snug::test
