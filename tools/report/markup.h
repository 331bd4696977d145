// Small pieces for writing HTML and SVG: escaping, numbers, ticks, colours of categories.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory/program.h"

namespace snug {

// Text for element content and quoted attributes. Bytes that are no UTF-8 and control characters
// other than newline and tab become U+FFFD.
std::string escape_html(std::string_view text);
// A JSON string with its quotes, safe inside <script>: no '<', no '&', no U+2028.
std::string json_text(std::string_view text);

std::string grouped(int64_t value);    // "1,234,567"
std::string coordinate(double value);  // at most two decimals, no trailing zeros, no "-0"
// <data value="1234567">1,234,567</data>: exact for programs, readable for people.
std::string data_bytes(int64_t bytes);

// Round values (1, 2, 2.5, 5 times a power of ten) within [low, high], at most `most` + 1 of them;
// low may equal high.
std::vector<double> nice_ticks(double low, double high, int most);
// The same in the binary unit that fits `high` bytes, from 0.
std::vector<int64_t> byte_ticks(int64_t high, int most);
std::string tick_text(double value, double spacing);  // digits enough to tell ticks apart
std::string byte_tick_text(int64_t bytes);            // "1.5 GiB", no trailing zeros

// "c3": the CSS class that fills with the category's colour.
std::string category_class(Category category);
// Name for readers: "KV cache", "recomputed".
std::string category_label(Category category);

}  // namespace snug
