// Bytes in and out: integers inside, binary units (KiB, MiB, GiB, TiB) with a label outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

std::string human_bytes(int64_t bytes);  // "1.50 GiB", "512 B"
// "4GiB", "256 MiB", "1048576", "10B"; "4GB" is 4 x 10^9, "4G" that of GiB. Throws usage with `key` in
// the message on anything else.
int64_t parse_bytes(std::string_view text, std::string_view key);
std::string human_seconds(double seconds);  // "2m 05s"
std::string human_count(double value);      // "124.44M"
// Smallest multiple of `unit` that is at least `value`.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace snug
