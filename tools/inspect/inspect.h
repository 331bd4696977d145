// What a path holds: safetensors files, model folders, GGUF files, checkpoints, runs, tokenizers,
// token files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace snug {

struct InspectOptions {
  bool stats =
      false;  // read every value: least, largest, mean, deviation, counts of NaN and infinity
};

// The facts as one object that begins with kind and path. Kinds: safetensors, model, gguf,
// checkpoint, run, tokenizer, tokens. Throws data for a path that is none of these, or broken, in
// the words of its reader.
nlohmann::ordered_json inspect(const std::string& path, const InspectOptions& options);

// The same for a person: lines `name: value`, and lists of objects as tables. Control characters
// and what is not UTF-8 are written as \xNN.
std::string inspect_text(const nlohmann::ordered_json& facts);

}  // namespace snug
