// The LSTM that virtual tokens may pass before the MLP of their encoder (prompt_encoder.h): layers in two directions
// over the n tokens, as torch.nn.LSTM(bidirectional=True) without dropout has them, each a step of
// layers/ops/lstm_cell.h a token.
//
// Math      of each layer and direction: gates[t] = W_ih x[t] + b_ih + W_hh h[t-1] + b_hh, h[-1] = c[-1] = 0, of
//           the other direction t runs back and t-1 is t+1; the layer makes [h | h of the other]
// Shapes    x (n,in), of layers behind the first (n,2H); W_ih (4H,in), W_hh (4H,H), biases (4H); made (n,2H)
#pragma once

#include <string>
#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/parts/adapter.h"

namespace snug {

struct PromptLstm {
  int64_t n = 0, in = 0, hidden = 0;
  int layers = 0;  // 0: there is none
  bool any() const { return layers > 0; }
  int count() const { return 8 * layers; }  // parameters

  // As torch draws them: uniform in 1 / sqrt(H).
  void add_params(std::vector<AdapterParam>& list, const std::string& owner) const;

  struct Direction {
    Tensor gates, h, c;  // before the functions; (n,H)
  };
  struct Layer {
    Direction directions[2];
    Tensor made;
  };
  // `indices`: those of its parameters.
  std::vector<Layer> run(Context& ctx, ParamStore& params, const int* indices, const View& x) const;
  // The gradients of its parameters, and dx (n,in), from that of what the last layer made. Gates become their
  // gradients.
  void backward(Context& ctx, ParamStore& params, GradSink& grads, const int* indices,
                std::vector<Layer>& layers, const View& x, Tensor dmade, const GradView& dx) const;
  // (n,2H) of x (n,in), on the host.
  std::vector<float> values(const ParamValues& of, const AdapterParam* params, std::vector<float> x,
                            int threads) const;
};

// f(row of the weight, its values), of rows begun at a multiple of a block that is held at a time.
void each_row(const ParamValues& of, const AdapterParam& weight, int threads,
              const std::function<void(int64_t row, const float* values)>& f);

}  // namespace snug
