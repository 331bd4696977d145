// From what a user calls his data (a file, a folder, a pattern, a list of these) to documents, and
// from documents to a token file. Files are streamed, so that a corpus of any size is read in
// bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/corpus_report.h"
#include "engine/io/byte_source.h"

namespace snug {

struct CorpusFile {
  std::string path;
  bool named = false;  // named by the user: problems are errors; found in a folder: it is skipped
};

// The files of `sources`, in their order, each once. A source is
//   a file
//   a folder: its files, subfolders included, sorted by path; names that begin with a dot and
//   folders
//             named build or build-*, build_* are left out
//   a pattern with * ? [..] within one name, and ** for any number of folders; matches sorted by
//   path; what
//             begins with a dot matches only a pattern that begins with one
// Links are followed, to files and to folders. Below a folder, and of **, every folder counts once:
// under its path without a link to a folder, else under the first; so circles end.
// A folder `left_out` (empty: none) is passed over wherever a folder or pattern comes upon it, with
// all that is in it: what is written there while the files are read is no part of them. A source
// that names it, or something in it, is taken as it is. So is what other runs made, which
// `products`, if given, gets the paths of, each once: folders of runs (config.resolved.yaml with
// metrics.jsonl or plan.json), models (config.json with *.safetensors), checkpoints (COMPLETE with
// snug_state.json) and tokenizers (tokenizer.json or tokenizer_config.json with a vocabulary), and
// any file that begins as a tokenizer.json does.
// Throws data if a source does not exist, cannot be read, or gives no file.
std::vector<CorpusFile> expand_corpus(const std::vector<std::string>& sources,
                                      const std::string& left_out = "",
                                      std::vector<std::string>* products = nullptr);

// "3 runs, models or tokenizers, e.g. run1"; of one at least.
std::string products_text(const std::vector<std::string>& products);

// What is held in memory at once, a record of .jsonl, a row of a table, a document that is read
// whole: this is the longest, and reading takes its bytes and an eighth (of .jsonl the keys'
// hashes), beside buffers.
constexpr int64_t kMaxRecordBytes = 64 << 20;
constexpr double kRecordCopies = 1.125;

struct ReadOptions {
  std::string text_column = "text";  // key of .jsonl records, column of tables
  // Whether fields of tables may be in quotes; unset: what the format has, .csv quotes and .tsv
  // none.
  std::optional<bool> quotes = {};
  int64_t piece_bytes = 1 << 20;  // at least 4
  // Every document in one piece; longer ones than max_record_bytes are an Error. For tokenizers
  // that are not safe_in_pieces().
  bool whole = false;
  int64_t max_record_bytes = kMaxRecordBytes;
  std::string longer_records = "";  // added to the advice for longer ones: ", or memory=1GiB"
  WindowLimit window = {};          // of .zst files
};
// The words of a key quoting: "auto", "none", "minimal". Throws usage naming `key`.
std::optional<bool> parse_quoting(const std::string& word, const char* key);

// A document comes in pieces of at most piece_bytes, cut as first_chunk cuts, or whole; `last` is
// true for its last one. No piece is empty.
using PieceFunction = std::function<void(std::string_view piece, bool last)>;

// What a PieceFunction throws of text that it cannot take: for_each_piece makes an Error of code
// data of it, which names file and line of the piece or record behind `found`.
struct PieceRefused {
  std::string expected, found, advice;
};

// Calls `each` with every document that is not empty. By the name, less .gz or .zst:
//   .jsonl .ndjson  a record a line: the string under text_column is a document
//   .csv .tsv       a record a row (table_reader.h): the field of text_column is a document
//   any other       one document; records of JSON are none (record_layout.h)
// Text is UTF-8 without zero bytes, less a byte order mark: other files are skipped when found in a
// folder (which reads such files twice), else an Error of code data that names the line of the
// first bad byte. So is a table without the column. Broken JSON names file:line:column, a record
// without a string file:line, and so do broken tables and records above max_record_bytes. Throws
// data if there is no document at all. Memory: a piece and some buffers, and kRecordCopies times
// the longest record, or, of options.whole, document.
CorpusReport for_each_piece(const std::vector<CorpusFile>& files, const ReadOptions& options,
                            const PieceFunction& each);

// The same with every document whole, in memory.
CorpusReport for_each_document(const std::vector<CorpusFile>& files,
                               const std::function<void(std::string_view)>& each,
                               const std::string& text_column = "text");

// True for the files whose documents are under text_column: by the name, .jsonl .ndjson .csv .tsv.
bool has_text_column(const std::string& path);

// A digest of the bytes of all files and of what else decides their documents: equal means equal
// documents in equal order. Reads every byte; file names count by their endings only.
uint64_t corpus_fingerprint(const std::vector<CorpusFile>& files, const ReadOptions& options);

// The first bytes of `text`, at most max_bytes (at least 4), cut where a tokenizer's regular
// expression cuts as well: after a single line break between two visible characters, else before a
// single space between two. Then the tokens of GPT-2, Llama 3 and like tokenizers do not depend on
// max_bytes (Tokenizer::safe_in_pieces; the others need whole documents). Text with neither in the
// second half of max_bytes is cut after a line break, else between two characters.
std::string_view first_chunk(std::string_view text, int64_t max_bytes);

struct TokenizeOptions {
  int64_t vocab_size = 0;      // of the tokenizer, added tokens included; chooses uint16 or uint32
  uint64_t tokenizer = 0;      // its fingerprint, for the header
  std::optional<int32_t> eos;  // appended after every document
  ReadOptions read;
  uint64_t source = 0;  // see TokenFileInfo
};

// Appends the ids of a text; it must not clear the vector.
using EncodeFunction = std::function<void(std::string_view, std::vector<int32_t>&)>;

// Encodes every document by the piece and writes the token file `out` (see token_file.h). Memory:
// what for_each_piece takes and the ids of one piece. `progress`, if given, is called after every
// piece with the bytes of text done so far. Throws what for_each_piece and TokenFileWriter throw;
// then `out` is as it was before.
CorpusReport tokenize_corpus(const std::vector<CorpusFile>& files, const EncodeFunction& encode,
                             const TokenizeOptions& options, const std::string& out,
                             const std::function<void(int64_t)>& progress = nullptr);

}  // namespace snug
