// Text of a file, packed or not (byte_source.h), in blocks or lines: checked to be UTF-8 without
// zero bytes, less a leading byte order mark, with line numbers for messages. Memory: a block of
// 256 KiB, and the longest line if lines are asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/byte_source.h"
#include "engine/io/long_buffer.h"

namespace snug {

class TextReader {
 public:
  explicit TextReader(const std::string& path, const WindowLimit& window = {});  // throws data

  // The next block of whole characters; empty at the end. Valid until the next call. Throws data
  // naming file, line and offset of the first byte that is not text (see is_text()).
  std::string_view next();
  // The next line, without its line break, LF or CRLF; in a file whose first block has CR and no LF
  // the breaks are CR. False at the end. Valid until the next call. Throws data for a line of more
  // than max_bytes, the same in every call; `advice` is then said too. After lines were read,
  // next() is not to be used.
  bool next_line(std::string_view& line, int64_t max_bytes, const std::string& advice = "");
  // The bytes of that line, which may be written over.
  char* line_bytes() { return line_text_ ? line_text_->data() : nullptr; }
  // The number of the last line that next_line gave, from 1.
  int64_t line() const { return line_; }
  // What ends the lines, known once something was read: LF, which a CR may stand before, or CR.
  char line_break() const { return break_; }

 private:
  int64_t fill();  // the offset of the first bad byte in the block, or -1
  friend bool is_text(const std::string& path, const WindowLimit& window);

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> block_;
  int64_t size_ = 0, checked_ = 0;  // bytes in the block; of them, whole characters
  int64_t offset_ = 0;              // of the block in the text
  int64_t breaks_ = 0;              // line breaks before the block
  bool ended_ = false;
  std::string_view rest_;  // of the block, for lines
  std::optional<LongBuffer> line_text_;
  int64_t line_ = 0;
  char break_ = '\n';
};

// True if the whole file is text. Throws data if it is packed and damaged.
bool is_text(const std::string& path, const WindowLimit& window = {});

// Throws data: what stands at `bad` in `text`, the beginning of `path` or all of it, is no text.
// Names the encoding that it is in where that can be seen, and how it is converted. `lines` and
// `offset`: what of the file lies before `text`.
[[noreturn]] void fail_not_text(const std::string& path, std::string_view text, int64_t bad,
                                int64_t lines = 0, int64_t offset = 0);

// The number of leading bytes of `text` that are whole characters of well-formed UTF-8 other than
// zero (Unicode 15, table 3-7).
int64_t text_prefix(std::string_view text);

// Throws data if what came on standard input is UTF-16 or UTF-32.
void refuse_wide_text(std::string_view text);

// For messages: at most `most` bytes of the beginning of `text`, which do not end inside of a
// character of UTF-8.
std::string_view text_beginning(std::string_view text, size_t most);

}  // namespace snug
