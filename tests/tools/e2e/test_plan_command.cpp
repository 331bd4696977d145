// snug plan for devices that are not there, under many budgets, and what a run makes of the
// prediction.
#include <gtest/gtest.h>

#include "engine/core/units.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kGpt2 = {"plan",      "model=gpt2",           "max_length=256",
                                        "threads=1", "global_batch_size=16", "precision=bf16"};

TEST(SlowPlanCommand, PlansForADescribedDevice) {
  const Workspace w;
  const Json card = Json::parse(run(joined(kGpt2, {"target=rtx4090", "--json"})).out);
  EXPECT_EQ(card["budget_bytes"], int64_t{24564} << 20) << "what the driver reports";
  EXPECT_EQ(card["runtime_bytes"], int64_t{700} << 20);
  EXPECT_NE(card["target"].get<std::string>().find("rtx4090"), std::string::npos);
  EXPECT_NE(card["prediction"].get<std::string>().find("described"), std::string::npos);
  const Json wide = Json::parse(run(joined(kGpt2, {"target=h100", "--json"})).out);
  EXPECT_GT(wide["predicted_tokens_per_second"], card["predicted_tokens_per_second"]);
  // Set memory holds, and the same bytes are planned for every device.
  const Json small =
      Json::parse(run(joined(kGpt2, {"target=rtx4090", "memory=4GiB", "--json"})).out);
  EXPECT_EQ(small["budget_bytes"], int64_t{4} << 30);
  EXPECT_EQ(small["minimum_bytes"], wide["minimum_bytes"]);
  const Json all =
      Json::parse(run(joined(kGpt2, {"target=rtx4090", "memory=24564MiB", "--json"})).out);
  EXPECT_LE(small["predicted_tokens_per_second"], all["predicted_tokens_per_second"]);
  const Json here = Json::parse(run(joined(kGpt2, {"memory=8GiB", "--json"})).out);
  EXPECT_TRUE(here["target"].is_null());
  const Outcome text = run(joined(kGpt2, {"target=rtx4090"}));
  EXPECT_NE(text.out.find("made for a described device, rtx4090"), std::string::npos) << text.out;
  // A file of another.
  spill(w.path("box.json"),
        "{\"name\": \"box\", \"memory_bytes\": 17179869184, \"runtime_bytes\": 0, "
        "\"fp32_tflops\": 10, \"memory_gbytes_per_second\": 500, \"link_gbytes_per_second\": 16}");
  const Json box = Json::parse(run(joined(kGpt2, {"target=" + w.path("box.json"), "--json"})).out);
  EXPECT_EQ(box["budget_bytes"], int64_t{16} << 30);
  EXPECT_EQ(box["runtime_bytes"], 0);
}

// Of a described device too, memory that was not set is not all taken: the smallest plan within 1 % of the
// fastest, and what the fastest takes works as it is printed.
TEST(PlanCommand, ADescribedDeviceIsNotFilledForNothing) {
  const std::vector<std::string> plan = {
      "plan",
      "model={type: gpt2, n_layer: 2, n_embd: 256, n_head: 4, n_positions: 256, vocab_size: 1024}",
      "threads=1",
      "global_batch_size=64",
      "precision=bf16",
      "target=rtx3060"};
  const auto json = [&](const std::vector<std::string>& more) {
    const Outcome o = run(joined(joined(plan, more), {"--json"}));
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json unset = json({});
  const auto total = [](const Json& p) {
    return p["engine_bytes"].get<int64_t>() + p["runtime_bytes"].get<int64_t>();
  };
  ASSERT_TRUE(unset["fastest"].is_object()) << unset.dump(1);
  const int64_t most = unset["fastest"]["memory"];
  EXPECT_LT(total(unset), most);
  EXPECT_EQ(unset["budget_bytes"], int64_t{12288} << 20) << "all of it is there";
  EXPECT_GE(unset["predicted_tokens_per_second"].get<double>() * 1.01,
            unset["fastest"]["predicted_tokens_per_second"].get<double>() * 0.999999);
  const Json fastest = json({"memory=" + std::to_string(most)});
  EXPECT_TRUE(fastest["fastest"].is_null()) << "memory that is set is for speed";
  EXPECT_EQ(total(fastest), most);
  EXPECT_NEAR(fastest["predicted_tokens_per_second"].get<double>(),
              unset["fastest"]["predicted_tokens_per_second"].get<double>(), 1);
  const Outcome text = run(plan);
  EXPECT_NE(text.out.find("memory was not set: of the plans within 1 % of the fastest this is the "
                          "smallest; memory=" +
                          std::to_string(most)),
            std::string::npos)
      << text.out;
}

// What another optimizer saves, where it shows, and what is not built as a row with the reason.
TEST(PlanCommand, ComparesOptimizers) {
  const std::vector<std::string> tiny = {
      "plan",
      "model={type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 64, vocab_size: 512}",
      "max_length=64",
      "threads=1",
      "per_device_train_batch_size=2",
      "global_batch_size=4",
      "recompute=none",
      "memory=1GiB"};
  const std::vector<std::string> compare = {
      "--compare",
      "optim=adamw,lion,ademamix,sgd,adamw_8bit,paged_lion_4bit,"
      "adamw_bf16,galore_adamw"};
  const Outcome json = run(joined(joined(tiny, compare), {"--json"}));
  ASSERT_EQ(json.code, 0) << json.err;
  const Json all = Json::parse(json.out);
  EXPECT_EQ(all["key"], "optim");
  ASSERT_EQ(all["plans"].size(), 8u);
  const int64_t parameters = all["plans"][0]["parameters"];
  const double states[] = {8, 4, 12, 0, 2.03125, 0.53125, 4};
  for (int i = 0; i < 7; ++i) {
    const Json& row = all["plans"][static_cast<size_t>(i)];
    SCOPED_TRACE(row["value"]);
    EXPECT_EQ(row["refused"], nullptr);
    EXPECT_EQ(row["state_bytes_per_parameter"], states[i]);
    // Gaps and rows that pad the vocabulary have states too.
    const double mean = row["mean_state_bytes_per_parameter"], all_of_it = mean * parameters;
    EXPECT_GE(row["categories"]["optimizer"].get<double>(), all_of_it);
    EXPECT_LE(row["categories"]["optimizer"].get<double>(), all_of_it * 5 / 4);
    // Embeddings of a model from scratch keep fp32, and what is small.
    const bool coded = states[i] == 2.03125 || states[i] == 0.53125;
    EXPECT_EQ(row["parameters_with_fp32_state"].get<int64_t>() > 0, coded);
    if (!coded) {
      EXPECT_EQ(mean, states[i]);
    }
    EXPECT_EQ(row["driver_bytes"],
              row["engine_bytes"].get<int64_t>() + row["runtime_bytes"].get<int64_t>());
    EXPECT_EQ(row["saved_state_bytes"], all["plans"][0]["categories"]["optimizer"].get<int64_t>() -
                                            row["categories"]["optimizer"].get<int64_t>());
    // The plan is that of the optimizer alone.
    const Outcome one = run(joined(tiny, {"optim=" + row["value"].get<std::string>(), "--json"}));
    EXPECT_EQ(Json::parse(one.out)["hash"], row["hash"]);
  }
  EXPECT_NE(all["plans"][7]["refused"].get<std::string>().find("looks at whole matrices"),
            std::string::npos);
  const Outcome text = run(joined(tiny, compare));
  for (const char* part : {"driver shows", "8 B of state a parameter; state is ",
                           "4 B of state a parameter; state ", "2.03 B of state a parameter, with ",
                           " less, peak ", " more, peak ", "may\nshow as nothing"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  // In lines that are as long as the terminal is wide.
  std::string line = text.out;
  for (size_t at = 0; (at = line.find('\n', at)) != std::string::npos;)
    line.replace(at, std::min(line.find_first_not_of("\n ", at), line.size()) - at, " ");
  for (int i = 1; i < 7; ++i) {
    const int64_t less = all["plans"][static_cast<size_t>(i)]["saved_state_bytes"];
    ASSERT_NE(less, 0);
    EXPECT_NE(line.find("state " + human_bytes(std::abs(less)) + (less > 0 ? " less" : " more")),
              std::string::npos)
        << less << "\n"
        << line;
  }
  const Outcome unknown = run(joined(tiny, {"--compare", "optim=adamw,adan"}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("did you mean adam?"), std::string::npos) << unknown.err;
}

TEST(PlanCommand, SweepsBudgets) {
  const Workspace w;
  const std::vector<std::string> sweep = {"--sweep", "1GiB..8GiB/12"};
  const Outcome json = run(joined(joined(kGpt2, sweep), {"--json"}));
  ASSERT_EQ(json.code, 0) << json.err;
  const Json rungs = Json::parse(json.out);
  ASSERT_GE(rungs.size(), 3u);
  EXPECT_FALSE(rungs[0]["fits"].get<bool>());
  double before = 0;
  for (const Json& rung : rungs) {
    if (!rung["fits"].get<bool>()) continue;
    EXPECT_LE(rung["engine_bytes"].get<int64_t>() + rung["runtime_bytes"].get<int64_t>(),
              rung["budget_bytes"].get<int64_t>());
    EXPECT_GE(rung["predicted_tokens_per_second"], before);
    before = rung["predicted_tokens_per_second"];
  }
  const std::string picture = w.path("ladder.svg");
  const Outcome text = run(joined(joined(kGpt2, sweep), {"--svg", picture}));
  EXPECT_NE(text.out.find("does not fit"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("smallest that works"), std::string::npos) << text.out;
  EXPECT_NE(slurp(picture).find("<svg"), std::string::npos);
  EXPECT_NE(run(joined(joined(kGpt2, sweep), {"--svg", picture})).code, 2) << "its own";
  spill(picture, "<svg>mine</svg>");
  EXPECT_EQ(run(joined(joined(kGpt2, sweep), {"--svg", picture})).code, 2);
  EXPECT_EQ(slurp(picture), "<svg>mine</svg>");
  EXPECT_EQ(run(joined(kGpt2, {"--sweep", "1MiB,2MiB"})).code, 3);
}

// Minutes and gigabytes, were it recorded.
TEST(PlanCommand, AHopelessBatchIsRefusedAtOnce) {
  const std::vector<std::string> base = {"plan", "model=gpt2", "global_batch_size=100000",
                                         "per_device_train_batch_size=100000", "threads=1"};
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"memory=8GiB"},
        {"--sweep", "1GiB,8GiB"},
        {"memory=8GiB", "per_device_train_batch_size=1", "eval_data=x",
         "per_device_eval_batch_size=1048576"}}) {
    const Outcome o = run(joined(base, more));
    EXPECT_EQ(o.code, 3) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_NE(o.err.find("out_of_memory: expected memory of more than "), std::string::npos)
        << o.err;
    EXPECT_NE(o.err.find("\n  found: memory of 8589934592 B (8.00 GiB)\n  try:   a smaller "),
              std::string::npos)
        << o.err;
  }
  // Whoever reads JSON gets the keys that are promised, with what is known.
  const auto expect_no_plan = [](const Json& plan, int64_t budget) {
    EXPECT_EQ(plan["fits"], false);
    EXPECT_EQ(plan["budget_bytes"], budget);
    for (const char* key :
         {"engine_bytes", "runtime_bytes", "host_bytes", "minimum_bytes",
          "predicted_tokens_per_second", "packing", "categories", "decisions", "hash"}) {
      ASSERT_TRUE(plan.contains(key)) << key;
      EXPECT_TRUE(plan[key].is_null()) << key;
    }
    const std::string sentence = plan["sentence"];
    EXPECT_TRUE(sentence.starts_with("Does not fit: expected memory of more than ")) << sentence;
    for (const std::string& part :
         {"found memory of " + std::to_string(budget) + " B", std::string("; try a smaller ")})
      EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  const Workspace w;
  const std::string picture = w.path("plan.html");
  const Outcome one = run(joined(base, {"memory=8GiB", "--json", "--picture", picture}));
  EXPECT_EQ(one.code, 3);
  EXPECT_EQ(one.err, "Note: " + picture + " is not written: there is no plan to draw\n");
  expect_no_plan(Json::parse(one.out), int64_t{8} << 30);
  const Outcome many = run(joined(base, {"--sweep", "8GiB,1GiB,1GiB", "--json"}));
  EXPECT_EQ(many.code, 3);
  EXPECT_EQ(many.err, "");
  const Json rungs = Json::parse(many.out);
  ASSERT_EQ(rungs.size(), 2u);
  expect_no_plan(rungs[0], int64_t{1} << 30);
  expect_no_plan(rungs[1], int64_t{8} << 30);
  const Outcome usual = run({"plan", "model=gpt2", "--sweep", "1MiB", "--json"});
  const Json rung = Json::parse(usual.out)[0];
  for (const auto& [key, value] : rung.items()) EXPECT_TRUE(rungs[0].contains(key)) << key;
  // No run can follow it.
  spill(w.path("plan.json"), one.out);
  const Outcome followed = run(joined(base, {"plan=" + w.path("plan.json")}));
  EXPECT_EQ(followed.code, 2);
  EXPECT_NE(followed.err.find("what snug plan says of a batch that has no room"), std::string::npos)
      << followed.err;
}

// Neither output decides what a plan says of the other, or of itself.
// A plan that does not fit, which is said on standard error.
std::string hopeless(const Workspace& w) {
  return "$SNUG plan model=gpt2 global_batch_size=100000 per_device_train_batch_size=100000 "
         "threads=1 memory=8GiB --json --picture '" +
         w.path("plan.html") + "' ";
}

TEST(PlanCommand, AnErrorThatNobodyHearsIsOne) {
  const Workspace w;
  EXPECT_EQ(shell(hopeless(w) + "> /dev/null 2>&-; echo $?").out, "3\n");
}

TEST(PlanCommand, OutputsThatCannotBeWritten) {
  if (!exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Workspace w;
  EXPECT_EQ(shell(hopeless(w) + "2> /dev/full > /dev/null; echo $?").out, "3\n");
  const Outcome full = shell(
      "$SNUG plan model=gpt2 memory=8GiB max_length=64 global_batch_size=1 "
      "--json > /dev/full; echo $?");
  EXPECT_EQ(full.out, "1\n");
  EXPECT_EQ(full.err,
            "device: expected standard output that can be written\n  found: that it cannot\n"
            "  try:   free space where it goes, or send it to another place\n");
}

TEST(PlanCommand, SaysWhatTheBudgetCosts) {
  const Workspace w;
  const Json open = Json::parse(run(joined(kGpt2, {"memory=64GiB", "--json"})).out);
  EXPECT_EQ(open["price"]["slower_than_unlimited"], 0.0);
  EXPECT_NE(open["sentence"].get<std::string>().find("as fast as without a budget"),
            std::string::npos);
  const std::string least = std::to_string(open["minimum_bytes"].get<int64_t>());
  const Json tight = Json::parse(run(joined(kGpt2, {"memory=" + least, "--json"})).out);
  EXPECT_TRUE(tight["fits"].get<bool>());
  const double slower = tight["price"]["slower_than_unlimited"];
  EXPECT_GT(slower, 0.0);
  // By how much a step is slower, and how many tokens a second that takes, are two figures.
  EXPECT_NEAR(tight["price"]["fewer_tokens_than_unlimited"].get<double>(), slower / (1 + slower),
              1e-9);
  EXPECT_NEAR(open["predicted_tokens_per_second"].get<double>() /
                  tight["predicted_tokens_per_second"].get<double>(),
              1 + slower, 1e-6 * (1 + slower));
  EXPECT_NE(tight["sentence"].get<std::string>().find("fewer tokens/s than without a budget"),
            std::string::npos);
  EXPECT_FALSE(tight["solver"]["result"].get<std::string>().empty());
  const Outcome text = run(joined(kGpt2, {"memory=" + least}));
  EXPECT_NE(text.out.find("the budget costs"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("1.00 GiB more"), std::string::npos) << text.out;
}

// Memory that was not set is taken up to where more brings less than 1 %; what that line names has
// the tokens/s that it says.
TEST(PlanCommand, MemoryThatWasNotSetIsNotAllTaken) {
  const std::vector<std::string> plan = {
      "plan",           "model={type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 256}",
      "max_length=256", "global_batch_size=64",
      "threads=1",      "--json"};
  const Json small = Json::parse(run(plan).out);
  ASSERT_TRUE(small["fits"].get<bool>());
  ASSERT_FALSE(small["fastest"].is_null()) << small["sentence"];
  const int64_t all = small["fastest"]["memory"];
  EXPECT_LT(small["engine_bytes"].get<int64_t>(), all / 2);
  const Json fast = Json::parse(run(joined(plan, {"memory=" + std::to_string(all)})).out);
  EXPECT_TRUE(fast["fastest"].is_null());
  const double here = small["predicted_tokens_per_second"],
               there = fast["predicted_tokens_per_second"],
               said = small["fastest"]["predicted_tokens_per_second"];
  EXPECT_NEAR(there, said, 1e-3 * said);
  EXPECT_LE(there, 1.01 * here);
  // And no smaller one is as fast.
  const int64_t less =
      small["engine_bytes"].get<int64_t>() * 94 / 100 + small["runtime_bytes"].get<int64_t>();
  const Json smaller = Json::parse(run(joined(plan, {"memory=" + std::to_string(less)})).out);
  EXPECT_TRUE(!smaller["fits"].get<bool>() ||
              1.01 * smaller["predicted_tokens_per_second"].get<double>() < there);
}

// The picture begins and ends with what was asked, whatever fits and has a plan of its own.
TEST(PlanCommand, ThePictureOfASweepCoversWhatWasAsked) {
  const Workspace w;
  const Outcome o = run(joined(kGpt2, {"--sweep", "1..64GiB/7", "--svg", w.path("ladder.svg")}));
  ASSERT_EQ(o.code, 0) << o.err;
  ASSERT_NE(o.out.find("   1.00 GiB  does not fit"), std::string::npos) << o.out;
  ASSERT_NE(o.out.find("are left out"), std::string::npos) << o.out;
  const std::string picture = slurp(w.path("ladder.svg"));
  EXPECT_NE(picture.find("<text x=\"70.0\" y=\"328\" text-anchor=\"middle\">1.00 GiB<"),
            std::string::npos)
      << picture;
  EXPECT_NE(picture.find("<text x=\"700.0\" y=\"328\" text-anchor=\"end\">64.00 GiB<"),
            std::string::npos)
      << picture;
}

TEST(PlanCommand, ARunSaysWhatWasPredictedAndWhatCame) {
  const Workspace w;
  const Outcome outcome = w.trained("run", {"max_steps=3"});
  EXPECT_NE(outcome.out.find("predicted "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(", measured "), std::string::npos) << outcome.out;
  EXPECT_GT(w.json("run/plan.json")["predicted_step_seconds"], 0.0);
}

}  // namespace
}  // namespace snug::e2e
