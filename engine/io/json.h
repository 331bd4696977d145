// JSON files with errors a person can act on. Include this in .cpp files only: it brings
// nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Parses RFC 8259 JSON, stricter than most: a key twice in one object, more than 512 levels, text
// that is not UTF-8 and anything after the value are Errors of code data that name
// `name`:line:column. A leading byte order mark is skipped. first_line is the line number of the
// text's first line.
nlohmann::json parse_json(std::string_view text, const std::string& name, int64_t first_line = 1);
nlohmann::json parse_json_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Indented by two, keys sorted, a newline at the end; through AtomicFile.
void write_json_file(const std::string& path, const nlohmann::json& value);

// Throws data unless `value` is an object. `where` names it: a path, or a path and a key.
void require_object(const nlohmann::json& value, const std::string& where);

// Typed values of an object. Without a fallback the key must be there; with one, a missing key and
// null give the fallback. A value of another type is an Error of code data such as
//   expected an integer for n_layer in /path/config.json / found: "12"
// Integers must be written as integers and fit in int64.
int64_t get_int(const nlohmann::json& object, const char* key, const std::string& where);
int64_t get_int(const nlohmann::json& object, const char* key, const std::string& where,
                int64_t fallback);
double get_number(const nlohmann::json& object, const char* key, const std::string& where);
double get_number(const nlohmann::json& object, const char* key, const std::string& where,
                  double fallback);
bool get_bool(const nlohmann::json& object, const char* key, const std::string& where);
bool get_bool(const nlohmann::json& object, const char* key, const std::string& where,
              bool fallback);
std::string get_string(const nlohmann::json& object, const char* key, const std::string& where);
std::string get_string(const nlohmann::json& object, const char* key, const std::string& where,
                       const std::string& fallback);
std::vector<std::string> get_strings(const nlohmann::json& object, const char* key,
                                     const std::string& where);  // missing or null: empty
// An integer in [low, high]; the error states the range.
int64_t get_int_in(const nlohmann::json& object, const char* key, const std::string& where,
                   int64_t low, int64_t high, std::optional<int64_t> fallback = std::nullopt);

// The value as one short line for messages.
std::string json_brief(const nlohmann::json& value);

}  // namespace snug
