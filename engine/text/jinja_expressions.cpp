#include "engine/text/jinja_expressions.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"

namespace snug::jinja {

std::string shown_token(const Token& t) {
  switch (t.kind) {
    case TokenKind::data:
      return "text";
    case TokenKind::variable_begin:
      return "'{{'";
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::name:
      return "'" + t.text + "'";
    case TokenKind::string:
      return "a string";
    case TokenKind::integer:
    case TokenKind::real:
      return "a number";
    case TokenKind::op:
      return "'" + t.text + "'";
    case TokenKind::end:
      return "the end of the template";
  }
  fail(ErrorCode::internal, "a kind of token", "another", "report this");
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return is(TokenKind::variable_end) || is(TokenKind::block_end) || is_op(")") ||
         (!end.empty() && is_name(end));
}

ExprPtr ExpressionParser::tuple(bool conditions, std::string_view end, bool simple, bool with_space,
                                bool in_brackets) {
  Deeper deeper(*this);
  const int64_t line = now().line;
  std::vector<ExprPtr> parts;
  bool is_tuple = false;
  for (;;) {
    if (!parts.empty()) expect_op(",");
    if (tuple_ends(end)) break;
    parts.push_back(simple ? primary(with_space) : conditions ? expression() : or_expression());
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!parts.empty()) return std::move(parts[0]);
    if (!in_brackets) bad("an expression", shown_token(now()));
  }
  ExprPtr e = make(ExprKind::tuple, line);
  for (ExprPtr& part : parts) add(*e, std::move(part));
  return e;
}

ExprPtr ExpressionParser::expression() {
  Deeper deeper(*this);
  int64_t line = now().line;
  ExprPtr e = or_expression();
  while (skip_name("if")) {
    ExprPtr test = or_expression();
    ExprPtr whole = join(ExprKind::condition, line, std::move(test), std::move(e));
    if (skip_name("else")) add(*whole, expression());
    e = std::move(whole);
    line = now().line;
  }
  return e;
}

ExprPtr ExpressionParser::or_expression() {
  Deeper deeper(*this);
  ExprPtr e = and_expression();
  while (is_name("or")) {
    const int64_t line = next().line;
    e = join(ExprKind::or_, line, std::move(e), and_expression());
  }
  return e;
}

ExprPtr ExpressionParser::and_expression() {
  ExprPtr e = not_expression();
  while (is_name("and")) {
    const int64_t line = next().line;
    e = join(ExprKind::and_, line, std::move(e), not_expression());
  }
  return e;
}

ExprPtr ExpressionParser::not_expression() {
  if (!is_name("not")) return comparison();
  Deeper deeper(*this);
  ExprPtr e = make(ExprKind::not_, next().line);
  add(*e, not_expression());
  return e;
}

ExprPtr ExpressionParser::comparison() {
  static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
  const int64_t line = now().line;
  std::vector<ExprPtr> parts;
  std::vector<std::string> ops;
  parts.push_back(sum());
  for (;;) {
    if (is(TokenKind::op) &&
        std::find(std::begin(kOps), std::end(kOps), now().text) != std::end(kOps)) {
      ops.push_back(next().text);
    } else if (skip_name("in")) {
      ops.push_back("in");
    } else if (is_name("not") && ahead().kind == TokenKind::name && ahead().text == "in") {
      at_ += 2;
      ops.push_back("not in");
    } else {
      break;
    }
    parts.push_back(sum());
  }
  if (ops.empty()) return std::move(parts[0]);
  ExprPtr e = make(ExprKind::compare, line);
  for (ExprPtr& part : parts) add(*e, std::move(part));
  e->ops = std::move(ops);
  return e;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr e = concatenation();
  while (is_op("+") || is_op("-")) {
    const Token op = next();
    e = join(ExprKind::binary, op.line, std::move(e), concatenation(), op.text);
  }
  return e;
}

ExprPtr ExpressionParser::concatenation() {
  const int64_t line = now().line;
  ExprPtr first = product();
  if (!is_op("~")) return first;
  ExprPtr e = make(ExprKind::concat, line);
  add(*e, std::move(first));
  while (skip_op("~")) add(*e, product());
  return e;
}

ExprPtr ExpressionParser::product() {
  ExprPtr e = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const Token op = next();
    e = join(ExprKind::binary, op.line, std::move(e), power(), op.text);
  }
  return e;
}

ExprPtr ExpressionParser::power() {
  ExprPtr e = unary(true);
  while (is_op("**")) {
    const int64_t line = next().line;
    e = join(ExprKind::binary, line, std::move(e), unary(true), "**");
  }
  return e;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr e;
  if (is_op("-") || is_op("+")) {
    Deeper deeper(*this);
    const Token op = next();
    e = make(op.text == "-" ? ExprKind::negate : ExprKind::plus, op.line);
    add(*e, unary(false));
  } else {
    e = primary(false);
  }
  e = postfix(std::move(e));
  return with_filters ? filter_expression(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::primary(bool with_space) {
  const Token t = now();
  if (t.kind == TokenKind::name) {
    ++at_;
    if (t.text == "true" || t.text == "True" || t.text == "false" || t.text == "False") {
      ExprPtr e = make(ExprKind::constant_bool, t.line);
      e->boolean = (t.text[0] | 32) == 't';
      return e;
    }
    if (t.text == "none" || t.text == "None") return make(ExprKind::constant_none, t.line);
    ExprPtr e = make(ExprKind::name, t.line);
    e->text = t.text;
    if (with_space && skip_op(".")) {
      e->kind = ExprKind::space_member;
      e->member = expect_name();
    } else if (!macros_.empty()) {
      for (Stmt* m : macros_) {
        m->uses_caller |= t.text == "caller";
        m->uses_kwargs |= t.text == "kwargs";
        m->uses_varargs |= t.text == "varargs";
      }
    }
    return e;
  }
  if (t.kind == TokenKind::string) {
    ExprPtr e = make(ExprKind::constant_text, t.line);
    while (is(TokenKind::string)) e->text += next().text;
    return e;
  }
  if (t.kind == TokenKind::integer || t.kind == TokenKind::real) {
    ++at_;
    const bool whole = t.kind == TokenKind::integer;
    ExprPtr e = make(whole ? ExprKind::constant_int : ExprKind::constant_real, t.line);
    e->integer = t.integer;
    e->real = t.real;
    return e;
  }
  if (skip_op("(")) {
    ExprPtr e = tuple(true, "", false, false, true);
    expect_op(")");
    return e;
  }
  if (is_op("[")) return items("]", ExprKind::list);
  if (is_op("{")) return items("}", ExprKind::dict);
  bad("an expression", shown_token(t));
}

ExprPtr ExpressionParser::items(std::string_view close, ExprKind kind) {
  Deeper deeper(*this);
  ExprPtr e = make(kind, next().line);
  while (!is_op(close)) {
    if (!e->parts.empty()) expect_op(",");
    if (is_op(close)) break;
    add(*e, expression());
    if (kind != ExprKind::dict) continue;
    expect_op(":");
    add(*e, expression());
  }
  ++at_;
  return e;
}

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      e = subscript(std::move(e));
    } else if (is_op("(")) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::filter_expression(ExprPtr e) {
  for (;;) {
    if (is_op("|")) {
      e = filters(std::move(e), false);
    } else if (is_name("is")) {
      e = test(std::move(e));
    } else if (is_op("(")) {
      e = call(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  ExprPtr e = make(ExprKind::call, now().line);
  add(*e, std::move(callee));
  call_arguments(*e);
  return e;
}

void ExpressionParser::call_arguments(Expr& e) {
  Deeper deeper(*this);
  expect_op("(");
  bool comma = false, keywords = false;
  while (!is_op(")")) {
    if (comma) {
      expect_op(",");
      if (is_op(")")) break;
    }
    if (is_op("*") || is_op("**"))
      bad("arguments one by one", "'" + now().text + "', which is not built");
    Argument a;
    if (is(TokenKind::name) && ahead().kind == TokenKind::op && ahead().text == "=") {
      a.name = next().text;
      ++at_;
      keywords = true;
    } else if (keywords) {
      bad("a keyword argument, as the one before", shown_token(now()));
    }
    a.value = expression();
    deepen(e, *a.value);
    e.arguments.push_back(std::move(a));
    comma = true;
  }
  ++at_;
}

ExprPtr ExpressionParser::subscript(ExprPtr of) {
  const Token t = next();
  if (t.text == ".") {
    ExprPtr e = make(ExprKind::attribute, t.line);
    add(*e, std::move(of));
    if (is(TokenKind::name)) {
      e->text = next().text;
      return e;
    }
    if (!is(TokenKind::integer)) bad("a name or a number after '.'", shown_token(now()));
    e->kind = ExprKind::item;
    ExprPtr index = make(ExprKind::constant_int, t.line);
    index->integer = next().integer;
    add(*e, std::move(index));
    return e;
  }
  ExprPtr e = make(ExprKind::item, t.line);
  add(*e, std::move(of));
  ExprPtr first = is_op(":") ? nullptr : expression();
  if (first && is_op("]")) {
    add(*e, std::move(first));
  } else {
    if (!is_op(":")) bad("']' or ':'", shown_token(now()));
    e->kind = ExprKind::slice;
    add(*e, std::move(first));
    for (int k = 0; k < 2; ++k)
      add(*e, skip_op(":") && !is_op(":") && !is_op("]") ? expression() : nullptr);
  }
  expect_op("]");
  return e;
}

ExprPtr ExpressionParser::filters(ExprPtr e, bool inline_start) {
  while (inline_start || is_op("|")) {
    if (!inline_start) ++at_;
    inline_start = false;
    const int64_t line = now().line;
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    if (!is_filter(name))
      fail_at(name_, line, "a filter that is known", "'" + name + "'",
              "write the template without it");
    ExprPtr f = make(ExprKind::filter, line);
    f->text = name;
    add(*f, std::move(e));
    if (is_op("(")) call_arguments(*f);
    e = std::move(f);
  }
  return e;
}

ExprPtr ExpressionParser::test(ExprPtr of) {
  const int64_t line = next().line;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  if (!is_test(name))
    fail_at(name_, line, "a test that is known", "'is " + name + "'",
            "write the template without it");
  ExprPtr e = make(ExprKind::test, line);
  e->text = name;
  add(*e, std::move(of));
  const bool argument = is(TokenKind::name) || is(TokenKind::string) || is(TokenKind::integer) ||
                        is(TokenKind::real) || is_op("[") || is_op("{");
  if (is_op("(")) {
    call_arguments(*e);
  } else if (argument && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) bad("one test", "tests in a chain");
    Deeper deeper(*this);
    Argument a;
    a.value = postfix(primary(false));
    deepen(*e, *a.value);
    e->arguments.push_back(std::move(a));
  }
  if (!negated) return e;
  ExprPtr n = make(ExprKind::not_, line);
  add(*n, std::move(e));
  return n;
}

}  // namespace snug::jinja
