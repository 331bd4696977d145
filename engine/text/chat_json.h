// JSON to values of the template interpreter, in the order of the text: tojson shows it.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/jinja_value.h"

namespace snug {

// Throws Error (data) naming `where`: broken JSON, text that is not UTF-8, a key twice in one
// object, integers beyond 64 bits, more than 90 levels.
jinja::Value parse_chat_json(std::string_view json, jinja::Arena& arena, const std::string& where);

}  // namespace snug
