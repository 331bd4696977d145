// What commands say and leave, as it was when somebody last looked: plans for described devices, the words and
// files of small runs, what readers make of data and converters of models. No truth stands behind these files but
// that reader's, so they prove nothing of mathematics; they show every change of a decision, a byte, a predicted
// time or a word, meant or not. SNUG_RECORD=1 writes them anew, in the source: the difference is then read before
// it is committed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <regex>
#include <span>
#include <sstream>
#include <utility>

#include "engine/io/fingerprint.h"
#include "engine/io/safetensors.h"
#include "tests/support/folders.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

// recorded/NAME.txt: a command, then each line that it says behind a bar.
//
//   snug plan target=rtx4090 ...     @ stands for the workspace, "quotes" for a word with spaces
//   | engine 1.00 MiB
//   write @rows.csv "text\na cat\n"  a file with this text
//   input "1 2 3"                    on standard input of the next command
//   show @a/metrics.jsonl            a file of text, without times and what is the machine's
//   values @a/model.safetensors      of each tensor its dtype, shape, sum and sum of magnitudes
//   sum @x.gguf                      bytes and fingerprint of a file that is the same everywhere
//   files @a                         what lies in a folder
//
// Of a plan's JSON those values that the first command of the file has otherwise. What follows from arithmetic in
// floats is recorded as it was and may differ by 0.4 %, which another instruction set has reason to.
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
    if (line.starts_with("|") && !rows.empty())
      rows.back().says.push_back(line.size() > 2 ? line.substr(2) : "");
    else if (!line.empty() && line[0] != '|')
      rows.push_back({line, {}});
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
bool among(std::span<const char* const> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// What a clock or the system says, in files of a run, and what kernels of an instruction set need.
bool is_measured(std::string_view key) {
  constexpr const char* kMeasured[] = {"engine_bytes",
                                       "time",
                                       "seconds",
                                       "tokens_per_second",
                                       "eval_runtime",
                                       "began",
                                       "machine",
                                       "memory_samples",
                                       "allocations_after_start",
                                       "transient_allocations",
                                       "plan_hash"};
  return among(kMeasured, key) || key.ends_with("_seconds") || key.ends_with("_per_second") ||
         key.ends_with("_runtime_bytes") || key.ends_with("_preparing_bytes");
}

// Long, and told as a sum.
constexpr const char* kLong[] = {"programs", "kernels", "timeline", "tensors", "blocks"};

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

bool holds_times(const std::string& file) {
  return file.ends_with("_state.json") || file == "COMPLETE";
}

Json unmeasured(const Json& value) {
  if (value.is_array()) {
    Json all = Json::array();
    for (const Json& one : value) all.push_back(unmeasured(one));
    return all;
  }
  if (!value.is_object()) return value;
  Json all = Json::object();
  for (const auto& [key, one] : value.items())
    if (!is_measured(key)) all[key] = unmeasured(one);
  // Of a list of files, those that hold times: their digits count.
  if (const auto file = all.find("file"); file != all.end() && holds_times(*file)) all["bytes"] = 0;
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
// times and rates, and what a program takes beside its tensors too.
std::vector<std::string> masked(const Workspace& w, const std::string& text, bool ran) {
  static const std::regex kPlanned(R"(planned in [0-9.]+ s|hash [0-9a-f]{16})"),
      kTimes(R"([0-9.]+ (ms|s|min|h|tokens/s|[GMT]B/s|[GT]FLOP/s)\b|[0-9.]+s\b)"),
      kSets("avx512_bf16|avx512|avx2|amx"), kSpaces(" {2,}"),
      kMeasured("((_seconds:|_state[.]json|COMPLETE|predicted #,) +)[0-9.e-]+"),
      kOfIts(
          R"( *(started in|planned = measured|memory reserved|host memory reserved|predicted [0-9#]|#, #|runtime |total |minimum |budget |Warning: .*this process may use at once).*)");
  std::string said = std::regex_replace(replaced(text, w.path(""), "@"), kPlanned, "#");
  if (ran)
    for (const std::regex* mask : {&kTimes, &kSets}) said = std::regex_replace(said, *mask, "#");
  if (ran) said = std::regex_replace(said, kMeasured, "$1#");
  std::vector<std::string> lines;
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);)
    if (!ran)
      lines.push_back(line);
    else if (!std::regex_match(line, kOfIts))
      lines.push_back(std::regex_replace(line, kSpaces, "  "));
  return lines;
}

bool is_json(const std::string& text) {
  return (text.starts_with("{") || text.starts_with("[")) &&
         (Json::accept(text) || Json::accept(text.substr(0, text.find('\n'))));
}

// Values of a plan, as what is not as in `usual`, which the first of a file becomes.
std::vector<std::string> plan_lines(const Json& plan, std::vector<std::string>& usual) {
  std::vector<std::string> all, lines;
  tell(rounded(plan), "", all);
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
  return lines;
}

// JSON of a run: one object a line, or one whole.
std::vector<std::string> json_lines(const std::string& text) {
  std::vector<std::string> lines;
  if (Json whole = Json::parse(text, nullptr, false); !whole.is_discarded()) {
    tell(rounded(unmeasured(whole)), "", lines);
    return lines;
  }
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    lines.push_back(rounded(unmeasured(Json::parse(line))).dump());
  return lines;
}

// Columns that are no clock's.
std::vector<std::string> table_lines(const std::string& text) {
  std::vector<std::string> lines, names;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> fields;
    std::istringstream row(line);
    for (std::string field; std::getline(row, field, ',');) fields.push_back(field);
    if (names.empty()) names = fields;
    std::string kept;
    for (size_t i = 0; i < fields.size() && i < names.size(); ++i)
      if (!is_measured(names[i])) kept += fields[i] + ",";
    lines.push_back(kept);
  }
  return lines;
}

std::vector<std::string> values_of(const std::string& path) {
  std::vector<std::string> lines;
  const SafetensorsReader file(path);
  for (const SafeTensor& t : file.tensors()) {
    std::string shape, sums;
    for (const int64_t n : t.shape) shape += fmt::format(" {}", n);
    if (convertible(t.dtype)) {
      std::vector<float> values(static_cast<size_t>(t.elements()));
      convert(t.dtype, t.data, t.elements(), values.data());
      double sum = 0, size = 0;
      for (const float value : values) sum += value, size += std::abs(value);
      sums = fmt::format("{:.5g} {:.5g}", sum, size);
    } else {
      sums = fingerprint_text(fingerprint(
          std::string_view(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes))));
    }
    lines.push_back(fmt::format("{} {}{}: {}", t.name, to_string(t.dtype), shape, sums));
  }
  return lines;
}

// Without the moment and the machine in the name of a file of events.
std::vector<std::string> masked_names(std::vector<std::string> names) {
  const std::string events = "events.out.tfevents.";
  for (std::string& name : names)
    if (const size_t at = name.find(events); at != name.npos) name.resize(at + events.size());
  return names;
}

std::vector<std::string> shown(const Workspace& w, const std::string& path) {
  const std::string text = replaced(slurp(path), w.path(""), "@");
  if (path.ends_with(".csv")) return table_lines(text);
  return is_json(text) ? json_lines(text) : masked(w, text, true);
}

struct Said {
  std::vector<std::string> usual;
  std::string input;
};

std::vector<std::string> said_by_snug(const Workspace& w, const std::vector<std::string>& words,
                                      Said& before) {
  const Outcome outcome = run({words.begin() + 1, words.end()}, std::exchange(before.input, ""));
  const bool plan = words[1] == "plan", ran = !plan && words[1] != "explain";
  const std::string out = replaced(outcome.out, w.path(""), "@");
  std::vector<std::string> lines = !is_json(out) ? masked(w, out, ran)
                                   : ran         ? json_lines(out)
                                                 : plan_lines(Json::parse(out), before.usual);
  for (std::string& line : masked(w, outcome.err, ran)) lines.push_back("! " + line);
  lines.push_back(fmt::format("exit {}", outcome.code));
  return lines;
}

// What a row says.
std::vector<std::string> said_by(const Workspace& w, const std::string& row, Said& before) {
  std::vector<std::string> words = words_of(row);
  for (std::string& word : words) word = expanded(w, word);
  const std::string& what = words[0];
  if (what == "snug") return said_by_snug(w, words, before);
  const std::string& path = words.at(1);
  if (what == "input") {
    before.input = path;
    return {};
  }
  if (what == "write") {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    spill(path, words.at(2));
    return {};
  }
  if (!exists(path)) return {"is not there"};
  if (what == "show") return shown(w, path);
  if (what == "values") return values_of(path);
  if (what == "files") return masked_names(listing(path));
  EXPECT_EQ(what, "sum") << row;
  const std::string bytes = slurp(path);
  return {fmt::format("{} bytes of sum {}", bytes.size(), fingerprint_text(fingerprint(bytes)))};
}

// The number with a point or an exponent that begins at `at`; empty if none does.
std::string_view decimal_at(std::string_view text, size_t at) {
  const auto digit = [&](size_t i) { return i < text.size() && std::isdigit(text[i]) != 0; };
  if (!digit(at) || (at > 0 && (digit(at - 1) || text[at - 1] == '.'))) return {};
  size_t end = at;
  while (digit(end)) ++end;
  const size_t whole = end;
  if (end < text.size() && text[end] == '.' && digit(end + 1))
    for (++end; digit(end);) ++end;
  if (end < text.size() && text[end] == 'e') {
    const size_t sign = end + 1 < text.size() && (text[end + 1] == '-' || text[end + 1] == '+');
    if (digit(end + 1 + sign))
      for (end += 1 + sign; digit(end);) ++end;
  }
  return end == whole ? std::string_view() : text.substr(at, end - at);
}

// Equal but for decimals, which differ by 0.4 % or by one of the last place at most.
bool alike(std::string_view a, std::string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const std::string_view x = decimal_at(a, i), y = decimal_at(b, j);
    if (x.empty() || y.empty()) {
      if (a[i++] != b[j++]) return false;
      continue;
    }
    const double p = std::strtod(std::string(x).c_str(), nullptr),
                 q = std::strtod(std::string(y).c_str(), nullptr);
    const size_t point = std::min(x.find('.'), x.size() - 1);
    const auto places = static_cast<double>(
        x.find_first_of("e", point) == x.npos ? x.size() - point - 1 : x.find('e') - point - 1);
    const double last = x.find('e') == x.npos ? std::pow(10, -places) : 0;
    if (std::abs(p - q) > std::max(0.004 * std::max(p, q), 1.01 * last)) return false;
    i += x.size();
    j += y.size();
  }
  return i == a.size() && j == b.size();
}

TEST(RecordedRows, DifferByWhatAnotherMachineMay) {
  EXPECT_TRUE(alike("loss 5.7133 of 12", "loss 5.7200 of 12"));
  EXPECT_TRUE(alike("lr 1.00e-02", "lr 1.003e-02"));
  EXPECT_TRUE(alike("0.01", "0.02"));
  EXPECT_FALSE(alike("loss 5.7133 of 12", "loss 5.7433 of 12"));
  EXPECT_FALSE(alike("loss 5.7133 of 12", "loss 5.7133 of 13"));
  EXPECT_FALSE(alike("lr 1.00e-02", "lr 1.01e-02"));
  EXPECT_FALSE(alike("0.01", "0.04"));
  EXPECT_FALSE(alike("1.5 MiB", "1.5 KiB"));
  EXPECT_FALSE(alike("1.5", "-1.5"));
  EXPECT_FALSE(alike("1.5", "1.5 and more"));
}

struct Area {
  const char* file;
  const char* name;
  bool plans = false;  // alone
};
std::ostream& operator<<(std::ostream& out, const Area& area) {
  return out << area.name;
}

class RecordedIn : public ::testing::TestWithParam<Area> {};

TEST_P(RecordedIn, IsWhatIsSaid) {
  if (GetParam().plans && program_has_sanitizer())
    GTEST_SKIP()
        << "many plans, which a sanitizer makes five times as slow and finds in other tests";
  const char* const record = std::getenv("SNUG_RECORD");
  const Workspace w;
  std::string written;
  Said before;
  for (const Recorded& row : rows_of(GetParam().file)) {
    const std::vector<std::string> lines = said_by(w, row.command, before);
    written += row.command + "\n";
    for (const std::string& line : lines) written += line.empty() ? "|\n" : "| " + line + "\n";
    if (record != nullptr) continue;
    const bool ran = !row.command.starts_with("snug plan ");
    for (size_t i = 0; i < std::max(lines.size(), row.says.size()); ++i) {
      const std::string now = i < lines.size() ? lines[i] : "(nothing)",
                        then = i < row.says.size() ? row.says[i] : "(nothing)";
      if (ran ? alike(now, then) : now == then) continue;
      ADD_FAILURE() << row.command << "\nsays:     " << now << "\nrecorded: " << then
                    << "\nSNUG_RECORD=1 records what it says now";
      break;
    }
  }
  if (record != nullptr) spill(file_of(GetParam().file), written);
}

INSTANTIATE_TEST_SUITE_P(Areas, RecordedIn,
                         ::testing::Values(Area{"plans", "Plans"}, Area{"ways", "Ways"},
                                           Area{"words", "Words"}, Area{"texts", "Texts"},
                                           Area{"models", "Models"}, Area{"runs", "Runs"},
                                           Area{"tasks", "Tasks"}, Area{"optimizers", "Optimizers"},
                                           Area{"adapters", "Adapters"},
                                           Area{"devices", "Devices", true},
                                           Area{"kinds", "Kinds", true}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace snug::e2e
