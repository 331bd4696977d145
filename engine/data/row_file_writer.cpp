#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/data/row_file.h"
#include "engine/data/row_header.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

namespace h = row_header;

// A file written through a buffer, with the digest of what went there.
class Stream {
 public:
  Stream(const std::string& path, int64_t header_bytes) : file_(path), buffer_(64 << 10) {
    const std::array<uint8_t, h::kBytes> zeros{};
    file_.write(zeros.data(), header_bytes);
  }
  void put(const void* data, int64_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (bytes > 0) {
      const int64_t n = std::min(bytes, static_cast<int64_t>(buffer_.size()) - held_);
      std::memcpy(buffer_.data() + held_, from, static_cast<size_t>(n));
      held_ += n, from += n, bytes -= n;
      if (held_ == static_cast<int64_t>(buffer_.size())) flush();
    }
  }
  void flush() {
    digest_.add(buffer_.data(), held_);
    file_.write(buffer_.data(), held_);
    held_ = 0;
  }
  void write_header(const void* data, int64_t bytes) { file_.write_at(0, data, bytes); }
  void commit() { file_.commit(); }
  uint64_t digest() const { return digest_.digest(); }
  const std::string& path() const { return file_.path(); }

 private:
  AtomicFile file_;
  std::vector<uint8_t> buffer_;
  int64_t held_ = 0;
  Fingerprint digest_;
};

}  // namespace

struct RowFileWriter::Spool {
  explicit Spool(const std::string& path)
      : rows(path, h::kBytes), index(path + h::kIndex, h::kIndexBytes) {}
  Stream rows, index;
};

RowFileWriter::RowFileWriter(const std::string& path, const RowForm& form, int64_t vocab_size,
                             uint64_t tokenizer, uint64_t source)
    : spool_(std::make_unique<Spool>(path)) {
  const bool values = form.label == RowLabel::values;
  require(values ? form.values >= 1 && form.values <= h::kMostValues : form.values == 0,
          "K of 1 to 2^20 with values, else 0");
  facts_.form = form;
  facts_.vocab_size = vocab_size;
  facts_.tokenizer = tokenizer;
  facts_.source = source;
}

RowFileWriter::~RowFileWriter() = default;

void RowFileWriter::append(const Row& row) {
  const RowForm& form = facts_.form;
  const size_t n = row.tokens.size();
  require(n > 0 && row.types.size() == (form.types ? n : 0) &&
              row.token_labels.size() == (form.token_labels ? n : 0) &&
              static_cast<int64_t>(row.values.size()) == form.values,
          "a row of the file's form, with a token");
  const auto all = [&](std::span<const int32_t> values, int64_t below, bool ignored,
                       const char* what) {
    for (const int32_t v : values)
      if ((v < 0 || v >= below) && !(ignored && v == kIgnoredLabel))
        fail(ErrorCode::data,
             below == INT32_MAX
                 ? fmt::format("{} of 0 and above for {}", what, spool_->rows.path())
                 : fmt::format("{} from 0 to {} for {}", what, below - 1, spool_->rows.path()),
             fmt::format("{} in row {}", v, facts_.rows),
             below == INT32_MAX
                 ? "correct the row; a label of -100 is ignored"
                 : "give the rows that this tokenizer made, or the model's vocabulary size");
  };
  const std::span<const int32_t> label(&row.class_id, form.label == RowLabel::class_id ? 1 : 0);
  all(row.tokens, facts_.vocab_size, false, "token ids");
  all(row.types, INT32_MAX, false, "token types");
  all(row.token_labels, INT32_MAX, true, "labels of tokens");
  all(label, INT32_MAX, true, "a label");
  for (const float v : row.values)
    if (!std::isfinite(v))
      fail(ErrorCode::data, fmt::format("finite values as labels for {}", spool_->rows.path()),
           fmt::format("{} in row {}", v, facts_.rows), "correct or leave out the row");
  for (const int32_t v : row.types) facts_.type_count = std::max<int64_t>(facts_.type_count, v + 1);
  for (const std::span<const int32_t> labels : {row.token_labels, label})
    for (const int32_t v : labels)
      facts_.class_count = std::max<int64_t>(facts_.class_count, int64_t{v} + 1);
  for (const std::span<const int32_t> part : {row.tokens, row.types, row.token_labels, label})
    spool_->rows.put(part.data(), 4 * static_cast<int64_t>(part.size()));
  spool_->rows.put(row.values.data(), 4 * static_cast<int64_t>(row.values.size()));
  const auto length = static_cast<int64_t>(n);
  facts_.tokens += length;
  facts_.longest = std::max(facts_.longest, length);
  ++facts_.rows;
  spool_->index.put(&facts_.tokens, 8);
}

void RowFileWriter::commit(const RowReport& report) {
  const std::string text = h::report_text(report);
  spool_->rows.put(text.data(), static_cast<int64_t>(text.size()));
  spool_->rows.flush();
  spool_->index.flush();
  h::Header head;
  std::memcpy(head.mark, h::kMark, 8);
  head.form = (facts_.form.types ? h::kHasTypes : 0) |
              (facts_.form.token_labels ? h::kHasTokenLabels : 0) |
              static_cast<int32_t>(facts_.form.label) << h::kLabelShift;
  head.values = facts_.form.values;
  head.rows = facts_.rows;
  head.tokens = facts_.tokens;
  head.longest = facts_.longest;
  head.vocab_size = facts_.vocab_size;
  head.type_count = facts_.type_count;
  head.class_count = facts_.class_count;
  head.tokenizer = facts_.tokenizer;
  head.source = facts_.source;
  head.digest = spool_->rows.digest();
  head.index_digest = spool_->index.digest();
  head.report_bytes = static_cast<int64_t>(text.size());
  head.own_digest =
      fingerprint(std::string_view(reinterpret_cast<const char*>(&head), h::kDigestedBytes));
  spool_->rows.write_header(&head, h::kBytes);
  h::IndexHeader index;
  std::memcpy(index.mark, h::kIndexMark, 8);
  index.rows = facts_.rows;
  index.rows_digest = head.digest;
  spool_->index.write_header(&index, h::kIndexBytes);
  // Rows without their index, or with that of older ones, are refused when they are opened.
  spool_->index.commit();
  spool_->rows.commit();
}

std::string row_header::report_text(const RowReport& r) {
  nlohmann::json names = nlohmann::json::array(), assumed = nlohmann::json::array();
  for (const std::string& name : r.label_names) names.push_back(sanitize_utf8(name));
  for (const std::string& sentence : r.assumed) assumed.push_back(sanitize_utf8(sentence));
  return nlohmann::json{{"files", r.files},
                        {"rows", r.rows},
                        {"tokens", r.tokens},
                        {"longest", r.longest},
                        {"cut", r.cut},
                        {"empty", r.empty},
                        {"unlabelled", r.unlabelled},
                        {"lost_words", r.lost_words},
                        {"skipped", r.skipped},
                        {"first_cut", sanitize_utf8(r.first_cut)},
                        {"first_empty", sanitize_utf8(r.first_empty)},
                        {"first_unlabelled", sanitize_utf8(r.first_unlabelled)},
                        {"first_skipped", sanitize_utf8(r.first_skipped)},
                        {"problem_type", r.problem_type},
                        {"label_names", names},
                        {"label_counts", r.label_counts},
                        {"assumed", assumed}}
      .dump();
}

RowReport row_header::read_report(const std::string& text, const std::string& path) {
  const std::string where = "the report behind the rows of " + path;
  const nlohmann::json root = parse_json(text, where);
  require_object(root, where);
  RowReport r;
  r.files = get_int(root, "files", where, 0);
  r.rows = get_int(root, "rows", where, 0);
  r.tokens = get_int(root, "tokens", where, 0);
  r.longest = get_int(root, "longest", where, 0);
  r.cut = get_int(root, "cut", where, 0);
  r.empty = get_int(root, "empty", where, 0);
  r.unlabelled = get_int(root, "unlabelled", where, 0);
  r.lost_words = get_int(root, "lost_words", where, 0);
  r.skipped = get_int(root, "skipped", where, 0);
  r.first_cut = get_string(root, "first_cut", where, "");
  r.first_empty = get_string(root, "first_empty", where, "");
  r.first_unlabelled = get_string(root, "first_unlabelled", where, "");
  r.first_skipped = get_string(root, "first_skipped", where, "");
  r.problem_type = get_string(root, "problem_type", where, "");
  r.label_names = get_strings(root, "label_names", where);
  r.assumed = get_strings(root, "assumed", where);
  const auto counts = root.find("label_counts");
  if (counts == root.end() || !counts->is_array()) return r;
  for (const auto& count : *counts)
    r.label_counts.push_back(count.is_number_integer() ? count.get<int64_t>() : 0);
  return r;
}

}  // namespace snug
