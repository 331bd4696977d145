// Pre-training samples: windows of T + 1 tokens, T inputs and T targets, cut at a stride of T, so
// that every token of the text but the first is a target once per epoch. Documents follow each
// other in a window; where they begin is known, and training may keep them apart. The order is
// shuffled by seed (dataset_order.h): sample k of a run is a function of (seed, k) and the files
// alone, whatever the batch and whoever asks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/dataset_order.h"
#include "engine/data/front_tokens.h"
#include "engine/data/split_file.h"
#include "engine/data/token_file.h"

namespace snug {

struct WindowOptions {
  // In [0, 1): the share held out; above 0, at least one sample.
  double eval_fraction = 0.0;
  uint64_t seed = 42;
  bool shuffle = true;  // false: training samples in the order of the files
  // Before each window of fill() and fill_eval(), whose rows are so much longer; no targets. Documents are not
  // kept apart then.
  FrontTokens front = {};
};

// Windows over one or more token files; no window crosses a file's end.
//
// Held out are whole documents, eval_fraction of their number, chosen by the seed, if all files
// know their documents, that is at least one document, and both sides have a sample; the training
// text is then the others, one after the other. Else the last samples of all are held out. Either
// way no token is a target on both sides. Held-out samples come in the order of the files.
class WindowDataset {
 public:
  // Throws data if the files together hold no sample, or if holding out leaves none to train on,
  // and usage if eval_fraction is not in [0, 1) or T not in [1, 2^40].
  WindowDataset(std::vector<TokenFile> files, int64_t T, WindowOptions options = {});

  int64_t T() const { return T_; }
  int64_t train_samples() const { return train_; }  // in one epoch
  int64_t eval_samples() const { return eval_; }
  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  const TokenFile& file(int64_t i) const { return files_[static_cast<size_t>(i)].file(); }
  int64_t documents() const { return documents_; }  // -1: not known
  // Documents held out whole; 0 with eval_samples() above 0: the tail is held out.
  int64_t held_out_documents() const { return held_; }

  // Training samples k0 .. k0 + count - 1 of the run, epochs following each other: row j of tokens
  // and targets, both (count, front + T), is sample k0 + j; targets are tokens one place later. Takes no
  // memory. Throws DataLost if a file is not what it was.
  // With document_start (count, T) documents are kept apart: document_start[t] is the place in the
  // sample of the first token of t's document, 0 if it began before the sample, and a document's
  // first token is no target (-100), since nothing before it is of its document.
  void fill(int64_t k0, int64_t count, int32_t* tokens, int32_t* targets,
            int32_t* document_start = nullptr) const;
  // Held-out samples e0 .. e0 + count - 1; throws internal past eval_samples().
  void fill_eval(int64_t e0, int64_t count, int32_t* tokens, int32_t* targets,
                 int32_t* document_start = nullptr) const;
  // Targets of samples k0 .. k0 + count - 1 that are trained when documents are kept apart.
  int64_t trained_targets(int64_t k0, int64_t count) const;
  // The same of held-out samples.
  int64_t evaluated_targets(int64_t e0, int64_t count) const;

  // Where the documents of a sample begin: positions (T), the place of each input in its document,
  // counted from the sample's start for the first one. A 0 is the start of a document or of the
  // sample; between them lies what attention that keeps documents apart may see.
  void positions(int64_t k, int32_t* out) const;
  void eval_positions(int64_t e, int32_t* out) const;

  // Where a sample lies, for people.
  struct Place {
    int64_t file = 0;
    int64_t begin = 0;  // in tokens of the file's text of that side
    int64_t window = 0;
  };
  Place place(int64_t k) const;
  Place eval_place(int64_t e) const;

 private:
  struct Window {
    Part part = Part::train;
    int64_t number = 0;
  };
  bool split(double fraction, uint64_t seed);  // by document; false: not possible
  void open(const HeldOut& held);
  int64_t count_windows(Part part);
  Window train_window(int64_t k) const;
  Window eval_window(int64_t e) const;
  Place locate(const Window& window) const;
  int64_t targets_of(const Window& window) const;
  template <class Which>
  void fill_rows(int64_t count, int32_t* tokens, int32_t* targets, int32_t* document_start,
                 Which&& which) const;
  void fill_window(const Window& window, int32_t* tokens, int32_t* targets,
                   int32_t* document_start) const;

  std::vector<SplitFile> files_;
  std::vector<int64_t> first_[2];  // the number of each file's first window
  int64_t T_, train_ = 0, eval_ = 0, documents_ = 0, held_ = 0;
  bool shuffle_;
  FrontTokens front_;
  PermutedOrder order_;
};

}  // namespace snug
