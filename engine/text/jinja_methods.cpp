// Methods of strings, mappings and lists, as Python has them.
#include <algorithm>

#include "engine/core/error.h"
#include "engine/text/jinja_filters.h"
#include "engine/text/jinja_text.h"

namespace snug::jinja {
namespace {

constexpr std::string_view kTextMethods[] = {
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith",
    "replace", "upper", "lower", "title", "capitalize", "swapcase", "find", "rfind", "index",
    "rindex", "count", "join", "removeprefix", "removesuffix", "partition", "rpartition", "isalpha",
    "isdigit", "isalnum", "isspace", "isupper", "islower", "isdecimal", "isnumeric", "isascii",
    "zfill",
    // known to Python and not here
    "format", "format_map", "center", "ljust", "rjust", "encode", "casefold", "expandtabs",
    "istitle", "isidentifier", "isprintable", "maketrans", "translate"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values", "copy",
                                             // refused: they change the mapping
                                             "clear", "pop", "popitem", "setdefault", "update",
                                             "fromkeys"};
constexpr std::string_view kListMethods[] = {"count", "index", "copy",
                                             // refused: they change the list
                                             "append", "clear", "extend", "insert", "pop", "remove",
                                             "reverse", "sort"};

template <size_t N>
bool one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class Methods {
 public:
  Methods(Evaluator& evaluator, std::string_view name, const Value& self, Arguments& arguments)
      : e(evaluator), name_(name), self_(self), a_(arguments) {}

  Value of_text() {
    const Text& t = e.text_of(self_);
    e.work(t.size / 32);
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") return strip(t);
    if (name_ == "split" || name_ == "rsplit") return split(t);
    if (name_ == "startswith" || name_ == "endswith") return ends(t);
    if (name_ == "upper") return changed(t, Case::upper);
    if (name_ == "lower") return changed(t, Case::lower);
    if (name_ == "title") return changed(t, Case::title);
    if (name_ == "capitalize") return changed(t, Case::capitalize);
    if (name_ == "swapcase") return changed(t, Case::swap);
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "rindex")
      return find(t);
    if (name_ == "splitlines") {
      const bool keep = e.truth(e.take(a_, 0, "keepends").value_or(Value::of(false)));
      e.no_more(a_, 1, name_);
      return pieces(t, split_lines(t.view(), keep));
    }
    if (name_ == "replace") {
      if (a_.values.size() < 2 || a_.values.size() > 3) bad_count("two or three");
      const int64_t most = a_.values.size() > 2 ? e.integer_of(a_.values[2]) : -1;
      e.no_more(a_, 3, name_);
      return Value::of(text_replace(e.arena(), t, e.text_of(a_.values[0]).view(),
                                    e.text_of(a_.values[1]), most));
    }
    if (name_ == "join") {
      const Value of = only();
      if (of.kind == Kind::undefined || of.kind == Kind::none) e.items_of(of);
      TextBuilder out(e.arena());
      bool first = true;
      for (const Value& v : e.items_of(of)) {
        if (!first) out.append(t);
        first = false;
        out.append(e.text_of(v));
      }
      return Value::of(out.finish());
    }
    if (name_ == "removeprefix" || name_ == "removesuffix") {
      const std::string_view part = e.text_of(only()).view();
      const auto n = static_cast<int64_t>(part.size());
      if (name_ == "removeprefix")
        return Value::of(t.view().starts_with(part) ? cut_text(e.arena(), t, n, t.size) : &t);
      return Value::of(t.view().ends_with(part) ? cut_text(e.arena(), t, 0, t.size - n) : &t);
    }
    if (name_ == "count") {
      const std::string_view part = e.text_of(only()).view();
      if (part.empty()) return Value::of(count_chars(t.view()) + 1);
      int64_t n = 0;
      for (size_t at = 0; (at = t.view().find(part, at)) != std::string_view::npos;
           at += part.size())
        ++n;
      return Value::of(n);
    }
    if (name_ == "partition" || name_ == "rpartition") return partition(t);
    if (name_ == "zfill") {
      const int64_t width = e.integer_of(only()), chars = count_chars(t.view());
      if (width <= chars) return self_;
      e.arena().charge(width);
      const int64_t sign = t.size && (t.data[0] == '+' || t.data[0] == '-');
      TextBuilder out(e.arena());
      out.append(t, 0, sign);
      out.append(std::string(static_cast<size_t>(width - chars), '0'), {});
      out.append(t, sign, t.size);
      return Value::of(out.finish());
    }
    if (const auto is = text_is(t.view(), name_)) {
      e.no_more(a_, 0, name_);
      return Value::of(*is);
    }
    refuse("a string");
  }

  Value of_dict() {
    const Dict& d = *self_.dict;
    if (name_ == "get") {
      if (a_.values.empty() || a_.values.size() > 2) bad_count("one or two");
      e.no_more(a_, 2, name_);
      const Value& key = a_.values[0];
      const bool hashable = key.kind == Kind::text || key.is_number() || key.kind == Kind::none;
      if (!hashable && key.kind != Kind::undefined) e.bad("a string as a key", e.kind_name(key));
      for (int64_t i = 0; i < d.size; ++i)
        if (e.equal(d.data[i].key, key)) return d.data[i].value;
      return a_.values.size() > 1 ? a_.values[1] : Value::of_none();
    }
    e.no_more(a_, 0, name_);
    Filters f{e};
    using Form = Sequence::Form;
    for (const auto& [name, form] : {std::pair{"items", Form::items}, std::pair{"keys", Form::keys},
                                     std::pair{"values", Form::values}})
      if (name_ == name) return Value::of(make_sequence(e.arena(), f.views(d, form), form));
    if (name_ == "copy") {
      Dict* copy = e.arena().make<Dict>();
      for (int64_t i = 0; i < d.size; ++i)
        dict_set(e.arena(), *copy, d.data[i].key, d.data[i].value);
      copy->message = d.message;
      return Value::of(copy);
    }
    refuse("a mapping");
  }

  Value of_list() {
    const Sequence& s = *self_.sequence;
    if (name_ == "copy" && s.form == Sequence::Form::list) {
      e.no_more(a_, 0, name_);
      return self_;
    }
    if (name_ == "count" || name_ == "index") {
      const Value of = only();
      int64_t n = 0;
      for (int64_t i = 0; i < s.size; ++i) {
        if (!e.equal(s.data[i], of)) continue;
        if (name_ == "index") return Value::of(i);
        ++n;
      }
      if (name_ == "index") e.bad("a value that is in the list", e.kind_name(of));
      return Value::of(n);
    }
    refuse("a list");
  }

 private:
  [[noreturn]] void refuse(const std::string& of) const {
    e.bad("methods of " + of + " that are known and change nothing", "'" + std::string(name_) + "'",
          "write the template without it");
  }
  [[noreturn]] void bad_count(const std::string& expected) const {
    e.bad(expected + " arguments of '" + std::string(name_) + "'",
          std::to_string(a_.values.size()));
  }
  Value only() const {
    if (a_.values.size() != 1) bad_count("one");
    e.no_more(a_, 1, name_);
    return a_.values[0];
  }
  Value changed(const Text& t, Case to) const {
    e.no_more(a_, 0, name_);
    return Value::of(text_case(e.arena(), t, to));
  }
  Value pieces(const Text& t, const std::vector<Span>& spans) const {
    std::vector<Value> out;
    e.work(static_cast<int64_t>(spans.size()));
    for (const auto& [begin, end] : spans)
      out.push_back(Value::of(cut_text(e.arena(), t, begin, end)));
    return Value::of(make_sequence(e.arena(), out));
  }

  Value strip(const Text& t) const {
    std::optional<std::string_view> chars;
    if (a_.values.size() > 1) bad_count("at most one");
    e.no_more(a_, 1, name_);
    if (!a_.values.empty() && a_.values[0].kind != Kind::none)
      chars = e.text_of(a_.values[0]).view();
    const int64_t end =
        name_ == "lstrip" ? t.size : static_cast<int64_t>(strip_end(t.view(), chars));
    const int64_t begin =
        name_ == "rstrip" ? 0 : static_cast<int64_t>(strip_begin(t.view(), chars));
    return Value::of(cut_text(e.arena(), t, std::min(begin, end), end));
  }

  Value split(const Text& t) {
    const auto separator = e.take(a_, 0, "sep"), most = e.take(a_, 1, "maxsplit");
    e.no_more(a_, 2, name_);
    std::optional<std::string_view> by;
    if (separator && separator->kind != Kind::none) by = e.text_of(*separator).view();
    if (by && by->empty()) e.bad("a separator", "an empty one");
    const int64_t n = most ? e.integer_of(*most) : -1;
    return pieces(t, split_text(t.view(), by, n, name_ == "rsplit"));
  }

  Value ends(const Text& t) const {
    if (a_.values.size() != 1) bad_count("one");
    e.no_more(a_, 1, name_);
    const auto holds = [&](const Value& v) {
      const std::string_view part = e.text_of(v).view();
      return name_ == "startswith" ? t.view().starts_with(part) : t.view().ends_with(part);
    };
    const Value& of = a_.values[0];
    if (of.kind != Kind::sequence || of.sequence->form != Sequence::Form::tuple)
      return Value::of(holds(of));
    for (int64_t i = 0; i < of.sequence->size; ++i)
      if (holds(of.sequence->data[i])) return Value::of(true);
    return Value::of(false);
  }

  Value find(const Text& t) const {
    if (a_.values.empty() || a_.values.size() > 3) bad_count("one to three");
    e.no_more(a_, 3, name_);
    const std::string_view part = e.text_of(a_.values[0]).view();
    const int64_t chars = count_chars(t.view());
    const auto bound = [&](size_t i, int64_t absent) {
      if (a_.values.size() <= i || a_.values[i].kind == Kind::none) return absent;
      const int64_t v = e.integer_of(a_.values[i]);
      return v < 0 ? std::max<int64_t>(0, std::max(v, -chars) + chars) : v;
    };
    const int64_t from = bound(1, 0), to = std::min(bound(2, chars), chars);
    int64_t found = -1;
    if (from <= to) {
      const int64_t begin = byte_of_char(t.view(), from), end = byte_of_char(t.view(), to);
      const std::string_view range =
          t.view().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      const size_t at = name_[0] == 'r' ? range.rfind(part) : range.find(part);
      if (at != std::string_view::npos) found = from + count_chars(range.substr(0, at));
    }
    if (found < 0 && name_.ends_with("index")) e.bad("a string that is there", "none");
    return Value::of(found);
  }

  Value partition(const Text& t) const {
    const Text& by = e.text_of(only());
    if (!by.size) e.bad("a separator", "an empty one");
    const bool right = name_ == "rpartition";
    const size_t at = right ? t.view().rfind(by.view()) : t.view().find(by.view());
    const Value none = Value::of(e.text(""));
    std::vector<Value> out = {self_, none, none};
    if (at == std::string_view::npos && right) out = {none, none, self_};
    if (at != std::string_view::npos) {
      const auto begin = static_cast<int64_t>(at);
      out = {Value::of(cut_text(e.arena(), t, 0, begin)), Value::of(&by),
             Value::of(cut_text(e.arena(), t, begin + by.size, t.size))};
    }
    return Value::of(make_sequence(e.arena(), out, Sequence::Form::tuple));
  }

  Evaluator& e;
  std::string_view name_;
  const Value& self_;
  Arguments& a_;
};

}  // namespace

bool has_method(const Value& of, std::string_view name) {
  if (of.kind == Kind::text) return one_of(kTextMethods, name);
  if (of.kind == Kind::dict) return one_of(kDictMethods, name);
  if (of.kind != Kind::sequence) return false;
  const bool either = name == "count" || name == "index";
  if (of.sequence->form == Sequence::Form::list) return one_of(kListMethods, name);
  return either && of.sequence->form <= Sequence::Form::range;
}

Value Evaluator::method(std::string_view name, const Value& self, Arguments& arguments) {
  Methods m(*this, name, self, arguments);
  if (self.kind == Kind::text) return m.of_text();
  if (self.kind == Kind::dict) return m.of_dict();
  return m.of_list();
}

}  // namespace snug::jinja
