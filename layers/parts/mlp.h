// The middle of an MLP as a stage, fused with the linear layer before it.
#pragma once

#include "layers/parts/linear.h"

namespace snug {

// act = f(x), slot and stage act; saves x. It reads the stored, rounded value: made again alone it
// has the same bits. Its gradient is handed on in place.
int activation(Wiring& w, int x);

}  // namespace snug
