// Attention as tests run it: sizes, data, every form of the arithmetic, and the truth.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "layers/ops/attention.h"
#include "layers/ops/attention_blocks.h"
#include "layers/ops/attention_parts.h"
#include "layers/ops/document_start.h"
#include "tests/support/case.h"
#include "tests/support/reference/attention.h"
#include "tests/support/reference/dropout.h"

namespace snug::test {

struct Sizes {
  int64_t B, T, H, G, D;
  bool causal;
  DType dtype;
};

// Every form of the arithmetic that this machine has for the dtype.
inline std::vector<const AttentionBlocks*> forms(DType dtype) {
  std::vector<const AttentionBlocks*> all = {&attention_blocks_avx2()};
  if (attention_blocks_has_avx512()) all.push_back(&attention_blocks_avx512());
  if (dtype == DType::bf16 && attention_blocks_has_avx512_bf16()) {
    all.push_back(&attention_blocks_avx512_bf16());
    all.push_back(&attention_blocks_amx_emulated());
    if (attention_blocks_has_amx()) all.push_back(&attention_blocks_amx());
  }
  return all;
}

inline std::string name_of(const Sizes& s) {
  return fmt::format("B{} T{} H{} G{} D{} {} {}", s.B, s.T, s.H, s.G, s.D,
                     s.causal ? "causal" : "bidirectional", to_string(s.dtype));
}

inline AttentionSpec spec_of(const AttentionCase& c) {
  AttentionSpec spec;
  spec.H = c.H;
  spec.G = c.G;
  spec.D = c.D;
  spec.scale = static_cast<float>(c.scale);
  spec.causal = c.causal;
  spec.window = c.window;
  spec.softcap = static_cast<float>(c.softcap);
  return spec;
}

inline AttentionCase case_of(const Sizes& s) {
  AttentionCase c;
  c.B = s.B;
  c.T = s.T;
  c.H = s.H;
  c.G = s.G;
  c.D = s.D;
  c.causal = s.causal;
  c.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.D)));
  return c;
}

using Lengths = std::vector<int64_t>;  // of the documents of a sequence

// Documents back to back in every sequence.
inline std::vector<double> starts_of(const std::vector<Lengths>& documents) {
  std::vector<double> starts;
  for (const Lengths& lengths : documents) {
    double begin = 0;
    for (const int64_t length : lengths) {
      starts.insert(starts.end(), static_cast<size_t>(length), begin);
      begin += static_cast<double>(length);
    }
  }
  return starts;
}

inline AttentionCase packed(const Sizes& s, const std::vector<Lengths>& documents) {
  AttentionCase c = case_of(s);
  c.document_start = starts_of(documents);
  EXPECT_EQ(c.document_start.size(), static_cast<size_t>(c.B * c.T));
  return c;
}

struct Data {
  Values qkv, dout;
};
inline Data data_of(const AttentionCase& c, DType dtype, double sd = 1) {
  return {normal_values(c.B * c.T * c.width(), 1, dtype, sd),
          normal_values(c.B * c.T * c.H * c.D, 2, dtype)};
}

inline StepState some_state() {
  StepState state{};
  state.seed = 77;
  state.step = 5;
  state.first_sample = 40;
  return state;
}

// Forward and backward as training runs them.
inline Outputs run_both(const AttentionCase& c, DType dtype, const Data& data, AttentionSpec spec,
                        bool all_modes = true, const StepState& state = some_state(),
                        int threads = 1, const AttentionBlocks* blocks = nullptr) {
  const AttentionBlocks& form = blocks ? *blocks : attention_blocks(dtype);
  const Body body = [&](Case& t) {
    const View qkv = t.input("qkv", {c.B * c.T, c.width()}, dtype, data.qkv);
    const View dout = t.input("dout", {c.B * c.T, c.H * c.D}, dtype, data.dout);
    const View out = t.output("out", {c.B * c.T, c.H * c.D}, dtype);
    const View lse = t.output("lse", {c.B, c.H, c.T}, DType::f32);
    const View dqkv = t.output("dqkv", {c.B * c.T, c.width()}, dtype);
    const View step = t.step_state(state);
    if (!c.key_lengths.empty())
      spec.key_lengths = t.input("key_lengths", {c.B}, DType::i32, c.key_lengths);
    if (!c.document_start.empty())
      spec.document_start = t.input("document_start", {c.B, c.T}, DType::i32, c.document_start);
    if (!c.document_start.empty() && !c.causal) {
      spec.document_end = t.output("document_end", {c.B, c.T}, DType::i32);
      document_end(t.ctx(), spec.document_end, spec.document_start, c.B, c.T);
    }
    attention_forward_by(form, t.ctx(), out, lse, qkv, c.B, c.T, spec, step);
    attention_backward_by(form, t.ctx(), dqkv, dout, qkv, out, lse, c.B, c.T, spec, step);
  };
  Settings settings;
  settings.threads = threads;
  return all_modes ? run_in_all_modes(body) : run_on_plan_and_cpu(settings, body);
}

// Element by element: one rounding of the result, six standard deviations of the roundings inside
// (attention_deviation), and float arithmetic over T and D, which is relative to the largest.
inline void expect_elements(const char* name, const Values& got, const Values& want,
                            const Values& deviation, DType dtype, int64_t length) {
  ASSERT_EQ(got.size(), want.size());
  const double u = dtype == DType::f32 ? 0 : unit_roundoff(dtype) * (1 + 0x1p-8);
  double largest = 1e-3;
  for (const double x : want) largest = std::max(largest, std::fabs(x));
  const double floats = tolerance(DType::f32, length) * largest;
  for (size_t i = 0; i < want.size(); ++i) {
    const double excess =
        std::fabs(got[i] - want[i]) / (u * std::fabs(want[i]) + 6 * deviation[i] + floats);
    ASSERT_LE(excess, 1) << name << " " << i << ": " << got[i] << ", not " << want[i];
  }
}

// The truth about a case, for every form it is run by.
struct Truth {
  Truth(const AttentionCase& c, DType dtype, const Data& data)
      : out(attention_reference<double>(c, data.qkv, &lse)),
        gradient(attention_gradient(c, data.qkv, data.dout)),
        dtype_(dtype),
        length_(c.T + c.D) {
    const double u = dtype == DType::f32 ? 0 : unit_roundoff(dtype);
    for (const bool pairs : {false, true})
      deviation_[pairs] = attention_deviation(c, data.qkv, data.dout, u, pairs);
  }

  void expect(const AttentionBlocks& form, const Outputs& got) const {
    // The shorter polynomial of the pairs shows in the sum: an absolute error of its logarithm.
    expect(form.name, form.pairs, got, form.pairs ? 2e-7 : 0);
  }

  // rounded: p and ds enter their products in the dtype of the activations.
  void expect(const char* form, bool rounded, const Outputs& got, double lse_error = 0) const {
    SCOPED_TRACE(form);
    const AttentionDeviation& deviation = deviation_[rounded];
    expect_elements("out", got["out"], out, deviation.out, dtype_, length_);
    expect_elements("dqkv", got["dqkv"], gradient, deviation.gradient, dtype_, length_);
    double largest = 1e-3;
    for (const double l : lse) largest = std::max(largest, std::fabs(l));
    EXPECT_TRUE(close(got["lse"], lse, tolerance(DType::f32, length_) + lse_error / largest));
  }

  Values lse, out, gradient;

 private:
  DType dtype_;
  int64_t length_;
  AttentionDeviation deviation_[2];
};

// Runs every form of the arithmetic, the last of them in every mode, against the truth.
inline void expect_every_form(const AttentionCase& c, DType dtype, const AttentionSpec& spec) {
  const Data data = data_of(c, dtype);
  const Truth truth(c, dtype, data);
  const std::vector<const AttentionBlocks*> all = forms(dtype);
  for (const AttentionBlocks* form : all)
    truth.expect(*form, run_both(c, dtype, data, spec, form == all.back(), some_state(), 1, form));
}

// The factors the contract promises, drawn here one by one.
inline std::vector<double> mask_of(const AttentionCase& c, const AttentionSpec& spec,
                                   const StepState& state) {
  return attention_factors_reference(c.B, c.H, c.T, spec.dropout, state.seed,
                                     static_cast<uint64_t>(state.step), spec.site,
                                     static_cast<uint64_t>(state.first_sample));
}

}  // namespace snug::test
