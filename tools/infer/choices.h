// Multiple-choice questions in the form of HellaSwag, and their scores as lm-evaluation-harness
// defines them: each choice is a continuation of the question, joined with one space; its score is
// the log likelihood of its tokens.
//   acc       the share of questions whose gold choice has the highest score
//   acc_norm  the same with the score divided by the number of characters of the choice
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tools/session/session.h"

namespace snug {

struct Question {
  std::string query;
  std::vector<std::string> choices;
  int64_t gold = 0;
  int64_t line = 0;  // of the file, from 1
};

// One JSON object a line: "query" or "ctx", a string; "choices" or "endings", two or more strings;
// "gold" or "label", the number of the right one from 0, an integer or its digits. Other keys are
// left alone, empty lines skipped. Throws data, naming file:line.
std::vector<Question> read_questions(const std::string& path);

// A choice as tokens: `context` ones, then those that are scored. White space at the end of the
// query goes to the continuation before both are encoded together. An empty query is the token that
// ends texts, or starts them.
struct ChoiceTokens {
  std::vector<int32_t> ids;
  int64_t context = 0;
};

// A question as tokens, or why it cannot be scored: a choice is empty, has no token of its own once
// it is joined with the query, or more than `most`; the query is white space, or empty where the
// tokenizer has no token to stand for it.
struct QuestionTokens {
  std::vector<ChoiceTokens> choices;
  std::string problem;  // empty: none
};
QuestionTokens encode_question(const Tokenizer& tokenizer, const Question& question, int64_t most);

// Inputs of the longest choice with its query, over the questions that can be scored. Throws data,
// naming file:line, if none can.
int64_t longest_question(const Tokenizer& tokenizer, const std::vector<Question>& questions,
                         int64_t most, const std::string& path);

struct ChoiceResult {
  int64_t questions = 0, choices = 0;  // that were scored
  int64_t left_out = 0;                // questions that cannot be
  std::string first_left_out;          // file:line and why
  double acc = 0, acc_norm = 0;
  std::vector<std::vector<double>> scores;  // log likelihoods, one list a question, or an empty one
};

// Scores those that can be with the eval program of a session of batches of one sequence; one
// question at least can. `most` is that of longest_question, and the session's T is what it gave
// or, if that is more, `most`: longer ones lose tokens at their beginning, as in the harness. Throws
// data on a score that is not finite.
ChoiceResult score_questions(Session& session, const Tokenizer& tokenizer,
                             const std::vector<Question>& questions, int64_t most,
                             const std::string& path);

// The share's standard error over n questions, as the harness gives it: sqrt(p (1 - p) / (n - 1)).
double share_error(double share, int64_t n);

}  // namespace snug
