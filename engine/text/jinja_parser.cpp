#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/core/suggest.h"
#include "engine/text/jinja_expressions.h"

namespace snug::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  Parser(std::string_view source, const std::string& name) : ExpressionParser(source, name) {}

  Program run() {
    Program out;
    out.name = name_;
    out.body = subparse({});
    if (!at_end()) bad("the end of the template", shown_token(now()));
    out.has_generation = has_generation_;
    return out;
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  // Statements.
  Body subparse(Words ends) {
    Deeper deeper(*this);
    Body body;
    while (!at_end()) {
      const int64_t line = now().line;
      if (is(TokenKind::data)) {
        body.push_back(stmt(StmtKind::output_data, line));
        body.back()->text = next().text;
      } else if (is(TokenKind::variable_begin)) {
        ++at_;
        body.push_back(stmt(StmtKind::output, line));
        body.back()->value = tuple();
        expect(TokenKind::variable_end);
      } else if (is(TokenKind::block_begin)) {
        ++at_;
        if (is(TokenKind::name) &&
            std::find(ends.begin(), ends.end(), std::string_view(now().text)) != ends.end())
          return body;
        body.push_back(statement());
        expect(TokenKind::block_end);
      } else {
        bad("text, '{{' or '{%'", shown_token(now()));
      }
    }
    if (ends.size()) bad("'{% " + std::string(*(ends.end() - 1)) + " %}'", shown_token(now()));
    return body;
  }
  // Body of a tag up to one of `ends`, which is left.
  Body statements(Words ends) {
    skip_op(":");
    expect(TokenKind::block_end);
    return subparse(ends);
  }
  Body statements_to(std::string_view end) {
    Body body = statements({end});
    ++at_;
    return body;
  }
  std::unique_ptr<Stmt> stmt(StmtKind kind, int64_t line) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    return s;
  }

  std::unique_ptr<Stmt> statement() {
    const int64_t line = now().line;
    if (!is(TokenKind::name)) bad("the name of a tag", shown_token(now()));
    const std::string tag = now().text;
    if (tag == "if") return if_statement();
    ++at_;
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro_statement(line);
    if (tag == "call") return call_statement(line);
    if (tag == "filter") {
      auto s = stmt(StmtKind::filter_block, line);
      s->value = filters(nullptr, true);
      s->body = statements_to("endfilter");
      return s;
    }
    if (tag == "with") return with_statement(line);
    if (tag == "generation") {
      auto s = stmt(StmtKind::generation, line);
      s->body = statements_to("endgeneration");
      has_generation_ = true;
      return s;
    }
    if (tag == "break" || tag == "continue") {
      if (!loops_) fail_at(name_, line, "a loop around '" + tag + "'", "none", kMendTemplate);
      return stmt(tag == "break" ? StmtKind::break_ : StmtKind::continue_, line);
    }
    static const std::vector<std::string_view> kTags = {
        "if", "for", "set", "macro", "call", "with", "filter", "generation", "break", "continue"};
    static const std::vector<std::string> kOthers = {"include", "import",     "from",  "extends",
                                                     "block",   "autoescape", "print", "do"};
    --at_;
    if (std::find(kOthers.begin(), kOthers.end(), tag) != kOthers.end())
      bad("a tag that chat templates use", "'{% " + tag + " %}', which is not built",
          "write the template without it");
    bad("a tag that is known", "'{% " + tag + " %}'", suggestion(tag, kTags, kMendTemplate));
  }

  std::unique_ptr<Stmt> if_statement() {
    auto s = stmt(StmtKind::if_, now().line);
    ++at_;
    s->test = tuple(false);
    s->body = statements({"elif", "else", "endif"});
    const std::string word = now().text;
    if (word == "elif") {  // one inside the other; the innermost takes the end
      Deeper deeper(*this);
      s->otherwise.push_back(if_statement());
    } else {
      ++at_;
      if (word == "else") s->otherwise = statements_to("endif");
    }
    return s;
  }

  std::unique_ptr<Stmt> for_statement(int64_t line) {
    auto s = stmt(StmtKind::for_, line);
    s->target = target(false, "in");
    if (!skip_name("in")) bad("'in'", shown_token(now()));
    s->value = tuple(false, "recursive");
    if (skip_name("if")) s->test = expression();
    s->recursive = skip_name("recursive");
    ++loops_;
    s->body = statements({"else", "endfor"});
    --loops_;
    if (next().text == "else") s->otherwise = statements_to("endfor");
    return s;
  }

  std::unique_ptr<Stmt> set_statement(int64_t line) {
    auto s = stmt(StmtKind::set, line);
    s->target = target(true, "");
    if (skip_op("=")) {
      s->value = tuple();
      return s;
    }
    s->kind = StmtKind::set_block;
    s->value = filters(nullptr, false);
    s->body = statements_to("endset");
    return s;
  }

  void signature(Stmt& s) {
    expect_op("(");
    bool defaults = false;
    while (!is_op(")")) {
      if (!s.names.empty()) expect_op(",");
      Argument a;
      a.name = expect_name();
      if (skip_op("=")) {
        a.value = expression();
        defaults = true;
      } else if (defaults) {
        bad("a default for '" + a.name + "', as those before it have", "none");
      }
      s.names.push_back(std::move(a));
    }
    ++at_;
  }

  // A body of its own: a macro or what a call hands over.
  void macro_body(Stmt& s, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macros_.push_back(&s);
    s.body = statements_to(end);
    macros_.pop_back();
    loops_ = loops;
  }

  std::unique_ptr<Stmt> macro_statement(int64_t line) {
    auto s = stmt(StmtKind::macro, line);
    s->text = expect_name();
    signature(*s);
    macro_body(*s, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> call_statement(int64_t line) {
    auto s = stmt(StmtKind::call_block, line);
    if (is_op("(")) signature(*s);
    s->value = expression();
    if (s->value->kind != ExprKind::call) bad("a call after 'call'", "another expression");
    macro_body(*s, "endcall");
    return s;
  }

  std::unique_ptr<Stmt> with_statement(int64_t line) {
    auto s = stmt(StmtKind::with, line);
    while (!is(TokenKind::block_end)) {
      if (!s->targets.empty()) expect_op(",");
      s->targets.push_back(target(false, ""));
      expect_op("=");
      s->names.push_back({"", expression()});
    }
    s->body = statements_to("endwith");
    return s;
  }

  ExprPtr target(bool with_space, std::string_view end) {
    const int64_t line = now().line;
    ExprPtr t = tuple(false, end, true, with_space);
    check_target(*t, line);
    return t;
  }
  void check_target(const Expr& t, int64_t line) const {
    static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                     "True", "False", "None"};
    if (t.kind == ExprKind::tuple || t.kind == ExprKind::list) {
      for (const ExprPtr& part : t.parts) check_target(*part, line);
    } else if ((t.kind != ExprKind::name && t.kind != ExprKind::space_member) ||
               std::find(std::begin(kReserved), std::end(kReserved), t.text) !=
                   std::end(kReserved)) {
      fail_at(name_, line, "a name to assign to", "another expression", kMendTemplate);
    }
  }

  int loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

Program parse(std::string_view source, const std::string& name) {
  return Parser(source, name).run();
}

}  // namespace snug::jinja
