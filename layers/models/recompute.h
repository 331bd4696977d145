// What happens to the slots of a block between forward and backward, by name: `recompute` says
// which are dropped and made again, `offload` which go to the host's memory and come back. The rest
// is kept.
//
//              recompute                                  offload
//   none       nothing                                    nothing
//   norms      norms of the block's input and middle      -
//   inputs     -                                          the block's input
//   mlp        the MLP up to its last product             the same
//   attention  attention up to its projection             the same
//   block      everything but the block's input           the input and all that is not recomputed
//   a slot     that one, by the name that its part gives it (norm1, qkv, att, fc, act, qkv_lora ...)
// Which slots are in norms, mlp and attention the parts say (Slot::presets, layers/parts/wiring.h).
// Names join with '+' (norms+fc). A map gives layers their own: "0-5: block, 6-11: none"; layers
// that it leaves out keep everything. No slot of a layer is in both.
#pragma once

#include <string>

#include "layers/models/layer_words.h"
#include "layers/models/model.h"

namespace snug {

// Policies of all layers. Throws usage, naming the key with the policy, the layer or the slot, on
// anything unknown and on a slot that is in both.
LayerPolicies parse_policies(const LayerWords& recompute, const LayerWords& offload,
                             const Model& model);
// Whether no slot is in both; both are good on their own.
bool policies_combine(const LayerWords& recompute, const LayerWords& offload, const Model& model);
// The shortest words for the slots of one block that are recomputed; parse_policies reads them.
std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body);

}  // namespace snug
