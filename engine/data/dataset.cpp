#include "engine/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kAnchors = 8192;  // of all files: 128 KiB, whatever the corpus

}  // namespace

WindowDataset::WindowDataset(std::vector<TokenFile> files, int64_t T, WindowOptions options)
    : T_(T), shuffle_(options.shuffle), front_(options.front), order_(1, options.seed) {
  if (T < 1 || T > (int64_t{1} << 40))
    fail(ErrorCode::usage, "a sample length (max_length) from 1 to 2^40", fmt::format("{}", T),
         "set max_length, for example 1024");
  if (!(options.eval_fraction >= 0.0 && options.eval_fraction < 1.0))
    fail(ErrorCode::usage, "eval_fraction of 0 or more and below 1",
         fmt::format("{}", options.eval_fraction), "set it to 0.05, for example");
  int64_t tokens = 0, longest = 0;
  for (const TokenFile& file : files) {
    documents_ = file.documents() < 0 || documents_ < 0 ? -1 : documents_ + file.documents();
    tokens += file.size();
    longest = std::max(longest, file.size());
  }
  for (TokenFile& file : files)
    files_.emplace_back(std::move(file), 0, HeldOut(),
                        kAnchors / static_cast<int64_t>(files.size()));
  const int64_t samples = count_windows(Part::train);
  std::string found = "no token file";
  if (files_.size() == 1)
    found = fmt::format("{} tokens in {}", tokens, files_.front().file().path());
  if (files_.size() > 1)
    found = fmt::format("{} tokens in {} files, {} in the longest", tokens, files_.size(), longest);
  // Two samples where one is held out.
  const int64_t most = options.eval_fraction > 0.0 ? (longest - 1) / 2 : longest - 1;
  if (samples == 0)
    fail(ErrorCode::data,
         fmt::format("at least {} tokens in one file for a sample of max_length {}", T + 1, T),
         found,
         most < 1 ? "give more text"
                  : fmt::format(
                        "give more text, or set max_length (of eval: --max-length) to {} or less",
                        most));
  if (options.eval_fraction > 0.0) {
    if (samples < 2)
      fail(
          ErrorCode::data,
          fmt::format("at least {} tokens: one sample of max_length {} to train on and one to hold "
                      "out (eval_fraction {})",
                      2 * T + 1, T, options.eval_fraction),
          found, "give more text, a smaller max_length, or eval_data instead of eval_fraction");
    if (!split(options.eval_fraction, options.seed)) {
      const double share = static_cast<double>(samples) * options.eval_fraction;
      eval_ = std::clamp<int64_t>(std::llround(share), 1, samples - 1);
      train_ = samples - eval_;
    }
  } else {
    train_ = samples;
  }
  order_ = PermutedOrder(train_, options.seed);
}

bool WindowDataset::split(double fraction, uint64_t seed) {
  const int64_t held =
      documents_ < 0 ? 0 : std::llround(static_cast<double>(documents_) * fraction);
  if (held < 1) return false;
  open(HeldOut(documents_, held, seed));
  train_ = count_windows(Part::train);
  eval_ = count_windows(Part::held);
  if (train_ > 0 && eval_ > 0) {
    held_ = held;
    return true;
  }
  open(HeldOut());
  count_windows(Part::train);
  return false;
}

void WindowDataset::open(const HeldOut& held) {
  std::vector<SplitFile> files;
  int64_t first = 0;
  for (SplitFile& file : files_) {
    TokenFile tokens = std::move(file).take();
    const int64_t documents = tokens.documents();
    files.emplace_back(std::move(tokens), first, held,
                       kAnchors / static_cast<int64_t>(files_.size()));
    first += documents;
  }
  files_ = std::move(files);
}

int64_t WindowDataset::count_windows(Part part) {
  int64_t windows = 0;
  std::vector<int64_t>& first = first_[static_cast<int>(part)];
  first.clear();
  for (const SplitFile& file : files_) {
    first.push_back(windows);
    if (file.size(part) > T_) windows += (file.size(part) - 1) / T_;
  }
  return windows;
}

WindowDataset::Window WindowDataset::train_window(int64_t k) const {
  require(k >= 0, "sample numbers of 0 or more");
  return {Part::train, shuffle_ ? order_[k] : k % train_};
}

WindowDataset::Window WindowDataset::eval_window(int64_t e) const {
  require(e >= 0 && e < eval_, "held-out samples inside the data");
  return held_ > 0 ? Window{Part::held, e} : Window{Part::train, train_ + e};
}

WindowDataset::Place WindowDataset::locate(const Window& window) const {
  // The last file that begins at or before the window; files without a window share their
  // successor's number and are passed over.
  const std::vector<int64_t>& first = first_[static_cast<int>(window.part)];
  const auto it = std::upper_bound(first.begin(), first.end(), window.number);
  const int64_t file = it - first.begin() - 1;
  return {file, (window.number - first[static_cast<size_t>(file)]) * T_, window.number};
}

void WindowDataset::fill_window(const Window& window, int32_t* tokens, int32_t* targets,
                                int32_t* document_start) const {
  const Place place = locate(window);
  const SplitFile& file = files_[static_cast<size_t>(place.file)];
  file.copy(window.part, place.begin, T_, tokens);
  std::copy(tokens + 1, tokens + T_, targets);
  file.copy(window.part, place.begin + T_, 1, targets + T_ - 1);
  if (document_start) {
    file.document_starts(window.part, place.begin, T_, document_start);
    for (int64_t t = 1; t < T_; ++t)
      if (document_start[t] == t) targets[t - 1] = -100;
    if (file.documents_begin(window.part, place.begin + T_, 1) > 0) targets[T_ - 1] = -100;
  }
  // After the reads: what another program writes before this is noticed before it is used.
  file.file().verify();
}

template <class Which>
void WindowDataset::fill_rows(int64_t count, int32_t* tokens, int32_t* targets,
                              int32_t* document_start, Which&& which) const {
  require(front_.count == 0 || !document_start, "no documents apart behind tokens in front");
  const int64_t row = front_.count + T_;
  for (int64_t j = 0; j < count; ++j) {
    std::fill_n(targets + j * row, front_.count, -100);
    fill_window(which(j), front_.write(tokens + j * row), targets + j * row + front_.count,
                document_start ? document_start + j * row : nullptr);
  }
}

void WindowDataset::fill(int64_t k0, int64_t count, int32_t* tokens, int32_t* targets,
                         int32_t* document_start) const {
  fill_rows(count, tokens, targets, document_start,
            [&](int64_t j) { return train_window(k0 + j); });
}

void WindowDataset::fill_eval(int64_t e0, int64_t count, int32_t* tokens, int32_t* targets,
                              int32_t* document_start) const {
  fill_rows(count, tokens, targets, document_start, [&](int64_t j) { return eval_window(e0 + j); });
}

int64_t WindowDataset::targets_of(const Window& window) const {
  const Place at = locate(window);
  const SplitFile& file = files_[static_cast<size_t>(at.file)];
  return T_ - file.documents_begin(window.part, at.begin + 1, T_);
}

int64_t WindowDataset::trained_targets(int64_t k0, int64_t count) const {
  int64_t trained = 0;
  for (int64_t j = 0; j < count; ++j) trained += targets_of(train_window(k0 + j));
  return trained;
}

int64_t WindowDataset::evaluated_targets(int64_t e0, int64_t count) const {
  int64_t targets = 0;
  for (int64_t j = 0; j < count; ++j) targets += targets_of(eval_window(e0 + j));
  return targets;
}

void WindowDataset::positions(int64_t k, int32_t* out) const {
  const Window window = train_window(k);
  const Place at = locate(window);
  files_[static_cast<size_t>(at.file)].positions(window.part, at.begin, T_, out);
}

void WindowDataset::eval_positions(int64_t e, int32_t* out) const {
  const Window window = eval_window(e);
  const Place at = locate(window);
  files_[static_cast<size_t>(at.file)].positions(window.part, at.begin, T_, out);
}

WindowDataset::Place WindowDataset::place(int64_t k) const {
  return locate(train_window(k));
}

WindowDataset::Place WindowDataset::eval_place(int64_t e) const {
  return locate(eval_window(e));
}

}  // namespace snug
