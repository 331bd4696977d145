// The JSON header of a safetensors file, parsed without building a tree. Internal to engine/io.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"

namespace snug {

struct HeaderEntry {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;  // in the order of the text
  SafeMetadata metadata;
};

// Throws data for text that is not this format: not an object, not UTF-8, duplicate names, unknown
// element type, extents or offsets that are not whole numbers >= 0. `path` is for the errors.
Header parse_safetensors_header(std::string_view text, const std::string& path);

// The error of at(): what was asked, and an example of what there is.
[[noreturn]] void fail_missing_tensor(std::string_view name, const std::string& where,
                                      const std::string& example, int64_t count);

}  // namespace snug
