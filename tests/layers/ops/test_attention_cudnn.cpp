// What is decided about cuDNN's attention before there is a GPU: what it takes, and what a plan of
// it holds.
#include <gtest/gtest.h>

#include "engine/memory/context.h"
#include "layers/ops/attention_cudnn.h"
#include "layers/ops/attention_cudnn_simt.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

AttentionSpec usual() {
  AttentionSpec s;
  s.H = 4;
  s.G = 2;
  s.D = 64;
  s.scale = 0.125f;
  return s;
}

TEST(AttentionCudnn, TakesWhatHasItsNumerics) {
  const auto takes = [](DType t, const auto& change) {
    AttentionSpec s = usual();
    change(s);
    return attention_cudnn_takes(t, s);
  };
  const auto as_it_is = [](AttentionSpec&) {};
  EXPECT_TRUE(takes(DType::bf16, as_it_is));
  EXPECT_TRUE(takes(DType::f16, as_it_is));
  EXPECT_FALSE(takes(DType::f32, as_it_is));
  EXPECT_TRUE(takes(DType::bf16, [](AttentionSpec& s) { s.causal = false; }));
  EXPECT_TRUE(takes(DType::bf16, [](AttentionSpec& s) { s.D = 128; }));
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.D = 136; }));
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.D = 36; }));
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.window = 8; }));
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.softcap = 30; }));
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.dropout = 0.1f; }));
  int32_t values[8] = {};
  const View v{values, {8}, DType::i32, Place::cpu, Name("v")};
  EXPECT_TRUE(takes(DType::bf16, [&](AttentionSpec& s) { s.key_lengths = v; }));
  for (const bool causal : {true, false})
    EXPECT_FALSE(takes(DType::bf16, [&](AttentionSpec& s) {
      s.causal = causal;
      s.document_start = s.document_end = v;
    }));
}

struct Planned {
  std::string variants;
  int64_t workspace = 0;  // bytes of attention.cudnn
};
Planned plan(Place target, bool cudnn, DType dtype, bool padding = false) {
  AttentionSpec s = usual();
  const int64_t B = 2, T = 100;
  Context ctx(Place::plan, {.cudnn = cudnn, .target = target});
  Schedule schedule;
  const int index = schedule.add(Name("p"), -1, false);
  ctx.program(schedule, index, [&] {
    const auto make = [&](const char* name, Shape shape, DType t) {
      return ctx.tensor(Name(name), shape, t, Category::activations);
    };
    const Tensor qkv = make("qkv", {B * T, 8 * 64}, dtype),
                 out = make("out", {B * T, 4 * 64}, dtype),
                 lse = make("lse", {B, 4, T}, DType::f32),
                 dqkv = make("dqkv", {B * T, 8 * 64}, dtype),
                 lengths = make("lengths", {B}, DType::i32),
                 state = make("state", step_state_shape(), DType::u8);
    if (padding) s.key_lengths = lengths;
    attention_forward(ctx, out, lse, qkv, B, T, s, state);
    attention_backward(ctx, dqkv, out, qkv, out, lse, B, T, s, state);
  });
  Planned p;
  for (const OpRecord& op : schedule.at(index).ops)
    p.variants += std::string(op.variant.view()) + ";";
  for (const TensorRecord& t : schedule.at(index).tensors)
    if (t.name == Name("attention.cudnn")) p.workspace += t.bytes;
  return p;
}

TEST(AttentionCudnn, APlanHoldsItsWorkspaceAndSaysSo) {
  const Planned cudnn = plan(Place::cuda, true, DType::bf16);
  EXPECT_EQ(cudnn.variants, "attention cudnn;attention cudnn;");
  const int64_t forward = attention_cudnn_scratch(2, 100, usual(), false).total(),
                backward = attention_cudnn_scratch(2, 100, usual(), true).total();
  EXPECT_EQ(cudnn.workspace, forward + backward);
  // ds of every pair in 16 bits, delta, and with shared key heads dk and dv of every query head;
  // rows of whole tiles.
  EXPECT_EQ(backward - forward, 2 * 4 * (128 * 128 * 2 + 128 * 4 + 2 * 128 * 64 * 2));
  // Lengths for each of the two.
  EXPECT_EQ(plan(Place::cuda, true, DType::f16, true).workspace, cudnn.workspace + 2 * 256);
  for (const auto& [target, set, dtype] : {std::tuple{Place::cuda, false, DType::bf16},
                                           {Place::cuda, true, DType::f32},
                                           {Place::emu, true, DType::bf16},
                                           {Place::cpu, true, DType::bf16}}) {
    const Planned own = plan(target, set, dtype);
    EXPECT_EQ(own.variants.find("cudnn"), std::string::npos) << own.variants;
    EXPECT_EQ(own.workspace, 0);
  }
}

TEST(AttentionCudnn, PaddingHidesNoQueryAndLeavesZeros) {
  AttentionSpec spec = usual();
  spec.H = 2;
  spec.G = 1;
  for (const int64_t D : {8, 5}) {
    spec.D = D;
    const int64_t B = 3, T = 7, width = 4 * D;
    const Values lengths = {7, 1, 4};
    const Outputs got = run_in_all_schedules([&](EmuCase& t) {
      spec.key_lengths = t.input("key_lengths", {B}, DType::i32, lengths);
      attention_query_lengths_on(t.queue(), t.output("query_lengths", {B}, DType::i32), T, 32);
      const View dqkv = t.inout("dqkv", {B * T, width}, DType::bf16,
                                Values(static_cast<size_t>(B * T * width), 2));
      attention_clear_padding_on(t.queue(), dqkv, B, T, spec, 32);
    });
    EXPECT_EQ(got["query_lengths"], Values({7, 7, 7}));
    const Values dqkv = got["dqkv"];
    for (int64_t row = 0; row < B * T; ++row)
      for (int64_t column = 0; column < width; ++column) {
        const bool hidden = column >= 2 * D &&
                            row % T >= static_cast<int64_t>(lengths[static_cast<size_t>(row / T)]);
        ASSERT_EQ(dqkv[static_cast<size_t>(row * width + column)], hidden ? 0 : 2)
            << row << " " << column;
      }
  }
}

}  // namespace
}  // namespace snug::test
