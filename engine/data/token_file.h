// Files of token ids, mapped: a corpus of any size costs no memory of the budget. Three layouts are
// read:
//   llm.c, GPT-2    256 int32 (20240520, 1, count, 0 ...), then count uint16
//   llm.c, Llama 3  256 int32 (20240801, 7, count, 0 ...), then count uint32
//   nanoGPT         uint16 only, no header
// and the first two are written, with a side file `<path>.json` that says which tokenizer made the
// ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/files.h"

namespace snug {

class TokenFile {
 public:
  // Maps the file. Throws data if it is none of the layouts, its size does not fit its count, or,
  // with `tokenizer` given, if the side file names another tokenizer (no side file: nothing is
  // known, accepted).
  explicit TokenFile(const std::string& path, std::optional<uint64_t> tokenizer = std::nullopt);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // in tokens
  int64_t token_bytes() const { return wide_ ? 4 : 2; }
  int64_t token(int64_t i) const;  // 0 <= i < size(), not checked
  // out[0, count) = tokens [begin, begin + count), which must lie inside the file (throws
  // internal). Ids of 2^31 and above come out negative: run check() once after opening.
  void copy(int64_t begin, int64_t count, int32_t* out) const;
  // Throws data naming the position of the first id that is vocab_size or above. Reads the whole
  // file.
  void check(int64_t vocab_size) const;

 private:
  std::string path_;
  MappedFile file_;
  const uint8_t* tokens_ = nullptr;
  int64_t size_ = 0;
  bool wide_ = false;
};

// What the side file of a token file says.
struct TokenFileInfo {
  uint64_t tokenizer = 0;  // fingerprint of the tokenizer
  int64_t vocab_size = 0;
  int64_t tokens = 0, documents = 0;
};

// The side file of `path`, or nothing if there is none. Throws data if it is not readable as such.
std::optional<TokenFileInfo> read_token_info(const std::string& path);

// True for names that end in .bin: what `train_data` takes as tokens rather than text.
bool is_token_file_name(const std::string& path);

// Writes a token file in the llm.c layout, uint16 if vocab_size < 65536, else uint32, through
// AtomicFile and a buffer of 64 KiB. commit() also writes the side file. Throws device if the disk
// refuses, data on an id outside [0, vocab_size) and above 2^31 - 1 tokens, the most the header can
// state.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer);
  void append(const int32_t* ids, int64_t count);
  void end_document() { ++documents_; }  // counted in the side file
  void commit();
  int64_t size() const { return size_; }

 private:
  void flush();

  AtomicFile file_;
  int64_t vocab_size_, size_ = 0, documents_ = 0, held_ = 0;
  uint64_t tokenizer_;
  std::unique_ptr<uint8_t[]> buffer_;
};

}  // namespace snug
