// What the tests of rows share: a tokenizer of BERT's form, files, and rows read whole.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "engine/data/row_reader.h"
#include "tests/engine/io/temp_folder.h"

namespace snug::test {

// The ids of the small vocabulary.
enum Word : int32_t { PAD, UNK, CLS, SEP, MASK, GOOD, BAD, FILM, A, THE, PLAY, ING, ED, WAS, N };

inline Tokenizer small_bert(const TempFolder& tmp) {
  const std::string folder = tmp / "bert";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/vocab.txt")
      << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm\na\nthe\nplay\n##ing\n##ed\nwas\n";
  return Tokenizer::load(folder);
}

inline std::string put(const TempFolder& tmp, const std::string& name, const std::string& text) {
  const std::string path = tmp / name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

using Ints = std::vector<int32_t>;

struct ReadRow {
  Ints tokens = {}, types = {}, labels = {};
  int32_t class_id = kIgnoredLabel;
  std::vector<float> values = {};
};

inline std::vector<ReadRow> all_rows(const RowFile& file) {
  std::vector<ReadRow> rows;
  Ints record(static_cast<size_t>(file.longest_words()));
  for (int64_t i = 0; i < file.size(); ++i) {
    const RowFile::Place at = file.place(i);
    file.read(i, at, record.data());
    const int64_t n = at.length;
    const auto part = [&](int64_t begin, int64_t count) {
      return begin < 0 ? Ints() : Ints(record.begin() + begin, record.begin() + begin + count);
    };
    ReadRow row{.tokens = part(0, n),
                .types = part(file.types_at(n), n),
                .labels = part(file.token_labels_at(n), n)};
    const auto* label = record.data() + std::max<int64_t>(file.label_at(n), 0);
    if (file.form().label == RowLabel::class_id) row.class_id = *label;
    const auto* values = reinterpret_cast<const float*>(label);
    row.values.assign(values, values + file.form().values);
    rows.push_back(row);
  }
  file.verify();
  return rows;
}

}  // namespace snug::test
