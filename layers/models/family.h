// A family: one file that reads and writes the published config.json and maps weight names. Named
// in registry.cpp; nothing else knows which families exist.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/seams/parameter.h"
#include "layers/parts/spec.h"

namespace snug {

class GgufMetadata;  // engine/io/gguf.h

// How a family is written as GGUF, for programs of the ggml kind.
struct GgufFamily {
  const char* architecture;  // general.architecture
  // Throws unsupported, naming `origin`, if those programs compute another function than the
  // spec's.
  void (*check)(const ModelSpec& spec, const std::string& origin);
  // The keys <architecture>.*: extents and numerics.
  void (*metadata)(const ModelSpec& spec, GgufMetadata& out);
  // Names of a parameter there; more than one if it is stored more than once.
  std::vector<std::string> (*names)(const ParamInfo& param, const ModelSpec& spec);
  // Whether a matrix stays F32 whatever type the others get.
  bool (*always_f32)(std::string_view name);
};

struct Family {
  const char* model_type;
  // Fills the spec from a config.json (or the `model:` map). `origin` names it in errors. Keys of
  // another meaning than the spec can express are refused; with `strict`, keys nobody knows as
  // well.
  ModelSpec (*parse)(const nlohmann::json& config, const std::string& origin, bool strict);
  nlohmann::json (*write)(const ModelSpec& spec, const char* torch_dtype);
  // config.json of a published shape ("gpt2-medium"), or nothing.
  std::optional<nlohmann::json> (*named)(std::string_view name);
  std::vector<std::string> (*names)();
  // Names under which a file may hold a parameter, the one to write first.
  std::vector<std::string> (*file_names)(const ParamInfo& param);
  // Whether a tensor that no parameter asked for is a known leftover (buffers, tied copies).
  bool (*ignorable)(std::string_view tensor, const ModelSpec& spec);
  const GgufFamily* gguf = nullptr;  // null: not written as GGUF
};

// Throws unsupported, listing the families that are there.
const Family& find_family(std::string_view model_type, const std::string& origin);

// The spec of `model`, a named shape or a folder with config.json (weights are then in `folder`),
// or of a map of config keys as JSON text ({"type": "gpt2", "n_layer": 4}), or of both: the map's
// keys replace those of the shape. `vocab_size` fills in for a map that names none. Throws usage or
// data.
struct ModelSource {
  ModelSpec spec;
  std::string folder;  // empty: nothing to load
};
ModelSource resolve_model(const std::string& model, const std::string& map, int64_t vocab_size = 0);

}  // namespace snug
