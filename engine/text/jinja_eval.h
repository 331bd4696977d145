// The evaluator of templates: Python's and jinja2's meaning of each node, under bounds.
//
// Bounds    Nodes evaluated and bytes looked at (steps), bytes of all values (the arena), levels of
//           calls and expressions inside each other. What goes beyond is an Error of code data.
// Errors    Of code data, with the template's name and the line; raise_exception gives its message.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_syntax.h"
#include "engine/text/jinja_value.h"

namespace snug::jinja {

struct Scope {
  struct Entry {
    std::string_view name;
    Value value;
    Entry* next = nullptr;
  };
  Scope* parent = nullptr;
  Entry* first = nullptr;
};

struct Function {
  enum class Form : uint8_t { global, method, macro, loop_cycle, loop_changed, joiner, cycler };
  Form form = Form::global;
  std::string_view name;
  Value self;                   // of a method; of a cycler, its values
  const Stmt* macro = nullptr;  // or the block of a call
  Scope* scope = nullptr;       // where it was defined
  int64_t* state = nullptr;     // of a joiner and a cycler
};

struct Loop {
  const Value* items = nullptr;
  int64_t size = 0, index = 0, depth = 0;
  const Stmt* statement = nullptr;  // of a recursive loop
  Scope* scope = nullptr;
  Value changed;  // what changed() saw last, a tuple
};

// What a call, a filter or a test was given.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string_view, Value>> names;
};

class Evaluator {
 public:
  Evaluator(const Program& program, Arena& arena, int64_t max_steps, std::time_t now);

  void define(std::string_view name, const Value& value);
  const Text* run();

  // For filters, tests and methods.
  Arena& arena() { return arena_; }
  std::time_t now() const { return now_; }
  [[noreturn]] void bad(const std::string& expected, const std::string& found,
                        const std::string& advice = "correct the template") const;
  [[noreturn]] void undefined(const Value& value) const;  // used where a value must be there
  void work(int64_t steps);
  const Text* text(std::string_view bytes) { return make_text(arena_, bytes, literal_); }
  const Text& text_of(const Value& value) const;    // refused for another kind
  const Text& soft_text(const Value& value);        // str() of it
  int64_t integer_of(const Value& value) const;     // bool and int
  std::vector<Value> items_of(const Value& value);  // Python's iter(); takes from an iterator
  std::optional<int64_t> length_of(const Value& value) const;  // Python's len()
  bool truth(const Value& value) const;
  bool equal(const Value& a, const Value& b, int depth = 0);
  int order(const Value& a, const Value& b,
            int depth = 0);  // -1, 0, 1; refused where Python has none
  bool contains(const Value& container, const Value& item);
  Value attribute(const Value& of, std::string_view name);
  Value item(const Value& of, const Value& key);
  Value binary(std::string_view op, const Value& a, const Value& b);
  Value call(const Value& callee, Arguments& arguments);
  Value filter(std::string_view name, const Value& of, Arguments& arguments);  // jinja_filters.cpp
  bool test(std::string_view name, const Value& of, Arguments& arguments);     // jinja_tests.cpp
  Value method(std::string_view name, const Value& self,
               Arguments& arguments);  // jinja_methods.cpp
  Value percent(const Text& format, const Value& values);
  const Text* concat(const std::vector<Value>& values);
  void print(TextBuilder& out, const Value& value);
  std::string kind_name(const Value& value) const;
  // The argument at `index` or by name, taken off; none if it was not given.
  std::optional<Value> take(Arguments& arguments, size_t index, std::string_view name);
  // Refuses arguments beyond `most` and names that nobody took.
  void no_more(const Arguments& arguments, size_t most, std::string_view of) const;

 private:
  friend struct Level;
  enum class Flow : uint8_t { on, break_, continue_ };

  Value eval(const Expr& e);
  Value eval_binary(const Expr& e);
  Value eval_slice(const Expr& e);
  Value compare(const Expr& e);
  Arguments arguments_of(const Expr& e);
  Value lookup(std::string_view name);
  Value sum(const Value& a, const Value& b);
  Value numeric(std::string_view op, const Value& a, const Value& b);
  Value repeat(const Value& of, int64_t times);
  Value global(std::string_view name, Arguments& arguments);
  Value call_macro(const Function& f, Arguments& arguments);
  Value loop_attribute(Loop& loop, std::string_view name);

  Flow run_body(const Body& body);
  Flow run_statement(const Stmt& s);
  Flow run_for(const Stmt& s);
  void run_loop(const Stmt& s, const Value& over, int64_t depth, Flow& flow);
  void run_call_block(const Stmt& s);
  void assign(const Expr& target, const Value& value);
  void set(Scope& scope, std::string_view name, const Value& value);
  void emit(const Value& value);
  // What `body` writes, apart from the output.
  const Text* captured(const std::function<void()>& body);
  Scope* inner(Scope* parent);

  const Program& program_;
  Arena& arena_;
  int64_t steps_, max_steps_;
  std::time_t now_;
  int64_t line_ = 1;
  int depth_ = 0;
  int loops_ = 0;
  int32_t turn_ = -1;
  Origin literal_;
  Scope* scope_ = nullptr;
  TextBuilder* out_ = nullptr;
};

// A level of evaluation inside another, counted.
struct Level {
  explicit Level(Evaluator& e);
  ~Level();
  Evaluator& e;
};

// Whether a value of this kind has the method; refused ones throw when they are called.
bool has_method(const Value& of, std::string_view name);

}  // namespace snug::jinja
