// snug inspect over everything a run leaves, over broken files and over strangers; snug doctor.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const Workspace& trained() {
  static const Workspace w;
  static const Outcome once = w.trained("run", {"save_steps=6"});
  return w;
}

Json facts(const std::string& path, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"inspect", path, "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome o = run(words);
  EXPECT_EQ(o.code, 0) << o.err;
  return o.code == 0 ? Json::parse(o.out) : Json();
}

TEST(Inspect, ModelsAndStatistics) {
  const Workspace& w = trained();
  const Json model = facts(w.path("run/final"), {"--stats"});
  EXPECT_EQ(model["kind"], "model");
  EXPECT_EQ(model["shape"]["layers"], 2);
  EXPECT_EQ(model["shape"]["width"], 32);
  EXPECT_EQ(model["tensors"].size(), 28u);
  EXPECT_EQ(model["dtypes"]["F32"], 28);
  EXPECT_EQ(model["tokenizer"], true);
  EXPECT_EQ(model["not_finite"], 0);
  const int64_t C = 32;
  EXPECT_EQ(model["parameters"], 300 * C + 64 * C + 2 * (12 * C * C + 13 * C) + 2 * C);
  const SafetensorsFolder files(w.path("run/final"));
  for (const Json& row : model["tensors"]) {
    const SafeTensor& t = files.at(row["name"].get<std::string>());
    EXPECT_EQ(row["shape"], Json(t.shape));
    EXPECT_EQ(row["bytes"], t.bytes);
    std::vector<float> x(static_cast<size_t>(t.elements()));
    convert(t.dtype, t.data, t.elements(), x.data());
    double sum = 0, squares = 0, least = 1e30, most = -1e30;
    for (const float v : x) {
      sum += v;
      least = std::min<double>(least, v);
      most = std::max<double>(most, v);
    }
    const double mean = sum / static_cast<double>(x.size());
    for (const float v : x) squares += (v - mean) * (v - mean);
    EXPECT_EQ(row["min"], least);
    EXPECT_EQ(row["max"], most);
    EXPECT_NEAR(row["mean"].get<double>(), mean, 1e-12);
    EXPECT_NEAR(row["std"].get<double>(), std::sqrt(squares / static_cast<double>(x.size())),
                1e-12);
  }
  const Json file = facts(w.path("run/final/model.safetensors"));
  EXPECT_EQ(file["kind"], "safetensors");
  EXPECT_EQ(file["metadata"]["format"], "pt");
  EXPECT_EQ(file["bytes"], slurp(w.path("run/final/model.safetensors")).size());
  EXPECT_FALSE(file["tensors"][0].contains("min"));
  // By its content when the name says nothing; values that are no numbers are counted.
  std::string bytes = slurp(w.path("run/final/model.safetensors"));
  const float bad[2] = {NAN, -INFINITY};
  std::memcpy(bytes.data() + bytes.size() - 8, bad, 8);
  spill(w.path("weights"), bytes);
  const Json damaged = facts(w.path("weights"), {"--stats"});
  EXPECT_EQ(damaged["kind"], "safetensors");
  EXPECT_EQ(damaged["not_finite"], 2);
  EXPECT_EQ(damaged["tensors"].back()["nan"], 1);
  EXPECT_EQ(damaged["tensors"].back()["inf"], 1);
  EXPECT_TRUE(std::isfinite(damaged["tensors"].back()["mean"].get<double>()));
}

TEST(Inspect, CheckpointsAndRuns) {
  const Workspace& w = trained();
  const Json c = facts(w.path("run/checkpoint-6"), {"--stats"});
  EXPECT_EQ(c["kind"], "checkpoint");
  EXPECT_EQ(c["complete"], true);
  EXPECT_EQ(c["step"], 6);
  EXPECT_EQ(c["samples"], 6 * 6);
  EXPECT_EQ(c["tokens_seen"], 6 * 6 * 32);
  const Json at_six = w.json("run/checkpoint-6/trainer_state.json");
  EXPECT_NEAR(c["epoch"].get<double>(), at_six["epoch"].get<double>(), 1e-6);
  EXPECT_EQ(c["tokens_seen"], at_six["num_input_tokens_seen"]);
  EXPECT_EQ(at_six["num_train_epochs"],
            std::ceil(12 * 6 / c["pinned"]["train_samples"].get<double>()))
      << "those that max_steps begins, as transformers' Trainer has it";
  EXPECT_EQ(c["pinned"]["global_batch"], 6);
  EXPECT_EQ(c["pinned"]["precision"], "fp32");
  const Json state = w.json("run/checkpoint-6/snug_state.json");
  EXPECT_EQ(c["pinned"]["attention"], state["pinned"]["attention"]);
  EXPECT_EQ(c["pinned"]["kernels"].size(), state["pinned"]["kernels"].size());
  EXPECT_EQ(c["hyperparameters"]["learning_rate"], "0.01");
  EXPECT_EQ(c["optimizer_tensors"].size(), 56u);
  EXPECT_EQ(c["not_finite"], 0);
  const Json r = facts(w.path("run"));
  EXPECT_EQ(r["kind"], "run");
  EXPECT_EQ(r["finished"], true);
  EXPECT_EQ(r["last_step"], 12);
  EXPECT_EQ(r["final"], true);
  EXPECT_EQ(r["checkpoints"].size(), 2u);
  EXPECT_EQ(r["checkpoints"][1]["step"], 12);

  // The best of a checkpoint may be of a step before it.
  w.trained("often", {"save_steps=6", "eval_steps=4", "data_seed=77"});
  const Json often = facts(w.path("often/checkpoint-6"));
  // Every key of what is pinned is that one's value.
  const Json kept = w.json("often/checkpoint-6/snug_state.json")["pinned"];
  int same = 0;
  for (const auto& [key, value] : often["pinned"].items())
    if (kept.contains(key) && kept[key].is_primitive()) {
      EXPECT_EQ(value, kept[key]) << key;
      ++same;
    }
  EXPECT_GE(same, 8);
  EXPECT_EQ(often["pinned"]["data_seed"], 77);
  // A run is known by its log alone.
  fs::create_directory(w.path("log"));
  fs::copy_file(w.path("often/metrics.jsonl"), w.path("log/metrics.jsonl"));
  EXPECT_EQ(facts(w.path("log"))["kind"], "run");
  EXPECT_EQ(facts(w.path("log"))["last_step"], 12);
  EXPECT_EQ(often["best_eval_step"], 4);
  for (const Json& line : w.metrics("often"))
    if (line["step"] == 4 && line.contains("eval_loss")) {
      EXPECT_NEAR(often["best_eval_loss"].get<double>(), line["eval_loss"].get<double>(), 1e-6);
    }

  fs::copy(w.path("run/checkpoint-6"), w.path("checkpoint-7"), fs::copy_options::recursive);
  fs::remove(w.path("checkpoint-7/COMPLETE"));
  const Json torn = facts(w.path("checkpoint-7/"));
  EXPECT_EQ(torn["complete"], false);
  EXPECT_NE(torn["problem"].get<std::string>().find("COMPLETE"), std::string::npos);
  // Trainer of Hugging Face gives whole models such a name.
  fs::create_directory(w.path("checkpoint-8"));
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(w.path(std::string("run/checkpoint-6/") + name), w.path("checkpoint-8"));
  EXPECT_EQ(facts(w.path("checkpoint-8"))["kind"], "model");
  fs::remove(w.path("checkpoint-8/model.safetensors"));
  EXPECT_EQ(facts(w.path("checkpoint-8"))["complete"], false);
  fs::copy(w.path("run/checkpoint-6/COMPLETE"), w.path("checkpoint-7/COMPLETE"));
  const std::string optimizer = slurp(w.path("checkpoint-7/optimizer.safetensors"));
  spill(w.path("checkpoint-7/optimizer.safetensors"), optimizer.substr(0, optimizer.size() - 1));
  const Outcome cut = run({"inspect", w.path("checkpoint-7")});
  EXPECT_EQ(cut.code, 2);
  EXPECT_NE(cut.err.find("optimizer.safetensors as it was written"), std::string::npos) << cut.err;
}

TEST(Inspect, TokenizersTokensAndGguf) {
  const Workspace& w = trained();
  for (const char* path : {"tok.json", "run/tokenizer"}) {
    const Json t = facts(w.path(path));
    EXPECT_EQ(t["kind"], "tokenizer");
    EXPECT_EQ(t["vocab_size"], 300);
    EXPECT_EQ(t["splitting_rule"], "gpt-2");
    EXPECT_EQ(t["added_tokens"][0]["content"], "<|endoftext|>");
    EXPECT_EQ(t["roles"]["eos"], t["added_tokens"][0]["id"]);
  }
  const Json tokens = facts(w.path("run/data/train.bin"), {"--stats"});
  EXPECT_EQ(tokens["kind"], "tokens");
  EXPECT_EQ(tokens["dtype"], "uint16");
  EXPECT_EQ(tokens["bytes"], fs::file_size(w.path("run/data/train.bin")));
  EXPECT_EQ(tokens["documents"], 1);
  EXPECT_EQ(tokens["vocab_size"], 300);
  EXPECT_EQ(tokens["tokenizer"], facts(w.path("tok.json"))["fingerprint"]);
  EXPECT_LT(tokens["max"], 300);
  // Without the side file the header still says whose tokens they are.
  fs::copy(w.path("run/data/train.bin"), w.path("lone.bin"));
  const Json lone = facts(w.path("lone.bin"));
  EXPECT_EQ(lone["vocab_size"], 300);
  EXPECT_EQ(lone["tokenizer"], tokens["tokenizer"]);
  // Another token than was written, which every reader refuses.
  std::string other = slurp(w.path("lone.bin"));
  other.back() = static_cast<char>(other.back() ^ 1);
  spill(w.path("other.bin"), other);
  const Outcome damaged = run({"inspect", w.path("other.bin"), "--stats"});
  EXPECT_EQ(damaged.code, 2) << damaged.out;
  EXPECT_NE(damaged.err.find("the tokens that were written to"), std::string::npos) << damaged.err;
  EXPECT_EQ(facts(w.path("other.bin"))["tokens"], lone["tokens"]);
  spill(w.path("raw.bin"), raw_tokens(numbered_tokens(50, 7)));
  const Json raw = facts(w.path("raw.bin"), {"--stats"});
  EXPECT_EQ(raw["tokens"], 50);
  EXPECT_EQ(raw["max"], 6);
  EXPECT_EQ(raw["documents"], nullptr);
  EXPECT_EQ(raw["bytes"], 100);
  EXPECT_EQ(raw["dtype"], "uint16");
  EXPECT_NE(raw["layout"].get<std::string>().find("nanoGPT"), std::string::npos);

  const Outcome converted = run({"convert", "--model", w.path("run/final"), "--to", "gguf",
                                 "--dtype", "q8_0", "--output", w.path("m.gguf")});
  ASSERT_EQ(converted.code, 0) << converted.err;
  const Json g = facts(w.path("m.gguf"), {"--stats"});
  EXPECT_EQ(g["kind"], "gguf");
  EXPECT_EQ(g["version"], 3);
  EXPECT_EQ(g["alignment"], 32);
  EXPECT_EQ(g["version"], 3);
  EXPECT_EQ(g["keys"]["general.architecture"], "\"gpt2\"");
  EXPECT_EQ(g["tensors"].size(), 29u);
  EXPECT_EQ(g["dtypes"]["Q8_0"], 10);
  EXPECT_EQ(g["not_finite"], 0);
  const Json model = facts(w.path("run/final"), {"--stats"});
  EXPECT_NEAR(g["tensors"][0]["std"].get<double>(), model["tensors"][0]["std"].get<double>(), 1e-3);
  const std::string counts = ": 29 tensors, " + model["parameters"].dump() + " parameters, ";
  EXPECT_NE(converted.out.find(counts), std::string::npos) << counts << converted.out;
}

TEST(Inspect, TextForAPerson) {
  const Workspace& w = trained();
  const Outcome o = run({"inspect", w.path("run/final"), w.path("tok.json")});
  EXPECT_EQ(o.code, 0);
  for (const char* part : {" model\n", "layers: 2", "tensors (28):", "transformer.wte.weight",
                           "[300, 32]", "\n\nkind:"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << "\n" << o.out.substr(0, 600);
  // Names in a file must not steer the terminal.
  std::string header = R"({"a\u001b[2J\u009b1m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  spill(w.path("evil.safetensors"), bytes + header + "x");
  const Outcome evil = run({"inspect", w.path("evil.safetensors")});
  EXPECT_EQ(evil.code, 0) << evil.err;
  EXPECT_EQ(evil.out.find('\x1b'), std::string::npos);
  EXPECT_NE(evil.out.find("a\\x1b[2J\\u009b1m"), std::string::npos) << evil.out;
}

TEST(Inspect, StrangersAreExplained) {
  const Workspace& w = trained();
  const auto refused = [&](const std::string& path, const std::vector<std::string>& words) {
    const Outcome o = run({"inspect", path});
    EXPECT_EQ(o.code, 2) << path << o.out;
    EXPECT_NE(o.err.find("\n  try:   "), std::string::npos) << o.err;
    for (const std::string& word : words)
      EXPECT_NE(o.err.find(word), std::string::npos) << "no \"" << word << "\" in:\n" << o.err;
  };
  const std::string kinds = "a safetensors or GGUF file, a model folder, an adapter, a checkpoint";
  refused(w.path("nowhere"), {kinds, "no such file or folder"});
  fs::create_directory(w.path("empty"));
  refused(w.path("empty"), {kinds, "a folder with none of their files"});
  spill(w.path("nothing"), "");
  refused(w.path("nothing"), {kinds, "an empty file"});
  refused(w.path("text.txt"), {kinds, "bytes that begin with \""});
  refused(w.path("run/final/config.json"),
          {"the folder of a model", "one file of it", "run/final"});
  const Outcome here = shell("cd " + w.path("run/final") + "; $SNUG inspect config.json");
  EXPECT_NE(here.err.find("  try:   snug inspect .\n"), std::string::npos) << here.err;
  refused(w.path("run/plan.json"), {"tokenizer"});
  for (const char* name : {"run/memory.json", "run/metrics.jsonl"})
    refused(w.path(name),
            {"the folder of a run", "one file of it", "snug inspect " + w.path("run")});
  spill(w.path("some.json"), "{}");
  refused(w.path("some.json"), {kinds, "JSON without the \"model\" of a tokenizer"});
  // A run whose memory.json is torn is looked at all the same.
  spill(w.path("run/memory.json"), "{\"finished\": tr");
  const Outcome torn = run({"inspect", w.path("run")});
  EXPECT_EQ(torn.code, 0) << torn.err;
  EXPECT_NE(torn.out.find("memory.json is left out: "), std::string::npos) << torn.out;
  spill(w.path("x.gguf"), "GGUF\3");
  refused(w.path("x.gguf"), {"the version at byte 4"});
  spill(w.path("x.safetensors"), "12345");
  refused(w.path("x.safetensors"), {"x.safetensors"});
  spill(w.path("odd.bin"), "abc");
  refused(w.path("odd.bin"), {"to be a token file"});
  // What PEFT saves is no model, and no checkpoint of ours whatever it is called.
  for (const char* name : {"adapter", "checkpoint-70"}) {
    fs::create_directory(w.path(name));
    const std::string folder = w.path(name) + "/";
    for (const char* file : {"tokenizer.json", "trainer_state.json"}) spill(folder + file, "{}");
    spill(folder + "adapter_config.json",
          R"({"base_model_name_or_path": "gpt2\u0007", "peft_type": "LORA", "r": 8})");
    refused(w.path(name), {kinds, "a PEFT adapter (LORA) for gpt2\\x07, without its weights"});
    spill(folder + "adapter_model.safetensors", "");
    refused(w.path(name), {"adapter_model.safetensors"});
    spill(folder + "adapter_config.json", "[]");
    refused(w.path(name), {"a JSON object", "adapter_config.json"});
    fs::remove_all(folder);
  }
  const Outcome none = run({"inspect"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("PATH"), std::string::npos) << none.err;
  // A side file that belongs to another token file.
  fs::copy(w.path("run/data/train.bin.json"), w.path("raw2.bin.json"));
  spill(w.path("raw2.bin"), raw_tokens(numbered_tokens(50, 7)));
  refused(w.path("raw2.bin"), {"as its side file says", "50"});
}

// Small damage to every kind of file: an answer or a three-part error, in little time.
TEST(Inspect, DamagedFilesAreSurvived) {
  const Workspace& w = trained();
  ASSERT_EQ(
      run({"convert", "--model", w.path("run/final"), "--to", "gguf", "--output", w.path("d.gguf")})
          .code,
      0);
  std::mt19937 random(7);
  for (const char* name : {"d.gguf", "run/final/model.safetensors", "tok.json",
                           "run/data/train.bin", "run/final/tokenizer.json"}) {
    const std::string good = slurp(w.path(name));
    const std::string path = w.path("damaged" + fs::path(name).extension().string());
    for (int round = 0; round < 12; ++round) {
      std::string bytes = good;
      for (int i = 0; i < 3; ++i)
        bytes[random() % std::min<size_t>(bytes.size(), 3000)] = static_cast<char>(random());
      if (round % 3 == 0) bytes.resize(random() % bytes.size());
      spill(path, bytes);
      const Outcome o = run({"inspect", path, "--stats"});
      EXPECT_TRUE(o.code == 0 || o.code == 2) << name << " " << round << ": " << o.code << o.err;
      if (o.code == 2) {
        EXPECT_NE(o.err.find("\n  try:   "), std::string::npos) << o.err;
      }
    }
  }
}

TEST(Doctor, SaysWhatThereIsAndWhatStandsInTheWay) {
  const Workspace w;
  const Outcome o = run({"doctor", "--folder", w.path("")});
  EXPECT_EQ(o.code, 0) << o.out;
  for (const char* line :
       {"cpu", "processors", "memory", "swap", "huge pages", "libraries", "OpenMP", "cuda", "disk",
        "limits", "terminal", "Nothing stands in the way of training."})
    EXPECT_NE(o.out.find(line), std::string::npos) << line << "\n" << o.out;
  const Outcome json = run({"doctor", "--json", "--folder", w.path("")});
  const Json j = Json::parse(json.out);
  EXPECT_EQ(j["problems"], 0);
  EXPECT_EQ(j["checks"].size(), 11u);
  for (const Json& check : j["checks"])
    for (const char* key : {"name", "level", "text", "advice", "facts"})
      EXPECT_TRUE(check.contains(key)) << check;
  const Outcome bad = run({"doctor", "--folder", "/proc"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.out.find("problem  disk"), std::string::npos) << bad.out;
  EXPECT_NE(bad.out.find("1 problem stands in the way"), std::string::npos) << bad.out;
  const Outcome limit = shell("ulimit -f 4096; $SNUG doctor --folder " + w.path(""));
  EXPECT_EQ(limit.code, 0);
  EXPECT_NE(limit.out.find("file size 2.00 MiB"), std::string::npos) << limit.out;
  EXPECT_NE(limit.out.find("ulimit -f unlimited"), std::string::npos) << limit.out;
  // Less than the test of writing takes: the limit is what stands in the way, and the disk is fine.
  const Outcome tight = shell("ulimit -f 64; $SNUG doctor --folder " + w.path(""));
  EXPECT_EQ(tight.code, 1) << tight.out << tight.err;
  EXPECT_NE(tight.out.find("note     disk"), std::string::npos) << tight.out;
  EXPECT_NE(tight.out.find("can be written up to the file size limit of 32.00 KiB"),
            std::string::npos)
      << tight.out;
  EXPECT_NE(tight.out.find("problem  limits"), std::string::npos) << tight.out;
  EXPECT_EQ(listing(w.path("")), (std::vector<std::string>{"text.txt", "tok.json"}));
}

// Limits just above and just below what a run needs, under the program itself.
TEST(Doctor, Thresholds) {
  const Workspace w;
  const auto expect_level = [&](const std::string& limit, const std::string& level, int code,
                                const std::string& advice) {
    const Outcome o = shell("ulimit " + limit + "; $SNUG doctor --folder " + w.path(""));
    EXPECT_EQ(o.code, code) << limit << o.out << o.err;
    for (const std::string& part : {level + " limits ", "-> " + advice})
      EXPECT_NE(o.out.find(part), std::string::npos) << limit << " " << part << "\nin " << o.out;
  };
  expect_level("-n 63", "note    ", 0, "ulimit -n 256");
  expect_level("-n 24", "note    ", 0, "ulimit -n 256");
  expect_level("-n 23", "problem ", 1, "ulimit -n 256");
  expect_level("-f 2048", "note    ", 0, "ulimit -f unlimited");
  expect_level("-f 2047", "problem ", 1, "ulimit -f unlimited");
  if (!program_has_sanitizer()) {  // whose shadow takes more than any limit
    expect_level("-v 524288", "note    ", 0, "ulimit -v unlimited");
    expect_level("-v 524287", "problem ", 1, "ulimit -v unlimited");
  }
  const Outcome enough = shell("ulimit -n 64; $SNUG doctor --folder " + w.path(""));
  EXPECT_EQ(enough.code, 0);
  EXPECT_EQ(enough.out.find("ulimit -n"), std::string::npos) << enough.out;
}

TEST(Version, NamesTheLibraries) {
  const Outcome o = run({"--version"});
  EXPECT_EQ(o.code, 0);
  for (const std::string name : {"zlib: ", "zstd: "}) {
    const size_t at = o.out.find("\n" + name);
    ASSERT_NE(at, std::string::npos) << name << "\nin " << o.out;
    EXPECT_NE(std::isdigit(o.out.at(at + 1 + name.size())), 0) << o.out;
  }
}

}  // namespace
}  // namespace snug::e2e
