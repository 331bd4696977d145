// Documents: held out whole, kept apart by positions; and files that change under a reader.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "engine/core/error.h"
#include "engine/data/dataset.h"
#include "engine/io/fingerprint.h"
#include "tests/engine/data/heap_count.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// Document d holds `sizes[d]` tokens: d * 100, d * 100 + 1, ... from the number `first` on.
TokenFile documents_file(const std::string& path, const std::vector<int64_t>& sizes,
                         int32_t first = 0) {
  TokenFileWriter writer(path, 1 << 30, 1);
  for (const int64_t size : sizes) {
    for (int32_t i = 0; i < size; ++i) {
      const int32_t id = first * 100 + i;
      writer.append(&id, 1);
    }
    ++first;
    writer.end_document();
  }
  writer.commit();
  return TokenFile(path);
}

std::vector<int64_t> random_sizes(int64_t count, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) sizes.push_back(1 + static_cast<int64_t>(rng() % 20));
  return sizes;
}

// The two texts and their positions, spelled out.
struct Texts {
  Ids ids[2], starts[2];  // starts: of each token's document, in the text
};
Texts texts_of(const std::vector<int64_t>& sizes, const HeldOut& held, int64_t first) {
  Texts t;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int p = held(first + static_cast<int64_t>(d)) ? 1 : 0;
    const auto start = static_cast<int32_t>(t.ids[p].size());
    for (int64_t i = 0; i < sizes[d]; ++i) {
      t.ids[p].push_back(static_cast<int32_t>((first + static_cast<int64_t>(d)) * 100 + i));
      t.starts[p].push_back(start);
    }
  }
  return t;
}

TEST(HeldOut, ExactlyAsManyAsAsked) {
  for (const int64_t n : {1, 2, 7, 100, 5000})
    for (const int64_t m : {int64_t{0}, int64_t{1}, n / 3, n}) {
      const HeldOut a(n, m, 42), b(n, m, 42), c(n, m, 43);
      int64_t count = 0, same = 0;
      for (int64_t d = 0; d < n; ++d) {
        count += a(d);
        EXPECT_EQ(a(d), b(d));
        same += a(d) && c(d);
      }
      EXPECT_EQ(count, m);
      if (n == 5000 && m == n / 3) {
        // Another seed, other documents: of 1666 held by chance a third, 555, with a standard
        // deviation below 20; five of them.
        EXPECT_NEAR(static_cast<double>(same), 555, 100);
      }
    }
  EXPECT_THROW(HeldOut(3, 4, 0), Error);
}

// Tables of every size, over small and large indices, against the texts written out.
TEST(SplitFile, GivesTheTwoTexts) {
  TempFolder tmp;
  for (const int64_t count : {1, 2, 40, 1300}) {
    const std::vector<int64_t> sizes = random_sizes(count, static_cast<unsigned>(count));
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    documents_file(tmp / "t", sizes, 3);
    for (const int64_t held_count : {int64_t{0}, count / 2, count}) {
      const int64_t first = 3;
      const HeldOut held(count + first, held_count, 5);
      const Texts want = texts_of(sizes, held, first);
      for (const int64_t entries : {1, 7, 512, 100000}) {
        const SplitFile file(TokenFile(tmp / "t"), first, held, entries);
        EXPECT_EQ(file.size(Part::train) + file.size(Part::held), total);
        std::mt19937_64 rng(1);
        for (const Part part : {Part::train, Part::held}) {
          const Ids& text = want.ids[static_cast<int>(part)];
          const Ids& starts = want.starts[static_cast<int>(part)];
          const auto size = static_cast<int64_t>(text.size());
          ASSERT_EQ(file.size(part), size);
          for (int trial = 0; trial < 40; ++trial) {
            const int64_t begin = size == 0 ? 0 : static_cast<int64_t>(rng() % text.size());
            const int64_t n =
                size == 0 ? 0 : static_cast<int64_t>(rng() % (text.size() - begin + 1));
            Ids got(static_cast<size_t>(n)), where(static_cast<size_t>(n)), expected;
            file.copy(part, begin, n, got.data());
            EXPECT_EQ(got, Ids(text.begin() + begin, text.begin() + begin + n));
            file.positions(part, begin, n, where.data());
            for (int64_t i = begin; i < begin + n; ++i)
              expected.push_back(static_cast<int32_t>(
                  i - std::max<int64_t>(begin, starts[static_cast<size_t>(i)])));
            EXPECT_EQ(where, expected);
          }
          int32_t one;
          EXPECT_THROW(file.copy(part, size, 1, &one), Error);
          EXPECT_THROW(file.copy(part, -1, 1, &one), Error);
        }
      }
    }
  }
}

// More documents than the buffers of writer and reader hold.
TEST(SplitFile, ManyDocuments) {
  TempFolder tmp;
  const int64_t n = 20'000;
  TokenFileWriter writer(tmp / "t", 1 << 30, 1);
  for (int32_t d = 0; d < n; ++d) {
    writer.end_document();  // nothing since the last: no document
    writer.append(&d, 1);
    writer.end_document();
  }
  writer.commit();
  const HeldOut held(n, 500, 1);
  const SplitFile file(TokenFile(tmp / "t"), 0, held, 100);
  EXPECT_EQ(file.file().documents(), n);
  ASSERT_EQ(file.size(Part::held), 500);
  Ids got(500), want;
  file.copy(Part::held, 0, 500, got.data());
  for (int32_t d = 0; d < n; ++d)
    if (held(d)) want.push_back(d);
  EXPECT_EQ(got, want);
}

// 16 bytes an entry, however many documents there are to an entry: one more than twice as many, too.
TEST(SplitFile, ItsTableKeepsToItsEntries) {
  TempFolder tmp;
  for (const int64_t documents : {7, 99, 100, 101, 150, 199, 200, 201, 1000}) {
    TokenFile file = documents_file(tmp / "t", std::vector<int64_t>(documents, 1));
    const HeldOut held(documents, 3, 1);
    const int64_t before = heap_bytes();
    const SplitFile split(std::move(file), 0, held, 100);
    EXPECT_LE(heap_bytes() - before, 16 * std::min<int64_t>(documents, 100)) << documents;
    EXPECT_EQ(split.size(Part::held), 3);
  }
}

std::vector<TokenFile> two_files(const TempFolder& tmp, int64_t documents) {
  std::vector<TokenFile> files;
  const std::vector<int64_t> sizes = random_sizes(documents, 8);
  const auto middle = sizes.begin() + documents / 2;
  files.push_back(documents_file(tmp / "a", {sizes.begin(), middle}));
  files.push_back(
      documents_file(tmp / "b", {middle, sizes.end()}, static_cast<int32_t>(documents / 2)));
  return files;
}

std::set<int32_t> documents_in(const Ids& ids) {
  std::set<int32_t> out;
  for (const int32_t id : ids) out.insert(id / 100);
  return out;
}

TEST(WindowDataset, HoldsOutWholeDocuments) {
  TempFolder tmp;
  const int64_t T = 16;
  const WindowDataset data(two_files(tmp, 400), T, {.eval_fraction = 0.2, .seed = 3});
  EXPECT_EQ(data.documents(), 400);
  EXPECT_EQ(data.held_out_documents(), 80);
  std::set<int32_t> trained, held;
  std::set<int32_t> targets_seen;
  Ids tokens(T), targets(T), positions(T);
  for (int64_t k = 0; k < data.train_samples(); ++k) {
    data.fill(k, 1, tokens.data(), targets.data());
    trained.merge(documents_in(tokens));
    trained.merge(documents_in(targets));
    for (const int32_t t : targets) EXPECT_TRUE(targets_seen.insert(t).second) << "once an epoch";
    EXPECT_EQ(Ids(tokens.begin() + 1, tokens.end()), Ids(targets.begin(), targets.end() - 1));
    // Positions agree with the tokens: a document's token i is at place i, or i - (the first's).
    data.positions(k, positions.data());
    for (int64_t i = 0; i < T; ++i) {
      const auto at = static_cast<size_t>(i);
      const int32_t shift = tokens[at] / 100 == tokens[0] / 100 ? tokens[0] % 100 : 0;
      EXPECT_EQ(positions[at], tokens[at] % 100 - shift);
    }
  }
  for (int64_t e = 0; e < data.eval_samples(); ++e) {
    data.fill_eval(e, 1, tokens.data(), targets.data());
    held.merge(documents_in(tokens));
    held.merge(documents_in(targets));
    data.eval_positions(e, positions.data());
    EXPECT_EQ(positions[0], 0);
  }
  for (const int32_t d : held) EXPECT_EQ(trained.count(d), 0u) << d;
  // All but the rest at the ends of the files, below T tokens, is used.
  EXPECT_GT(trained.size(), 315u);
  EXPECT_GT(held.size(), 75u);
  // Another seed, other documents; the same, the same.
  const WindowDataset other(two_files(tmp, 400), T, {.eval_fraction = 0.2, .seed = 4});
  const WindowDataset again(two_files(tmp, 400), T, {.eval_fraction = 0.2, .seed = 3});
  Ids a(T), b(T), c(T);
  data.fill_eval(0, 1, a.data(), targets.data());
  other.fill_eval(0, 1, b.data(), targets.data());
  again.fill_eval(0, 1, c.data(), targets.data());
  EXPECT_NE(a, b);
  EXPECT_EQ(a, c);
}

// Documents kept apart: starts and targets of every sample of both sides, over two files, from what
// the tokens say of their documents.
TEST(WindowDataset, KeepsDocumentsApart) {
  TempFolder tmp;
  for (const int64_t T : {1, 2, 16, 50}) {
    const WindowDataset data(two_files(tmp, 400), T, {.eval_fraction = 0.2, .seed = 3});
    Ids tokens(static_cast<size_t>(T)), plain(tokens.size()), targets(tokens.size()),
        starts(tokens.size());
    int64_t trained = 0, cut = 0;
    const auto check = [&] {
      for (int64_t t = 0; t < T; ++t) {
        const auto at = static_cast<size_t>(t);
        const bool begins = t > 0 && tokens[at] % 100 == 0;
        ASSERT_EQ(starts[at], begins ? t : t > 0 ? starts[at - 1] : 0);
        const bool apart = plain[at] % 100 == 0;  // the target is a document's first token
        ASSERT_EQ(targets[at], apart ? -100 : plain[at]) << T << " " << t;
        (apart ? cut : trained) += 1;
      }
    };
    for (int64_t k = 0; k < data.train_samples(); ++k) {
      data.fill(k, 1, tokens.data(), plain.data());
      data.fill(k, 1, tokens.data(), targets.data(), starts.data());
      check();
    }
    EXPECT_EQ(data.trained_targets(0, data.train_samples()), trained);
    EXPECT_EQ(data.train_samples() * T, trained + cut);
    const int64_t trained_cut = cut;
    EXPECT_GT(cut, 200);
    int64_t one_by_one = 0;
    for (int64_t k = 0; k < data.train_samples(); ++k) one_by_one += data.trained_targets(k, 1);
    EXPECT_EQ(one_by_one, trained);
    for (int64_t e = 0; e < data.eval_samples(); ++e) {
      data.fill_eval(e, 1, tokens.data(), plain.data());
      data.fill_eval(e, 1, tokens.data(), targets.data(), starts.data());
      check();
    }
    EXPECT_EQ(data.evaluated_targets(0, data.eval_samples()),
              data.eval_samples() * T - (cut - trained_cut));
    // Several samples at once are the same ones.
    const auto size = static_cast<size_t>(3 * T);
    Ids many(size), many_targets(size), many_starts(size);
    data.fill(1, 3, many.data(), many_targets.data(), many_starts.data());
    data.fill(2, 1, tokens.data(), targets.data(), starts.data());
    EXPECT_TRUE(std::equal(starts.begin(), starts.end(), many_starts.begin() + T));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), many_targets.begin() + T));
  }
}

// Nothing is trained where every document has one token; all of it where there is but one.
TEST(WindowDataset, DocumentsOfOneTokenAndOneDocument) {
  TempFolder tmp;
  const auto make = [&](const std::vector<int64_t>& sizes) {
    std::vector<TokenFile> files;
    files.push_back(documents_file(tmp / "t", sizes));
    return WindowDataset(std::move(files), 8);
  };
  Ids tokens(8), targets(8), starts(8);
  const WindowDataset ones = make(std::vector<int64_t>(33, 1));
  EXPECT_EQ(ones.trained_targets(0, 4), 0);
  ones.fill(2, 1, tokens.data(), targets.data(), starts.data());
  EXPECT_EQ(targets, Ids(8, -100));
  EXPECT_EQ(starts, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  const WindowDataset one = make({33});
  EXPECT_EQ(one.trained_targets(0, 4), 32);
  one.fill(2, 1, tokens.data(), targets.data(), starts.data());
  EXPECT_EQ(starts, Ids(8, 0));
  EXPECT_EQ(targets[7], tokens[7] + 1);
}

TEST(WindowDataset, SplitFillTakesNoMemory) {
  TempFolder tmp;
  const WindowDataset data(two_files(tmp, 400), 16, {.eval_fraction = 0.2, .seed = 3});
  Ids tokens(64 * 16), targets(64 * 16), starts(64 * 16);
  const int64_t before = heap_requests();
  data.fill(100, 64, tokens.data(), targets.data());
  data.fill_eval(0, data.eval_samples(), tokens.data(), targets.data());
  data.positions(5, tokens.data());
  data.fill(100, 64, tokens.data(), targets.data(), starts.data());
  EXPECT_GT(data.trained_targets(100, 64), 0);
  EXPECT_EQ(heap_requests(), before);
}

TEST(WindowDataset, HoldsOutTheTailWhereDocumentsDoNotServe) {
  TempFolder tmp;
  const auto make = [&](const std::vector<int64_t>& sizes, double fraction, int64_t T) {
    std::vector<TokenFile> files;
    files.push_back(documents_file(tmp / "t", sizes));
    return WindowDataset(std::move(files), T, {.eval_fraction = fraction, .seed = 1});
  };
  // One document; three of which a tenth is none; documents too short for a sample of their own.
  for (const auto& [sizes, T] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
           {{90}, 8}, {{30, 30, 30}, 8}, {std::vector<int64_t>(20, 5), 10}}) {
    const WindowDataset data = make(sizes, 0.1, T);
    EXPECT_EQ(data.held_out_documents(), 0);
    EXPECT_EQ(data.eval_samples(), 1);
    Ids tokens(static_cast<size_t>(T)), targets(tokens.size()), last(tokens.size());
    data.fill_eval(0, 1, tokens.data(), targets.data());
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const int64_t begin = ((total - 1) / T - 1) * T;
    TokenFile(tmp / "t").copy(begin, T, last.data());
    EXPECT_EQ(tokens, last);
  }
  EXPECT_EQ(make({30, 30, 30}, 0.2, 8).held_out_documents(), 1);
  // A file of others: its documents are not known.
  std::ofstream(tmp / "raw", std::ios::binary) << std::string(200, '\1');
  std::vector<TokenFile> files;
  files.emplace_back(tmp / "raw");
  const WindowDataset raw(std::move(files), 8, {.eval_fraction = 0.5});
  EXPECT_EQ(raw.documents(), -1);
  EXPECT_EQ(raw.held_out_documents(), 0);
  EXPECT_EQ(raw.eval_samples(), 6);
  Ids positions(8);
  raw.positions(0, positions.data());
  EXPECT_EQ(positions, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
}

// What another program does to a file while a run reads it.
class ChangingFile : public ::testing::Test {
 protected:
  TokenFile checked() {
    documents_file(path_, {50, 60, 70});
    TokenFile file(path_);
    file.check(1 << 30);
    return file;
  }
  void later() {  // so that the time of the last write cannot be the same
    fs::last_write_time(path_, fs::last_write_time(path_) + std::chrono::seconds(1));
  }
  TempFolder tmp_;
  const std::string path_ = tmp_ / "t.bin";
};

TEST_F(ChangingFile, ShorterIsAnError) {
  const TokenFile file = checked();
  const auto bytes = static_cast<int64_t>(fs::file_size(path_));
  fs::resize_file(path_, 1024 + 4 * 100);
  Ids out(180);
  file.copy(0, 100, out.data());  // what is left is there
  EXPECT_ERROR(file.copy(90, 20, out.data()), ErrorCode::device,
               "80 bytes at offset 1384 of " + path_,
               "a file of 1424 bytes, " + std::to_string(bytes) + " when it was opened",
               "put the file back");
  EXPECT_ERROR(file.verify(), ErrorCode::device, path_, "1424 bytes", "new name");
  fs::resize_file(path_, 0);
  EXPECT_THROW(file.copy(0, 1, out.data()), DataLost);
  try {
    file.verify();
    ADD_FAILURE();
  } catch (const DataLost& e) {
    EXPECT_EQ(e.exit_code(), 1);
  }
}

TEST_F(ChangingFile, LongerIsAnError) {
  const TokenFile file = checked();
  fs::resize_file(path_, fs::file_size(path_) + 4);
  EXPECT_ERROR(file.verify(), ErrorCode::device, path_, "bytes, 1744 when", "put");
}

TEST_F(ChangingFile, OtherContentIsAnErrorAndTheSameIsNot) {
  const TokenFile file = checked();
  file.verify();
  later();  // a touch
  file.verify();
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary).seekp(1500).put('\x7f');
  later();
  EXPECT_ERROR(file.verify(), ErrorCode::device, "the tokens of " + path_ + " as they were",
               "the same size and other content", "new version");
  // Nothing is known of the content of a file that was not checked.
  documents_file(path_, {50});
  const TokenFile unchecked(path_);
  later();
  EXPECT_THROW(unchecked.verify(), DataLost);
}

TEST_F(ChangingFile, TheIndexIsWatchedToo) {
  const TokenFile file = checked();
  const std::string index = path_ + ".idx";
  const fs::file_time_type later = fs::last_write_time(index) + std::chrono::seconds(1);
  std::fstream(index, std::ios::in | std::ios::out | std::ios::binary).seekp(33).put('\x01');
  fs::last_write_time(index, later);
  EXPECT_ERROR(file.verify(), ErrorCode::device, "the index of documents of " + index,
               "other content", "put");
  fs::resize_file(index, 40);
  int64_t ends[3];
  EXPECT_ERROR(file.document_ends(0, 3, ends), ErrorCode::device,
               "24 bytes at offset 32 of " + index, "a file of 40 bytes, 56", "put");
}

TEST_F(ChangingFile, RemovedOrReplacedByRenameIsNoMatter) {
  const TokenFile file = checked();
  documents_file(tmp_ / "other", {9});
  fs::rename(tmp_ / "other", path_);
  Ids out(180);
  file.copy(0, 180, out.data());
  file.verify();
  EXPECT_EQ(out[179], 269);
  fs::remove(path_);
  file.copy(0, 180, out.data());
  file.verify();
  fs::remove(path_ + ".idx");
  file.verify();
}

TEST_F(ChangingFile, DatasetsNotice) {
  std::vector<TokenFile> files;
  files.push_back(checked());
  const WindowDataset data(std::move(files), 8, {.shuffle = false});
  Ids tokens(8), targets(8);
  data.fill(0, 1, tokens.data(), targets.data());
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary).seekp(1600).put('\x7f');
  later();
  EXPECT_THROW(data.fill(0, 1, tokens.data(), targets.data()), DataLost);
}

// A header, an index and tokens that do not belong together.
TEST_F(ChangingFile, PartsThatDoNotFitAreRefused) {
  const auto patch = [&](const std::string& path, int64_t at, const std::string& bytes) {
    checked();
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(at)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  const auto number = [](int64_t v) { return std::string(reinterpret_cast<const char*>(&v), 8); };
  const std::string index = path_ + ".idx";
  patch(path_, 1500, "\x7f");
  TokenFile other(path_);
  EXPECT_ERROR(other.check(1 << 30), ErrorCode::data, "the tokens that were written to " + path_,
               "the header says", "make the token file again");
  patch(path_, 16, "\2");
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "version 1 behind \"SNUG\"", "2", "the program");
  patch(path_, 32, number(181));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "one number of tokens", "180 and 181", "again");
  patch(path_, 8, number(-1).substr(0, 4));  // "more than an int32 can say": the long number holds
  EXPECT_EQ(TokenFile(path_).size(), 180);
  patch(index, 0, "X");
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "an index of documents in " + index, "something",
               "again");
  patch(index, 24, number(179));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "the 180 tokens of " + path_, "179 tokens",
               "again");
  patch(index, 16, number(int64_t{1} << 61));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "document ends in " + index, "24 bytes", "again");
  patch(index, 40, number(50));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "rise from above 50 to 180", "50 for document 1",
               "again");
  patch(index, 40, number(181));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "rise from above 50", "181 for document 1",
               "again");
  patch(index, 48, number(179));
  EXPECT_ERROR(TokenFile(path_), ErrorCode::data, "the last document in " + index, "179", "again");
  // Without an index the tokens are whole, and their documents not known.
  checked();
  fs::remove(index);
  EXPECT_EQ(TokenFile(path_).documents(), -1);
  EXPECT_EQ(TokenFile(path_).size(), 180);
}

}  // namespace
}  // namespace snug
