// The template interpreter against jinja2 as transformers sets it up:
// tests/golden/make_chat_golden.py.
#include "engine/text/chat_template.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/text/helpers.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

using Json = nlohmann::ordered_json;

uint64_t digest(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return h;
}

// What the fixtures say of an error: the message of raise_exception, or that there is one.
std::string spoken(const Error& e) {
  EXPECT_EQ(e.code(), ErrorCode::data);
  EXPECT_FALSE(e.expected().empty() || e.found().empty() || e.advice().empty());
  const std::string mark = "its complaint: ";
  if (e.found().rfind(mark, 0) != 0) return "?";
  return "!" + e.found().substr(mark.size(), e.found().rfind(", at ") - mark.size());
}

struct Shown {
  std::string text;
  std::string error;
  std::string spans = "[]";
};

Shown shown(const std::string& source, const std::string& row, const Json& variables,
            std::time_t now, bool prompt) {
  Shown out;
  try {
    ChatTemplate t = ChatTemplate::parse(source, "t.jinja");
    for (const auto& [name, text] : variables.items()) t.set_variable(name, text);
    t.set_time(now);
    const RenderedChat r = t.render(Conversation::parse(row, "rows.jsonl:1"), prompt);
    out.text = r.text;
    // Every byte has an origin; generated spans in characters, as transformers gives them.
    EXPECT_EQ(r.runs.empty() ? 0 : r.runs.back().end, static_cast<int64_t>(r.text.size()));
    Json spans = Json::array();
    int64_t begin = 0, chars = 0;
    bool open = false;
    for (const jinja::Run& run : r.runs) {
      const int64_t from = chars;
      for (int64_t i = begin; i < run.end; ++i)
        chars += (static_cast<uint8_t>(r.text[static_cast<size_t>(i)]) & 0xC0) != 0x80;
      if (run.origin.generation && !open) spans.push_back(Json::array({from, chars}));
      if (run.origin.generation && open) spans.back()[1] = chars;
      open = run.origin.generation;
      begin = run.end;
    }
    for (const Json& s : spans)
      out.spans = out.spans == "[]"
                      ? "[" + s.dump() + "]"
                      : out.spans.substr(0, out.spans.size() - 1) + ", " + s.dump() + "]";
    for (size_t at = 0; (at = out.spans.find(',', at)) != std::string::npos; ++at)
      if (out.spans[at + 1] != ' ') out.spans.insert(at + 1, " ");
  } catch (const Error& e) {
    out.error = spoken(e);
  }
  return out;
}

TEST(ChatTemplate, RendersFamiliesAsJinja2Does) {
  setenv("TZ", "UTC", 1);
  tzset();
  const Json g = Json::parse(slurp(golden("chat_templates.json")));
  ASSERT_GE(g["families"].size(), 12u);
  ASSERT_GE(g["conversations"].size(), 200u);
  int different = 0, errors = 0;
  for (const auto& [name, family] : g["families"].items()) {
    const std::string source = slurp(golden("chat_templates/" + name + ".jinja"));
    const std::string digests = family["digests"];
    int failed = 0;
    for (size_t k = 0; k < g["conversations"].size(); ++k) {
      const std::string row = g["conversations"][k].dump();
      const Shown plain = shown(source, row, family["variables"], g["now"], false);
      const Shown prompt = shown(source, row, family["variables"], g["now"], true);
      failed += !plain.error.empty();
      const std::string both =
          plain.text + plain.error + '\0' + prompt.text + prompt.error + '\0' + plain.spans;
      const std::string hex = digests.substr(16 * k, 16);
      if (family["whole"].contains(std::to_string(k))) {
        EXPECT_EQ(both, family["whole"][std::to_string(k)].get<std::string>()) << name << " " << k;
      }
      if (digest(both) == std::stoull(hex, nullptr, 16)) continue;
      if (++different < 6) ADD_FAILURE() << name << " " << k << ": " << row << "\n" << both;
    }
    EXPECT_EQ(failed, family["errors"].get<int>()) << name;
    errors += failed;
  }
  EXPECT_EQ(different, 0);
  EXPECT_GT(errors, 500);
}

TEST(ChatTemplate, HasTheLanguageOfJinja2) {
  setenv("TZ", "UTC", 1);
  tzset();
  const Json g = Json::parse(slurp(golden("chat_pieces.json")));
  const Json families = Json::parse(slurp(golden("chat_templates.json")));
  const Json row = {{"messages", {{{"role", "user"}, {"content", "c"}}}},
                    {"chat_template_kwargs", g["context"]}};
  for (const Json& piece : g["pieces"]) {
    const std::string source = piece[0];
    const Shown got = shown(source, row.dump(), {{"bos_token", "<s>"}}, families["now"], false);
    EXPECT_EQ(got.text + got.error, piece[1].get<std::string>()) << source;
  }
}

// Every filter, test, method, operator and subscript of a value of every kind: what jinja2 gives, or no text.
// What Snug refuses where jinja2 gives a text is listed, so that no more of it comes unseen; SNUG_RECORD=1 lists it
// anew.
TEST(ChatTemplate, EveryUseOfEveryKindIsThatOfJinja2OrRefused) {
  const Json g = Json::parse(slurp(golden("chat_grid.json")));
  const Json row = {{"messages", {{{"role", "user"}, {"content", "c"}}}},
                    {"chat_template_kwargs", g["context"]}};
  std::string refused;
  int64_t count = 0;
  for (size_t use = 0; use < g["uses"].size(); ++use)
    for (size_t k = 0; k < g["values"].size(); ++k) {
      std::string source = g["uses"][use];
      const std::string value = g["values"][k], expected = g["made_of"][use][k];
      for (size_t at = 0; (at = source.find('@', at)) != std::string::npos; at += value.size())
        source.replace(at, 1, value);
      const Shown got = shown(source, row.dump(), {{"bos_token", "<s>"}}, 0, false);
      ++count;
      if (got.text + got.error == expected) continue;
      if (got.error.starts_with('?'))
        refused += source + "\n";
      else
        ADD_FAILURE() << source << "\ngives:    " << got.text << got.error
                      << "\nexpected: " << expected;
    }
  EXPECT_GT(count, 5000);
  const std::string list = source_folder() + "/tests/engine/text/chat_refused.txt";
  if (std::getenv("SNUG_RECORD") != nullptr) {
    std::ofstream(list) << refused;
    return;
  }
  EXPECT_EQ(refused, slurp(list));
}

constexpr const char* kRow = R"({"messages": [{"role": "user", "content": "hi"}]})";

void expect_bad(const std::string& source, const std::string& expected, const std::string& found,
                const std::string& advice) {
  expect_error(
      [&] {
        ChatTemplate::parse(source, "t.jinja").render(Conversation::parse(kRow, "r.jsonl:1"));
      },
      ErrorCode::data, expected, found, advice);
}

TEST(ChatTemplate, TextsOfOtherBasesAreRefused) {
  for (const char* base : {"2", "8", "9", "11", "16"})
    expect_bad(std::string("{{ '7' | int(base=") + base + ") }}", "base 10 for 'int'",
               "another, which is not built", "");
}

// Three of a kind, where two would do for a slip: as jinja2 3.1 prints them.
TEST(ChatTemplate, SortsByThreeAttributesAndJoinsThreeTexts) {
  const auto shown = [](const char* rule) {
    return ChatTemplate::parse(rule, "t.jinja").render(Conversation::parse(kRow, "r.jsonl:1")).text;
  };
  const std::string rows =
      "[{'a': 1, 'b': 2, 'c': 3}, {'a': 1, 'b': 2, 'c': 1}, {'a': 1, 'b': 1, 'c': 9}, "
      "{'a': 0, 'b': 5, 'c': 5}]";
  const std::string each = " %}{{ r.a }}{{ r.b }}{{ r.c }} {% endfor %}";
  EXPECT_EQ(shown(("{% for r in " + rows + " | sort(attribute='a,b,c')" + each).c_str()),
            "055 119 121 123 ");
  EXPECT_EQ(shown(("{% for r in " + rows + " | sort(attribute='a,b')" + each).c_str()),
            "055 119 123 121 ");
  EXPECT_EQ(shown("{{ 'a' 'b' 'c' }}"), "abc");
}

TEST(ChatTemplate, EndsWithinItsBounds) {
  expect_error(
      [&] {
        ChatTemplate::parse(
            "\n{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
            "t.jinja")
            .render(Conversation::parse(kRow, "r.jsonl:1"), false, {.max_steps = 100000});
      },
      ErrorCode::data, "ends within 100000 steps", "still runs, at t.jinja:2",
      "a loop that does not end");
  expect_bad("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "at most 800 levels",
             "for ever?, at t.jinja:1", "correct the template");
  expect_bad(
      "{% set ns = namespace(s='ab') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "at most 256.00 MiB", "asks for more", "shorten");
  expect_bad("{{ 'x' * 99999999999 }}", "ends within 20000000 steps", "still runs", "shorten");
  expect_bad("{{ ('x' * 9999999) * 9999 }}", "at most 256.00 MiB", "asks for more", "shorten");
  expect_bad(
      "{% set ns = namespace(s=[]) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}"
      "{{ ns.s }}",
      "a value that has a text", "more than 100 levels", "correct");
  expect_bad("{{ [1] | tojson(indent=101) }}", "an indent of at most 100", "101, at t.jinja:1", "");
  EXPECT_EQ(ChatTemplate::parse("{{ [1] | tojson(indent=100) }}", "t.jinja")
                .render(Conversation::parse(kRow, "r.jsonl:1"))
                .text,
            "[\n" + std::string(100, ' ') + "1\n]");
  const std::string deep(100000, '(');
  expect_bad("{{ " + deep + std::string(100000, ')') + " }}", "at most 240 levels",
             "more, at t.jinja:1", "correct");
  std::string chain = "1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  expect_bad("{{ " + chain + " }}", "at most 300 levels", "a deeper one", "correct");
}

// Filters that write other bytes than they read keep whose bytes they were: the rule's own text in
// front and behind, byte by byte, and a content whose first and last bytes change.
TEST(ChatTemplate, FiltersKeepTheOriginsOfBytes) {
  const std::string row = R"({"messages": [{"role": "user", "content": "<hi\u00e9>"}]})";
  struct Case {
    const char* rule;
    const char* text;
    std::vector<int64_t> ends;  // of the template's own, the content's, the template's own
  };
  const Case cases[] = {
      {"{{ ('<a' ~ messages[0].content ~ 'b>') | upper }}", "<A<HI\u00c9>B>", {2, 8, 10}},
      {"{{ ('<A' ~ messages[0].content ~ 'B>') | lower }}", "<a<hi\u00e9>b>", {2, 8, 10}},
      {"{{ ('<a' ~ messages[0].content ~ 'b>') | e }}", "&lt;a&lt;hi\u00e9&gt;b&gt;", {5, 17, 22}},
      {"{{ ('<a' ~ messages[0].content ~ 'b>') | tojson(ensure_ascii=false) }}",
       "\"<a<hi\u00e9>b>\"",
       {3, 9, 12}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.rule);
    const RenderedChat r =
        ChatTemplate::parse(c.rule, "t.jinja").render(Conversation::parse(row, "r.jsonl:1"));
    EXPECT_EQ(r.text, c.text);
    std::vector<int64_t> ends;
    std::vector<bool> of_content;
    for (const jinja::Run& run : r.runs) {
      const bool content = run.origin.source == jinja::Source::content;
      EXPECT_EQ(run.origin.message, content ? 0 : -1);
      if (of_content.empty() || of_content.back() != content) {
        ends.push_back(run.end);
        of_content.push_back(content);
      }
      ends.back() = run.end;
    }
    EXPECT_EQ(ends, c.ends);
    EXPECT_EQ(of_content, (std::vector<bool>{false, true, false}));
  }
}

TEST(ChatTemplate, RefusesByNameAndLine) {
  expect_bad("a\n{% include 'x' %}", "a tag that chat templates use",
             "'{% include %}', which is not built, at t.jinja:2", "without it");
  expect_bad("{% fro x in y %}", "a tag that is known", "'{% fro %}', at t.jinja:1",
             "did you mean for?");
  expect_bad("\n\n{{ x | urlize }}", "a filter that is known", "'urlize', at t.jinja:3",
             "without it");
  expect_bad("{{ x is escaped }}", "a test that is known", "'is escaped', at t.jinja:1",
             "without it");
  expect_bad("{{ lipsum() }}", "a function that is known", "'lipsum', at t.jinja:1", "without it");
  expect_bad("{{ f(*x) }}", "arguments one by one", "'*', which is not built, at t.jinja:1",
             "correct");
  expect_bad("{{ 'a'.encode() }}", "methods of a string that are known", "'encode', at t.jinja:1",
             "without it");
  expect_bad("{{ messages.append(1) }}", "methods of a list that are known and change nothing",
             "'append', at t.jinja:1", "without it");
  expect_bad("{{ ('a' | e) + 'b' }}", "a string that is not escaped", "'escape'", "last");
  expect_bad("\n{{ raise_exception('No system role') }}", "a conversation that the template takes",
             "its complaint: No system role, at t.jinja:2", "change the conversation");
  expect_bad("{% break %}", "a loop around 'break'", "none, at t.jinja:1", "correct the template");
  expect_bad("{% set 1 = 2 %}", "a name to assign to", "another expression, at t.jinja:1",
             "correct the template");
  expect_bad("{{ missing.x }}", "a value", "'missing', which is not defined, at t.jinja:1",
             "give it in the messages");
}

TEST(ChatTemplate, IsReadFromItsFolder) {
  const TestFolder folder;
  EXPECT_FALSE(ChatTemplate::load(folder.path()).has_value());
  const auto text = [&](bool tools) {
    return ChatTemplate::load(folder.path(), tools)
        ->render(Conversation::parse(kRow, "r.jsonl:1"))
        .text;
  };
  folder.write("tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template":
"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  EXPECT_EQ(text(false), "<s>hi</s>");
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default",
"template": "d"}]})");
  EXPECT_EQ(text(false), "d");
  EXPECT_EQ(text(true), "t");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "t"}]})");
  expect_error([&] { text(false); }, ErrorCode::data, "a template named \"default\" among several",
               " has none", "name one of them so");
  folder.write("chat_template.jinja", "f");  // counts before the configuration's
  EXPECT_EQ(text(false), "f");
}

TEST(ChatTemplate, RefusesConversationsThatAreNone) {
  const auto bad = [](const std::string& row, const std::string& expected,
                      const std::string& found) {
    expect_error([&] { Conversation::parse(row, "r.jsonl:7"); }, ErrorCode::data, expected,
                 "r.jsonl:7" + found, "");
  };
  bad("[1]", "an object with \"messages\"", ": none");
  bad("{}", "a list of messages under \"messages\"", ": no such key");
  bad(R"({"messages": []})", "at least one message", ": an empty list");
  bad(R"({"messages": {}})", "at least one message", ": no list");
  bad(R"({"messages": [1]})", "messages that are objects", ": message 1 is none");
  bad(R"({"messages": [{"content": "x"}]})", "a string under \"role\"", ": message 1 has none");
  bad(R"({"messages": [{"role": 1}]})", "a string under \"role\"", ": message 1 has another value");
  bad(R"({"messages": [{"role": "user", "content": 5}]})", "under \"content\"",
      ": message 1 has another value");
  bad(R"({"messages": [{"role": "user"}], "tools": 1})", "a list of tools", ": another value");
  bad(R"({"messages": [{"role": "user"}], "chat_template_kwargs": 1})",
      "an object under \"chat_template_kwargs\"", ": another value");
  bad(R"({"a": 1, "a": 2})", "each key once", ": \"a\" twice");
  bad(R"({"a": 18446744073709551615})", "at most 64 bits", ": 18446744073709551615");
  expect_error([&] { Conversation::parse("{\"messages\": [", "r.jsonl:7"); }, ErrorCode::data,
               "JSON",
               "r.jsonl:7, byte 15: ", "write one object a line, with double quotes around keys");
  bad(R"({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]})",
      "a prompt and a completion that are both texts or both lists of messages", ": one of each");
  std::string deep = R"({"messages": )";
  for (int i = 0; i < 200; ++i) deep += "[";
  bad(deep, "JSON of at most 90 levels", ": more");
}

}  // namespace
}  // namespace snug
