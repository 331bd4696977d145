#include "tools/config/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/core/units.h"

namespace snug {
namespace {

[[noreturn]] void wrong(std::string_view expected, std::string_view key, const ConfigNode& node,
                        std::string_view example) {
  fail(ErrorCode::usage, fmt::format("{} for {}", expected, key), node.describe(),
       std::string(example));
}

// The whole text as a finite number.
std::optional<double> number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> integer(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end) return value;
  const std::optional<double> real = number(text);
  if (!real || *real != std::floor(*real) || std::fabs(*real) > 9007199254740992.0)
    return std::nullopt;
  return static_cast<int64_t>(*real);
}

void check_range(double value, const Range& range, const ConfigNode& node, std::string_view key,
                 std::string_view example) {
  const bool low = range.open_min ? value <= range.min : value < range.min;
  const bool high = range.open_max ? value >= range.max : value > range.max;
  if (!low && !high) return;
  std::string bounds;
  if (range.min > -1e300)
    bounds = fmt::format("{} {}", range.open_min ? "above" : "of at least", range.min);
  if (range.max < 1e300)
    bounds += fmt::format("{}{} {}", bounds.empty() ? "" : " and ",
                          range.open_max ? "below" : "at most", range.max);
  fail(ErrorCode::usage, fmt::format("{} {}", key, bounds), node.describe(), std::string(example));
}

}  // namespace

std::string to_text(const ConfigNode& node, std::string_view key, std::string_view example) {
  if (node.kind != ConfigNode::Kind::scalar) wrong("text", key, node, example);
  return node.text;
}

int64_t to_integer(const ConfigNode& node, std::string_view key, const Range& range,
                   std::string_view example) {
  const auto value = node.kind == ConfigNode::Kind::scalar ? integer(node.text) : std::nullopt;
  if (!value) wrong("an integer", key, node, example);
  check_range(static_cast<double>(*value), range, node, key, example);
  return *value;
}

double to_number(const ConfigNode& node, std::string_view key, const Range& range,
                 std::string_view example) {
  const auto value = node.kind == ConfigNode::Kind::scalar ? number(node.text) : std::nullopt;
  if (!value) wrong("a number", key, node, example);
  check_range(*value, range, node, key, example);
  return *value;
}

std::optional<bool> flag(std::string_view written) {
  std::string text(written);
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

bool to_flag(const ConfigNode& node, std::string_view key, std::string_view example) {
  if (node.kind == ConfigNode::Kind::scalar)
    if (const std::optional<bool> value = flag(node.text)) return *value;
  wrong("true or false", key, node, example);
}

bool listed(std::string_view list, const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::scalar) return false;
  for (const std::string_view word : words(list)) {
    if (node.text == word) return true;
    if (const auto a = number(node.text), b = number(word); a && b && *a == *b) return true;
    if (const auto a = flag(node.text), b = flag(word); a && b && *a == *b) return true;
  }
  return false;
}

int64_t to_bytes(const ConfigNode& node, std::string_view key) {
  if (node.kind != ConfigNode::Kind::scalar)
    wrong("a size such as 4GiB", key, node, fmt::format("{}=4GiB", key));
  int64_t bytes = 0;
  try {
    bytes = parse_bytes(node.text, key);
  } catch (const Error& error) {
    fail(error.code(), error.expected(), fmt::format("{} ({})", error.found(), node.where),
         error.advice());
  }
  // Of the host's memory 0 asks for something: that nothing rests there.
  if (bytes == 0 && key == "host_memory")
    wrong("a size above 0", key, node,
          "leave host_memory out, with offload=none offload_optimizer=none offload_params=none "
          "offload_gradients=none");
  if (bytes < 1) wrong("a size above 0", key, node, fmt::format("{}=4GiB", key));
  return bytes;
}

double to_seconds(const ConfigNode& node, std::string_view key) {
  const auto bad = [&] {
    wrong("a time such as 90s, 2m, 1h30m or seconds", key, node, fmt::format("{}=2m", key));
  };
  if (node.kind != ConfigNode::Kind::scalar) bad();
  std::string_view rest = node.text;
  double seconds = 0;
  bool with_unit = false;
  while (!rest.empty()) {
    if (rest.front() == ' ') {
      rest.remove_prefix(1);
      continue;
    }
    double value = 0;
    const char* const end = rest.data() + rest.size();
    const auto [at, error] = std::from_chars(rest.data(), end, value, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(value) || value < 0) bad();
    rest = std::string_view(at, static_cast<size_t>(end - at));
    size_t letters = 0;
    while (letters < rest.size() && rest[letters] >= 'a' && rest[letters] <= 'z') ++letters;
    const std::string_view unit = rest.substr(0, letters);
    rest.remove_prefix(letters);
    if (unit == "d" || unit == "day" || unit == "days") {
      value *= 86400;
    } else if (unit == "h" || unit == "hour" || unit == "hours") {
      value *= 3600;
    } else if (unit == "m" || unit == "min" || unit == "minutes") {
      value *= 60;
    } else if (!(unit == "s" || unit == "sec" || unit == "seconds") &&
               !(unit.empty() && rest.empty() && !with_unit)) {
      bad();  // a number without a unit stands alone
    }
    with_unit = true;
    seconds += value;
  }
  if (!(seconds > 0) || seconds > 1.0e9) bad();
  return seconds;
}

std::vector<std::string> to_texts(const ConfigNode& node, std::string_view key,
                                  std::string_view example) {
  std::vector<std::string> texts;
  const auto add = [&](const ConfigNode& item) {
    if (item.kind != ConfigNode::Kind::scalar || item.text.empty())
      wrong("text or a list of texts", key, item, example);
    texts.push_back(item.text);
  };
  if (node.kind == ConfigNode::Kind::list) {
    for (const ConfigNode& item : node.items) add(item);
  } else {
    add(node);
  }
  return texts;
}

std::vector<std::string> to_names(const ConfigNode& node, std::string_view key,
                                  std::string_view example) {
  std::vector<std::string> names;
  for (const std::string& text : to_texts(node, key, example))
    for (size_t at = 0; at <= text.size();) {
      const size_t comma = std::min(text.find(',', at), text.size());
      size_t first = at, end = comma;
      while (first < end && text[first] == ' ') ++first;
      while (first < end && text[end - 1] == ' ') --end;
      names.push_back(text.substr(first, end - first));
      at = comma + 1;
    }
  return names;
}

std::string to_choice(const ConfigNode& node, std::string_view key,
                      const std::vector<std::string_view>& choices, const RefusedChoices& refused) {
  const std::string expected = fmt::format("{} as one of {}", key, fmt::join(choices, ", "));
  if (node.kind == ConfigNode::Kind::scalar) {
    const auto holds = [&](const std::vector<std::string_view>& list) {
      return std::find(list.begin(), list.end(), node.text) != list.end();
    };
    if (holds(choices)) return node.text;
    if (holds(refused.names))
      fail(ErrorCode::unsupported, expected, fmt::format("{}, {}", node.describe(), refused.why),
           refused.advice.empty() ? fmt::format("{}={}", key, choices.front())
                                  : std::string(refused.advice));
    fail(ErrorCode::usage, expected, node.describe(),
         suggestion(node.text, choices, fmt::format("{}={}", key, choices.front())));
  }
  fail(ErrorCode::usage, expected, node.describe(), fmt::format("{}={}", key, choices.front()));
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> list;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) list.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

std::string yaml_text(std::string_view text) {
  bool plain = !text.empty() && text != "auto" && text != "null" && !number(text);
  for (const std::string_view word : {"true", "false", "yes", "no", "on", "off", "-", "."})
    plain = plain && text != word;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    plain = plain && (letter || c == '_' || c == '/' || c == '.' || c == '-' || c == '+');
  }
  plain = plain && text.front() != '-';
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string yaml_bytes(int64_t bytes) {
  const char* const units[] = {"TiB", "GiB", "MiB", "KiB"};
  int64_t size = int64_t{1} << 40;
  for (const char* unit : units) {
    if (bytes > 0 && bytes % size == 0) return fmt::format("{}{}", bytes / size, unit);
    size >>= 10;
  }
  return fmt::format("{}", bytes);
}

}  // namespace snug
