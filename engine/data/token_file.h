// Files of token ids, read by position and never mapped: a corpus of any size costs no memory, and
// what another program does to a file is an error and not a signal. Three layouts are read:
//   llm.c, GPT-2    256 int32 (20240520, 1, count, 0 ...), then count uint16
//   llm.c, Llama 3  256 int32 (20240801, 7, count, 0 ...), then count uint32
//   nanoGPT         uint16 only, no header
// and the first two are written, with more in the part of the header that llm.c leaves at 0 (from
// byte 12 on, little-endian): "SNUG", int32 version 1, int32 0, then at byte 24 the tokenizer's
// fingerprint, the numbers of tokens and of documents, vocab_size and a digest of the tokens,
// 64 bits each. (Above 2^31 - 1 tokens the count at byte 8 is -1, and llm.c cannot read the file.)
// Beside it:
//   <path>.idx   where documents end: "SNUGDOCS", int64 version 1, documents, tokens; then for each
//                document, in order, the int64 number of the token behind its last
//   <path>.json  the same facts for people, and what the text was
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/corpus_report.h"
#include "engine/data/watched_file.h"
#include "engine/io/files.h"

namespace snug {

class Fingerprint;

// What was known of the text that a token file was made of.
struct TokenSource {
  uint64_t fingerprint = 0;  // corpus_fingerprint with all that decides the tokens; 0: not known
  CorpusReport report;       // documents and first_quoted aside, as the side file has it
};

// What the header or, for files of others, the side file says.
struct TokenFileInfo {
  uint64_t tokenizer = 0;  // fingerprint of the tokenizer
  int64_t vocab_size = 0;
  int64_t tokens = 0, documents = 0;
  TokenSource source;
};

class TokenFile {
 public:
  // Throws data if the file is none of the layouts, its size does not fit its count, its index of
  // documents does not fit it, or, with `tokenizer` given, if its header or side file names another
  // tokenizer (neither: nothing is known, accepted).
  explicit TokenFile(const std::string& path, std::optional<uint64_t> tokenizer = std::nullopt);

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return size_; }  // in tokens
  int64_t token_bytes() const { return wide_ ? 4 : 2; }
  // What our own header says; nothing of files of others.
  std::optional<uint64_t> tokenizer() const { return tokenizer_; }
  std::optional<int64_t> vocab_size() const { return vocab_size_; }
  // out[0, count) = tokens [begin, begin + count), which must lie inside the file (throws
  // internal). Takes no memory. Throws DataLost if the file became shorter. Ids of 2^31 and above
  // come out negative: run check() once after opening.
  void copy(int64_t begin, int64_t count, int32_t* out) const;
  // Throws data naming the position of the first id that is vocab_size or above, or if the tokens
  // are not those that were written. Reads the whole file, and remembers its digest.
  void check(int64_t vocab_size);
  // Throws DataLost if the file or its index is not what it was. Costs two calls of the system as
  // long as nobody wrote to them; else their content is read again, and equal content is accepted.
  // Call it after copy() and before use of what came.
  void verify() const;

  // Documents, if there is an index; else -1: not known.
  int64_t documents() const { return documents_; }
  // out[i] = number of the token behind the last of document first + i. Throws DataLost.
  void document_ends(int64_t first, int64_t count, int64_t* out) const;

 private:
  void read_header();
  void open_documents();

  WatchedFile file_, index_;
  int64_t begin_ = 0, size_ = 0, documents_ = -1;  // bytes before the tokens; tokens; documents
  bool wide_ = false;
  std::optional<uint64_t> tokenizer_, written_;    // of the header: tokenizer, digest of the tokens
  std::optional<uint64_t> digest_, index_digest_;  // as they were read
  std::optional<int64_t> vocab_size_;              // of the header
};

// What the side file of `path` says, or nothing if there is none. Throws data if it is not readable
// as such.
std::optional<TokenFileInfo> read_token_info(const std::string& path);

// True for names that end in .bin: what `train_data` takes as tokens rather than text.
bool is_token_file_name(const std::string& path);
// True if the header or a side file says that this .bin file holds tokens.
bool states_tokens(const std::string& path);
// The two files that belong to a token file.
std::vector<std::string> token_side_files(const std::string& path);

// Writes a token file with its index and side file, uint16 if vocab_size < 65536, else uint32,
// through AtomicFile and buffers of 64 KiB. commit() makes all three seen, the tokens last. Throws
// device if the disk refuses, data on an id outside [0, vocab_size).
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer);
  ~TokenFileWriter();
  void append(const int32_t* ids, int64_t count);
  // What was appended since the last call is a document; nothing: no document.
  void end_document();
  void set_source(const TokenSource& source) { source_ = source; }
  void commit();
  int64_t size() const { return size_; }

 private:
  void flush();
  void flush_documents();

  AtomicFile file_, index_;
  int64_t vocab_size_, size_ = 0, documents_ = 0, ended_ = 0, held_ = 0, held_ends_ = 0;
  uint64_t tokenizer_;
  TokenSource source_;
  std::unique_ptr<uint8_t[]> buffer_;
  std::unique_ptr<int64_t[]> ends_;
  std::unique_ptr<Fingerprint> digest_;
};

}  // namespace snug
