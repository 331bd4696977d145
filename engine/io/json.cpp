#include "engine/io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

using json = nlohmann::json;

constexpr size_t kMaxDepth = 512;

// Walks the text and tells others how far the parser has come, so that errors found by us, not by
// the parser, have a place too.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

// Builds the tree from the parser's events, refusing duplicate keys and deep nesting.
class TreeEvents {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  TreeEvents(std::string_view text, const std::string& name, int64_t first_line)
      : text_(text), name_(name), first_line_(first_line), at_(text.data()) {}

  const char** furthest() { return &at_; }
  json take() { return std::move(root_); }

  bool null() { return put(json(nullptr)) != nullptr; }
  bool boolean(bool v) { return put(json(v)) != nullptr; }
  bool number_integer(number_integer_t v) { return put(json(v)) != nullptr; }
  bool number_unsigned(number_unsigned_t v) { return put(json(v)) != nullptr; }
  bool number_float(number_float_t v, const string_t&) { return put(json(v)) != nullptr; }
  bool string(string_t& v) { return put(json(std::move(v))) != nullptr; }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& v) {
    json& object = *open_.back();
    if (object.contains(v))
      fail_at(at_ - text_.data(), "every key once in an object", fmt::format("\"{}\" twice", v),
              "remove one of the two");
    key_ = std::move(v);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    std::string what = e.what();  // "[json.exception...] parse error at line 1, column 2: <what>"
    const size_t start = what.find(": ");
    if (start != std::string::npos) what = what.substr(start + 2);
    fail_at(position == 0 ? 0 : static_cast<int64_t>(position) - 1, "valid JSON",
            std::string(text_beginning(what, 300)),
            "correct the file; a JSON checker shows the place");
  }

  [[noreturn]] void fail_at(int64_t offset, const std::string& expected, const std::string& found,
                            const std::string& advice) {
    const std::string_view before =
        text_.substr(0, std::min(static_cast<size_t>(offset), text_.size()));
    const int64_t line = first_line_ + std::count(before.begin(), before.end(), '\n');
    const size_t start = before.rfind('\n');
    const size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1;
    fail(ErrorCode::data, expected, fmt::format("{}:{}:{}: {}", name_, line, column, found),
         advice);
  }

 private:
  json* put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool open(json value) {
    if (open_.size() == kMaxDepth)
      fail_at(at_ - text_.data(), fmt::format("at most {} levels of nesting", kMaxDepth), "more",
              "check that this is the file you meant");
    open_.push_back(put(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  int64_t first_line_;
  const char* at_;
  json root_;
  std::vector<json*> open_;  // an array's last element stays put while it is open
  std::string key_;
};

[[noreturn]] void fail_type(const char* expected, const char* key, const std::string& where,
                            const std::string& found) {
  fail(ErrorCode::data, fmt::format("{} for {} in {}", expected, key, where), found,
       fmt::format("correct the value of {}", key));
}

// The value of a key, or null if it is missing or null.
const json* value_of(const json& object, const char* key, const std::string& where) {
  require_object(object, where);
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const json& present(const json& object, const char* key, const std::string& where,
                    const char* expected) {
  const json* v = value_of(object, key, where);
  if (v == nullptr) fail_type(expected, key, where, object.contains(key) ? "null" : "no such key");
  return *v;
}

bool is_int64(const json& v) {
  if (!v.is_number_integer()) return false;
  return !v.is_number_unsigned() || v.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
}

int64_t as_int(const json& v, const char* key, const std::string& where) {
  if (!is_int64(v)) fail_type("an integer", key, where, json_brief(v));
  return v.get<int64_t>();
}

double as_number(const json& v, const char* key, const std::string& where) {
  if (!v.is_number()) fail_type("a number", key, where, json_brief(v));
  return v.get<double>();
}

bool as_bool(const json& v, const char* key, const std::string& where) {
  if (!v.is_boolean()) fail_type("true or false", key, where, json_brief(v));
  return v.get<bool>();
}

std::string as_string(const json& v, const char* key, const std::string& where) {
  if (!v.is_string()) fail_type("a string", key, where, json_brief(v));
  return v.get<std::string>();
}

}  // namespace

json parse_json(std::string_view text, const std::string& name, int64_t first_line) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  TreeEvents events(text, name, first_line);
  // The parser takes a zero byte for the end of its input, so it would not see what follows.
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    events.fail_at(static_cast<int64_t>(zero), "valid JSON", "a zero byte",
                   "check that this is a text file in UTF-8");
  const char* end = text.data() + text.size();
  const char* unused = nullptr;
  json::sax_parse(CountingIterator(text.data(), events.furthest()), CountingIterator(end, &unused),
                  &events);
  return events.take();
}

json parse_json_file(const std::string& path, int64_t max_bytes) {
  return parse_json(read_file(path, max_bytes), path);
}

void write_json_file(const std::string& path, const json& value) {
  write_atomic(path, value.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

void require_object(const json& value, const std::string& where) {
  if (!value.is_object())
    fail(ErrorCode::data, fmt::format("a JSON object in {}", where), json_brief(value),
         "check that this is the file you meant");
}

int64_t get_int(const json& object, const char* key, const std::string& where) {
  return as_int(present(object, key, where, "an integer"), key, where);
}

int64_t get_int(const json& object, const char* key, const std::string& where, int64_t fallback) {
  const json* v = value_of(object, key, where);
  return v == nullptr ? fallback : as_int(*v, key, where);
}

double get_number(const json& object, const char* key, const std::string& where) {
  return as_number(present(object, key, where, "a number"), key, where);
}

double get_number(const json& object, const char* key, const std::string& where, double fallback) {
  const json* v = value_of(object, key, where);
  return v == nullptr ? fallback : as_number(*v, key, where);
}

bool get_bool(const json& object, const char* key, const std::string& where) {
  return as_bool(present(object, key, where, "true or false"), key, where);
}

bool get_bool(const json& object, const char* key, const std::string& where, bool fallback) {
  const json* v = value_of(object, key, where);
  return v == nullptr ? fallback : as_bool(*v, key, where);
}

std::string get_string(const json& object, const char* key, const std::string& where) {
  return as_string(present(object, key, where, "a string"), key, where);
}

std::string get_string(const json& object, const char* key, const std::string& where,
                       const std::string& fallback) {
  const json* v = value_of(object, key, where);
  return v == nullptr ? fallback : as_string(*v, key, where);
}

std::vector<std::string> get_strings(const json& object, const char* key,
                                     const std::string& where) {
  std::vector<std::string> out;
  const json* v = value_of(object, key, where);
  if (v == nullptr) return out;
  if (!v->is_array()) fail_type("a list of strings", key, where, json_brief(*v));
  for (const json& item : *v) out.push_back(as_string(item, key, where));
  return out;
}

int64_t get_int_in(const json& object, const char* key, const std::string& where, int64_t low,
                   int64_t high, std::optional<int64_t> fallback) {
  const int64_t v = fallback ? get_int(object, key, where, *fallback) : get_int(object, key, where);
  if (v < low || v > high)
    fail_type(fmt::format("an integer from {} to {}", low, high).c_str(), key, where,
              fmt::format("{}", v));
  return v;
}

std::string json_brief(const json& value) {
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  if (value.is_array()) return fmt::format("a list of {} values", value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 100) text.replace(text_beginning(text, 97).size(), std::string::npos, "...");
  return text;
}

}  // namespace snug
