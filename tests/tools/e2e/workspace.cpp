#include "tests/tools/e2e/workspace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace snug::e2e {

namespace fs = std::filesystem;

std::string sentences(int count, unsigned seed) {
  const char* const who[] = {"the cat", "a dog", "my old friend", "the river", "one small bird"};
  const char* const does[] = {"sees", "finds", "follows", "remembers", "crosses", "opens"};
  const char* const what[] = {"the long road", "a red door", "some warm bread", "the quiet sea",
                              "nine green stones"};
  std::mt19937 random(seed);  // its numbers, unlike those of distributions, are fixed by C++
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += who[random() % 5];
    text += std::string(" ") + does[random() % 6];
    text += std::string(" ") + what[random() % 5] + ".\n";
  }
  return text;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void spill(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

bool exists(const std::string& path) {
  return fs::exists(path);
}

std::vector<std::string> listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.push_back(fs::relative(entry.path(), folder).string() +
                    (entry.is_directory() ? "/" : ""));
  std::sort(names.begin(), names.end());
  return names;
}

std::string raw_tokens(const std::vector<uint16_t>& ids) {
  std::string bytes;
  for (const uint16_t id : ids) {
    bytes += static_cast<char>(id & 255);
    bytes += static_cast<char>(id >> 8);
  }
  return bytes;
}

std::vector<uint16_t> numbered_tokens(int count, int vocabulary) {
  std::vector<uint16_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(static_cast<uint16_t>(i % vocabulary));
  return ids;
}

Workspace::Workspace() {
  // In memory where there is such a folder: the runs are many and small, and wait for every file.
  const std::string base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path();
  std::string name = base + "/snug-e2e-XXXXXX";
  folder_ = mkdtemp(name.data());
  // A calibration of the machine belongs to its user: runs of a test find their own or none.
  setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  spill(path("text.txt"), sentences(400, 1));
  const Outcome made = run({"tokenizer", "train", "--vocab-size", "300", "--output",
                            path("tok.json"), path("text.txt")});
  EXPECT_EQ(made.code, 0) << made.err;
}

Workspace::~Workspace() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::vector<std::string> Workspace::train_arguments(const std::string& name,
                                                    const std::vector<std::string>& more) const {
  std::vector<std::string> words = {
      "train",
      "model={type: gpt2, n_layer: 2, n_embd: 32, n_head: 4, n_positions: 64, resid_pdrop: 0.1, "
      "embd_pdrop: 0.1, attn_pdrop: 0.1}",
      "tokenizer=" + path("tok.json"),
      "train_data=" + path("text.txt"),
      "eval_fraction=0.1",
      "max_length=32",
      "global_batch_size=6",
      "max_steps=12",
      "learning_rate=0.01",
      "logging_steps=1",
      "threads=1",
      "memory=64MiB",
      "output_dir=" + path(name)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome Workspace::train(const std::string& name, const std::vector<std::string>& more) const {
  return run(train_arguments(name, more));
}

Outcome Workspace::trained(const std::string& name, const std::vector<std::string>& more) const {
  Outcome outcome = train(name, more);
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  return outcome;
}

Json Workspace::plan(const std::vector<std::string>& more) const {
  std::vector<std::string> words = train_arguments("planned", more);
  words[0] = "plan";
  words.emplace_back("--json");
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

std::vector<Json> Workspace::metrics(const std::string& name) const {
  std::istringstream in(slurp(path(name + "/metrics.jsonl")));
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  EXPECT_FALSE(lines.empty()) << name;
  if (lines.empty()) lines.emplace_back();  // so that a test that goes on fails and does not crash
  return lines;
}

std::string Workspace::curve(const std::string& name) const {
  std::istringstream in(slurp(path(name + "/metrics.jsonl")));
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"sample\":") != line.npos) continue;  // no number of the training
    kept += line.substr(
                0, std::min(line.find(",\"tokens_per_second\""), line.find(",\"eval_runtime\""))) +
            "\n";
  }
  return kept;
}

std::vector<double> Workspace::losses(const std::string& name) const {
  std::vector<double> list;
  for (const Json& line : metrics(name))
    if (line.contains("loss")) list.push_back(line["loss"].get<double>());
  return list;
}

double Workspace::last_eval_loss(const std::string& name) const {
  double loss = -1;
  for (const Json& line : metrics(name))
    if (line.contains("eval_loss")) loss = line["eval_loss"].get<double>();
  return loss;
}

void expect_planned_is_measured(const Workspace& w, const std::string& name) {
  const Json memory = w.json(name + "/memory.json");
  EXPECT_EQ(memory["planned_engine_bytes"], memory["measured_engine_bytes"]);
  EXPECT_EQ(memory["planned_engine_bytes"], w.json(name + "/plan.json")["engine_bytes"]);
  EXPECT_EQ(memory["planned_host_bytes"], memory["measured_host_bytes"]);
  EXPECT_EQ(memory["planned_host_bytes"], w.json(name + "/plan.json")["host_bytes"]);
  EXPECT_EQ(memory["planned_disk_bytes"], w.json(name + "/plan.json")["disk_bytes"]);
  if (memory["planned_disk_bytes"] > 0) {
    EXPECT_EQ(memory["planned_disk_bytes"], memory["disk"]["measured_bytes"]);
  }
  EXPECT_EQ(memory["allocations_after_start"], no_allocations());
  EXPECT_GT(memory["measured_runtime_bytes"], 0);
  if (no_allocations() == Json(0)) {
    EXPECT_LE(memory["measured_runtime_bytes"], memory["planned_runtime_bytes"]);
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  for (size_t at = 0; at < line.size();) {
    if (line[at] == ' ') {
      ++at;
      continue;
    }
    std::string word;
    if (line[at] != '"') {
      const size_t end = std::min(line.find(' ', at), line.size());
      word = line.substr(at, end - at);
      at = end;
    } else {
      for (++at; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') {
          word += line[at];
          continue;
        }
        const char kind = line.at(++at);
        if (kind == 'x') {
          word += static_cast<char>(std::stoi(line.substr(at + 1, 2), nullptr, 16));
          at += 2;
        } else {
          constexpr std::string_view kNames = "ntr\"\\", kMeant = "\n\t\r\"\\";
          const size_t which = kNames.find(kind);
          if (which == std::string_view::npos)
            throw std::runtime_error("a backslash before something else: " + line);
          word += kMeant[which];
        }
      }
      if (at++ >= line.size()) throw std::runtime_error("a word without its end: " + line);
    }
    words.push_back(word);
  }
  return words;
}

std::string expanded(const Workspace& w, std::string text) {
  for (size_t at = 0; (at = text.find('@', at)) != std::string::npos;)
    text.replace(at, 1, w.path(""));
  return text;
}

}  // namespace snug::e2e
