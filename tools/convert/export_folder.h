// A Hugging Face model folder as another one with weights of another dtype, in one file and under
// the names transformers writes.
#pragma once

#include <string>

#include "engine/core/dtype.h"
#include "tools/convert/export_gguf.h"

namespace snug {

// Writes config.json, model.safetensors and the tokenizer's files, and copies
// generation_config.json and chat_template.jinja; keys of config.json that we do not write are the
// source's. Tensors that are not part of the model are left out, with a note for each. The folder
// must not be there, or be empty: usage otherwise. It appears whole or not at all; one that is
// there gets its config.json last. Until then the files are in a folder .snug-convert-*, beside it
// or in it; what a kill left in it of such is removed, and counts as nothing (but not the files of
// one that was killed while they came to it). f32, f16 or bf16, each value rounded once; a value
// that f16 cannot hold is an error of code data. Memory: a block, whatever the model's size.
// With `adapter`, a PEFT folder, the weights are those of the two together: W + s B A in f32, then
// rounded once. `base_form` (layers/models/peft.h) says what W is: the base's own (full), or what its
// codes of 4 bits decode to; auto: as those that the adapter was trained over. A note says which.
// With `rows`, a form of int8 (coded_rows.h), the linear weights of the blocks are its codes, and config.json says so;
// memory is then a tensor.
ExportReport export_folder(const std::string& model, DType dtype, const std::string& output,
                           const std::string& adapter = "", const std::string& base_form = "auto",
                           const std::string& rows = "");

}  // namespace snug
