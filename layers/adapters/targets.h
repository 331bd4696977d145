// Which modules of a model have an adapter where nobody says so: what a row of kinds.h chooses from, and how.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/parts/adapter.h"
#include "layers/parts/spec.h"

namespace snug {

// A module of the family's files that a linear layer here is, or that rows of one are.
struct AdaptableModule {
  std::string path;     // model.layers.0.self_attn.q_proj
  std::string layer;    // h.0.attn.c_attn
  int64_t number = -1;  // of its block; -1: of none
  AdapterPiece piece;
  int64_t in = 0;
  bool transposed = false;  // in its file
  bool table = false;       // of embeddings
  std::string last() const { return path.substr(path.rfind('.') + 1); }
};

// Of a model's modules those that have one: ends of paths or whole ones.
using TargetChoice = std::function<std::vector<std::string>(
    const ModelSpec& spec, std::span<const AdaptableModule> modules)>;

// PEFT's of most methods: what makes queries and values, or the one module that makes all three.
std::vector<std::string> queries_and_values(const ModelSpec& spec,
                                            std::span<const AdaptableModule> modules);
// IA3's: what makes keys and values, or all three, and behind_mlp().
std::vector<std::string> keys_values_and_mlp(const ModelSpec& spec,
                                             std::span<const AdaptableModule> modules);
// The projection behind the MLP of every block.
std::vector<std::string> behind_mlp(const ModelSpec& spec,
                                    std::span<const AdaptableModule> modules);
// The layers of every block whose names there are among `places` (attn.c_proj), separated by spaces.
std::vector<std::string> placed(std::string_view places, std::span<const AdaptableModule> modules);

// Whether a list separated by spaces has a word.
bool has_word(std::string_view list, std::string_view word);

}  // namespace snug
