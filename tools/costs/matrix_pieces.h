// What of a model's parameters is a matrix by itself, for optimizers that look at matrices (Muon, Adam-mini).
#pragma once

#include <vector>

#include "layers/models/model.h"
#include "optim/optimizer.h"

namespace snug {

// By parameter: the matrices of a trained weight of a layer, rows one behind the other: queries, keys and
// values apart, gate and up, and the A of each module of an adapter. None: of embeddings, heads, norms,
// biases, scales and what is frozen.
std::vector<std::vector<OptimPiece>> matrix_pieces(const Model& model);

// The same where the optimizer looks at them.
void add_pieces(OptimizerConfig& optimizer, const Model& model);

}  // namespace snug
