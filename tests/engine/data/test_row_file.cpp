#include <gtest/gtest.h>

#include <cstring>

#include "engine/data/row_file.h"
#include "engine/io/fingerprint.h"
#include "tests/engine/data/heap_count.h"
#include "tests/engine/data/row_case.h"

namespace snug {
namespace {

using test::all_rows;
using test::Ints;

std::string bytes_of(const std::string& path) {
  return read_file(path);
}

template <class T>
T at(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The layout as row_file.h spells it, byte by byte.
TEST(RowFile, IsWhatTheHeaderSays) {
  TempFolder tmp;
  const std::string path = tmp / "r.rows";
  RowFileWriter writer(path, {.types = true, .token_labels = true, .label = RowLabel::class_id},
                       100, 7, 9);
  const Ints a = {5, 6}, types = {0, 1}, labels = {-100, 3}, b = {99}, zero = {0}, four = {4};
  writer.append({.tokens = a, .types = types, .token_labels = labels, .class_id = 2});
  writer.append({.tokens = b, .types = zero, .token_labels = four});
  EXPECT_FALSE(file_exists(path));
  writer.commit();
  const std::string file = bytes_of(path), index = bytes_of(path + ".idx");
  EXPECT_EQ(file.substr(0, 8), "SNUGROWS");
  EXPECT_EQ(at<int32_t>(file, 8), 1);
  const std::vector<int64_t> counts = {0, 2, 3, 2, 100, 2, 5};  // K, rows, tokens, longest, V ...
  for (size_t i = 0; i < counts.size(); ++i)
    EXPECT_EQ(at<int64_t>(file, 16 + 8 * i), counts[i]) << i;
  EXPECT_EQ(at<uint64_t>(file, 72), 7u);
  EXPECT_EQ(at<uint64_t>(file, 80), 9u);
  EXPECT_EQ(at<uint64_t>(file, 88), fingerprint(std::string_view(file).substr(128)));
  const Ints words = {5, 6, 0, 1, -100, 3, 2, 99, 0, 4, -100};
  for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(at<int32_t>(file, 128 + 4 * i), words[i]);
  EXPECT_EQ(file[128 + 4 * words.size()], '{');
  EXPECT_EQ(index.size(), 48u);
  EXPECT_EQ(index.substr(0, 8), "SNUGRIDX");
  EXPECT_EQ(at<int64_t>(index, 8), 1);
  EXPECT_EQ(at<int64_t>(index, 16), 2);
  EXPECT_EQ(at<uint64_t>(index, 24), at<uint64_t>(file, 88));
  EXPECT_EQ(at<int64_t>(index, 32), 2);
  EXPECT_EQ(at<int64_t>(index, 40), 3);
}

TEST(RowFile, EveryFormIsReadAsItWasWritten) {
  TempFolder tmp;
  const std::string path = tmp / "r.rows";
  for (int form = 0; form < 16; ++form) {
    RowForm f{.types = (form & 1) != 0, .token_labels = (form & 2) != 0};
    f.label = form / 4 == 3 ? RowLabel::values : static_cast<RowLabel>(form / 4);
    f.values = f.label == RowLabel::values ? form % 4 + 1 : 0;
    RowReport report;
    report.rows = 700, report.cut = 3, report.first_cut = "a.tsv:9",
    report.label_names = {"x", "y"};
    report.label_counts = {4, 5}, report.assumed = {"so"}, report.problem_type = "regression";
    std::vector<test::ReadRow> want;
    RowFileWriter writer(path, f, 1000, 5);
    for (int32_t r = 0; r < 700; ++r) {
      test::ReadRow row;
      for (int32_t t = 0; t <= r % 7; ++t) {
        row.tokens.push_back((r * 7 + t) % 1000);
        if (f.types) row.types.push_back(t % 2);
        if (f.token_labels) row.labels.push_back(t % 3 == 0 ? kIgnoredLabel : r % 50);
      }
      if (f.label == RowLabel::class_id) row.class_id = r % 4 == 3 ? kIgnoredLabel : r % 4;
      for (int64_t k = 0; k < f.values; ++k) row.values.push_back(static_cast<float>(r) - 0.5f);
      writer.append({row.tokens, row.types, row.labels, row.class_id, row.values});
      want.push_back(row);
    }
    writer.commit(report);
    RowFile file(path, 5);
    file.check(1000);
    EXPECT_EQ(file.form(), f);
    EXPECT_EQ(file.facts().longest, 7);
    EXPECT_EQ(file.facts().type_count, f.types ? 2 : 0);
    const auto got = all_rows(file);
    ASSERT_EQ(got.size(), want.size());
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(got[r].tokens, want[r].tokens);
      EXPECT_EQ(got[r].types, want[r].types);
      EXPECT_EQ(got[r].labels, want[r].labels);
      EXPECT_EQ(got[r].class_id, want[r].class_id);
      EXPECT_EQ(got[r].values, want[r].values);
    }
    const RowReport back = file.report();
    EXPECT_EQ(back.cut, 3);
    EXPECT_EQ(back.first_cut, "a.tsv:9");
    EXPECT_EQ(back.label_names, report.label_names);
    EXPECT_EQ(back.label_counts, report.label_counts);
    EXPECT_EQ(back.assumed, report.assumed);
    EXPECT_EQ(back.problem_type, "regression");
  }
  EXPECT_TRUE(is_row_file(path));
  EXPECT_FALSE(is_row_file(path + ".idx"));
  EXPECT_EQ(row_side_files(path), std::vector<std::string>{path + ".idx"});
}

std::string written(const TempFolder& tmp, const std::string& name, int32_t rows,
                    int32_t offset = 0) {
  const std::string path = tmp / name;
  RowFileWriter writer(path, {.label = RowLabel::class_id}, 100, 5);
  for (int32_t r = 0; r < rows; ++r) {
    const Ints tokens(static_cast<size_t>(r % 3 + 1), r + offset);
    writer.append({.tokens = tokens, .class_id = r % 2});
  }
  writer.commit();
  return path;
}

TEST(RowFile, ReadingTakesNoMemory) {
  TempFolder tmp;
  const RowFile file(written(tmp, "r", 40));
  Ints record(static_cast<size_t>(file.longest_words()));
  const int64_t before = heap_requests();
  for (int64_t r = 0; r < file.size(); ++r) file.read(r, file.place(r), record.data());
  file.verify();
  EXPECT_EQ(heap_requests(), before);
  EXPECT_THROW(file.place(40), Error);
  EXPECT_THROW(file.place(-1), Error);
}

TEST(RowFile, WithoutACommitThereIsNothing) {
  TempFolder tmp;
  {
    RowFileWriter writer(tmp / "r", {}, 10);
    const Ints tokens = {1};
    writer.append({.tokens = tokens});
  }
  EXPECT_EQ(tmp.count(), 0);
}

TEST(RowFile, RefusesWhatDoesNotFit) {
  TempFolder tmp;
  const std::string path = written(tmp, "r", 9), other = written(tmp, "o", 9, 1);
  const std::string rows = bytes_of(path), index = bytes_of(path + ".idx");
  const auto open = [&](const std::string& r, const std::string& i) {
    write_atomic(path, r);
    write_atomic(path + ".idx", i);
    return RowFile(path, 5).size();
  };
  const auto with = [](std::string bytes, size_t offset, char c) {
    bytes[offset] = c;
    return bytes;
  };
  EXPECT_EQ(open(rows, index), 9);
  EXPECT_ERROR(open("text, and no rows", index), ErrorCode::data, "a file of rows in " + path,
               "17 bytes that do not begin with \"SNUGROWS\"", "or the text itself");
  EXPECT_ERROR(open(with(rows, 8, 2), index), ErrorCode::data, "version 1 in the header of rows",
               "2", "make the rows again from their text");
  EXPECT_ERROR(open(with(rows, 24, 8), index), ErrorCode::data,
               "the header of rows that was written to", "its digest does not fit", "again");
  EXPECT_ERROR(open(rows.substr(0, rows.size() - 1), index), ErrorCode::data,
               "a header and rows of it in " + path + ": 9 of 18 tokens", "bytes", "again");
  EXPECT_ERROR(open(rows, "short"), ErrorCode::data, "an index of rows in " + path + ".idx",
               "something else, or another version of it", "again");
  EXPECT_ERROR(open(rows, with(index, 8, 2)), ErrorCode::data, "an index of rows in",
               "something else", "again");
  EXPECT_ERROR(open(rows, bytes_of(other + ".idx")), ErrorCode::data,
               "the index of the 9 rows of " + path, "one of 9 rows, or of others", "again");
  EXPECT_ERROR(open(rows, with(index, 40, 1)), ErrorCode::data, "the index of the 9 rows", "others",
               "again");
  write_atomic(path + ".idx", index);
  std::filesystem::remove(path + ".idx");
  EXPECT_THROW(RowFile{path}, Error);
  write_atomic(path + ".idx", index);
  write_atomic(path, rows);
  EXPECT_ERROR(RowFile(path, 6), ErrorCode::data, "to hold rows of this run's tokenizer",
               "rows of tokenizer 0000000000000005", "again");
}

// An index and header that fit each other and not the rows: made by hand, digests and all.
TEST(RowFile, RefusesAnIndexThatFalls) {
  TempFolder tmp;
  const std::string path = written(tmp, "r", 3);
  const std::string rows = bytes_of(path), index = bytes_of(path + ".idx");
  const auto open = [&](std::array<int64_t, 3> ends) {
    std::string r = rows, i = index;
    std::memcpy(i.data() + 32, ends.data(), 24);
    const uint64_t digest = fingerprint(std::string_view(i).substr(32));
    std::memcpy(r.data() + 96, &digest, 8);
    const uint64_t own = fingerprint(std::string_view(r).substr(0, 112));
    std::memcpy(r.data() + 112, &own, 8);
    write_atomic(path, r);
    write_atomic(path + ".idx", i);
    return RowFile(path).size();
  };
  EXPECT_EQ(open({1, 3, 6}), 3);
  EXPECT_ERROR(open({1, 1, 6}), ErrorCode::data, "row ends that rise from above 1 to 6",
               "1 for row 1", "again");
  EXPECT_ERROR(open({1, 3, 7}), ErrorCode::data, "row ends that rise from above 3 to 6",
               "7 for row 2", "again");
  EXPECT_ERROR(open({1, 3, 5}), ErrorCode::data,
               "6 tokens in all rows and 3 in the longest, as " + path + " says", "5 and 2",
               "again");
}

TEST(RowFile, CheckFindsWhatWasWrittenOver) {
  TempFolder tmp;
  const std::string path = written(tmp, "r", 9);
  RowFile(path).check(100);
  EXPECT_ERROR(RowFile(path).check(8), ErrorCode::data, "token ids of rows below 8", "8 in row 8",
               "use the model or tokenizer");
  const std::string rows = bytes_of(path);
  std::string changed = rows;
  changed[130] = 1;
  write_atomic(path, changed);
  EXPECT_ERROR(RowFile(path).check(100), ErrorCode::data, "the rows that were written to " + path,
               "others: their digest is", "again");
  changed = rows;
  changed[changed.size() - 3] = '[';
  write_atomic(path, changed);
  EXPECT_THROW(RowFile(path).report(), Error);
}

TEST(RowFile, WhatChangesUnderARunIsLost) {
  TempFolder tmp;
  const std::string path = written(tmp, "r", 9);
  const std::string rows = bytes_of(path);
  const RowFile file(path);
  const auto write_in_place = [&](const std::string& p, const std::string& bytes) {
    std::ofstream(p, std::ios::binary | std::ios::trunc) << bytes;
    std::filesystem::last_write_time(
        p, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  };
  write_in_place(path, rows);  // equal content
  file.verify();
  std::string changed = rows;
  changed[128] = 7;
  write_in_place(path, changed);
  EXPECT_ERROR(file.verify(), ErrorCode::device, "the rows of " + path + " as they were",
               "the same size and other content", "put the file back");
  write_in_place(path, rows);
  file.verify();
  std::string index = bytes_of(path + ".idx");
  const std::string good_index = index;
  index[33] = 127;
  write_in_place(path + ".idx", index);
  EXPECT_ERROR(file.verify(), ErrorCode::device, "the index of rows of", "other content", "put");
  EXPECT_ERROR(file.place(0), ErrorCode::device,
               "the index of rows of " + path + " as it was when it was opened",
               "a row of tokens 0 to", "put");
  write_in_place(path + ".idx", good_index);
  write_in_place(path, rows.substr(0, 140));
  Ints record(static_cast<size_t>(file.longest_words()));
  EXPECT_ERROR(file.read(8, file.place(8), record.data()), ErrorCode::device, "bytes at offset",
               "140 bytes", "put");
}

TEST(RowFileWriter, RefusesWhatNoRowHas) {
  TempFolder tmp;
  RowFileWriter writer(
      tmp / "r", {.types = true, .token_labels = true, .label = RowLabel::values, .values = 1},
      100);
  const Ints one = {1}, high = {100}, low = {-1}, ignored = {-100}, odd = {-101};
  const std::vector<float> value = {1.0f}, infinite = {INFINITY};
  writer.append({one, one, ignored, -100, value});
  EXPECT_ERROR(writer.append({high, one, one, -100, value}), ErrorCode::data,
               "token ids from 0 to 99 for " + (tmp / "r"), "100 in row 1", "vocabulary size");
  EXPECT_ERROR(writer.append({low, one, one, -100, value}), ErrorCode::data, "token ids from 0",
               "-1 in row 1", "rows that this tokenizer made");
  EXPECT_ERROR(writer.append({one, low, one, -100, value}), ErrorCode::data,
               "token types of 0 and above", "-1", "correct the row");
  EXPECT_ERROR(writer.append({one, one, odd, -100, value}), ErrorCode::data,
               "labels of tokens of 0 and above", "-101", "-100 is ignored");
  EXPECT_ERROR(writer.append({one, one, one, -100, infinite}), ErrorCode::data,
               "finite values as labels", "inf in row 1", "leave out the row");
  EXPECT_THROW(writer.append({{}, {}, {}, -100, value}), Error);
  EXPECT_THROW(writer.append({one, {}, one, -100, value}), Error);
  RowFileWriter classes(tmp / "c", {.label = RowLabel::class_id}, 100);
  EXPECT_ERROR(classes.append({.tokens = one, .class_id = -2}), ErrorCode::data,
               "a label of 0 and above", "-2 in row 0", "correct");
}

}  // namespace
}  // namespace snug
