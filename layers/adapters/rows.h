// The rows of kinds.h: one file each.
#pragma once

#include "layers/adapters/kinds.h"

namespace snug {

const AdapterMethod& lora_method();
const AdapterMethod& ia3_method();
const AdapterMethod& vera_method();
const AdapterMethod& miss_method();
const AdapterMethod& mora_method();
const AdapterMethod& prompt_tuning_method();
const AdapterMethod& p_tuning_method();
const AdapterMethod& prefix_tuning_method();
const AdapterMethod& houlsby_method();
const AdapterMethod& pfeiffer_method();

}  // namespace snug
