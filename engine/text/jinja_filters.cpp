#include "engine/text/jinja_filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/core/error.h"
#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"
#include "engine/text/unicode.h"

namespace snug::jinja {

Value Filters::by_path(const Value& of, const Value& path) {
  if (path.kind == Kind::none) return of;
  if (path.is_whole()) return e.item(of, path);
  const Text& t = e.text_of(path);
  Value v = of;
  for (const auto& [begin, end] : split_text(t.view(), ".", -1, false)) {
    const std::string part(
        t.view().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    const bool number = !part.empty() && part.size() < 18 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    v = e.item(
        v, number ? Value::of(static_cast<int64_t>(std::stoll(part))) : Value::of(e.text(part)));
  }
  return v;
}

Value Filters::lazy(const std::vector<Value>& values, const char* name) {
  Iterator* i = e.arena().make<Iterator>();
  const Sequence* s = make_sequence(e.arena(), values);
  i->data = s->data;
  i->size = s->size;
  i->name = name;
  return Value::of(i);
}

Value Filters::list(const std::vector<Value>& values) {
  return Value::of(make_sequence(e.arena(), values));
}

// For sorting without regard to case.
Value Filters::folded(const Value& v, bool case_sensitive) {
  if (case_sensitive || v.kind != Kind::text) return v;
  return Value::of(text_case(e.arena(), e.text_of(v), Case::lower));
}

// select, reject, selectattr, rejectattr.
Value Filters::select(std::string_view name, const Value& of, Arguments& a) {
  const bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
  std::vector<Value> kept;
  size_t first = 0;
  Value path = Value::of_none();
  if (by_attribute) {
    if (a.values.empty()) e.bad("the attribute that '" + std::string(name) + "' looks at", "none");
    path = a.values[first++];
  }
  std::string test;
  if (first < a.values.size()) {
    test = e.text_of(a.values[first++]).view();
    if (!is_test(test)) e.bad("a test that is known", "'" + test + "'");
  }
  Arguments rest;
  if (!test.empty()) {
    rest.values.assign(a.values.begin() + static_cast<int64_t>(first), a.values.end());
    rest.names = a.names;
  } else {
    e.no_more(a, first, name);
  }
  for (const Value& v : e.items_of(of)) {
    e.work(1);
    const Value seen = by_attribute ? by_path(v, path) : v;
    Arguments given = rest;
    if ((test.empty() ? e.truth(seen) : e.test(test, seen, given)) == keep) kept.push_back(v);
  }
  return lazy(kept, "generator");
}

Value Filters::map(const Value& of, Arguments& a) {
  std::vector<Value> out;
  if (a.values.empty()) {
    const auto path = e.take(a, SIZE_MAX, "attribute");
    const auto absent = e.take(a, SIZE_MAX, "default");  // none is none, to jinja2 too
    if (!path) e.bad("a filter or an attribute for map", "neither");
    e.no_more(a, 0, "map");
    for (const Value& v : e.items_of(of)) {
      e.work(1);
      Value seen = by_path(v, *path);
      if (seen.kind == Kind::undefined && absent && absent->kind != Kind::none) seen = *absent;
      out.push_back(seen);
    }
    return lazy(out, "generator");
  }
  const std::string name(e.text_of(a.values[0]).view());
  if (!is_filter(name)) e.bad("a filter that is known", "'" + name + "'");
  for (const Value& v : e.items_of(of)) {
    Arguments given;
    given.values.assign(a.values.begin() + 1, a.values.end());
    given.names = a.names;
    out.push_back(e.filter(name, v, given));
  }
  return lazy(out, "generator");
}

Value Filters::join(const Value& of, Arguments& a) {
  const auto between = e.take(a, 0, "d");
  const auto path = e.take(a, 1, "attribute");
  e.no_more(a, 2, "join");
  TextBuilder out(e.arena());
  bool first = true;
  for (const Value& v : e.items_of(of)) {
    if (!first && between) e.print(out, *between);
    first = false;
    e.print(out, path ? by_path(v, *path) : v);
  }
  return Value::of(out.finish());
}

void Filters::sort(std::vector<Value>& values, const Value& path, bool case_sensitive,
                   bool reverse) {
  // sort's attribute may be several, by commas.
  std::vector<Value> paths = {path};
  if (path.kind == Kind::text) {
    paths.clear();
    const Text& t = e.text_of(path);
    for (const auto& [b, end] : split_text(t.view(), ",", -1, false))
      paths.push_back(Value::of(cut_text(e.arena(), t, b, end)));
  }
  std::vector<std::pair<std::vector<Value>, Value>> keyed;
  for (const Value& v : values) {
    std::vector<Value> keys;
    for (const Value& p : paths) keys.push_back(folded(by_path(v, p), case_sensitive));
    keyed.push_back({std::move(keys), v});
  }
  const auto before = [&](const auto& x, const auto& y) {
    for (size_t i = 0; i < x.first.size(); ++i) {
      const int c = e.order(x.first[i], y.first[i]);
      if (c == 2) e.bad("numbers to sort", "nan");
      if (c) return reverse ? c > 0 : c < 0;
    }
    return false;
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  for (size_t i = 0; i < values.size(); ++i) values[i] = keyed[i].second;
}

Value Filters::dictsort(const Value& of, Arguments& a) {
  const bool sensitive = e.truth(e.take(a, 0, "case_sensitive").value_or(Value::of(false)));
  const auto by = e.take(a, 1, "by");
  const bool reverse = e.truth(e.take(a, 2, "reverse").value_or(Value::of(false)));
  e.no_more(a, 3, "dictsort");
  const std::string_view which = by ? e.text_of(*by).view() : "key";
  if (which != "key" && which != "value") e.bad("'key' or 'value'", std::string(which));
  if (of.kind != Kind::dict) e.bad("a mapping to sort", e.kind_name(of));
  std::vector<Value> pairs = views(*of.dict, Sequence::Form::items);
  sort(pairs, Value::of(int64_t{which == "value"}), sensitive, reverse);
  return list(pairs);
}

std::vector<Value> Filters::views(const Dict& dict, Sequence::Form form) {
  std::vector<Value> out;
  e.work(dict.size);
  for (int64_t i = 0; i < dict.size; ++i) {
    const Pair& p = dict.data[i];
    if (form == Sequence::Form::items) {
      out.push_back(Value::of(make_sequence(e.arena(), {p.key, p.value}, Sequence::Form::tuple)));
    } else {
      out.push_back(form == Sequence::Form::keys ? p.key : p.value);
    }
  }
  return out;
}

Value Filters::indent(const Value& of, Arguments& a) {
  const auto width = e.take(a, 0, "width");
  const bool first = e.truth(e.take(a, 1, "first").value_or(Value::of(false)));
  const bool blank = e.truth(e.take(a, 2, "blank").value_or(Value::of(false)));
  e.no_more(a, 3, "indent");
  std::string by(4, ' ');
  if (width && width->kind == Kind::text) {
    by = e.text_of(*width).view();
  } else if (width) {
    const int64_t n = std::max<int64_t>(0, e.integer_of(*width));
    e.arena().charge(n);
    by.assign(static_cast<size_t>(n), ' ');
  }
  const Text& t = e.text_of(of);
  TextBuilder whole(e.arena()), out(e.arena());
  whole.append(t);
  whole.append("\n", {});
  const Text& lines = *whole.finish();
  bool start = true;
  if (first) out.append(by, {});
  for (const auto& [begin, end] : split_lines(lines.view(), false)) {
    if (!start) out.append("\n", {});
    if (!start && (blank || end > begin)) out.append(by, {});
    out.append(lines, begin, end);
    start = false;
  }
  return Value::of(out.finish());
}

namespace {

// Python's int() and float() of a string; none where they raise ValueError.
std::optional<std::string> number_text(std::string_view text) {
  text = text.substr(0, strip_end(text));
  text.remove_prefix(std::min(text.size(), strip_begin(text)));
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      const auto digit = [&](size_t k) {
        return k < text.size() && text[k] >= '0' && text[k] <= '9';
      };
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
    } else {
      out += text[i];
    }
  }
  if (out.empty()) return std::nullopt;
  return out;
}

std::optional<double> python_float(std::string_view text) {
  const auto t = number_text(text);
  if (!t) return std::nullopt;
  std::string lower = *t;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  const std::string bare = lower.substr(lower[0] == '-' || lower[0] == '+');
  const bool word = bare == "nan" || bare == "inf" || bare == "infinity";
  if (!word && lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double v = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return v;
}

}  // namespace

Value Filters::to_int(const Value& of, Arguments& a) {
  const Value absent = e.take(a, 0, "default").value_or(Value::of(int64_t{0}));
  const auto base = e.take(a, 1, "base");
  e.no_more(a, 2, "int");
  if (of.kind == Kind::undefined) e.undefined(of);
  if (of.is_whole()) return Value::of(of.whole());
  std::optional<double> real;
  if (of.kind == Kind::real) real = of.real;
  if (of.kind == Kind::text) {
    if (base && e.integer_of(*base) != 10)
      e.bad("base 10 for 'int'", "another, which is not built");
    const auto t = number_text(of.text->view());
    const size_t sign = t && ((*t)[0] == '-' || (*t)[0] == '+');
    if (t && t->size() > sign && t->find_first_not_of("0123456789", sign) == std::string::npos) {
      errno = 0;
      const int64_t v = std::strtoll(t->c_str(), nullptr, 10);
      if (errno) e.bad("an integer of at most 64 bits", *t);
      return Value::of(v);
    }
    real = python_float(of.text->view());
  }
  if (!real || !std::isfinite(*real)) return absent;
  if (std::fabs(*real) >= 9.2e18) e.bad("an integer of at most 64 bits", print_real(*real));
  return Value::of(static_cast<int64_t>(*real));
}

Value Filters::to_float(const Value& of, Arguments& a) {
  const Value absent = e.take(a, 0, "default").value_or(Value::of(0.0));
  e.no_more(a, 1, "float");
  if (of.kind == Kind::undefined) e.undefined(of);
  if (of.is_number()) return Value::of(of.number());
  if (of.kind == Kind::text)
    if (const auto v = python_float(of.text->view())) return Value::of(*v);
  return absent;
}

Value Filters::round(const Value& of, Arguments& a) {
  const int64_t digits = e.integer_of(e.take(a, 0, "precision").value_or(Value::of(int64_t{0})));
  const auto how = e.take(a, 1, "method");
  e.no_more(a, 2, "round");
  const std::string_view method = how ? e.text_of(*how).view() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    e.bad("'common', 'ceil' or 'floor'", std::string(method));
  if (!of.is_number()) e.bad("a number to round", e.kind_name(of));
  if (digits < -300 || digits > 300) e.bad("a precision up to 300", std::to_string(digits));
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double v = of.number() * scale;
    return Value::of((method == "ceil" ? std::ceil(v) : std::floor(v)) / scale);
  }
  if (of.is_whole()) {
    if (digits < 0) e.bad("a precision of 0 or more for integers", std::to_string(digits));
    return Value::of(of.whole());
  }
  if (!std::isfinite(of.real)) return of;
  // Half to even of the exact decimal value, as Python's round().
  std::string text(400, 0);
  if (digits >= 0) {
    const int n = std::snprintf(text.data(), text.size(), "%.*f",
                                static_cast<int>(std::min<int64_t>(digits, 60)), of.real);
    return Value::of(n > 0 && n < 400 ? std::strtod(text.c_str(), nullptr) : of.real);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return Value::of(std::nearbyint(of.real / scale) * scale);
}

Value Filters::to_json(const Value& of, Arguments& a) {
  JsonStyle style;
  style.ascii = e.truth(e.take(a, 0, "ensure_ascii").value_or(Value::of(false)));
  const auto indent = e.take(a, 1, "indent");
  const auto separators = e.take(a, 2, "separators");
  style.sort = e.truth(e.take(a, 3, "sort_keys").value_or(Value::of(false)));
  e.no_more(a, 4, "tojson");
  if (indent && indent->kind != Kind::none) {
    style.item = ",";
    if (indent->kind == Kind::text) {
      style.indent = std::string(e.text_of(*indent).view());
    } else {
      const int64_t n = e.integer_of(*indent);
      if (n > 100) e.bad("an indent of at most 100", std::to_string(n));
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, n)), ' ');
    }
  }
  if (separators && separators->kind != Kind::none) {
    const std::vector<Value> two = e.items_of(*separators);
    if (two.size() != 2) e.bad("two separators", std::to_string(two.size()));
    style.item = e.text_of(two[0]).view();
    style.key = e.text_of(two[1]).view();
  }
  TextBuilder out(e.arena());
  e.work(1);
  const std::string wrong = print_json(out, of, style, {});
  if (!wrong.empty()) e.bad("a value to write as JSON", wrong);
  return Value::of(out.finish());
}

Value Filters::truncate(const Value& of, Arguments& a) {
  const int64_t length = e.integer_of(e.take(a, 0, "length").value_or(Value::of(int64_t{255})));
  const bool kill = e.truth(e.take(a, 1, "killwords").value_or(Value::of(false)));
  const Text& end = e.text_of(e.take(a, 2, "end").value_or(Value::of(e.text("..."))));
  auto leeway = e.take(a, 3, "leeway");
  if (leeway && leeway->kind == Kind::none) leeway.reset();
  const int64_t room = leeway ? e.integer_of(*leeway) : 5;
  e.no_more(a, 4, "truncate");
  const int64_t tail = count_chars(end.view());
  if (length < tail || room < 0) e.bad("a length that the end fits in", std::to_string(length));
  const Text& t = e.text_of(of);
  if (count_chars(t.view()) <= length + room) return of;
  const Text* cut = text_slice(e.arena(), t, 0, length - tail, 1);
  if (!kill) {
    const auto parts = split_text(cut->view(), " ", 1, true);
    cut = cut_text(e.arena(), *cut, 0, parts[0].second);
  }
  TextBuilder out(e.arena());
  out.append(*cut);
  out.append(end);
  return Value::of(out.finish());
}

Value Filters::escape(const Value& of) {
  TextBuilder out(e.arena());
  if (of.kind == Kind::text && of.text->markup) return of;
  const Text& t = e.soft_text(of);
  for (int64_t i = 0; i < t.size; ++i) {
    const char c = t.data[i];
    const char* as = c == '&'    ? "&amp;"
                     : c == '<'  ? "&lt;"
                     : c == '>'  ? "&gt;"
                     : c == '"'  ? "&#34;"
                     : c == '\'' ? "&#39;"
                                 : nullptr;
    if (as) {
      out.append(as, origin_at(t, i));
    } else {
      out.append(t, i, i + 1);
    }
  }
  Text* done = e.arena().make<Text>();
  *done = *out.finish();
  done->markup = true;
  return Value::of(static_cast<const Text*>(done));
}

namespace {

bool ends_word(char32_t c) {
  return is_python_space(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<';
}

}  // namespace

// Words end at white space, hyphens and opening brackets.
Value Filters::title(const Value& of) {
  const Text& t = e.soft_text(of);
  const std::string_view bytes = t.view();
  TextBuilder out(e.arena());
  bool first = true;
  for (int64_t i = 0; i < t.size;) {
    const Utf8Char c = decode_utf8(bytes, static_cast<size_t>(i));
    const bool between = ends_word(c.code);
    int64_t end = i + c.length;
    if (between) {
      out.append(t, i, end);
    } else if (first) {
      out.append(*text_case(e.arena(), *cut_text(e.arena(), t, i, end), Case::upper));
    } else {  // the rest of the word at once: what a sigma becomes depends on it
      while (end < t.size) {
        const Utf8Char next = decode_utf8(bytes, static_cast<size_t>(end));
        if (ends_word(next.code)) break;
        end += next.length;
      }
      out.append(*text_case(e.arena(), *cut_text(e.arena(), t, i, end), Case::lower));
    }
    first = between;
    i = end;
  }
  return Value::of(out.finish());
}

Value Filters::extreme(std::string_view name, const Value& of, Arguments& a) {
  const bool sensitive = e.truth(e.take(a, 0, "case_sensitive").value_or(Value::of(false)));
  const Value path = e.take(a, 1, "attribute").value_or(Value::of_none());
  e.no_more(a, 2, name);
  std::optional<Value> best;
  for (const Value& v : e.items_of(of)) {
    if (best) {
      const int c =
          e.order(folded(by_path(v, path), sensitive), folded(by_path(*best, path), sensitive));
      if (c != (name == "min" ? -1 : 1)) continue;
    }
    best = v;
  }
  return best.value_or(Value::of_undefined("the extreme of an empty list"));
}

}  // namespace snug::jinja
