// Recompute policies by name: which slots of a block are dropped in forward and made again in
// backward.
//
//   none       keep everything
//   norms      norm1, norm2
//   mlp        norm2, fc, act
//   attention  norm1, qkv, att, lse
//   block      everything but the block's input
// Names join with '+' (norms+mlp). A map gives layers their own: "0-5: block, 6-11: none"; layers
// that it leaves out keep everything.
#pragma once

#include <string>
#include <string_view>

#include "layers/models/model.h"

namespace snug {

// Policies of all layers. Throws usage, naming the policy or the layer, on anything unknown.
LayerPolicies parse_recompute(std::string_view text, const Model& model);

}  // namespace snug
