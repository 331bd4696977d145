// What the three kinds of `snug bench` share: the run they time, and how times are summed up.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tools/calibrate/roofs.h"
#include "tools/cli/config_arguments.h"
#include "tools/commands.h"
#include "tools/setup/setup.h"

namespace snug {

int bench_step(const Arguments& arguments);
int bench_ops(const Arguments& arguments);
int bench_gemm(const Arguments& arguments);

// Times of the same thing, taken in turn with those of others.
struct Times {
  std::vector<double> seconds;

  double median() const;
  double least() const;
  // A/A: how far the medians of every other time and of the rest are apart, as a share of the
  // median. A difference between two rows that is not well above it means nothing. 0 for fewer than
  // two.
  double noise() const;
};

// A session that trains on random tokens as the configuration says.
class BenchRun {
 public:
  explicit BenchRun(const RunConfig& config);
  // One optimizer step; its seconds.
  double step();
  const RunSetup& setup() const { return setup_; }
  const Plan& plan() const { return plan_; }
  Session& session() { return *session_; }
  double tokens() const;  // of a step
  // Measured now, of what it runs on: of a GPU with the memory that is left beside it.
  Roofs roofs() const;

 private:
  void random_tokens(uint64_t draw);
  RunSetup setup_;
  Plan plan_;
  std::unique_ptr<Session> session_;
  int64_t steps_ = 0;
};

// Ops that are alike: same program, name, layer, kernel, stream, FLOPs and bytes.
struct OpRow {
  std::string program, op, variant;
  std::string layer;             // of a block attn.c_attn, or empty; head, embedding
  StreamId stream = kCompute;    // another's overlap with those of the compute stream
  int64_t flops = 0, bytes = 0;  // of one call
  int64_t calls = 0;             // of one window
  Times times;                   // of one call, a mean for every window
};
// What a row multiplies: "attn.c_attn dy W" for the gradient of a layer's input, x W^T forward, dy^T x
// for that of its weight; of other ops the layer alone.
std::string product_text(const OpRow& row);
// Collects the ops of one or more windows (steps); `end_window` closes one.
class OpTimes final : public OpListener {
 public:
  OpTimes();
  ~OpTimes() override;
  void op_done(const Program& program, int32_t op, double seconds) override;
  void end_window();
  std::vector<OpRow> rows() const;  // most time first

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Ops of one name: what they take of a step together, and what was predicted of it.
struct KindRow {
  std::string op;
  int64_t calls = 0;
  double seconds = 0, predicted = 0;
};
// Most time first. `predicted` of one call of a row.
std::vector<KindRow> op_kinds(const std::vector<OpRow>& rows,
                              const std::function<double(const OpRow&)>& predicted);

nlohmann::json roofs_json(const Roofs& roofs);
// Whether an op multiplies operands of 16 bits at a rate of their own: bf16, on a GPU f16 too.
bool narrow_product(const Roofs& roofs, std::string_view variant);

}  // namespace snug
