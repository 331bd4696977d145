// Documents of a window kept apart, in a whole session: one more resident and nothing else in the
// plan, the same bits under every policy, and what a window of several documents means.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 80, .C = 32, .L = 2, .H = 2, .F = 72};

test::RunOptions options_of(const char* recompute, bool documents = true) {
  test::RunOptions o;
  o.decisions.T = 72;  // beyond a block of attention
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 24;
  o.decisions.recompute = recompute;
  o.decisions.eval_batch = 3;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.packing_boundaries = documents;
  o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
  o.optimizer.learning_rate = 1e-2;
  o.global_batch = 4;
  return o;
}

TEST(SessionDocuments, RecomputeChangesNoBit) {
  for (const double dropout : {0.0, 0.1})
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      test::Tiny tiny = kModel;
      tiny.dropout = dropout;
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      const test::Trace none = test::trace_of(model, options_of("none"));
      EXPECT_TRUE(none.finite());
      EXPECT_FALSE(same_bits(test::trace_of(model, options_of("none", false)), none));
      for (const char* policy : {"norms", "mlp", "attention", "block", "{0: block, 1: attention}"})
        EXPECT_TRUE(same_bits(test::trace_of(model, options_of(policy)), none))
            << precision << ", dropout " << dropout << ", " << policy;
    }
}

// The plan has one tensor more, of 4 bytes a token of the larger batch, whatever the documents are.
TEST(SessionDocuments, ThePlanHasOneResidentMore) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  const Schedule without = test::plan_schedule(model, options_of("none", false));
  const Schedule with = test::plan_schedule(model, options_of("none"));
  ASSERT_EQ(with.size(), without.size());
  for (int i = 0; i < with.size(); ++i) {
    std::vector<std::pair<std::string, int64_t>> a, b;
    for (const TensorRecord& t : with.at(i).tensors)
      if (t.name.view() == "batch.document_start") {
        EXPECT_EQ(with.at(i).name.view(), "root");
        EXPECT_EQ(t.category, Category::batch);
        EXPECT_EQ(t.bytes, 3 * 72 * 4);
      } else {
        a.emplace_back(t.name.view(), t.bytes);
      }
    for (const TensorRecord& t : without.at(i).tensors) b.emplace_back(t.name.view(), t.bytes);
    EXPECT_EQ(a, b);
    EXPECT_EQ(with.at(i).tensors.size() - b.size(), with.at(i).name.view() == "root" ? 1u : 0u);
    EXPECT_EQ(with.at(i).flops(), without.at(i).flops());
  }
}

// A sequence that is one document has the bits it has without the key.
TEST(SessionDocuments, OneDocumentASequenceIsPlainTraining) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    test::SessionRun plain(model, options_of("norms", false)), one(model, options_of("norms"));
    one.documents = false;
    for (int64_t step = 0; step < 2; ++step)
      EXPECT_EQ(one.train_step(step), plain.train_step(step)) << precision;
    EXPECT_EQ(one.evaluate(), plain.evaluate());
    EXPECT_TRUE(test::same_bits(one.weights(), plain.weights()));
  }
}

// The loss of a window is that of its documents, each evaluated alone at the start of a window.
TEST(SessionDocuments, AWindowLosesWhatItsDocumentsLose) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of("none"));
  Session& s = run.session();
  const int64_t T = s.decisions().T;
  int32_t *tokens = s.tokens().as<int32_t>(), *targets = s.targets().as<int32_t>(),
          *starts = s.document_start_or_null();
  const auto clear = [&] {
    std::fill_n(tokens, 3 * T, 0);
    std::fill_n(targets, 3 * T, -100);
    std::fill_n(starts, 3 * T, 0);
    s.begin_window(0, 0, 0);
  };
  const std::vector<int64_t> lengths = {20, 1, 43, 8};  // the last begins at 64
  const auto put = [&](int64_t at, int64_t first, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      tokens[at + i] = run.token(0, 0, first + i);
      if (i > 0) targets[at + i - 1] = tokens[at + i];
      starts[at + i] = static_cast<int32_t>(at);
    }
  };
  clear();
  for (int64_t at = 0, d = 0; d < 4; at += lengths[static_cast<size_t>(d++)])
    put(at, at, lengths[static_cast<size_t>(d)]);
  s.evaluate();
  const double together = s.state().loss_sum;
  EXPECT_EQ(s.state().loss_tokens, T - 4);
  double apart = 0;
  for (int64_t first = 0, d = 0; d < 4; first += lengths[static_cast<size_t>(d++)]) {
    clear();
    put(0, first, lengths[static_cast<size_t>(d)]);
    s.evaluate();
    apart += s.state().loss_sum;
  }
  // Sums of some dozen roundings of 2^-24 in each of 68 losses of about 5.
  EXPECT_NEAR(together, apart, 1e-5 * together);
  EXPECT_GT(together, T);
}

// Starts that are none are an error with their place, not a read beyond a row.
TEST(SessionDocuments, StartsThatAreNoneAreRefused) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of("none"));
  Session& s = run.session();
  run.fill(0, 0, 2, 2);
  s.begin_window(1, 0, 10);
  s.document_start_or_null()[72 + 5] = 9;
  try {
    s.micro(true);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_NE(std::string(e.what()).find("or 5 at position 5 of sequence 1"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace snug
