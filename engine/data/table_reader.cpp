#include "engine/data/table_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

TableReader::TableReader(const std::string& path, char separator, bool quotes,
                         int64_t max_record_bytes, std::string advice, const WindowLimit& window)
    : path_(path),
      separator_(separator),
      quotes_(quotes),
      max_record_bytes_(max_record_bytes),
      advice_(std::move(advice)),
      reader_(path, window),
      field_(max_record_bytes) {
  read_record({}, true);
}

int64_t TableReader::find(std::string_view name) const {
  const auto at = std::find(columns_.begin(), columns_.end(), name);
  return at == columns_.end() ? -1 : at - columns_.begin();
}

bool TableReader::next(std::span<const int64_t> wanted, std::span<std::string_view> out) {
  ends_.assign(2 * wanted.size(), 0);
  const int64_t fields = read_record(wanted, false);
  if (fields == 0) return false;
  const auto columns = static_cast<int64_t>(columns_.size());
  if (fields != columns)
    fail(ErrorCode::data, fmt::format("{} fields in every record, as the first has", columns),
         fmt::format("{} in the record at {}", fields, where(record_line_)),
         !quotes_
             ? "text without tabs or line breaks, or quoting=minimal and such text in \"quotes\""
         : separator_ == ',' ? "put text with commas, quotes or line breaks in \"quotes\""
                             : "put text with tabs, quotes or line breaks in \"quotes\"");
  for (size_t i = 0; i < wanted.size(); ++i)
    out[i] = field_.view().substr(static_cast<size_t>(ends_[2 * i]),
                                  static_cast<size_t>(ends_[2 * i + 1] - ends_[2 * i]));
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

int64_t TableReader::read_record(std::span<const int64_t> wanted, bool first) {
  field_.cut(0);
  peek();
  const char end = reader_.line_break();
  while (peek() == '\n' || peek() == '\r') {  // empty lines
    if (peek() == end) ++line_;
    take();
  }
  record_line_ = line_;
  if (peek() < 0) return 0;
  int64_t count = 0, bytes = 0;
  // Names of columns take three times their bytes while their list grows.
  const int64_t names =
      std::min(max_record_bytes_, std::max(max_record_bytes_ / 3, int64_t{1} << 20));
  const int64_t most = first ? names : max_record_bytes_;
  while (true) {  // a field
    // An empty name takes as much memory as some letters: a line of separators is bounded too.
    if (first) bytes += static_cast<int64_t>(sizeof(std::string)), columns_.emplace_back();
    if (bytes > most)
      fail(ErrorCode::data, fmt::format("a first line of at most {} bytes in {}", most, path_),
           fmt::format("more than {} columns at {}", columns_.size() - 1, where(record_line_)),
           "look at what the file really is");
    const auto kept = std::find(wanted.begin(), wanted.end(), count);
    const bool keep = kept != wanted.end();
    const int64_t begin = field_.size();
    const auto add = [&](int c) {
      if (++bytes > most)
        fail(ErrorCode::data, fmt::format("records of at most {} bytes in {}", most, path_),
             fmt::format("a longer one at {}", where(record_line_)),
             "look for a quote that is never closed there, or split the text" + advice_);
      if (keep) field_.push_back(static_cast<char>(c));
      if (first) columns_.back() += static_cast<char>(c);
    };
    ++count;
    int c = peek();
    if (c == '"' && quotes_) {
      const int64_t opened = line_;
      take();
      while (true) {
        c = peek();
        if (c < 0)
          fail(ErrorCode::data, fmt::format("a closing quote in {}", path_),
               fmt::format("the end of the file; the quote was opened at {}", where(opened)),
               "close it, and write a quote inside quotes twice; or quoting=none (--quoting none "
               "of eval, predict and tokenizer), where quotes stand for themselves");
        take();
        if (c == '"') {
          if (peek() != '"') break;
          take();
        }
        if (c == end) {
          if (quoted_breaks_++ == 0) first_quoted_break_ = line_;
          ++line_;
        }
        add(c);
      }
      c = peek();
      if (c == '\r' && end == '\n') {  // of CRLF
        take();
        c = peek();
        if (c != '\n' && c >= 0) c = '\r';
      }
      if (c != separator_ && c != end && c >= 0)
        fail(ErrorCode::data, "a separator or the end of the line after a closing quote",
             fmt::format("other text at {}", where(line_)),
             "put the whole field in quotes, and write a quote inside it twice; or quoting=none "
             "(--quoting none of eval, predict and tokenizer), where quotes stand for themselves");
    } else {
      while (c >= 0 && c != separator_ && c != end) {
        take();
        const int after = peek();
        if (!(c == '\r' && (after == '\n' || after < 0))) add(c);
        c = after;
      }
    }
    if (keep) {
      const size_t i = 2 * static_cast<size_t>(kept - wanted.begin());
      ends_[i] = begin, ends_[i + 1] = field_.size();
    }
    if (c == separator_) {
      take();
      continue;
    }
    if (c == end) {
      take();
      ++line_;
    }
    return count;
  }
}

}  // namespace snug
