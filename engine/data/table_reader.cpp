#include "engine/data/table_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

TableReader::TableReader(const std::string& path, char separator, int64_t max_record_bytes)
    : path_(path), separator_(separator), max_record_bytes_(max_record_bytes), reader_(path) {
  read_record(-1);
  columns_ = std::move(fields_);
  fields_.assign(1, "");
}

int64_t TableReader::find(std::string_view name) const {
  const auto at = std::find(columns_.begin(), columns_.end(), name);
  return at == columns_.end() ? -1 : at - columns_.begin();
}

bool TableReader::next(int64_t column, std::string& text) {
  const int64_t fields = read_record(column);
  if (fields == 0) return false;
  const auto columns = static_cast<int64_t>(columns_.size());
  if (fields != columns)
    fail(ErrorCode::data, fmt::format("{} fields in every record, as the first has", columns),
         fmt::format("{} in the record at {}", fields, where(record_line_)),
         separator_ == ',' ? "put text with commas, quotes or line breaks in \"quotes\""
                           : "put text with tabs, quotes or line breaks in \"quotes\"");
  text.swap(fields_[0]);
  return true;
}

std::string TableReader::where(int64_t line) const {
  return fmt::format("{}:{}", path_, line);
}

int TableReader::peek() {
  if (at_ == block_.size()) {
    if (!ended_) block_ = reader_.next();
    at_ = 0;
    ended_ = block_.empty();
    if (ended_) return -1;
  }
  return static_cast<unsigned char>(block_[at_]);
}

int64_t TableReader::read_record(int64_t column) {
  fields_.resize(column < 0 ? 0 : 1);
  if (column >= 0) fields_[0].clear();
  while (peek() == '\n' || peek() == '\r') {  // empty lines
    if (peek() == '\n') ++line_;
    take();
  }
  record_line_ = line_;
  if (peek() < 0) return 0;
  int64_t count = 0, bytes = 0;
  std::string unwanted;
  while (true) {  // a field
    // An empty name takes as much memory as some letters: a line of separators is bounded too.
    if (column < 0) bytes += static_cast<int64_t>(sizeof(std::string)), fields_.emplace_back();
    if (bytes > max_record_bytes_)
      fail(ErrorCode::data,
           fmt::format("a first line of at most {} bytes in {}", max_record_bytes_, path_),
           fmt::format("more than {} columns at {}", fields_.size() - 1, where(record_line_)),
           "look at what the file really is");
    const bool keep = column < 0 || column == count;
    std::string& field = !keep ? unwanted : column < 0 ? fields_.back() : fields_[0];
    const auto add = [&](int c) {
      if (++bytes > max_record_bytes_)
        fail(ErrorCode::data,
             fmt::format("records of at most {} bytes in {}", max_record_bytes_, path_),
             fmt::format("a longer one at {}", where(record_line_)),
             "look for a quote that is never closed there, or split the text");
      if (keep) field += static_cast<char>(c);
    };
    ++count;
    int c = peek();
    if (c == '"') {
      const int64_t opened = line_;
      take();
      while (true) {
        c = peek();
        if (c < 0)
          fail(ErrorCode::data, fmt::format("a closing quote in {}", path_),
               fmt::format("the end of the file; the quote was opened at {}", where(opened)),
               "close it, and write a quote inside quotes twice");
        take();
        if (c == '"') {
          if (peek() != '"') break;
          take();
        }
        if (c == '\n') ++line_;
        add(c);
      }
      c = peek();
      if (c == '\r') {  // of CRLF
        take();
        c = peek();
        if (c != '\n' && c >= 0) c = '\r';
      }
      if (c != separator_ && c != '\n' && c >= 0)
        fail(ErrorCode::data, "a separator or the end of the line after a closing quote",
             fmt::format("other text at {}", where(line_)),
             "put the whole field in quotes, and write a quote inside it twice");
    } else {
      while (c >= 0 && c != separator_ && c != '\n') {
        take();
        const int after = peek();
        if (!(c == '\r' && (after == '\n' || after < 0))) add(c);
        c = after;
      }
    }
    if (c == separator_) {
      take();
      continue;
    }
    if (c == '\n') {
      take();
      ++line_;
    }
    return count;
  }
}

}  // namespace snug
