// The middle of an MLP as a stage, fused with the linear layer before it; and dropout by itself.
#pragma once

#include "layers/parts/linear.h"

namespace snug {

// act = f(x), slot and stage act; saves x. It reads the stored, rounded value: made again alone it
// has the same bits. Its gradient is handed on in place.
int activation(Wiring& w, int x, Activation kind);

// act = f(gate) up of gate_up (N,2F), slot and stage act; saves gate_up, whose gradient is another
// tensor.
int gated_activation(Wiring& w, int gate_up, Activation kind);

// y = dropout(x), slot and stage of that name; x itself where nothing is ever dropped. In inference a
// copy.
int dropout(Wiring& w, const char* name, int x, BranchDropout d);

}  // namespace snug
