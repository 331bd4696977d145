// What a run saved of its weights where several ranks wrote pieces of the file (safetensors_pieces.h): read
// to where they rest, or put together, never more than a parameter at a time.
#pragma once

#include <string>

#include "engine/io/safetensors.h"
#include "layers/models/model.h"

namespace snug {

// Reads what a run of the model saves (adapter_files.h) from the file, whole or in pieces. Ranks pass
// over what is none of theirs. Throws data.
void load_saved_weights(Context& ctx, const Model& model, const std::string& file,
                        const RestingWeights& weights);

// Writes `path` of that layout from the pieces of `file`, through `staging`, save_staging_bytes() long; what follows
// from parameters is made of theirs. A recorded op.
void join_weights(Context& ctx, const Model& model, const SafetensorsLayout& layout,
                  const std::string& file, const View& staging, const std::string& path);

}  // namespace snug
