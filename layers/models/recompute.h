// Recompute policies by name: which slots of a block are dropped in forward and made again in
// backward.
//
//   none       keep everything
//   norms      norm1, norm2
//   mlp        norm2, fc, act
//   attention  norm1, qkv, att, lse
//   block      everything but the block's input
// Besides these, a slot of the block by its own name: norm1, mean1, rstd1, qkv, att, lse, mid,
// norm2, mean2, rstd2, fc, act. Names join with '+' (norms+mlp, norms+act). A map gives layers
// their own: "0-5: block, 6-11: none"; layers that it leaves out keep everything.
#pragma once

#include <string>
#include <string_view>

#include "layers/models/model.h"

namespace snug {

// Policies of all layers. Throws usage, naming the policy or the layer, on anything unknown.
LayerPolicies parse_recompute(std::string_view text, const Model& model);
// The shortest words for the slots of one block that are recomputed; parse_recompute reads them.
std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body);
// Words of every layer as one text: "norms", or "0-5: block, 6-11: none".
std::string recompute_text(const std::vector<std::string>& layers);

}  // namespace snug
