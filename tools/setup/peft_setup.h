// Adapters of a run: what its keys and the folder of `adapter` say.
#pragma once

#include <optional>
#include <string>

#include "layers/models/peft.h"
#include "tools/config/run_config.h"

namespace snug {

// The adapters that a run trains; none without `peft` and `adapter`. Of an adapter to go on from they
// are what its adapter_config.json says. Throws usage where keys say something else.
std::optional<PeftConfig> resolve_peft_keys(const RunConfig& config);

// resolve_peft(), whose words of a config that came with the adapter of `folder` name that folder.
PeftModel resolve_adapter(const ModelSpec& spec, const PeftConfig& config,
                          const std::string& folder);

}  // namespace snug
