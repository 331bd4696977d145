// Records of a table: CSV as RFC 4180 has it, TSV with tabs for commas. The first record names the
// columns. With quotes, which CSV has and TSV has not unless asked for, a field in quotes may hold
// separators and line breaks, and a quote as two; quotes inside a field that does not begin with
// one stand for themselves, as all do without. Line breaks are LF or CRLF, or CR in a file without
// LF; empty lines are skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/text_reader.h"

namespace snug {

class TableReader {
 public:
  // Reads the names of the columns; none if the file is empty. Throws data on what is no table:
  // text behind a closing quote, a quote that is never closed, a record of more than
  // max_record_bytes, a first one of more than a third and a MiB; `advice` is said of that too.
  TableReader(const std::string& path, char separator, bool quotes, int64_t max_record_bytes,
              std::string advice = "", const WindowLimit& window = {});

  const std::vector<std::string>& columns() const { return columns_; }
  // The number of a column, or -1.
  int64_t find(std::string_view name) const;
  // Field `column` of the next record, unquoted; false at the end. Throws data as above, and for
  // another number of fields than there are columns; each message names file and line. Valid until
  // the next call.
  bool next(int64_t column, std::string_view& text) { return next({&column, 1}, {&text, 1}); }
  // The same of several columns, no column twice.
  bool next(std::span<const int64_t> columns, std::span<std::string_view> fields);
  int64_t line() const { return record_line_; }  // where that record begins, from 1
  // Line breaks inside of quotes so far, and the line of the first.
  int64_t quoted_breaks() const { return quoted_breaks_; }
  int64_t first_quoted_break() const { return first_quoted_break_; }

 private:
  // Reads a record; keeps the fields `wanted`, of the first record all in columns_. The number of
  // fields, 0 at the end.
  int64_t read_record(std::span<const int64_t> wanted, bool first);
  int peek();  // the next byte, or -1 at the end
  void take() { ++at_; }
  std::string where(int64_t line) const;

  std::string path_;
  char separator_;
  bool quotes_;
  int64_t max_record_bytes_;
  std::string advice_;
  TextReader reader_;
  std::string_view block_;
  size_t at_ = 0;
  bool ended_ = false;
  int64_t line_ = 1, record_line_ = 1;
  int64_t quoted_breaks_ = 0, first_quoted_break_ = 0;
  std::vector<std::string> columns_;
  LongBuffer field_;           // those that are kept, one after the other
  std::vector<int64_t> ends_;  // pairs: where each wanted field begins and ends there
};

}  // namespace snug
