// What is decided about cuDNN's attention before there is a GPU: what it takes, and what a plan of
// it holds.
#include <gtest/gtest.h>

#include "engine/memory/context.h"
#include "layers/ops/attention_cudnn.h"

namespace snug {
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
  EXPECT_FALSE(takes(DType::bf16, [](AttentionSpec& s) { s.dropout = 0.1f; }))
      << "its mask is not ours";
  int32_t values[8] = {};
  const View v{values, {8}, DType::i32, Place::cpu, Name("v")};
  EXPECT_FALSE(takes(DType::bf16, [&](AttentionSpec& s) { s.key_lengths = v; }));
  EXPECT_FALSE(takes(DType::bf16, [&](AttentionSpec& s) { s.document_start = v; }));
}

struct Planned {
  std::string variants;
  int64_t workspace = 0;  // bytes of attention.cudnn
};
Planned plan(Place target, bool cudnn, DType dtype) {
  const AttentionSpec s = usual();
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
                 dqkv = make("dqkv", {B * T, 8 * 64}, dtype);
    attention_forward(ctx, out, lse, qkv, B, T, s, {});
    attention_backward(ctx, dqkv, out, qkv, out, lse, B, T, s, {});
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
  EXPECT_EQ(cudnn.workspace, attention_cudnn_scratch(2, 100, usual(), false) +
                                 attention_cudnn_scratch(2, 100, usual(), true));
  // dq and, with shared key heads, dk and dv of every query head in float, rows of whole tiles.
  EXPECT_GT(attention_cudnn_scratch(2, 100, usual(), true), 3 * 2 * 4 * 128 * 64 * 4);
  for (const auto& [target, set, dtype] : {std::tuple{Place::cuda, false, DType::bf16},
                                           {Place::cuda, true, DType::f32},
                                           {Place::emu, true, DType::bf16},
                                           {Place::cpu, true, DType::bf16}}) {
    const Planned own = plan(target, set, dtype);
    EXPECT_EQ(own.variants.find("cudnn"), std::string::npos) << own.variants;
    EXPECT_EQ(own.workspace, 0);
  }
}

}  // namespace
}  // namespace snug
