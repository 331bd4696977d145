#include "tools/report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace snug {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 sequence at the front of `text`; 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates and values past U+10FFFF show in the second byte.
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

// Walks valid characters and replaces the rest.
template <class F>
std::string transform(std::string_view text, F&& character) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const std::string_view c = text.substr(0, n == 0 ? 1 : n);
    const bool control =
        n == 1 &&
        ((static_cast<unsigned char>(c[0]) < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7F);
    if (n == 0 || control)
      out += kReplacement;
    else
      character(out, c);
    text.remove_prefix(c.size());
  }
  return out;
}

}  // namespace

std::string escape_html(std::string_view text) {
  return transform(text, [](std::string& out, std::string_view c) {
    switch (c[0]) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  });
}

std::string json_text(std::string_view text) {
  return "\"" +
         transform(text,
                   [](std::string& out, std::string_view c) {
                     if (c == "\"" || c == "\\")
                       out += "\\" + std::string(c);
                     else if (c == "\n" || c == "\t" || c == "<" || c == ">" || c == "&")
                       out += fmt::format("\\u{:04x}", static_cast<unsigned>(c[0]));
                     else if (c == "\xE2\x80\xA8" || c == "\xE2\x80\xA9")
                       out += c == "\xE2\x80\xA8" ? "\\u2028" : "\\u2029";
                     else
                       out += c;
                   }) +
         "\"";
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t sign = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string data_bytes(int64_t bytes) {
  return fmt::format("<data value=\"{}\">{}</data>", bytes, grouped(bytes));
}

std::vector<double> nice_ticks(double low, double high, int most) {
  if (!std::isfinite(low) || !std::isfinite(high) || high < low) return {};
  if (high == low) return {low};
  const double wanted = (high - low) / std::max(1, most);
  const double power = std::pow(10.0, std::floor(std::log10(wanted)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 2.5, 5.0})
    if (m * power >= wanted * 0.999999) {
      step = m * power;
      break;
    }
  std::vector<double> ticks;
  if (!(step > 0)) return {low};
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
    ticks.push_back(k * step == 0 ? 0.0 : k * step);
    if (static_cast<int>(ticks.size()) > most) break;
  }
  return ticks;
}

std::vector<int64_t> byte_ticks(int64_t high, int most) {
  double unit = 1;
  while (static_cast<double>(high) / unit >= 1024) unit *= 1024;
  std::vector<int64_t> ticks;
  for (const double t : nice_ticks(0, static_cast<double>(high) / unit, most)) {
    const auto bytes = static_cast<int64_t>(std::llround(t * unit));
    if (ticks.empty() || bytes > ticks.back()) ticks.push_back(bytes);
  }
  return ticks;
}

std::string tick_text(double value, double spacing) {
  const double size = std::max(std::fabs(value), std::fabs(spacing));
  if (size > 0 && (size >= 1e6 || size < 1e-3)) return fmt::format("{:.3g}", value);
  int decimals = 0;
  for (double s = std::fabs(spacing); decimals < 6 && s > 0; s *= 10, ++decimals)
    if (std::fabs(s - std::round(s)) < 1e-6 * s) break;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string byte_tick_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  int u = 0;
  while (std::fabs(value) >= 1024 && u < 6) {
    value /= 1024;
    ++u;
  }
  return bytes == 0 ? "0" : coordinate(value) + " " + units[u];
}

std::string category_class(Category category) {
  return fmt::format("c{}", static_cast<int>(category));
}

std::string category_label(Category category) {
  if (category == Category::kv_cache) return "KV cache";
  if (category == Category::master) return "master weights";
  if (category == Category::optimizer) return "optimizer state";
  if (category == Category::state) return "step state";
  return to_string(category);
}

}  // namespace snug
