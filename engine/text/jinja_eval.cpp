#include "engine/text/jinja_eval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/text/jinja_text.h"
#include "engine/text/unicode.h"

namespace snug::jinja {

constexpr int kMostLevels = 800;

Level::Level(Evaluator& evaluator) : e(evaluator) {
  if (++e.depth_ > kMostLevels)
    e.bad("calls and expressions of at most " + std::to_string(kMostLevels) +
              " levels inside each other",
          "more: a macro that calls itself for ever?");
}
Level::~Level() {
  --e.depth_;
}

Evaluator::Evaluator(const Program& program, Arena& arena, int64_t max_steps, std::time_t now)
    : program_(program), arena_(arena), steps_(max_steps), max_steps_(max_steps), now_(now) {
  scope_ = inner(nullptr);
}

void Evaluator::bad(const std::string& expected, const std::string& found,
                    const std::string& advice) const {
  fail_at(program_.name, line_, expected, found, advice);
}

void Evaluator::undefined(const Value& value) const {
  const std::string name = value.hint;
  bad("a value", name.empty() ? "one that is not defined" : "'" + name + "', which is not defined",
      "give it in the messages, or correct the template");
}

void Evaluator::work(int64_t steps) {
  if ((steps_ -= steps) < 0)
    bad("a template that ends within " + std::to_string(max_steps_) + " steps",
        "one that still runs", "look for a loop that does not end, or shorten the conversation");
}

std::string Evaluator::kind_name(const Value& value) const {
  switch (value.kind) {
    case Kind::undefined:
      return "a value that is not defined";
    case Kind::none:
      return "none";
    case Kind::boolean:
      return value.boolean ? "true" : "false";
    case Kind::integer:
      return "the integer " + std::to_string(value.integer);
    case Kind::real:
      return "the number " + print_real(value.real);
    case Kind::text:
      return "the string '" + beginning_utf8(value.text->view(), 40) + "'";
    case Kind::sequence:
      return "a list";
    case Kind::iterator:
      return "a generator";
    case Kind::dict:
      return "a mapping";
    case Kind::space:
      return "a namespace";
    case Kind::loop:
      return "a loop";
    case Kind::function:
      return "a function";
  }
  fail(ErrorCode::internal, "a kind of value", "another", "report this");
}

const Text& Evaluator::text_of(const Value& value) const {
  if (value.kind == Kind::undefined) undefined(value);
  if (value.kind != Kind::text) bad("a string", kind_name(value));
  if (value.text->markup)
    bad("a string that is not escaped",
        "one of the filters 'escape' and 'safe', of which this is "
        "not built",
        "use those filters last");
  return *value.text;
}

const Text& Evaluator::soft_text(const Value& value) {
  if (value.kind == Kind::text) return text_of(value);
  TextBuilder out(arena_);
  print(out, value);
  return *out.finish();
}

int64_t Evaluator::integer_of(const Value& value) const {
  if (value.kind == Kind::undefined) undefined(value);
  if (!value.is_whole()) bad("an integer", kind_name(value));
  return value.whole();
}

void Evaluator::print(TextBuilder& out, const Value& value) {
  work(1);
  const std::string wrong = print_value(out, value, literal_);
  if (!wrong.empty()) bad("a value that has a text", wrong);
}

const Text* Evaluator::concat(const std::vector<Value>& values) {
  TextBuilder out(arena_);
  for (const Value& v : values) print(out, v);
  return out.finish();
}

std::vector<Value> Evaluator::items_of(const Value& value) {
  std::vector<Value> out;
  switch (value.kind) {
    case Kind::undefined:
      return out;
    case Kind::sequence:
      work(value.sequence->size);
      out.assign(value.sequence->data, value.sequence->data + value.sequence->size);
      return out;
    case Kind::iterator: {
      Iterator& i = *value.iterator;
      work(i.size - i.next);
      out.assign(i.data + i.next, i.data + i.size);
      i.next = i.size;
      return out;
    }
    case Kind::dict:
      work(value.dict->size);
      for (int64_t i = 0; i < value.dict->size; ++i) out.push_back(value.dict->data[i].key);
      return out;
    case Kind::text: {
      const Text& t = *value.text;
      work(t.size);
      arena_.charge(t.size * static_cast<int64_t>(sizeof(Value)));
      for (int64_t i = 0; i < t.size;) {
        const int64_t n = decode_utf8(t.view(), static_cast<size_t>(i)).length;
        out.push_back(Value::of(cut_text(arena_, t, i, i + n)));
        i += n;
      }
      return out;
    }
    default:
      bad("a list, a mapping or a string to walk", kind_name(value));
  }
}

std::optional<int64_t> Evaluator::length_of(const Value& value) const {
  switch (value.kind) {
    case Kind::undefined:
      return 0;
    case Kind::sequence:
      return value.sequence->size;
    case Kind::dict:
      return value.dict->size;
    case Kind::text:
      return count_chars(value.text->view());
    case Kind::loop:
      return value.loop->size;
    default:
      return std::nullopt;
  }
}

bool Evaluator::truth(const Value& value) const {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean;
    case Kind::integer:
      return value.integer != 0;
    case Kind::real:
      return value.real != 0;
    case Kind::text:
      return value.text->size > 0;
    case Kind::sequence:
      return value.sequence->size > 0;
    case Kind::dict:
      return value.dict->size > 0;
    case Kind::loop:
      return value.loop->size > 0;
    case Kind::iterator:
    case Kind::space:
    case Kind::function:
      return true;
  }
  return true;
}

namespace {

// Forms that compare with each other.
int family(Sequence::Form form) {
  switch (form) {
    case Sequence::Form::list:
      return 0;
    case Sequence::Form::tuple:
      return 1;
    case Sequence::Form::range:
      return 2;
    case Sequence::Form::keys:
    case Sequence::Form::items:
      return 3;
    case Sequence::Form::values:
      return 4;
  }
  return 4;
}

}  // namespace

bool Evaluator::equal(const Value& a, const Value& b, int depth) {
  work(1);
  if (depth > 100) bad("values of at most 100 levels", "deeper ones");
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      work(std::min(a.text->size, b.text->size) / 64);
      return a.text->view() == b.text->view();
    case Kind::sequence: {
      const Sequence &x = *a.sequence, &y = *b.sequence;
      if (&x == &y) return true;
      if (family(x.form) == 3 || family(y.form) == 3 || family(x.form) == 4)
        bad("lists to compare", "views of a mapping", "put '| list' behind them");
      if (family(x.form) != family(y.form) || x.size != y.size) return false;
      for (int64_t i = 0; i < x.size; ++i)
        if (!equal(x.data[i], y.data[i], depth + 1)) return false;
      return true;
    }
    case Kind::dict: {
      if (a.dict->size != b.dict->size) return false;
      for (int64_t i = 0; i < a.dict->size; ++i) {
        const Pair& p = a.dict->data[i];
        const Pair* other = nullptr;
        for (int64_t k = 0; k < b.dict->size && !other; ++k)
          if (equal(p.key, b.dict->data[k].key, depth + 1)) other = &b.dict->data[k];
        if (!other || !equal(p.value, other->value, depth + 1)) return false;
      }
      return true;
    }
    default:
      return a.integer == b.integer;  // the same object
  }
}

int Evaluator::order(const Value& a, const Value& b, int depth) {
  work(1);
  if (depth > 100) bad("values of at most 100 levels", "deeper ones");
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole())
      return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
    const double x = a.number(), y = b.number();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (a.kind == Kind::text && b.kind == Kind::text) {
    const int c = a.text->view().compare(b.text->view());
    return c < 0 ? -1 : c > 0 ? 1 : 0;
  }
  if (a.kind == Kind::sequence && b.kind == Kind::sequence &&
      family(a.sequence->form) == family(b.sequence->form) && family(a.sequence->form) < 2) {
    const Sequence &x = *a.sequence, &y = *b.sequence;
    for (int64_t i = 0; i < std::min(x.size, y.size); ++i)
      if (!equal(x.data[i], y.data[i])) return order(x.data[i], y.data[i], depth + 1);
    return x.size < y.size ? -1 : x.size > y.size ? 1 : 0;
  }
  if (a.kind == Kind::undefined) undefined(a);
  if (b.kind == Kind::undefined) undefined(b);
  bad("two numbers or two strings to compare", kind_name(a) + " and " + kind_name(b));
}

bool Evaluator::contains(const Value& container, const Value& item) {
  switch (container.kind) {
    case Kind::text: {
      if (item.kind != Kind::text) bad("a string to look for in a string", kind_name(item));
      work(container.text->size / 16);
      return container.text->view().find(item.text->view()) != std::string_view::npos;
    }
    case Kind::dict:
      if (item.kind == Kind::sequence && item.sequence->form == Sequence::Form::list)
        bad("a key that is no list", "a list");
      if (item.kind == Kind::dict) bad("a key that is no mapping", "a mapping");
      for (int64_t i = 0; i < container.dict->size; ++i)
        if (equal(container.dict->data[i].key, item)) return true;
      return false;
    case Kind::iterator: {
      Iterator& it = *container.iterator;
      while (it.next < it.size)
        if (equal(it.data[it.next++], item)) return true;
      return false;
    }
    case Kind::undefined:
      return false;
    case Kind::sequence:
      for (int64_t i = 0; i < container.sequence->size; ++i)
        if (equal(container.sequence->data[i], item)) return true;
      return false;
    default:
      bad("a list, a mapping or a string behind 'in'", kind_name(container));
  }
}

Value Evaluator::attribute(const Value& of, std::string_view name) {
  if (of.kind == Kind::undefined) undefined(of);
  if (has_method(of, name)) {
    Function* f = arena_.make<Function>();
    f->form = Function::Form::method;
    f->name = name;
    f->self = of;
    return Value::of(f);
  }
  const char* hint = arena_.copy(std::string(name) + '\0').data();
  if (of.kind == Kind::dict || of.kind == Kind::space) {
    if (const Value* v = of.dict->find(name)) return *v;
  } else if (of.kind == Kind::loop) {
    return loop_attribute(*of.loop, name);
  } else if (of.kind == Kind::function && name == "name" &&
             of.function->form == Function::Form::macro) {
    return Value::of(text(of.function->name));
  } else if (of.kind == Kind::function && of.function->form == Function::Form::cycler &&
             (name == "next" || name == "reset" || name == "current")) {
    const int64_t n = of.function->self.sequence->size;
    if (name == "current") return of.function->self.sequence->data[*of.function->state % n];
    Function* f = arena_.make<Function>(1);
    *f = *of.function;
    f->name = name;
    return Value::of(f);
  }
  return Value::of_undefined(hint);
}

Value Evaluator::item(const Value& of, const Value& key) {
  if (of.kind == Kind::undefined) undefined(of);
  if (of.kind == Kind::dict) {
    if (key.kind == Kind::text) {
      work(of.dict->size / 8);
      if (const Value* v = of.dict->find(key.text->view())) return *v;
    } else if (key.is_number() || key.kind == Kind::none) {
      for (int64_t i = 0; i < of.dict->size; ++i)
        if (equal(of.dict->data[i].key, key)) return of.dict->data[i].value;
    }
  } else if (key.is_whole()) {
    const int64_t at = key.whole();
    if (of.kind == Kind::text) {
      const int64_t size = count_chars(of.text->view());
      const int64_t i = at < 0 ? at + size : at;
      work(of.text->size / 16);
      if (i >= 0 && i < size) return Value::of(text_slice(arena_, *of.text, i, i + 1, 1));
    } else if (of.kind == Kind::sequence && family(of.sequence->form) < 3) {
      const int64_t i = at < 0 ? at + of.sequence->size : at;
      if (i >= 0 && i < of.sequence->size) return of.sequence->data[i];
    }
  }
  if (key.kind == Kind::text) return attribute(of, key.text->view());
  return Value::of_undefined("an element that is not there");
}

std::optional<Value> Evaluator::take(Arguments& arguments, size_t index, std::string_view name) {
  for (auto& [key, value] : arguments.names) {
    if (key != name || key.empty()) continue;
    if (index < arguments.values.size()) bad("'" + std::string(name) + "' once", "it twice");
    key = {};
    return value;
  }
  if (index < arguments.values.size()) return arguments.values[index];
  return std::nullopt;
}

void Evaluator::no_more(const Arguments& arguments, size_t most, std::string_view of) const {
  if (arguments.values.size() > most)
    bad("at most " + std::to_string(most) + " arguments of '" + std::string(of) + "'",
        std::to_string(arguments.values.size()));
  for (const auto& [key, value] : arguments.names)
    if (!key.empty())
      bad("arguments that '" + std::string(of) + "' has", "'" + std::string(key) + "'");
}

}  // namespace snug::jinja
