// What a person at a terminal meets: lines that fit it, signals that ask for a checkpoint, words for
// sizes and places, examples that run.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "tests/tools/e2e/encoders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// `snug arguments...` on a terminal so many columns wide; all that it wrote.
std::string on_terminal(std::vector<std::string> arguments, int columns) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 24;
  arguments.insert(arguments.begin(), program_under_test());
  std::vector<char*> words;
  for (std::string& word : arguments) words.push_back(word.data());
  words.push_back(nullptr);
  int master = -1;
  const pid_t pid = forkpty(&master, nullptr, nullptr, &size);
  if (pid == 0) {
    execv(words[0], words.data());
    _exit(127);
  }
  std::string out;
  char piece[4096];
  for (;;) {
    const ssize_t n = read(master, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;  // EIO: the child has closed it
    out.append(piece, static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(master);
  EXPECT_EQ(status, 0) << out;
  return out;
}

// The live lines: what stands between a return that clears the line and the next one.
std::vector<std::string> live_lines(const std::string& out) {
  const std::string mark = "\r\033[K  step ";
  std::vector<std::string> lines;
  for (size_t at = out.find(mark); at != std::string::npos; at = out.find(mark, at + 1)) {
    const size_t begin = at + 4, end = out.find_first_of("\r\n", begin);
    lines.push_back(out.substr(begin, end - begin));
  }
  return lines;
}

TEST(Terminal, TheLiveLineFitsAndPlainOnesAreAskedFor) {
  const Workspace w;
  for (const char* name : {"CI", "NO_COLOR"}) unsetenv(name);
  const auto train = [&](const char* name) {
    return w.train_arguments(name, {"logging_steps=6", "overwrite=true"});
  };
  {
    const Environment term("TERM", "xterm");
    for (const int columns : {40, 20, 120}) {
      const std::vector<std::string> lines = live_lines(on_terminal(train("run"), columns));
      EXPECT_GE(lines.size(), 10u) << columns;
      for (const std::string& line : lines)
        EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
    }
    // Of what steps and max_time leave the lesser is left: of twelve small steps less than an hour.
    for (const std::string& line : live_lines(on_terminal(
             w.train_arguments("timed", {"logging_steps=6", "max_time=1000000"}), 120))) {
      const size_t left = line.find("  left ");
      ASSERT_NE(left, std::string::npos) << line;
      EXPECT_FALSE(has(line.substr(left), "h ")) << line;
    }
    // A bar is as full as the number behind it: of a small text far from full.
    const std::string trained = on_terminal({"tokenizer", "train", "--vocab-size", "5000",
                                             "--output", w.path("other.json"), w.path("text.txt")},
                                            120);
    int bars = 0;
    for (size_t at = trained.find('['); at != std::string::npos; at = trained.find('[', at + 1)) {
      int64_t done = 0, wanted = 0;
      const size_t end = trained.find(']', at);
      if (end != at + 31 ||
          std::sscanf(trained.c_str() + end, "] %ld of %ld tokens", &done, &wanted) != 2)
        continue;
      const auto full = std::count(trained.begin() + static_cast<int64_t>(at),
                                   trained.begin() + static_cast<int64_t>(end), '#');
      EXPECT_EQ(full, 30 * done / wanted) << done;
      ++bars;
    }
    EXPECT_GT(bars, 0) << trained;
    // What is said at the end stands in the bar's place.
    const size_t said = trained.find("text: ");
    ASSERT_NE(said, std::string::npos) << trained;
    EXPECT_TRUE(trained.substr(0, said).ends_with("\r\033[K")) << trained;
    const Environment plain("NO_COLOR", "1");
    EXPECT_FALSE(has(on_terminal(train("run"), 80), "\033["));
  }
  const Environment dumb("TERM", "dumb");
  EXPECT_FALSE(has(on_terminal(train("run"), 80), "\033["));
}

// SIGUSR1 leaves a checkpoint and the run goes on, with the bits of one that got none.
TEST(Terminal, ASignalAsksForACheckpoint) {
  const Workspace w;
  w.trained("whole", {"max_steps=40"});
  for (const char* ranks : {"1", "2"}) {
    const std::string name = std::string("asked") + ranks;
    Child child(w.train_arguments(name, {"max_steps=40", std::string("ranks=") + ranks}));
    ASSERT_TRUE(child.read_until("step      5/40"));
    child.send(SIGUSR1);
    const Outcome o = child.finish();
    ASSERT_EQ(o.code, 0) << o.err;
    const std::vector<int> steps = complete_checkpoints(w, name);
    ASSERT_EQ(steps.size(), 2u) << o.out;
    EXPECT_GE(steps[0], 5);
    EXPECT_LT(steps[0], 12) << "the child cannot run ahead of the reader";
    EXPECT_EQ(steps[1], 40);
    if (*ranks == '1') {
      EXPECT_EQ(w.curve("whole"), w.curve(name));
    }
    const Outcome back = run({"train", w.path(name + "/checkpoint-" + std::to_string(steps[0]))});
    EXPECT_EQ(back.code, 0) << back.err;
  }
}

TEST(Terminal, SizesPlacesAndStandardInput) {
  const Workspace w;
  EXPECT_EQ(w.plan({"memory=64MB"})["budget_bytes"], 64'000'000);
  EXPECT_EQ(w.plan({"memory=64M"})["budget_bytes"], 64 << 20);
  EXPECT_EQ(w.plan({"memory=1G"})["budget_bytes"], 1 << 30);
  {
    const Environment home("HOME", w.path(""));
    const Outcome o =
        run({"train", "--config", "-", "max_steps=2"},
            "model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 32}\n"
            "tokenizer: ~/tok.json\ntrain_data: ~/text.txt\noutput_dir: ~/run\n"
            "max_length: 32\nmemory: 64MiB\n");
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(exists(w.path("run/final")));
    // Of a list of keys that is wrong the place is said.
    const Outcome bad = run({"train", "--config", "-"}, "seed: x\n");
    EXPECT_EQ(bad.code, 2);
    EXPECT_TRUE(has(bad.err, "(standard input:1)")) << bad.err;
    const Outcome ranks = run({"train", "--config", "-"}, "ranks: 2\n");
    EXPECT_EQ(ranks.code, 2);
    EXPECT_TRUE(has(ranks.err, "--config FILE")) << ranks.err;
  }
  const Environment threads("OMP_NUM_THREADS", "3");
  const Outcome said = run({"plan", "model=gpt2", "memory=4GiB"});
  EXPECT_TRUE(has(said.err, "OMP_NUM_THREADS=3")) << said.err;
  EXPECT_TRUE(has(said.err, "threads=3 does")) << said.err;
  EXPECT_FALSE(has(run({"plan", "model=gpt2", "memory=4GiB", "threads=3"}).err, "OMP_NUM"));
}

// Lines that are longer than the terminal though their words are not.
std::vector<std::string> too_long(const std::string& out, size_t columns) {
  std::vector<std::string> lines;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) {
    size_t width = 0, longest = 0, word = 0;
    for (const char c : line) {
      const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      width += begins;
      word = c == ' ' ? 0 : word + begins;
      longest = std::max(longest, word);
    }
    if (width > columns && longest + 14 < columns) lines.push_back(line);
  }
  return lines;
}

TEST(Terminal, HelpAndTablesFitNarrowOnes) {
  const Workspace w;
  const Environment columns("COLUMNS", "40");
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"train", "--help"},
      {"plan", "--help"},
      {"data", "preview", "--help"},
      {"plan", "model=gpt2", "memory=8GiB", "max_length=256", "global_batch_size=2"},
      {"plan", "model=gpt2", "max_length=256", "global_batch_size=2", "--sweep", "2..4GiB/3"}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome o = run(command);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(too_long(o.out, 40), std::vector<std::string>()) << command[0];
  }
  // A command of an example is one that a shell takes, over several lines.
  const std::string help = run({"train", "--help"}).out;
  const size_t at = help.find("  snug train model=gpt2"),
               end = help.find("\n  snug train run1", at);
  ASSERT_NE(end, std::string::npos) << help;
  const Outcome words = shell("set -- " + help.substr(at + 2, end - at - 2) + "; echo $#");
  EXPECT_EQ(words.out, "8\n") << help.substr(at, end - at);
}

TEST(Terminal, HelpHasAnIndex) {
  const Outcome o = run({"train", "--help"});
  EXPECT_EQ(o.code, 0);
  // Whole sentences, also behind a semicolon or a colon.
  EXPECT_TRUE(has(o.out, "files, folders or globs: text, .jsonl")) << o.out;
  EXPECT_TRUE(has(o.out, "ten that most runs set"));
  EXPECT_TRUE(has(o.out, "index of the sections"));
  EXPECT_TRUE(has(o.out, "--example"));
}

// Every example runs as it is printed, where the files it names are, with a few steps of a small
// model and in less memory.
TEST(Terminal, ExamplesRun) {
  const Workspace w;
  namespace fs = std::filesystem;
  fs::copy_file(w.path("text.txt"), w.path("corpus.txt"));
  make_encoder_data(w);
  ASSERT_EQ(train_encoder(w, "classes", {"max_steps=1"}).code, 0);
  fs::copy(w.path("classes/final"), w.path("bert-folder"), fs::copy_options::recursive);
  spill(
      w.path("chats.jsonl"),
      R"({"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": "a"}]})"
      "\n");
  spill(w.path("pairs.jsonl"), R"({"prompt": "the", "chosen": " cat", "rejected": " dog"})"
                               "\n");
  const std::vector<std::pair<const char*, std::vector<std::string>>> rows = {
      {"pretrain", {"max_steps=3", "model.n_embd=48", "model.n_layer=1"}},
      {"fine-tune", {"max_steps=3"}},
      {"lora", {"max_steps=3"}},
      {"ranks", {"max_steps=3"}},
      {"classify", {"max_steps=3", "max_length=64"}},
      {"chat", {"max_steps=3", "max_length=64"}},
      {"dpo", {"max_steps=3", "max_length=64"}}};
  for (const auto& [name, more] : rows) {
    if (std::string_view(name) == "chat") {
      fs::copy(w.path("pretrained/final"), w.path("chat-folder"), fs::copy_options::recursive);
      spill(w.path("chat-folder/chat_template.jinja"),
            "{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% "
            "generation %}"
            "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %} {% "
            "endfor %}");
    }
    const Outcome text = run({"train", "--example", name});
    ASSERT_EQ(text.code, 0) << text.err;
    spill(w.path(std::string(name) + ".yaml"), text.out);
    std::string command = "cd '" + w.path("") + "' && \"$SNUG\" train --config " + name + ".yaml";
    for (const std::string& word : more) command += " " + word;
    const Outcome o = shell(command);
    EXPECT_EQ(o.code, 0) << name << "\n" << o.err;
    EXPECT_FALSE(has(o.err, "Note:")) << name << "\n" << o.err;
  }
  const Outcome none = run({"train", "--example", "pretrian"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(has(none.err, "did you mean pretrain?")) << none.err;
}

}  // namespace
}  // namespace snug::e2e
