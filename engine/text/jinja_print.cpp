#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"
#include "engine/text/unicode.h"

namespace snug::jinja {

std::string print_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);  // the shortest that reads back, as Python's
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

namespace {

bool printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

void repr_text(TextBuilder& out, const Text& text, const Origin& origin) {
  const std::string_view bytes = text.view();
  const bool twice =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = twice ? '"' : '\'';
  out.append(std::string(1, quote), origin);
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, i);
    std::string piece;
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\') {
      piece = {'\\', static_cast<char>(c.code)};
    } else if (c.code == '\n') {
      piece = "\\n";
    } else if (c.code == '\r') {
      piece = "\\r";
    } else if (c.code == '\t') {
      piece = "\\t";
    } else if (printable(c.code)) {
      piece = bytes.substr(i, c.length);
    } else if (c.code < 0x100) {
      piece = fmt::format("\\x{:02x}", static_cast<uint32_t>(c.code));
    } else if (c.code < 0x10000) {
      piece = fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code));
    } else {
      piece = fmt::format("\\U{:08x}", static_cast<uint32_t>(c.code));
    }
    out.append(piece, origin_at(text, static_cast<int64_t>(i)));
    i += c.length;
  }
  out.append(std::string(1, quote), origin);
}

std::string repr_dict(TextBuilder& out, const Dict& dict, const Origin& origin, int depth) {
  out.append("{", origin);
  for (int64_t i = 0; i < dict.size; ++i) {
    if (i) out.append(", ", origin);
    if (auto wrong = print_repr(out, dict.data[i].key, origin, depth); !wrong.empty()) return wrong;
    out.append(": ", origin);
    if (auto wrong = print_repr(out, dict.data[i].value, origin, depth); !wrong.empty())
      return wrong;
  }
  out.append("}", origin);
  return "";
}

std::string repr_sequence(TextBuilder& out, const Sequence& s, const Origin& origin, int depth) {
  using Form = Sequence::Form;
  const char* open = s.form == Form::tuple    ? "("
                     : s.form == Form::keys   ? "dict_keys(["
                     : s.form == Form::values ? "dict_values(["
                     : s.form == Form::items  ? "dict_items(["
                                              : "[";
  if (s.form == Form::range) return "a range, which is not built: put '| list' behind it";
  out.append(open, origin);
  for (int64_t i = 0; i < s.size; ++i) {
    if (i) out.append(", ", origin);
    if (auto wrong = print_repr(out, s.data[i], origin, depth); !wrong.empty()) return wrong;
  }
  if (s.form == Form::tuple && s.size == 1) out.append(",", origin);
  out.append(s.form == Form::tuple ? ")" : s.form == Form::list ? "]" : "])", origin);
  return "";
}

}  // namespace

std::string print_repr(TextBuilder& out, const Value& value, const Origin& origin, int depth) {
  if (depth > 100) return "one of more than 100 levels";
  switch (value.kind) {
    case Kind::undefined:
      out.append("Undefined", origin);
      return "";
    case Kind::none:
      out.append("None", origin);
      return "";
    case Kind::boolean:
      out.append(value.boolean ? "True" : "False", origin);
      return "";
    case Kind::integer:
      out.append(std::to_string(value.integer), origin);
      return "";
    case Kind::real:
      out.append(print_real(value.real), origin);
      return "";
    case Kind::text:
      if (value.text->markup) return "an escaped string inside a list, which is not built";
      repr_text(out, *value.text, origin);
      return "";
    case Kind::sequence:
      return repr_sequence(out, *value.sequence, origin, depth + 1);
    case Kind::dict:
      return repr_dict(out, *value.dict, origin, depth + 1);
    case Kind::iterator:
      return "a generator: put '| list' behind it";
    case Kind::space:
      return "a namespace";
    case Kind::loop:
      return "a loop";
    case Kind::function:
      return "a function";
  }
  return "another value";
}

std::string print_value(TextBuilder& out, const Value& value, const Origin& origin) {
  if (value.kind == Kind::undefined) return "";
  if (value.kind == Kind::text) {
    out.append(*value.text);
    return "";
  }
  return print_repr(out, value, origin);
}

namespace {

void json_text(TextBuilder& out, const Text& text, bool ascii, const Origin& origin) {
  const std::string_view bytes = text.view();
  out.append("\"", origin);
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, i);
    static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    std::string piece;
    if (c.code < 0x80 && kFrom.find(static_cast<char>(c.code)) != std::string_view::npos) {
      piece = {'\\', kTo[kFrom.find(static_cast<char>(c.code))]};
    } else if (c.code < 0x20 || (ascii && c.code > 0x7E && c.code < 0x10000)) {
      piece = c.code == 0x7F ? "\x7f" : fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code));
    } else if (ascii && c.code >= 0x10000) {
      const uint32_t v = static_cast<uint32_t>(c.code) - 0x10000;
      piece = fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
    } else {
      piece = bytes.substr(i, c.length);
    }
    out.append(piece, origin_at(text, static_cast<int64_t>(i)));
    i += c.length;
  }
  out.append("\"", origin);
}

std::string json_real(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Infinity" : "Infinity";
  return print_real(v);
}

void json_line(TextBuilder& out, const JsonStyle& style, const Origin& origin, int depth) {
  if (!style.indent) return;
  std::string line = "\n";
  for (int i = 0; i < depth; ++i) line += *style.indent;
  out.append(line, origin);
}

std::string json_key(TextBuilder& out, const Value& key, bool ascii, const Origin& origin) {
  switch (key.kind) {
    case Kind::text:
      json_text(out, *key.text, ascii, origin);
      return "";
    case Kind::none:
      out.append("\"null\"", origin);
      return "";
    case Kind::boolean:
      out.append(key.boolean ? "\"true\"" : "\"false\"", origin);
      return "";
    case Kind::integer:
      out.append("\"" + std::to_string(key.integer) + "\"", origin);
      return "";
    case Kind::real:
      out.append("\"" + json_real(key.real) + "\"", origin);
      return "";
    default:
      return "a key that JSON does not have";
  }
}

std::string json_dict(TextBuilder& out, const Dict& dict, const JsonStyle& style,
                      const Origin& origin, int depth) {
  std::vector<const Pair*> pairs;
  for (int64_t i = 0; i < dict.size; ++i) pairs.push_back(&dict.data[i]);
  if (style.sort) {
    for (const Pair* p : pairs)
      if (p->key.kind != Kind::text) return "keys to sort that are no strings";
    std::sort(pairs.begin(), pairs.end(), [](const Pair* a, const Pair* b) {
      return a->key.text->view() < b->key.text->view();
    });
  }
  if (pairs.empty()) {
    out.append("{}", origin);
    return "";
  }
  out.append("{", origin);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i) out.append(style.item, origin);
    json_line(out, style, origin, depth + 1);
    if (auto wrong = json_key(out, pairs[i]->key, style.ascii, origin); !wrong.empty())
      return wrong;
    out.append(style.key, origin);
    if (auto wrong = print_json(out, pairs[i]->value, style, origin, depth + 1); !wrong.empty())
      return wrong;
  }
  json_line(out, style, origin, depth);
  out.append("}", origin);
  return "";
}

}  // namespace

std::string print_json(TextBuilder& out, const Value& value, const JsonStyle& style,
                       const Origin& origin, int depth) {
  if (depth > 100) return "one of more than 100 levels";
  switch (value.kind) {
    case Kind::none:
      out.append("null", origin);
      return "";
    case Kind::boolean:
      out.append(value.boolean ? "true" : "false", origin);
      return "";
    case Kind::integer:
      out.append(std::to_string(value.integer), origin);
      return "";
    case Kind::real:
      out.append(json_real(value.real), origin);
      return "";
    case Kind::text:
      json_text(out, *value.text, style.ascii, origin);
      return "";
    case Kind::dict:
      return json_dict(out, *value.dict, style, origin, depth);
    case Kind::sequence: {
      const Sequence& s = *value.sequence;
      if (s.form != Sequence::Form::list && s.form != Sequence::Form::tuple)
        return "a range or a view, which JSON does not have";
      if (!s.size) {
        out.append("[]", origin);
        return "";
      }
      out.append("[", origin);
      for (int64_t i = 0; i < s.size; ++i) {
        if (i) out.append(style.item, origin);
        json_line(out, style, origin, depth + 1);
        if (auto wrong = print_json(out, s.data[i], style, origin, depth + 1); !wrong.empty())
          return wrong;
      }
      json_line(out, style, origin, depth);
      out.append("]", origin);
      return "";
    }
    case Kind::undefined:
      return "one that is not defined";
    default:
      return "one that JSON does not have";
  }
}

}  // namespace snug::jinja
