// Text becomes a token file once: into the run's own folder if it is small, else into a cache that
// later runs on the same text with the same tokenizer find again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/corpus.h"
#include "engine/text/tokenizer.h"

namespace snug {

// Text of more bytes than this (of files, packed ones as they are) goes to the cache by itself.
constexpr int64_t kCachedTextBytes = 64 << 20;

struct TokensOfText {
  std::string path;                                                         // of the token file
  bool shared = false;                                                      // it lies in the cache
  bool reused = false;                                                      // and was there before
  int64_t files = 0, documents = 0, bytes = 0, skipped = 0, no_column = 0;  // as in CorpusReport
  std::string first_skipped, first_no_column;
};

// `cache` is the key token_cache: empty, $XDG_CACHE_HOME/snug or ~/.cache/snug for text above
// kCachedTextBytes; "none", never; else that folder, for any text. A file of the cache is named by
// a fingerprint of every byte of the text, of the reading options and of the tokenizer, and is used
// only if its header, digest and side file agree with that; a damaged one is made again. `own` is
// the token file to write where the cache is not used; the folder of either is made. On a terminal
// a line shows the progress. Throws as tokenize_corpus does.
TokensOfText tokenize_once(const std::vector<CorpusFile>& files, const Tokenizer& tokenizer,
                           const std::string& text_column, const std::string& cache,
                           const std::string& own);

}  // namespace snug
