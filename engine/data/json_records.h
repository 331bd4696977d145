// The objects of a JSON file, one at a time: an object a line, or one array of objects.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/io/byte_source.h"

namespace snug {

// Calls `each` with every object, where it begins, file:line, and its text. Throws data for broken JSON, for
// values that are no objects, and for an object of more than max_bytes; `longer` is said then too.
// Memory: the text of an object and the tree of its values.
void for_each_json_record(const std::string& path, int64_t max_bytes, const std::string& longer,
                          const WindowLimit& window,
                          const std::function<void(nlohmann::json&, const std::string& where,
                                                   std::string_view text)>& each);

}  // namespace snug
