// A machine that says how much of its memory is free: whatever budget is given, what a plan takes
// is held to that, to the byte. What /proc/meminfo says is BAD_WORLD_FREE, so nothing here depends
// on the machine the tests run on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

constexpr int64_t kMiB = 1 << 20, kKiB = 1 << 10;

// What the program does where so much is free.
class FreeMemory {
 public:
  explicit FreeMemory(int64_t bytes)
      : load_("LD_PRELOAD", kBadWorld), free_("BAD_WORLD_FREE", std::to_string(bytes)) {}

 private:
  Environment load_, free_;
};

// N of "`before`N B"; -1 without.
int64_t named(const std::string& message, const std::string& before) {
  const size_t at = message.find(before);
  return at == std::string::npos ? -1
                                 : std::strtoll(message.c_str() + at + before.size(), nullptr, 10);
}

// A command that plans and computes, on a model that is there.
struct Case {
  const char* name;
  std::vector<std::string> words;  // @: the workspace
  const char* memory;              // before a budget
  const char* advised;             // the same in advice
};

const Case kCases[] = {
    {"train", {"train"}, "memory=", "memory="},
    {"eval",
     {"eval", "--model", "@run/final", "--data", "@text.txt", "--max-length", "32", "--threads",
      "1"},
     "--memory=",
     "--memory "},
    {"evalStride",
     {"eval", "--model", "@run/final", "--data", "@text.txt", "--max-length", "32", "--stride",
      "16", "--max-samples", "3", "--threads", "1"},
     "--memory=",
     "--memory "},
    {"generate",
     {"generate", "--model", "@run/final", "--prompt", "the cat", "--temperature", "0",
      "--max-new-tokens", "8", "--threads", "1"},
     "--memory=",
     "--memory "},
    {"generateTogether",
     {"generate", "--model", "@run/final", "--prompts", "@prompts.txt", "--temperature", "0",
      "--max-new-tokens", "8", "--batch-size", "3", "--threads", "1"},
     "--memory=",
     "--memory "}};

class Free : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    NEEDS_PRELOAD();
    w_.trained("run", {"max_steps=2", "eval_fraction=0"});
    spill(w_.path("prompts.txt"), "the cat\nthe dog\na\n");
  }
  // With this budget, all of it where none is given; `name` is where a run goes.
  Outcome with(const std::string& budget, const std::string& name = "out") const {
    std::vector<std::string> words;
    for (std::string word : GetParam().words) {
      if (word[0] == '@') word = w_.path(word.substr(1));
      words.push_back(word);
    }
    // Of what the planner may choose, these change the order of sums.
    if (words[0] == "train")
      words = w_.train_arguments(
          name, {"max_steps=2", "memory=null", "per_device_train_batch_size=2", "head_rows=64"});
    if (!budget.empty()) words.push_back(GetParam().memory + budget);
    return run(words);
  }
  // What a good one comes to.
  std::string result(const Outcome& o, const std::string& name = "out") const {
    EXPECT_EQ(o.code, 0) << o.err;
    if (GetParam().words[0] == "train") return w_.curve(name);
    return o.out.substr(0, o.out.find(" tokens/s"));
  }
  void expect_nothing_written() const { EXPECT_FALSE(exists(w_.path("out"))); }
  Workspace w_;
};

TEST_P(Free, OfALargeBudgetWhatIsFreeCountsToTheByte) {
  const std::string want = result(with("1TiB", "wide"), "wide");
  int64_t needed = -1;
  {
    const FreeMemory little(kMiB);
    const Outcome refused = with("1TiB");
    EXPECT_EQ(refused.code, 3) << refused.err;
    needed = named(refused.err, "out_of_memory: expected ");
    expect_nothing_written();
  }
  ASSERT_GT(needed, kMiB);
  {
    const FreeMemory short_of(needed - kKiB);
    const Outcome refused = with("1TiB");
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_EQ(named(refused.err, "out_of_memory: expected "), needed);
    EXPECT_EQ(named(refused.err, "\n  found: "), needed - kKiB) << refused.err;
    for (const char* text : {" of free memory: ", "B of engine and ", " free now\n",
                             "\n  try:   to close other programs, or "})
      EXPECT_NE(refused.err.find(text), std::string::npos) << refused.err;
    expect_nothing_written();
  }
  const FreeMemory enough(needed);
  EXPECT_EQ(result(with("1TiB")), want);
}

// Without a budget it is what is free less a reserve, which is 256 MiB where that is 5 % or more.
TEST_P(Free, ABudgetThatIsNotSetIsWhatIsFreeLessTheReserve) {
  const std::string want = result(with("", "wide"), "wide");
  constexpr int64_t kReserve = 256 * kMiB;
  int64_t needed = -1;
  {
    const FreeMemory little(kReserve + kMiB);
    const Outcome refused = with("");
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_NE(
        refused.err.find("\n  found: memory of 1048576 B (1.00 MiB), which is what is free now "
                         "less a reserve of 256.00 MiB; "),
        std::string::npos)
        << refused.err;
    needed = named(refused.err, "memory of at least ");
    expect_nothing_written();
  }
  ASSERT_GT(needed, kMiB);
  // No budget is left at all, which is not the same as no limit.
  {
    const FreeMemory less(kReserve - kMiB);
    const Outcome refused = with("");
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_EQ(named(refused.err, "memory of at least "), needed);
    for (const std::string& text :
         {std::string("\n  found: 267386880 B (255.00 MiB) free now, and memory was not set, of "
                      "which 256.00 MiB are left to others; the smallest plan holds at its peak: "),
          fmt::format("\n  try:   {}{} (", GetParam().advised, needed)})
      EXPECT_NE(refused.err.find(text), std::string::npos) << refused.err;
    expect_nothing_written();
  }
  {
    const FreeMemory short_of(kReserve + needed - 4 * kKiB);
    const Outcome refused = with("");
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_EQ(named(refused.err, "memory of at least "), needed);
    expect_nothing_written();
  }
  const FreeMemory enough(kReserve + needed);
  EXPECT_EQ(result(with("")), want);
  // Asked once, for what there is in all and what of it is free: an answer that changes while the
  // command starts changes nothing.
  const Environment once("BAD_WORLD_FREE_READS", "2");
  EXPECT_EQ(result(with("", "once"), "once"), want);
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

INSTANTIATE_TEST_SUITE_P(Commands, Free, testing::ValuesIn(kCases),
                         [](const auto& c) { return std::string(c.param.name); });

// A word that little memory has no room for: a budget that was not given is not spoken of.
TEST(FreeMemory, TextIsHeldToWhatIsFree) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("run", {"max_steps=2", "eval_fraction=0"});
  spill(w.path("word.txt"), std::string(1 << 20, 'x'));
  const auto eval = [&](const std::vector<std::string>& more) {
    const FreeMemory none(0);
    return run(joined({"eval", "--model", w.path("run/final"), "--data", w.path("word.txt"),
                       "--max-length", "32", "--threads", "1"},
                      more));
  };
  const Outcome unset = eval({});
  EXPECT_EQ(unset.code, 2) << unset.err;
  EXPECT_NE(unset.err.find("expected words of at most 65536 bytes for what is free now less a "
                           "reserve\n"),
            std::string::npos)
      << unset.err;
  EXPECT_NE(unset.err.find(", or --memory "), std::string::npos) << unset.err;
  const Outcome set = eval({"--memory", "1"});
  EXPECT_NE(set.err.find("expected words of at most 65536 bytes for --memory 1\n"),
            std::string::npos)
      << set.err;
}

// How many texts are decoded together is left to what is free; a number that was asked for is not.
TEST(FreeMemory, GenerateDecodesFewerTogether) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("run", {"max_steps=2", "eval_fraction=0"});
  spill(w.path("prompts.txt"), "the cat\nthe dog\na\nthe\ndog\n");
  const auto generate = [&](const std::vector<std::string>& more) {
    return run(joined({"generate", "--model", w.path("run/final"), "--prompts",
                       w.path("prompts.txt"), "--temperature", "0", "--max-new-tokens", "8",
                       "--threads", "1", "--memory", "1TiB", "--json"},
                      more));
  };
  const Outcome wide = generate({});
  ASSERT_EQ(wide.code, 0) << wide.err;
  const auto needs = [&](const std::vector<std::string>& more) {
    const FreeMemory little(kMiB);
    const Outcome refused = generate(more);
    EXPECT_EQ(refused.code, 3) << refused.err;
    return named(refused.err, "out_of_memory: expected ");
  };
  const int64_t one = needs({}), five = needs({"--batch-size", "5"});
  EXPECT_EQ(one, needs({"--batch-size", "1"}));
  EXPECT_LT(one, five);
  const FreeMemory enough(one);
  const Outcome tight = generate({});
  EXPECT_EQ(tight.code, 0) << tight.err;
  EXPECT_EQ(tight.out, wide.out);
  EXPECT_EQ(generate({"--batch-size", "5"}).code, 3);
}

// What a run has planned is explained where less is free by now.
TEST(ExplainWhereLittleIsFree, SaysWhatTheRunHad) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  const std::vector<std::string> words = {"explain", "--run", w.path("run"), "--peak"};
  const Outcome before = run(words);
  ASSERT_EQ(before.code, 0) << before.err;
  const FreeMemory little(kMiB);
  const Outcome now = run(words);
  EXPECT_EQ(now.code, 0) << now.err;
  EXPECT_EQ(now.out, before.out);
}

}  // namespace
}  // namespace snug::e2e
