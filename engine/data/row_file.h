// Files of rows: samples of their own lengths, already tokens, written once and read by position,
// so that any number of them costs no memory. Little-endian:
//   <path>       128 bytes of header ("SNUGROWS", version 1, the facts of RowFacts, digests); then
//                row after row, without gaps: its tokens; its token types; its token labels (each
//                int32, the last two where the file has them); its label (an int32, or K floats, or
//                nothing); then JSON: what the file was made of (RowReport)
//   <path>.idx   "SNUGRIDX", version 1, rows, the digest of <path>; then for each row, in order, the
//                int64 number of the token behind its last, counted over all rows
// A row has at least one token. Labels are not shifted and -100 is ignored, as transformers has
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/watched_file.h"

namespace snug {

constexpr int32_t kIgnoredLabel = -100;

enum class RowLabel : int32_t {
  none,      // of the row as a whole
  class_id,  // an int32, or kIgnoredLabel
  values     // K floats: a regression's, or one of each class of a multi-label problem
};

// What every row of a file has.
struct RowForm {
  bool types = false;         // token types; without them all are 0
  bool token_labels = false;  // a label for each token
  RowLabel label = RowLabel::none;
  int64_t values = 0;  // K, at least 1 with RowLabel::values, else 0
  bool operator==(const RowForm&) const = default;
};

struct RowFacts {
  RowForm form;
  int64_t rows = 0, tokens = 0, longest = 0;  // tokens of all rows, of the longest
  int64_t vocab_size = 0;                     // ids lie below it
  int64_t type_count = 0;                     // the largest token type plus one
  int64_t class_count = 0;                    // the largest label plus one, of rows or tokens
  uint64_t tokenizer = 0;                     // its fingerprint; 0: the rows came as tokens
  uint64_t source = 0;  // rows_fingerprint of what it was made of; 0: not known
};

// What a row reader saw and took for granted (row_reader.h).
struct RowReport {
  int64_t files = 0, rows = 0, tokens = 0, longest = 0;
  int64_t cut = 0;         // rows above max_length, cut to it
  int64_t empty = 0;       // records and lines without text, left out
  int64_t unlabelled = 0;  // rows that train nothing: all their labels are -100
  int64_t lost_words = 0;  // words of token classification that give no token
  int64_t skipped = 0;     // files of a folder that hold no rows by their names
  std::string first_cut, first_empty, first_unlabelled,
      first_skipped;  // file:line, the last a path
  std::string
      problem_type;  // as transformers spells it; empty for rows without labels of their own
  std::vector<std::string> label_names;  // by class id; empty of regression, and if not known
  std::vector<int64_t> label_counts;     // rows, or words of token classification, of each class
  std::vector<std::string> assumed;      // sentences: what nobody said and was taken so

  double mean_length() const {
    return rows == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(rows);
  }
};

// A row to be written. Spans that the form has are of tokens.size(), those it has not are empty.
struct Row {
  std::span<const int32_t> tokens, types = {}, token_labels = {};
  int32_t class_id = kIgnoredLabel;
  std::span<const float> values = {};  // K
};

class RowFile {
 public:
  // Throws data if the file is none of the layout, its size or its index does not fit its header,
  // its index was made for other rows or, with `tokenizer` given, if another made the rows (0 in
  // the header: nothing is known, accepted). Reads the whole index.
  explicit RowFile(const std::string& path, std::optional<uint64_t> tokenizer = std::nullopt);

  const std::string& path() const { return rows_.path(); }
  const RowFacts& facts() const { return facts_; }
  const RowForm& form() const { return facts_.form; }
  int64_t size() const { return facts_.rows; }
  uint64_t fingerprint() const { return digest_; }  // of all that lies behind the header
  // The JSON behind the rows. Throws data if it is not readable as such, DataLost.
  RowReport report() const;

  // begin, and behind it the number of tokens, of a row; of `row` in [0, size()), else internal.
  // Takes no memory; two reads of the index's file in one. Throws DataLost.
  struct Place {
    int64_t begin = 0, length = 0;  // in tokens
  };
  Place place(int64_t row) const;
  // The words (of 4 bytes) of a row's record, and of the longest's.
  int64_t words(int64_t length) const;
  int64_t longest_words() const { return words(facts_.longest); }
  // The record of a row in one read: out[0, words(place.length)). Throws DataLost.
  void read(int64_t row, Place place, int32_t* out) const;
  // Where in a record of that length what it has begins; -1: the form has none.
  int64_t types_at(int64_t length) const;
  int64_t token_labels_at(int64_t length) const;
  int64_t label_at(int64_t length) const;

  // Reads the whole file: throws data if the rows are not those that were written, or one has an id
  // outside [0, vocab_size), naming the row.
  void check(int64_t vocab_size);
  // Throws DataLost if the file or its index is not what it was when it was opened. Two calls of
  // the system as long as nobody wrote to them; else their content is read again, and equal content
  // is accepted. Call it after read() and before use of what came.
  void verify() const;

 private:
  void read_header();
  void open_index();

  WatchedFile rows_, index_;
  RowFacts facts_;
  int64_t report_at_ = 0, report_bytes_ = 0;
  uint64_t digest_ = 0, index_digest_ = 0;
};

// True if the file begins as a row file does.
bool is_row_file(const std::string& path);
// The file that belongs to a row file.
std::vector<std::string> row_side_files(const std::string& path);

// Writes a row file and its index through AtomicFile and buffers of 64 KiB; commit() makes both
// seen, the rows last.
class RowFileWriter {
 public:
  // Throws device if the disk refuses.
  RowFileWriter(const std::string& path, const RowForm& form, int64_t vocab_size,
                uint64_t tokenizer = 0, uint64_t source = 0);
  ~RowFileWriter();
  // Throws data for an id outside [0, vocab_size), a negative token type, a label below 0 other
  // than -100 or a value that is not finite, naming the row, and internal for a row without tokens
  // or of another form.
  void append(const Row& row);
  void commit(const RowReport& report = {});
  int64_t size() const { return facts_.rows; }
  const RowFacts& facts() const { return facts_; }

 private:
  struct Spool;

  RowFacts facts_;
  std::unique_ptr<Spool> spool_;
};

}  // namespace snug
