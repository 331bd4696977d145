// Prompts from a file, packed or not: .jsonl, an object a line with the key "prompt"; any other
// name, text, a prompt a line (LF, CRLF, or CR alone ends it). Lines without a character but white
// space are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

// The file is read once and its prompts are held: it may change while a long batch runs.
class PromptFile {
 public:
  // Reads every line once. Throws data, naming file:line, also for bytes that are not UTF-8 or
  // zero; and if there is no prompt.
  explicit PromptFile(const std::string& path);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  std::string prompt(int64_t i) const;
  std::string where(int64_t i) const;  // file:line

 private:
  struct Line {
    int64_t begin, end, number;
  };
  std::string read(const Line& line) const;

  std::string path_;
  bool json_;
  std::string text_;
  std::vector<Line> lines_;
};

}  // namespace snug
