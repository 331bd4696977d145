// Budgets that the operating system enforces: every run of a sweep has RLIMIT_DATA at what its plan
// declares, engine, host and runtime bytes together.
//
// RLIMIT_DATA counts private writable mappings, touched or not: data of the program and its
// libraries, heap, arenas, and the stacks of threads at their full size, here 1 MiB. The declared
// runtime bytes are resident ones with room, so a page less than the whole is nothing sharp; it is
// sharp at the arena's reservation, where the limit is put at what the process has just then, and
// the arena, less a page. The runs read token files: PCRE2 reserves 16 MiB for a tokenizer and
// touches little of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

constexpr int64_t kPage = 4096;

struct Shape {
  const char* name;
  std::vector<std::string> keys;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

const Shape kShapes[] = {
    {"base",
     {"model={type: gpt2, n_layer: 2, n_embd: 32, n_head: 4, n_positions: 64, vocab_size: "
      "256}",
      "max_length=32", "global_batch_size=8"}},
    {"bf16",
     {"model={type: gpt2, n_layer: 6, n_embd: 48, n_head: 4, n_positions: 64, vocab_size: "
      "512}",
      "max_length=64", "global_batch_size=16", "precision=bf16", "eval_fraction=0.1"}},
    {"wide",
     {"model={type: gpt2, n_layer: 1, n_embd: 128, n_head: 2, n_positions: 48, vocab_size: "
      "1000}",
      "max_length=48", "global_batch_size=12", "optim=sgd", "sgd_momentum=0.9"}},
    {"deep",
     {"model={type: gpt2, n_layer: 12, n_embd: 32, n_head: 2, n_positions: 32, "
      "vocab_size: 300, tie_word_embeddings: false}",
      "max_length=32", "global_batch_size=24", "precision=fp16"}},
    {"host",
     {"model={type: gpt2, n_layer: 4, n_embd: 64, n_head: 4, n_positions: 64, vocab_size: "
      "400}",
      "max_length=48", "global_batch_size=10", "offload=inputs", "offload_optimizer=cpu"}},
    {"streamed",
     {"model={type: gpt2, n_layer: 5, n_embd: 48, n_head: 2, n_positions: 48, vocab_size: "
      "300}",
      "max_length=48", "global_batch_size=12", "precision=bf16", "offload_params=cpu",
      "offload_gradients=cpu"}}};

std::string quoted(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  return line;
}

class Sweep {
 public:
  explicit Sweep(const Shape& shape) : shape_(shape) {
    spill(w_.path("tokens.bin"), raw_tokens(numbered_tokens(6000, 251)));
  }

  std::vector<std::string> words(const char* command, int64_t memory) const {
    std::vector<std::string> list = {
        command,     "train_data=" + w_.path("tokens.bin"), "max_steps=2",   "logging_steps=1",
        "threads=1", "output_dir=" + w_.path("run"),        "overwrite=true"};
    if (memory > 0) list.push_back("memory=" + std::to_string(memory));
    return joined(list, shape_.keys);
  }
  Json plan(int64_t memory) const {
    const Outcome o = run(joined(words("plan", memory), {"--json"}));
    EXPECT_TRUE(o.code == 0 || o.code == 3) << o.err;
    return Json::parse(o.out);
  }
  // `snug train` that may have `limit` bytes of data.
  Outcome limited(int64_t memory, int64_t limit) const {
    return shell("ulimit -s 1024; ulimit -d " + std::to_string(limit / 1024) + "; exec \"$SNUG\"" +
                 quoted(words("train", memory)));
  }

  void budget(int64_t memory) {
    SCOPED_TRACE(std::string(shape_.name) + ", memory " + std::to_string(memory));
    const Json planned = plan(memory);
    if (!planned["fits"].get<bool>()) {
      const Outcome o = run(words("train", memory));
      EXPECT_EQ(o.code, 3) << o.out << o.err;
      EXPECT_NE(o.err.find("memory of at least " +
                           std::to_string(planned["minimum_bytes"].get<int64_t>()) + " B"),
                std::string::npos)
          << o.err;
      ++refused_;
      return;
    }
    const int64_t engine = planned["engine_bytes"].get<int64_t>(),
                  runtime = planned["runtime_bytes"].get<int64_t>(),
                  all = engine + runtime + planned["host_bytes"].get<int64_t>();
    if (memory > 0) {
      EXPECT_LE(engine + runtime, memory);
    }
    const Outcome o = limited(memory, all);
    ASSERT_EQ(o.code, 0) << o.out << o.err;
    EXPECT_NE(o.out.find(" resident, difference 0 B"), std::string::npos) << o.out;
    expect_planned_is_measured(w_, "run");
    EXPECT_EQ(w_.json("run/plan.json")["hash"], planned["hash"]);
    // More memory is never predicted slower.
    const double rate = planned["predicted_tokens_per_second"].get<double>();
    // Memory that was not set takes the smallest of the plans within 1 % of the fastest.
    EXPECT_GE(memory > 0 ? rate : rate * 1.01, rate_);
    rate_ = rate;
    // Plans of one micro-batch and head chunk have the same numbers.
    const Json& d = planned["decisions"];
    const std::string numbers = d["micro_batch"].dump() + " " + d["head_rows"].dump();
    const auto [at, first] = curves_.try_emplace(numbers, w_.curve("run"));
    EXPECT_EQ(at->second, w_.curve("run"));
    ++ran_;
    heights_[engine] = memory;
  }

  // The least that fits, by what every refusal names, and the most that a plan makes use of.
  std::pair<int64_t, int64_t> ends() const {
    const Json open = plan(int64_t{1} << 40);
    return {open["minimum_bytes"].get<int64_t>(),
            open["engine_bytes"].get<int64_t>() + open["runtime_bytes"].get<int64_t>()};
  }

  // At the reservation: VmData + arena suffices, a page less is refused in words, and nothing is
  // left behind.
  void reservation(int64_t memory) const {
    SCOPED_TRACE(std::string(shape_.name) + ", memory " + std::to_string(memory));
    const Json planned = plan(memory);
    std::vector<int64_t> arenas = {planned["engine_bytes"].get<int64_t>()};
    if (const int64_t host = planned["host_bytes"].get<int64_t>(); host > 0) arenas.push_back(host);
    const Environment preload("LD_PRELOAD", kBadWorld);
    for (const int64_t bytes : arenas) {
      const Environment arena("BAD_WORLD_ARENA", std::to_string(bytes));
      const Outcome exact = run(words("train", memory));
      EXPECT_EQ(exact.code, 0) << exact.err;
      std::vector<std::string> less = words("train", memory);
      less.push_back("output_dir=" + w_.path("less"));
      const Environment one("BAD_WORLD_SHORT", std::to_string(kPage));
      const Outcome short_of = run(less);
      EXPECT_EQ(short_of.code, 3) << short_of.out << short_of.err;
      EXPECT_EQ(short_of.err.rfind("out_of_memory: expected the operating system to reserve ", 0),
                0u)
          << short_of.err;
      EXPECT_NE(short_of.err.find("\n  found: Cannot allocate memory\n  try:   "),
                std::string::npos)
          << short_of.err;
      EXPECT_FALSE(exists(w_.path("less")));
    }
  }

  int ran() const { return ran_; }
  int refused() const { return refused_; }
  size_t heights() const { return heights_.size(); }

 private:
  const Shape& shape_;
  Workspace w_;
  int ran_ = 0, refused_ = 0;
  double rate_ = 0;
  std::map<std::string, std::string> curves_;
  std::map<int64_t, int64_t> heights_;
};

// `count` budgets from far below the least to no limit, ascending.
std::vector<int64_t> budgets(int64_t least, int64_t most, int count) {
  std::vector<int64_t> list = {1 << 20, least / 2, least - kPage, least - 1, least};
  const int between = count - 7;
  for (int i = 1; i <= between; ++i)
    list.push_back(static_cast<int64_t>(
        std::llround(static_cast<double>(least) *
                     std::pow(static_cast<double>(most) / static_cast<double>(least),
                              static_cast<double>(i) / static_cast<double>(between + 1)))));
  list.push_back(most);
  list.push_back(0);
  return list;
}

void sweep(const Shape& shape, int count) {
  Sweep s(shape);
  const auto [least, most] = s.ends();
  ASSERT_LT(least, most) << "there is something to choose";
  for (const int64_t memory : budgets(least, most, count)) s.budget(memory);
  EXPECT_EQ(s.refused(), 4);
  EXPECT_EQ(s.ran(), count - 4);
  EXPECT_GE(s.heights(), 4u) << "the budgets bring different plans";
  for (const int64_t memory : {least, (least + most) / 2, most}) s.reservation(memory);
}

bool enforced() {
  return !program_has_sanitizer();
}

class SlowEnforced : public testing::TestWithParam<Shape> {};

TEST_P(SlowEnforced, TwentyBudgets) {
  if (!enforced()) GTEST_SKIP() << "a sanitizer's shadow memory is data too";
  sweep(GetParam(), 20);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SlowEnforced, testing::ValuesIn(kShapes),
                         [](const auto& s) { return std::string(s.param.name); });

// What makes the sweep mean something: under less than the arena alone no run starts.
TEST(Enforced, TheLimitHolds) {
  if (!enforced()) GTEST_SKIP() << "a sanitizer's shadow memory is data too";
  const Sweep s(kShapes[0]);
  const Json planned = s.plan(0);
  const Outcome o = s.limited(0, planned["engine_bytes"].get<int64_t>() - kPage);
  EXPECT_EQ(o.code, 3) << o.out << o.err;
  EXPECT_NE(o.err.find("out_of_memory: "), std::string::npos) << o.err;
  // Between the arena and what the process needs beside it, which is less than is declared, there
  // are refusals of other things, and no crash.
  for (int64_t more = 0; more < 4 << 20; more += 256 << 10) {
    const Outcome tight = s.limited(0, planned["engine_bytes"].get<int64_t>() + more);
    EXPECT_TRUE(tight.code == 0 || tight.code == 1 || tight.code == 3) << more << tight.err;
    EXPECT_EQ(tight.code == 0, tight.err.empty()) << more << tight.err;
  }
}

}  // namespace
}  // namespace snug::e2e
