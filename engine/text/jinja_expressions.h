// Expressions of the template interpreter's grammar; jinja_parser.cpp adds the statements.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja_syntax.h"

namespace snug::jinja {

constexpr const char* kMendTemplate = "correct the template";

std::string shown_token(const Token& t);

class ExpressionParser {
 protected:
  ExpressionParser(std::string_view source, const std::string& name)
      : tokens_(tokenize(source, name)), name_(name) {}

  struct Deeper {
    explicit Deeper(ExpressionParser& p) : p_(p) {
      if (++p_.depth_ > kMostDepth)
        p_.bad("at most " + std::to_string(kMostDepth) + " levels of brackets and blocks", "more");
    }
    ~Deeper() { --p_.depth_; }
    ExpressionParser& p_;
  };

  [[noreturn]] void bad(const std::string& expected, const std::string& found,
                        const std::string& advice = kMendTemplate) const {
    fail_at(name_, now().line, expected, found, advice);
  }
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool at_end() const { return now().kind == TokenKind::end; }
  Token next() {
    Token t = now();
    if (!at_end()) ++at_;
    return t;
  }
  bool is(TokenKind kind) const { return now().kind == kind; }
  bool is_op(std::string_view text) const { return is(TokenKind::op) && now().text == text; }
  bool is_name(std::string_view text) const { return is(TokenKind::name) && now().text == text; }
  bool skip_op(std::string_view text) { return is_op(text) && (++at_, true); }
  bool skip_name(std::string_view text) { return is_name(text) && (++at_, true); }
  void expect_op(std::string_view text) {
    if (!skip_op(text)) bad("'" + std::string(text) + "'", shown_token(now()));
  }
  void expect(TokenKind kind) {
    if (!is(kind)) bad(shown_token(Token{kind, 1, "", 0, 0}), shown_token(now()));
    ++at_;
  }
  std::string expect_name() {
    if (!is(TokenKind::name)) bad("a name", shown_token(now()));
    return next().text;
  }
  ExprPtr make(ExprKind kind, int64_t line) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = line;
    return e;
  }
  // What walks the tree does so by recursion.
  void deepen(Expr& parent, const Expr& child) const {
    parent.height = std::max(parent.height, child.height + 1);
    if (parent.height > kMostHeight)
      bad("expressions of at most " + std::to_string(kMostHeight) + " levels", "a deeper one");
  }
  void add(Expr& parent, ExprPtr child) const {
    if (child) deepen(parent, *child);
    parent.parts.push_back(std::move(child));
  }
  ExprPtr join(ExprKind kind, int64_t line, ExprPtr a, ExprPtr b, std::string text = "") const {
    ExprPtr e = make(kind, line);
    e->text = std::move(text);
    add(*e, std::move(a));
    add(*e, std::move(b));
    return e;
  }

  // A list of expressions with commas, or one. `end`: a name that ends it; `simple`: names and
  // literals alone; `with_space`: a member of a namespace may be meant.
  ExprPtr tuple(bool conditions = true, std::string_view end = "", bool simple = false,
                bool with_space = false, bool in_brackets = false);
  ExprPtr expression();
  // `e` may be missing: what the text of a block goes through. `inline_start`: without '|'.
  ExprPtr filters(ExprPtr e, bool inline_start);

  static constexpr int kMostDepth = 240;   // brackets and blocks inside each other
  static constexpr int kMostHeight = 300;  // of an expression's tree

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<Stmt*> macros_;  // around

 private:
  bool tuple_ends(std::string_view end) const;
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary(bool with_space);
  ExprPtr items(std::string_view close, ExprKind kind);
  ExprPtr postfix(ExprPtr e);
  ExprPtr filter_expression(ExprPtr e);
  ExprPtr call(ExprPtr callee);
  void call_arguments(Expr& e);
  ExprPtr subscript(ExprPtr of);
  ExprPtr test(ExprPtr of);
};

}  // namespace snug::jinja
