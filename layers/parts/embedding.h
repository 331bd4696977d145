// The embedding of tokens, positions and token types, with the norm and the dropout behind it.
#pragma once

#include "layers/parts/runtime.h"
#include "layers/parts/wiring.h"

namespace snug {

class Embedding {
 public:
  // Adds wte.weight, wpe.weight and, where the spec has them, wtt.weight and embedding.norm.
  Embedding(const ModelSpec& spec, const Precision& precision, ParamTable& table,
            const Adapters& adapters);

  const Body& body() const { return body_; }
  // Settles what is trained, from the table when it is whole.
  void derive(const ParamTable& table);
  int wte() const { return wte_; }
  // x (N,C) of rt.tokens (B,T), whose ids lie in [0,V). Positions begin anew where documents do.
  Tensor forward(Context& ctx, Runtime& rt, Pass& pass, PassMode mode) const;
  // Takes the gradient of x. That of a table which the head shares is complete with it.
  void backward(Context& ctx, Pass& pass, Tensor dx) const;

 private:
  int wte_ = -1;
  Body body_;
  int out_ = -1;  // slot
};

}  // namespace snug
