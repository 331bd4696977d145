// Every command that README.md shows is run, in a short form: a line that stops working, or one
// that nobody said how to shorten, fails.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/folders.h"
#include "tests/tools/e2e/process.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

struct Block {
  std::string kind;  // what stands behind the opening fence
  std::vector<std::string> lines;
};

std::vector<Block> blocks_of(const std::string& markdown) {
  std::vector<Block> blocks;
  std::istringstream in(markdown);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(3), {}});
    } else if (inside) {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

// Lines that end with a backslash go on in the next one.
std::vector<std::string> joined_lines(const std::vector<std::string>& lines) {
  std::vector<std::string> commands = {""};
  for (const std::string& line : lines) {
    const bool more = line.ends_with('\\');
    commands.back() += more ? line.substr(0, line.size() - 1) : line;
    if (!more) commands.emplace_back();
  }
  std::erase(commands, "");
  return commands;
}

std::string without_comment(const std::string& command) {
  const std::string text = command.substr(0, command.find(" # "));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

constexpr const char* kTiny =
    " model='{type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 64, vocab_size: 96}'"
    " max_length=64 global_batch_size=1";

struct Short {
  std::string begins;  // a command
  std::string more;    // what is put behind it
};

// The first that fits counts. The scripts are run whole by tests/door.sh and by what runs this
// test.
const std::vector<Short>& short_forms() {
  static const std::vector<Short> forms = {
      {"tools/quickstart.sh", " --help"},
      {"tools/test.sh", " --help"},
      {"cmake -S . -B build && cmake --build build", ""},  // as unbuilt() has it
      {"build/bin/snug tokenizer train ", ""},
      {"build/bin/snug plan ", ""},
      {"printf ", ""},
      {"build/bin/snug train model='{type: bert,", " max_steps=2"},
      {"build/bin/snug predict ", ""},
      {"build/bin/snug train model=run1/final ", " max_steps=2"},
      {"build/bin/snug train model=", " model.n_embd=48 model.n_head=2 max_steps=2"},
      {"build/bin/snug train --config ", " max_steps=3"},
      {"build/bin/snug train run1 ", " max_steps=3"},
      {"build/bin/snug report ", ""},
      {"build/bin/snug eval ", ""},
      {"build/bin/snug generate ", " --max-new-tokens 4"},
      {"build/bin/snug convert ", ""},
      {"build/bin/snug merge ", ""},
      {"build/bin/snug explain ", ""},
      {"build/bin/snug data preview ", ""},
      {"build/bin/snug quant ", ""},
      {"build/bin/snug inspect ", ""},
      {"build/bin/snug doctor", ""},
      {"build/bin/snug bench gemm ", std::string(kTiny) + " --repeat 2"},
      {"build/bin/snug bench model=", std::string(kTiny) + " --steps 1"},
      {"build/bin/snug calibrate", " --seconds 1"},
  };
  return forms;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// The configuration, and of the build its list of targets: compiling is what made the program under
// test.
std::string unbuilt(std::string command) {
  replace_all(command, "cmake -S . ", "cmake -S " + source_folder() + " ");
  return command + " --target help";
}

std::optional<std::string> shortened(const std::string& command) {
  for (const Short& form : short_forms()) {
    if (!command.starts_with(form.begins)) continue;
    if (command.starts_with("cmake ")) return unbuilt(command);
    std::string text = command + form.more;
    replace_all(text, "build/bin/snug ", "\"$SNUG\" ");
    if (text.starts_with("tools/")) text = source_folder() + "/" + text;
    return text;
  }
  return {};
}

std::string readme() {
  return slurp(source_folder() + "/README.md");
}

// The READMEs of this tree: some real text.
std::string some_text() {
  std::string text;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_folder() + "/engine"))
    if (entry.path().filename() == "README.md") text += slurp(entry.path());
  return text;
}

TEST(Readme, LinesWithoutAShortFormAreFound) {
  EXPECT_FALSE(shortened("build/bin/snug polish run1"));
  EXPECT_FALSE(shortened("make"));
  EXPECT_EQ(joined_lines({"a \\", "  b   # c", "d"}),
            (std::vector<std::string>{"a   b   # c", "d"}));
  EXPECT_EQ(without_comment("a 'b#c'   # d # e"), "a 'b#c'");
}

// With what the script adds: keys that contradict each other are found without a build of its own.
TEST(Readme, QuickstartsConfigurationIsOneThatTrains) {
  const Workspace w;
  const Outcome o =
      run({"plan", "--config", source_folder() + "/tools/quickstart.yaml",
           "train_data='" + w.path("text.txt") + "'", "tokenizer='" + w.path("tok.json") + "'",
           "output_dir='" + w.path("model") + "'", "threads=2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("256.00 MiB"), std::string::npos) << o.out;
}

TEST(SlowReadme, EveryCommandRuns) {
  const Workspace w;
  std::filesystem::create_directory(w.path("new"));
  spill(w.path("new/corpus.txt"), some_text());
  spill(w.path("new/heldout.txt"), readme());
  int commands = 0;
  for (const Block& block : blocks_of(readme())) {
    if (block.kind != "sh") {
      // Output is shown behind its command, by the next test, and nowhere else.
      EXPECT_TRUE(block.kind.empty() && block.lines.at(0).starts_with("$ snug "))
          << "no test runs the block that begins with: " << block.lines.at(0);
      continue;
    }
    for (const std::string& line : joined_lines(block.lines)) {
      const std::string command = without_comment(line);
      const std::optional<std::string> text = shortened(command);
      ASSERT_TRUE(text) << "say in short_forms() how a test runs this line of README.md: "
                        << command;
      // Calibrations and caches go to the folder too.
      const Outcome o = shell("cd " + w.path("new") +
                              " && export HOME=$PWD XDG_CACHE_HOME=$PWD/cache && " + *text);
      ASSERT_EQ(o.code, 0) << *text << "\n" << o.out << o.err;
      ++commands;
    }
  }
  EXPECT_GE(commands, 10);
}

TEST(SlowReadme, WhatACommandPrintsIsWhatIsShown) {
  const Workspace w;
  int shown = 0;
  for (const Block& block : blocks_of(readme())) {
    if (block.kind == "sh") continue;
    std::string command = joined_lines(block.lines).at(0), expected;
    size_t lines = 1;
    while (block.lines[lines - 1].ends_with('\\')) ++lines;
    for (size_t i = lines; i < block.lines.size(); ++i) expected += block.lines[i] + "\n";
    ASSERT_TRUE(command.starts_with("$ snug ")) << command;
    command.replace(0, 6, "cd " + w.path("") + " && HOME=$PWD XDG_CACHE_HOME=$PWD/cache \"$SNUG\"");
    const Outcome o = shell(command);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.out, expected) << command;
    ++shown;
  }
  EXPECT_GE(shown, 1);
}

}  // namespace
}  // namespace snug::e2e
