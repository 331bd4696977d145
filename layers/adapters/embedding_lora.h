// LoRA on a table of embeddings: y = E[t] + s A^T[t] B^T, with E (V,C) frozen, A (r,V) and B (C,r). A begins as
// 0, B as N(0,1), and nothing is dropped, as PEFT has it; a head that is tied to E reads E alone.
//
//   stage           reads  writes    backward
//   embedding_lora  -      u (N,r)   dA^T (+)= du, added to the rows of their tokens
//   embedding       u      y (N,C)   dB (+)= s dy^T u;  du = s dy B
//
// u = A^T[t]; A is held as (V,r), so that a token's row lies together.
//
// DoRA has the magnitude m (C) of each column beside them: y = g (E[t] + s A^T[t] B^T), g = m / norms, norms those
// of the columns of E + s A^T B^T, all V rows of it, a constant of backward. In the form of PEFT.
//
//   stage           reads     writes           backward
//   embedding_lora  -         u, norms (C)     as above
//   embedding       u, norms  y                with v = E[t] + s u B^T, made again, and dv = g dy:
//                                              dm (+)= sum over n of dy v / norms;  dB, du as above of dv
//
// To positions and types, which the same op adds to E[t], g v - E[t] is added, exactly 0 of a new adapter.
#pragma once

#include "layers/parts/adapter.h"

namespace snug {

// With DoRA's magnitude behind B.
std::vector<AdapterParam> embedding_lora_params(const AdaptedLayer& layer, bool magnitudes);
std::shared_ptr<const AdapterSum> embedding_lora(Wiring& w, const AdaptedLayer& layer,
                                                 bool magnitudes);
// norms (C) of DoRA, of the table (V or more,C).
void table_norms(Context& ctx, ParamStore& store, const AdaptedLayer& layer, const View& table,
                 const View& norms);
MergedModule merged_embedding_lora(const AdaptedLayer& layer, const TensorValues& values,
                                   bool magnitudes);

}  // namespace snug
