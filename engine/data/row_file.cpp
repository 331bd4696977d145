// Reading row files. Writing is row_file_writer.cpp.
#include "engine/data/row_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/data/row_header.h"
#include "engine/io/fingerprint.h"

namespace snug {

namespace h = row_header;

bool is_row_file(const std::string& path) {
  char mark[8] = {};
  return InputFile(path).read_at(0, mark, 8) == 8 && std::memcmp(mark, h::kMark, 8) == 0;
}

std::vector<std::string> row_side_files(const std::string& path) {
  return {path + h::kIndex};
}

RowFile::RowFile(const std::string& path, std::optional<uint64_t> tokenizer) {
  rows_ = WatchedFile(path);
  rows_.input().expect_jumps(true);
  read_header();
  open_index();
  if (tokenizer && facts_.tokenizer != 0 && facts_.tokenizer != *tokenizer)
    fail(ErrorCode::data,
         fmt::format("{} to hold rows of this run's tokenizer, {}", path,
                     fingerprint_text(*tokenizer)),
         fmt::format("rows of tokenizer {}", fingerprint_text(facts_.tokenizer)), h::kMakeAgain);
}

void RowFile::read_header() {
  h::Header head;
  const int64_t got = rows_.input().read_at(0, &head, h::kBytes);
  if (got < h::kBytes || std::memcmp(head.mark, h::kMark, 8) != 0)
    fail(ErrorCode::data, fmt::format("a file of rows in {}", path()),
         fmt::format("{} bytes that do not begin with \"{}\"", rows_.size(), h::kMark),
         "give a file that write_rows made, or the text itself");
  if (head.version != h::kVersion)
    fail(ErrorCode::data, fmt::format("version {} in the header of rows {}", h::kVersion, path()),
         fmt::format("{}", head.version), h::kMakeAgain);
  const std::string_view own(reinterpret_cast<const char*>(&head), h::kDigestedBytes);
  if (snug::fingerprint(own) != head.own_digest)
    fail(ErrorCode::data, fmt::format("the header of rows that was written to {}", path()),
         "another: its digest does not fit it", h::kMakeAgain);
  RowForm& form = facts_.form;
  form.types = (head.form & h::kHasTypes) != 0;
  form.token_labels = (head.form & h::kHasTokenLabels) != 0;
  form.label = static_cast<RowLabel>(head.form >> h::kLabelShift);
  form.values = head.values;
  const bool values = form.label == RowLabel::values;
  const int64_t room = rows_.size() - h::kBytes, most = room / 4;
  bool good = head.form >= 0 && form.label <= RowLabel::values &&
              (values ? form.values >= 1 && form.values <= h::kMostValues : form.values == 0);
  for (const int64_t count : {head.rows, head.tokens, head.longest, head.vocab_size,
                              head.type_count, head.class_count, head.report_bytes})
    good = good && count >= 0;
  // Divided, so that no count of a header overflows.
  good = good && head.rows <= head.tokens && head.longest <= head.tokens &&
         head.tokens <= most / h::token_words(form) &&
         head.rows <= most / std::max<int64_t>(h::label_words(form), 1);
  const int64_t bytes =
      !good ? 0 : 4 * (head.tokens * h::token_words(form) + head.rows * h::label_words(form));
  if (!good || bytes + head.report_bytes != room)
    fail(ErrorCode::data,
         fmt::format("a header and rows of it in {}: {} of {} tokens", path(), head.rows,
                     head.tokens),
         fmt::format("{} bytes", rows_.size()), h::kMakeAgain);
  facts_.rows = head.rows;
  facts_.tokens = head.tokens;
  facts_.longest = head.longest;
  facts_.vocab_size = head.vocab_size;
  facts_.type_count = head.type_count;
  facts_.class_count = head.class_count;
  facts_.tokenizer = head.tokenizer;
  facts_.source = head.source;
  digest_ = head.digest;
  index_digest_ = head.index_digest;
  report_at_ = h::kBytes + bytes;
  report_bytes_ = head.report_bytes;
}

void RowFile::open_index() {
  const std::string index = path() + h::kIndex;
  index_ = WatchedFile(index);
  h::IndexHeader head;
  const int64_t got = index_.input().read_at(0, &head, h::kIndexBytes);
  if (got < h::kIndexBytes || std::memcmp(head.mark, h::kIndexMark, 8) != 0 ||
      head.version != h::kIndexVersion)
    fail(ErrorCode::data, fmt::format("an index of rows in {}", index),
         "something else, or another version of it", h::kMakeAgain);
  const int64_t room = index_.size() - h::kIndexBytes;
  if (head.rows != facts_.rows || head.rows_digest != digest_ || room % 8 != 0 ||
      room / 8 != facts_.rows || index_.digest(h::kIndexBytes) != index_digest_)
    fail(ErrorCode::data, fmt::format("the index of the {} rows of {}", facts_.rows, path()),
         fmt::format("one of {} rows, or of others, in {}", head.rows, index), h::kMakeAgain);
  std::array<int64_t, 512> ends;
  int64_t before = 0, longest = 0;
  for (int64_t row = 0; row < facts_.rows; row += 512) {
    const int64_t count = std::min<int64_t>(512, facts_.rows - row);
    index_.read(h::kIndexBytes + 8 * row, ends.data(), 8 * count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = ends[static_cast<size_t>(i)];
      if (end <= before || end > facts_.tokens)
        fail(ErrorCode::data,
             fmt::format("row ends that rise from above {} to {} in {}", before, facts_.tokens,
                         index),
             fmt::format("{} for row {}", end, row + i), h::kMakeAgain);
      longest = std::max(longest, end - before);
      before = end;
    }
  }
  if (before != facts_.tokens || longest != facts_.longest)
    fail(ErrorCode::data,
         fmt::format("{} tokens in all rows and {} in the longest, as {} says", facts_.tokens,
                     facts_.longest, path()),
         fmt::format("{} and {} in {}", before, longest, index), h::kMakeAgain);
}

RowReport RowFile::report() const {
  std::string text(static_cast<size_t>(report_bytes_), '\0');
  rows_.read(report_at_, text.data(), report_bytes_);
  return h::read_report(text, path());
}

RowFile::Place RowFile::place(int64_t row) const {
  require(row >= 0 && row < facts_.rows, "a row inside the file");
  int64_t ends[2] = {0, 0};
  const int64_t first = std::max<int64_t>(row - 1, 0);
  const int64_t count = row - first + 1;
  index_.read(h::kIndexBytes + 8 * first, ends + 2 - count, 8 * count);
  // An index that is written to meanwhile is found by verify(), after it was read.
  const int64_t length = ends[1] - ends[0];
  if (ends[0] < 0 || length < 1 || length > facts_.longest || ends[1] > facts_.tokens)
    throw DataLost(fmt::format("the index of rows of {} as it was when it was opened", path()),
                   fmt::format("a row of tokens {} to {}", ends[0], ends[1]));
  return {ends[0], length};
}

int64_t RowFile::words(int64_t length) const {
  return length * h::token_words(facts_.form) + h::label_words(facts_.form);
}

void RowFile::read(int64_t row, Place place, int32_t* out) const {
  const int64_t at = place.begin * h::token_words(facts_.form) + row * h::label_words(facts_.form);
  rows_.read(h::kBytes + 4 * at, out, 4 * words(place.length));
}

int64_t RowFile::types_at(int64_t length) const {
  return facts_.form.types ? length : -1;
}

int64_t RowFile::token_labels_at(int64_t length) const {
  return facts_.form.token_labels ? length * (facts_.form.types ? 2 : 1) : -1;
}

int64_t RowFile::label_at(int64_t length) const {
  return h::label_words(facts_.form) > 0 ? length * h::token_words(facts_.form) : -1;
}

void RowFile::check(int64_t vocab_size) {
  if (const uint64_t digest = rows_.digest(h::kBytes); digest != digest_)
    fail(ErrorCode::data, fmt::format("the rows that were written to {}", path()),
         fmt::format("others: their digest is {}, the header says {}", fingerprint_text(digest),
                     fingerprint_text(digest_)),
         h::kMakeAgain);
  std::vector<int32_t> record(static_cast<size_t>(longest_words()));
  for (int64_t row = 0; row < facts_.rows; ++row) {
    const Place at = place(row);
    read(row, at, record.data());
    const auto all = [&](int64_t begin, int64_t count, int64_t below, bool ignored,
                         const char* what, const char* advice) {
      for (int64_t i = begin; i < begin + count && begin >= 0; ++i) {
        const int32_t v = record[static_cast<size_t>(i)];
        if ((v < 0 || v >= below) && !(ignored && v == kIgnoredLabel))
          fail(ErrorCode::data, fmt::format("{} below {} in {}", what, below, path()),
               fmt::format("{} in row {}", v, row), advice);
      }
    };
    const bool class_id = facts_.form.label == RowLabel::class_id;
    all(0, at.length, vocab_size, false, "token ids of rows",
        "use the model or tokenizer that the rows were made for, or make them again");
    all(types_at(at.length), at.length, facts_.type_count, false, "token types", h::kMakeAgain);
    all(token_labels_at(at.length), at.length, facts_.class_count, true, "labels of tokens",
        h::kMakeAgain);
    all(class_id ? label_at(at.length) : -1, 1, facts_.class_count, true, "labels of rows",
        h::kMakeAgain);
  }
}

void RowFile::verify() const {
  rows_.verify("the rows", h::kBytes, digest_);
  index_.verify("the index of rows", h::kIndexBytes, index_digest_);
}

}  // namespace snug
