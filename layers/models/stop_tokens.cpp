#include "layers/models/stop_tokens.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {
namespace {

// An id of eos_token_id; those that the model does not have never come.
void add_stop(const nlohmann::json& value, int64_t V, const std::string& where,
              std::vector<int32_t>& out) {
  if (!value.is_number_integer())
    fail(ErrorCode::data, "eos_token_id as an integer or a list of integers in " + where,
         json_brief(value), "\"eos_token_id\": 50256");
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() < uint64_t{1} << 31;
  const int64_t id = fits ? value.get<int64_t>() : -1;
  if (id >= 0 && id < V && std::find(out.begin(), out.end(), id) == out.end())
    out.push_back(static_cast<int32_t>(id));
}

}  // namespace

std::optional<std::vector<int32_t>> model_stop_tokens(const std::string& folder,
                                                      const ModelSpec& spec) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = folder + "/" + name;
    if (!file_exists(path)) continue;
    const nlohmann::json j = parse_json_file(path, 1 << 20);
    require_object(j, path);
    if (!j.contains("eos_token_id") || j["eos_token_id"].is_null()) continue;
    std::vector<int32_t> out;
    const nlohmann::json& eos = j["eos_token_id"];
    if (eos.is_array())
      for (const nlohmann::json& id : eos) add_stop(id, spec.V, path, out);
    else
      add_stop(eos, spec.V, path, out);
    return out;
  }
  return std::nullopt;
}

}  // namespace snug
