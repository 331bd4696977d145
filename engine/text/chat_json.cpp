#include "engine/text/chat_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

using jinja::Kind;
using jinja::Value;

class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(jinja::Arena& arena, const std::string& where) : arena_(arena), where_(where) {}

  bool null() override { return add(Value::of_none()); }
  bool boolean(bool v) override { return add(Value::of(v)); }
  bool number_integer(number_integer_t v) override { return add(Value::of(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > INT64_MAX) beyond(std::to_string(v));
    return add(Value::of(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) beyond(text);
    return add(Value::of(v));
  }
  bool string(string_t& v) override { return add(Value::of(jinja::make_text(arena_, v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool key(string_t& v) override {
    if (open_.back().dict->find(v))
      fail(ErrorCode::data, "each key once in an object",
           where_ + ": \"" + beginning_utf8(v, 40) + "\" twice", "leave one of them out");
    open_.back().key = Value::of(jinja::make_text(arena_, v));
    return true;
  }
  bool end_object() override {
    const Value v = Value::of(open_.back().dict);
    open_.pop_back();
    return add(v);
  }
  bool start_array(std::size_t) override { return open(false); }
  bool end_array() override {
    const Value v = Value::of(jinja::make_sequence(arena_, open_.back().values));
    open_.pop_back();
    return add(v);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    std::string what = e.what();
    if (const size_t at = what.find("syntax error"); at != std::string::npos)
      what = what.substr(at);
    fail(ErrorCode::data, "JSON",
         where_ + ", byte " + std::to_string(position) + ": " + beginning_utf8(what, 120),
         "write one object a line, with double quotes around keys and strings");
  }
  const Value& result() const { return result_; }

 private:
  struct Open {
    jinja::Dict* dict = nullptr;
    Value key;
    std::vector<Value> values;
  };
  [[noreturn]] void beyond(const std::string& text) const {
    fail(ErrorCode::data, "integers of at most 64 bits", where_ + ": " + beginning_utf8(text, 40),
         "write it as a string");
  }
  bool open(bool object) {
    constexpr size_t kMostLevels = 90;
    if (open_.size() >= kMostLevels)
      fail(ErrorCode::data, "JSON of at most 90 levels", where_ + ": more", "flatten it");
    open_.push_back({object ? arena_.make<jinja::Dict>() : nullptr, {}, {}});
    return true;
  }
  bool add(const Value& v) {
    if (open_.empty()) {
      result_ = v;
    } else if (open_.back().dict) {
      jinja::dict_set(arena_, *open_.back().dict, open_.back().key, v);
    } else {
      arena_.charge(static_cast<int64_t>(sizeof(Value)));
      open_.back().values.push_back(v);
    }
    return true;
  }

  jinja::Arena& arena_;
  const std::string& where_;
  std::vector<Open> open_;
  Value result_;
};

}  // namespace

jinja::Value parse_chat_json(std::string_view json, jinja::Arena& arena, const std::string& where) {
  Reader reader(arena, where);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return reader.result();
}

}  // namespace snug
