#include "engine/core/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "engine/core/error.h"

namespace snug {

std::string human_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024 && bytes > -1024) return fmt::format("{} B", bytes);
  double v = static_cast<double>(bytes);
  int u = 0;
  // What two digits round to 1024.00 is one of the next unit.
  while ((std::fabs(v) >= 1023.995 || u == 0) && u < 5) {
    v /= 1024.0;
    ++u;
  }
  return fmt::format("{:.2f} {}", v, units[u]);
}

int64_t parse_bytes(std::string_view text, std::string_view key) {
  const auto bad = [&](const char* why) {
    fail(ErrorCode::usage, fmt::format("{} as a size such as 4GiB, 256MiB, 64KiB or bytes", key),
         fmt::format("\"{}\" ({})", text, why), fmt::format("{}=4GiB", key));
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value)) bad("not a number");
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = 1;
  if (unit == "KiB")
    scale = 1024.0;
  else if (unit == "MiB")
    scale = 1024.0 * 1024;
  else if (unit == "GiB")
    scale = 1024.0 * 1024 * 1024;
  else if (unit == "TiB")
    scale = 1024.0 * 1024 * 1024 * 1024;
  else if (const size_t power = std::string_view("kMGTK").find(unit.empty() ? ' ' : unit[0]);
           power != std::string_view::npos && (unit.size() == 1 || unit.substr(1) == "B"))
    // 4GB is of powers of ten, as the SI and vendors have it; 4G of two, as ulimit and dd have it.
    scale = std::pow(unit.size() == 1 ? 1024.0 : 1000.0, static_cast<double>(power % 4 + 1));
  else if (!unit.empty() && unit != "B")
    bad("unknown unit: B, KiB, MiB, GiB and TiB are known, GB, G and the like too");
  const double bytes = value * scale;
  if (bytes < 0) bad("negative");
  if (bytes > 9.0e18) bad("more than 2^63 bytes");
  if (bytes != std::floor(bytes) && scale == 1) bad("a fraction of a byte");
  return static_cast<int64_t>(bytes);
}

std::string human_seconds(double seconds) {
  if (!(seconds < 1e9)) return "-";
  if (seconds > 0 && seconds < 0.1) return fmt::format("{:.1f} ms", 1e3 * seconds);
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m {:02d}s", s / 60, s % 60);
  return fmt::format("{}h {:02d}m", s / 3600, s / 60 % 60);
}

std::string human_count(double value) {
  if (value >= 1e12) return fmt::format("{:.2f}T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.2f}B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

}  // namespace snug
