// Whatever is wrong with what the user gives: the exit code, the whole message (what was expected,
// what was found, what to try), and nothing written. The rows stand in bad/*.txt
// and, where files are binary, in bad_*.cpp, by area.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <sstream>

#include "tests/support/folders.h"
#include "tests/tools/e2e/bad_input.h"
#include "tests/tools/e2e/encoders.h"
#include "tests/tools/e2e/followed.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

void whole_tokens(const Workspace& w) {
  for (const char* end : {"", ".idx", ".json"})
    copy("run/data/train.bin" + std::string(end), "t.bin" + std::string(end))(w);
}
void whole_weights(const Workspace& w) {
  copy("run/final", "m")(w);
  copy("run/final/model.safetensors", "x.safetensors")(w);
}
void whole_gguf(const Workspace& w) {
  EXPECT_EQ(
      run({"convert", "--model", w.path("run/final"), "--to", "gguf", "--output", w.path("x.gguf")})
          .code,
      0);
}
void whole_codes(const Workspace& w) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  file("w.safetensors", safetensors(header, 16))(w);
  EXPECT_EQ(run({"quant", w.path("w.safetensors"), "--codec", "int8", "--output",
                 w.path("q.safetensors")})
                .code,
            0);
}

struct Area {
  const char* name;
  const char* file;               // of rows_of(); null: the rows are code
  std::vector<BadRow> (*code)();  // those
  bool run;                       // its rows use a finished run, @run
  bool encoder = false;           // of an encoder, and its data (encoders.h)
  // The files that its rows damage, as they should be, where they are no copies.
  void (*whole)(const Workspace&) = nullptr;

  std::vector<BadRow> rows() const { return file ? rows_of(file) : code(); }
};
const Area kAreas[] = {{"Commands", "commands", nullptr, false},
                       {"Encoders", "encoders", nullptr, true, true},
                       {"Inference", "inference", nullptr, true},
                       {"Keys", "keys", nullptr, false},
                       {"KeysOfTheMachine", "keys_of_the_machine", nullptr, false},
                       {"PairsOfKeys", "pairs_of_keys", nullptr, false},
                       {"FilesOfKeys", "files_of_keys", nullptr, false},
                       {"Texts", "texts", nullptr, false},
                       {"TokenFiles", nullptr, bad_token_files, true, false, whole_tokens},
                       {"Models", "models", nullptr, true},
                       {"Weights", nullptr, bad_weights, true, false, whole_weights},
                       {"Tokenizers", "tokenizers", nullptr, true},
                       {"Gguf", nullptr, bad_gguf, true, false, whole_gguf},
                       {"Quant", nullptr, bad_quant, false, false, whole_codes},
                       {"Runs", "runs", nullptr, true},
                       {"Plans", nullptr, bad_plans, true}};

void PrintTo(const Area& area, std::ostream* out) {
  *out << area.name;
}

std::vector<std::string> expanded(const Workspace& w, const std::vector<std::string>& words,
                                  bool encoder) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    if (word == "...")
      out = encoder ? encoder_arguments(w, "out") : w.train_arguments("out");
    else
      out.push_back(expanded(w, word));
  }
  return out;
}

// `pattern` with <*> for any text within a line.
bool matches(const std::string& text, const std::string& pattern) {
  const size_t star = pattern.find("<*>");
  if (star == std::string::npos) return text == pattern;
  if (text.compare(0, star, pattern, 0, star) != 0) return false;
  const std::string rest = pattern.substr(star + 3);
  for (size_t at = star; at <= text.size(); ++at) {
    if (matches(text.substr(at), rest)) return true;
    if (at < text.size() && text[at] == '\n') return false;
  }
  return false;
}

// What is in the workspace: names, sizes, and when files were written. A folder's time changes with
// what comes and goes in it.
using State = std::map<std::string, std::pair<uintmax_t, fs::file_time_type>>;
State state(const Workspace& w) {
  State out;
  for (const auto& entry : fs::recursive_directory_iterator(w.path(""))) {
    auto& [size, time] = out[entry.path().string()];
    if (!entry.is_regular_file()) continue;
    size = entry.file_size();
    time = entry.last_write_time();
  }
  return out;
}

// What is not there yet is removed at the end.
class Kept {
 public:
  explicit Kept(const Workspace& w) : w_(w), names_(listing(w.path(""))) {}
  ~Kept() {
    for (const std::string& name : listing(w_.path("")))
      if (std::find(names_.begin(), names_.end(), name) == names_.end())
        fs::remove_all(w_.path(name));
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  const Workspace& w_;
  const std::vector<std::string> names_;
};

// Returns what was said.
std::string check(const Workspace& w, const BadRow& row, bool encoder) {
  SCOPED_TRACE(row.name);
  const Kept kept(w);
  for (const Make& make : row.files) make(w);
  const State before = state(w);
  const Outcome outcome = run(expanded(w, row.words, encoder), row.input);
  EXPECT_EQ(outcome.code, row.code) << outcome.out << outcome.err;
  EXPECT_TRUE(matches(outcome.err, expanded(w, row.says) + "\n"))
      << "said with " << outcome.code << ":\n"
      << outcome.err << "expected:\n"
      << expanded(w, row.says);
  EXPECT_TRUE(state(w) == before) << "nothing is written";
  return outcome.err;
}

// What is there is put back after each row: its files and when they were written.
class Backup {
 public:
  explicit Backup(const Workspace& w)
      : w_(w), at_(fs::path(w.path("")).parent_path().string() + "-backup") {
    copy(w.path(""), at_);
    before_ = state(w);
  }
  ~Backup() { fs::remove_all(at_); }
  Backup(const Backup&) = delete;
  Backup& operator=(const Backup&) = delete;
  void restore() const {
    if (state(w_) == before_) return;
    for (const auto& entry : fs::directory_iterator(w_.path(""))) fs::remove_all(entry.path());
    copy(at_, w_.path(""));
  }

 private:
  static void copy(const std::string& from, const std::string& to) {
    fs::create_directories(to);
    fs::copy(from, to, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(from))
      if (entry.is_regular_file())
        fs::last_write_time(to / fs::relative(entry.path(), from), entry.last_write_time());
  }

  const Workspace& w_;
  const std::string at_;
  State before_;
};

void replace_in(const Followed& f) {
  std::istringstream in(slurp(f.path));
  std::string out, line;
  // Of a key of a map the line is that of the map.
  bool done = false;
  for (int number = 1; std::getline(in, line); ++number) {
    const size_t at = number >= f.line && !done ? line.find(f.wrong) : std::string::npos;
    if (at != std::string::npos) line.replace(at, f.wrong.size(), f.meant);
    done = done || at != std::string::npos;
    out += line + "\n";
  }
  spill(f.path, out);
}

// The advice of a row is followed, and the command succeeds, or says next what the row says. False: nothing
// says how.
bool follow(const Workspace& w, const Area& area, const BadRow& row, const std::string& err) {
  if (!row.unfollowed.empty()) return true;
  const bool encoder = area.encoder;
  const std::vector<std::string> words = expanded(w, row.words, encoder);
  const bool by_row = !row.mend.empty() || !row.then.empty() || !row.then_input.empty();
  Followed then{.words = words};
  if (!row.then.empty()) then.words = expanded(w, row.then, encoder);
  if (!by_row) {
    const auto found = followed(words, err, w.path("fresh"));
    if (!found) return false;
    then = *found;
  }
  SCOPED_TRACE(row.name + ": " + advice_of(err));
  for (const Make& make : row.files)
    if (!then.repaired || (make.whole() && !area.whole)) make(w);
  if (then.repaired && area.whole) area.whole(w);
  for (const Make& make : row.mend) make(w);
  if (!then.path.empty()) replace_in(then);
  const Outcome outcome = run(then.words, row.then_input.empty() ? row.input : row.then_input);
  std::string command;
  for (const std::string& word : then.words) command += " " + word;
  if (row.next.empty()) {
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
  } else {
    EXPECT_NE(outcome.code, 0) << command;
    EXPECT_NE(outcome.err.find(expanded(w, row.next)), std::string::npos) << command << "\n"
                                                                          << outcome.err;
  }
  return true;
}

class BadInput : public testing::TestWithParam<Area> {};

TEST_P(BadInput, EveryRow) {
  const Workspace w;
  const bool encoder = GetParam().encoder;
  if (encoder) {
    make_encoder_data(w);
    ASSERT_EQ(train_encoder(w, "run", {"max_steps=2"}).code, 0);
  } else if (GetParam().run) {
    w.trained("run", {"max_steps=2", "eval_fraction=0"});
  }
  const std::vector<BadRow> rows = GetParam().rows();
  std::vector<std::string> said;
  for (const BadRow& row : rows) said.push_back(check(w, row, encoder));
  const Backup backup(w);
  int followed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool done = follow(w, GetParam(), rows[i], said[i]);
    EXPECT_TRUE(done) << rows[i].name << ": nothing says how to follow " << advice_of(said[i]);
    followed += done && rows[i].unfollowed.empty();
    backup.restore();
  }
  RecordProperty("advice_followed", followed);
  std::printf("%d rows, the advice of %d followed\n", static_cast<int>(rows.size()), followed);
}

INSTANTIATE_TEST_SUITE_P(Areas, BadInput, testing::ValuesIn(kAreas),
                         [](const auto& area) { return std::string(area.param.name); });

// Every message has three parts, and nothing that is wrong with the input is a defect of ours.
TEST(BadInputTable, IsLargeAndItsMessagesAreWhole) {
  int rows = 0;
  for (const Area& area : kAreas) {
    std::set<std::string> names;
    for (const BadRow& row : area.rows()) {
      SCOPED_TRACE(area.name + std::string(" / ") + row.name);
      ++rows;
      EXPECT_TRUE(names.insert(row.name).second) << "the name is taken";
      for (const char* part : {": expected ", "\n  found: ", "\n  try:   "})
        EXPECT_NE(row.says.find(part), std::string::npos) << row.says;
      EXPECT_EQ(row.says.find("internal"), std::string::npos);
      EXPECT_GE(row.says.size(), 60u);
    }
  }
  EXPECT_GE(rows, 220);
}

// Every file of rows is read by an area.
TEST(BadInputTable, NoFileIsLeftOut) {
  std::set<std::string> areas;
  for (const Area& area : kAreas)
    if (area.file) areas.insert(std::string(area.file) + ".txt");
  for (const std::string& name : listing(source_folder() + "/tests/tools/e2e/bad"))
    EXPECT_TRUE(areas.contains(name)) << name;
  EXPECT_GE(areas.size(), 11u);
}

TEST(BadInputTable, ARowThatSaysSomethingElseIsSeen) {
  EXPECT_TRUE(matches("found: 17 B\n", "found: <*> B\n"));
  EXPECT_TRUE(matches("a\n", "a\n"));
  EXPECT_FALSE(matches("a\nb\n", "a\n"));
  EXPECT_FALSE(matches("found: 17 B\n", "found: <*> KiB\n"));
  EXPECT_FALSE(matches("found: 1\n2 B\n", "found: <*> B\n")) << "a star stays in its line";
}

void refused(const Workspace& w, const std::vector<std::string>& more, const std::string& says) {
  const State before = state(w);
  const Outcome outcome = w.train("out", more);
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
  EXPECT_TRUE(state(w) == before) << "nothing is written";
}

// A folder that was there before the refusal is as it was.
TEST(BadInput, EmptyOutputFolderStaysEmpty) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  std::filesystem::create_directory(w.path("out"));
  refused(w, {"train_data=" + w.path("short.txt")}, "at least 33 tokens");
  w.trained("out");
}

TEST(BadInput, ParentsOfTheOutputFolderGoToo) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  refused(w, {"output_dir=" + w.path("deep/er/out"), "train_data=" + w.path("short.txt")},
          "at least 33 tokens");
}

// overwrite: true removes the old run when the new one is known to start, not before.
TEST(BadInput, OverwriteKeepsTheOldRunUntilTheNewOneStarts) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  w.trained("out", {"save_steps=4"});
  const std::string curve = w.curve("out"), plan = slurp(w.path("out/plan.json")),
                    tokens = slurp(w.path("out/data/train.bin"));
  refused(w, {"overwrite=true", "train_data=" + w.path("short.txt")}, "at least 33 tokens");
  refused(w, {"overwrite=true", "max_length=100"}, "max_length of at most 64");
  EXPECT_EQ(w.curve("out"), curve);
  EXPECT_EQ(slurp(w.path("out/plan.json")), plan);
  EXPECT_TRUE(slurp(w.path("out/data/train.bin")) == tokens);
  w.trained("out", {"overwrite=true", "max_steps=2"});
  EXPECT_EQ(w.losses("out").size(), 2u);
  EXPECT_FALSE(exists(w.path("out/checkpoint-12"))) << "of the old run";
  EXPECT_EQ(w.json("out/memory.json")["finished"], true);
  EXPECT_TRUE(exists(w.path("out/checkpoint-2")));
}

}  // namespace
}  // namespace snug::e2e
