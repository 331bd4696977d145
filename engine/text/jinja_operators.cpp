#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/core/error.h"
#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"

namespace snug::jinja {
namespace {

const Value* find_name(const Scope* scope, std::string_view name) {
  for (; scope; scope = scope->parent)
    for (const Scope::Entry* e = scope->first; e; e = e->next)
      if (e->name == name) return &e->value;
  return nullptr;
}

}  // namespace

Value Evaluator::lookup(std::string_view name) {
  if (const Value* v = find_name(scope_, name)) return *v;
  static constexpr std::string_view kGlobals[] = {"range",  "dict",        "namespace",
                                                  "cycler", "joiner",      "raise_exception",
                                                  "lipsum", "strftime_now"};
  if (std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals)) {
    Function* f = arena_.make<Function>();
    f->name = name;
    return Value::of(f);
  }
  return Value::of_undefined(arena_.copy(std::string(name) + '\0').data());
}

Value Evaluator::eval(const Expr& e) {
  const Level level(*this);
  work(1);
  line_ = e.line;
  switch (e.kind) {
    case ExprKind::constant_none:
      return Value::of_none();
    case ExprKind::constant_bool:
      return Value::of(e.boolean);
    case ExprKind::constant_int:
      return Value::of(e.integer);
    case ExprKind::constant_real:
      return Value::of(e.real);
    case ExprKind::constant_text:
      return Value::of(text(e.text));
    case ExprKind::name:
      return lookup(e.text);
    case ExprKind::list:
    case ExprKind::tuple: {
      std::vector<Value> values;
      for (const ExprPtr& part : e.parts) values.push_back(eval(*part));
      const auto form = e.kind == ExprKind::list ? Sequence::Form::list : Sequence::Form::tuple;
      return Value::of(make_sequence(arena_, values, form));
    }
    case ExprKind::dict: {
      Dict* dict = arena_.make<Dict>();
      for (size_t i = 0; i < e.parts.size(); i += 2) {
        const Value key = eval(*e.parts[i]);
        if (key.kind != Kind::text && !key.is_number() && key.kind != Kind::none)
          bad("a string or a number as a key", kind_name(key));
        dict_set(arena_, *dict, key, eval(*e.parts[i + 1]));
      }
      return Value::of(dict);
    }
    case ExprKind::attribute: {
      const Value of = eval(*e.parts[0]);
      line_ = e.line;
      return attribute(of, e.text);
    }
    case ExprKind::item: {
      const Value of = eval(*e.parts[0]);
      const Value key = eval(*e.parts[1]);
      line_ = e.line;
      return item(of, key);
    }
    case ExprKind::slice:
      return eval_slice(e);
    case ExprKind::call: {
      const Value callee = eval(*e.parts[0]);
      Arguments arguments = arguments_of(e);
      line_ = e.line;
      return call(callee, arguments);
    }
    case ExprKind::filter: {
      const Value of = e.parts[0] ? eval(*e.parts[0]) : lookup(" block");
      Arguments arguments = arguments_of(e);
      line_ = e.line;
      return filter(e.text, of, arguments);
    }
    case ExprKind::test: {
      const Value of = eval(*e.parts[0]);
      Arguments arguments = arguments_of(e);
      line_ = e.line;
      return Value::of(test(e.text, of, arguments));
    }
    case ExprKind::negate:
    case ExprKind::plus: {
      const Value v = eval(*e.parts[0]);
      if (v.kind == Kind::undefined) undefined(v);
      if (!v.is_number()) bad("a number behind a sign", kind_name(v));
      if (v.kind == Kind::real) return Value::of(e.kind == ExprKind::plus ? v.real : -v.real);
      return e.kind == ExprKind::plus ? Value::of(v.whole())
                                      : numeric("-", Value::of(int64_t{0}), v);
    }
    case ExprKind::not_:
      return Value::of(!truth(eval(*e.parts[0])));
    case ExprKind::and_: {
      const Value a = eval(*e.parts[0]);
      return truth(a) ? eval(*e.parts[1]) : a;
    }
    case ExprKind::or_: {
      const Value a = eval(*e.parts[0]);
      return truth(a) ? a : eval(*e.parts[1]);
    }
    case ExprKind::compare:
      return compare(e);
    case ExprKind::binary:
      return eval_binary(e);
    case ExprKind::concat: {
      std::vector<Value> values;
      for (const ExprPtr& part : e.parts) values.push_back(eval(*part));
      return Value::of(concat(values));
    }
    case ExprKind::condition:
      if (truth(eval(*e.parts[0]))) return eval(*e.parts[1]);
      return e.parts.size() > 2 ? eval(*e.parts[2])
                                : Value::of_undefined("the value of an 'if' without 'else'");
    case ExprKind::space_member:
      break;
  }
  fail(ErrorCode::internal, "a kind of expression", "another", "report this");
}

Value Evaluator::eval_slice(const Expr& e) {
  const Value of = eval(*e.parts[0]);
  std::optional<int64_t> bounds[3];
  for (size_t i = 1; i < 4; ++i) {
    if (!e.parts[i]) continue;
    const Value v = eval(*e.parts[i]);
    if (v.kind != Kind::none) bounds[i - 1] = integer_of(v);
  }
  line_ = e.line;
  const int64_t step = bounds[2].value_or(1);
  if (of.kind == Kind::undefined) undefined(of);
  if (!step) bad("a step that is not 0", "0");
  if (of.kind == Kind::text) {
    work(of.text->size / 16);
    return Value::of(text_slice(arena_, text_of(of), bounds[0], bounds[1], step));
  }
  if (of.kind != Kind::sequence || of.sequence->form > Sequence::Form::range)
    bad("a list or a string to take a part of", kind_name(of));
  const Sequence& s = *of.sequence;
  std::vector<Value> values;
  for (const int64_t i : slice_indices(s.size, bounds[0], bounds[1], step))
    values.push_back(s.data[i]);
  work(static_cast<int64_t>(values.size()));
  return Value::of(make_sequence(arena_, values, s.form));
}

Value Evaluator::compare(const Expr& e) {
  Value left = eval(*e.parts[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    const Value right = eval(*e.parts[i + 1]);
    line_ = e.line;
    const std::string& op = e.ops[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      const int c = order(left, right);
      holds = op == "<"    ? c == -1
              : op == "<=" ? c == -1 || c == 0
              : op == ">"  ? c == 1
                           : c == 1 || c == 0;
    }
    if (!holds) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Value Evaluator::eval_binary(const Expr& e) {
  const Value a = eval(*e.parts[0]), b = eval(*e.parts[1]);
  line_ = e.line;
  return binary(e.text, a, b);
}

Value Evaluator::binary(std::string_view op, const Value& a, const Value& b) {
  if (a.kind == Kind::text && op == "%") return percent(text_of(a), b);
  if (a.kind == Kind::undefined) undefined(a);
  if (b.kind == Kind::undefined) undefined(b);
  if (a.is_number() && b.is_number()) return numeric(op, a, b);
  if (op == "+") return sum(a, b);
  if (op == "*" && (a.is_whole() || b.is_whole()))
    return a.is_whole() ? repeat(b, a.whole()) : repeat(a, b.whole());
  bad("two values that '" + std::string(op) + "' takes", kind_name(a) + " and " + kind_name(b));
}

Value Evaluator::sum(const Value& a, const Value& b) {
  if (a.kind == Kind::text && b.kind == Kind::text) {
    TextBuilder out(arena_);
    out.append(text_of(a));
    out.append(text_of(b));
    return Value::of(out.finish());
  }
  if (a.kind == Kind::sequence && b.kind == Kind::sequence &&
      a.sequence->form == b.sequence->form && a.sequence->form < Sequence::Form::range) {
    std::vector<Value> values(a.sequence->data, a.sequence->data + a.sequence->size);
    values.insert(values.end(), b.sequence->data, b.sequence->data + b.sequence->size);
    work(static_cast<int64_t>(values.size()) / 4);
    return Value::of(make_sequence(arena_, values, a.sequence->form));
  }
  bad("two numbers, strings or lists to add", kind_name(a) + " and " + kind_name(b));
}

Value Evaluator::repeat(const Value& of, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (of.kind == Kind::text) {
    const Text& t = text_of(of);
    if (t.size && times > (int64_t{1} << 40) / t.size) times = (int64_t{1} << 40) / t.size;
    TextBuilder out(arena_);
    for (int64_t i = 0; i < times; ++i) {
      if (!t.size) break;
      work(1);
      out.append(t);
    }
    return Value::of(out.finish());
  }
  if (of.kind != Kind::sequence || of.sequence->form >= Sequence::Form::range)
    bad("a number, a string or a list to multiply", kind_name(of));
  std::vector<Value> values;
  for (int64_t i = 0; i < times && of.sequence->size; ++i) {
    work(of.sequence->size);
    values.insert(values.end(), of.sequence->data, of.sequence->data + of.sequence->size);
  }
  return Value::of(make_sequence(arena_, values, of.sequence->form));
}

Value Evaluator::numeric(std::string_view op, const Value& a, const Value& b) {
  const auto zero = [&] { bad("a divisor that is not 0", "0"); };
  const bool whole = a.is_whole() && b.is_whole();
  if (!whole || op == "/") {
    const double x = a.number(), y = b.number();
    if (op == "+") return Value::of(x + y);
    if (op == "-") return Value::of(x - y);
    if (op == "*") return Value::of(x * y);
    if (op == "**") {
      if (x == 0 && y < 0) zero();
      const double power = std::pow(x, y);
      if (std::isinf(power) && std::isfinite(x) && std::isfinite(y))
        bad("a power that a number can hold", "a larger one");
      if (std::isnan(power) && !std::isnan(x) && !std::isnan(y))
        bad("a power that is no complex number", "one of a negative number");
      return Value::of(power);
    }
    if (y == 0) zero();
    if (op == "/") return Value::of(x / y);
    double rest = std::fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    if (op == "%") return Value::of(rest == 0 ? std::copysign(0.0, y) : rest);
    const double quotient = (x - rest) / y;
    const double down = std::floor(quotient);
    return Value::of(quotient == 0           ? std::copysign(0.0, x / y)
                     : quotient - down > 0.5 ? down + 1
                                             : down);
  }
  const int64_t x = a.whole(), y = b.whole();
  int64_t out = 0;
  bool over = false;
  if (op == "+") {
    over = __builtin_add_overflow(x, y, &out);
  } else if (op == "-") {
    over = __builtin_sub_overflow(x, y, &out);
  } else if (op == "*") {
    over = __builtin_mul_overflow(x, y, &out);
  } else if (op == "//" || op == "%") {
    if (!y) zero();
    if (y == -1) {
      over = op == "//" && __builtin_sub_overflow(int64_t{0}, x, &out);
    } else {
      const int64_t rest = x % y;
      const bool off = rest && (rest < 0) != (y < 0);
      out = op == "%" ? rest + (off ? y : 0) : x / y - (off ? 1 : 0);
    }
  } else if (op == "**") {
    if (y < 0) return numeric(op, Value::of(static_cast<double>(x)), b);
    out = 1;
    if (x == 0 || x == 1) {
      out = y == 0 ? 1 : x;
    } else if (x == -1) {
      out = y % 2 ? -1 : 1;
    } else {
      for (int64_t i = 0; i < y && !over; ++i) over = __builtin_mul_overflow(out, x, &out);
    }
  } else {
    fail(ErrorCode::internal, "an operator", std::string(op), "report this");
  }
  if (over) bad("integers of at most 64 bits", "a larger result of '" + std::string(op) + "'");
  return Value::of(out);
}

Value Evaluator::percent(const Text& format, const Value& values) {
  const bool many = values.kind == Kind::sequence && values.sequence->form == Sequence::Form::tuple;
  const int64_t count = many ? values.sequence->size : 1;
  const Value* data = many ? values.sequence->data : &values;
  int64_t used = 0;
  TextBuilder out(arena_);
  const std::string_view bytes = format.view();
  for (size_t i = 0; i < bytes.size();) {
    const size_t at = bytes.find('%', i);
    const size_t end = std::min(at, bytes.size());
    out.append(format, static_cast<int64_t>(i), static_cast<int64_t>(end));
    if (at == std::string_view::npos) break;
    const char c = at + 1 < bytes.size() ? bytes[at + 1] : 0;
    i = at + 2;
    if (c == '%') {
      out.append("%", literal_);
      continue;
    }
    if (c != 's' && c != 'd' && c != 'i' && c != 'r')
      bad("a format of %s, %d, %i, %r and %%", "'" + std::string(bytes.substr(at, 2)) + "'",
          "put texts together with '~'");
    if (used >= count) bad("a value for each format", std::to_string(count));
    const Value& v = data[used++];
    if (c == 's') {
      if (v.kind == Kind::text) text_of(v);
      print(out, v);
    } else if (c == 'r') {
      if (auto wrong = print_repr(out, v, literal_); !wrong.empty()) bad("a value", wrong);
    } else if (v.kind == Kind::real && std::isfinite(v.real) && std::fabs(v.real) < 9e18) {
      out.append(std::to_string(static_cast<int64_t>(v.real)), literal_);
    } else {
      out.append(std::to_string(integer_of(v)), literal_);
    }
  }
  const bool mapping = values.kind == Kind::dict ||
                       (values.kind == Kind::sequence && !many);  // Python asks for no use of them
  if (used < count && !mapping) bad(std::to_string(used) + " values to format", "more");
  return Value::of(out.finish());
}

Arguments Evaluator::arguments_of(const Expr& e) {
  Arguments out;
  for (const Argument& a : e.arguments) {
    const Value v = eval(*a.value);
    if (a.name.empty()) {
      out.values.push_back(v);
    } else {
      for (const auto& [name, value] : out.names)
        if (name == a.name) bad("'" + a.name + "' once", "it twice");
      out.names.push_back({a.name, v});
    }
  }
  return out;
}

}  // namespace snug::jinja
