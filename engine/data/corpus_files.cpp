// From sources to files: folders and patterns.
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/io/files.h"
#include "engine/text/unicode.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

bool is_pattern(const std::string& text) {
  return text.find_first_of("*?[") != std::string::npos;
}

bool is_hidden(const std::string& name) {
  return !name.empty() && name.front() == '.';
}

// Folders of build results: many generated files that nobody means by "my source folder".
bool is_build(const std::string& name) {
  return name == "build" || name.rfind("build-", 0) == 0 || name.rfind("build_", 0) == 0;
}

[[noreturn]] void fail_folder(const fs::path& folder, const std::string& reason) {
  fail(ErrorCode::data, fmt::format("a readable folder {}", folder.string()), reason,
       "check its permissions, or leave it out");
}

struct Names {
  std::vector<std::string> files, folders, links;  // sorted; links to folders
};

// Links to files are files.
Names list(const fs::path& folder) {
  Names names;
  std::error_code code;
  fs::directory_iterator it(folder, code);
  for (; !code && it != fs::directory_iterator(); it.increment(code)) {
    std::error_code gone;  // a dangling link or a file just removed is no entry
    const std::string name = it->path().filename().string();
    if (it->is_directory(gone))
      (it->is_symlink(gone) ? names.links : names.folders).push_back(name);
    if (it->is_regular_file(gone)) names.files.push_back(name);
  }
  if (code) fail_folder(folder, code.message());
  for (auto* some : {&names.files, &names.folders, &names.links})
    std::sort(some->begin(), some->end());
  return names;
}

// Folders and links to folders, sorted.
std::vector<std::string> subfolders(const Names& names) {
  std::vector<std::string> all;
  std::merge(names.folders.begin(), names.folders.end(), names.links.begin(), names.links.end(),
             std::back_inserter(all));
  return all;
}

bool has(const fs::path& folder, const char* name) {
  return file_exists((folder / name).string());
}

bool is_tokenizer_folder(const fs::path& folder) {
  const bool config = has(folder, "tokenizer_config.json"), merges = has(folder, "merges.txt"),
             words = has(folder, "vocab.txt"), vocab = has(folder, "vocab.json");
  return (words && config) || (vocab && merges) ||
         (has(folder, "tokenizer.json") && (config || merges || words || vocab));
}

// A run, a checkpoint, or a model.
bool is_run_or_model(const fs::path& folder) {
  if (has(folder, "config.resolved.yaml") &&
      (has(folder, "metrics.jsonl") || has(folder, "plan.json")))
    return true;
  if (has(folder, "COMPLETE") && has(folder, "snug_state.json")) return true;
  if (!has(folder, "config.json") && !has(folder, "adapter_config.json")) return false;
  std::error_code code;
  for (fs::directory_iterator it(folder, code); !code && it != fs::directory_iterator();
       it.increment(code))
    if (const std::string name = it->path().filename().string();
        name.ends_with(".safetensors") || name.starts_with("pytorch_model") ||
        name.starts_with("adapter_model"))
      return true;
  return false;
}

// What the programs that train make is no text to train on, and there is more of it with every run.
bool is_product(const fs::path& folder) {
  return is_run_or_model(folder) || is_tokenizer_folder(folder);
}

// A tokenizer.json by any name: what every such file begins with.
bool is_tokenizer(const std::string& path) {
  if (!path.ends_with(".json")) return false;
  std::string start(4096, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(in.gcount()));
  if (const size_t first = start.find_first_not_of(" \t\r\n");
      first == std::string::npos || start[first] != '{')
    return false;
  for (const char* key : {"\"version\"", "\"truncation\"", "\"padding\"", "\"added_tokens\""})
    if (start.find(key) == std::string::npos) return false;
  return true;
}

// What is not looked into, by whatever name or link it is there.
class PassedOver {
 public:
  explicit PassedOver(const std::string& left_out) : left_out_(left_out) {}
  bool has(const fs::path& folder) {
    std::error_code ignored;
    if (!left_out_.empty() && fs::equivalent(folder, left_out_, ignored)) return true;
    return is_product(folder) && note(folder);
  }
  bool has_file(const std::string& path) { return is_tokenizer(path) && note(path); }
  const std::vector<std::string>& products() const { return products_; }

 private:
  bool note(const fs::path& path) {
    std::error_code ignored;
    if (known_.insert(fs::weakly_canonical(path, ignored).string()).second)
      products_.push_back(path.lexically_normal().string());
    return true;
  }
  const std::string& left_out_;
  std::set<std::string> known_;
  std::vector<std::string> products_;
};

// A folder and all below it, each once: links can lead in circles, and to what is there already.
// The path without a link is the one that counts, else the first.
class Walk {
 public:
  using Each = std::function<void(const fs::path&, const Names&)>;
  Walk(bool builds, PassedOver& passed, const Each& each)
      : builds_(builds), passed_(passed), each_(each) {}
  // An empty folder is the current one.
  void run(const fs::path& folder) {
    if (claim(folder)) visit(folder);
  }

 private:
  bool wanted(const std::string& name) const {
    return !is_hidden(name) && (builds_ || !is_build(name));
  }
  // False for a folder that has its path already, or is gone. Those below follow, links aside.
  bool claim(const fs::path& folder) {
    const fs::path here = folder.empty() ? fs::path(".") : folder;
    struct stat info {};
    if (::stat(here.c_str(), &info) != 0 || !known_.emplace(info.st_dev, info.st_ino).second)
      return false;
    const Names& names = paths_[folder.string()] = list(here);
    for (const std::string& name : names.folders)
      if (wanted(name)) claim_below(folder / name);
    return true;
  }
  void claim_below(const fs::path& folder) {
    if (!passed_.has(folder)) claim(folder);
  }
  void visit(const fs::path& folder) {
    const auto at = paths_.find(folder.string());
    if (at == paths_.end()) return;  // the folder has another path
    const Names names = std::move(at->second);
    paths_.erase(at);
    each_(folder, names);
    for (const std::string& name : subfolders(names)) {
      if (!wanted(name)) continue;
      if (std::binary_search(names.links.begin(), names.links.end(), name))
        claim_below(folder / name);
      visit(folder / name);
    }
  }

  const bool builds_;
  PassedOver& passed_;
  const Each& each_;
  std::set<std::pair<dev_t, ino_t>> known_;
  std::map<std::string, Names> paths_;  // claimed, to be visited
};

void walk(const fs::path& folder, PassedOver& passed, std::vector<std::string>* out) {
  const Walk::Each each = [&](const fs::path& here, const Names& names) {
    for (const std::string& name : names.files)
      if (!is_hidden(name)) out->push_back((here / name).string());
  };
  Walk(false, passed, each).run(folder);
}

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

// parts[at...] below `folder`; an empty folder is the current one.
void glob(const fs::path& folder, const std::vector<std::string>& parts, size_t at,
          PassedOver& passed, std::set<std::string>* out) {
  const fs::path here = folder.empty() ? fs::path(".") : folder;
  const std::string& part = parts[at];
  const bool last = at + 1 == parts.size();
  std::error_code ignored;
  if (!is_pattern(part)) {
    const fs::path next = folder / part;
    if (last && fs::is_regular_file(next, ignored)) out->insert(next.string());
    if (!last && fs::is_directory(next, ignored)) glob(next, parts, at + 1, passed, out);
    return;
  }
  if (!fs::is_directory(here, ignored)) return;
  if (part == "**") {
    const Walk::Each each = [&](const fs::path& below, const Names& names) {
      if (!last) return glob(below, parts, at + 1, passed, out);
      for (const std::string& name : names.files)
        if (!is_hidden(name)) out->insert((below / name).string());
    };
    Walk(true, passed, each).run(folder);
    return;
  }
  const Names names = list(here);
  for (const std::string& name : last ? names.files : subfolders(names)) {
    if (!matches(part, name)) continue;
    if (last)
      out->insert((folder / name).string());
    else if (!passed.has(folder / name))
      glob(folder / name, parts, at + 1, passed, out);
  }
}

std::set<std::string> glob(const std::string& pattern, PassedOver& passed) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(pattern).relative_path())
    if (!part.empty() && (parts.empty() || part != "**" || parts.back() != "**"))
      parts.push_back(part.string());
  std::set<std::string> out;
  if (!parts.empty()) glob(fs::path(pattern).root_path(), parts, 0, passed, &out);
  return out;
}

}  // namespace

std::vector<CorpusFile> expand_corpus(const std::vector<std::string>& sources,
                                      const std::string& left_out,
                                      std::vector<std::string>* products) {
  if (sources.empty())
    fail(ErrorCode::data, "a file, folder or pattern of training text", "an empty list",
         "set train_data");
  std::vector<CorpusFile> out;
  std::set<std::string> seen;
  PassedOver passed(left_out);
  const auto fail_empty = [&](const std::string& expected, const char* found, const char* advice) {
    if (passed.products().empty()) fail(ErrorCode::data, expected, found, advice);
    fail(ErrorCode::data, expected,
         fmt::format("none but {}, which {} left out", products_text(passed.products()),
                     passed.products().size() == 1 ? "is" : "are"),
         "name the files themselves");
  };
  const auto add = [&](const std::string& path, bool named) {
    if (seen.insert(fs::path(path).lexically_normal().string()).second)
      out.push_back({path, named});
  };
  for (const std::string& source : sources) {
    std::error_code ignored;
    if (fs::is_directory(source, ignored)) {
      // Texts do lie beside a tokenizer that was made of them.
      if (is_run_or_model(source))
        fail(ErrorCode::data, fmt::format("a folder of texts, {}", source),
             "a run or a model, whose own files are no text to learn from",
             fmt::format("name the files themselves, as in '{}/*.txt'", source));
      std::vector<std::string> files;
      walk(source, passed, &files);
      std::erase_if(files, [&](const std::string& file) { return passed.has_file(file); });
      if (files.empty())
        fail_empty(fmt::format("files in the folder {}", source),
                   "none, hidden ones and build folders aside", "check the path");
      for (const std::string& file : files) add(file, false);
    } else if (file_exists(source) || !is_pattern(source)) {
      if (!file_exists(source))
        fail(ErrorCode::data, fmt::format("a file, folder or pattern '{}'", source),
             fs::exists(source, ignored) ? "a device, pipe or socket" : "nothing of that name",
             source.find(',') != std::string::npos
                 ? "several are a list: [a.txt, b.txt]"
                 : "check the path; relative paths start at the current folder");
      add(source, true);
    } else {
      std::set<std::string> files = glob(source, passed);
      std::erase_if(files, [&](const std::string& file) { return passed.has_file(file); });
      if (files.empty())
        fail_empty(fmt::format("files that match '{}'", source), "none",
                   "check the pattern; * and ? stay within one name, ** crosses folders");
      for (const std::string& file : files) add(file, true);
    }
  }
  if (products) *products = passed.products();
  return out;
}

std::string products_text(const std::vector<std::string>& products) {
  return fmt::format("{} run{s}, model{s} or tokenizer{s}, e.g. {}", products.size(),
                     printable_utf8(products.front(), LineBreaks::shown),
                     fmt::arg("s", products.size() == 1 ? "" : "s"));
}

}  // namespace snug
