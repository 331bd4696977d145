// A token file seen as two texts: the documents to train on, one after the other, and those held
// out. Which documents are held out is computed and where they lie is read from the file's index,
// so that a corpus of any size takes a table of some kilobytes here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/data/dataset_order.h"
#include "engine/data/token_file.h"

namespace snug {

// Of `documents` documents, numbered over all files, exactly `held` are held out: those that a
// seeded permutation puts first.
class HeldOut {
 public:
  HeldOut() = default;  // none
  HeldOut(int64_t documents, int64_t held, uint64_t seed);
  bool operator()(int64_t document) const { return held_ > 0 && order_.at(0, document) < held_; }
  int64_t count() const { return held_; }

 private:
  int64_t held_ = 0;
  PermutedOrder order_{1, 0};
};

enum class Part { train, held };

class SplitFile {
 public:
  // `first` is the number of the file's first document among all; `entries` bounds the table, of
  // 16 bytes each. Reads the file's index of documents; a file without one is one document, and
  // then `held` must hold out none.
  SplitFile(TokenFile file, int64_t first, const HeldOut& held, int64_t entries);

  const TokenFile& file() const { return file_; }
  TokenFile take() && { return std::move(file_); }
  int64_t size(Part part) const { return sizes_[static_cast<int>(part)]; }  // in tokens
  // out[0, count) = tokens [begin, begin + count) of that text. Takes no memory; one read of the
  // file for every stretch of documents that lie together. Throws DataLost.
  void copy(Part part, int64_t begin, int64_t count, int32_t* out) const;
  // out[i] = the distance of token begin + i from the first token of its document, or from `begin`
  // if the document begins before it: the position ids of a sample that keeps documents apart. It
  // is 0 where a document, or the sample, begins.
  void positions(Part part, int64_t begin, int64_t count, int32_t* out) const;
  // out[i] = the place in [0, count) where the document of token begin + i begins, 0 if before.
  void document_starts(Part part, int64_t begin, int64_t count, int32_t* out) const;
  // Documents whose first token lies in [begin, begin + count); begin is at least 1.
  int64_t documents_begin(Part part, int64_t begin, int64_t count) const;

 private:
  struct Anchor {
    int64_t begin[2] = {0, 0};  // where its documents begin in the two texts
  };
  // Calls visit(place in the file, count) for every document or part of one in
  // [begin, begin + count) of a text.
  template <class F>
  void walk(Part part, int64_t begin, int64_t count, const F& visit) const;
  int64_t documents() const { return std::max<int64_t>(1, file_.documents()); }
  void ends(int64_t first, int64_t count, int64_t* out) const;

  TokenFile file_;
  int64_t first_ = 0;
  HeldOut held_;
  int64_t stride_ = 1;           // documents from an anchor to the next
  std::vector<Anchor> anchors_;  // of every stride_-th document
  int64_t sizes_[2] = {0, 0};
};

}  // namespace snug
