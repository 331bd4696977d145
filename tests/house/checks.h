// The house rules as pure functions. Each takes the tree as a map from path to content, so that a
// test can hand it a small bad tree in memory and see the fault caught. A finding is one line,
// "path:line: what is wrong and what holds"; no findings means the rule holds.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace snug::house {

using Tree = std::map<std::string, std::string>;  // path from the repository root -> content
using Findings = std::vector<std::string>;

// A table of wrong inputs with what is said of them, all of whose text is a test's.
inline bool is_table_of_rows(const std::string& path) {
  return path.starts_with("tests/tools/e2e/bad/") && path.ends_with(".txt");
}

struct Include {
  int line = 0;
  char kind = 0;     // '"', '<', or 0 when the name comes from a macro
  std::string path;  // as written, empty for kind 0
};

// Every file of the top folders and of .ci, and the files of the top level itself. Files whose name
// starts with a dot are left out below the top level. The content of binary and data files is
// left empty: only their existence counts.
Tree read_tree(const std::filesystem::path& root);

// Names of what lies at the top level, dotfiles included.
std::vector<std::string> read_top_level(const std::filesystem::path& root);

// All #include lines. Lines inside comments or disabled by #if count too, unless the line starts
// with the comment.
std::vector<Include> parse_includes(const std::string& content);

// An include of our own is quoted, written from the root and names a file that exists.
Findings check_includes_resolve(const Tree& tree);

// Who may include whom, between top folders and between the subfolders of engine and layers.
Findings check_layering(const Tree& tree);

// No file reaches itself through its includes; the finding prints the whole chain.
Findings check_include_cycles(const Tree& tree);

// Headers declare what has to do with JSON by <nlohmann/json_fwd.hpp>; the whole library, half a
// second of every file that sees it, is for .cpp files and the headers that say they are for these.
Findings check_json_headers(const Tree& tree);

// No source file has more than 600 lines.
Findings check_file_length(const Tree& tree);

// A top folder with sources, and each folder below it that directly holds sources, has a README.md
// with text in it. The folders of tests that mirror a source folder share that folder's idea and
// need none.
Findings check_readmes(const Tree& tree);

// The first line of code in a header is #pragma once.
Findings check_pragma_once(const Tree& tree);

// A header of the library opens with a comment, before or right after #pragma once.
Findings check_header_comments(const Tree& tree);

// No tabs in C++, no trailing white space, no marks of unfinished work.
Findings check_text(const Tree& tree);

// What tests/long.txt names, Suite.Test, is a test.
Findings check_long_tests(const Tree& tree);

// The top level holds the fixed names, dotfiles, build folders and runs, and nothing else.
Findings check_top_level(const std::vector<std::string>& names);

}  // namespace snug::house
