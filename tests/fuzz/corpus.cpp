// Text, .jsonl, .csv and .tsv, plain, as .gz and as .zst: any bytes under any of these names.
// Pieces are text, as long as asked for, and the same documents whatever the length.
#include "engine/data/corpus.h"

#include "engine/io/text_reader.h"
#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

constexpr const char* kNames[] = {"a.txt", "a.jsonl", "a.csv", "a.tsv"};
constexpr const char* kPackings[] = {"", ".gz", ".zst"};
// Documents longer than this, of bytes packed many times over, are counted and not kept.
constexpr size_t kKept = 1 << 20;

struct Read {
  bool good = false;
  CorpusReport report;
  std::vector<std::string> documents;
};

Read read(const CorpusFile& file, const ReadOptions& options) {
  Read out;
  std::string document;
  int64_t bytes = 0, documents = 0;
  out.good = holds([&] {
    out.report = for_each_piece({file}, options, [&](std::string_view piece, bool last) {
      check(!piece.empty(), "no empty piece");
      const bool whole = text_prefix(piece) == static_cast<int64_t>(piece.size());
      // A record may hold what a file may not: "\u0000".
      check(whole || piece.find('\0') != std::string_view::npos, "pieces of whole characters");
      const int64_t limit = options.whole ? kMaxRecordBytes : options.piece_bytes;
      check(static_cast<int64_t>(piece.size()) <= limit, "pieces of the length asked for");
      check(!options.whole || last, "whole documents");
      bytes += static_cast<int64_t>(piece.size());
      if (document.size() < kKept) document += piece;
      if (!last) return;
      ++documents;
      if (out.documents.size() < 1000) out.documents.push_back(std::move(document));
      document.clear();
    });
  });
  if (!out.good) return out;
  check(document.empty(), "a last piece for every document");
  check(out.report.bytes == bytes && out.report.documents == documents,
        "a report of what was given");
  return out;
}

}  // namespace
}  // namespace snug::fuzz

// The first byte chooses the name, the second the length of pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  std::string_view rest = text_of(data, size);
  const uint64_t choice = take_number(rest, 1), piece = take_number(rest, 1);
  const std::string name = std::string(kNames[choice % 4]) + kPackings[choice / 4 % 3];
  const std::string path = put(name, rest);
  const bool named = choice / 12 % 2 == 0;
  const Read small = read({path, named}, {.piece_bytes = static_cast<int64_t>(4 + piece)});
  const Read whole = read({path, named}, {.whole = true});
  // A whole document may be refused for its length.
  check(small.good || !whole.good, "an error in whole documents if one in pieces");
  if (small.good && whole.good) {
    check(small.report.documents == whole.report.documents &&
              small.report.bytes == whole.report.bytes,
          "the same documents in pieces and whole");
    bool kept = true;
    for (const std::string& d : whole.documents) kept = kept && d.size() < kKept;
    check(!kept || small.documents == whole.documents, "the same text in pieces and whole");
  }
  holds([&] { snug::corpus_fingerprint({{path, named}}, {}); });
  drop(name);
  return 0;
}
