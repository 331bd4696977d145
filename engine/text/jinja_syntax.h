// Tokens and syntax tree of the template interpreter. The grammar is jinja2's (3.1), with the
// settings that transformers gives it: trim_blocks, lstrip_blocks, the loop controls and the
// generation tag. What jinja2 has and chat templates do not (include, import, extends, block,
// autoescape, star arguments) is refused by name and line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace snug::jinja {

// Throws Error (data) at `name`:`line`.
[[noreturn]] void fail_at(const std::string& name, int64_t line, const std::string& expected,
                          const std::string& found, const std::string& advice);

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  int64_t line = 1;
  std::string text;  // of data, names, strings (their value) and operators
  int64_t integer = 0;
  double real = 0;
};

std::vector<Token> tokenize(std::string_view source, const std::string& name);

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Argument {
  std::string name;  // of a keyword argument
  ExprPtr value;
};

enum class ExprKind : uint8_t {
  constant_none,
  constant_bool,
  constant_int,
  constant_real,
  constant_text,
  name,
  space_member,  // target of an assignment alone: text.member
  list,
  tuple,
  dict,       // keys and values in turns
  attribute,  // a.member
  item,       // a[b]
  slice,      // a[b:c:d], parts may be missing
  call,
  filter,
  test,
  negate,
  plus,
  not_,
  and_,
  or_,
  compare,  // parts[0] ops[0] parts[1] ...
  binary,
  concat,
  condition  // parts: test, then, else (may be missing)
};

struct Expr {
  ExprKind kind = ExprKind::constant_none;
  int64_t line = 1;
  int height = 0;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string text;  // constant, name, filter, test, operator of binary
  std::string member;
  std::vector<ExprPtr> parts;  // of filter, test, call and attribute the first is what it acts on
  std::vector<Argument> arguments;
  std::vector<std::string> ops;
};

enum class StmtKind : uint8_t {
  output_data,
  output,
  if_,
  for_,
  set,
  set_block,
  macro,
  call_block,
  filter_block,
  with,
  generation,
  break_,
  continue_
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  StmtKind kind = StmtKind::output_data;
  int64_t line = 1;
  std::string text;              // data; name of a macro
  ExprPtr target;                // of for, set
  ExprPtr value;                 // output, iterated, assigned, filter chain, call
  ExprPtr test;                  // of if; filter of for
  std::vector<Argument> names;   // parameters with defaults; of with, name and value
  std::vector<ExprPtr> targets;  // of with
  bool recursive = false;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  // of macros
  Body body, otherwise;
};

struct Program {
  std::string name;
  Body body;
  bool has_generation = false;
};

// Throws Error (data) with `name` and line for what is no template or is not known.
Program parse(std::string_view source, const std::string& name);

// The filters and tests that are known (jinja_filters.cpp, jinja_tests.cpp).
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace snug::jinja
