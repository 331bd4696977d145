// From the text of a configuration to typed values. Every function throws usage with what it
// expected for `key`, what it found and where, and `example`; names of ranges and units stand in
// the message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/config/config_node.h"

namespace snug {

struct Range {
  double min = -1.0e300;
  double max = 1.0e300;
  bool open_min = false;  // min itself is outside
  bool open_max = false;
};

std::string to_text(const ConfigNode& node, std::string_view key, std::string_view example);
// "1000", also "1e3" and "1000.0".
int64_t to_integer(const ConfigNode& node, std::string_view key, const Range& range,
                   std::string_view example);
// "0.1", "5e-5", "1"; finite.
double to_number(const ConfigNode& node, std::string_view key, const Range& range,
                 std::string_view example);
// true, false, yes, no, on, off, in capitals too; nothing for all else.
std::optional<bool> flag(std::string_view written);
bool to_flag(const ConfigNode& node, std::string_view key, std::string_view example);
// "4GiB"; see parse_bytes. At least 1.
int64_t to_bytes(const ConfigNode& node, std::string_view key);
// "90", "90s", "2m", "1h30m", "1.5h", "1d", in seconds; above 0.
double to_seconds(const ConfigNode& node, std::string_view key);
// A text or a list of texts, none empty.
std::vector<std::string> to_texts(const ConfigNode& node, std::string_view key,
                                  std::string_view example);
// Names, which have no comma: those of a text that commas separate, as others' command lines write
// them, or of a list.
std::vector<std::string> to_names(const ConfigNode& node, std::string_view key,
                                  std::string_view example);
// What is known and cannot be chosen here, why, and what to do (empty: the first choice).
struct RefusedChoices {
  std::vector<std::string_view> names;
  std::string_view why, advice;
};
// One of `choices`, else a suggestion. What is refused: unsupported.
std::string to_choice(const ConfigNode& node, std::string_view key,
                      const std::vector<std::string_view>& choices, const RefusedChoices& refused);

// Whether the value is among `list`, separated by spaces: as text, as the same number, or as the
// same flag.
bool listed(std::string_view list, const ConfigNode& value);

// The words of a list such as "linear cosine constant".
std::vector<std::string_view> words(std::string_view text);

// A scalar in quotes if YAML would otherwise read it as something else.
std::string yaml_text(std::string_view text);
std::string yaml_bytes(int64_t bytes);  // "4GiB": the largest unit that divides it

}  // namespace snug
