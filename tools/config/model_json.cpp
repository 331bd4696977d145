#include "tools/config/model_json.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tools/config/values.h"

namespace snug {
namespace {

using Json = nlohmann::ordered_json;

Json scalar(const ConfigNode& node) {
  const std::string& text = node.text;
  if (node.quoted) return text;
  if (text == "true") return true;
  if (text == "false") return false;
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  auto result = std::from_chars(text.data(), end, whole);
  if (result.ec == std::errc() && result.ptr == end) return whole;
  double real = 0;
  result = std::from_chars(text.data(), end, real);
  if (result.ec == std::errc() && result.ptr == end && real - real == 0) return real;
  return text;
}

Json convert(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::null:
      return nullptr;
    case ConfigNode::Kind::scalar:
      return scalar(node);
    case ConfigNode::Kind::list: {
      Json list = Json::array();
      for (const ConfigNode& item : node.items) list.push_back(convert(item));
      return list;
    }
    case ConfigNode::Kind::map: {
      Json map = Json::object();
      for (const ConfigNode::Entry& entry : node.entries) map[entry.key] = convert(entry.value);
      return map;
    }
  }
  return nullptr;
}

// Flow YAML that keeps the type of every value.
std::string print(const Json& json) {
  std::string text;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items())
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", yaml_text(key), print(value));
    return "{" + text + "}";
  }
  if (json.is_array()) {
    for (const Json& value : json) text += (text.empty() ? "" : ", ") + print(value);
    return "[" + text + "]";
  }
  if (json.is_string()) return yaml_text(json.get<std::string>());
  return json.dump();
}

}  // namespace

std::string model_json(const ConfigNode& map) {
  Json json = Json::object();
  const ConfigNode* const type = map.find("type");
  const ConfigNode* const model_type = map.find("model_type");
  if (type && model_type && type->text != model_type->text)
    fail(ErrorCode::usage, "model.type and model.model_type to be the same",
         type->describe() + " and " + model_type->describe(), "leave one of them out");
  for (const ConfigNode::Entry& entry : map.entries)
    json[entry.key == "type" ? "model_type" : entry.key] = convert(entry.value);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string model_yaml(const std::string& json, const std::string& base) {
  const Json parsed = Json::parse(json);
  const std::string text = print(parsed);
  if (base.empty()) return text;
  return fmt::format("{{base: {}, {}", yaml_text(base), text.substr(1));
}

}  // namespace snug
