// The numbers of the layout that row_file.h describes, for its reader and its writer, and its
// report as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "engine/data/row_file.h"

namespace snug::row_header {

constexpr int64_t kBytes = 128;
constexpr char kMark[] = "SNUGROWS";
constexpr int32_t kVersion = 1;
constexpr char kIndexMark[] = "SNUGRIDX";
constexpr int64_t kIndexVersion = 1, kIndexBytes = 32;
constexpr const char* kIndex = ".idx";
constexpr const char* kMakeAgain = "make the rows again from their text";

constexpr int32_t kHasTypes = 1, kHasTokenLabels = 2, kLabelShift = 2;  // bits of `form`
constexpr int64_t kMostValues = 1 << 20;                                // K

struct Header {
  char mark[8] = {};
  int32_t version = kVersion, form = 0;
  int64_t values = 0, rows = 0, tokens = 0, longest = 0, vocab_size = 0, type_count = 0,
          class_count = 0;
  uint64_t tokenizer = 0, source = 0;
  uint64_t digest = 0, index_digest = 0;  // of all behind the two headers
  int64_t report_bytes = 0;
  uint64_t own_digest = 0;  // of the header before this
  uint64_t unused = 0;
};
static_assert(sizeof(Header) == kBytes, "sixteen numbers of 64 bits without gaps");
constexpr int64_t kDigestedBytes = kBytes - 16;

struct IndexHeader {
  char mark[8] = {};
  int64_t version = kIndexVersion, rows = 0;
  uint64_t rows_digest = 0;  // Header::digest of the file it belongs to
};
static_assert(sizeof(IndexHeader) == kIndexBytes, "four numbers of 64 bits without gaps");

// Words of a row's own label.
inline int64_t label_words(const RowForm& form) {
  return form.label == RowLabel::none ? 0 : form.label == RowLabel::class_id ? 1 : form.values;
}
// Words of a token.
inline int64_t token_words(const RowForm& form) {
  return 1 + (form.types ? 1 : 0) + (form.token_labels ? 1 : 0);
}

std::string report_text(const RowReport& report);
// Throws data if `text` is no report; `path` names the file in messages.
RowReport read_report(const std::string& text, const std::string& path);

}  // namespace snug::row_header
