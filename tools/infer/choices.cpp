#include "tools/infer/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr const char* kForm = R"({"query": "...", "choices": ["...", "..."], "gold": 0})";

// The value of the first of two keys that is there.
const json& either(const json& object, const char* a, const char* b, const std::string& where) {
  for (const char* key : {a, b})
    if (object.contains(key)) return object[key];
  fail(ErrorCode::data, fmt::format("\"{}\" or \"{}\" in {}", a, b, where), "neither", kForm);
}

int64_t gold_of(const json& value, int64_t choices, const std::string& where) {
  int64_t gold = -1;
  if (value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > 1000000)) {
    gold = value.get<int64_t>();
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const auto result = std::from_chars(text.data(), text.data() + text.size(), gold);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) gold = -1;
  }
  if (gold < 0 || gold >= choices)
    fail(ErrorCode::data,
         fmt::format("\"gold\" or \"label\" as the number of a choice, 0 to {}, in {}", choices - 1,
                     where),
         json_brief(value), kForm);
  return gold;
}

Question parse_question(const json& j, const std::string& where) {
  if (!j.is_object()) fail(ErrorCode::data, "a JSON object in " + where, json_brief(j), kForm);
  Question q;
  const json& query = either(j, "query", "ctx", where);
  if (!query.is_string())
    fail(ErrorCode::data, "\"query\" or \"ctx\" as a string in " + where, json_brief(query), kForm);
  q.query = query.get<std::string>();
  const json& choices = either(j, "choices", "endings", where);
  bool good = choices.is_array() && choices.size() >= 2;
  for (size_t i = 0; good && i < choices.size(); ++i) good = choices[i].is_string();
  if (!good)
    fail(ErrorCode::data, "\"choices\" or \"endings\" as two or more strings in " + where,
         json_brief(choices), kForm);
  for (const json& choice : choices) q.choices.push_back(choice.get<std::string>());
  q.gold =
      gold_of(either(j, "gold", "label", where), static_cast<int64_t>(q.choices.size()), where);
  return q;
}

// What Python's rstrip() takes of ASCII.
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0u) != 0x80u; });
}

}  // namespace

std::vector<Question> read_questions(const std::string& path) {
  TextReader reader(path);
  std::vector<Question> out;
  for (std::string_view line; reader.next_line(line, INT32_MAX);) {
    if (std::all_of(line.begin(), line.end(), is_space)) continue;
    out.push_back(parse_question(parse_json(line, path, reader.line()),
                                 fmt::format("{}:{}", path, reader.line())));
    out.back().line = reader.line();
  }
  if (out.empty())
    fail(ErrorCode::data, fmt::format("questions in {}, one JSON object a line", path), "none",
         kForm);
  return out;
}

namespace {

// False, with a problem: the choice cannot be scored.
bool encode_choice(const Tokenizer& tokenizer, const Question& q, size_t choice, int64_t most,
                   ChoiceTokens& out, std::string& problem) {
  std::string context = q.query, continuation = " " + q.choices[choice];
  if (q.choices[choice].empty()) {
    problem = fmt::format("choice {} is empty", choice);
    return false;
  }
  if (context.empty()) {
    const auto id = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
    if (!id) {
      problem = "an empty query, and the tokenizer has no token that begins or ends texts";
      return false;
    }
    out.ids = {*id};
    out.context = 1;
    tokenizer.encode(continuation, out.ids);
  } else {
    size_t keep = context.size();
    while (keep > 0 && is_space(context[keep - 1])) --keep;
    continuation = context.substr(keep) + continuation;
    context.resize(keep);
    out.context = static_cast<int64_t>(tokenizer.encode(context).size());
    out.ids = tokenizer.encode(context + continuation);
  }
  const int64_t scored = static_cast<int64_t>(out.ids.size()) - out.context;
  // The join may eat the tokens of a very short choice; a query of white space leaves no context.
  if (out.context < 1)
    problem = "a query of white space alone";
  else if (scored < 1)
    problem = fmt::format("choice {} (\"{}\") has no token of its own after the {} of the query",
                          choice, q.choices[choice], out.context);
  else if (scored > most)
    problem = fmt::format("choice {} has {} tokens and a sample holds {}", choice, scored, most);
  return problem.empty();
}

}  // namespace

QuestionTokens encode_question(const Tokenizer& tokenizer, const Question& q, int64_t most) {
  QuestionTokens out;
  out.choices.resize(q.choices.size());
  for (size_t c = 0; c < q.choices.size(); ++c)
    if (!encode_choice(tokenizer, q, c, most, out.choices[c], out.problem)) break;
  return out;
}

int64_t longest_question(const Tokenizer& tokenizer, const std::vector<Question>& questions,
                         int64_t most, const std::string& path) {
  int64_t longest = 0;
  std::string first;
  for (const Question& q : questions) {
    const QuestionTokens tokens = encode_question(tokenizer, q, most);
    if (!tokens.problem.empty()) {
      if (first.empty()) first = fmt::format("{}:{}: {}", path, q.line, tokens.problem);
      continue;
    }
    for (const ChoiceTokens& choice : tokens.choices)
      longest = std::max(longest, static_cast<int64_t>(choice.ids.size()) - 1);
  }
  if (longest == 0)
    fail(ErrorCode::data, fmt::format("a question in {} that can be scored", path), first,
         "another wording, or a larger --max-length");
  return longest;
}

ChoiceResult score_questions(Session& session, const Tokenizer& tokenizer,
                             const std::vector<Question>& questions, int64_t most,
                             const std::string& path) {
  const FrontTokens front = session.model().front();
  const int64_t T = session.decisions().T - front.count;
  int32_t* const tokens = front.write(session.tokens().as<int32_t>());
  int32_t* const targets = session.targets().as<int32_t>() + front.count;
  std::fill(targets - front.count, targets, -100);
  ChoiceResult result;
  int64_t right = 0, right_norm = 0;
  for (const Question& q : questions) {
    const QuestionTokens encoded = encode_question(tokenizer, q, most);
    std::vector<double>& scores = result.scores.emplace_back();
    if (!encoded.problem.empty()) {
      if (result.left_out++ == 0)
        result.first_left_out = fmt::format("{}:{}: {}", path, q.line, encoded.problem);
      continue;
    }
    size_t best = 0, best_norm = 0;
    std::vector<double> normed;
    for (size_t c = 0; c < q.choices.size(); ++c) {
      const ChoiceTokens& choice = encoded.choices[c];
      const auto count = static_cast<int64_t>(choice.ids.size());
      const int64_t scored = count - choice.context;
      // The last T + 1 tokens: T inputs and, one place later, their targets.
      const int64_t first = std::max<int64_t>(0, count - (T + 1)), inputs = count - 1 - first;
      std::fill(tokens, tokens + T, 0);
      std::fill(targets, targets + T, -100);
      for (int64_t i = 0; i < inputs; ++i) {
        tokens[i] = choice.ids[static_cast<size_t>(first + i)];
        if (i >= inputs - scored) targets[i] = choice.ids[static_cast<size_t>(first + i + 1)];
      }
      session.begin_window(0, 0, 0);
      session.evaluate();
      const double loss = session.state().loss_sum;
      if (!std::isfinite(loss))
        fail(ErrorCode::data, fmt::format("a finite score of choice {} in {}:{}", c, path, q.line),
             std::isnan(loss) ? "nan" : "inf",
             "--precision fp32; if it stays, the model's weights are not finite: take an earlier "
             "checkpoint");
      scores.push_back(-loss);
      normed.push_back(scores.back() / static_cast<double>(characters(q.choices[c])));
      if (scores[c] > scores[best]) best = c;
      if (normed[c] > normed[best_norm]) best_norm = c;
      ++result.choices;
    }
    right += static_cast<int64_t>(best) == q.gold;
    right_norm += static_cast<int64_t>(best_norm) == q.gold;
    ++result.questions;
  }
  require(result.questions > 0, "a question that can be scored");
  result.acc = static_cast<double>(right) / static_cast<double>(result.questions);
  result.acc_norm = static_cast<double>(right_norm) / static_cast<double>(result.questions);
  return result;
}

double share_error(double share, int64_t n) {
  return n > 1 ? std::sqrt(share * (1 - share) / static_cast<double>(n - 1)) : 0.0;
}

}  // namespace snug
