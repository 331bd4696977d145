// Argument parsing, dispatch to subcommands, exit codes, and the tokenizer command from end to end.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "engine/core/error.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/cli/dispatch.h"
#include "tools/cli/output_file.h"
#include "tools/cli/terminal.h"
#include "tools/cli/version.h"
#include "tools/commands.h"

namespace snug {
namespace {

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

struct Parsed {
  std::string name = "x";
  int64_t count = 3, size = 0;
  double rate = 0.5;
  bool loud = false, again = true;
  std::vector<std::string> many, files;

  bool parse(const std::vector<std::string>& arguments, std::string* help = nullptr) {
    ArgumentParser parser("test", "A test.");
    parser.option("--name", name, "NAME", "a name")
        .option("--count", count, "N", "a number")
        .option("--rate", rate, "R", "a rate")
        .bytes("--memory", size, "a size")
        .options("--token", many, "T", "a token")
        .flag("--loud", loud, "a flag")
        .positionals("FILE", files, "files")
        .required()
        .example("snug test a.txt");
    if (help) *help = parser.help();
    const bool go_on = parser.parse(arguments);
    again = parser.given("--count");
    return go_on;
  }
};

TEST(CliArguments, AreRead) {
  Parsed p;
  EXPECT_TRUE(p.parse({"--name", "a b", "f1", "--count=7", "--rate", "5e-5", "--memory", "2KiB",
                       "--token", "t1", "--token", "-t2=", "--loud", "f2", "--", "--f3"}));
  EXPECT_EQ(p.name, "a b");
  EXPECT_EQ(p.count, 7);
  EXPECT_EQ(p.rate, 5e-5);
  EXPECT_EQ(p.size, 2048);
  EXPECT_TRUE(p.loud);
  EXPECT_TRUE(p.again);
  EXPECT_EQ(p.files, (std::vector<std::string>{"f1", "f2", "--f3"}));
  Parsed defaults;
  EXPECT_TRUE(defaults.parse({"f"}));
  EXPECT_EQ(defaults.name, "x");
  EXPECT_EQ(defaults.count, 3);
  EXPECT_FALSE(defaults.loud);
  EXPECT_FALSE(defaults.again);
  Parsed negative;
  EXPECT_TRUE(negative.parse({"f", "--count", "-7", "--rate", "-0.5", "--name", "- item"}));
  EXPECT_EQ(negative.count, -7);
  EXPECT_EQ(negative.rate, -0.5);
  EXPECT_EQ(negative.name, "- item");
}

TEST(CliArguments, ErrorsSayWhatToDo) {
  const auto message = [](const std::vector<std::string>& arguments) {
    return message_of([&] { Parsed().parse(arguments); });
  };
  EXPECT_EQ(message({"f", "--cuont", "3"}),
            "usage: expected the flags of snug test\n  found: \"--cuont\"\n"
            "  try:   did you mean --count?");
  EXPECT_EQ(message({"f", "--xyzzy=3"}),
            "usage: expected the flags of snug test\n  found: \"--xyzzy=3\"\n"
            "  try:   snug test --help lists the flags");
  EXPECT_EQ(message({"--loud"}),
            "usage: expected FILE for snug test\n  found: none\n  try:   snug test a.txt");
  EXPECT_EQ(message({"f", "--count", "ten"}),
            "usage: expected an integer for --count\n  found: \"ten\" (command line)\n"
            "  try:   snug test --help");
  EXPECT_EQ(message({"f", "--name", "a", "--name", "b"}),
            "usage: expected the arguments of snug test\n"
            "  found: --name: At Most 1 required but received 2\n  try:   snug test --help");
  EXPECT_EQ(message({"f", "--name"}),
            "usage: expected the arguments of snug test\n"
            "  found: --name: 1 required TEXT missing\n  try:   snug test --help");
  EXPECT_EQ(message({"f", "--name", ""}),
            "usage: expected a value for --name\n  found: an empty one\n"
            "  try:   --name NAME; snug test --help says what it is for");
  // Nor is the word that follows the value.
  for (const std::vector<std::string>& words : {std::vector<std::string>{"f", "--name="},
                                                {"--name=", "f"},
                                                {"--count", "1", "--name=", "f"}})
    EXPECT_NE(message(words).find("  found: an empty one\n"), std::string::npos) << message(words);
  EXPECT_NE(message({"--count=", "7"}).find("an integer for --count"), std::string::npos)
      << message({"--count=", "7"});
  Parsed listed;
  EXPECT_TRUE(listed.parse({"--token=", "f", "--name", "--count=", "--", "--name="}));
  EXPECT_EQ(listed.many, std::vector<std::string>{""}) << "which the command itself refuses";
  EXPECT_EQ(listed.files, (std::vector<std::string>{"f", "--name="}));
  EXPECT_EQ(listed.name, "--count=") << "a value, whatever it looks like";
  EXPECT_NE(message({"f", "--memory", "4GX"}).find("unknown unit"), std::string::npos);
  for (const char* value : {"false", "true", "0", "x"})
    EXPECT_EQ(
        message({"f", std::string("--loud=") + value}),
        fmt::format("usage: expected --loud without a value, since it is a flag of snug test\n"
                    "  found: \"--loud={}\"\n  try:   --loud alone, or leave it out",
                    value));
}

// As the key: a number from 1, or auto, which is what leaving it out means.
TEST(CliArguments, Threads) {
  int64_t threads = 0;
  const auto read = [&](const std::vector<std::string>& arguments) {
    ArgumentParser parser("test", "A test.");
    parser.threads(threads, "threads", 256);
    parser.parse(arguments);
    return threads;
  };
  EXPECT_EQ(read({}), 0);
  EXPECT_EQ(read({"--threads", "1"}), 1);
  EXPECT_EQ(read({"--threads=256"}), 256);
  EXPECT_EQ(read({"--threads", "auto"}), 0);
  for (const char* text : {"0", "-1", "257"})
    EXPECT_EQ(message_of([&] {
                read({"--threads", text});
              }),
              fmt::format("usage: expected --threads of at least 1 and at most 256\n"
                          "  found: \"{}\" (command line)\n  try:   --threads 2",
                          text));
  EXPECT_EQ(message_of([&] {
              read({"--threads", "all"});
            }),
            "usage: expected an integer for --threads\n  found: \"all\" (command line)\n"
            "  try:   --threads 2");
  threads = 0;
  ArgumentParser parser("test", "A test.");
  parser.threads(threads, "threads");
  EXPECT_NE(parser.help().find("--threads N               threads (default auto)"),
            std::string::npos)
      << parser.help();
  threads = 3;
  EXPECT_NE(parser.help().find("(default 3)"), std::string::npos);
}

TEST(CliArguments, HelpIsComplete) {
  Parsed p;
  std::string help;
  testing::internal::CaptureStdout();
  EXPECT_FALSE(p.parse({"--help"}, &help));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), help);
  for (const char* text :
       {"A test.", "usage: snug test [flags] FILE...", "--name NAME", "--count N", "(default 3)",
        "--memory SIZE", "--loud", "  snug test a.txt", "--help"})
    EXPECT_NE(help.find(text), std::string::npos) << text;
}

// A line of just the columns stays, one more is broken at the last space within them; words are never.
TEST(CliTerminal, LinesAreBrokenWhereTheyDoNotFit) {
  for (int columns = 22; columns <= 40; ++columns) {
    const auto n = static_cast<size_t>(columns);
    const std::string just = std::string(n - 5, 'a') + " bbbb";
    EXPECT_EQ(fit_columns(just + "\n", columns), just + "\n") << columns;
    EXPECT_EQ(fit_columns(just + "b\n", columns), std::string(n - 5, 'a') + "\n  bbbbb\n")
        << columns;
    EXPECT_EQ(fit_columns(just, 0), just);
    const std::string word(n + 7, 'w');
    EXPECT_EQ(fit_columns(word + "\n", columns), word + "\n") << "a word stays whole";
    EXPECT_EQ(fit_columns(std::string(n + 3, '-') + "\n", columns), std::string(n, '-') + "\n");
    // Characters count, not bytes.
    std::string wide;
    for (size_t i = 0; i < n - 5; ++i) wide += "\u00e9";
    EXPECT_EQ(fit_columns(wide + " bbbb\n", columns), wide + " bbbb\n");
    EXPECT_EQ(fit_columns(wide + " bbbbb\n", columns), wide + "\n  bbbbb\n");
  }
}

// COLUMNS counts from 20 on and as a whole number; else it is as if it were not there.
TEST(CliTerminal, ColumnsHaveALeast) {
  const char* const before = std::getenv("COLUMNS");
  const std::string kept = before ? before : "";
  unsetenv("COLUMNS");
  const int own = terminal_columns();
  for (const auto& [said, columns] : {std::pair("20", 20),
                                      {"21", 21},
                                      {"132", 132},
                                      {"19", own},
                                      {"0", own},
                                      {"-40", own},
                                      {"40x", own},
                                      {" 40", own},
                                      {"", own},
                                      {"99999999999", own}}) {
    setenv("COLUMNS", said, 1);
    EXPECT_EQ(terminal_columns(), columns) << said;
  }
  if (before)
    setenv("COLUMNS", kept.c_str(), 1);
  else
    unsetenv("COLUMNS");
}

TEST(CliConfig, ReadsFileFlagsAndKeys) {
  const std::string path = testing::TempDir() + fmt::format("/snug_cli_{}.yaml", getpid());
  std::ofstream(path) << "seed: 5\nmax_steps: 3\n";
  bool fast = false;
  const auto parse = [&](const std::vector<std::string>& arguments) {
    return parse_config_arguments("train", "Trains.", {"snug train --config run.yaml"}, arguments,
                                  [&](ArgumentParser& p) { p.flag("--fast", fast, "hurry"); });
  };
  const ConfigArguments a = parse({"--config", path, "max_steps=9", "--fast"});
  EXPECT_TRUE(a.proceed && fast);
  EXPECT_EQ(a.config.seed, 5);
  EXPECT_EQ(a.config.max_steps, 9);
  EXPECT_EQ(a.config_path, path);
  EXPECT_EQ(a.overrides, std::vector<std::string>{"max_steps=9"});
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse({"--print-config", "seed=6"}).proceed);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("\nseed: 6\n"), std::string::npos);
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse({"--help"}).proceed);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("global_batch_size"), std::string::npos);
  EXPECT_EQ(message_of([&] { parse({"--memory=8GiB"}); }),
            "usage: expected the flags of snug train\n  found: \"--memory=8GiB\"\n"
            "  try:   keys of the configuration have no dashes: memory=...");
  EXPECT_NE(message_of([&] {
              parse({"--max-steps", "3"});
            }).find("have no dashes: max_steps=..."),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              parse({"--confg", path});
            }).find("did you mean --config?"),
            std::string::npos);
  EXPECT_NE(message_of([&] { parse({"stray"}); }).find("expected key=value"), std::string::npos);
  std::filesystem::remove(path);
}

int succeed(const std::vector<std::string>& arguments) {
  return arguments == std::vector<std::string>{"a", "--b"} ? 75 : 0;
}
int fail_usage(const std::vector<std::string>&) {
  fail(ErrorCode::usage, "A", "B", "C");
}
int fail_budget(const std::vector<std::string>&) {
  fail(ErrorCode::out_of_memory, "A", "B", "C");
}
int fail_device(const std::vector<std::string>&) {
  fail(ErrorCode::device, "A", "B", "C");
}
int fail_alloc(const std::vector<std::string>&) {
  throw std::bad_alloc();
}
int fail_other(const std::vector<std::string>&) {
  throw std::runtime_error("odd");
}
int fail_evil(const std::vector<std::string>&) {
  fail(ErrorCode::usage, "A", "\x1b[2J\xe9 \xc2\x9b", "C");
}

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome run(const std::vector<std::string>& arguments) {
  const CommandGroup group = {"snug",
                              "a test",
                              {{"train", "trains", succeed},
                               {"usage", "", fail_usage},
                               {"budget", "", fail_budget},
                               {"device", "", fail_device},
                               {"alloc", "", fail_alloc},
                               {"other", "", fail_other},
                               {"evil", "", fail_evil}},
                              "the end\n",
                              version_text,
                              {"doctor"}};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_main(group, arguments);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CliDispatch, ExitCodesAndMessages) {
  EXPECT_EQ(run({"train", "a", "--b"}).code, 75);
  EXPECT_EQ(run({"train"}).code, 0);
  EXPECT_EQ(run({"usage"}).code, 2);
  EXPECT_EQ(run({"usage"}).err, "usage: expected A\n  found: B\n  try:   C\n");
  EXPECT_EQ(run({"budget"}).code, 3);
  EXPECT_EQ(run({"device"}).code, 1);
  EXPECT_EQ(run({"alloc"}).code, 1);
  EXPECT_NE(run({"alloc"}).err.find("out of memory"), std::string::npos);
  EXPECT_EQ(run({"other"}).code, 1);
  EXPECT_EQ(run({"other"}).err,
            "internal: expected no exception but those of Snug\n  found: odd\n"
            "  try:   this is a defect in Snug: please report it with the command you ran\n");
  // Names of any origin must not steer the terminal.
  EXPECT_EQ(run({"evil"}).err,
            "usage: expected A\n  found: \\x1b[2J\xef\xbf\xbd \\u009b\n  try:   C\n");
  const Outcome unknown = run({"trian"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_EQ(
      unknown.err,
      "usage: expected a command of snug\n  found: \"trian\"\n  try:   did you mean train?\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"doctor"}, {"doctor", "--all"}, {"help", "doctor"}}) {
    const Outcome missing = run(words);
    EXPECT_EQ(missing.code, 2);
    EXPECT_EQ(missing.err,
              "usage: expected a command of snug\n  found: \"doctor\", which is not built in this "
              "version\n  try:   snug --help lists those that are\n");
  }
  EXPECT_NE(run({"xyzzyxyzzy"}).err.find("snug --help lists them"), std::string::npos);
  EXPECT_NE(run({"--versoin"}).err.find("did you mean --version?"), std::string::npos);
}

TEST(CliDispatch, HelpAndVersion) {
  EXPECT_EQ(run({}).code, 2);
  EXPECT_NE(run({}).err.find("usage: snug COMMAND"), std::string::npos);
  for (const char* word : {"--help", "-h", "help"}) {
    const Outcome help = run({word});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    for (const char* text : {"  train        trains\n", "--version", "the end\n"})
      EXPECT_NE(help.out.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(run({"help", "usage"}).code, 2);  // the command got --help
  EXPECT_EQ(run({"help", "trian"}).code, 2);
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  for (const char* text : {"snug 0.", "compiler: ", "cpu: AVX2", "threads: ", "cuda: "})
    EXPECT_NE(version.out.find(text), std::string::npos) << text;
}

// The tokenizer command, in a folder of its own.
class CliTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + fmt::format("/snug_cli_tokenizer_{}", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    text_ = "the cat sat on the mat\n\n\tthe hat \xc3\xa9t\xc3\xa9 <|endoftext|> end\n";
    for (int i = 0; i < 5; ++i) corpus_ += text_;
    write("corpus.txt", corpus_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  // Standard output of the command with `input` on standard input.
  std::string run_with(const std::string& input, const std::vector<std::string>& arguments) const {
    write("input", input);
    EXPECT_NE(std::freopen(path("input").c_str(), "rb", stdin), nullptr);
    testing::internal::CaptureStdout();
    int code = -1;
    try {
      code = tokenizer_command(arguments);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    EXPECT_EQ(code, 0);
    return testing::internal::GetCapturedStdout();
  }

  std::string folder_, text_, corpus_;
};

TEST_F(CliTokenizer, TrainsEncodesAndDecodes) {
  const std::string log = run_with(
      "", {"train", "--vocab-size", "280", "--output", path("tok.json"), path("corpus.txt")});
  EXPECT_NE(log.find("in 1 file, 1 document"), std::string::npos) << log;
  EXPECT_NE(log.find("280 tokens, 23 merges"), std::string::npos) << log;
  const std::vector<std::string> with = {"--tokenizer", path("tok.json")};
  const auto tokenizer = [&](std::string command, const std::string& input,
                             std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {std::move(command), with[0], with[1]};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_with(input, arguments);
  };
  const std::string ids = tokenizer("encode", text_);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), '\n'), 1);
  EXPECT_EQ(tokenizer("decode", ids), text_);
  std::string commas = "[" + ids.substr(0, ids.size() - 1) + "]";
  std::replace(commas.begin(), commas.end(), ' ', ',');
  EXPECT_EQ(tokenizer("decode", commas), text_);
  EXPECT_EQ(tokenizer("decode", "0"), "<|endoftext|>");
  EXPECT_EQ(tokenizer("decode", "0", {"--skip-special"}), "");
  EXPECT_EQ(tokenizer("encode", ""), "\n");
  // Bytes are 1..256 in the order of their characters: '!' is 1.
  EXPECT_EQ(tokenizer("encode", "!\n\"#\n\n!", {"--lines"}), "1\n2 3\n\n1\n");
  std::string big;
  for (int i = 0; i < 4000; ++i) big += text_;
  EXPECT_EQ(tokenizer("decode", tokenizer("encode", big)), big);
}

TEST_F(CliTokenizer, WritesAFolderAndNotesASmallText) {
  write("more.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n");
  const std::string log =
      run_with("", {"train", "--vocab-size", "5000", "--output", path("tok"), "--special-token",
                    "<|a|>", "--special-token", "<|b|>", path("corpus.txt"), path("more.jsonl")});
  EXPECT_NE(log.find("in 2 files, 3 documents"), std::string::npos) << log;
  EXPECT_NE(log.find("note: the text had pairs for "), std::string::npos) << log;
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"})
    EXPECT_TRUE(std::filesystem::exists(path("tok") + "/" + name)) << name;
  EXPECT_EQ(run_with("<|b|>!", {"encode", "--tokenizer", path("tok")}), "1 2\n");
}

TEST_F(CliTokenizer, WordPieceAndThreads) {
  const std::vector<std::string> train = {"train",    "--type",   "wordpiece", "--vocab-size",
                                          "60",       "--output", path("wp"),  path("corpus.txt"),
                                          "--threads"};
  const auto with = [&](const char* threads) {
    auto arguments = train;
    arguments.emplace_back(threads);
    return run_with("", arguments);
  };
  EXPECT_NE(with("3").find("tokenizer: "), std::string::npos);
  std::ifstream file(path("wp") + "/vocab.txt");
  std::string first;
  std::getline(file, first);
  EXPECT_EQ(first, "[PAD]");
  const std::vector<std::string> encode = {"encode",    "--tokenizer", path("wp"), "--lines",
                                           "--special", "--threads",   "2"};
  EXPECT_EQ(run_with("\n\n", encode), "2 3\n2 3\n");
  auto open = encode;
  open.back() = "auto";
  EXPECT_EQ(run_with("\n\n", open), "2 3\n2 3\n");
  const auto message = [&](std::vector<std::string> arguments) {
    return message_of([&] { run_with("", arguments); });
  };
  auto wrong = train;
  wrong[2] = "unigram";
  wrong.emplace_back("2");
  EXPECT_NE(message(wrong).find("expected --type bpe or wordpiece\n  found: --type unigram"),
            std::string::npos);
  wrong[2] = "bpe";
  wrong.emplace_back("--cased");
  EXPECT_NE(message(wrong).find("expected --cased with --type wordpiece only"), std::string::npos);
  auto limited = wrong;
  limited.back() = "--limit-alphabet";
  limited.emplace_back("100");
  EXPECT_NE(message(limited).find("expected --limit-alphabet with --type wordpiece only"),
            std::string::npos);
  wrong[2] = "wordpiece";
  wrong[9] = "0";
  EXPECT_NE(message(wrong).find("expected --threads of at least 1 and at most 256\n  found: \"0\""),
            std::string::npos);
  auto alone = encode;
  alone.erase(alone.begin() + 3);
  EXPECT_NE(message(alone).find("expected --threads with --lines"), std::string::npos);
}

TEST_F(CliTokenizer, Errors) {
  run_with("", {"train", "--vocab-size", "260", "--output", path("tok.json"), path("corpus.txt")});
  const auto message = [&](const std::vector<std::string>& arguments, const std::string& input) {
    return message_of([&] { run_with(input, arguments); });
  };
  EXPECT_EQ(message({"decode", "--tokenizer", path("tok.json")}, "1 2\n 260"),
            "data: expected ids from 0 to 259\n  found: \"260\" (standard input:2)\n"
            "  try:   check that the ids come from this tokenizer");
  for (const char* ids : {"-1", "x", "1;2", "99999999999999", "1.0", "\xff"})
    EXPECT_NE(message({"decode", "--tokenizer", path("tok.json")}, ids).find("ids from 0 to 259"),
              std::string::npos);
  EXPECT_NE(message({"encode", "--tokenizer", path("none.json")}, "").find("none.json"),
            std::string::npos);
  EXPECT_NE(message({"train", "--output", path("x.json"), path("corpus.txt")}, "")
                .find("expected --vocab-size for snug tokenizer train"),
            std::string::npos);
  EXPECT_NE(message({"train", "--vocab-size", "300", "--output", path("x.json")}, "")
                .find("expected FILE for snug tokenizer train"),
            std::string::npos);
  EXPECT_NE(
      message({"train", "--vocab-size", "300", "--output", path("x.json"), path("no.txt")}, "")
          .find("no.txt"),
      std::string::npos);
  EXPECT_NE(message({"train", "--vocab-size", "300", "--min-frequency", "-1", "--output",
                     path("x.json"), path("corpus.txt")},
                    "")
                .find("--min-frequency of at least 0"),
            std::string::npos);
  EXPECT_NE(message({"train", "--vocab-size", "300", "--output", "", path("corpus.txt")}, "")
                .find("a value for --output"),
            std::string::npos);
  EXPECT_NE(message({"encod"}, "").find("did you mean encode?"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("x.json")));
}

// By whatever path either is named: relative, through a folder and back, by a link.
TEST(OutputFile, IsNoInputByAnyOfItsNames) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("snug-output-" + std::to_string(getpid()));
  fs::create_directories(folder / "sub");
  std::ofstream(folder / "a.txt") << "text";
  fs::create_symlink(folder / "a.txt", folder / "link.txt");
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  const std::string whole = (folder / "a.txt").string();
  for (const std::string& output : {std::string("a.txt"), std::string("sub/../a.txt"), whole})
    for (const std::string& source :
         {std::string("a.txt"), std::string("./a.txt"), std::string("link.txt"), whole,
          std::string("."), folder.string(), std::string("*.txt")}) {
      bool refused = false;
      try {
        check_output_is_no_input(output, "--output", {source}, "");
      } catch (const Error& error) {
        refused = error.expected().find("another file than what is read") != std::string::npos;
      }
      EXPECT_TRUE(refused) << output << " of " << source;
    }
  EXPECT_NO_THROW(check_output_is_no_input("b.txt", "--output", {"a.txt", "."}, ""));
  fs::current_path(before);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace snug
