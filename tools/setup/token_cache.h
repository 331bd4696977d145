// Text becomes a token file once: into the run's own folder if it is small, else into a cache that
// later runs on the same text with the same tokenizer find again.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/corpus.h"
#include "engine/text/tokenizer.h"

namespace snug {

// Text of more bytes than this (of files, packed ones as they are) goes to the cache by itself.
constexpr int64_t kCachedTextBytes = 64 << 20;

// What the process may have of memory while text is prepared, 0: any; and how a user says so.
struct PrepareRoom {
  int64_t budget = 0;
  std::string key = "memory=";
  bool set = true;  // by the user; else it is what is free less a reserve
};

// The longest records and words that leave the process, as it is now, within a budget.
struct RecordLimits {
  int64_t record = kMaxRecordBytes;
  int64_t word = INT64_MAX;  // in a piece; of a document read whole see longest_word()
  int64_t enough = 0;        // the budget that has no need of limits; 0: there are none
  int64_t whole = 0;         // bytes for a document read whole and for its words together
  int64_t window = WindowLimit().bytes;  // of .zst files
  int64_t longest_word(int64_t document) const;
};
// `zstd`: some of the text is packed so, whose window is held as long as the file is read.
RecordLimits record_limits(const PrepareRoom& room, bool whole, bool zstd = false);

// Sets what options of reading (ReadOptions, RowOptions) have of these limits, and returns them.
template <class Options>
RecordLimits apply_room(const PrepareRoom& room, const std::vector<CorpusFile>& files, bool whole,
                        Options& options) {
  const RecordLimits limits = record_limits(
      room, whole, std::any_of(files.begin(), files.end(), [](const CorpusFile& file) {
        return file.path.ends_with(".zst");
      }));
  options.max_record_bytes = limits.record;
  options.window.bytes = limits.window;
  if (limits.enough > 0) {
    const std::string more =
        fmt::format(", or {}{}MiB, which has room for ", room.key, limits.enough >> 20);
    options.longer_records = more + "any";
    options.window.advice = more + "one of 128 MiB";
  }
  return limits;
}

struct TokensOfText {
  std::string path;        // of the token file
  bool shared = false;     // it lies in the cache
  bool reused = false;     // and was there before
  int64_t most_bytes = 0;  // of the process while it was made; 0: it was not
  CorpusReport report;
};

// `cache` is the key token_cache: empty, $XDG_CACHE_HOME/snug or ~/.cache/snug for text above
// kCachedTextBytes; "none", never; else that folder, for any text. A file of the cache is named by
// a fingerprint of every byte of the text, of the reading options and of the tokenizer, and is used
// only if its header, digest and side file agree with that; a damaged one is made again. `own` is
// the token file to write where the cache is not used; the folder of either is made. On a terminal
// a line shows the progress. Throws as tokenize_corpus does.
// Of `read` the column and the quotes count. `room` bounds what it takes: longer records, documents
// that this tokenizer must see whole, and words are an Error of code data, where the process would
// have more than room.budget with them.
// With `made` another rank has just done so, and its file is found.
TokensOfText tokenize_once(const std::vector<CorpusFile>& files, const Tokenizer& tokenizer,
                           const ReadOptions& read, const std::string& cache,
                           const std::string& own, const PrepareRoom& room = {}, bool made = false);

}  // namespace snug
