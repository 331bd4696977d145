// Filters and tests by name.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/text/jinja_filters.h"
#include "engine/text/jinja_text.h"

namespace snug::jinja {
namespace {

constexpr std::string_view kFilters[] = {
    "abs",    "attr",   "capitalize", "count",      "d",       "default",  "dictsort",
    "e",      "escape", "first",      "float",      "format",  "indent",   "int",
    "items",  "join",   "last",       "length",     "list",    "lower",    "map",
    "max",    "min",    "reject",     "rejectattr", "replace", "reverse",  "round",
    "safe",   "select", "selectattr", "sort",       "string",  "sum",      "title",
    "tojson", "trim",   "truncate",   "unique",     "upper",   "wordcount"};

constexpr std::string_view kTests[] = {
    "boolean", "callable", "defined", "divisibleby", "eq",     "equalto", "==",
    "even",    "false",    "float",   "ge",          ">=",     "gt",      "greaterthan",
    ">",       "in",       "integer", "iterable",    "le",     "<=",      "lower",
    "lt",      "lessthan", "<",       "mapping",     "ne",     "!=",      "none",
    "number",  "odd",      "sameas",  "sequence",    "string", "true",    "undefined",
    "upper",   "filter",   "test"};

bool is_word(char32_t c) {
  return c < 0x80 ? std::isalnum(static_cast<int>(c)) || c == '_' : true;
}

}  // namespace

bool is_filter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}
bool is_test(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

Value Evaluator::filter(std::string_view name, const Value& of, Arguments& a) {
  const Level level(*this);
  work(1);
  Filters f{*this};
  const auto plain = [&](Value v) {  // of filters without arguments
    no_more(a, 0, name);
    return v;
  };
  if (name == "trim") {
    const auto chars = take(a, 0, "chars");
    no_more(a, 1, name);
    const Text& t = soft_text(of);
    std::optional<std::string_view> set;
    if (chars && chars->kind != Kind::none) set = text_of(*chars).view();
    work(t.size / 64);
    const auto end = static_cast<int64_t>(strip_end(t.view(), set));
    const auto begin = static_cast<int64_t>(strip_begin(t.view(), set));
    return Value::of(cut_text(arena_, t, std::min(begin, end), end));
  }
  if (name == "tojson") return f.to_json(of, a);
  if (name == "length" || name == "count") {
    const auto n = length_of(of);
    if (!n) bad("a list, a mapping or a string to count", kind_name(of));
    return plain(Value::of(*n));
  }
  if (name == "default" || name == "d") {
    const Value absent = take(a, 0, "default_value").value_or(Value::of(text("")));
    const bool empty_too = truth(take(a, 1, "boolean").value_or(Value::of(false)));
    no_more(a, 2, name);
    return of.kind == Kind::undefined || (empty_too && !truth(of)) ? absent : of;
  }
  if (name.starts_with("select") || name.starts_with("reject")) return f.select(name, of, a);
  if (name == "map") return f.map(of, a);
  if (name == "join") return f.join(of, a);
  if (name == "list") return plain(f.list(items_of(of)));
  if (name == "items") {
    if (of.kind == Kind::undefined) return plain(f.lazy({}, "generator"));
    if (of.kind != Kind::dict) bad("a mapping", kind_name(of));
    return plain(f.lazy(f.views(*of.dict, Sequence::Form::items), "generator"));
  }
  if (name == "string") return plain(of.kind == Kind::text ? of : Value::of(&soft_text(of)));
  if (name == "upper") return plain(Value::of(text_case(arena_, soft_text(of), Case::upper)));
  if (name == "lower") return plain(Value::of(text_case(arena_, soft_text(of), Case::lower)));
  if (name == "capitalize")
    return plain(Value::of(text_case(arena_, soft_text(of), Case::capitalize)));
  if (name == "title") return plain(f.title(of));
  if (name == "replace") {
    const auto from = take(a, 0, "old"), to = take(a, 1, "new"), most = take(a, 2, "count");
    no_more(a, 3, name);
    if (!from || !to) bad("what to replace and by what", "less");
    const int64_t n = most && most->kind != Kind::none ? integer_of(*most) : -1;
    const Text& t = soft_text(of);
    work(t.size / 16);
    return Value::of(text_replace(arena_, t, soft_text(*from).view(), soft_text(*to), n));
  }
  if (name == "first" || name == "last") {
    no_more(a, 0, name);
    const Value absent = Value::of_undefined("the first or last of an empty list");
    if (name == "first" && of.kind == Kind::iterator) {
      Iterator& i = *of.iterator;
      return i.next < i.size ? i.data[i.next++] : absent;
    }
    if (name == "last" && of.kind == Kind::iterator)
      bad("a list", "a generator: put '| list' behind it");
    const std::vector<Value> values = items_of(of);
    if (values.empty()) return absent;
    return name == "first" ? values.front() : values.back();
  }
  if (name == "reverse") {
    no_more(a, 0, name);
    if (of.kind == Kind::text) return Value::of(text_slice(arena_, text_of(of), {}, {}, -1));
    if (of.kind == Kind::undefined) bad("a list", kind_name(of));
    std::vector<Value> values = items_of(of);
    std::reverse(values.begin(), values.end());
    return f.lazy(values, "reversed list");
  }
  if (name == "dictsort") return f.dictsort(of, a);
  if (name == "sort") {
    const bool reverse = truth(take(a, 0, "reverse").value_or(Value::of(false)));
    const bool sensitive = truth(take(a, 1, "case_sensitive").value_or(Value::of(false)));
    const Value path = take(a, 2, "attribute").value_or(Value::of_none());
    no_more(a, 3, name);
    std::vector<Value> values = items_of(of);
    f.sort(values, path, sensitive, reverse);
    return f.list(values);
  }
  if (name == "unique") {
    const bool sensitive = truth(take(a, 0, "case_sensitive").value_or(Value::of(false)));
    const Value path = take(a, 1, "attribute").value_or(Value::of_none());
    no_more(a, 2, name);
    std::vector<Value> kept, keys;
    for (const Value& v : items_of(of)) {
      const Value key = f.folded(f.by_path(v, path), sensitive);
      if (key.kind == Kind::dict ||
          (key.kind == Kind::sequence && key.sequence->form == Sequence::Form::list))
        bad("strings and numbers for 'unique'", kind_name(key));
      if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); }))
        continue;
      keys.push_back(key);
      kept.push_back(v);
    }
    return f.lazy(kept, "generator");
  }
  if (name == "min" || name == "max") return f.extreme(name, of, a);
  if (name == "sum") {
    const Value path = take(a, 0, "attribute").value_or(Value::of_none());
    Value total = take(a, 1, "start").value_or(Value::of(int64_t{0}));
    no_more(a, 2, name);
    if (total.kind == Kind::text) bad("a number to begin a sum with", "a string");
    for (const Value& v : items_of(of)) total = binary("+", total, f.by_path(v, path));
    return total;
  }
  if (name == "int") return f.to_int(of, a);
  if (name == "float") return f.to_float(of, a);
  if (name == "round") return f.round(of, a);
  if (name == "abs") {
    no_more(a, 0, name);
    if (of.kind == Kind::undefined) undefined(of);
    if (!of.is_number()) bad("a number", kind_name(of));
    if (of.kind == Kind::real) return Value::of(std::fabs(of.real));
    return of.whole() < 0 ? numeric("-", Value::of(int64_t{0}), of) : Value::of(of.whole());
  }
  if (name == "indent") return f.indent(of, a);
  if (name == "truncate") return f.truncate(of, a);
  if (name == "wordcount") {
    const Text& t = soft_text(of);
    int64_t words = 0;
    bool inside = false;
    for (int64_t i = 0; i < t.size; ++i) {
      const auto c = static_cast<uint8_t>(t.data[i]);
      if (c >= 0x80) bad("a string of ASCII for 'wordcount'", "another character");
      words += is_word(c) && !inside;
      inside = is_word(c);
    }
    return plain(Value::of(words));
  }
  if (name == "attr") {
    const auto key = take(a, 0, "name");
    no_more(a, 1, name);
    if (!key) bad("the name of an attribute", "none");
    const Value found = attribute(of, text_of(*key).view());
    // Keys are no attributes: jinja2 looks at an object's own alone.
    return of.kind == Kind::dict && found.kind != Kind::function
               ? Value::of_undefined("an attribute")
               : found;
  }
  if (name == "format") {
    if (!a.names.empty()) bad("values without names for 'format'", "names, which are not built");
    const Text& t = soft_text(of);
    return percent(t, Value::of(make_sequence(arena_, a.values, Sequence::Form::tuple)));
  }
  if (name == "e" || name == "escape") return plain(f.escape(of));
  if (name == "safe") {
    Text* t = arena_.make<Text>();
    *t = of.kind == Kind::text ? *of.text : soft_text(of);
    t->markup = true;
    return plain(Value::of(static_cast<const Text*>(t)));
  }
  bad("a filter that is known", "'" + std::string(name) + "'", "write the template without it");
}

bool Evaluator::test(std::string_view name, const Value& of, Arguments& a) {
  work(1);
  const auto other = [&]() -> Value {
    if (a.values.size() != 1 || !a.names.empty())
      bad("one value for the test '" + std::string(name) + "'", std::to_string(a.values.size()));
    return a.values[0];
  };
  if (name == "eq" || name == "equalto" || name == "==") return equal(of, other());
  if (name == "ne" || name == "!=") return !equal(of, other());
  if (name == "lt" || name == "lessthan" || name == "<") return order(of, other()) == -1;
  if (name == "le" || name == "<=") return order(of, other()) <= 0;
  if (name == "gt" || name == "greaterthan" || name == ">") return order(of, other()) == 1;
  if (name == "ge" || name == ">=") {
    const int c = order(of, other());
    return c == 0 || c == 1;
  }
  if (name == "in") return contains(other(), of);
  if (name == "divisibleby") {
    const Value rest = binary("%", of, other());
    return rest.is_number() && rest.number() == 0;
  }
  if (name == "sameas") {
    const Value b = other();
    if (of.kind != b.kind) return false;
    if (of.kind == Kind::none) return true;
    if (of.kind == Kind::boolean) return of.boolean == b.boolean;
    if (of.is_number() || of.kind == Kind::text)
      bad("true, false, none or the same list for 'sameas'", kind_name(of));
    return of.integer == b.integer;
  }
  if (name == "filter" || name == "test") {
    no_more(a, 0, name);
    const std::string_view asked = text_of(of).view();
    return name == "filter" ? is_filter(asked) : is_test(asked);
  }
  no_more(a, 0, name);
  if (name == "defined") return of.kind != Kind::undefined;
  if (name == "undefined") return of.kind == Kind::undefined;
  if (name == "none") return of.kind == Kind::none;
  if (name == "boolean") return of.kind == Kind::boolean;
  if (name == "true") return of.kind == Kind::boolean && of.boolean;
  if (name == "false") return of.kind == Kind::boolean && !of.boolean;
  if (name == "integer") return of.kind == Kind::integer;
  if (name == "float") return of.kind == Kind::real;
  if (name == "number") return of.is_number();
  if (name == "string") return of.kind == Kind::text;
  if (name == "mapping") return of.kind == Kind::dict;
  if (name == "iterable")
    return of.kind == Kind::undefined || of.kind == Kind::sequence || of.kind == Kind::iterator ||
           of.kind == Kind::dict || of.kind == Kind::text || of.kind == Kind::loop;
  if (name == "sequence")
    return of.kind == Kind::undefined || of.kind == Kind::dict || of.kind == Kind::text ||
           (of.kind == Kind::sequence && of.sequence->form <= Sequence::Form::range);
  if (name == "callable") {
    if (of.kind == Kind::undefined) return true;  // it has a __call__, which raises
    return of.kind == Kind::function || of.kind == Kind::loop;
  }
  if (name == "even" || name == "odd") {
    const Value rest = binary("%", of, Value::of(int64_t{2}));
    return rest.is_number() && rest.number() == (name == "odd" ? 1 : 0);
  }
  if (name == "lower" || name == "upper")
    return text_is(soft_text(of).view(), name == "lower" ? "islower" : "isupper").value_or(false);
  bad("a test that is known", "'" + std::string(name) + "'", "write the template without it");
}

}  // namespace snug::jinja
