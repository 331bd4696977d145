#include "engine/data/json_records.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/long_buffer.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

using json = nlohmann::json;
using Each = std::function<void(json&, const std::string&, std::string_view)>;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void give(json record, const std::string& where, std::string_view text, const Each& each) {
  if (!record.is_object())
    fail(ErrorCode::data, "a JSON object for every row",
         fmt::format("{}: {}", where, json_brief(record)),
         "write each row as {\"text\": \"...\", \"label\": ...}, on a line of its own or in one "
         "array");
  each(record, where, text);
}

// The elements of the array that a file is.
class ArrayReader {
 public:
  ArrayReader(const std::string& path, int64_t max_bytes, const std::string& longer,
              const WindowLimit& window)
      : path_(path), longer_(longer), reader_(path, window), element_(max_bytes) {}

  void read(const Each& each) {
    skip_space();
    take();  // the bracket that was seen
    skip_space();
    if (peek() == ']') return end();
    for (int64_t number = 1;; ++number) {
      skip_space();
      const int64_t line = line_;
      const char close = gather(line);
      const std::string where = fmt::format("{}:{}", path_, line);
      give(parse_json(element_.view(), fmt::format("{}, record {} of its array", where, number)),
           where, element_.view(), each);
      if (close == ']') return end();
    }
  }

 private:
  int peek() {
    if (at_ == block_.size() && !ended_) {
      block_ = reader_.next();
      at_ = 0;
      ended_ = block_.empty();
    }
    return ended_ ? -1 : static_cast<unsigned char>(block_[at_]);
  }
  void take() {
    if (block_[at_++] == '\n') ++line_;
  }
  void skip_space() {
    while (peek() >= 0 && is_space(static_cast<char>(peek()))) take();
  }
  // The text up to the comma or bracket behind an element, which is returned.
  char gather(int64_t begun) {
    element_.cut(0);
    bool in_string = false, escaped = false;
    int64_t depth = 0;
    while (true) {
      const int next = peek();
      if (next < 0)
        fail(ErrorCode::data, fmt::format("the bracket that ends the array in {}", path_),
             fmt::format("the end of the file, in a record that begins at {}:{}", path_, begun),
             "look whether the file was written to its end");
      const char c = static_cast<char>(next);
      take();
      if (!in_string && depth == 0 && (c == ',' || c == ']')) return c;
      if (element_.size() == element_.capacity())
        fail(ErrorCode::data,
             fmt::format("rows of at most {} bytes in {}", element_.capacity(), path_),
             fmt::format("a longer record at {}:{}", path_, begun),
             "split it, or cut its text" + longer_);
      element_.push_back(c);
      if (in_string) {
        if (c == '"' && !escaped) in_string = false;
        escaped = c == '\\' && !escaped;
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        --depth;
      }
    }
  }
  void end() {
    if (peek() == ']') take();
    skip_space();
    if (peek() >= 0)
      fail(ErrorCode::data, fmt::format("nothing behind the array in {}", path_),
           fmt::format("more at {}:{}", path_, line_),
           "keep one array of objects, or write an object a line");
  }

  std::string path_, longer_;
  TextReader reader_;
  std::string_view block_;
  size_t at_ = 0;
  bool ended_ = false;
  int64_t line_ = 1;
  LongBuffer element_;
};

bool begins_array(const std::string& path, const WindowLimit& window) {
  TextReader reader(path, window);
  while (true) {
    const std::string_view block = reader.next();
    for (const char c : block)
      if (!is_space(c)) return c == '[';
    if (block.empty()) return false;
  }
}

}  // namespace

void for_each_json_record(const std::string& path, int64_t max_bytes, const std::string& longer,
                          const WindowLimit& window, const Each& each) {
  if (begins_array(path, window)) return ArrayReader(path, max_bytes, longer, window).read(each);
  TextReader reader(path, window);
  std::string_view line;
  while (reader.next_line(line, max_bytes, longer)) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    give(parse_json(line, path, reader.line()), fmt::format("{}:{}", path, reader.line()), line,
         each);
  }
}

}  // namespace snug
