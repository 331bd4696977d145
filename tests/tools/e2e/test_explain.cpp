// snug explain, plan --picture and --trace, and trace: true, as a user sees them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Of the format, what Perfetto needs; the sum of the fullest counter.
int64_t fullest_counter(const Json& trace) {
  int64_t most = -1;
  for (const Json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "X") {
      EXPECT_GE(e.at("dur").get<double>(), 0);
    }
    if (e.at("ph") != "C") continue;
    int64_t sum = 0;
    for (const auto& [name, bytes] : e.at("args").items()) sum += bytes.get<int64_t>();
    most = std::max(most, sum);
  }
  return most;
}

int64_t alive_at_peak(const Json& plan) {
  return plan["engine_bytes"].get<int64_t>() - plan["categories"]["padding"].get<int64_t>();
}

TEST(Explain, ARunExplainsItself) {
  const Workspace w;
  w.trained("run", {"max_steps=3", "trace=true", "per_device_train_batch_size=2"});
  const Json plan = w.json("run/plan.json");
  const Outcome fc = run({"explain", "--run", w.path("run"), "h.0.fc", "--json"});
  ASSERT_EQ(fc.code, 0) << fc.err;
  const Json facts = Json::parse(fc.out);
  EXPECT_EQ(facts["engine_bytes"], plan["engine_bytes"]);
  EXPECT_EQ(facts["tensors"][0]["name"], "h.0.fc");
  EXPECT_EQ(facts["tensors"][0]["slot"]["policy"], "keep");

  const Outcome peak = run({"explain", "--run", w.path("run"), "--peak", "--json"});
  ASSERT_EQ(peak.code, 0) << peak.err;
  const Json holders = Json::parse(peak.out);
  EXPECT_EQ(holders["program"], plan["peak"]["program"]);
  for (size_t i = 0; i < plan["peak"]["holders"].size(); ++i)
    EXPECT_EQ(holders["holders"][i]["bytes"], plan["peak"]["holders"][i]["bytes"]);
  const Outcome text = run({"explain", "--run", w.path("run"), "--peak", "h.0.fc"});
  EXPECT_TRUE(has(text.out, "tensor h.0.fc\n  a slot of block 0, policy keep: written by fc"))
      << text.out;
  EXPECT_TRUE(has(text.out, "\n\npeak in ")) << text.out;

  // What was measured is the plan.
  const Json trace = w.json("run/trace.json");
  EXPECT_EQ(trace["otherData"]["times"], "measured");
  EXPECT_EQ(trace["otherData"]["hash"], plan["hash"]);
  EXPECT_EQ(fullest_counter(trace), alive_at_peak(plan));
  EXPECT_TRUE(has(slurp(w.path("run/report.html")), "measured time (step 2)"));
  expect_planned_is_measured(w, "run");

  // A resumed run is pinned, on another budget and policy: it explains itself too.
  w.trained("run", {"max_steps=5", "resume=latest", "memory=60MiB", "recompute=block"});
  const Outcome again = run({"explain", "--run", w.path("run"), "h.0.fc", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["tensors"][0]["slot"]["policy"], "recompute");

  // A plan of another hash is another one, and its seal is of the text as it was.
  Json written = w.json("run/plan.json");
  std::string hash = written["hash"];
  hash[0] = hash[0] == '0' ? '1' : '0';
  written["hash"] = hash;
  const auto refused = [&](const std::string& why) {
    spill(w.path("run/plan.json"), written.dump());
    const Outcome other = run({"explain", "--run", w.path("run"), "h.0.fc"});
    EXPECT_EQ(other.code, 2) << other.err;
    EXPECT_TRUE(has(other.err, why)) << other.err;
  };
  refused("its text was changed: the seal is that of another");
  written.erase("seal");  // as older ones
  refused("this version, machine or calibration plans the run otherwise");
}

// A configuration that was edited since is another run's: what differs is named.
// Of what an optimizer holds of a parameter nothing is left out, with settings of its own too.
TEST(Explain, StatesThatASettingBringsAreHeld) {
  const Workspace w;
  std::vector<std::string> words = joined(
      {"explain"}, w.train_arguments("no", {"optim=rmsprop", "optim_args=momentum=0.9", "--json"}));
  words.erase(words.begin() + 1);  // train
  words.emplace_back("wte.weight");
  const Outcome o = run(words);
  ASSERT_EQ(o.code, 0) << o.err;
  std::set<std::string> held;
  const Json facts = Json::parse(o.out);
  for (const Json& one : facts["parameters"][0]["held"]) held.insert(one["tensor"]);
  EXPECT_TRUE(held.contains("square_avg") && held.contains("momentum_buffer")) << facts;
}

// Of a matrix of muon there is no second state, of adam_mini a number a block: three heads of queries and
// keys each, and the rows of values.
TEST(Explain, StatesOfMatricesAreWhatTheyKeep) {
  const Workspace w;
  const std::string name = "h.0.attn.c_attn.weight";
  for (const std::string optim : {"muon", "adam_mini"}) {
    SCOPED_TRACE(optim);
    std::vector<std::string> words =
        joined({"explain"}, w.train_arguments("no", {"optim=" + optim, "--json"}));
    words.erase(words.begin() + 1);  // train
    words.push_back(name);
    const Outcome o = run(words);
    ASSERT_EQ(o.code, 0) << o.err;
    std::map<std::string, int64_t> held;
    const Json facts = Json::parse(o.out);
    for (const Json& one : facts["parameters"][0]["held"]) held[one["tensor"]] = one["bytes"];
    const int64_t elements = facts["parameters"][0]["elements"];
    EXPECT_EQ(held["exp_avg"], 4 * elements) << facts;
    EXPECT_EQ(held.contains("exp_avg_sq"), optim == "adam_mini") << facts;
    if (optim == "adam_mini") {
      EXPECT_LT(held["exp_avg_sq"], elements / 8) << facts;
      EXPECT_GT(held["exp_avg_sq"], 0) << facts;
    }
  }
}

TEST(Explain, ARunWhoseConfigurationWasEditedIsRefused) {
  const Workspace w;
  w.trained("run", {"max_steps=1", "max_grad_norm=0", "save_steps=0", "host_memory=1GiB",
                    "offload_optimizer=cpu"});
  const std::string path = w.path("run/config.resolved.yaml"), kept = slurp(path);
  const auto edited = [&](const std::string& from, const std::string& to, const std::string& text) {
    std::string config = kept;
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << config;
    spill(path, config.replace(at, config.find('\n', at) - at, to));
    const Outcome other = run({"explain", "--run", w.path("run"), "h.0.fc"});
    EXPECT_EQ(other.code, 2) << other.err;
    EXPECT_TRUE(has(other.err, text)) << other.err;
    EXPECT_TRUE(has(other.err, "\n  try:   --config " + path + ", which explains ")) << other.err;
  };
  edited("max_grad_norm: 0", "max_grad_norm: 1",
         "plan.json was made for, max_grad_norm: 0\n  found: above 0 in ");
  edited("max_length: 32", "max_length: 16", "plan.json was made for, max_length: 32\n");
  edited("host_memory: ", "host_memory: 4KiB",
         "found: Does not fit: the host's memory has no room");
}

TEST(Explain, WithoutTheKeyThereIsNoTrace) {
  const Workspace w;
  w.trained("run", {"max_steps=1"});
  EXPECT_FALSE(exists(w.path("run/trace.json")));
  EXPECT_TRUE(has(slurp(w.path("run/report.html")), "measured time (step 1)"));
}

TEST(Explain, APlanDrawsItselfWithoutARun) {
  const Workspace w;
  std::vector<std::string> words =
      w.train_arguments("planned", {"--picture", w.path("p.html"), "--trace", w.path("t.json")});
  words[0] = "plan";
  const Environment plain("LC_ALL", "C");
  const Outcome ascii = run(words);
  ASSERT_EQ(ascii.code, 0) << ascii.err;
  EXPECT_TRUE(std::all_of(ascii.out.begin(), ascii.out.end(), [](unsigned char c) {
    return c < 0x80;
  })) << ascii.out;
  EXPECT_TRUE(has(ascii.out, "^ peak, in ")) << ascii.out;
  {
    const Environment wide("LC_ALL", "C.UTF-8"), terminal("TERM", "xterm");
    EXPECT_TRUE(has(run(words).out, "▲ peak, in "));
  }
  // It replaces what it wrote itself, as above, and nothing else unless told to.
  for (const char* name : {"p.html", "t.json"}) {
    const std::string own = slurp(w.path(name));
    spill(w.path(name), "dear");
    const Outcome refused = run(words);
    EXPECT_EQ(refused.code, 2) << refused.out;
    EXPECT_TRUE(has(refused.err, "as a file that is not there yet\n  found: " + w.path(name)))
        << refused.err;
    EXPECT_EQ(slurp(w.path(name)), "dear");
    std::vector<std::string> forced = words;
    forced.emplace_back("--overwrite");
    EXPECT_EQ(run(forced).code, 0);
    EXPECT_EQ(slurp(w.path(name)).substr(0, 100), own.substr(0, 100));
  }
  EXPECT_FALSE(exists(w.path("planned")));
  EXPECT_TRUE(has(slurp(w.path("p.html")), "planned, not measured:"));
  const Json trace = w.json("t.json");
  EXPECT_TRUE(has(trace["otherData"]["times"].get<std::string>(), "predicted: "));
  EXPECT_EQ(fullest_counter(trace), alive_at_peak(w.plan()));
}

TEST(Explain, HelpSaysHow) {
  const Outcome help = run({"explain", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"snug explain: says what a tensor", "--run DIR", "--peak", "--json",
                           "snug explain --config run.yaml h.3.fc"})
    EXPECT_TRUE(has(help.out, part)) << part;
  EXPECT_TRUE(has(run({"--help"}).out, "explain"));
}

}  // namespace
}  // namespace snug::e2e
