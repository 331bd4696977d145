// A Hugging Face model folder as one GGUF file.
#pragma once

#include <string>
#include <vector>

#include "engine/io/gguf.h"

namespace snug {

struct GgufExport {
  std::string model;              // folder with config.json, weights and tokenizer
  std::string output;             // the file; replaced if it is there
  GgufType type = GgufType::F16;  // of the matrices; vectors and positions stay F32
  std::string name;               // general.name; empty: config.json's, else the folder's
  std::string pre;                // tokenizer.ggml.pre; empty: what the tokenizer has
};

struct ExportReport {
  int64_t tensors = 0, parameters = 0, bytes = 0;
  std::vector<std::string> notes;  // what the user should know
};

// Throws data and unsupported on folders that cannot be converted, and on a value that the type
// cannot hold (naming tensor and row); device if the disk refuses. The file appears whole or not at
// all. Memory: the header (the tokenizer) and a block of about 4 MiB, whatever the model's size.
ExportReport export_gguf(const GgufExport& request);

}  // namespace snug
