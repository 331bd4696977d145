#include "tests/house/error_texts.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace snug::house {
namespace {

constexpr size_t kRun = 10;  // characters that make words distinctive

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// A string or character literal at s[i], or i: the index behind it.
size_t behind_literal(const std::string& s, size_t i) {
  const bool raw = s[i] == '"' && i > 0 && s[i - 1] == 'R' && (i < 2 || !is_word(s[i - 2]));
  if (raw) {
    const size_t open = s.find('(', i);
    if (open == std::string::npos) return s.size();
    const std::string close = ")" + s.substr(i + 1, open - i - 1) + "\"";
    const size_t end = s.find(close, open);
    return end == std::string::npos ? s.size() : end + close.size();
  }
  const char quote = s[i];
  if (quote != '"' && (quote != '\'' || (i > 0 && is_word(s[i - 1]))))
    return i;  // 1'000 is a number
  size_t j = i + 1;
  while (j < s.size() && s[j] != quote) j += s[j] == '\\' ? 2 : 1;
  return std::min(j + 1, s.size());
}

std::string without_comments(const std::string& s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    if (const size_t end = behind_literal(s, i); end != i) {
      out.append(s, i, end - i);
      i = end;
    } else if (s.compare(i, 2, "//") == 0) {
      i = std::min(s.find('\n', i), s.size());
    } else if (s.compare(i, 2, "/*") == 0) {
      const size_t stop = s.find("*/", i + 2);
      const size_t to = stop == std::string::npos ? s.size() : stop + 2;
      out.append(static_cast<size_t>(std::count(s.begin() + static_cast<std::ptrdiff_t>(i),
                                                s.begin() + static_cast<std::ptrdiff_t>(to), '\n')),
                 '\n');
      i = to;
    } else {
      out += s[i++];
    }
  }
  return out;
}

// The string literals of a piece of code, those side by side joined, escapes undone.
std::vector<std::string> literals(const std::string& code) {
  std::vector<std::string> out;
  bool joins = false;
  for (size_t i = 0; i < code.size();) {
    const size_t end = behind_literal(code, i);
    if (end == i || code[i] != '"') {
      joins = joins && (std::isspace(static_cast<unsigned char>(code[i])) != 0 || code[i] == 'R');
      i = std::max(end, i + 1);
      continue;
    }
    std::string text;
    if (code[end - 2] == ')' && i > 0 && code[i - 1] == 'R') {
      const size_t open = code.find('(', i);
      text = code.substr(open + 1, end - 1 - (open - i - 1) - 1 - (open + 1));
    } else {
      for (size_t j = i + 1; j + 1 < end; ++j) {
        if (code[j] == '\\') ++j;
        const bool escaped = code[j - 1] == '\\';
        text += escaped && code[j] == 'n' ? '\n' : escaped && code[j] == 't' ? '\t' : code[j];
      }
    }
    if (joins)
      out.back() += text;
    else
      out.push_back(std::move(text));
    joins = true;
    i = end;
  }
  return out;
}

// Runs of kRun characters of the text that stand outside the {} of a format.
template <class Take>
void each_run(const std::string& text, bool format, const Take& take) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool field = format && text[i] == '{' && text.find('}', i) != std::string::npos;
    if (field) {
      i = text.find('}', i);
      begin = i + 1;
    } else if (i + 1 >= begin + kRun) {
      take(std::string_view(text).substr(i + 1 - kRun, kRun));
    }
  }
}

// The arguments of the call whose bracket opens at s[open].
std::string arguments(const std::string& s, size_t open) {
  int depth = 0;
  for (size_t i = open; i < s.size();) {
    if (const size_t end = behind_literal(s, i); end != i) {
      i = end;
      continue;
    }
    if (s[i] == '(' || s[i] == '{' || s[i] == '[') ++depth;
    if ((s[i] == ')' || s[i] == '}' || s[i] == ']') && --depth == 0)
      return s.substr(open + 1, i - open - 1);
    ++i;
  }
  return "";
}

std::string code_in(const std::string& s, size_t from = 0) {
  const std::string mark = "ErrorCode::";
  size_t at = s.find(mark, from);
  if (at == std::string::npos) return "";
  size_t end = at += mark.size();
  while (end < s.size() && is_word(s[end])) ++end;
  return s.substr(at, end - at);
}

bool reachable(const std::string& code) {
  static const std::set<std::string> codes = {"data", "usage", "unsupported", "out_of_memory",
                                              "device"};
  return codes.contains(code);
}

struct Site {
  std::string path, text;
  int64_t line = 0;
  std::unordered_set<std::string> runs;
};

// Functions that end in fail(), by name, with the code they fail with; empty: their callers say it.
using Helpers = std::map<std::string, std::string>;

// The body of the function whose parameters open at s[open]; empty if it is only declared there.
std::string body_behind(const std::string& s, size_t open) {
  size_t at = open + arguments(s, open).size() + 2;
  const std::string_view words[] = {"const", "noexcept", "override"};
  for (bool skipped = true; skipped;) {
    skipped = false;
    while (at < s.size() && std::isspace(static_cast<unsigned char>(s[at])) != 0) ++at;
    for (const std::string_view word : words)
      if (s.compare(at, word.size(), word) == 0) {
        at += word.size();
        skipped = true;
      }
  }
  return at < s.size() && s[at] == '{' ? arguments(s, at) : "";
}

std::string word_before(const std::string& s, size_t end) {
  while (end > 0 && std::isspace(static_cast<unsigned char>(s[end - 1]))) --end;
  size_t begin = end;
  while (begin > 0 && is_word(s[begin - 1])) --begin;
  return s.substr(begin, end - begin);
}

// The [[noreturn]] functions that a file declares or defines.
Helpers declared(const std::string& s) {
  Helpers names;
  for (size_t at = 0; (at = s.find("[[noreturn]]", at)) != std::string::npos; ++at) {
    const size_t open = s.find('(', at);
    if (open == std::string::npos) break;
    const std::string name = word_before(s, open);
    if (name != "fail") names[name] = code_in(body_behind(s, open));
  }
  return names;
}

// The code of a function that a header only declares, from the file that defines it.
std::string defined_code(const Tree& code, const std::string& name) {
  for (const auto& [path, s] : code) {
    if (path.ends_with(".h")) continue;
    for (size_t at = s.find(name + "("); at != std::string::npos; at = s.find(name + "(", at + 1)) {
      const std::string body = body_behind(s, at + name.size());
      if ((at == 0 || !is_word(s[at - 1])) && !code_in(body).empty()) return code_in(body);
    }
  }
  return "";
}

// What headers declare for everybody: such functions, and the exceptions made of Error.
Helpers shared_helpers(const Tree& code) {
  Helpers names = {{"fail", ""}};
  const std::string mark = " : public Error {";
  for (const auto& [path, s] : code) {
    if (!path.ends_with(".h")) continue;
    for (const auto& [name, own] : declared(s))
      names[name] = own.empty() ? defined_code(code, name) : own;
    for (size_t at = 0; (at = s.find(mark, at)) != std::string::npos; ++at)
      names[word_before(s, at)] = "device";  // whichever: a user sees them
  }
  return names;
}

void collect(const std::string& path, const std::string& s, const Helpers& shared,
             std::vector<Site>& sites) {
  Helpers helpers = shared;
  for (const auto& [name, code] : declared(s))
    if (!code.empty() || !shared.contains(name)) helpers[name] = code;
  for (const auto& [name, own_code] : helpers) {
    for (size_t at = 0; (at = s.find(name + "(", at)) != std::string::npos; at += name.size()) {
      if (at > 0 && (is_word(s[at - 1]) || s[at - 1] == '.' || s[at - 1] == ':')) continue;
      const std::string call = arguments(s, at + name.size());
      const std::string code = code_in(call);
      if (!reachable(code.empty() ? own_code : code)) continue;
      Site site{path,
                "",
                1 + std::count(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
                {}};
      for (const std::string& text : literals(call)) {
        site.text += (site.text.empty() ? "" : " / ") + text;
        each_run(text, true, [&](std::string_view run) { site.runs.emplace(run); });
      }
      if (!site.runs.empty()) sites.push_back(std::move(site));
    }
  }
}

}  // namespace

Findings check_error_texts(const Tree& tree, const std::vector<Untested>& exempt) {
  std::vector<Site> sites;
  Tree code;                                   // without comments
  std::unordered_map<std::string, int> count;  // in how many calls a run of characters stands
  for (const auto& [path, content] : tree) {
    const bool is_code = path.ends_with(".cpp") || path.ends_with(".h") || path.ends_with(".cu") ||
                         path.ends_with(".cuh");
    if (is_code && !path.starts_with("tests/")) code[path] = without_comments(content);
  }
  const Helpers shared = shared_helpers(code);
  for (const auto& [path, content] : code) collect(path, content, shared, sites);
  for (const Site& site : sites)
    for (const std::string& run : site.runs) ++count[run];
  std::unordered_set<std::string> said;
  const auto say = [&](const std::string& text) {
    each_run(text, false, [&](std::string_view run) {
      const auto known = count.find(std::string(run));
      if (known != count.end()) said.insert(known->first);
    });
  };
  for (const auto& [path, content] : tree) {
    if (is_table_of_rows(path)) {
      std::istringstream lines(content);
      for (std::string line; std::getline(lines, line);) say(line);
    }
    if (!path.starts_with("tests/") || path.starts_with("tests/house/") ||
        !(path.ends_with(".cpp") || path.ends_with(".h")))
      continue;
    for (const std::string& text : literals(without_comments(content))) say(text);
  }
  Findings findings;
  std::set<size_t> used;
  for (const Site& site : sites) {
    const bool own = std::any_of(site.runs.begin(), site.runs.end(),
                                 [&](const std::string& run) { return count[run] == 1; });
    const bool tested = std::any_of(
        site.runs.begin(), site.runs.end(),
        [&](const std::string& run) { return (!own || count[run] == 1) && said.contains(run); });
    bool excused = false;
    for (size_t i = 0; i < exempt.size(); ++i)
      if (!tested && exempt[i].path == site.path &&
          site.text.find(exempt[i].fragment) != std::string::npos) {
        excused = true;
        used.insert(i);
      }
    if (!tested && !excused)
      findings.push_back(site.path + ":" + std::to_string(site.line) +
                         ": no test says what this says: " + site.text);
  }
  for (size_t i = 0; i < exempt.size(); ++i)
    if (!used.contains(i))
      findings.push_back(exempt[i].path + ": the exemption of \"" + exempt[i].fragment +
                         "\" fits no untested message");
  return findings;
}

const std::vector<Untested>& untested_errors() {
  static const std::vector<Untested> list = {
      {"engine/device/cpu_device.cpp", "mincore to report",
       "Linux has refused this call for no range that is mapped since 2.4"},
      {"engine/io/files.cpp", "to ask for the state of {}",
       "Linux refuses fstat of an open file only where the disk fails"},
      {"parallel/local_group.cpp", "the system to give ranks",
       "Linux refuses memfd_create and a mapping of it only where all memory is gone"},
      {"parallel/launch.cpp", "the system to start {} processes",
       "root, as whom tests run, has no limit on processes"},
      {"parallel/nccl_transport.cpp", "a thread that watches ranks",
       "root, as whom tests run, has no limit on processes"},
      {"layers/ops/attention_cudnn_cuda.cpp", "a handle that takes no stream",
       "no machine without a GPU, a driver and cuDNN comes there"},
      {"layers/ops/attention_cudnn_cuda.cpp", "cuDNN to run a graph",
       "no machine without a GPU, a driver and cuDNN comes there"},
      {"tools/setup/setup.cpp", "cuDNN for attn_implementation",
       "no machine without a GPU comes there"},
      {"engine/text/unicode.cpp", "text that Unicode normalisation accepts",
       "utf8proc refuses what is no UTF-8, which comes sanitised, and texts of 2 GiB and more"},
      {"tools/config/config_node.cpp", "a configuration without YAML aliases",
       "an alias needs an anchor before it, and anchors are refused"},
      {"tools/checkpoint/output_folder.cpp", "to remove {}",
       "root, as whom tests run, may remove whatever a file system lets anyone remove"},
  };
  return list;
}

}  // namespace snug::house
