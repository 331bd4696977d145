// LoRA on a linear layer: y = x W^T + b + s (drop(x) A^T) B^T, with W frozen; DoRA goes on from it
// (scaled_linear.h).
//   Hu et al., "LoRA", arXiv:2106.09685; the scale of rsLoRA: Kalajdzievski, arXiv:2312.03732.
//
//   stage    reads  writes         backward
//   *_lora   x      u (N,R)        dA (+)= s du^T drop(x);  dx += drop(s du A)
//   *        x, u   y (N,out)      dB (+)= dy^T u;  du = dy B;  dx += dy W, which reads no input
//
// u = s drop(x) A^T. The modules of one layer have ranks, scales and a B of their own, and A and u are
// theirs side by side, R = sum of r. Of several, B is put together with zeros between
// (layers/ops/matrix_block.h) in planned scratch while it is used.
#pragma once

#include "layers/adapters/input_dropout.h"
#include "layers/parts/adapter.h"

namespace snug {

// A and B's; with DoRA's magnitudes, each behind its B.
std::vector<AdapterParam> low_rank_params(const AdaptedLayer& layer, bool magnitudes);
std::string low_rank_a(const AdaptedLayer& layer);
std::string low_rank_b(const AdaptedLayer& layer, size_t piece);
std::string magnitude_name(const AdaptedLayer& layer, size_t piece);

// The upper half, with what the lower one is made of.
class LowRank : public AdapterSum {
 public:
  struct Piece {
    int b = -1;  // parameter (rows, r)
    int64_t row = 0, col = 0;
    float factor = 1;    // its scale over that of u
    int magnitude = -1;  // parameter (rows) of DoRA
    int64_t rows = 0, rank = 0;
    float scale = 1;
  };
  int a = -1;  // parameter (R,in)
  int u = -1;  // slot (N,R)
  std::vector<Piece> pieces;
  int64_t rank = 0, rows = 0, out = 0;  // R; rows that have a B; of the layer
  InputDropout dropout;

  void forward(Context& ctx, Pass& p, const View& y) const override;
  void backward(Context& ctx, Pass& p, const View& dy) const override;
  // Of one module, B is the parameter itself.
  bool whole() const;

  Name scratch, dscratch;

 private:
  template <class F>
  void with_b(Context& ctx, Runtime& rt, F&& f) const;
};

// The parameters of a layer's adapter and its stage `stage`_lora.
std::shared_ptr<LowRank> add_low_rank(Wiring& w, const AdaptedLayer& layer, int x, bool magnitudes);

}  // namespace snug
