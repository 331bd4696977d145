// Rows of tokens against Hugging Face transformers in float64, each row alone there: JSONL to rows, to windows of
// several widths, to loss, every gradient and ten AdamW steps; recompute, micro-batches and the emulated kernels.
#include <gtest/gtest.h>

#include "engine/data/row_packing.h"
#include "engine/data/row_reader.h"
#include "tests/engine/data/row_case.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/support/emu.h"

namespace snug {
namespace {

using test::Golden;
using test::GoldenRun;

// The rows as a tokenised data set has them: without labels where they are the tokens, one row padded.
std::string rows_as_json(const Golden& g) {
  const auto lengths = g.integers("row_lengths"), ids = g.integers("input_ids"),
             labels = g.integers("labels");
  std::string text;
  int64_t at = 0;
  for (const int64_t n : lengths) {
    std::vector<int64_t> row(ids.begin() + at, ids.begin() + at + n),
        targets(labels.begin() + at, labels.begin() + at + n), mask;
    at += n;
    const bool plain = row == targets;
    if (n == 9) {
      mask.assign(row.size(), 1);
      for (std::vector<int64_t>* v : {&row, &targets, &mask})
        v->resize(12, v == &targets ? -100 : 0);
    }
    nlohmann::json j = {{"input_ids", row}};
    if (!plain) j["labels"] = targets;
    if (!mask.empty()) j["attention_mask"] = mask;
    text += j.dump() + "\n";
  }
  return text;
}

struct RowRun : GoldenRun {
  RowRun(const Golden& g, const char* precision, const std::string& recompute, int64_t micro,
         int threads = 2, Place place = Place::cpu)
      : GoldenRun(g, precision, recompute, micro, threads, place), data(rows(g)) {}

  // All rows are one step, whose order is nobody's business.
  RowDataset rows(const Golden& g) {
    const std::string json = test::put(tmp, "rows.jsonl", rows_as_json(g));
    const RowReport report = write_rows(
        {{json, true}}, nullptr,
        {.kind = RowKind::causal, .max_length = g.T, .vocab_size = g.spec.V}, tmp / "rows.rows");
    EXPECT_EQ(report.unlabelled, 2);
    return RowDataset(RowFile(tmp / "rows.rows"),
                      {.T = g.T,
                       .global_batch = static_cast<int64_t>(g.integers("row_lengths").size()),
                       .shift_labels = true});
  }
  double step() {
    EXPECT_EQ(data.trained(0), golden.trained);
    session->begin_window(1, 0, data.trained(0));
    const int64_t M = session->decisions().micro_batch;
    for (int64_t first = 0; first < data.windows(0); first += M) {
      const RowExtent e = data.extent(0, first, M);
      const Session::Extent in_use = session->fit(false, e.windows, e.tokens);
      if (!whole) session->use(in_use);
      data.fill(0, first, M,
                {.tokens = session->tokens().as<int32_t>(),
                 .document_start = session->document_start_or_null(),
                 .targets = session->targets().as<int32_t>(),
                 .stride = whole ? 0 : in_use.tokens});
      session->state().first_sample = first;
      session->micro(first == 0);
    }
    EXPECT_EQ(session->state().loss_tokens, golden.trained);
    return session->state().loss_sum / static_cast<double>(session->state().loss_tokens);
  }

  TempFolder tmp;
  RowDataset data;
  bool whole = false;  // windows run as planned, with their empty ends
};

class RowGoldens : public testing::TestWithParam<const char*> {
 protected:
  // Tokens of a window: as many as the longest row has, or more where positions are not learned.
  int64_t wide() const { return golden_.type == "gpt2" ? 16 : 23; }
  Golden& at(int64_t T) {
    golden_.T = T;
    return golden_;
  }
  Golden golden_{std::string("rows_") + GetParam()};
};

TEST_P(RowGoldens, LossAndEveryGradientMatchEachRowAlone) {
  const double expected = golden_.numbers("loss")[0];
  for (const int64_t T : {16, 23, 64})
    for (const char* recompute : {"none", "block"})
      for (const int64_t micro : {1, 3}) {
        if (T > 16 && golden_.type == "gpt2") continue;  // the positions of its longest row
        const Golden& g = at(T);
        RowRun run(g, "fp32", recompute, micro);
        EXPECT_EQ(run.data.windows(0), T == 64 ? 1 : T == 23 ? 3 : 4);
        run.whole = recompute == std::string("block") && micro == 3;
        EXPECT_LT(std::fabs(run.step() - expected) / expected, 1e-5) << T;
        for (int i = 0; i < run.model.params().size(); ++i)
          EXPECT_LT(run.gradient_error(i), 1e-5)
              << run.model.params()[i].name.view() << " in windows of " << T << recompute;
      }
}

TEST_P(RowGoldens, TenAdamWStepsMatchPyTorch) {
  RowRun run(at(wide()), "fp32", "none", 2);
  const std::vector<double> losses = golden_.numbers("adamw_losses"),
                            norms = golden_.numbers("adamw_grad_norms");
  ASSERT_EQ(losses.size(), 10u);
  for (size_t step = 0; step < losses.size(); ++step) {
    const double loss = run.step();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
    const double norm = std::sqrt(run.session->state().grad_square_sum);
    EXPECT_LT(std::fabs(norm - norms[step]) / norms[step], 1e-4) << "step " << step;
  }
}

TEST_P(RowGoldens, EmulatedKernelsMatchEachRowAlone) {
  RowRun run(at(wide()), "fp32", "none", 2, 1, Place::emu);
  EXPECT_EQ(run.session->context().resident_bytes(), run.schedule.arena_bytes());
  const double expected = golden_.numbers("loss")[0];
  EXPECT_LT(std::fabs(run.step() - expected) / expected, 1e-5);
  for (int i = 0; i < run.model.params().size(); ++i)
    EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view();
}

TEST_P(RowGoldens, RecomputeHasTheSameBits) {
  const Golden& g = at(wide());
  const auto gradients = [&](const char* recompute, int threads) {
    RowRun run(g, "bf16", recompute, 2, threads);
    run.step();
    const View& flat = run.session->stores().flat_gradients();
    return std::vector<float>(flat.as<float>(), flat.as<float>() + flat.elements());
  };
  const std::vector<float> plain = gradients("none", 2);
  for (const char* recompute : {"norms", "mlp", "attention", "block"})
    EXPECT_EQ(gradients(recompute, 1), plain) << recompute;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RowGoldens, testing::Values("gpt2", "mistral", "llama"),
                         [](const auto& named) { return std::string(named.param); });

}  // namespace
}  // namespace snug
