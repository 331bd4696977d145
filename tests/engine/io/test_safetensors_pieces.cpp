// A safetensors file in pieces is the file: by rows, by columns, whoever asks; what is missing is named.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/safetensors_pieces.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

// (3, 4) by rows, and (4, 3) by columns: its transpose; both in two files, a row and a column cut.
constexpr float kRows[] = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
constexpr float kTurned[] = {0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23};
constexpr int64_t kCut = 6;

void write_rank(const std::string& path, int64_t first, int64_t n) {
  std::vector<SafeSpec> specs;
  for (const char* name : {"rows", "columns"})
    specs.push_back({piece_name(name, first), SafeDType::F32, {n}});
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(path, layout);
  for (const SafeSpec& s : specs) writer.write(s.name, kRows + first, 4 * n);
  writer.commit();
}

std::string index_text() {
  const std::vector<TensorPiece> pieces = {{0, 0, kCut}, {1, kCut, 12 - kCut}};
  return pieces_text({{"format", "pt"}, {"snug_base", "b"}},
                     {"m-rank-0.safetensors", "m-rank-1.safetensors"},
                     {{"rows", SafeDType::F32, {3, 4}, false, pieces},
                      {"columns", SafeDType::F32, {4, 3}, true, pieces}});
}

std::string make(const TempFolder& folder) {
  const std::string file = folder / "m.safetensors";
  EXPECT_EQ(rank_file(file, 1), folder / "m-rank-1.safetensors");
  write_rank(rank_file(file, 0), 0, kCut);
  write_rank(rank_file(file, 1), kCut, 12 - kCut);
  write_atomic(pieces_path(file), index_text());
  return file;
}

TEST(SafetensorsPieces, AreReadByRowsAndByColumns) {
  const TempFolder folder;
  const std::string file = make(folder);
  EXPECT_TRUE(safetensors_there(file));
  EXPECT_TRUE(safetensors_in_pieces(file));
  const SafetensorsPieces pieces(file);
  EXPECT_EQ(pieces.metadata().at("snug_base"), "b");
  float out[12];
  pieces.read(pieces.at("rows"), out);
  EXPECT_EQ(std::memcmp(out, kRows, sizeof(out)), 0);
  pieces.read(pieces.at("columns"), out);
  EXPECT_EQ(std::memcmp(out, kTurned, sizeof(out)), 0);
  for (int64_t first = 0; first < 4; ++first)
    for (int64_t n = 0; first + n <= 4; ++n) {
      pieces.read_rows(pieces.at("columns"), first, n, out);
      EXPECT_EQ(std::memcmp(out, kTurned + 3 * first, static_cast<size_t>(12 * n)), 0)
          << first << " " << n;
    }
  pieces.read_rows(pieces.at("rows"), 1, 2, out);
  EXPECT_EQ(std::memcmp(out, kRows + 4, 32), 0);
  EXPECT_EQ(pieces.span(pieces.at("rows"), 5).elements, 1);
  EXPECT_EQ(pieces.span(pieces.at("rows"), 6).elements, 6);
}

// Tools that ask for the file have it in memory.
TEST(SafetensorsPieces, AreTheFileToWhoeverReadsIt) {
  const TempFolder folder;
  const std::string file = make(folder);
  const SafetensorsReader reader(file);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.at("columns").shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(std::memcmp(reader.at("columns").data, kTurned, sizeof(kTurned)), 0);
  EXPECT_EQ(std::memcmp(reader.at("rows").data, kRows, sizeof(kRows)), 0);
  reader.drop_pages();
  // And a whole file has one piece of each.
  const SafetensorsLayout layout({{"format", "pt"}}, {{"rows", SafeDType::F32, {3, 4}}});
  SafetensorsWriter writer(file, layout);
  writer.write("rows", kRows, sizeof(kRows));
  writer.commit();
  EXPECT_FALSE(safetensors_in_pieces(file));
  const SafetensorsPieces whole(file);
  EXPECT_EQ(whole.span(whole.at("rows"), 2).elements, 10);
  EXPECT_THROW(whole.at("columns"), Error);
}

TEST(SafetensorsPieces, WhatIsMissingIsNamed) {
  const TempFolder folder;
  const std::string file = make(folder);
  const auto found = [&] {
    try {
      const SafetensorsPieces pieces(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      return std::string(error.what());
    }
    return std::string("none");
  };
  write_rank(rank_file(file, 1), kCut, 4);
  EXPECT_NE(found().find("columns@6 of 6 elements"), std::string::npos) << found();
  std::filesystem::remove(rank_file(file, 1));
  EXPECT_NE(found().find("m-rank-1.safetensors"), std::string::npos) << found();
  make(folder);
  EXPECT_EQ(found(), "none");
  std::filesystem::remove(rank_file(file, 0));
  write_rank(rank_file(file, 0), 0, 5);
  EXPECT_NE(found().find("columns@0 of 6 elements"), std::string::npos) << found();
  const auto index = [&](const std::string& tensor) {
    write_atomic(pieces_path(file), R"({"snug_pieces": 1, "files": ["m-rank-0.safetensors"],
                                        "tensors": {"t": )" +
                                        tensor + "}}");
    return found();
  };
  const auto expect = [&](const std::string& tensor, const std::string& text) {
    EXPECT_NE(index(tensor).find(text), std::string::npos) << index(tensor);
  };
  expect(R"({"dtype": "F32", "shape": [12], "pieces": []})", "pieces of all 12 elements");
  expect(R"({"dtype": "F32", "shape": [12], "pieces": []})", "0 of them");
  expect(R"({"dtype": "F32", "pieces": []})", "a shape, as");
  expect(R"({"dtype": "F32", "pieces": []})", "found: none");
  expect(R"({"dtype": "U8", "shape": [3, 4], "order": "F", "pieces": []})",
         "a matrix of 2 or 4 bytes an element");
  for (const char* order : {"f", "", "A"}) {
    const std::string tensor =
        fmt::format(R"({{"dtype": "F32", "shape": [3, 4], "order": "{}", "pieces": []}})", order);
    expect(tensor, "the order \"C\" or \"F\", as ");
    expect(tensor, fmt::format("found: {}\n", order));
    expect(tensor, "the folder as it was written, with the files of all ranks");
  }
  expect(R"({"dtype": "F32", "shape": [3, 4], "order": "C", "pieces": []})", "0 of them");
  expect(R"({"dtype": "F32", "shape": [3, 4], "order": 1, "pieces": []})", "order");
  expect(R"({"dtype": "F4", "shape": [3, 4], "pieces": []})", "a dtype of whole bytes");
}

// A byte of it changed loads, or is an error of data.
TEST(SafetensorsPieces, NoIndexCrashes) {
  const TempFolder folder;
  const std::string file = make(folder), good = index_text();
  std::mt19937 random(7);
  for (int i = 0; i < 600; ++i) {
    std::string text = good;
    for (int k = 0; k < 1 + i % 3; ++k)
      text[random() % text.size()] = static_cast<char>("0123456789-[]{}\",:aF"[random() % 20]);
    std::ofstream(pieces_path(file)) << text;
    try {
      const SafetensorsPieces pieces(file);
      for (const PiecedTensor& t : pieces.tensors()) {
        std::vector<char> out(static_cast<size_t>(t.elements() * (bits_of(t.dtype) / 8)));
        pieces.read(t, out.data());
      }
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::data || error.code() == ErrorCode::unsupported)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace snug
