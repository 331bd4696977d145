// What happens to the slots of a block between forward and backward, by name: `recompute` says
// which are dropped and made again, `offload` which go to the host's memory and come back. The rest
// is kept.
//
//              recompute                                  offload
//   none       nothing                                    nothing
//   norms      norm1, norm2                               -
//   inputs     -                                          the block's input
//   mlp        norm2, fc, act                             the same
//   attention  norm1, heads, qkv, att, lse                the same
//   block      everything but the block's input           the input and all that is not recomputed
//   a slot     qkv_lora attention_proj_lora fc_lora mlp_proj_lora of adapters, the same with _unscaled and _input (scaled_linear.h), norm1 mean1 rstd1 heads rstdq rstdk qkv att lse proj mid norm2 mean2 rstd2 rstd3 rstd4 fc act down sum: that one
// Names join with '+' (norms+fc). A map gives layers their own: "0-5: block, 6-11: none"; layers
// that it leaves out keep everything. No slot of a layer is in both.
#pragma once

#include <string>
#include <string_view>

#include "layers/models/model.h"

namespace snug {

// What names may stand in each, separated by spaces.
inline constexpr std::string_view kRecomputeNames =
    "none norms mlp attention block norm1 mean1 rstd1 heads rstdq rstdk qkv att lse proj mid norm2 "
    "mean2 "
    "rstd2 rstd3 rstd4 rows fc act down sum qkv_lora attention_proj_lora fc_lora mlp_proj_lora "
    "qkv_unscaled attention_proj_unscaled fc_unscaled mlp_proj_unscaled qkv_input "
    "attention_proj_input fc_input mlp_proj_input";
inline constexpr std::string_view kOffloadNames =
    "none inputs attention mlp block norm1 mean1 rstd1 heads rstdq rstdk qkv att lse proj mid "
    "norm2 "
    "mean2 "
    "rstd2 rstd3 rstd4 rows fc act down sum qkv_lora attention_proj_lora fc_lora mlp_proj_lora "
    "qkv_unscaled attention_proj_unscaled fc_unscaled mlp_proj_unscaled qkv_input "
    "attention_proj_input fc_input mlp_proj_input";

// Policies of all layers. Throws usage, naming the key with the policy, the layer or the slot, on
// anything unknown and on a slot that is in both.
LayerPolicies parse_policies(std::string_view recompute, std::string_view offload,
                             const Model& model);
// Whether no slot is in both; both are good on their own.
bool policies_combine(std::string_view recompute, std::string_view offload, const Model& model);
// The shortest words for the slots of one block that are recomputed; parse_policies reads them.
std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body);
// Words of every layer as one text: "norms", or "0-5: block, 6-11: none".
std::string recompute_text(const std::vector<std::string>& layers);

}  // namespace snug
