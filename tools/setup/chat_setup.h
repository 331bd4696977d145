// The chat template of a run or of a model folder, and the tokens that end its turns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/data/chat_rows.h"
#include "engine/text/tokenizer.h"
#include "layers/parts/spec.h"
#include "tools/config/run_config.h"

namespace snug {

// config.chat_template, a file; else that of config.tokenizer's folder, else of the model's. Special
// tokens are those of the tokenizer. None: none of them has one. Throws data on broken ones.
std::optional<ChatTemplate> chat_template_of(const RunConfig& config, const Tokenizer& tokenizer);

// Of a run with task: sft, dpo or reward. Throws data and usage.
ChatRows chat_rows_of(const RunConfig& config, const Tokenizer& tokenizer, const ModelSpec& spec);

// What a model folder has beside weights and tokenizer and a run hands on to the folders it writes:
// the chat template, and generation_config.json with all tokens that end a text. Into `folder`.
void save_chat_files(const RunConfig& config, const std::string& model_folder,
                     const std::optional<Tokenizer>& tokenizer, const std::string& folder);

}  // namespace snug
