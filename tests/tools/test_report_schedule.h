// A small GPT's step, recorded by hand the way a Context records: the clock moves with every birth
// and death, an op takes the clock's reading.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tools/planner/plan.h"

namespace snug {

class HandRecorder {
 public:
  HandRecorder(Schedule& schedule, const char* name, int parent, bool resident)
      : index_(schedule.add(Name(name), parent, resident)), program_(schedule.at(index_)) {}
  int index() const { return index_; }
  size_t make(const std::string& name, const std::string& scope, Category category, int64_t bytes) {
    program_.tensors.push_back({Name(name), Name(scope), Shape{bytes / 4}, DType::f32, category,
                                bytes, program_.ticks++, kNever,
                                static_cast<int32_t>(program_.ops.size()), 0});
    return program_.tensors.size() - 1;
  }
  void end(size_t tensor) {
    program_.tensors[tensor].died = program_.ticks++;
    program_.tensors[tensor].last_op = static_cast<int32_t>(program_.ops.size());
  }
  void op(const char* name, const std::string& scope, int64_t flops, int64_t bytes) {
    program_.ops.push_back({name, Name(scope), flops, bytes, program_.ticks});
  }

 private:
  int index_;
  Program& program_;
};

inline void record_micro(Schedule& s, const char* name, int root, int64_t L, int64_t N, int64_t C,
                         int64_t V) {
  HandRecorder r(s, name, root, false);
  const int64_t row = 4 * N * C;
  const auto matmul = [&](const char* op, const std::string& scope, int64_t in, int64_t out) {
    r.op(op, scope, 2 * N * in * out, 4 * (N * in + N * out + in * out));
  };
  const size_t x = r.make("x", "embed", Category::activations, row);
  r.op("embedding_forward", "embed", 0, 2 * row);
  struct Layer {
    size_t norm1, qkv, lse, attended, norm2, up, act;
  };
  std::vector<Layer> layers;
  for (int64_t l = 0; l < L; ++l) {
    const std::string h = "h." + std::to_string(l), a = h + ".attn", m = h + ".mlp";
    Layer y{};
    y.norm1 = r.make("norm1", h, Category::activations, row);
    r.op("layernorm_forward", h, 5 * N * C, 2 * row);
    y.qkv = r.make("qkv", a, Category::activations, 3 * row);
    matmul("matmul_forward", a, C, 3 * C);
    y.lse = r.make("lse", a, Category::activations, 4 * N);
    y.attended = r.make("attended", a, Category::activations, row);
    r.op("attention_forward", a, 4 * N * N * C / 8, 4 * row);
    y.norm2 = r.make("norm2", h, Category::activations, row);
    r.op("layernorm_forward", h, 5 * N * C, 2 * row);
    y.up = r.make("up", m, Category::activations, 4 * row);
    matmul("matmul_forward", m, C, 4 * C);
    y.act = r.make("act", m, Category::activations, 4 * row);
    r.op("gelu_forward", m, 8 * N * C, 8 * row);
    matmul("matmul_forward", m, 4 * C, C);
    layers.push_back(y);
  }
  const size_t logits = r.make("logits", "head", Category::logits, 4 * (N / 4) * V);
  matmul("head_forward", "head", C, V);
  const size_t dx = r.make("dx", "head", Category::workspace, row);
  matmul("head_backward", "head", V, C);
  r.end(logits);
  for (int64_t l = L - 1; l >= 0; --l) {
    const std::string h = "h." + std::to_string(l), a = h + ".attn", m = h + ".mlp";
    const Layer& y = layers[static_cast<size_t>(l)];
    const size_t dact = r.make("dact", m, Category::workspace, 4 * row);
    matmul("matmul_backward", m, 4 * C, 2 * C);
    r.end(y.act);
    r.op("gelu_backward", m, 8 * N * C, 12 * row);
    r.end(y.up);
    matmul("matmul_backward", m, C, 8 * C);
    r.end(dact);
    r.end(y.norm2);
    const size_t dqkv = r.make("dqkv", a, Category::workspace, 3 * row);
    const size_t again = r.make("scores", a, Category::recomputed, 2 * row);
    r.op("attention_backward", a, 10 * N * N * C / 8, 8 * row);
    r.end(again);
    r.end(y.attended);
    r.end(y.lse);
    r.end(y.qkv);
    matmul("matmul_backward", a, C, 6 * C);
    r.end(dqkv);
    r.end(y.norm1);
  }
  r.op("embedding_backward", "embed", 0, 2 * row);
  r.end(dx);
  r.end(x);
}

// A packed plan with L layers; everything in it follows from the schedule.
inline Plan hand_plan(int64_t L = 6, int64_t N = 512, int64_t C = 256, int64_t V = 4096) {
  Plan plan;
  Schedule& s = plan.schedule;
  const int64_t parameters = 4 * (12 * C * C * L + V * C);
  int root = -1;
  {
    HandRecorder r(s, "root", -1, true);
    root = r.index();
    r.make("weights", "", Category::weights, parameters / 2);
    r.make("master", "", Category::master, parameters);
    r.make("gradients", "", Category::gradients, parameters);
    r.make("exp_avg", "adamw", Category::optimizer, parameters);
    r.make("exp_avg_sq", "adamw", Category::optimizer, parameters);
    r.make("step_state", "", Category::state, 256);
    r.make("tokens", "", Category::batch, 8 * N);
  }
  record_micro(s, "micro_first", root, L, N, C, V);
  record_micro(s, "micro_next", root, L, N, C, V);
  {
    HandRecorder r(s, "update", root, false);
    const size_t sums = r.make("norm_partial", "clip", Category::workspace, 65536);
    r.op("sum_squares", "clip", parameters / 2, parameters);
    r.op("adamw_step", "adamw", 3 * parameters, 7 * parameters);
    r.end(sums);
  }
  s.pack();
  plan.fits = true;
  plan.decisions.T = 128;
  plan.decisions.micro_batch = N / 128;
  plan.decisions.head_rows = N / 4;
  plan.accumulation = 8;
  plan.global_batch = 8 * plan.decisions.micro_batch;
  plan.engine_bytes = s.arena_bytes();
  plan.runtime_bytes = int64_t{20} << 20;
  plan.minimum_bytes = plan.engine_bytes / 2 + plan.runtime_bytes;
  plan.budget = (plan.engine_bytes + plan.runtime_bytes) / 100 * 115;
  plan.categories = s.at_peak(&plan.padding);
  plan.seconds = 0.02;
  plan.threads = 2;
  plan.model_text = "gpt2 5.77M parameters";
  return plan;
}

}  // namespace snug
