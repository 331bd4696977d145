// Packing of training steps as transformers have them: the layout meets the bound.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/memory/packer.h"

namespace snug {
namespace {

// Writes down the lives of a step's tensors: one tick per op.
class Tape {
 public:
  using Id = size_t;

  Id make(int64_t bytes) {
    lives_.push_back({now_, -1, bytes});
    return lives_.size() - 1;
  }
  void free(Id id) { lives_[id].died = now_; }
  void op() { ++now_; }
  std::vector<Interval> end() {
    for (Interval& life : lives_)
      if (life.died < 0) life.died = now_;
    return lives_;
  }

 private:
  std::vector<Interval> lives_;
  int64_t now_ = 0;
};

enum class Policy { keep, recompute, mixed };

struct Shape {
  int layers;
  int64_t rows, width, hidden, heads, kv_width, vocabulary;
  Policy policy;
  bool gradients_in_arena;
  int head_chunks;
};

struct Saved {
  Tape::Id input, h1, rstd1, qkv, attended, lse, middle, h2, rstd2, gate_up, product;
  bool kept;
};

// norm, qkv, attention, projection + residual, norm, gate and up, product, down + residual.
// Fills `saved` and returns the block's output; frees what is not kept.
Tape::Id block_forward(Tape& tape, const Shape& s, Tape::Id input, bool keep, bool need_output,
                       Saved& saved) {
  const int64_t row = s.rows * 2;
  saved.input = input;
  saved.kept = keep;
  saved.h1 = tape.make(row * s.width), saved.rstd1 = tape.make(s.rows * 4), tape.op();
  saved.qkv = tape.make(row * (s.width + 2 * s.kv_width)), tape.op();
  if (!keep) tape.free(saved.h1), tape.free(saved.rstd1);
  saved.attended = tape.make(row * s.width), saved.lse = tape.make(s.rows * s.heads * 4), tape.op();
  if (!keep) tape.free(saved.qkv), tape.free(saved.lse);
  saved.middle = tape.make(row * s.width), tape.op();
  if (!keep) tape.free(saved.attended);
  saved.h2 = tape.make(row * s.width), saved.rstd2 = tape.make(s.rows * 4), tape.op();
  saved.gate_up = tape.make(row * 2 * s.hidden), tape.op();
  if (!keep) tape.free(saved.h2), tape.free(saved.rstd2);
  saved.product = tape.make(row * s.hidden), tape.op();
  if (!keep) tape.free(saved.gate_up);
  Tape::Id output = input;
  if (need_output) output = tape.make(row * s.width), tape.op();
  if (!keep) tape.free(saved.product), tape.free(saved.middle);
  return output;
}

Tape::Id block_backward(Tape& tape, const Shape& s, Saved saved, Tape::Id dy) {
  const int64_t row = s.rows * 2;
  if (!saved.kept) block_forward(tape, s, saved.input, true, false, saved);
  const auto gradient = [&](int64_t elements) {
    if (s.gradients_in_arena) tape.make(elements * 4);  // until the end of the step
  };
  const auto dproduct = tape.make(row * s.hidden);
  gradient(s.hidden * s.width), tape.op(), tape.free(saved.product);
  const auto dgate_up = tape.make(row * 2 * s.hidden);
  tape.op(), tape.free(dproduct), tape.free(saved.gate_up);
  const auto dh2 = tape.make(row * s.width);
  gradient(2 * s.hidden * s.width), tape.op(), tape.free(dgate_up), tape.free(saved.h2);
  const auto dmiddle = tape.make(row * s.width), partial2 = tape.make(64 * s.width * 4);
  gradient(s.width), tape.op();
  tape.free(dh2), tape.free(partial2), tape.free(dy), tape.free(saved.rstd2);
  tape.free(saved.middle);
  const auto dattended = tape.make(row * s.width);
  gradient(s.width * s.width), tape.op();
  const auto dqkv = tape.make(row * (s.width + 2 * s.kv_width));
  const auto delta = tape.make(s.rows * s.heads * 4), scratch = tape.make(s.rows * s.width * 4);
  tape.op(), tape.free(delta), tape.free(scratch), tape.free(dattended);
  tape.free(saved.attended), tape.free(saved.lse), tape.free(saved.qkv);
  const auto dh1 = tape.make(row * s.width);
  gradient(s.width * (s.width + 2 * s.kv_width)), tape.op(), tape.free(dqkv), tape.free(saved.h1);
  const auto dx = tape.make(row * s.width), partial1 = tape.make(64 * s.width * 4);
  gradient(s.width), tape.op();
  tape.free(dh1), tape.free(partial1), tape.free(dmiddle), tape.free(saved.rstd1);
  tape.free(saved.input);
  return dx;
}

std::vector<Interval> training_step(const Shape& s) {
  Tape tape;
  const int64_t row = s.rows * 2;
  const auto tokens = tape.make(s.rows * 4), targets = tape.make(s.rows * 4);
  auto x = tape.make(row * s.width);
  tape.op();
  std::vector<Saved> saved(s.layers);
  for (int layer = 0; layer < s.layers; ++layer) {
    const bool keep = s.policy == Policy::keep ||
                      (s.policy == Policy::mixed && layer * 3 % s.layers < s.layers / 2);
    x = block_forward(tape, s, x, keep, true, saved[layer]);
  }
  const auto h = tape.make(row * s.width), rstd = tape.make(s.rows * 4), loss = tape.make(4);
  tape.op();
  const auto dh = tape.make(row * s.width);
  for (int chunk = 0; chunk < s.head_chunks; ++chunk) {
    const auto logits = tape.make(row / s.head_chunks * s.vocabulary);
    tape.op(), tape.op(), tape.op();
    tape.free(logits);
  }
  tape.free(h), tape.free(targets);
  auto dy = tape.make(row * s.width);
  tape.op(), tape.free(dh), tape.free(rstd), tape.free(x);
  for (int layer = s.layers - 1; layer >= 0; --layer)
    dy = block_backward(tape, s, saved[layer], dy);
  tape.op(), tape.free(dy), tape.free(tokens);
  (void)loss;  // read after the step
  return tape.end();
}

TEST(PackerSteps, TransformerStepsMeetTheBound) {
  const Shape sizes[] = {
      {4, 64, 128, 512, 4, 128, 512, Policy::keep, false, 1},
      {12, 4096, 768, 2048, 12, 768, 50304, Policy::keep, false, 4},
      {28, 8192, 1536, 8960, 12, 256, 151936, Policy::keep, false, 16},
      {80, 8192, 8192, 28672, 64, 1024, 128256, Policy::keep, false, 32},
  };
  for (const Shape& size : sizes)
    for (const Policy policy : {Policy::keep, Policy::recompute, Policy::mixed})
      for (const bool gradients : {false, true})
        for (const int chunks : {1, size.head_chunks}) {
          Shape s = size;
          s.policy = policy;
          s.gradients_in_arena = gradients;
          s.head_chunks = chunks;
          const auto step = training_step(s);
          ASSERT_GT(step.size(), static_cast<size_t>(s.layers * 15));
          const Packing packed = pack(step);
          const std::string name = std::to_string(s.layers) + " layers, policy " +
                                   std::to_string(static_cast<int>(policy)) + ", gradients " +
                                   std::to_string(gradients) + ", chunks " + std::to_string(chunks);
          EXPECT_EQ(packed.height, packed.lower_bound) << name << ": " << packed.method;
          EXPECT_EQ(packed.proof, PackProof::lower_bound) << name;
          EXPECT_NO_THROW(check_packing(step, packed.offsets, 256)) << name;
        }
}

// A micro-batch of a million rows has so many chunks of logits.
TEST(PackerSteps, ChunksByTheThousandMeetTheBound) {
  const auto step =
      training_step({12, 1 << 20, 768, 2048, 12, 768, 50304, Policy::keep, true, 16384});
  ASSERT_GT(step.size(), size_t{16384});
  const Packing packed = pack(step);
  EXPECT_EQ(packed.height, packed.lower_bound);
  EXPECT_NO_THROW(check_packing(step, packed.offsets, 256));
}

TEST(PackerSteps, RandomLayoutsOfAStepAreValid) {
  const auto step = training_step({4, 64, 128, 512, 4, 128, 512, Policy::mixed, true, 2});
  for (uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_NO_THROW(check_packing(step, pack_random(step, 256, seed), 256)) << seed;
}

}  // namespace
}  // namespace snug
