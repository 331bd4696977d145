#include "tests/house/checks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>

namespace snug::house {
namespace {

constexpr int kMaxLines = 600;
const std::array<std::string, 7> kTopFolders = {"engine",   "layers", "optim", "quant",
                                                "parallel", "tools",  "tests"};

using Allowed = std::map<std::string, std::set<std::string>>;

// A folder may always include itself.
const Allowed kMayInclude = {
    {"engine", {}},
    {"quant", {"engine"}},
    {"layers", {"engine", "quant"}},
    {"optim", {"engine", "quant"}},
    {"parallel", {"engine", "quant"}},
    {"tools", {"engine", "quant", "layers", "optim", "parallel"}},
    {"tests", {"engine", "quant", "layers", "optim", "parallel", "tools"}},
};

// Each subfolder of engine may include those before it.
Allowed engine_order() {
  Allowed allowed;
  std::set<std::string> earlier;
  for (const char* folder : {"core", "device", "memory", "seams", "simt", "kernels", "stores",
                             "blas", "io", "text", "data"}) {
    allowed[folder] = earlier;
    earlier.insert(folder);
  }
  return allowed;
}

// Each room of tools may include those before it; commands lie above all of them.
Allowed tools_order() {
  Allowed allowed = {{"config", {}}, {"cli", {"config"}}, {"convert", {}}};
  std::set<std::string> earlier = {"config", "cli"};
  for (const std::vector<const char*>& floor :
       std::vector<std::vector<const char*>>{{"session"},
                                             {"costs"},
                                             {"planner"},
                                             {"calibrate", "report"},
                                             {"setup"},
                                             {"checkpoint", "infer"},
                                             {"trainer"}}) {
    for (const char* room : floor) allowed[room] = earlier;
    earlier.insert(floor.begin(), floor.end());
  }
  allowed["explain"] = {"costs", "planner", "report", "setup"};
  allowed["codes"] = {"report"};
  earlier.insert({"codes", "convert"});
  allowed["inspect"] = earlier;
  earlier.insert({"explain", "inspect"});
  allowed[""] = earlier;
  return allowed;
}

const std::map<std::string, Allowed> kSubfolders = {
    {"engine", engine_order()},
    {"tools", tools_order()},
    {"layers",
     {{"ops", {}},
      {"parts", {"ops"}},
      {"adapters", {"ops", "parts"}},
      {"models", {"ops", "parts", "adapters"}},
      {"tasks", {"ops", "parts", "models"}}}},
};

std::string extension(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}
bool is_header(const std::string& path) {
  return extension(path) == ".h" || extension(path) == ".cuh";
}
bool is_cpp(const std::string& path) {
  return is_header(path) || extension(path) == ".cpp" || extension(path) == ".cu";
}
bool is_source(const std::string& path) {
  return is_cpp(path) || extension(path) == ".py" || extension(path) == ".sh" ||
         path.starts_with(".ci/");
}
constexpr const char* kLongTests = "tests/long.txt";

bool is_text(const std::string& path) {
  static const std::set<std::string> kinds = {".md", ".cmake", ".yaml", ".yml"};
  return is_source(path) || is_table_of_rows(path) || kinds.contains(extension(path)) ||
         path.ends_with("CMakeLists.txt") || path == kLongTests ||
         (path.starts_with('.') && path.find('/') == std::string::npos);
}

// The idx-th folder of a path ("" if the path has none there): 0 of engine/core/error.h is engine.
std::string folder_of(const std::string& path, int idx) {
  size_t begin = 0;
  for (int i = 0;; ++i) {
    const size_t end = path.find('/', begin);
    if (end == std::string::npos) return "";
    if (i == idx) return path.substr(begin, end - begin);
    begin = end + 1;
  }
}

std::vector<std::string> lines_of(const std::string& content) {
  std::vector<std::string> lines;
  std::istringstream in(content);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(const std::string& s) {
  const size_t begin = s.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

bool is_comment(const std::string& line) {
  return line.starts_with("//") || line.starts_with("/*");
}

std::string at(const std::string& path, int64_t line, const std::string& what) {
  return path + ":" + std::to_string(line) + ": " + what;
}

std::string listed(const std::set<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "nothing else" : "only " + out;
}

// Whole-word search: letters, digits and _ on either side make it another word.
bool has_word(const std::string& line, const std::string& word) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (size_t i = line.find(word); i != std::string::npos; i = line.find(word, i + 1)) {
    const size_t end = i + word.size();
    if ((i == 0 || !is_part(line[i - 1])) && (end == line.size() || !is_part(line[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Tree read_tree(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  Tree tree;
  const auto add = [&](const fs::path& file) {
    const std::string path = file.lexically_relative(root).generic_string();
    tree[path] = "";
    if (!is_text(path)) return;
    std::ifstream in(file, std::ios::binary);
    tree[path].assign(std::istreambuf_iterator<char>(in), {});
  };
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) add(entry.path());
  }
  std::vector<std::string> folders(kTopFolders.begin(), kTopFolders.end());
  folders.push_back(".ci");
  for (const auto& folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const bool hidden = entry.path().filename().string().starts_with('.');
      if (entry.is_regular_file() && !hidden) add(entry.path());
    }
  }
  return tree;
}

std::vector<std::string> read_top_level(const std::filesystem::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::vector<Include> parse_includes(const std::string& content) {
  std::vector<Include> includes;
  const std::vector<std::string> lines = lines_of(content);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string rest = trimmed(lines[i]);
    if (!rest.starts_with('#')) continue;
    rest = trimmed(rest.substr(1));
    if (!rest.starts_with("include")) continue;
    rest = trimmed(rest.substr(std::string("include").size()));
    Include include{static_cast<int>(i + 1), 0, ""};
    if (rest.starts_with('"') || rest.starts_with('<')) {
      include.kind = rest[0];
      const size_t end = rest.find(rest[0] == '"' ? '"' : '>', 1);
      include.path = rest.substr(1, end == std::string::npos ? end : end - 1);
    }
    includes.push_back(include);
  }
  return includes;
}

Findings check_includes_resolve(const Tree& tree) {
  Findings findings;
  for (const auto& [path, content] : tree) {
    if (!is_cpp(path)) continue;
    for (const Include& include : parse_includes(content)) {
      const bool ours = tree.contains(include.path);
      if (include.kind == 0) {
        findings.push_back(at(path, include.line, "an include through a macro cannot be checked"));
      } else if (include.kind == '"' && !ours) {
        findings.push_back(at(path, include.line,
                              "\"" + include.path +
                                  "\" is no file of the repository; write it "
                                  "from the root, or with <> if it is a library's"));
      } else if (include.kind == '<' && ours) {
        findings.push_back(at(path, include.line, "<" + include.path + "> is ours; quote it"));
      }
    }
  }
  return findings;
}

Findings check_layering(const Tree& tree) {
  Findings findings;
  const auto judge = [&](const std::string& where, const Allowed& allowed, const std::string& from,
                         const std::string& to) {
    const auto rule = allowed.find(from);
    if (rule == allowed.end()) {
      findings.push_back(where + " lies in " + from + "/, which the layout does not name");
    } else if (from != to && !rule->second.contains(to)) {
      findings.push_back(where + "; besides itself " + from + " may include " +
                         listed(rule->second));
    }
  };
  for (const auto& [path, content] : tree) {
    if (!is_cpp(path)) continue;
    const std::string from = folder_of(path, 0), from_sub = folder_of(path, 1);
    const auto subfolders = kSubfolders.find(from);
    if (subfolders != kSubfolders.end() && !subfolders->second.contains(from_sub)) {
      findings.push_back(at(path, 1, "the layout has no folder " + from + "/" + from_sub));
      continue;
    }
    for (const Include& include : parse_includes(content)) {
      const std::string to = folder_of(include.path, 0);
      if (!kMayInclude.contains(to)) continue;  // a library, or caught as unresolved
      const std::string where = at(path, include.line, "includes " + include.path);
      judge(where, kMayInclude, from, to);
      if (from == to && subfolders != kSubfolders.end()) {
        judge(where, subfolders->second, from_sub, folder_of(include.path, 1));
      }
    }
  }
  return findings;
}

Findings check_include_cycles(const Tree& tree) {
  Findings findings;
  std::set<std::string> done;
  std::vector<std::string> chain;  // the files being visited, outermost first
  const std::function<void(const std::string&)> visit = [&](const std::string& path) {
    const auto seen = std::find(chain.begin(), chain.end(), path);
    if (seen != chain.end()) {
      std::string text;
      for (auto it = seen; it != chain.end(); ++it) text += *it + " -> ";
      findings.push_back("include cycle: " + text + path);
      return;
    }
    if (done.contains(path)) return;
    chain.push_back(path);
    for (const Include& include : parse_includes(tree.at(path))) {
      if (tree.contains(include.path)) visit(include.path);
    }
    chain.pop_back();
    done.insert(path);
  };
  for (const auto& [path, content] : tree) {
    if (is_cpp(path)) visit(path);
  }
  return findings;
}

Findings check_json_headers(const Tree& tree) {
  static const std::set<std::string> kMay = {"engine/io/json.h", "engine/text/json_text.h",
                                             "tools/inspect/machine.h"};
  Findings findings;
  for (const auto& [path, content] : tree) {
    if (!path.ends_with(".h") || path.starts_with("tests/") || kMay.contains(path)) continue;
    for (const Include& include : parse_includes(content))
      if (include.path == "nlohmann/json.hpp")
        findings.push_back(path + ": a header includes <nlohmann/json.hpp>, not json_fwd.hpp");
  }
  return findings;
}

Findings check_file_length(const Tree& tree) {
  Findings findings;
  for (const auto& [path, content] : tree) {
    const auto lines = static_cast<int64_t>(lines_of(content).size());
    if (is_source(path) && lines > kMaxLines) {
      findings.push_back(
          at(path, lines,
             "the limit is " + std::to_string(kMaxLines) + " lines; split the file by ideas"));
    }
  }
  return findings;
}

Findings check_readmes(const Tree& tree) {
  std::set<std::string> folders, source_folders;
  for (const auto& [path, content] : tree) {
    const std::string top = folder_of(path, 0), sub = folder_of(path, 1);
    if (!is_source(path) || !kMayInclude.contains(top)) continue;
    folders.insert(top);
    if (!sub.empty() && folder_of(path, 2).empty()) folders.insert(top + "/" + sub);
  }
  Findings findings;
  for (const auto& folder : folders) {
    const bool mirror = folder.starts_with("tests/") && kMayInclude.contains(folder.substr(6));
    if (mirror) continue;
    const auto readme = tree.find(folder + "/README.md");
    if (readme == tree.end()) {
      findings.push_back(folder + "/ holds sources and has no README.md");
    } else if (trimmed(lines_of(readme->second + "\n").front()).empty()) {
      findings.push_back(at(readme->first, 1, "opens with an empty line; begin with the idea"));
    }
  }
  return findings;
}

Findings check_pragma_once(const Tree& tree) {
  Findings findings;
  for (const auto& [path, content] : tree) {
    if (!is_header(path)) continue;
    bool found = false, in_block = false;
    int number = 0;
    for (const std::string& raw : lines_of(content)) {
      ++number;
      const std::string line = trimmed(raw);
      if (in_block || line.starts_with("/*")) {
        in_block = line.find("*/") == std::string::npos;
        continue;
      }
      if (line.empty() || line.starts_with("//")) continue;
      found = line == "#pragma once";
      break;
    }
    if (!found) {
      findings.push_back(at(path, number, "the first line of code in a header is #pragma once"));
    }
  }
  return findings;
}

Findings check_header_comments(const Tree& tree) {
  Findings findings;
  for (const auto& [path, content] : tree) {
    const std::string top = folder_of(path, 0);
    if (!is_header(path) || top == "tests" || top == "tools" || !kMayInclude.contains(top))
      continue;
    bool found = false;
    for (const std::string& raw : lines_of(content)) {
      const std::string line = trimmed(raw);
      if (line.empty() || line == "#pragma once") continue;
      found = is_comment(line);
      break;
    }
    if (!found) findings.push_back(at(path, 1, "a header opens with a comment: its contract"));
  }
  return findings;
}

Findings check_text(const Tree& tree) {
  // Written in two halves so that this file passes its own check.
  const std::array<std::string, 2> marks = {std::string("TO") + "DO", std::string("FIX") + "ME"};
  Findings findings;
  for (const auto& [path, content] : tree) {
    if (!is_text(path)) continue;
    int number = 0;
    for (const std::string& line : lines_of(content)) {
      ++number;
      if (is_cpp(path) && line.find('\t') != std::string::npos) {
        findings.push_back(at(path, number, "a tab; C++ is indented with spaces"));
      }
      if (!line.empty() && std::string(" \t\r").find(line.back()) != std::string::npos) {
        findings.push_back(at(path, number, "white space at the end of the line"));
      }
      for (const auto& mark : marks) {
        if (has_word(line, mark)) {
          findings.push_back(at(path, number, mark + ": finish it, or say what holds today"));
        }
      }
    }
  }
  return findings;
}

Findings check_long_tests(const Tree& tree) {
  std::string tests;
  for (const auto& [path, content] : tree)
    if (path.starts_with("tests/") && path.ends_with(".cpp")) tests += content;
  Findings findings;
  int number = 0;
  for (const std::string& line : lines_of(tree.contains(kLongTests) ? tree.at(kLongTests) : "")) {
    ++number;
    const size_t dot = line.find('.');
    if (line.empty() || line.starts_with('#')) continue;
    if (dot == std::string::npos || tests.find("(" + line.substr(0, dot) + ", " +
                                               line.substr(dot + 1) + ")") == std::string::npos)
      findings.push_back(at(kLongTests, number, line + " is no test; name one as Suite.Test"));
  }
  return findings;
}

Findings check_top_level(const std::vector<std::string>& names) {
  std::set<std::string> fixed(kTopFolders.begin(), kTopFolders.end());
  fixed.insert({"CMakeLists.txt", "README.md"});
  Findings findings;
  for (const std::string& name : names) {
    const bool output = name.starts_with("build") || name == "runs";
    if (!fixed.contains(name) && !name.starts_with('.') && !output) {
      findings.push_back(name + ": the top level is fixed; find it a place in a folder");
    }
  }
  for (const std::string& name : fixed) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      findings.push_back(name + ": missing at the top level");
    }
  }
  return findings;
}

}  // namespace snug::house
