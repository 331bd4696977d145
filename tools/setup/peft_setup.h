// Adapters of a run: what its keys and the folder of `adapter` say.
#pragma once

#include <optional>
#include <string>

#include "engine/data/front_tokens.h"
#include "engine/text/tokenizer.h"
#include "layers/models/peft.h"
#include "tools/config/run_config.h"

namespace snug {

// The adapters that a run trains; none without `peft` and `adapter`. Of an adapter to go on from they
// are what its adapter_config.json says. Throws usage where keys say something else.
std::optional<PeftConfig> resolve_peft_keys(const RunConfig& config, const ModelSpec& spec,
                                            const std::string& model_folder);
// The fields of `adapter` as its folder has them, and the dropout that it is trained with, so that the run's
// own configuration says them too.
void take_adapter_fields(const PeftConfig& trained, RunConfig& config);

// The virtual tokens that every sequence of a run begins with.
FrontTokens front_of(const std::optional<PeftConfig>& peft, const ModelSpec& spec);
// Of virtual tokens: what is beside them that they are not for. Throws usage and unsupported.
void check_front(const RunConfig& config, const PeftConfig& peft, const ModelSpec& spec);
// The tokens of a new adapter's first text, which it begins as. Throws usage: no tokenizer, no weights
// (`folder` is empty), no token.
void settle_first_text(const std::optional<Tokenizer>& tokenizer, const std::string& folder,
                       PeftConfig& peft);

// resolve_peft(), whose words of a config that came with the adapter of `folder` name that folder.
PeftModel resolve_adapter(const ModelSpec& spec, const PeftConfig& config,
                          const std::string& folder);

}  // namespace snug
