#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <filesystem>
#include <random>
#include <set>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/data/record_layout.h"
#include "engine/data/token_file.h"
#include "engine/io/files.h"
#include "tests/engine/io/packed.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

class Corpus : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(tmp_ / name).parent_path());
    write_atomic(tmp_ / name, text);
  }
  std::vector<std::string> documents(const std::vector<std::string>& names,
                                     CorpusReport* report = nullptr) {
    std::vector<std::string> sources, out;
    for (const std::string& n : names) sources.push_back(n.empty() ? tmp_.path() : tmp_ / n);
    std::string document;
    const CorpusReport r = for_each_piece(expand_corpus(sources), {.quotes = quotes_},
                                          [&](std::string_view piece, bool last) {
                                            document += piece;
                                            if (last) out.push_back(std::exchange(document, ""));
                                          });
    if (report) *report = r;
    return out;
  }
  TempFolder tmp_;
  std::optional<bool> quotes_;
};

using Strings = std::vector<std::string>;

TEST_F(Corpus, DocumentsOfTextAndRecords) {
  put("a.txt", "\xef\xbb\xbfone\n");
  put("b.jsonl",
      "{\"text\":\"two\"}\r\n\n  \n{\"id\":1,\"text\":\"th\\u00e9\\n\"}\n{\"text\":\"\"}");
  put("c.txt", "");
  put("d.bin", std::string("a\0b", 3));
  put("e.py", "x = '\xff'");
  put("f.py", "한글");
  CorpusReport r;
  EXPECT_EQ(documents({""}, &r), (Strings{"one\n", "two", "thé\n", "한글"}));
  EXPECT_EQ(r.files, 3);
  EXPECT_EQ(r.documents, 4);
  EXPECT_EQ(r.bytes, 4 + 3 + 5 + 6);
  EXPECT_EQ(r.skipped, 2);
  EXPECT_EQ(r.empty, 2);
  EXPECT_EQ(r.first_skipped, tmp_ / "d.bin");
}

TEST_F(Corpus, BadFilesNamedByTheUserAreErrors) {
  put("a.txt", "one\ntwo \xe9t\xe9");
  EXPECT_ERROR(documents({"a.txt"}), ErrorCode::data,
               "UTF-8 without zero bytes in " + (tmp_ / "a.txt"),
               "byte 0xe9 at " + (tmp_ / "a.txt") + ":2 (offset 8)", "iconv");
  put("t.bin", std::string("\1\0", 2));
  EXPECT_ERROR(documents({"t.bin"}), ErrorCode::data, "UTF-8", "byte 0x00", "token files alone");
  put("b.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n");
  EXPECT_ERROR(documents({"b.jsonl"}), ErrorCode::data, "a string \"text\"",
               "b.jsonl:2: \"text\" is 1", "own line");
  put("b.jsonl", "\n{\"t\":\"a\"}\n");
  EXPECT_ERROR(documents({""}), ErrorCode::data, "a string \"text\"", "b.jsonl:2: no \"text\"",
               "line");
  put("b.jsonl", "[1]");
  EXPECT_ERROR(documents({"b.jsonl"}), ErrorCode::data, "an object", "b.jsonl:1: a list of 1",
               "line");
  put("b.jsonl", "{\"text\":\"a\"}\n{\"text\" \"b\"}\n");
  EXPECT_ERROR(documents({"b.jsonl"}), ErrorCode::data, "valid JSON", "b.jsonl:2:", "correct");
  put("c.txt", "");
  EXPECT_ERROR(documents({"c.txt"}), ErrorCode::data, "text to learn from",
               "none in " + tmp_.path(), "give files with text");
  put("x/1", "\xff");
  put("x/2", "");
  EXPECT_ERROR(documents({"x"}), ErrorCode::data, "text to learn from",
               "none in 2 files (1 empty, 1 not UTF-8 text)", "give files");
}

// Well-formed and ill-formed sequences of the Unicode standard, table 3-7 and its examples.
TEST_F(Corpus, Utf8IsCheckedExactly) {
  const auto good = [&](const std::string& s) {
    put("u/f", "ok");
    put("u/g", s);
    CorpusReport r;
    documents({"u"}, &r);
    return r.skipped == 0;
  };
  for (const char* s : {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                        "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(good(s)) << s;
  for (const char* s :
       {"\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xe1\x80", "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf1\x80\x80", "\xff"})
    EXPECT_FALSE(good(s)) << s;
}

std::vector<std::string> chunks(std::string_view text, int64_t max_bytes) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::string_view chunk = first_chunk(text, max_bytes);
    out.emplace_back(chunk);
    text.remove_prefix(chunk.size());
  }
  return out;
}

TEST(Chunks, AreCutInTheStatedOrder) {
  EXPECT_EQ(chunks("short", 8), (Strings{"short"}));
  EXPECT_EQ(chunks("ab cd\nef gh", 8), (Strings{"ab cd\n", "ef gh"}));  // the line, not the space
  EXPECT_EQ(chunks("abcde\n\nf gh", 8),
            (Strings{"abcde\n\nf", " gh"}));  // the space: two breaks are not clean
  EXPECT_EQ(chunks("ab cde\n\nfgh", 10), (Strings{"ab cde\n\n", "fgh"}));
  EXPECT_EQ(chunks("abcdefg hi.\n/jkl", 13), (Strings{"abcdefg", " hi.\n/jkl"}));  // not at a slash
  EXPECT_EQ(chunks("abcdefghij", 4), (Strings{"abcd", "efgh", "ij"}));
  EXPECT_EQ(chunks("한글한글", 7), (Strings{"한글", "한글"}));  // never inside a character
  EXPECT_EQ(chunks("\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 1),
            (Strings{"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}));
}

TEST(Chunks, RestoreTheText) {
  std::mt19937_64 rng(5);
  const std::string parts[] = {"a", "한", "\n", " ", "\r\n", "\u3000", "é", "longer words", "😀"};
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text, back;
    while (text.size() < 200) text += parts[rng() % std::size(parts)];
    const size_t max = 4 + rng() % 60;
    for (const std::string& c : chunks(text, static_cast<int64_t>(max))) {
      EXPECT_LE(c.size(), max);
      EXPECT_NE(static_cast<uint8_t>(c[0]) & 0xc0u, 0x80u);
      back += c;
    }
    EXPECT_EQ(back, text);
  }
}

std::set<size_t> boundaries(pcre2_code* code, std::string_view text, size_t offset) {
  std::set<size_t> out;
  pcre2_match_data* match = pcre2_match_data_create(8, nullptr);
  size_t at = 0;
  while (at < text.size() && pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                         text.size(), at, 0, match, nullptr) > 0) {
    at = pcre2_get_ovector_pointer(match)[1];
    out.insert(offset + at);
  }
  pcre2_match_data_free(match);
  return out;
}

// The white space among the parts that the test below puts together.
constexpr std::string_view kSpaces[] = {" ", "\n", "\r", "\t", "\u3000", "\u00a0"};
bool space_at_start(std::string_view text) {
  for (const std::string_view s : kSpaces)
    if (text.substr(0, s.size()) == s) return true;
  return false;
}
bool space_at_end(std::string_view text) {
  for (const std::string_view s : kSpaces)
    if (text.size() >= s.size() && text.substr(text.size() - s.size()) == s) return true;
  return false;
}

// The published expressions of GPT-2, Llama 3 and GPT-4o cut a chunked text as they cut the whole.
TEST(Chunks, DoNotChangeTokensWhereAPlaceIsClean) {
  const char* expressions[] = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  const std::string parts[] = {"a", "Bc", "7",  "1234", ".", "'s",   "/",      "\n",     "\n",
                               " ", " ",  "\t", "\r\n", "é", "한글", "\u3000", "\u00a0", "!?"};
  std::mt19937_64 rng(11);
  int64_t compared = 0;
  for (const char* expression : expressions) {
    int error = 0;
    size_t where = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr);
    ASSERT_NE(code, nullptr);
    for (int trial = 0; trial < 1000; ++trial) {
      std::string text;
      while (text.size() < 150) text += parts[rng() % std::size(parts)];
      const std::string_view chunk = first_chunk(text, 100);
      const size_t cut = chunk.size();
      // The last two kinds of cut are not promised to keep the tokens.
      const std::string_view before = chunk.substr(0, cut - (chunk.back() == '\n' ? 1 : 0));
      const std::string_view after =
          std::string_view(text).substr(cut + (text[cut] == ' ' ? 1 : 0));
      const bool one = (chunk.back() == '\n') != (text[cut] == ' ');
      if (!one || space_at_end(before) || space_at_start(after)) continue;
      if (chunk.back() == '\n' && after[0] == '/') continue;
      std::set<size_t> split = boundaries(code, chunk, 0);
      split.merge(boundaries(code, std::string_view(text).substr(cut), cut));
      EXPECT_EQ(split, boundaries(code, text, 0)) << text;
      ++compared;
    }
    pcre2_code_free(code);
  }
  EXPECT_GT(compared, 1500);
}

// The same documents in every form give the same documents, packed or not.
TEST_F(Corpus, EveryFormGivesTheSameDocuments) {
  quotes_ = true;  // of .tsv too
  const Strings want = {"one, \"two\"\nthree", "é한😀", "tab\there"};
  const std::string records =
      "{\"text\":\"one, \\\"two\\\"\\nthree\"}\n{\"text\":\"é한😀\"}\n{\"text\":\"\"}\n"
      "{\"text\":\"tab\\there\"}";
  const std::string commas = "id,text\n1,\"one, \"\"two\"\"\nthree\"\n2,é한😀\n3,\n4,tab\there\n";
  const std::string tabs =
      "text\tid\r\n\"one, \"\"two\"\"\nthree\"\t1\r\né한😀\t2\r\n\t3\r\n\"tab\there\"\t4\r\n";
  const std::pair<const char*, const std::string*> forms[] = {
      {"a.jsonl", &records}, {"a.ndjson", &records}, {"a.csv", &commas}, {"a.tsv", &tabs}};
  for (const auto& [name, text] : forms) {
    put(std::string("plain/") + name, *text);
    put(std::string("gz/") + name + ".gz", test::gzip(*text));
    put(std::string("zst/") + name + ".zst", test::zstd(*text));
    put(std::string("mark/") + name, "\xef\xbb\xbf" + *text);
    for (const std::string& file :
         {std::string("plain/") + name, std::string("gz/") + name + ".gz",
          std::string("zst/") + name + ".zst", std::string("mark/") + name}) {
      CorpusReport r;
      EXPECT_EQ(documents({file}, &r), want) << file;
      EXPECT_EQ(r.documents, 3) << file;
      EXPECT_EQ(r.files, 1) << file;
      EXPECT_EQ(r.empty, 1) << file;
      EXPECT_EQ(r.bytes, 16 + 9 + 8) << file;
    }
  }
  EXPECT_EQ(documents({"plain"}).size(), 12u);  // and in a folder
  EXPECT_EQ(documents({"gz", "zst"}).size(), 24u);
  put("w.txt.zst", test::zstd("whole\nfile"));
  EXPECT_EQ(documents({"w.txt.zst"}), Strings{"whole\nfile"});
}

TEST_F(Corpus, TheTextColumnHasAName) {
  put("a.csv", "id,body\n1,x\n");
  put("b.jsonl", "{\"body\":\"y\",\"id\":\"7\"}\n");
  const auto read = [&](const std::vector<std::string>& names, const std::string& column) {
    std::vector<std::string> sources;
    Strings out;
    for (const std::string& n : names) sources.push_back(n.empty() ? tmp_.path() : tmp_ / n);
    for_each_document(
        expand_corpus(sources), [&](std::string_view text) { out.emplace_back(text); }, column);
    return out;
  };
  EXPECT_EQ(read({""}, "body"), (Strings{"x", "y"}));
  EXPECT_ERROR(read({"a.csv"}, "text"), ErrorCode::data, "a column \"text\" in " + (tmp_ / "a.csv"),
               "the columns \"id\", \"body\"", "text_column=id");
  put("bare.tsv", "a stirring , funny and finally transporting re-imagining of beauty\t1\n");
  EXPECT_ERROR(read({"bare.tsv"}, "text"), ErrorCode::data, "a column \"text\" in ",
               "the columns \"a stirring , funny and finally transport...\", \"1\"",
               "a first line that names the columns, one of them text");
  std::filesystem::remove(tmp_ / "bare.tsv");
  EXPECT_ERROR(read({"b.jsonl"}, "text"), ErrorCode::data, "a string \"text\" on every line",
               "b.jsonl:1: no \"text\", but \"body\", \"id\"", "text_column");
  // A table of a folder may be anything: it is left out, and the report says so.
  put("c.txt", "z");
  std::filesystem::remove(tmp_ / "b.jsonl");
  CorpusReport r;
  EXPECT_EQ(documents({""}, &r), Strings{"z"});
  EXPECT_EQ(r.no_column, 1);
  EXPECT_EQ(r.first_no_column, tmp_ / "a.csv");
  std::filesystem::remove(tmp_ / "c.txt");
  EXPECT_ERROR(documents({""}), ErrorCode::data, "text to learn from",
               "without a column \"text\", e.g. " + (tmp_ / "a.csv"), "text_column");
}

TEST_F(Corpus, BadPackedFiles) {
  put("f/a.txt", "fine");
  put("f/b.tar.gz", test::gzip(std::string("a\0b", 3)));  // found in a folder and no text
  CorpusReport r;
  EXPECT_EQ(documents({"f"}, &r), Strings{"fine"});
  EXPECT_EQ(r.skipped, 1);
  const std::string half = test::gzip("{\"text\":\"a\"}\n");
  put("f/c.jsonl.gz", half.substr(0, half.size() - 3));
  EXPECT_ERROR(documents({"f"}), ErrorCode::data, "c.jsonl.gz to be a whole gzip file", "its end",
               "again");
  EXPECT_ERROR(documents({"f/c.jsonl.gz"}), ErrorCode::data, "c.jsonl.gz", "its end", "again");
  put("d.jsonl.zst", test::zstd("{\"text\":\"a\"}\n{\"text\":1}\n"));
  EXPECT_ERROR(documents({"d.jsonl.zst"}), ErrorCode::data, "a string", "d.jsonl.zst:2", "line");
}

// Pieces are what first_chunk cuts from the whole text, wherever the reader's blocks end.
TEST_F(Corpus, PiecesAreThoseOfTheWholeText) {
  std::mt19937_64 rng(9);
  const std::string parts[] = {"a", "한", "\n", " ", "word", "é\n"};
  std::string text;
  while (text.size() < 700'000) text += parts[rng() % std::size(parts)];
  put("a.txt", text);
  put("b.jsonl", "{\"text\":\"" + std::string(5000, 'q') + "\"}");
  for (const int64_t max : {1000, 65536, 300'000}) {
    Strings got;
    int64_t ends = 0;
    for_each_piece(expand_corpus({tmp_ / "a.txt"}), {.text_column = "text", .piece_bytes = max},
                   [&](std::string_view piece, bool last) {
                     got.emplace_back(piece);
                     ends += last;
                   });
    EXPECT_EQ(got, chunks(text, max));
    EXPECT_EQ(ends, 1);
  }
  std::vector<bool> last;
  for_each_piece(expand_corpus({tmp_ / "b.jsonl"}), {.text_column = "text", .piece_bytes = 1000},
                 [&](std::string_view, bool end) { last.push_back(end); });
  EXPECT_EQ(last, (std::vector<bool>{false, false, false, false, true}));
}

// A record of the longest length is taken, one of a byte more is not, and says where it is.
TEST_F(Corpus, RecordsHaveABound) {
  constexpr int64_t kMost = 300'000;  // more than a block of the reader
  const ReadOptions options{.max_record_bytes = kMost, .longer_records = ", or memory=1GiB"};
  const auto read = [&](const std::string& name, ReadOptions o) {
    int64_t bytes = 0;
    for_each_piece({{tmp_ / name, true}}, o, [&](std::string_view piece, bool) {
      bytes += static_cast<int64_t>(piece.size());
    });
    return bytes;
  };
  const auto text = [](int64_t bytes) { return std::string(static_cast<size_t>(bytes), 'q'); };
  const std::string open = "{\"text\":\"", close = "\"}";
  const auto line = [&](int64_t bytes) {
    return open + text(bytes - static_cast<int64_t>(open.size() + close.size())) + close + "\n";
  };
  put("a.jsonl", line(100) + line(kMost));
  EXPECT_EQ(read("a.jsonl", options), 100 + kMost - 22);
  put("a.jsonl", line(100) + line(kMost + 1));
  EXPECT_ERROR(read("a.jsonl", options), ErrorCode::data, "lines of at most 300000 bytes in ",
               "a longer one at " + (tmp_ / "a.jsonl:2"), "split it into several");
  EXPECT_ERROR(read("a.jsonl", options), ErrorCode::data, "", "", ", or memory=1GiB");
  EXPECT_EQ(read("a.jsonl", {}), 100 + kMost + 1 - 22);

  put("a.csv", "id,text\n1,x\n2,\"" + text(kMost - 1) + "\"\n");
  EXPECT_EQ(read("a.csv", options), kMost);
  put("a.csv", "id,text\n1,x\n2,\"" + text(kMost) + "\"\n");
  EXPECT_ERROR(read("a.csv", options), ErrorCode::data, "records of at most 300000 bytes in ",
               "a longer one at " + (tmp_ / "a.csv:3"), ", or memory=1GiB");

  ReadOptions whole = options;
  whole.whole = true;
  put("a.txt", text(kMost));
  EXPECT_EQ(read("a.txt", whole), kMost);
  put("a.txt", text(kMost + 1));
  EXPECT_ERROR(read("a.txt", whole), ErrorCode::data, "a document of at most 300000 bytes in ",
               "a longer one", ", or memory=1GiB");
  EXPECT_EQ(read("a.txt", options), kMost + 1) << "text in pieces has no bound";

  // What is wrong with a long record is said without a tree of it.
  put("a.jsonl", line(100) + open + text(kMost - 100) + "\",}\n");
  EXPECT_ERROR(read("a.jsonl", options), ErrorCode::data, "a string \"text\" and each key once",
               tmp_ / "a.jsonl:2:299912: something else", "correct the file");
  put("a.jsonl", "{\"txt\":\"" + text(kMost - 100) + "\"}\n");
  EXPECT_ERROR(read("a.jsonl", options), ErrorCode::data, "a string \"text\"",
               "none in the record of 299910 bytes at " + (tmp_ / "a.jsonl:1"), "correct the file");
}

TEST_F(Corpus, APieceThatIsRefusedHasAPlace) {
  put("a.txt", "one\ntwo\nbad\n");
  put("b.jsonl", "\n{\"text\":\"fine\"}\n{\"text\":\"bad\"}\n");
  put("c.csv", "text\n\"fi\nne\"\nbad\n");
  const auto read = [&](const std::string& name) {
    for_each_piece({{tmp_ / name, true}}, {.piece_bytes = 8}, [](std::string_view piece, bool) {
      if (piece.find("bad") != std::string_view::npos) throw PieceRefused{"good", "bad", "better"};
    });
  };
  EXPECT_ERROR(read("a.txt"), ErrorCode::data, "good", "bad at " + (tmp_ / "a.txt:3"), "better");
  EXPECT_ERROR(read("b.jsonl"), ErrorCode::data, "good", "bad at " + (tmp_ / "b.jsonl:3"),
               "better");
  EXPECT_ERROR(read("c.csv"), ErrorCode::data, "good", "bad at " + (tmp_ / "c.csv:4"), "better");
}

TEST_F(Corpus, TheFingerprintIsOfTheContent) {
  put("a.txt", "one");
  put("b.txt", "two");
  const auto of = [&](const std::vector<std::string>& names, const ReadOptions& options = {}) {
    std::vector<std::string> sources;
    for (const std::string& n : names) sources.push_back(tmp_ / n);
    return corpus_fingerprint(expand_corpus(sources), options);
  };
  const uint64_t both = of({"a.txt", "b.txt"});
  EXPECT_EQ(of({"a.txt", "b.txt"}), both);
  EXPECT_NE(of({"b.txt", "a.txt"}), both);
  EXPECT_NE(of({"a.txt"}), both);
  EXPECT_NE(of({"a.txt", "b.txt"}, {.text_column = "body"}), both);
  EXPECT_NE(of({"a.txt", "b.txt"}, {.text_column = "text", .piece_bytes = 100}), both);
  put("c/x.txt", "one");
  EXPECT_EQ(of({"c/x.txt", "b.txt"}), both);  // names do not count
  put("c/x.csv", "one");
  EXPECT_NE(of({"c/x.csv", "b.txt"}), both);  // but for their endings
  put("b.txt", "twO");
  EXPECT_NE(of({"a.txt", "b.txt"}), both);
}

TEST_F(Corpus, TokenizesIntoATokenFile) {
  put("a.txt", "one\ntwo\nthree\n");
  put("b.jsonl", "{\"text\":\"xy\"}\n{\"text\":\"z\"}\n");
  const EncodeFunction bytes = [](std::string_view text, std::vector<int32_t>& out) {
    for (const char c : text) out.push_back(static_cast<uint8_t>(c));
  };
  int64_t last = 0;
  TokenizeOptions options;
  options.vocab_size = 257;
  options.tokenizer = 77;
  options.eos = 256;
  options.read.piece_bytes = 6;
  const auto files = expand_corpus({tmp_.path()});
  const CorpusReport r =
      tokenize_corpus(files, bytes, options, tmp_ / "out.bin", [&](int64_t done) {
        EXPECT_GT(done, last);
        EXPECT_LE(done - last, 6);
        last = done;
      });
  EXPECT_EQ(r.documents, 3);
  EXPECT_EQ(last, 17);
  const TokenFile file(tmp_ / "out.bin", 77);
  std::string text;
  std::vector<int32_t> ids(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), ids.data());
  for (const int32_t id : ids)
    text += id == 256 ? std::string("|") : std::string(1, static_cast<char>(id));
  EXPECT_EQ(text, "one\ntwo\nthree\n|xy|z|");
  ASSERT_EQ(file.documents(), 3);
  int64_t ends[3];
  file.document_ends(0, 3, ends);
  EXPECT_EQ(ends[0], 15);
  EXPECT_EQ(ends[1], 18);
  EXPECT_EQ(ends[2], 20);
  EXPECT_EQ(read_token_info(tmp_ / "out.bin")->documents, 3);
  // Without an end token nothing is added, and a failure leaves the earlier file as it was.
  options.eos.reset();
  options.vocab_size = 100;
  EXPECT_ERROR(tokenize_corpus(files, bytes, options, tmp_ / "out.bin"), ErrorCode::data,
               "from 0 to 99", "111 at position 0", "vocabulary");
  EXPECT_EQ(TokenFile(tmp_ / "out.bin", 77).size(), 20);
  options.vocab_size = 256;
  tokenize_corpus(files, bytes, options, tmp_ / "out.bin");
  EXPECT_EQ(TokenFile(tmp_ / "out.bin").size(), 17);
}

TEST_F(Corpus, QuotesAreThoseOfTheFormatUnlessSaid) {
  put("q.tsv", "text\tlabel\n\"Oh\t0\nyes it is\"\t1\nok\t1\n");
  EXPECT_EQ(documents({"q.tsv"}), (Strings{"\"Oh", "yes it is\"", "ok"}));
  put("q.csv", "text,label\n\"Oh,0\nyes it is\",1\nok,1\n");
  CorpusReport report;
  EXPECT_EQ(documents({"q.csv"}, &report), (Strings{"Oh,0\nyes it is", "ok"}));
  EXPECT_EQ(report.quoted_breaks, 1);
  EXPECT_EQ(report.first_quoted, tmp_ / "q.csv:2");
  const auto with = [&](const std::string& name, bool quotes) {
    Strings out;
    for_each_piece({{tmp_ / name, true}}, {.quotes = quotes},
                   [&](std::string_view piece, bool) { out.emplace_back(piece); });
    return out;
  };
  EXPECT_EQ(with("q.csv", false), (Strings{"\"Oh", "yes it is\"", "ok"}));
  EXPECT_EQ(with("q.tsv", true), (Strings{"Oh\t0\nyes it is", "ok"}));
  EXPECT_NE(corpus_fingerprint({{tmp_ / "q.tsv", true}}, {}),
            corpus_fingerprint({{tmp_ / "q.tsv", true}}, {.quotes = true}));
}

TEST_F(Corpus, LinesEndWithLineFeedOrBothOrCarriageReturnAlone) {
  put("a.jsonl", "{\"text\": \"a\"}\r\n{\"text\": \"b\"}\r\n");
  EXPECT_EQ(documents({"a.jsonl"}), (Strings{"a", "b"}));
  put("b.jsonl", "{\"text\": \"a\"}\r{\"text\": \"b\"}\r");
  EXPECT_EQ(documents({"b.jsonl"}), (Strings{"a", "b"}));
  put("c.csv", "text\rone\rtwo\r");
  EXPECT_EQ(documents({"c.csv"}), (Strings{"one", "two"}));
}

TEST_F(Corpus, RecordsAreNoText) {
  using enum RecordLayout;
  const struct {
    RecordLayout layout;
    const char *text, *path;
  } cases[] = {
      {array, "[{\"a\": 1}]", "a.txt"},
      {array, " [\n {\n \"instruction\" : \"x\"}]", "a.json"},
      {array, "[{\"k\":", "a"},
      {lines, "{\"a\": 1}\n{\"a\": 2}\n", "a.txt"},
      {lines, "{\"a\": {\"b\": 1} } \r\n{\"a\": ", "a.json"},
      {wrapped, "{\"data\": [ {\"a\": 1}]}", "a.json"},
      {wrapped, "{\n\"data\":\n[{\"a\": 1}]}", "a.json.gz"},
      {one, "{\"text\": \"b\"}", "a.json"},
      {one, "{\n \"prompt\": \"b\"}", "a.json.zst"},
      {one, "{\"messages\": [{\"role\": \"user\"", "a.json"},
      {one, "{\"conversations\": [{\"from\": \"human\"", "a.json"},
      {wrapped, "{\"messages\": [{\"id\": 1", "a.json"},
      {none, "{\"text\": [1]}", "a.json"},
      {none, "{\"text\": \"b\"}", "a.txt"},
      {strings, "[\n \"a\", \"b\"]", "a.json"},
      {none, "{\"cells\": [{\"a\": 1}]}", "a.ipynb"},
      {none, "{\"a\": 1}\n", "a.json"},
      {none, "{\"a\": 1\n, \"b\": 2}\n{\"a\": 1}", "a.json"},
      {none, "{\"a\": [1]}", "a.json"},
      {none, "{\"a\": 1}\nand a text", "a.txt"},
      {none, "{\"Oh,\" he said}\n{\"Oh,\" she said}\n", "a.txt"},
      {none, "", "a.json"},
      {none, "[", "a"},
      {none, "[{", "a"},
      {none, "[{\"", "a"},
      {none, "[1, 2]", "a"},
      {none, "[\"a\"]", "a"},
      {none, "[{\"Oh,\" he said.", "a"},
      {none, "x [{\"a\": 1}]", "a"},
      {none, "[note] {\"a\": 1}", "a"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(static_cast<int>(record_layout(c.text, c.path)), static_cast<int>(c.layout))
        << c.path << ": " << c.text;
  put("d/a.json", "[{\"a\": \"b\"}]");
  put("d/b.txt", "[1] a text with a note");
  put("d/c.json", "{\"a\": \"b\"}\n{\"a\": \"c\"}\n");
  put("d/d.jsonl", "{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
  CorpusReport report;
  EXPECT_EQ(documents({"d"}, &report), (Strings{"[1] a text with a note", "b", "c"}));
  EXPECT_EQ(report.skipped, 2) << "found in a folder they are passed over, and counted";
  EXPECT_ERROR(documents({"d/a.json"}), ErrorCode::data, "a record a line",
               "a JSON array of records", "jq -c '.[]'");
  const std::string array_text = "[{\"a\": \"b\"}]";
  put("p.json.gz", test::gzip(array_text));
  put("p.jsonl.zst", test::zstd(array_text));
  EXPECT_ERROR(documents({"p.json.gz"}), ErrorCode::data, "in " + (tmp_ / "p.json.gz"),
               "a JSON array of records", "zcat " + (tmp_ / "p.json.gz") + " | jq -c '.[]' > FILE");
  EXPECT_ERROR(documents({"p.jsonl.zst"}), ErrorCode::data, "in " + (tmp_ / "p.jsonl.zst"),
               "a JSON array of records", "zstdcat " + (tmp_ / "p.jsonl.zst") + " | jq -c '.[]'");
  put("v1.2/lines", "{\"a\": \"b\"}\n{\"a\": \"c\"}\n");
  EXPECT_ERROR(documents({"v1.2/lines"}), ErrorCode::data, "a record a line",
               "a JSON record a line", (tmp_ / "v1.2/lines.jsonl") + " as its name, and the key");
  put("p.json", "{\"my data\": [{\"a\": \"b\"}]}");
  EXPECT_ERROR(documents({"p.json"}), ErrorCode::data, "a record a line",
               "a JSON array of records under \"my data\"", "jq -c '.[\"my data\"][]' ");
}

}  // namespace
}  // namespace snug
