// LoRA on a table of embeddings: y = E[t] + s A^T[t] B^T, with E (V,C) frozen, A (r,V) and B (C,r). A begins as
// 0, B as N(0,1), and nothing is dropped, as PEFT has it; a head that is tied to E reads E alone.
//
//   stage           reads  writes    backward
//   embedding_lora  -      u (N,r)   dA^T (+)= du, added to the rows of their tokens
//   embedding       u      y (N,C)   dB (+)= s dy^T u;  du = s dy B
//
// u = A^T[t]; A is held as (V,r), so that a token's row lies together.
#pragma once

#include "layers/parts/adapter.h"

namespace snug {

std::vector<AdapterParam> embedding_lora_params(const AdaptedLayer& layer);
std::shared_ptr<const AdapterSum> embedding_lora(Wiring& w, const AdaptedLayer& layer);
MergedModule merged_embedding_lora(const AdaptedLayer& layer, const TensorValues& values);

}  // namespace snug
