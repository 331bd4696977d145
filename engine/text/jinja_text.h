// Python's functions on str, over texts with origins. Positions that a template sees are
// characters; white space, line ends and cases are Python's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_value.h"

namespace snug::jinja {

bool is_python_space(char32_t code);

// Bytes that are left of `text` without white space, or characters of `chars`, at its end or start.
size_t strip_end(std::string_view text, std::optional<std::string_view> chars = std::nullopt);
size_t strip_begin(std::string_view text, std::optional<std::string_view> chars = std::nullopt);

int64_t count_chars(std::string_view text);
// The byte where character `index` starts; the size for those behind the end.
int64_t byte_of_char(std::string_view text, int64_t index);

using Span = std::pair<int64_t, int64_t>;  // bytes, begin and end

// str.split and rsplit; without a separator by runs of white space. most < 0: no limit.
std::vector<Span> split_text(std::string_view text, std::optional<std::string_view> separator,
                             int64_t most, bool from_right);
std::vector<Span> split_lines(std::string_view text, bool keep_ends);

enum class Case : uint8_t { upper, lower, title, capitalize, swap };
const Text* text_case(Arena& arena, const Text& text, Case to);
const Text* text_replace(Arena& arena, const Text& text, std::string_view from, const Text& to,
                         int64_t most);
// text[start:stop:step] in characters; step is not 0.
const Text* text_slice(Arena& arena, const Text& text, std::optional<int64_t> start,
                       std::optional<int64_t> stop, int64_t step);
// The indices that start:stop:step takes of `size`, as slice.indices and range have them.
std::vector<int64_t> slice_indices(int64_t size, std::optional<int64_t> start,
                                   std::optional<int64_t> stop, int64_t step);

// isalpha, isdigit, isalnum, isspace, isupper, islower, istitle, isnumeric, isdecimal, isascii;
// none for another name.
std::optional<bool> text_is(std::string_view text, std::string_view name);

// str(), repr() and json.dumps() of a value into `out`. Errors leave as std::string of what is
// wrong, or empty for none.
struct JsonStyle {
  bool ascii = false, sort = false;
  std::optional<std::string> indent;
  std::string item = ", ", key = ": ";
};
std::string print_value(TextBuilder& out, const Value& value, const Origin& origin);
std::string print_repr(TextBuilder& out, const Value& value, const Origin& origin, int depth = 0);
std::string print_json(TextBuilder& out, const Value& value, const JsonStyle& style,
                       const Origin& origin, int depth = 0);
std::string print_real(double value);

}  // namespace snug::jinja
