// The weights of a model folder: one file or the shards of an index.
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "engine/io/safetensors_header.h"
#include "engine/io/safetensors_pieces.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A shard is a plain name in the index's own folder: an index from the network must not reach
// others.
bool plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& path) : path_(path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (ends_with(path, ".index.json")) {
      open_index(path);
    } else {
      files_.emplace_back(path);
    }
    return;
  }
  const std::string single = (fs::path(path) / "model.safetensors").string();
  const std::string index = single + ".index.json";
  if (safetensors_there(single)) {
    files_.emplace_back(single);
  } else if (file_exists(index)) {
    open_index(index);
  } else {
    const bool pickle = file_exists((fs::path(path) / "pytorch_model.bin").string()) ||
                        file_exists((fs::path(path) / "pytorch_model.bin.index.json").string());
    fail(
        ErrorCode::data,
        fmt::format("model.safetensors or model.safetensors.index.json in {}", path),
        pickle ? "only pytorch_model.bin, a pickle, which can run code when it is read" : "neither",
        pickle ? "save the model again with transformers, which writes safetensors"
        : file_exists(path + "/final/model.safetensors")
            ? path + "/final, the model of this run"
            : "give a model folder, a .safetensors file, or a named shape to start from");
  }
}

void SafetensorsFolder::open_index(const std::string& index) {
  const nlohmann::json root = parse_json_file(index);
  require_object(root, index);
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object() || map->empty())
    fail(ErrorCode::data, fmt::format("an object \"weight_map\" of tensor names in {}", index),
         map == root.end() ? "no such key" : json_brief(*map),
         "download the index again, or save the model again");
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !plain_name(file.get_ref<const std::string&>()))
      fail(ErrorCode::data,
           fmt::format("a file name without a folder for tensor '{}' in {}", tensor, index),
           json_brief(file), "put the shards beside the index and name them there");
    shards.insert(file.get<std::string>());
  }
  const fs::path folder = fs::path(index).parent_path();
  for (const std::string& shard : shards) {
    const std::string file = (folder / shard).string();
    if (!file_exists(file))
      fail(ErrorCode::data, fmt::format("the shard {} that {} names", file, index), "no such file",
           "download the missing shard");
    files_.emplace_back(file);
  }
  std::set<std::string_view> seen;
  for (const SafetensorsReader& reader : files_)
    for (const SafeTensor& t : reader.tensors())
      if (!seen.insert(t.name).second)
        fail(ErrorCode::data, fmt::format("every tensor in one shard of {}", index),
             fmt::format("'{}' in two, one is {}", t.name, reader.path()),
             "remove shards that belong to another model");
  for (const auto& [tensor, file] : map->items()) {
    const std::string shard = (folder / file.get<std::string>()).string();
    for (const SafetensorsReader& reader : files_) {
      if (reader.path() == shard && reader.find(tensor) == nullptr)
        fail(ErrorCode::data, fmt::format("tensor '{}' in {}, as {} says", tensor, shard, index),
             fmt::format("{} other tensors there", reader.tensors().size()),
             "download the index and the shards of the same version");
    }
  }
}

std::vector<const SafeTensor*> SafetensorsFolder::tensors() const {
  std::vector<const SafeTensor*> out;
  for (const SafetensorsReader& reader : files_)
    for (const SafeTensor& t : reader.tensors()) out.push_back(&t);
  for (const std::unique_ptr<Zeros>& z : zeros_) out.push_back(&z->tensor);
  return out;
}

void SafetensorsFolder::add_zeros(const std::string& name, const std::vector<int64_t>& shape) {
  auto zeros = std::make_unique<Zeros>();
  zeros->tensor = {.name = name, .dtype = SafeDType::F32, .shape = shape};
  zeros->bytes.assign(static_cast<size_t>(4 * zeros->tensor.elements()), 0);
  zeros->tensor.data = zeros->bytes.data();
  zeros->tensor.bytes = static_cast<int64_t>(zeros->bytes.size());
  zeros_.push_back(std::move(zeros));
}

const SafeTensor* SafetensorsFolder::find(std::string_view name) const {
  for (const SafetensorsReader& reader : files_)
    if (const SafeTensor* t = reader.find(name)) return t;
  for (const std::unique_ptr<Zeros>& z : zeros_)
    if (z->tensor.name == name) return &z->tensor;
  return nullptr;
}

const SafeTensor& SafetensorsFolder::at(std::string_view name) const {
  if (const SafeTensor* t = find(name)) return *t;
  int64_t count = 0;
  std::string example;
  for (const SafetensorsReader& reader : files_) {
    count += static_cast<int64_t>(reader.tensors().size());
    if (example.empty() && !reader.tensors().empty()) example = reader.tensors().front().name;
  }
  fail_missing_tensor(name, path_, example, count);
}

}  // namespace snug
