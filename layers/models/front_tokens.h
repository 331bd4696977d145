// Adapters of PEFT's that are virtual tokens in front of every sequence, and of no module.
#pragma once

#include "layers/models/peft.h"

namespace snug {

// resolve_peft() of such a method. Throws unsupported: a model with another head than that of a causal language
// model; usage: as many tokens as positions, or more.
PeftModel resolve_front(const ModelSpec& spec, const PeftConfig& config);

// PEFT's token_dim of such a method: what it has of a token, of a prefix those of a layer's keys.
struct AdapterMethod;
int64_t front_width(const ModelSpec& spec, const AdapterMethod& method);

// What a model comes to once its adapters are known.
void finish_peft(const ModelSpec& spec, const PeftConfig& config, PeftModel& result);

}  // namespace snug
