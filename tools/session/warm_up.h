// What a GPU takes of its memory when work first comes to it (code that is loaded, what libraries
// choose and keep, graphs), taken before the first step.
#pragma once

#include "tools/session/computes_on.h"
#include "tools/session/session.h"

namespace snug {

// Runs the programs of training, evaluation and decoding once, with graphs twice, on a batch whose
// loss is not a number: then the update writes nothing, and gradients are assigned by the next
// window. Where backward updates, the first gradients that are complete say so, before their
// update. Before the weights are written; the step's state is as before.
void warm_up(Session& session);

// The same on a GPU, with the algorithms of products that `on` names. Where it names none and
// `autotune` is asked for they are measured meanwhile, and then it names them.
void warm_up_gpu(Session& session, ComputesOn& on, bool autotune);

}  // namespace snug
