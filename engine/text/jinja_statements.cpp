#include <algorithm>
#include <ctime>

#include "engine/core/error.h"
#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"
#include "engine/text/unicode.h"

namespace snug::jinja {

Scope* Evaluator::inner(Scope* parent) {
  Scope* s = arena_.make<Scope>();
  s->parent = parent;
  return s;
}

void Evaluator::set(Scope& scope, std::string_view name, const Value& value) {
  for (Scope::Entry* e = scope.first; e; e = e->next)
    if (e->name == name) {
      e->value = value;
      return;
    }
  Scope::Entry* e = arena_.make<Scope::Entry>();
  *e = {name, value, scope.first};
  scope.first = e;
}

void Evaluator::define(std::string_view name, const Value& value) {
  set(*scope_, arena_.copy(name), value);
}

const Text* Evaluator::run() {
  scope_ = inner(scope_);
  TextBuilder out(arena_);
  out_ = &out;
  try {
    run_body(program_.body);
  } catch (Error& e) {
    if (arena_.exhausted()) e.add_note(program_.name + ":" + std::to_string(line_));
    throw;
  }
  out_ = nullptr;
  return out.finish();
}

const Text* Evaluator::captured(const std::function<void()>& body) {
  TextBuilder out(arena_);
  TextBuilder* outer = out_;
  out_ = &out;
  body();
  out_ = outer;
  return out.finish();
}

void Evaluator::emit(const Value& value) {
  const int64_t begin = out_->size();
  print(*out_, value);
  if (turn_ >= 0) out_->set_turn(begin, turn_);
}

Evaluator::Flow Evaluator::run_body(const Body& body) {
  const Level level(*this);
  for (const auto& s : body) {
    const Flow flow = run_statement(*s);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_statement(const Stmt& s) {
  work(1);
  line_ = s.line;
  switch (s.kind) {
    case StmtKind::output_data: {
      const int64_t begin = out_->size();
      out_->append(s.text, literal_);
      if (turn_ >= 0) out_->set_turn(begin, turn_);
      return Flow::on;
    }
    case StmtKind::output:
      emit(eval(*s.value));
      return Flow::on;
    case StmtKind::if_:
      return run_body(truth(eval(*s.test)) ? s.body : s.otherwise);
    case StmtKind::for_:
      return run_for(s);
    case StmtKind::set:
      assign(*s.target, eval(*s.value));
      return Flow::on;
    case StmtKind::set_block: {
      Scope* outer = scope_;
      scope_ = inner(outer);
      Value v = Value::of(captured([&] { run_body(s.body); }));
      scope_ = outer;
      if (s.value) {
        set(*(scope_ = inner(outer)), " block", v);
        v = eval(*s.value);
        scope_ = outer;
      }
      assign(*s.target, v);
      return Flow::on;
    }
    case StmtKind::macro: {
      Function* f = arena_.make<Function>();
      f->form = Function::Form::macro;
      f->name = s.text;
      f->macro = &s;
      f->scope = scope_;
      set(*scope_, s.text, Value::of(f));
      return Flow::on;
    }
    case StmtKind::call_block:
      run_call_block(s);
      return Flow::on;
    case StmtKind::filter_block: {
      Scope* outer = scope_;
      scope_ = inner(outer);
      set(*scope_, " block", Value::of(captured([&] { run_body(s.body); })));
      emit(eval(*s.value));
      scope_ = outer;
      return Flow::on;
    }
    case StmtKind::with: {
      Scope* outer = scope_;
      std::vector<Value> values;
      for (const Argument& a : s.names) values.push_back(eval(*a.value));
      scope_ = inner(outer);
      for (size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], values[i]);
      const Flow flow = run_body(s.body);
      scope_ = outer;
      return flow;
    }
    case StmtKind::generation: {
      Scope* outer = scope_;
      scope_ = inner(outer);
      const int64_t begin = out_->size();
      const Flow flow = run_body(s.body);
      out_->set_generation(begin);
      scope_ = outer;
      return flow;
    }
    case StmtKind::break_:
      return Flow::break_;
    case StmtKind::continue_:
      return Flow::continue_;
  }
  fail(ErrorCode::internal, "a kind of statement", "another", "report this");
}

void Evaluator::assign(const Expr& target, const Value& value) {
  if (target.kind == ExprKind::name) {
    if (value.kind == Kind::dict && value.dict->message >= 0 && loops_) turn_ = value.dict->message;
    return set(*scope_, target.text, value);
  }
  if (target.kind == ExprKind::space_member) {
    const Value space = lookup(target.text);
    if (space.kind != Kind::space)
      bad("a namespace to assign to a member of", "'" + target.text + "', " + kind_name(space));
    if (target.member.starts_with("_"))
      bad("a member of a namespace without '_' before it", "'" + target.member + "'");
    Value key = Value::of(text(target.member));
    return dict_set(arena_, *space.dict, key, value);
  }
  if (value.kind == Kind::undefined) undefined(value);
  const std::vector<Value> values = items_of(value);
  if (values.size() != target.parts.size())
    bad(std::to_string(target.parts.size()) + " values for as many names",
        std::to_string(values.size()));
  for (size_t i = 0; i < values.size(); ++i) assign(*target.parts[i], values[i]);
}

Evaluator::Flow Evaluator::run_for(const Stmt& s) {
  const Value over = eval(*s.value);
  Flow flow = Flow::on;
  run_loop(s, over, 0, flow);
  return flow;
}

void Evaluator::run_loop(const Stmt& s, const Value& over, int64_t depth, Flow& flow) {
  std::vector<Value> values = items_of(over);
  Scope* outer = scope_;
  const int32_t outer_turn = turn_;
  if (s.test) {
    std::vector<Value> kept;
    for (const Value& v : values) {
      scope_ = inner(outer);
      assign(*s.target, v);
      if (truth(eval(*s.test))) kept.push_back(v);
    }
    scope_ = outer;
    values = std::move(kept);
  }
  turn_ = outer_turn;
  Loop* loop = arena_.make<Loop>();
  Value* items = arena_.make<Value>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), items);
  loop->items = items;
  loop->size = static_cast<int64_t>(values.size());
  loop->depth = depth;
  loop->statement = s.recursive ? &s : nullptr;
  loop->scope = outer;
  bool ended = false;  // a turn came to its end, without break or continue: jinja2's rule for else
  ++loops_;
  for (; loop->index < loop->size; ++loop->index) {
    work(1);
    scope_ = inner(outer);
    turn_ = outer_turn;
    set(*scope_, "loop", Value::of(loop));
    const Value& v = items[loop->index];
    if (v.kind == Kind::dict && v.dict->message >= 0) turn_ = v.dict->message;
    assign(*s.target, v);
    const Flow turn = run_body(s.body);
    if (turn == Flow::break_) break;
    ended |= turn == Flow::on;
  }
  --loops_;
  turn_ = outer_turn;
  if (!ended && !s.otherwise.empty()) {
    scope_ = inner(outer);
    flow = run_body(s.otherwise);
  }
  scope_ = outer;
}

void Evaluator::run_call_block(const Stmt& s) {
  const Expr& e = *s.value;
  const Value callee = eval(*e.parts[0]);
  Arguments arguments = arguments_of(e);
  Function* caller = arena_.make<Function>();
  caller->form = Function::Form::macro;
  caller->name = "caller";
  caller->macro = &s;
  caller->scope = scope_;
  arguments.names.push_back({"caller", Value::of(caller)});
  line_ = s.line;
  emit(call(callee, arguments));
}

Value Evaluator::loop_attribute(Loop& loop, std::string_view name) {
  const auto at = [&](int64_t i, const char* what) {
    return i >= 0 && i < loop.size ? loop.items[i] : Value::of_undefined(what);
  };
  if (name == "index") return Value::of(loop.index + 1);
  if (name == "index0") return Value::of(loop.index);
  if (name == "revindex") return Value::of(loop.size - loop.index);
  if (name == "revindex0") return Value::of(loop.size - loop.index - 1);
  if (name == "first") return Value::of(loop.index == 0);
  if (name == "last") return Value::of(loop.index + 1 >= loop.size);
  if (name == "length") return Value::of(loop.size);
  if (name == "depth") return Value::of(loop.depth + 1);
  if (name == "depth0") return Value::of(loop.depth);
  if (name == "previtem") return at(loop.index - 1, "loop.previtem");
  if (name == "nextitem") return at(loop.index + 1, "loop.nextitem");
  if (name == "cycle" || name == "changed") {
    Function* f = arena_.make<Function>();
    f->form = name == "cycle" ? Function::Form::loop_cycle : Function::Form::loop_changed;
    f->self = Value::of(&loop);
    return Value::of(f);
  }
  return Value::of_undefined("a member of loop");
}

Value Evaluator::call_macro(const Function& f, Arguments& arguments) {
  const Stmt& m = *f.macro;
  Scope* outer = scope_;
  TextBuilder* const out = out_;
  const int loops = loops_;
  Scope* own = inner(f.scope);
  const bool block = m.kind == StmtKind::call_block;
  std::vector<std::optional<Value>> given(m.names.size());
  for (size_t i = 0; i < m.names.size(); ++i) given[i] = take(arguments, i, m.names[i].name);
  std::vector<Value> more;
  for (size_t i = m.names.size(); i < arguments.values.size(); ++i)
    more.push_back(arguments.values[i]);
  if (!more.empty() && !m.uses_varargs)
    bad("at most " + std::to_string(m.names.size()) + " arguments of '" + std::string(f.name) + "'",
        std::to_string(arguments.values.size()));
  if (m.uses_varargs)
    set(*own, "varargs", Value::of(make_sequence(arena_, more, Sequence::Form::tuple)));
  if (m.uses_caller && !block) {
    const auto caller = take(arguments, SIZE_MAX, "caller");
    set(*own, "caller", caller.value_or(Value::of_undefined("caller")));
  }
  Dict* names = arena_.make<Dict>();
  for (auto& [key, value] : arguments.names) {
    if (key.empty()) continue;
    if (!m.uses_kwargs || key == "caller")
      bad("arguments that '" + std::string(f.name) + "' has", "'" + std::string(key) + "'");
    dict_set(arena_, *names, Value::of(text(key)), value);
  }
  if (m.uses_kwargs) set(*own, "kwargs", Value::of(names));
  scope_ = own;
  for (size_t i = 0; i < m.names.size(); ++i) {
    const Argument& parameter = m.names[i];
    const char* hint = parameter.name.c_str();
    if (!given[i]) given[i] = parameter.value ? eval(*parameter.value) : Value::of_undefined(hint);
    set(*own, parameter.name, *given[i]);
  }
  const Value result = Value::of(captured([&] { run_body(m.body); }));
  scope_ = outer;
  out_ = out;
  loops_ = loops;
  return result;
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  const Level level(*this);
  work(1);
  if (callee.kind == Kind::undefined) undefined(callee);
  if (callee.kind == Kind::loop) {
    Loop& loop = *callee.loop;
    const auto over = take(arguments, 0, "iterable");
    if (!loop.statement) bad("a loop with 'recursive' to call", "one without it");
    if (!over) bad("a list for the loop", "none");
    Scope* outer = scope_;
    scope_ = loop.scope;
    Flow flow = Flow::on;
    const Value out =
        Value::of(captured([&] { run_loop(*loop.statement, *over, loop.depth + 1, flow); }));
    scope_ = outer;
    return out;
  }
  if (callee.kind != Kind::function) bad("a function to call", kind_name(callee));
  const Function& f = *callee.function;
  switch (f.form) {
    case Function::Form::global:
      return global(f.name, arguments);
    case Function::Form::method:
      return method(f.name, f.self, arguments);
    case Function::Form::macro:
      return call_macro(f, arguments);
    case Function::Form::loop_cycle: {
      const auto n = static_cast<int64_t>(arguments.values.size());
      if (!n) bad("values to cycle through", "none");
      return arguments.values[static_cast<size_t>(f.self.loop->index % n)];
    }
    case Function::Form::loop_changed: {
      const Value seen = Value::of(make_sequence(arena_, arguments.values, Sequence::Form::tuple));
      const bool same =
          f.self.loop->changed.kind != Kind::undefined && equal(f.self.loop->changed, seen);
      f.self.loop->changed = seen;
      return Value::of(!same);
    }
    case Function::Form::joiner:
      return (*f.state)++ ? f.self : Value::of(text(""));
    case Function::Form::cycler: {
      if (f.name == "reset") {
        *f.state = 0;
        return Value::of_none();
      }
      if (f.name != "next") bad("a function to call", "a cycler");
      const Value v = f.self.sequence->data[*f.state];
      *f.state = (*f.state + 1) % f.self.sequence->size;
      return v;
    }
  }
  fail(ErrorCode::internal, "a form of function", "another", "report this");
}

Value Evaluator::global(std::string_view name, Arguments& arguments) {
  if (name == "raise_exception") {
    const auto message = take(arguments, 0, "message");
    if (!message) bad("a message", "none");
    const std::string said(soft_text(*message).view());
    bad("a conversation that the template takes", "its complaint: " + said,
        "change the conversation as it says");
  }
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    const size_t n = arguments.values.size();
    if (n < 1 || n > 3) bad("one to three integers for range", std::to_string(n));
    for (size_t i = 0; i < n; ++i) bounds[n == 1 ? 1 : i] = integer_of(arguments.values[i]);
    no_more(arguments, 3, name);
    if (!bounds[2]) bad("a step that is not 0", "0");
    constexpr int64_t kMost = 100000;  // jinja2's sandbox
    std::vector<Value> values;
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      if (static_cast<int64_t>(values.size()) >= kMost)
        bad("a range of at most " + std::to_string(kMost), "a larger one");
      values.push_back(Value::of(i));
      if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    work(static_cast<int64_t>(values.size()));
    return Value::of(make_sequence(arena_, values, Sequence::Form::range));
  }
  if (name == "dict" || name == "namespace") {
    Dict* d = arena_.make<Dict>();
    if (arguments.values.size() > 1) bad("at most one mapping", "more");
    if (!arguments.values.empty()) {
      const Value& from = arguments.values[0];
      if (from.kind == Kind::dict) {
        for (int64_t i = 0; i < from.dict->size; ++i)
          dict_set(arena_, *d, from.dict->data[i].key, from.dict->data[i].value);
      } else {
        for (const Value& pair : items_of(from)) {
          const std::vector<Value> two = items_of(pair);
          if (two.size() != 2) bad("pairs of keys and values", kind_name(pair));
          if (two[0].kind != Kind::text && !two[0].is_number())
            bad("a string or a number as a key", kind_name(two[0]));
          dict_set(arena_, *d, two[0], two[1]);
        }
      }
    }
    for (const auto& [key, value] : arguments.names) {
      if (name == "namespace" && key.starts_with("_"))
        bad("a member of a namespace without '_' before it", "'" + std::string(key) + "'");
      dict_set(arena_, *d, Value::of(text(key)), value);
    }
    return Value::of(d, name == "dict" ? Kind::dict : Kind::space);
  }
  if (name == "joiner" || name == "cycler") {
    Function* f = arena_.make<Function>();
    f->state = arena_.make<int64_t>();
    if (name == "joiner") {
      f->form = Function::Form::joiner;
      f->self = take(arguments, 0, "sep").value_or(Value::of(text(", ")));
      no_more(arguments, 1, name);
    } else {
      f->form = Function::Form::cycler;
      if (arguments.values.empty()) bad("values to cycle through", "none");
      f->self = Value::of(make_sequence(arena_, arguments.values));
    }
    return Value::of(f);
  }
  if (name == "strftime_now") {
    const auto format = take(arguments, 0, "format");
    if (!format) bad("a format", "none");
    const std::string spelled(text_of(*format).view());
    if (spelled.empty()) return Value::of(text(""));
    if (spelled.size() > 200) bad("a format of at most 200 bytes", std::to_string(spelled.size()));
    std::tm parts{};
    localtime_r(&now_, &parts);
    char out[4096];
    const size_t n = std::strftime(out, sizeof(out), spelled.c_str(), &parts);
    return Value::of(text(sanitize_utf8(std::string_view(out, n))));
  }
  bad("a function that is known", "'" + std::string(name) + "'", "write the template without it");
}

}  // namespace snug::jinja
