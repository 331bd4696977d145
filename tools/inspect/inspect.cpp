#include "tools/inspect/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/token_file.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/io/safetensors_pieces.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/inspect/kinds.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKinds =
    "a safetensors or GGUF file, a model folder, an adapter, a checkpoint, a run, a tokenizer or a "
    "token file";
constexpr const char* kHelp = "snug inspect --help names what can be looked at";

// For a person's terminal: no control characters, no broken UTF-8.
std::string shown(const std::string& text) {
  return printable_utf8(text, LineBreaks::shown);
}

std::string value_text(const std::string& name, const Facts& value) {
  if (value.is_string()) return shown(value.get<std::string>());
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_number_integer() && name.ends_with("bytes") && value.get<int64_t>() >= 1024)
    return fmt::format("{} ({})", value.get<int64_t>(), human_bytes(value.get<int64_t>()));
  if (value.is_array()) {
    std::string out;
    for (const Facts& item : value) out += (out.empty() ? "" : ", ") + value_text("", item);
    return "[" + out + "]";
  }
  return shown(value.dump(-1, ' ', false, Facts::error_handler_t::replace));
}

// A list of objects: one line each, columns under the names of the widest object.
std::string table(const Facts& rows) {
  std::vector<std::string> names;
  for (const Facts& row : rows)
    if (row.size() > names.size()) {
      names.clear();
      for (const auto& [name, value] : row.items()) names.push_back(name);
    }
  std::vector<std::vector<std::string>> cells = {names};
  for (const Facts& row : rows) {
    cells.emplace_back();
    for (const std::string& name : names)
      cells.back().push_back(row.contains(name) ? value_text("", row[name]) : "");
  }
  std::vector<size_t> widths(names.size());
  for (const auto& line : cells)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : cells) {
    std::string text = " ";
    for (size_t i = 0; i < line.size(); ++i)
      text += " " + line[i] + std::string(widths[i] - line[i].size() + 1, ' ');
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

bool there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// A file of ours is there; or the name of our checkpoints, which are torn then, but Hugging Face's
// Trainer gives its own folders, whole models and adapters, the same.
bool is_checkpoint(const std::string& path) {
  for (const char* name : {"snug_state.json", "COMPLETE"})
    if (there(path + "/" + name)) return true;
  if (safetensors_there(path + "/optimizer.safetensors")) return true;
  if (!checkpoint_step(fs::path(normal_path(path)).filename().string())) return false;
  if (there(path + "/adapter_config.json")) return false;
  if (!there(path + "/config.json")) return true;
  for (const char* name :
       {"model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (there(path + "/" + name)) return false;
  return !safetensors_there(path + "/model.safetensors");
}

[[noreturn]] void refuse_adapter(const std::string& path) {
  const std::string config = path + "/adapter_config.json",
                    weights = path + "/adapter_model.safetensors";
  const nlohmann::json j = parse_json_file(config, 1 << 20);
  require_object(j, config);
  const auto text = [&](const char* key, const char* otherwise) {
    return shown(j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : otherwise);
  };
  fail(ErrorCode::data, kKinds,
       fmt::format("{}: a PEFT adapter ({}) for {}, without its weights", path,
                   text("peft_type", "unknown"),
                   text("base_model_name_or_path", "a model it does not name")),
       weights + " beside its config");
}

Facts inspect_folder(const std::string& path, const InspectOptions& options) {
  if (is_checkpoint(path)) return inspect_checkpoint(path, options);
  if (there(path + "/config.resolved.yaml") || there(path + "/metrics.jsonl"))
    return inspect_run(path);
  const bool weights = safetensors_there(path + "/model.safetensors") ||
                       there(path + "/model.safetensors.index.json");
  if (!weights && there(path + "/adapter_config.json")) {
    if (!safetensors_there(path + "/adapter_model.safetensors")) refuse_adapter(path);
    return inspect_adapter(path, options);
  }
  if (weights || there(path + "/config.json")) return inspect_model(path, options);
  if (holds_tokenizer(path)) return inspect_tokenizer(path);
  fail(ErrorCode::data, kKinds, fmt::format("{}: a folder with none of their files", path), kHelp);
}

Facts inspect_file(const std::string& path, const InspectOptions& options) {
  const MappedFile file(path);
  const std::string_view head = file.text().substr(0, 4096);
  if (head.starts_with("GGUF")) return inspect_gguf(path, options);
  if (path.ends_with(".safetensors")) return inspect_safetensors(path, options);
  const std::string folder =
      fs::path(path).has_parent_path() ? fs::path(path).parent_path().string() : ".";
  if (path.ends_with(".index.json") || path.ends_with("config.json"))
    fail(ErrorCode::data, "the folder of a model", fmt::format("{}, one file of it", path),
         fmt::format("snug inspect {}", folder));
  const std::string name = fs::path(path).filename().string();
  for (const char* part :
       {"memory.json", "metrics.jsonl", "legs.jsonl", "config.resolved.yaml", "trainer_state.json"})
    if (name == part &&
        (there(folder + "/config.resolved.yaml") || there(folder + "/metrics.jsonl")))
      fail(ErrorCode::data, "the folder of a run", fmt::format("{}, one file of it", path),
           fmt::format("snug inspect {}", folder));
  if (file.size() >= 9) {
    // safetensors under another name: a header's length that fits, and its opening brace.
    uint64_t length = 0;
    std::memcpy(&length, head.data(), 8);
    if (head[8] == '{' && length <= static_cast<uint64_t>(file.size() - 8))
      return inspect_safetensors(path, options);
    int32_t magic = 0;
    std::memcpy(&magic, head.data(), 4);
    if (magic / 10000 == 2024) return inspect_tokens(path, options);  // llm.c's: dates
  }
  if (is_token_file_name(path)) return inspect_tokens(path, options);
  const size_t first = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string_view::npos && head[first] == '{' &&
      file.text().find("\"made_for\"") != std::string_view::npos &&
      file.text().find("\"minimum_bytes\"") != std::string_view::npos)
    fail(ErrorCode::data, kKinds, fmt::format("{}, the plan of a run", path),
         fmt::format("snug inspect {} for the run; plan={} follows the plan", folder, path));
  if (first != std::string_view::npos && head[first] == '{') {
    if (file.text().find("\"model\"") == std::string_view::npos)
      fail(ErrorCode::data, kKinds,
           fmt::format("{}, JSON without the \"model\" of a tokenizer", path), kHelp);
    return inspect_tokenizer(path);
  }
  fail(ErrorCode::data, kKinds,
       file.size() == 0 ? fmt::format("{}, an empty file", path)
                        : fmt::format("{}, {} bytes that begin with \"{}\"", path, file.size(),
                                      shown(std::string(head.substr(0, 16)))),
       kHelp);
}

}  // namespace

Facts inspect(const std::string& path, const InspectOptions& options) {
  std::error_code error;
  if (safetensors_in_pieces(path)) return inspect_safetensors(path, options);
  if (!fs::exists(path, error))
    fail(ErrorCode::data, kKinds, fmt::format("{}: no such file or folder", path),
         "check the path");
  return fs::is_directory(path, error) ? inspect_folder(path, options)
                                       : inspect_file(path, options);
}

std::string inspect_text(const Facts& facts) {
  std::string out;
  size_t width = 0;
  for (const auto& [name, value] : facts.items())
    if (!value.is_array() || value.empty() || !value[0].is_object())
      width = std::max(width, name.size());
  for (const auto& [name, value] : facts.items()) {
    if (value.is_object()) {
      out += fmt::format("{}:\n", name);
      for (const auto& [key, inner] : value.items())
        out += fmt::format("  {}: {}\n", shown(key), value_text(key, inner));
    } else if (value.is_array() && !value.empty() && value[0].is_object()) {
      out += fmt::format("{} ({}):\n{}", name, value.size(), table(value));
    } else {
      out += fmt::format("{:<{}} {}\n", name + ":", width + 1, value_text(name, value));
    }
  }
  return out;
}

}  // namespace snug
