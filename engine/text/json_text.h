// What the tokenizer files need of JSON beyond engine/io/json.h. Only .cpp files include this.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/json.h"

namespace snug {

using Json = nlohmann::json;

// The member `key`, or null if absent. Throws Error (data) unless `object` is an object.
inline const Json& json_member(const Json& object, const char* key, const std::string& where) {
  static const Json null;
  require_object(object, where);
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

// Members with a default for absent and null; another type is an Error (data).
inline bool json_bool(const Json& object, const char* key, bool absent, const std::string& where) {
  require_object(object, where);
  return get_bool(object, key, where, absent);
}
inline std::string json_string(const Json& object, const char* key, const std::string& where) {
  require_object(object, where);
  return get_string(object, key, where, "");
}

}  // namespace snug
