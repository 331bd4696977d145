#include "engine/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int kRounds = 8;
// Halves of few bits would make the network a poor shuffle, so that tiny orders walk a larger
// domain.
constexpr int kMinBits = 8;

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes every output
// bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

}  // namespace

PermutedOrder::PermutedOrder(int64_t n, uint64_t seed) : n_(n), seed_(seed) {
  require(n >= 1 && n <= (int64_t{1} << 62), "an order of 1 to 2^62 samples");
  const int bits =
      std::max(kMinBits, static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

int64_t PermutedOrder::at(int64_t epoch, int64_t i) const {
  const uint64_t key = mix(mix(seed_ + kGolden) ^ (static_cast<uint64_t>(epoch) * kGolden));
  const uint64_t left_mask = (uint64_t{1} << left_bits_) - 1;
  const uint64_t right_mask = (uint64_t{1} << right_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> right_bits_, right = x & right_mask;
    // Rounds change the halves in turn, so that they may differ in width; each one is its own
    // inverse given the other half, hence the whole is a permutation of the domain.
    for (uint64_t r = 0; r < kRounds; r += 2) {
      left ^= mix(key + r * kGolden + right) & left_mask;
      right ^= mix(key + (r + 1) * kGolden + left) & right_mask;
    }
    x = (left << right_bits_) | right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

WindowDataset::WindowDataset(std::vector<TokenFile> files, int64_t T, WindowOptions options)
    : files_(std::move(files)), T_(T), shuffle_(options.shuffle), order_(1, options.seed) {
  if (T < 1 || T > (int64_t{1} << 40))
    fail(ErrorCode::usage, "a sample length (max_length) from 1 to 2^40", fmt::format("{}", T),
         "set max_length, for example 1024");
  if (!(options.eval_fraction >= 0.0 && options.eval_fraction < 1.0))
    fail(ErrorCode::usage, "eval_fraction of 0 or more and below 1",
         fmt::format("{}", options.eval_fraction), "set it to 0.05, for example");
  int64_t samples = 0, tokens = 0, longest = 0;
  for (const TokenFile& file : files_) {
    first_.push_back(samples);
    if (file.size() > T) samples += (file.size() - 1) / T;
    tokens += file.size();
    longest = std::max(longest, file.size());
  }
  std::string found = "no token file";
  if (files_.size() == 1) found = fmt::format("{} tokens in {}", tokens, files_.front().path());
  if (files_.size() > 1)
    found = fmt::format("{} tokens in {} files, {} in the longest", tokens, files_.size(), longest);
  if (samples == 0)
    fail(ErrorCode::data,
         fmt::format("at least {} tokens in one file for a sample of max_length {}", T + 1, T),
         found,
         fmt::format("give more text, or set max_length to {} or less",
                     std::max<int64_t>(1, longest - 1)));
  if (options.eval_fraction > 0.0) {
    if (samples < 2)
      fail(
          ErrorCode::data,
          fmt::format("at least {} tokens: one sample of max_length {} to train on and one to hold "
                      "out (eval_fraction {})",
                      2 * T + 1, T, options.eval_fraction),
          found, "give more text, a smaller max_length, or eval_data instead of eval_fraction");
    const double share = static_cast<double>(samples) * options.eval_fraction;
    eval_ = std::clamp<int64_t>(std::llround(share), 1, samples - 1);
  }
  train_ = samples - eval_;
  order_ = PermutedOrder(train_, options.seed);
}

void WindowDataset::fill(int64_t k0, int64_t count, int32_t* tokens, int32_t* targets) const {
  require(k0 >= 0 && count >= 0, "sample numbers of 0 or more");
  for (int64_t j = 0; j < count; ++j)
    fill_window(shuffle_ ? order_[k0 + j] : (k0 + j) % train_, tokens + j * T_, targets + j * T_);
}

void WindowDataset::fill_eval(int64_t e0, int64_t count, int32_t* tokens, int32_t* targets) const {
  require(e0 >= 0 && count >= 0 && e0 <= eval_ - count, "held-out samples inside the data");
  for (int64_t j = 0; j < count; ++j)
    fill_window(train_ + e0 + j, tokens + j * T_, targets + j * T_);
}

void WindowDataset::fill_window(int64_t window, int32_t* tokens, int32_t* targets) const {
  // The last file that begins at or before the window; files without a window share their
  // successor's number and are passed over.
  const auto it = std::upper_bound(first_.begin(), first_.end(), window);
  const size_t file = static_cast<size_t>(it - first_.begin()) - 1;
  const int64_t begin = (window - first_[file]) * T_;
  files_[file].copy(begin, T_, tokens);
  files_[file].copy(begin + 1, T_, targets);
}

}  // namespace snug
