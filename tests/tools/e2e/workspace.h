// A temporary folder with a text, a tokenizer and what every run of these tests shares.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/folders.h"
#include "tests/tools/e2e/process.h"

namespace snug::e2e {

using Json = nlohmann::json;

// Sentences over a small vocabulary, the same for the same seed: a tiny model learns them fast.
std::string sentences(int count, unsigned seed);

std::string slurp(const std::string& path);
void spill(const std::string& path, const std::string& content);
bool exists(const std::string& path);
// Names below a folder, sorted, folders with a slash at the end.
std::vector<std::string> listing(const std::string& folder);
// ids as nanoGPT writes them: uint16, nothing else.
std::string raw_tokens(const std::vector<uint16_t>& ids);
std::vector<uint16_t> numbered_tokens(int count, int vocabulary);

// text.txt, tok.json (300 tokens) and runs, all in a folder that goes away with the object.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // `snug train` with a small common config, output_dir=path(name), and `more` after it.
  std::vector<std::string> train_arguments(const std::string& name,
                                           const std::vector<std::string>& more = {}) const;
  Outcome train(const std::string& name, const std::vector<std::string>& more = {}) const;
  // The same, and it must succeed.
  Outcome trained(const std::string& name, const std::vector<std::string>& more = {}) const;
  // `snug plan --json` of the same config; it must fit.
  Json plan(const std::vector<std::string>& more = {}) const;

  Json json(const std::string& name) const { return Json::parse(slurp(path(name))); }
  // Lines of name/metrics.jsonl.
  std::vector<Json> metrics(const std::string& name) const;
  // What a resume must not change in them: each line up to the first time or rate.
  std::string curve(const std::string& name) const;
  // `loss` of the training lines.
  std::vector<double> losses(const std::string& name) const;
  double last_eval_loss(const std::string& name) const;

 private:
  std::string folder_;
};

// The words of a line of a table: one with spaces stands in quotes, with \n \t \r \" \\ and \x7f.
std::vector<std::string> words_of(const std::string& line);
// `text` with the workspace in place of every @.
std::string expanded(const Workspace& w, std::string text);

// `allocations_after_start` of a run that made none: a sanitizer brings its own malloc, and then
// nothing is counted.
inline Json no_allocations() {
  return program_has_sanitizer() ? Json(nullptr) : Json(0);
}

// memory.json of a finished run: what was planned is what the system measured, and nothing was
// allocated after the start.
void expect_planned_is_measured(const Workspace& w, const std::string& name);

}  // namespace snug::e2e
