// What ops say that they compute and move, which the plan's seconds are made of: a row each, at odd
// sizes, counted here by hand from what an op reads and writes. Products, attention, residual and
// gather have theirs beside their values.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/step_state.h"
#include "layers/ops/activation.h"
#include "layers/ops/cache_rows.h"
#include "layers/ops/class_loss.h"
#include "layers/ops/column_fold.h"
#include "layers/ops/column_scale.h"
#include "layers/ops/document_start.h"
#include "layers/ops/embedding.h"
#include "layers/ops/front_keys.h"
#include "layers/ops/gated_activation.h"
#include "layers/ops/head_loss.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/matrix_block.h"
#include "layers/ops/pair_loss.h"
#include "layers/ops/reward_loss.h"
#include "layers/ops/rmsnorm.h"
#include "layers/ops/rope.h"
#include "layers/ops/softcap.h"

namespace snug {
namespace {

struct Cost {
  std::string name;
  int64_t flops, bytes;
  bool operator==(const Cost&) const = default;
};
void PrintTo(const Cost& c, std::ostream* out) {
  *out << c.name << ": " << c.flops << " FLOPs, " << c.bytes << " B";
}

// Tensors of a record; nothing is computed.
class Maker {
 public:
  explicit Maker(Context& ctx) : ctx_(ctx) {}
  ~Maker() {
    while (!made_.empty()) made_.pop_back();
  }
  View operator()(const char* name, Shape shape, DType dtype = DType::f32) {
    made_.push_back(ctx_.tensor(Name(name), shape, dtype, Category::workspace));
    return made_.back().view();
  }
  View state() { return (*this)("state", step_state_shape(), DType::u8); }
  Context& ctx() { return ctx_; }

 private:
  Context& ctx_;
  std::vector<Tensor> made_;
};

struct Row {
  const char* what;
  std::function<void(Context&, Maker&)> record;
  std::vector<Cost> costs;
};

constexpr DType kHalf = DType::bf16;
// Windows, tokens of one, rows, columns.
constexpr int64_t B = 3, T = 5, N = B * T, C = 7, NC = N * C;

const Row kRows[] = {
    {"a token's row is read and its position's added",
     [](Context& ctx, Maker& t) {
       embedding_forward(ctx, t("y", {N, C}, kHalf), t("tokens", {B, T}, DType::i32),
                         t("wte", {50, C}, kHalf), t("wpe", {9, C}), t.state());
     },
     {{"embedding_forward", NC, 4 * N + 2 * NC + (2 + 4) * NC}}},
    {"a token in front is read as others are; of its gradient its rows are read and the table "
     "written",
     [](Context& ctx, Maker& t) {
       embedding_forward(ctx, t("y", {N, C}, kHalf), t("tokens", {B, T}, DType::i32),
                         t("wte", {50, C}, kHalf), View(), t.state(), {}, {}, {},
                         {t("front", {2, C}, kHalf), 2.0f});
       embedding_front_backward(ctx, {t("dfront", {2, C}), false}, t("dy", {N, C}, kHalf),
                                t("ids", {B, T}, DType::i32), 50);
     },
     {{"embedding_forward", NC, 4 * N + 2 * NC + 2 * NC},
      {"embedding_front_backward", 2 * B* C, 4 * N + 2 * (2 * B) * C + 4 * 2 * C}}},
    {"and its type's, of a table that stays near",
     [](Context& ctx, Maker& t) {
       embedding_forward(ctx, t("y", {N, C}), t("tokens", {B, T}, DType::i32), t("wte", {50, C}),
                         View(), t.state(), View(), t("types", {B, T}, DType::i32),
                         t("wtt", {2, C}));
     },
     {{"embedding_forward", NC, 4 * N + 4 * NC + 4 * NC + 4 * N + 4 * 2 * C}}},
    {"rows of gradients are read and written; a table that is assigned is cleared",
     [](Context& ctx, Maker& t) {
       embedding_backward(ctx, {t("dwte", {50, C}), false}, {t("dwpe", {9, C}), true},
                          t("dy", {N, C}, kHalf), t("tokens", {B, T}, DType::i32), t.state());
     },
     {{"embedding_backward", 2 * NC, 4 * N + 2 * (2 * NC + 2 * 4 * NC) + 4 * 50 * C}}},
    {"an added one is not",
     [](Context& ctx, Maker& t) {
       embedding_backward(ctx, {t("dwte", {50, C}), true}, {}, t("dy", {N, C}),
                          t("tokens", {B, T}, DType::i32), t.state(), View(),
                          t("types", {B, T}, DType::i32), {t("dwtt", {2, C}), true});
     },
     {{"embedding_backward", 2 * NC,
       4 * N + (4 * NC + 2 * 4 * NC) + (4 * N + 4 * NC + 2 * 4 * 2 * C)}}},
    {"layernorm, its two statistics a row",
     [](Context& ctx, Maker& t) {
       const View x = t("x", {N, C}, kHalf), w = t("w", {C}), mean = t("mean", {N}),
                  rstd = t("rstd", {N});
       layernorm_forward(ctx, t("y", {N, C}, kHalf), mean, rstd, x, w, t("b", {C}), 1e-5f);
       const View dx = t("dx", {N, C}, kHalf), dy = t("dy", {N, C}, kHalf);
       layernorm_backward(ctx, dx, false, {t("dw", {C}), false}, {t("db", {C}), false}, dy, x, w,
                          mean, rstd);
       layernorm_backward(ctx, dx, true, {}, {}, dy, x, w, mean, rstd);
     },
     {{"layernorm_forward", 8 * NC, 2 * 2 * NC + 8 * N},
      {"layernorm_backward", 17 * NC, 3 * 2 * NC + 8 * N},
      {"layernorm_backward", 17 * NC, 4 * 2 * NC + 8 * N}}},
    {"a dropped copy of its gradient is one more",
     [](Context& ctx, Maker& t) {
       const View x = t("x", {N, C}), w = t("w", {C}), mean = t("mean", {N}), rstd = t("rstd", {N});
       layernorm_backward(ctx, t("dx", {N, C}), false, {}, {}, t("dy", {N, C}), x, w, mean, rstd,
                          {t("copy", {N, C}), B, T, {0.1f, 1}, t.state()});
     },
     {{"layernorm_dropout_backward", 18 * NC, 4 * 4 * NC + 8 * N}}},
    {"rmsnorm, one statistic",
     [](Context& ctx, Maker& t) {
       const View x = t("x", {N, C}, kHalf), w = t("w", {C}), rstd = t("rstd", {N});
       rmsnorm_forward(ctx, t("y", {N, C}, kHalf), rstd, x, w, 1e-5f);
       const View dx = t("dx", {N, C}, kHalf), dy = t("dy", {N, C}, kHalf);
       rmsnorm_backward(ctx, dx, false, {t("dw", {C}), false}, dy, x, w, rstd);
       rmsnorm_backward(ctx, dx, true, {}, dy, x, w, rstd);
     },
     {{"rmsnorm_forward", 4 * NC, 2 * 2 * NC + 4 * N},
      {"rmsnorm_backward", 12 * NC, 3 * 2 * NC + 4 * N},
      {"rmsnorm_backward", 10 * NC, 4 * 2 * NC + 4 * N}}},
    {"activations: relu is 1 operation a value, and 6 more its slope",
     [](Context& ctx, Maker& t) {
       const View x = t("x", {N, C}, kHalf), y = t("y", {N, C}, kHalf);
       activation_forward(ctx, y, x, Activation::relu);
       activation_backward(ctx, t("dx", {N, C}, kHalf), y, x, Activation::relu);
     },
     {{"activation_forward", 1 * NC, 2 * 2 * NC},
      {"activation_backward", (1 + 6) * NC, 3 * 2 * NC}}},
    {"a gated one reads two columns for one",
     [](Context& ctx, Maker& t) {
       const View in = t("gate_up", {N, 2 * C}, kHalf), y = t("y", {N, C}, kHalf);
       gated_activation_forward(ctx, y, in, Activation::relu);
       gated_activation_backward(ctx, t("d", {N, 2 * C}, kHalf), y, in, Activation::relu);
     },
     {{"gated_activation_forward", (1 + 1) * NC, 3 * 2 * NC},
      {"gated_activation_backward", (1 + 9) * NC, 5 * 2 * NC}}},
    {"rotations: sine and cosine of a pair once, 6 operations a head",
     [](Context& ctx, Maker& t) {
       const RopeSpec spec{.H = 3, .G = 2, .D = 6, .inverse_frequencies = {1.0f, 0.1f}};
       const View in = t("qkv", {N, 7 * 6}, kHalf), out = t("y", {N, 7 * 6}, kHalf), s = t.state();
       rope_forward(ctx, out, in, B, T, spec, s);
       rope_backward(ctx, out, out, B, T, spec, s);
     },
     {{"rope_forward", N * 2 * (6 * 5 + 30), 2 * 2 * N * 42},
      {"rope_backward", N * 2 * (6 * 5 + 30), 2 * 2 * N * 5 * 4}}},
    {"losses of classes: 20 operations a logit",
     [](Context& ctx, Maker& t) {
       const View z = t("z", {N, 4}), target = t("target", {N}, DType::i32), s = t.state();
       class_loss_forward(ctx, t("loss", {N}), z, target, ClassLoss::cross_entropy, s);
       class_loss_backward(ctx, t("dz", {N, 4}, kHalf), z, target, ClassLoss::cross_entropy, s);
     },
     {{"class_loss_forward", 20 * N * 4, 4 * N * 4 + 4 * N + 4 * N},
      {"class_loss_backward", 20 * N * 4, 4 * N * 4 + 4 * N + 2 * N * 4}}},
    {"scaled columns, with a shift",
     [](Context& ctx, Maker& t) {
       const View v = t("v", {N, C}, kHalf), g = t("g", {C}), y = t("y", {N, C}, kHalf);
       column_scale_forward(ctx, y, v, g, View());
       column_scale_forward(ctx, y, v, g, t("b", {C}, kHalf));
       column_scale_backward(ctx, t("dv", {N, C}, kHalf), View(), y, v, g);
       column_scale_backward(ctx, View(), t("dg", {C}), y, v, g);
       column_scale_backward(ctx, t("dv2", {N, C}, kHalf), t("dg2", {C}), y, v, g);
     },
     {{"column_scale_forward", NC, 2 * 2 * NC},
      {"column_scale_forward", 2 * NC, 2 * 2 * NC},
      {"column_scale_backward", NC, 2 * 2 * NC},
      {"column_scale_backward", 2 * NC, 2 * 2 * NC},
      {"column_scale_backward", 3 * NC, 3 * 2 * NC}}},
    {"columns folded, of which the last come again where they do not divide",
     [](Context& ctx, Maker& t) {
       const FoldedColumns columns{.first = 1, .width = 5, .wrap = true};
       const View x = t("x", {N, C}, kHalf), u = t("u", {N, 3}, kHalf);
       column_fold(ctx, u, x, columns);
       column_lay(ctx, {x, true}, u, columns);
       column_lay(ctx, {x, false}, u, {.first = 0, .width = 6});
     },
     {{"column_fold", N*(5 + 1), 2 * N * 3 + 2 * N * 5},
      {"column_lay", N*(5 + 1), 2 * N * 3 + 2 * 2 * N * 5},
      {"column_lay", N * 6, 2 * N * 3 + 2 * N * 6}}},
    {"keys of virtual tokens, of which every sequence has all",
     [](Context& ctx, Maker& t) {
       const FrontKeys keys{.first = 5, .column = 1, .at = 2, .width = 3};
       const View y = t("y", {8, 6}, kHalf), tokens = t("tokens", {2, 4}, DType::i32);
       front_keys_forward(ctx, y, tokens, t("table", {3, 7}, kHalf), keys);
       front_keys_backward(ctx, {t("dtable", {3, 7}, DType::f32), true}, y, tokens, 3, keys);
       front_keys_backward(ctx, {}, y, tokens, 3, keys);
     },
     {{"front_keys_forward", 0, 4 * 8 + 2 * 2 * 6 * 3},
      {"front_keys_backward", 6 * 3, 4 * 8 + 2 * 2 * 6 * 3 + 2 * 4 * 3 * 3},
      {"front_keys_backward", 6 * 3, 4 * 8 + 2 * 2 * 6 * 3}}},
    {"a cache's rows move twice, keys and values",
     [](Context& ctx, Maker& t) {
       cache_rows_copy(ctx, t("k", {4, 9, 2, 3}, kHalf), t("v", {4, 9, 2, 3}, kHalf),
                       t("source", {4, 2}, DType::i32), t.state());
     },
     {{"cache_rows_copy", 0, 2 * 2 * (4 - 1) * 2 * 9 * 2 * 3}}},
    {"a block put into a matrix and taken out",
     [](Context& ctx, Maker& t) {
       const View m = t("m", {9, 8}, kHalf), b = t("b", {3, 2});
       block_put(ctx, m, b, {1, 1, 0.5f});
       block_take(ctx, {b, false}, m, {1, 1, 0.5f});
       block_take(ctx, {b, true}, m, {1, 1, 0.5f});
     },
     {{"block_put", 6, 4 * 6 + 2 * 6},
      {"block_take", 6, 4 * 6 + 2 * 6},
      {"block_take", 2 * 6, 2 * 4 * 6 + 2 * 6}}},
    {"a cap: about 20 operations a tanh, 4 for its slope",
     [](Context& ctx, Maker& t) {
       const View x = t("x", {N, C}), y = t("y", {N, C});
       softcap_forward(ctx, y, x, 3.0f);
       softcap_backward(ctx, x, t("dy", {N, C}), y, 3.0f);
     },
     {{"softcap_forward", 20 * NC, 2 * 4 * NC}, {"softcap_backward", 4 * NC, 3 * 4 * NC}}},
    {"ends of documents",
     [](Context& ctx, Maker& t) {
       document_end(ctx, t("ends", {B, T}, DType::i32), t("starts", {B, T}, DType::i32), B, T);
     },
     {{"document_end", 0, 2 * 4 * N}}},
    {"pairs: their places are 8 numbers, their log probabilities two",
     [](Context& ctx, Maker& t) {
       const View nll = t("nll", {N}), pairs = t("pairs", {2, kPairColumns}, DType::i32),
                  logps = t("logps", {2, 2}), reference = t("reference", {2, 2}), s = t.state();
       sequence_logps(ctx, logps, nll, pairs);
       pair_loss_forward(ctx, t("loss", {2}), logps, reference, pairs, {}, s);
       pair_loss_backward(ctx, t("dnll", {N}), logps, reference, pairs, {}, s);
     },
     {{"sequence_logps", N, 4 * N + 4 * 2 * 8 + 4 * 2 * 2},
      {"pair_loss_forward", 40 * 2, 4 * 2 * 8 + 2 * 4 * 2 * 2 + 4 * 2},
      {"pair_loss_backward", 40 * 2, 4 * 2 * 8 + 2 * 4 * 2 * 2 + 4 * N}}},
    {"rewards",
     [](Context& ctx, Maker& t) {
       const View r = t("rewards", {4, 1}), m = t("margins", {4, 1}), s = t.state();
       reward_loss_forward(ctx, t("loss", {2}), r, m, {}, s);
       reward_loss_backward(ctx, t("d", {4, 1}, kHalf), r, m, {}, s);
     },
     {{"reward_loss_forward", 40 * 2, 2 * 4 * 4 + 4 * 2},
      {"reward_loss_backward", 40 * 2, 2 * 4 * 4 + 2 * 4}}},
    {"the head a chunk at a time: logits are written by the product and read, their gradient "
     "written",
     [](Context& ctx, Maker& t) {
       head_loss_train(ctx, t("dx", {N, C}), {t("dw", {16, C}), false}, t("x", {N, C}),
                       t("w", {16, C}), t("targets", {N}, DType::i32), 13, 8, t.state());
     },
     {{"head_loss_targets", 0, 4 * N},
      {"matmul", 2 * 8 * 16 * C, 4 * (8 * C + 16 * C + 8 * 16)},
      {"head_loss_train", 20 * 8 * 13, 2 * 4 * 8 * 16},
      {"matmul", 2 * 8 * 16 * C, 4 * (8 * C + 16 * C + 8 * 16)},
      {"matmul", 2 * 8 * 16 * C, 4 * (8 * C + 16 * C + 8 * 16)},
      {"matmul", 2 * 7 * 16 * C, 4 * (7 * C + 16 * C + 7 * 16)},
      {"head_loss_train", 20 * 7 * 13, 2 * 4 * 7 * 16},
      {"matmul", 2 * 7 * 16 * C, 4 * (7 * C + 16 * C + 7 * 16)},
      {"matmul", 2 * 7 * 16 * C, 4 * (7 * C + 2 * 16 * C + 7 * 16)}}},
};

TEST(Costs, AreWhatIsReadWrittenAndComputed) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.what);
    Schedule schedule;
    const int program = schedule.add(Name("case"), -1, false);
    Context plan(Place::plan, {});
    plan.program(schedule, program, [&] {
      Maker tensors(plan);
      row.record(plan, tensors);
    });
    std::vector<Cost> got;
    for (const OpRecord& op : schedule.at(program).ops)
      got.push_back({op.name, op.flops, op.bytes});
    EXPECT_EQ(got, row.costs);
  }
}

}  // namespace
}  // namespace snug
