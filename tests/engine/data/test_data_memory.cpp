// A corpus of any size takes the memory of a small one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/data/corpus.h"
#include "engine/data/dataset.h"
#include "tests/engine/io/packed.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Resident bytes of the process, pages of files included.
int64_t resident() {
  std::ifstream in("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    words >> name >> value;
    if (name == "RssAnon:" || name == "RssFile:" || name == "RssShmem:") kib += value;
  }
  return kib << 10;
}

TEST(SlowDataMemory, TokensAreReadAndNotKept) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  std::ofstream(path).put('\0');
  std::filesystem::resize_file(path, 300 * kMiB);  // holes: zeros that take no disk
  const int64_t T = 1024, B = 8;
  std::vector<int32_t> tokens(T * B), targets(T * B);
  const int64_t before = resident();
  std::vector<TokenFile> files;
  files.emplace_back(path);
  files.back().check(100);
  const WindowDataset data(std::move(files), T, {.eval_fraction = 0.01});
  ASSERT_GT(data.train_samples(), 150'000);
  int64_t most = 0;
  for (int64_t k = 0; k < data.train_samples(); k += B) {  // an epoch: every page of the file
    data.fill(k, B, tokens.data(), targets.data());
    if (k % 4096 == 0) most = std::max(most, resident());
  }
  // Mapped, it would be 300 MiB. What remains is code and stack touched for the first time.
  EXPECT_LT(most - before, 2 * kMiB);
}

// 100 MB of text, packed into little, becomes tokens and documents.
TEST(SlowDataMemory, TextIsStreamed) {
  TempFolder tmp;
  std::mt19937_64 rng(1);
  std::string records;
  while (static_cast<int64_t>(records.size()) < kMiB) {
    records += "{\"text\":\"";
    for (uint64_t i = 0, n = rng() % 200; i < n; ++i) records += rng() % 3 == 0 ? "한 " : "word ";
    records += ".\"}\n";
  }
  const std::string frame = test::zstd(records);
  const EncodeFunction encode = [](std::string_view text, std::vector<int32_t>& out) {
    for (const char c : text) out.push_back(static_cast<uint8_t>(c));
  };
  int64_t growth[2] = {0, 0};
  int64_t documents[2] = {0, 0};
  for (const int large : {0, 1}) {
    const std::string path = tmp / (large ? "large.jsonl.zst" : "small.jsonl.zst");
    std::ofstream out(path, std::ios::binary);
    for (int i = 0; i < (large ? 100 : 2); ++i) out << frame;
    out.close();
    TokenizeOptions options;
    options.vocab_size = 256;
    const int64_t before = resident();
    int64_t most = 0, calls = 0;
    documents[large] =
        tokenize_corpus(expand_corpus({path}), encode, options, tmp / "t.bin", [&](int64_t) {
          if (calls++ % 256 == 0) most = std::max(most, resident());
        }).documents;
    std::vector<TokenFile> files;
    files.emplace_back(tmp / "t.bin");
    files.back().check(256);
    const WindowDataset data(std::move(files), 128, {.eval_fraction = 0.1});
    EXPECT_GT(data.held_out_documents(), 0);
    growth[large] = std::max(most, resident()) - before;
  }
  EXPECT_EQ(documents[1], 50 * documents[0]);
  EXPECT_LT(growth[1], growth[0] + kMiB);
}

}  // namespace
}  // namespace snug
