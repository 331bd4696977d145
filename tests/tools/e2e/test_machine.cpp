// What a run does about the machine it is on: threads, waiting, calibration, benchmarks.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

TEST(Machine, MoreThreadsThanTheProcessMayUseAreSaidAndUsed) {
  const Workspace w;
  std::vector<std::string> words = w.train_arguments("x", {"threads=999", "memory=4GiB"});
  words[0] = "plan";
  words.emplace_back("--json");
  const Outcome many = run(words);
  EXPECT_EQ(many.code, 0) << many.err;
  EXPECT_NE(many.err.find("Warning: threads=999 is more than this process may use at once"),
            std::string::npos)
      << many.err;
  EXPECT_EQ(Json::parse(many.out)["decisions"]["threads"], 999);
  const Outcome one = run(joined(words, {"threads=1"}));
  EXPECT_EQ(one.err, "");
}

// What the OpenMP library says it was told.
TEST(Machine, ThreadsWaitBrieflyUnlessTheUserSaysHow) {
  const std::string show = "OMP_DISPLAY_ENV=verbose $SNUG --version 2>&1";
  const Outcome usual = shell("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT " + show);
  if (usual.out.find("GOMP_SPINCOUNT") == std::string::npos)
    GTEST_SKIP() << "not GCC's OpenMP library";
  EXPECT_NE(usual.out.find("GOMP_SPINCOUNT = '1000'"), std::string::npos) << usual.out;
  const Outcome set = shell("env -u OMP_WAIT_POLICY GOMP_SPINCOUNT=77 " + show);
  EXPECT_EQ(set.out.find("'1000'"), std::string::npos) << set.out;
  EXPECT_NE(set.out.find("GOMP_SPINCOUNT = '77'"), std::string::npos) << set.out;
  const Outcome passive = shell("env -u GOMP_SPINCOUNT OMP_WAIT_POLICY=passive " + show);
  EXPECT_EQ(passive.out.find("'1000'"), std::string::npos) << passive.out;
}

// A processor of 2012, which has AVX and no AVX2, by an emulator.
TEST(Machine, AProcessorBelowTheFloorIsRefused) {
  if (program_has_address_sanitizer())
    GTEST_SKIP() << "the emulator has no room for its shadow memory";
  if (shell("command -v qemu-x86_64").code != 0) GTEST_SKIP() << "no qemu-x86_64 on PATH";
  const Outcome old = shell("qemu-x86_64 -cpu IvyBridge $SNUG --version 2>&1 | grep -v ^qemu");
  EXPECT_EQ(old.out,
            "unsupported: expected a processor with AVX2, FMA and BMI (x86-64-v3)\n"
            "  found: one without\n"
            "  try:   a processor from 2015 or later; in a virtual machine, pass the host's "
            "processor on (-cpu host)\n");
  EXPECT_EQ(shell("qemu-x86_64 -cpu IvyBridge $SNUG --version").code, 2);
}

TEST(Machine, TheStartIsTimed) {
  const Workspace w;
  const Outcome outcome = w.trained("run", {"max_steps=3", "eval_steps=1", "eval_fraction=0.1"});
  EXPECT_NE(outcome.out.find("started in "), std::string::npos) << outcome.out;
  int lines = 0;
  for (const Json& line : w.metrics("run")) {
    if (!line.contains("loss")) continue;
    EXPECT_EQ(line.contains("startup_seconds"), lines == 0) << line;
    EXPECT_EQ(line.contains("predicted_tokens_per_second"), lines == 0) << line;
    if (lines++ == 0) {
      EXPECT_GT(line["startup_seconds"], 0.0);
      EXPECT_LT(line["startup_seconds"], 60.0);
    }
  }
  EXPECT_EQ(lines, 3);
}

void expect_refused_with(const Outcome& o, std::initializer_list<const char*> parts) {
  EXPECT_EQ(o.code, 2) << o.err;
  for (const char* part : parts) EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
}

// A plan names the kernels its products use, and a checkpoint pins them.
TEST(Machine, PinnedKernelsThatAreNotThereAreRefused) {
  const Workspace w;
  const std::vector<std::string> keys = {"precision=bf16", "save_steps=2", "max_steps=2"};
  w.trained("run", keys);
  const Json kernels = w.json("run/plan.json")["decisions"]["kernels"];
  ASSERT_FALSE(kernels.empty());
  const std::string state = "run/checkpoint-2/snug_state.json";
  Json j = w.json(state);
  EXPECT_EQ(j["pinned"]["kernels"], kernels);
  // A machine with AMX has all kernels.
  if (w.json("run/plan.json")["decisions"]["instruction_set"] != "amx_bf16") {
    for (Json& k : j["pinned"]["kernels"]) k["kernel"] = "amx_bf16";
    spill(w.path(state), j.dump());
    reseal(w.path("run/checkpoint-2"));
    const std::vector<std::string> resume =
        w.train_arguments("run", joined(keys, {"max_steps=4", "resume=latest"}));
    expect_refused_with(run(resume), {"a CPU with the kernel amx_bf16", "allow=[kernels]"});
    const Outcome allowed = run(joined(resume, {"allow=[kernels]"}));
    EXPECT_EQ(allowed.code, 0) << allowed.err;
  }
  for (Json& k : j["pinned"]["kernels"]) k["kernel"] = "bogus";
  spill(w.path(state), j.dump());
  reseal(w.path("run/checkpoint-2"));
  const Outcome bogus = run(joined(w.train_arguments("run", keys),
                                   {"max_steps=6", "resume=" + w.path("run/checkpoint-2")}));
  EXPECT_EQ(bogus.code, 2);
  EXPECT_NE(bogus.err.find("pinned / kernels / 0"), std::string::npos) << bogus.err;

  // A pin that is gone is a damaged file, not a free choice; attention's form is pinned as well.
  const auto resumed_from = [&](const Json& edited) {
    spill(w.path(state), edited.dump());
    reseal(w.path("run/checkpoint-2"));
    return run(joined(w.train_arguments("run", keys),
                      {"max_steps=6", "resume=" + w.path("run/checkpoint-2")}));
  };
  j["pinned"]["kernels"] = kernels;
  Json without = j;
  without["pinned"].erase("kernels");
  expect_refused_with(resumed_from(without), {"a list of kernels", "pinned / kernels"});
  Json other = j;
  EXPECT_EQ(other["pinned"]["attention"], w.json("run/plan.json")["decisions"]["attention"]);
  other["pinned"]["attention"] = "bf16 bf16 other";
  expect_refused_with(resumed_from(other),
                      {"a device that computes attention", "bf16 bf16 other", "allow=[kernels]"});
  Json swapped = j;
  swapped["pinned"]["kernels"][0]["dtype"] = "f32 f32";
  swapped["pinned"]["kernels"][0]["kernel"] = "avx512_bf16";
  expect_refused_with(resumed_from(swapped), {"a kernel for f32 f32", "avx512_bf16"});
}

// The calibration's choice is taken, recorded and pinned: a run that goes on after the file is gone
// has the bits of one that was not interrupted.
TEST(SlowMachine, ARunGoesOnWithTheKernelsOfItsCheckpoint) {
  const Workspace w;
  const Outcome measured = run({"calibrate", "--threads", "1", "--seconds", "0", "--json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  Json c = Json::parse(measured.out);
  EXPECT_EQ(c["measured_now"], true);
  const std::string path = c["path"].get<std::string>();
  EXPECT_EQ(path.rfind(w.path("cache/snug/"), 0), 0u) << path;
  const Json again = Json::parse(run({"calibrate", "--threads", "1", "--json"}).out);
  EXPECT_EQ(again["measured_now"], false);
  EXPECT_EQ(again["products"], c["products"]);
  const Json forced =
      Json::parse(run({"calibrate", "--threads", "1", "--seconds", "0", "--force", "--json"}).out);
  EXPECT_EQ(forced["measured_now"], true);
  const Outcome text = run({"calibrate", "--threads", "1"});
  EXPECT_NE(text.out.find("nt vocabulary long"), std::string::npos) << text.out;
  // Of a machine that did other work besides the rates are another's, and that is said.
  const std::string busy = "Other work had the processors in ",
                    again_advice = "--force measures again.";
  for (const auto& [waited, said] :
       {std::pair(0.0, ""), {0.049, ""}, {0.051, "5 %"}, {0.2, "20 %"}}) {
    Json with = c;
    with["waited"] = waited;
    spill(path, with.dump());
    const std::string out = run({"calibrate", "--threads", "1"}).out;
    EXPECT_EQ(out.find(busy) != std::string::npos, *said != '\0') << waited << out;
    EXPECT_EQ(out.find(again_advice) != std::string::npos, *said == '\0') << waited << out;
    if (*said != '\0') {
      EXPECT_NE(out.find(busy + said), std::string::npos) << out;
    }
  }

  const std::vector<std::string> keys = {"precision=bf16", "save_steps=2", "max_steps=6",
                                         "lr_scheduler_type=constant"};
  const Json usual = w.plan(keys)["decisions"]["kernels"];
  for (Json& product : c["products"]) product["kernel"] = "reference";
  spill(path, c.dump());
  const Json named = w.plan(keys)["decisions"]["kernels"];
  ASSERT_EQ(named.size(), usual.size());
  for (const Json& k : named) EXPECT_EQ(k["kernel"], "reference");
  w.trained("whole", keys);
  w.trained("parts", joined(keys, {"max_steps=4"}));
  std::filesystem::remove(path);
  const Outcome resumed =
      run(w.train_arguments("parts", joined(keys, {"resume=" + w.path("parts/checkpoint-2")})));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(w.json("parts/plan.json")["decisions"]["kernels"], named);
  w.trained("fresh",
            keys);  // without the file: the usual kernels, and where they differ other bits
  EXPECT_EQ(w.json("fresh/plan.json")["decisions"]["kernels"], usual);
  const auto weights = [&](const char* name) {
    return slurp(w.path(std::string(name) + "/final/model.safetensors"));
  };
  EXPECT_TRUE(weights("whole") == weights("parts"));

  spill(path, "{\"format\": 3}");
  const Outcome damaged = run(w.train_arguments("damaged", keys));
  EXPECT_EQ(damaged.code, 0);
  EXPECT_NE(damaged.err.find("Note: " + path + " cannot be used"), std::string::npos)
      << damaged.err;
  EXPECT_TRUE(weights("damaged") == weights("fresh"));
}

// The last table of `snug bench`: kinds, what lies between, the step; each line's last figure is what the
// prediction misses, as a share of the step.
void expect_table_adds_up(const std::string& out) {
  EXPECT_NE(out.find("roofs"), std::string::npos);
  std::istringstream table(out.substr(out.find("\nof a step")));
  struct Line {
    std::string what;
    double ms, predicted, share;
  };
  std::vector<Line> lines;
  std::string text;
  for (std::getline(table, text), std::getline(table, text); std::getline(table, text);) {
    // The last four words are calls, both times and the share; what is before them may be long.
    std::istringstream in(text);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    if (words.size() < 5 || words.back().back() != '%') continue;
    const size_t n = words.size();
    Line line{words[0], std::stod(words[n - 3]), std::stod(words[n - 2]), std::stod(words[n - 1])};
    for (size_t i = 1; i + 4 < n; ++i) line.what += " " + words[i];
    lines.push_back(line);
  }
  ASSERT_GT(lines.size(), 5u) << out;
  const Line& step = lines.back();
  EXPECT_EQ(step.what, "the step");
  double sum = 0;
  for (const Line& line : lines) {
    // Printed are thousandths of a millisecond and tenths of a percent.
    EXPECT_NEAR(line.share, 100 * (line.predicted - line.ms) / step.ms,
                0.051 + 100 * 0.0011 / step.ms * (1 + std::fabs(line.share) / 100))
        << line.what;
    if (&line != &step && line.what != "in ops") sum += line.ms;
  }
  EXPECT_NEAR(sum, step.ms, 0.02 * step.ms) << "kinds below a thousandth are left out\n" << out;
}

TEST(SlowMachine, BenchmarksGiveTheFiguresTheyPromise) {
  const Workspace w;
  const auto bench = [&](const char* kind, const std::vector<std::string>& more) {
    std::vector<std::string> words = w.train_arguments("x", {"precision=bf16"});
    words[0] = "bench";
    if (*kind != 0) words.insert(words.begin() + 1, kind);
    const Outcome outcome = run(joined(words, more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  for (const char* kind : {"", "step"}) {
    const Json step = Json::parse(bench(kind, {"--json", "--steps", "4"}));
    EXPECT_EQ(step["step_times"].size(), 4u);
    for (const char* key :
         {"step_seconds", "startup_seconds", "first_step_seconds", "tokens_per_second",
          "peak_resident_bytes", "engine_bytes", "model_flops_per_second"})
      EXPECT_GT(step[key], 0) << key;
    EXPECT_GT(step["peak_resident_bytes"], step["engine_bytes"]);
    EXPECT_FALSE(step["ops"].empty());
    // Predicted and measured by kind: they and what lies between them are the step.
    double seconds = step["between_ops"]["seconds"], predicted = 0;
    for (const Json& k : step["kinds"]) {
      EXPECT_GT(k["predicted_seconds"], 0) << k;
      seconds += k["seconds"].get<double>();
      predicted += k["predicted_seconds"].get<double>();
    }
    EXPECT_NEAR(seconds, step["step_seconds"].get<double>(), 1e-9);
    EXPECT_NEAR(predicted, step["in_ops"]["predicted_seconds"].get<double>(), 1e-9);
    EXPECT_NEAR(predicted + step["between_ops"]["predicted_seconds"].get<double>(),
                step["predicted_step_seconds"].get<double>(),
                1e-6 * step["predicted_step_seconds"].get<double>())
        << "nothing is offloaded, so the step is the sum of its ops";
    for (const char* key : {"fp32_flops", "read_bytes", "copy_bytes", "stream_bytes"})
      EXPECT_GT(step["roofs"][key], 0) << key;
  }
  // Copies between the arenas are priced by the link and stand beside the ops, not among them.
  const Json away = Json::parse(
      bench("step", {"--json", "--no-roofs", "--steps", "1", "offload=block", "recompute=none"}));
  EXPECT_FALSE(away["copies"].empty());
  for (const Json& copy : away["copies"]) {
    EXPECT_GT(copy["predicted_seconds"], 0) << copy;
    for (const Json& k : away["kinds"]) EXPECT_NE(k["op"], copy["op"]);
  }
  EXPECT_LE(away["in_ops"]["predicted_seconds"].get<double>() +
                away["between_ops"]["predicted_seconds"].get<double>(),
            away["predicted_step_seconds"].get<double>() * (1 + 1e-6));
  EXPECT_GT(away["runtime_bytes_measured"], 0);
  EXPECT_EQ(away["runtime_bytes_measured"], away["host_process_bytes"]) << "of a CPU";
  const Json ops = Json::parse(bench("ops", {"--json", "--repeat", "3"}));
  double inside = 0;
  for (const Json& op : ops["ops"]) {
    EXPECT_GT(op["seconds_per_call"], 0) << op;
    EXPECT_GE(op["noise"], 0) << op;
    EXPECT_TRUE(op["bound_by"] == "arithmetic" || op["bound_by"] == "memory") << op;
    inside += op["seconds_per_call"].get<double>() * op["calls_per_step"].get<double>();
  }
  EXPECT_NEAR(inside, ops["seconds_in_ops"].get<double>(), 1e-9);
  EXPECT_EQ(ops["step_times"].size(), 3u);
  EXPECT_EQ(ops["roofs"]["fp32_flops"], std::max(ops["roofs_before"]["fp32_flops"].get<double>(),
                                                 ops["roofs_after"]["fp32_flops"].get<double>()));
  for (const char* key : {"read_bytes", "copy_bytes", "stream_bytes"}) {
    const Json& between = ops["memory_between"][key];
    EXPECT_EQ(ops["roofs"][key], between["median"]) << key;
    EXPECT_GT(between["least"], 0) << key;
    EXPECT_LE(between["least"], between["median"]) << key;
    EXPECT_LE(between["median"], between["most"]) << key;
  }
  const Json gemm = Json::parse(bench("gemm", {"--json", "--repeat", "2"}));
  int used = 0, packed = 0;
  std::vector<std::string> directions;
  for (const Json& p : gemm["products"]) {
    EXPECT_GT(p["flops_per_second"], 0) << p;
    used += p["used"].get<bool>() && !p["packed"].get<bool>();
    packed += p["packed"].get<bool>();
    EXPECT_EQ(p.contains("pack_seconds"), p["packed"].get<bool>()) << p;
  }
  EXPECT_EQ(used, 15);  // five weights in three directions, each by one kernel
  // A gated MLP's weight has two outputs for one.
  const Json gated = Json::parse(bench(
      "gemm", {"--json", "--repeat", "2",
               "model={type: llama, vocab_size: 300, hidden_size: 64, intermediate_size: 96, "
               "num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 64}"}));
  int wide = 0;
  for (const Json& p : gated["products"])
    if (p["product"] == "mlp in" && p["direction"] == "x W^T") {
      EXPECT_EQ(p["N"], 2 * 96);
      EXPECT_EQ(p["K"], 64);
      ++wide;
    }
  EXPECT_GT(wide, 0);
  EXPECT_GT(packed, 0);
  for (const char* kind : {"ops", "gemm"})
    EXPECT_NE(bench(kind, {}).find("roofs"), std::string::npos) << kind;
  expect_table_adds_up(bench("step", {}));
}

TEST(Machine, WordsThatAreNoBenchmark) {
  const Outcome outcome = run({"bench", "opps"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("did you mean ops?"), std::string::npos) << outcome.err;
  const Outcome seconds = run({"calibrate", "--seconds", "601"});
  EXPECT_EQ(seconds.code, 2);
  EXPECT_NE(seconds.err.find("--seconds from 0 to 600"), std::string::npos) << seconds.err;
  const Outcome threads = run({"calibrate", "--threads", "-1"});
  EXPECT_EQ(threads.code, 2);
  const Outcome nowhere = shell("env -u HOME -u XDG_CACHE_HOME $SNUG calibrate");
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.err.find("XDG_CACHE_HOME or HOME"), std::string::npos) << nowhere.err;
}

// Products by the layer whose weight they multiply, and by their direction.
TEST(Machine, BenchNamesProducts) {
  const Outcome o = run({"bench", "ops",
                         "model={type: gpt2, n_layer: 2, n_embd: 16, n_head: 2, "
                         "n_positions: 16, vocab_size: 300}",
                         "max_length=16", "global_batch_size=2", "threads=1", "memory=64MiB",
                         "--repeat", "2", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  std::set<std::string> products, others;
  const Json said = Json::parse(o.out);
  for (const Json& op : said["ops"])
    (op["op"] == "matmul" ? products : others).insert(op["of"].get<std::string>());
  std::set<std::string> all;
  for (const char* layer : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "head"})
    for (const char* direction : {" x W^T", " dy W", " dy^T x"}) {
      const std::string of = std::string(layer) + direction;
      // Forward some are one op with what follows them.
      EXPECT_TRUE(products.contains(of) || others.contains(of)) << of;
      all.insert(of);
    }
  for (const std::string& of : products) EXPECT_TRUE(all.contains(of)) << of;
}

}  // namespace
}  // namespace snug::e2e
