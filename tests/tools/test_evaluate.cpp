// Evaluation batch by batch: the last one, which samples do not fill, counts what it holds and
// nothing that stood in the buffers before; the loss is that of the formulas in double.
#include <gtest/gtest.h>

#include <limits>

#include "engine/data/dataset.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/reference/gpt2.h"
#include "tests/tools/session_case.h"
#include "tools/infer/evaluate.h"

namespace snug {
namespace {

constexpr int64_t kT = 8, kSamples = 6;
const test::Tiny kModel{.V = 61, .P = 24, .C = 12, .L = 2, .H = 2, .F = 20};

test::RunOptions options_of(int64_t batch, bool documents) {
  test::RunOptions o;
  o.decisions.T = kT;
  o.decisions.head_rows = 7;
  o.decisions.micro_batch = 1;
  o.decisions.eval_batch = batch;
  o.decisions.packing_boundaries = documents;
  o.global_batch = 1;
  return o;
}

// Six windows of eight tokens and a target, in documents of 5, 10, 15, 19.
WindowDataset dataset_in(const std::string& path) {
  TokenFileWriter writer(path, kModel.V, 1);
  int32_t id = 7;
  for (const int count : {5, 10, 15, 19}) {
    for (int i = 0; i < count; ++i) {
      id = static_cast<int32_t>((id * 31 + 5) % kModel.V);
      writer.append(&id, 1);
    }
    writer.end_document();
  }
  writer.commit();
  std::vector<TokenFile> files;
  files.emplace_back(path);
  return WindowDataset(std::move(files), kT, {.shuffle = false});
}

// What no batch may read: an evaluation before may have left anything.
void spoil(Session& session, int64_t batch) {
  std::fill_n(session.tokens().as<int32_t>(), batch * kT, -5);
  std::fill_n(session.targets().as<int32_t>(), batch * kT, 3);
  if (int32_t* starts = session.document_start_or_null()) std::fill_n(starts, batch * kT, -9);
}

test::Gpt2Weights<double> weights_of(const Model& model, const View& master) {
  test::Gpt2Weights<double> weights;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const float* w = master.as<float>() + p.offset;
    const bool turned = p.transposed_in_file && p.shape.rank() == 2;
    std::vector<double>& out = weights[p.name.str()];
    for (int64_t k = 0; k < p.real_elements(); ++k)
      out.push_back(
          static_cast<double>(w[turned ? (k % p.shape[0]) * p.shape[1] + k / p.shape[0] : k]));
  }
  return weights;
}

TEST(Evaluate, ALastBatchThatIsNotFullCountsWhatItHolds) {
  const TempFolder tmp;
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  RunData data;
  data.eval.emplace(dataset_in(tmp / "x.bin"));
  data.eval_samples = data.eval->train_samples();
  ASSERT_EQ(data.eval_samples, kSamples);
  for (const bool documents : {false, true}) {
    std::vector<int32_t> tokens(kSamples * kT), targets(tokens), starts(tokens);
    data.fill_eval(0, kSamples, tokens.data(), targets.data(), documents ? starts.data() : nullptr);
    test::Gpt2Case c;
    c.L = kModel.L;
    c.C = kModel.C;
    c.F = kModel.F;
    c.H = kModel.H;
    c.V = kModel.V;
    c.B = kSamples;
    c.T = kT;
    c.tokens.assign(tokens.begin(), tokens.end());
    c.targets.assign(targets.begin(), targets.end());
    if (documents) c.document_start.assign(starts.begin(), starts.end());
    for (const int64_t batch : {1, 4, 5, 6, 9}) {
      SCOPED_TRACE(testing::Message() << batch << " a batch" << (documents ? ", documents" : ""));
      test::SessionRun run(model, options_of(batch, documents));
      spoil(run.session(), batch);
      const EvalResult got = evaluate_samples(run.session(), data, kSamples);
      const double want = test::gpt2_loss_reference(c, weights_of(model, run.session().master()));
      EXPECT_EQ(got.tokens, std::count_if(targets.begin(), targets.end(),
                                          [](int32_t id) { return id != -100; }));
      EXPECT_NEAR(got.loss, want, 1e-5 * want);
    }
    EXPECT_EQ(std::count(targets.begin(), targets.end(), -100), documents ? 3 : 0);
  }
}

// 49 tokens in windows of 8, one every 3: 7 of the first and 3 of each that follows, which begin at
// 3, 6, ... 42, the last one shorter. No batch size divides the 15 windows but 1 and 5.
TEST(Evaluate, SlidingWindowsInBatchesThatAreNotFull) {
  const TempFolder tmp;
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  const WindowDataset data = dataset_in(tmp / "x.bin");
  double alone = 0;
  for (const int64_t batch : {1, 4, 5, 16}) {
    test::SessionRun run(model, options_of(batch, false));
    spoil(run.session(), batch);
    const EvalResult got = evaluate_strided(run.session(), data, 3, 0);
    EXPECT_EQ(got.tokens, 48) << batch;
    if (batch == 1) alone = got.loss;
    EXPECT_NEAR(got.loss, alone, 1e-6 * alone) << batch;
    // Of so many windows the first scores all of its tokens but one, each after it the stride's.
    for (const int64_t most : {1, 2, 4, 5, 6})
      EXPECT_EQ(evaluate_strided(run.session(), data, 3, most).tokens, 7 + 3 * (most - 1))
          << batch << " " << most;
  }
}

TEST(Evaluate, APerplexityIsShortHoweverLarge) {
  EXPECT_EQ(perplexity_text(1, 4), "1.0000");
  EXPECT_EQ(perplexity_text(50257.126, 2), "50257.13");
  EXPECT_EQ(perplexity_text(999999999.5, 1), "999999999.5");
  EXPECT_EQ(perplexity_text(1e9, 4), "1.000e+09");
  EXPECT_EQ(perplexity_text(1.7e308, 4), "1.700e+308");
  EXPECT_EQ(perplexity_text(std::numeric_limits<double>::infinity(), 4), "above 1.8e+308");
  EXPECT_EQ(perplexity_text(-std::numeric_limits<double>::quiet_NaN(), 4), "nan");
}

}  // namespace
}  // namespace snug
