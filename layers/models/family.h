// A family: one file that reads and writes the published config.json and maps weight names. Named
// in registry.cpp; nothing else knows which families exist.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/seams/parameter.h"
#include "layers/parts/spec.h"

namespace snug {

// Whether the graph of a GGUF architecture has something.
enum class GgufPart : uint8_t { never, may, must };

// An architecture of GGUF as llama.cpp computes it, for the families that are written so. Names and keys
// follow from the spec and from the family's table of tensors (gguf_family.h); a spec that it would compute
// in another way is refused.
struct GgufArchitecture {
  const char* name = nullptr;  // general.architecture
  Activation activation = Activation::silu;
  // Computes gelu by tanh where the model has erf, which users are told.
  bool near_gelu = false;
  // Rotary positions turn neighbours: rows of queries and keys are moved.
  bool adjacent_pairs = false;
  bool heads_fill_width = false;  // H D is C
  bool says_parallel = false;     // has the key use_parallel_residual
  GgufPart qkv_bias = GgufPart::never, projection_bias = GgufPart::never;
  GgufPart mlp_bias = GgufPart::never;
  GgufPart own_head = GgufPart::may;  // output.weight; must: a tied head is written twice
  GgufPart partial_turns = GgufPart::never, turn_factors = GgufPart::never;
  bool two_turn_factors = false;  // turn_factors of longrope alone, not of llama3
  GgufPart attention_cap = GgufPart::never, head_cap = GgufPart::never;
  GgufPart windows = GgufPart::never;  // must: a model without has one as long as its positions
  // Without a key, every so manieth layer has no window and the others do.
  int64_t window_every = 0;
  int64_t still_every = 0;        // every so manieth layer does not turn; 0: all do
  int64_t wide_scale_layers = 0;  // a model of so many layers divides scores by the root of C / H
};

// A name that transformers gives a key in every family, and the family's own.
struct KeyAlias {
  const char* general;
  const char* own;
};

// Rows of a tensor of a file in another order than the parameter's: the file has `outer` groups of
// `inner` runs of `rows` rows, the parameter `inner` groups of `outer` runs; again for every outer * inner * rows
// rows there are. 1 and 1: the same order.
struct RowGroups {
  int64_t outer = 1, inner = 1, rows = 0;
  bool any() const { return outer > 1 && inner > 1; }
  // Where row `row` of the file is in the parameter, and the reverse.
  int64_t ours(int64_t row) const { return move(row, outer, inner); }
  int64_t file(int64_t row) const { return move(row, inner, outer); }

 private:
  int64_t move(int64_t row, int64_t groups, int64_t runs) const {
    const int64_t all = groups * runs * rows, in = row % all, run = in / rows, group = run / runs;
    return row - in + ((run % runs) * groups + group) * rows + in % rows;
  }
};

// A tensor of a file that holds a parameter, or rows of one.
struct FilePiece {
  std::vector<std::string> names;  // under which a file may hold it, the one to write first
  int64_t rows = 0;                // of the parameter's first extent
  RowGroups groups = {};           // the order of these rows in the file
};

struct Family {
  const char* model_type;
  // Fills the spec from a config.json (or the `model:` map). `origin` names it in errors. Keys of
  // another meaning than the spec can express are refused; with `strict`, what check_keys refuses
  // as well.
  ModelSpec (*parse)(const nlohmann::json& config, const std::string& origin, bool strict);
  nlohmann::json (*write)(const ModelSpec& spec, const char* torch_dtype);
  // config.json of a published shape ("gpt2-medium"), or nothing.
  std::optional<nlohmann::json> (*named)(std::string_view name);
  std::vector<std::string> (*names)();
  // The tensors of files that a parameter is made of, in the order of its rows. The embedding of a
  // tied model may stand under the name of the head alone.
  std::vector<FilePiece> (*pieces)(const ParamInfo& param, const ModelSpec& spec);
  // Whether a tensor that no parameter asked for is a known leftover: a buffer that is computed.
  bool (*ignorable)(std::string_view tensor);
  const char* embedding;         // the parameter that a tied head shares
  const char* head;              // the parameter that an untied head has
  const GgufArchitecture* gguf;  // null: not written as GGUF
  // Throws usage for keys of a map that a user wrote: those nobody knows, and those that files hold
  // and that would have no effect here.
  void (*check_keys)(const nlohmann::json& keys, const std::string& origin);
  // parse reads the own names alone, see own_names().
  std::span<const KeyAlias> aliases;
  // Gives the spec one of `heads`, with what the family has in it.
  void (*set_head)(ModelSpec& spec, HeadKind head) = nullptr;
  std::span<const HeadKind> heads = {};  // in the order of messages
  bool reads_bias = false;               // its configs may say bias: false (absent_biases.h)
};

// Gives the keys of a config their own names. Throws usage if one is there under both, with
// different values.
void own_names(nlohmann::json& config, const Family& family, const std::string& origin);

// Throws unsupported, listing the families that are there.
const Family& find_family(std::string_view model_type, const std::string& origin);

// The spec of `model`, a named shape or a folder with config.json (weights are then in `folder`),
// or of a map of config keys as JSON text ({"type": "gpt2", "n_layer": 4}), or of both: the map's
// keys, general names of transformers included, replace those of the shape. `vocab_size` fills in
// for a map that names none. Throws usage or data.
struct ModelSource {
  ModelSpec spec;
  std::string folder;  // empty: nothing to load
};
// Gives a spec the head of a task. Throws unsupported, naming `origin`, if the family has none.
void set_head(ModelSpec& spec, HeadKind head, const std::string& origin);
// "masked_lm"; the word of the key task.
const char* to_string(HeadKind head);
HeadKind parse_head(std::string_view word);

// The named shapes of all families, with commas between.
std::string known_names();

// settle_head() of weights.h is asked where the folder's weights are read.
ModelSource resolve_model(const std::string& model, const std::string& map, int64_t vocab_size = 0);

}  // namespace snug
