#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/families.h"
#include "layers/models/family.h"

namespace snug {

namespace {
const Family* const kFamilies[] = {&kGpt2Family};

std::string known_types() {
  std::string list;
  for (const Family* f : kFamilies) list += (list.empty() ? "" : ", ") + std::string(f->model_type);
  return list;
}

std::string known_names() {
  std::string list;
  for (const Family* f : kFamilies)
    for (const std::string& n : f->names()) list += (list.empty() ? "" : ", ") + n;
  return list;
}
}  // namespace

const Family& find_family(std::string_view model_type, const std::string& origin) {
  for (const Family* f : kFamilies)
    if (model_type == f->model_type) return *f;
  fail(ErrorCode::unsupported, fmt::format("a model_type among: {}", known_types()),
       fmt::format("model_type \"{}\" in {}", model_type, origin), "model=gpt2");
}

ModelSource resolve_model(const std::string& model) {
  ModelSource source;
  if (!model.empty() && model.front() == '{') {
    nlohmann::json config = parse_json(model, "model");
    require_object(config, "model");
    const std::string type =
        get_string(config, "type", "model", get_string(config, "model_type", "model", ""));
    if (type.empty())
      fail(ErrorCode::usage, "type in the model map", json_brief(config),
           "model={type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}");
    config.erase("type");
    source.spec = find_family(type, "model").parse(config, "model", true);
    return source;
  }
  const std::filesystem::path path(model);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::string file = (path / "config.json").string();
    const nlohmann::json config = parse_json_file(file);
    require_object(config, file);
    source.spec =
        find_family(get_string(config, "model_type", file), file).parse(config, file, false);
    source.folder = model;
    return source;
  }
  for (const Family* f : kFamilies)
    if (const auto config = f->named(model)) {
      source.spec = f->parse(*config, model, true);
      return source;
    }
  fail(ErrorCode::usage,
       fmt::format("model as a named shape ({}), a folder with config.json, or a map",
                   known_names()),
       fmt::format("model: {}", model), "model=gpt2");
}

}  // namespace snug
