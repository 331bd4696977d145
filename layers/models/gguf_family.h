// A family as GGUF: names, keys and what cannot be said, from its GgufArchitecture, its table of tensors
// and the spec. Source: the loaders and graphs of llama.cpp (src/models) and its gguf-py/gguf/constants.py.
#pragma once

#include <string>
#include <vector>

#include "layers/models/family.h"

namespace snug {

class GgufMetadata;  // engine/io/gguf.h

// A tensor of a GGUF file: rows [first, first + rows) of a parameter, of a vector its elements.
struct GgufPiece {
  std::string name;
  int64_t first = 0, rows = 0;
  RowGroups groups = {};  // the order of these rows in the GGUF file
  float plus = 0;         // added to every value: norms that multiply by 1 + weight are written so
};

// Throws unsupported, naming `origin`, where llama.cpp computes another function than the spec's under
// the architecture's name. Returns what users are told.
std::vector<std::string> check_gguf(const GgufArchitecture& architecture, const ModelSpec& spec,
                                    const std::string& origin);

// The keys <architecture>.*: extents, numerics, rotary positions, windows.
void add_gguf_keys(const GgufArchitecture& architecture, const ModelSpec& spec, GgufMetadata& out);

// The tensors that a parameter becomes: as many as it has in the family's own files, and a tied head's
// once more where the architecture wants it.
std::vector<GgufPiece> gguf_pieces(const Family& family, const ParamInfo& param,
                                   const ModelSpec& spec);

// Tensors that are no parameter's: the divisors of rotary frequencies, one a pair.
struct GgufVector {
  std::string name;
  std::vector<float> values;
};
std::vector<GgufVector> gguf_vectors(const ModelSpec& spec);

// Whether a matrix stays F32 whatever type the others get.
bool gguf_always_f32(std::string_view name);

}  // namespace snug
