// The encoder that virtual tokens are made by while they are trained: a table of n rows, an LSTM over them all or
// none (prompt_lstm.h), and linear layers over each of them. PEFT's files have what it makes, prompt_embeddings,
// and not the encoder; ours have both, so that training goes on.
//
// Math      h = table, or lstm(table);  h = f(W h + b) for all layers but the last;  rows = W h + b
// Shapes    table (n,in), W (inner,in or 2H), (inner,inner), ..., (out,inner); rows (n,out), or (n,count) of some of
//           the last layer's columns, where the others are another layer's.
// Memory    what is between is made again in backward, as it is small: n rows.
#pragma once

#include <string>
#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/adapters/prompt_lstm.h"
#include "layers/ops/activation.h"
#include "layers/parts/adapter.h"

namespace snug {

inline constexpr const char* kPromptEmbeddings = "prompt_embeddings";
inline constexpr const char* kPromptEncoder =
    "prompt_encoder.";  // before the encoder's names in files

struct PromptEncoderShape {
  int64_t n = 0, in = 0, inner = 0, out = 0;
  int layers = 2;
  const char* head = "";  // of their names: mlp_head, transform
  Activation activation = Activation::relu;
  int64_t lstm_hidden = 0;  // H
  int lstm_layers = 0;      // 0: no LSTM
};

class PromptEncoder {
 public:
  PromptEncoder(PromptEncoderShape shape, std::string owner);  // owner: wte
  // As torch draws them: N(0,1), and uniform in 1 / sqrt(in).
  std::vector<AdapterParam> params() const;
  // Their numbers in a table that has them, or that gets them.
  void find(const ParamTable& table);
  void add_to(Wiring& w);
  const std::vector<int>& indices() const { return indices_; }

  // rows (n,count) = columns [first, first + count) of what it makes.
  void forward(Context& ctx, ParamStore& params, const View& rows, int64_t first) const;
  // The gradients of all its parameters from that of rows, which is not changed. `close`: they are complete.
  void backward(Context& ctx, ParamStore& params, GradSink& grads, const View& drows, int64_t first,
                bool close) const;
  // (n,out), on the host; weights are read a block at a time.
  std::vector<float> values(const ParamValues& of, int threads) const;

 private:
  struct Inner {            // of a layer that is not the last
    Tensor before, behind;  // the activation
  };
  struct Run {
    std::vector<PromptLstm::Layer> lstm;
    std::vector<Inner> inner;
  };
  Run run(Context& ctx, ParamStore& params) const;
  // What linear layer l reads, acquired where it is the table.
  View read(Context& ctx, ParamStore& params, const Run& run, int layer) const;
  void release(Context& ctx, ParamStore& params, int layer) const;
  size_t first_linear() const { return static_cast<size_t>(1 + lstm_.count()); }
  int64_t read_width(int layer) const {
    return layer > 0 ? s_.inner : lstm_.any() ? 2 * lstm_.hidden : s_.in;
  }
  int weight(int layer) const { return indices_[first_linear() + 2 * static_cast<size_t>(layer)]; }
  int bias(int layer) const {
    return indices_[first_linear() + 1 + 2 * static_cast<size_t>(layer)];
  }

  PromptEncoderShape s_;
  PromptLstm lstm_;
  std::string owner_;
  std::vector<int> indices_;  // in the order of params()
};

}  // namespace snug
