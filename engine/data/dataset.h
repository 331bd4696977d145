// Pre-training samples: windows of T + 1 tokens, T inputs and T targets, cut at a stride of T, so
// that every token of the text but the first is a target once per epoch. The shuffled order is
// computed, not stored: sample k of a run is a function of (seed, k) alone, so that resuming at any
// k costs nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/token_file.h"

namespace snug {

// A shuffled order of [0, n) for every epoch, in O(1) time and memory: a Feistel network over the
// next power of two, walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002).
class PermutedOrder {
 public:
  PermutedOrder(int64_t n, uint64_t seed);  // 1 <= n <= 2^62

  int64_t size() const { return n_; }
  int64_t at(int64_t epoch, int64_t i) const;  // place i of that epoch's order, 0 <= i < n
  int64_t operator[](int64_t k) const { return at(k / n_, k % n_); }  // sample k of a run, k >= 0

 private:
  int64_t n_;
  uint64_t seed_;
  int left_bits_ = 0, right_bits_ = 0;
};

struct WindowOptions {
  // In [0, 1): the share of the samples held out; above 0, at least one.
  double eval_fraction = 0.0;
  uint64_t seed = 42;
  bool shuffle = true;  // false: training samples in the order of the files
};

// Windows over one or more token files; no window crosses a file's end. The held-out samples are
// the last of all, in the order of the files, and no target of theirs is a target of a training
// sample.
class WindowDataset {
 public:
  // Throws data if the files together hold no sample, or if holding out leaves none to train on,
  // and usage if eval_fraction is not in [0, 1) or T not in [1, 2^40].
  WindowDataset(std::vector<TokenFile> files, int64_t T, WindowOptions options = {});

  int64_t T() const { return T_; }
  int64_t train_samples() const { return train_; }  // in one epoch
  int64_t eval_samples() const { return eval_; }
  const std::vector<TokenFile>& files() const { return files_; }

  // Training samples k0 .. k0 + count - 1 of the run, epochs following each other: row j of tokens
  // and targets, both (count, T), is sample k0 + j; targets are tokens one place later. Takes no
  // memory.
  void fill(int64_t k0, int64_t count, int32_t* tokens, int32_t* targets) const;
  // Held-out samples e0 .. e0 + count - 1, in the order of the files; throws internal past
  // eval_samples().
  void fill_eval(int64_t e0, int64_t count, int32_t* tokens, int32_t* targets) const;

 private:
  void fill_window(int64_t window, int32_t* tokens, int32_t* targets) const;  // of all, by number

  std::vector<TokenFile> files_;
  std::vector<int64_t> first_;  // the number of each file's first window
  int64_t T_, train_ = 0, eval_ = 0;
  bool shuffle_;
  PermutedOrder order_;
};

}  // namespace snug
