// What commands say, as it was said when somebody last looked: plans for described devices, and the words of
// small runs. No truth stands behind these files but that reader's, so they prove nothing of mathematics; they
// show every change of a decision, a byte, a predicted time or a word, meant or not. SNUG_RECORD=1 writes them
// anew, in the source: the difference is then read before it is committed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <regex>
#include <span>
#include <sstream>

#include "engine/io/fingerprint.h"
#include "tests/support/folders.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

// recorded/NAME.txt: a command, then each line that it says behind a bar.
//
//   snug plan target=rtx4090 ...     @ stands for the workspace, "quotes" for a word with spaces
//   | engine 1.00 MiB
//
// Of JSON those values that the first command of the file has otherwise.
struct Recorded {
  std::string command;
  std::vector<std::string> says;
};

std::string file_of(const std::string& area) {
  return source_folder() + "/tests/tools/e2e/recorded/" + area + ".txt";
}

std::vector<Recorded> rows_of(const std::string& area) {
  std::vector<Recorded> rows;
  std::istringstream lines(slurp(file_of(area)));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("snug "))
      rows.push_back({line.substr(5), {}});
    else if (line.starts_with("|") && !rows.empty())
      rows.back().says.push_back(line.size() > 2 ? line.substr(2) : "");
  }
  return rows;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// Of the machine, or of all the rest.
constexpr const char* kOfTheMachine[] = {"planning_seconds", "hash",    "seal",
                                         "instruction_set",  "threads", "free_bytes"};
// Long, and told as a sum.
constexpr const char* kLong[] = {"programs", "kernels", "timeline", "tensors", "blocks"};

bool among(std::span<const char* const> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Without what is the machine's, and six digits of a number: more are those of a compiler.
Json rounded(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_array()) {
    Json all = Json::array();
    for (const Json& one : value) all.push_back(rounded(one));
    return all;
  }
  if (!value.is_object()) return value;
  Json all = Json::object();
  for (const auto& [key, one] : value.items())
    if (!among(kOfTheMachine, key)) all[key] = rounded(one);
  return all;
}

// A line for each value, objects within objects by their paths.
void tell(const Json& value, const std::string& path, std::vector<std::string>& lines) {
  const std::string key = path.substr(path.rfind('.') + 1);
  if (among(kLong, key) && !value.is_null()) {
    lines.push_back(fmt::format("{}: {} of sum {}", path, value.size(),
                                fingerprint_text(fingerprint(value.dump()))));
  } else if (value.is_array() && path.empty()) {
    for (size_t i = 0; i < value.size(); ++i) tell(value[i], fmt::format("{}", i), lines);
  } else if (value.is_object() && path.find('.') == std::string::npos) {
    for (const auto& [name, one] : value.items())
      tell(one, path.empty() ? name : path + "." + name, lines);
  } else {
    lines.push_back(path + ": " + value.dump());
  }
}

// A text without what is the machine's. Of a plan for a described device that is how long it took; of a run
// times and rates, its loss and what a program takes beside its tensors too.
std::vector<std::string> masked(const Workspace& w, const std::string& text, bool ran) {
  static const std::regex kPlanned(R"(planned in [0-9.]+ s|hash [0-9a-f]{16})"),
      kTimes(R"([0-9.]+ (ms|s|min|h|tokens/s|[GMT]B/s|[GT]FLOP/s)\b|[0-9.]+s\b)"),
      kFraction(R"([0-9]+\.[0-9]+(e-?[0-9]+)?)"), kSets("avx512_bf16|avx512|avx2|amx"),
      kSpaces(" {2,}"),
      kOfIts(
          R"( *(started in|planned = measured|memory reserved|host memory reserved|predicted [0-9#]|#, #|runtime |total |minimum |budget ).*)");
  std::string said = std::regex_replace(replaced(text, w.path(""), "@"), kPlanned, "#");
  if (ran)
    for (const std::regex* mask : {&kTimes, &kFraction, &kSets})
      said = std::regex_replace(said, *mask, "#");
  std::vector<std::string> lines;
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);)
    if (!ran)
      lines.push_back(line);
    else if (!std::regex_match(line, kOfIts))
      lines.push_back(std::regex_replace(line, kSpaces, "  "));
  return lines;
}

// What a command says; JSON as what is not as in `usual`, which the first of a file becomes.
std::vector<std::string> said_by(const Workspace& w, const std::string& command,
                                 std::vector<std::string>& usual) {
  std::vector<std::string> words = words_of(command);
  for (std::string& word : words) word = expanded(w, word);
  const Outcome outcome = run(words);
  const bool ran = !command.starts_with("plan ") && !command.starts_with("explain ");
  std::vector<std::string> lines;
  if (outcome.out.starts_with("{") || outcome.out.starts_with("[")) {
    std::vector<std::string> all;
    tell(rounded(Json::parse(replaced(outcome.out, w.path(""), "@"))), "", all);
    const auto has = [](const std::vector<std::string>& list, const std::string& line) {
      return std::find(list.begin(), list.end(), line) != list.end();
    };
    const auto same_key = [&](const std::string& line) {
      const std::string key = line.substr(0, line.find(": ") + 2);
      return std::any_of(all.begin(), all.end(),
                         [&](const std::string& other) { return other.starts_with(key); });
    };
    for (const std::string& line : all)
      if (!has(usual, line)) lines.push_back(line);
    for (const std::string& line : usual)
      if (!same_key(line)) lines.push_back("without " + line);
    if (usual.empty()) usual = all;
  } else {
    lines = masked(w, outcome.out, ran);
  }
  for (std::string& line : masked(w, outcome.err, ran)) lines.push_back("! " + line);
  lines.push_back(fmt::format("exit {}", outcome.code));
  return lines;
}

struct Area {
  const char* file;
  const char* name;
};
std::ostream& operator<<(std::ostream& out, const Area& area) {
  return out << area.name;
}

class RecordedIn : public ::testing::TestWithParam<Area> {};

TEST_P(RecordedIn, IsWhatIsSaid) {
  const char* const record = std::getenv("SNUG_RECORD");
  const Workspace w;
  std::string written;
  std::vector<std::string> usual;
  for (const Recorded& row : rows_of(GetParam().file)) {
    const std::vector<std::string> lines = said_by(w, row.command, usual);
    written += "snug " + row.command + "\n";
    for (const std::string& line : lines) written += line.empty() ? "|\n" : "| " + line + "\n";
    if (record != nullptr) continue;
    for (size_t i = 0; i < std::max(lines.size(), row.says.size()); ++i) {
      const std::string now = i < lines.size() ? lines[i] : "(nothing)",
                        before = i < row.says.size() ? row.says[i] : "(nothing)";
      if (now == before) continue;
      ADD_FAILURE() << "snug " << row.command << "\nsays:     " << now << "\nrecorded: " << before
                    << "\nSNUG_RECORD=1 records what it says now";
      break;
    }
  }
  if (record != nullptr) spill(file_of(GetParam().file), written);
}

INSTANTIATE_TEST_SUITE_P(Areas, RecordedIn,
                         ::testing::Values(Area{"plans", "Plans"}, Area{"ways", "Ways"},
                                           Area{"words", "Words"}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace snug::e2e
