#include "tests/tools/e2e/bad_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "tests/support/folders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

std::string message(const char* kind, const std::string& expected, const std::string& found,
                    const std::string& advice) {
  return std::string(kind) + ": expected " + expected + "\n  found: " + found +
         "\n  try:   " + advice;
}

}  // namespace

BadRow follows(BadRow row, const std::vector<std::string>& then, const std::vector<Make>& mend,
               const std::string& next) {
  row.then = then;
  row.mend = mend;
  row.next = next;
  return row;
}
BadRow unfollowed(BadRow row, const std::string& why) {
  row.unfollowed = why;
  return row;
}

std::string usage(const std::string& expected, const std::string& found,
                  const std::string& advice) {
  return message("usage", expected, found, advice);
}
std::string data(const std::string& expected, const std::string& found, const std::string& advice) {
  return message("data", expected, found, advice);
}
std::string unsupported(const std::string& expected, const std::string& found,
                        const std::string& advice) {
  return message("unsupported", expected, found, advice);
}
std::string device(const std::string& expected, const std::string& found,
                   const std::string& advice) {
  return message("device", expected, found, advice);
}
std::string too_small(const std::string& expected, const std::string& found,
                      const std::string& advice) {
  return message("out_of_memory", expected, found, advice);
}

Make file(const std::string& name, const std::string& content) {
  return [=](const Workspace& w) { spill(w.path(name), content); };
}
Make folder(const std::string& name) {
  return {[=](const Workspace& w) { fs::create_directories(w.path(name)); }, true};
}
Make copy(const std::string& from, const std::string& to) {
  const auto make = [=](const Workspace& w) {
    fs::copy(w.path(from), w.path(to), fs::copy_options::recursive);
  };
  return {make, true};
}
Make gone(const std::string& name) {
  return [=](const Workspace& w) { fs::remove_all(w.path(name)); };
}
Make bytes(const std::string& name, size_t at, const std::string& content) {
  return [=](const Workspace& w) {
    spill(w.path(name), slurp(w.path(name)).replace(at, content.size(), content));
  };
}
Make cut(const std::string& name, size_t count) {
  return [=](const Workspace& w) {
    const std::string all = slurp(w.path(name));
    spill(w.path(name), all.substr(0, all.size() - count));
  };
}
Make json(const std::string& name, const std::string& pointer, const Json& value) {
  return [=](const Workspace& w) {
    Json root = w.json(name);
    root[Json::json_pointer(pointer)] = value;
    spill(w.path(name), root.dump());
  };
}

Make sealed(const std::string& name) {
  return [=](const Workspace& w) { reseal(w.path(name)); };
}

std::string little(uint64_t value, int size) {
  std::string out;
  for (int i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i) & 255u);
  return out;
}
std::string safetensors(const std::string& header, size_t count) {
  return little(header.size(), 8) + header + std::string(count, '\0');
}
std::string counted(const std::string& text) {
  return little(text.size(), 8) + text;
}
std::string gguf(uint64_t tensors, uint64_t keys, const std::string& rest) {
  return "GGUF" + little(3, 4) + little(tensors, 8) + little(keys, 8) + rest;
}

namespace {

std::string repeated(const std::string& before, const std::string& piece,
                     const std::string& count) {
  std::string all = before;
  for (int i = std::stoi(count); i > 0; --i) all += piece;
  return all;
}

// `text` with @ for the workspace.
std::string placed(const Workspace& w, std::string text) {
  for (size_t at = 0; (at = text.find('@', at)) != std::string::npos;)
    text.replace(at, 1, w.path(""));
  return text;
}

// A command that must succeed; "..." as in a row's.
Make succeeds(std::vector<std::string> words) {
  return [words = std::move(words)](const Workspace& w) {
    std::vector<std::string> all;
    for (const std::string& word : words)
      if (word == "...")
        all = w.train_arguments("out");
      else
        all.push_back(placed(w, word));
    const Outcome o = run(all);
    EXPECT_EQ(o.code, 0) << o.out << o.err;
  };
}

Make shell_line(const std::string& line) {
  return [line](const Workspace& w) {
    const Outcome o = shell(placed(w, line));
    EXPECT_EQ(o.code, 0) << o.out << o.err;
  };
}

// Null: no make begins with this word.
Make make_of(const std::vector<std::string>& w) {
  const auto is = [&](const char* verb, size_t words) { return w[0] == verb && w.size() == words; };
  if (is("file", 3)) return file(w[1], w[2]);
  if (is("folder", 2)) return folder(w[1]);
  if (is("copy", 3)) return copy(w[1], w[2]);
  if (is("gone", 2)) return gone(w[1]);
  if (is("bytes", 4)) return bytes(w[1], std::stoul(w[2]), w[3]);
  if (is("cut", 3)) return cut(w[1], std::stoul(w[2]));
  if (is("json", 4)) return json(w[1], w[2], Json::parse(w[3]));
  if (is("sealed", 2)) return sealed(w[1]);
  if (is("tokens", 4))
    return file(w[1], raw_tokens(numbered_tokens(std::stoi(w[2]), std::stoi(w[3]))));
  if (is("sentences", 4))
    return file(w[1], sentences(std::stoi(w[2]), static_cast<unsigned>(std::stoi(w[3]))));
  if (is("file_repeated", 5)) return file(w[1], repeated(w[2], w[3], w[4]));
  if (is("bytes_repeated", 6)) return bytes(w[1], std::stoul(w[2]), repeated(w[3], w[4], w[5]));
  return nullptr;
}

// A line about what its advice makes of a row; false: it is none.
bool read_following(const std::vector<std::string>& words, const std::string& line, BadRow& row) {
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (rest.empty()) return false;
  if (words[0] == "then" && rest[0] == "snug") {
    row.then.assign(rest.begin() + 1, rest.end());
    return true;
  }
  if (words[0] == "next" || words[0] == "person") {
    (words[0] == "next" ? row.next : row.unfollowed) = line.substr(words[0].size() + 1);
    return true;
  }
  if (words[0] != "mend") return false;
  if (rest[0] == "stdin" && rest.size() == 2)
    row.then_input = rest[1];
  else if (rest[0] == "snug")
    row.mend.push_back(succeeds({rest.begin() + 1, rest.end()}));
  else if (rest[0] == "sh" && rest.size() == 2)
    row.mend.push_back(shell_line(rest[1]));
  else if (const Make make = make_of(rest))
    row.mend.push_back(make);
  else
    return false;
  return true;
}

}  // namespace

std::vector<BadRow> rows_of(const char* area) {
  const std::string path = source_folder() + "/tests/tools/e2e/bad/" + std::string(area) + ".txt";
  std::vector<BadRow> rows;
  std::istringstream text(slurp(path));
  bool command = false;  // of the row that is read
  int blank = 0;         // empty lines before this one
  for (std::string line; std::getline(text, line);) {
    if (line.empty()) {
      ++blank;
      continue;
    }
    if (line.front() == '[' && line.back() == ']' && (rows.empty() || blank > 0)) {
      rows.push_back({line.substr(1, line.size() - 2), {}, {}});
      command = false;
    } else if (rows.empty()) {
      throw std::runtime_error(path + ": a line before the first row: " + line);
    } else if (command) {
      BadRow& row = rows.back();
      if (!row.says.empty()) row.says += "\n" + std::string(static_cast<size_t>(blank), '\n');
      row.says += line;
    } else {
      BadRow& row = rows.back();
      std::vector<std::string> words = words_of(line);
      if (words.empty()) throw std::runtime_error(path + ": a line of spaces");
      if (words[0] == "snug") {
        words.erase(words.begin());
        row.words = words;
        command = true;
      } else if (words[0] == "exit" && words.size() == 2) {
        row.code = std::stoi(words[1]);
      } else if (words[0] == "stdin" && words.size() == 2) {
        row.input = words[1];
      } else if (const Make make = make_of(words)) {
        row.files.push_back(make);
      } else if (read_following(words, line, row)) {
      } else {
        throw std::runtime_error(path + ": a line that says nothing: " + line);
      }
    }
    blank = 0;
  }
  for (BadRow& row : rows) {
    constexpr std::string_view kNamed = "<NAMED>";
    for (size_t at; (at = row.says.find(kNamed)) != std::string::npos;)
      row.says.replace(at, kNamed.size(), NAMED_OTHERS);
  }
  return rows;
}

}  // namespace snug::e2e
