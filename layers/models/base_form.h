// How a frozen base rests beside adapters: in codes of bitsandbytes, whole, or some of its modules so; and what a
// folder that transformers saved in such codes says of them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/seams/weight_codes.h"
#include "layers/adapters/config.h"
#include "layers/parts/spec.h"

namespace snug {

// Whether a path is a name, or ends with one at a dot.
bool is_path_end(std::string_view path, std::string_view name);

// Frozen linear weights of the blocks in codes of the configuration's codec: each tensor of the
// family's files by itself, as bitsandbytes codes the modules of a model; what is of no block stays, and so
// do the configuration's skip_modules. Throws usage on one of these that is no module of the model, and
// on one that is a weight here together with modules that are not among them (queries, keys and values).
std::shared_ptr<const WeightCodes> block_codes(const ModelSpec& spec, const PeftConfig& config);

// As files and flags say it: full, nf4, nf4-double, fp4, fp4-double, int8, or int8:4.5 of another threshold
// than 6; behind it /NAME,NAME of modules that rest whole.
std::string base_form(const PeftConfig& config);
// Throws usage on another word; `where` had it.
void set_base_form(PeftConfig& config, const std::string& form, const std::string& where);

// Of names, those of modules that would rest in codes: a head's name asks for nothing. Throws as block_codes().
std::vector<std::string> skipped_of_blocks(const ModelSpec& spec,
                                           const std::vector<std::string>& names);

// The linear modules of a model that codes leave whole beside skip_modules, as transformers is to be told:
// the head, and what else is of no block.
std::vector<std::string> modules_of_no_block(const ModelSpec& spec);

// config.json's quantization_config of a folder whose weights are in codes of bitsandbytes, as codec, doubled,
// int8_threshold and skip_modules; nothing of another folder. Skipped is what the folder skips of blocks.
// Throws data on fields of another type.
std::optional<PeftConfig> folder_form(const std::string& folder, const ModelSpec& spec);
// The same as transformers writes it; `skip`: all modules that rest whole.
nlohmann::json quantization_config(const PeftConfig& form, const std::vector<std::string>& skip);

}  // namespace snug
