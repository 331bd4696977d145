// The dropout of what an adapter reads of a layer's input, x' = drop(x): one mask for all modules of the
// layer, with the key of layers/ops/dropout.h.
#pragma once

#include "layers/ops/dropout.h"
#include "layers/parts/wiring.h"

namespace snug {

class InputDropout {
 public:
  InputDropout() = default;
  // Of the layer whose stage `own` comes next.
  InputDropout(const Wiring& w, float p, const std::string& own);

  const DropoutSpec& spec() const { return spec_; }
  // Whether x' is x in every mode.
  bool none() const { return spec_.p == 0.0f; }
  // x', in `made`; x itself where nothing is dropped.
  View forward(Context& ctx, const Pass& p, const View& x, Tensor& made) const;
  // Where the gradient of x' is to be written, dx itself or `made`; and dx (+)= what of it x gets.
  GradView open(Context& ctx, const GradView& dx, Tensor& made) const;
  void close(Context& ctx, const Pass& p, const GradView& dx, const GradView& written) const;

 private:
  DropoutSpec spec_;
  Name dropped_, dx_;
};

}  // namespace snug
