// While text becomes tokens the process stays within the budget, whatever the text is: what would
// not fit is refused by name, what is just below works.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

constexpr int64_t kBudget = 24 << 20;

struct Watched {
  Outcome outcome;
  int64_t peak = 0;  // RssAnon, looked at five thousand times a second
};

Watched watched(const std::vector<std::string>& arguments) {
  Watched w;
  Child child(arguments);
  std::atomic<bool> done{false};
  std::thread watch([&] {
    const std::string path = "/proc/" + std::to_string(child.pid()) + "/status";
    while (!done) {
      std::ifstream in(path);
      bool started = false;  // before that it is a copy of this process
      for (std::string word; in >> word;)
        if (word == "snug") {
          started = true;
        } else if (word == "RssAnon:" && started) {
          int64_t kib = 0;
          in >> kib;
          w.peak = std::max(w.peak, kib * 1024);
          break;
        }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  w.outcome = child.finish();
  done = true;
  watch.join();
  return w;
}

class Preparing : public testing::Test {
 protected:
  void SetUp() override {
    if (program_has_sanitizer()) GTEST_SKIP() << "a sanitizer's memory is most of the process";
  }
  Watched train(const std::string& file) const {
    return watched(w_.train_arguments(
        "run", {"train_data=" + w_.path(file), "memory=" + std::to_string(kBudget), "max_steps=1",
                "eval_fraction=0", "overwrite=true", "token_cache=none", "save_steps=0"}));
  }
  // Refused with `expected`, file and line; the number behind `expected`.
  int64_t refused(const std::string& file, const std::string& expected, const std::string& line) {
    const Watched w = train(file);
    EXPECT_EQ(w.outcome.code, 2) << w.outcome.err;
    const std::string before = "expected " + expected + " of at most ";
    const size_t at = w.outcome.err.find(before);
    EXPECT_NE(at, std::string::npos) << w.outcome.err;
    EXPECT_NE(w.outcome.err.find(w_.path(file) + line), std::string::npos) << w.outcome.err;
    EXPECT_NE(w.outcome.err.find(", or memory="), std::string::npos) << w.outcome.err;
    EXPECT_FALSE(exists(w_.path("run"))) << "a refused run leaves nothing";
    EXPECT_LE(w.peak, kBudget);
    if (at == std::string::npos) return 0;
    return std::strtoll(w.outcome.err.c_str() + at + before.size(), nullptr, 10);
  }
  void accepted(const std::string& file) const {
    const Watched w = train(file);
    EXPECT_EQ(w.outcome.code, 0) << w.outcome.err;
    EXPECT_GT(w.peak, 0);
    EXPECT_LE(w.peak, kBudget);
  }
  static std::string text(int64_t bytes) {
    static const std::string all = [] {
      const std::string block = sentences(2000, 3);
      std::string out;
      while (out.size() < kLong) out += block;
      for (char& c : out)
        if (c == '\n') c = ' ';
      return out;
    }();
    return all.substr(0, static_cast<size_t>(bytes));
  }
  // The bound moves with the pages that the process has when it asks: some of 4 KiB.
  static constexpr int64_t kNear = 64 << 10;
  static constexpr int64_t kLong = 48'000'000;
  Workspace w_;
};

TEST_F(Preparing, ALongLine) {
  const auto record = [&](int64_t bytes) {
    spill(w_.path("a.jsonl"), "{\"text\":\"the cat\"}\n{\"text\":\"" + text(bytes) + "\"}\n");
  };
  record(kLong);
  const int64_t most = refused("a.jsonl", "lines", ":2");
  ASSERT_GT(most, 1 << 20);
  record(most - kNear);
  accepted("a.jsonl");
}

TEST_F(Preparing, ALongField) {
  const auto record = [&](int64_t bytes) {
    spill(w_.path("a.csv"), "id,text\n1,the cat\n2,\"" + text(bytes) + "\"\n");
  };
  record(kLong);
  const int64_t most = refused("a.csv", "records", ":3");
  ASSERT_GT(most, 1 << 20);
  record(most - kNear);
  accepted("a.csv");
}

// Of a word, one letter as often as it takes, all merges wait at once.
TEST_F(Preparing, ALongWord) {
  const auto word = [&](int64_t bytes) {
    spill(w_.path("a.txt"),
          text(4000) + "\n" + std::string(static_cast<size_t>(bytes), 'a') + "\n" + text(4000));
  };
  word(3'000'000);
  const int64_t most = refused("a.txt", "words", ":");
  ASSERT_GT(most, 32 << 10);
  word(most - 1024);
  accepted("a.txt");
}

// A tree of such a record takes twenty times its bytes.
TEST_F(Preparing, ARecordOfManyValues) {
  std::string record = "{\"text\":\"" + text(4000) + "\",\"x\":[[]";
  for (int i = 0; i < 300'000; ++i) record += ",[]";
  spill(w_.path("a.jsonl"), record + "]}\n");
  accepted("a.jsonl");
}

}  // namespace
}  // namespace snug::e2e
