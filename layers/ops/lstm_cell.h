// A step of a long short-term memory, behind the products that make its gates: Hochreiter and Schmidhuber,
// "Long Short-Term Memory", 1997, in the form of torch.nn.LSTM.
//
// Math      i = s(gates[0]), f = s(gates[1]), g = tanh(gates[2]), o = s(gates[3]), s the sigmoid;
//           c = f c_before + i g;  h = o tanh(c). A row of gates is [i | f | g | o].
//           backward, of dh and of dc from the step behind: d = dc + dh o (1 - tanh(c)^2);
//           dgates = [d g i (1-i) | d c_before f (1-f) | d i (1-g^2) | dh tanh(c) o (1-o)];  dc = d f
// Shapes    h, c, c_before, dh, dc (N,H); gates, dgates (N,4H). An undefined c_before is 0.
// dtypes    one of f32, bf16, f16, the same for all.
// Aliasing  dgates may be gates. dc is read and written.
// Numerics  float, h and c rounded once; h is of c before that. Slopes are of what is made again of gates and
//           of c as it is held.
// Traffic   forward: gates and c_before in, h and c out. backward: gates, c, c_before, dh and dc in, dgates
//           and dc out. FLOPs 24 and 42 an element, functions as 4.
// Determinism  equal bits for any number of threads.
// Errors    shape; unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"

namespace snug {

void lstm_cell_forward(Context& ctx, const View& h, const View& c, const View& gates,
                       const View& c_before);
void lstm_cell_backward(Context& ctx, const View& dgates, const View& dc, const View& dh,
                        const View& gates, const View& c, const View& c_before);

}  // namespace snug
