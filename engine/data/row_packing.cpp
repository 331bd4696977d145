#include "engine/data/row_packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 24;  // of a step
constexpr int64_t kTries = 8;       // numbers of windows above the least that are tried
constexpr int64_t kRoomSteps = 64;  // of the room of a window

// Room of windows in O(log n) a row: a tree over them, each node the most room of those below it. -1
// is that of a window that takes no more rows.
class WindowRoom {
 public:
  explicit WindowRoom(int64_t windows)
      : leaves_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(windows)))),
        room_(static_cast<size_t>(2 * leaves_)) {}
  void reset(int64_t windows, int64_t room) {
    for (int64_t i = 0; i < leaves_; ++i) at(leaves_ + i) = i < windows ? room : -1;
    for (int64_t i = leaves_ - 1; i > 0; --i) at(i) = std::max(at(2 * i), at(2 * i + 1));
  }
  // The first window with that much room; there is one.
  int64_t find(int64_t length) const {
    int64_t i = 1;
    while (i < leaves_) i = at(2 * i) >= length ? 2 * i : 2 * i + 1;
    return i - leaves_;
  }
  int64_t most() const { return at(1); }
  void set(int64_t window, int64_t room) {
    int64_t i = leaves_ + window;
    at(i) = room;
    while ((i /= 2) > 0) at(i) = std::max(at(2 * i), at(2 * i + 1));
  }

 private:
  int64_t& at(int64_t i) { return room_[static_cast<size_t>(i)]; }
  int64_t at(int64_t i) const { return room_[static_cast<size_t>(i)]; }
  int64_t leaves_;
  std::vector<int64_t> room_;
};

struct Packed {
  int64_t row = 0, sample = 0, window = 0;
  RowFile::Place place;
};

enum class Side { none, train, eval };

RowDatasetOptions completed(RowDatasetOptions o) {
  const auto in = [](const char* key, int64_t value, int64_t low, int64_t high,
                     const char* advice) {
    if (value < low || value > high)
      fail(ErrorCode::usage, fmt::format("{} from {} to {} for rows", key, low, high),
           fmt::format("{}", value), advice);
  };
  in("max_length", o.T, 1, int64_t{1} << 30, "set it to 512, for example");
  in("global_batch_size", o.global_batch, 1, kMostRows, "set it to 32, for example");
  in("per_device_eval_batch_size", o.eval_batch, 0, kMostRows, "leave it out");
  in("rows in a window", o.max_rows_per_window, 0, o.T,
     "leave it out: as many as there is room for");
  in("targets in a window", o.max_targets_per_window, 0, o.T, "leave it out, or set max_length");
  if (!o.masking && o.max_targets_per_window != 0 && o.max_targets_per_window != o.T)
    fail(ErrorCode::usage,
         fmt::format("room for all {} targets of a window whose labels are given", o.T),
         fmt::format("{}", o.max_targets_per_window),
         "leave it out; only targets that masking draws may be fewer");
  if (o.masking && o.shift_labels)
    fail(ErrorCode::usage, "masked targets where they stand", "shift_labels too",
         "mask, or learn the next token");
  require(!o.pairs || (o.shift_labels && !o.masking), "pairs of a causal model");
  require(o.pairs || !(o.whole_chosen || o.single), "pairs, of which to learn one whole");
  if (!(o.eval_fraction >= 0.0 && o.eval_fraction < 1.0))
    fail(ErrorCode::usage, "an eval_fraction of rows of 0 or more and below 1",
         fmt::format("{}", o.eval_fraction), "set it to 0.05, for example");
  if (o.eval_batch == 0) o.eval_batch = o.global_batch;
  if (o.max_rows_per_window == 0) o.max_rows_per_window = o.T;
  return o;
}

}  // namespace

int64_t last_token_of(const int32_t* tokens, int64_t n, int32_t padding) {
  for (int64_t t = n - 1; t > 0; --t)
    if (tokens[t] != padding) return t;
  return 0;
}

struct RowDataset::Impl {
  Impl(RowFile rows, RowDatasetOptions given)
      : file(std::move(rows)),
        options(completed(std::move(given))),
        most_rows(std::max(options.global_batch, options.eval_batch)),
        held_out(std::max<int64_t>(file.size(), 1), options.seed ^ 0x68656c64u),
        order(1, options.seed),
        room(most_rows),
        packed(static_cast<size_t>(most_rows)),
        window_begin(static_cast<size_t>(most_rows + 1)),
        filled(static_cast<size_t>(most_rows)),
        record(static_cast<size_t>(file.longest_words())),
        targets(static_cast<size_t>(has_token_targets() ? file.facts().longest : 0)) {
    const int64_t n = file.size();
    if (n == 0)
      fail(ErrorCode::data, "a row to train on or to evaluate",
           fmt::format("none in {}", file.path()), "make the rows from text that is not empty");
    if (file.facts().longest > options.T)
      fail(ErrorCode::data,
           fmt::format("rows of at most max_length {} tokens in {}", options.T, file.path()),
           fmt::format("one of {}", file.facts().longest),
           "make the rows again, cut to this max_length, or raise it");
    if (options.eval_fraction > 0.0) {
      held = std::max<int64_t>(std::llround(static_cast<double>(n) * options.eval_fraction), 1);
      if (held >= n)
        fail(ErrorCode::data,
             fmt::format("a row to train on beside those held out (eval_fraction {})",
                         options.eval_fraction),
             fmt::format("{} of {} rows in {} held out", std::min(held, n), n, file.path()),
             "give more rows, or eval_data instead of eval_fraction");
    }
    order = PermutedOrder(n - held, options.seed);
    if (options.masking) {
      masks.emplace_back(*options.masking, options.seed, false);
      masks.emplace_back(*options.masking, options.seed, true);
    }
  }

  int64_t row_of(int64_t k) const {
    require(k >= 0, "sample numbers of rows of 0 or more");
    const int64_t i = options.shuffle ? order[k] : k % order.size();
    return held > 0 && options.shuffle ? held_out.at(0, held + i) : i;
  }
  int64_t eval_rows() const {
    const int64_t all = held > 0 ? held : file.size();
    return options.max_eval_rows > 0 ? std::min(options.max_eval_rows, all) : all;
  }
  int64_t eval_row_of(int64_t i) const {
    require(i >= 0 && i < eval_rows(), "rows of an evaluation inside the file");
    if (held == 0) return i;
    return options.shuffle ? held_out.at(0, i) : file.size() - held + i;
  }
  bool has_token_targets() const { return options.masking || file.form().token_labels; }

  void pack(Side wanted, int64_t number) {
    if (side == wanted && step == number) return;
    side = Side::none;  // until this came to its end
    trained = chosen = -1;
    tokens = 0;
    require(number >= 0, "steps of rows of 0 or more");
    const bool eval = wanted == Side::eval;
    const int64_t G = eval ? options.eval_batch : options.global_batch;
    const int64_t begin = number * G;
    require(!eval || begin < eval_rows(), "a step of the evaluation");
    count = eval ? std::min(G, eval_rows() - begin) : G;
    for (int64_t j = 0; j < count; ++j) {
      Packed& p = packed[static_cast<size_t>(j)];
      p.sample = begin + j;
      p.row = eval ? eval_row_of(p.sample) : row_of(p.sample);
      p.place = file.place(p.row);
      tokens += p.place.length;
    }
    file.verify();
    const auto end = packed.begin() + count;
    std::sort(packed.begin(), end, [](const Packed& a, const Packed& b) {
      return a.place.length != b.place.length ? a.place.length > b.place.length
                                              : a.sample < b.sample;
    });
    const int64_t T = options.T, longest = packed.front().place.length;
    require(place_rows(count, T), "room for every row in a window of its own");
    const int64_t least =
        std::max((tokens - 1) / T + 1, (count - 1) / options.max_rows_per_window + 1);
    int64_t best = count, best_room = T, places = windows * fullest();
    for (int64_t w = least, last = std::min(windows, least + kTries); w <= last; ++w) {
      const int64_t low = std::max((tokens - 1) / w + 1, longest);
      for (int64_t r = low; w * r < places && r <= T; r += (T - low) / kRoomSteps + 1) {
        if (!place_rows(w, r)) continue;
        best = w, best_room = r, places = windows * fullest();
        break;
      }
    }
    place_rows(best, best_room);
    for (int64_t w = 0; w < windows; ++w)
      window_begin[static_cast<size_t>(w) + 1] += window_begin[static_cast<size_t>(w)];
    // Lengths fall and samples rise in a window as they did in the order of placing.
    std::sort(packed.begin(), end, [](const Packed& a, const Packed& b) {
      if (a.window != b.window) return a.window < b.window;
      return a.place.length != b.place.length ? a.place.length > b.place.length
                                              : a.sample < b.sample;
    });
    side = wanted;
    step = number;
  }

  // The rows of `packed` in their order, each to the first of `most` windows of so many tokens that
  // has room. False: there is a row that none has room for.
  bool place_rows(int64_t most, int64_t tokens_each) {
    room.reset(most, tokens_each);
    std::fill(window_begin.begin(), window_begin.end(), 0);
    std::fill(filled.begin(), filled.end(), 0);
    windows = 0;
    for (int64_t j = 0; j < count; ++j) {
      Packed& p = packed[static_cast<size_t>(j)];
      if (room.most() < p.place.length) return false;
      p.window = room.find(p.place.length);
      windows = std::max(windows, p.window + 1);
      const auto w = static_cast<size_t>(p.window);
      filled[w] += p.place.length;
      // Rows so far, one place further: sums make them where windows begin.
      const bool full = ++window_begin[w + 1] == options.max_rows_per_window;
      room.set(p.window, full ? -1 : tokens_each - filled[w]);
    }
    return true;
  }

  int64_t fullest() const { return *std::max_element(filled.begin(), filled.begin() + windows); }

  RowExtent extent(int64_t first, int64_t wanted) const {
    require(first >= 0 && wanted >= 0, "windows of a step from 0 on");
    RowExtent e;
    e.windows = std::max<int64_t>(1, std::min(wanted, windows - first));
    for (int64_t w = first; w < std::min(first + wanted, windows); ++w)
      e.tokens = std::max(e.tokens, filled[static_cast<size_t>(w)]);
    return e;
  }

  // The targets of a row's tokens to `targets`, at most `most` of them, hiding tokens of `record`
  // where they are masked. Returns how many there are.
  int64_t find_targets(const Packed& p, int64_t most) {
    const int64_t n = p.place.length;
    if (options.masking)
      return masks[side == Side::eval ? 1 : 0].apply(p.sample, n, most, record.data(),
                                                     targets.data());
    const int32_t* labels = record.data() + file.token_labels_at(n);
    const int64_t shift = options.shift_labels ? 1 : 0;
    std::copy(labels + shift, labels + n, targets.begin());
    std::fill_n(targets.begin() + (n - shift), shift, kIgnoredLabel);
    if (options.pairs) {
      const int64_t split = split_of(n);
      if (options.whole_chosen)
        std::copy(record.begin() + 1, record.begin() + split, targets.begin());
      if (split > 0) targets[static_cast<size_t>(split - shift)] = kIgnoredLabel;
    }
    return n - std::count(targets.begin(), targets.begin() + n, kIgnoredLabel);
  }

  // Where the rejected answer of `record`, a pair of n tokens, begins.
  int64_t split_of(int64_t n) const {
    const int32_t* types = record.data() + file.types_at(n);
    const int64_t split = std::find(types, types + n, 1) - types;
    require(options.single ? split == 0 || split == n : split > 0 && split < n,
            "a pair of two answers, or one of them");
    return split;
  }

  int64_t count_trained() {
    if (trained >= 0) return trained;
    if (options.pairs) return trained = count;
    const RowForm& form = file.form();
    const bool rows_labelled = form.label != RowLabel::none && !options.masking;
    int64_t sum = rows_labelled && form.label == RowLabel::values ? count : 0;
    const bool reads = rows_labelled ? form.label == RowLabel::class_id : has_token_targets();
    int64_t left = 0;
    for (int64_t j = 0; j < count && reads; ++j) {
      const Packed& p = packed[static_cast<size_t>(j)];
      if (j == window_begin[static_cast<size_t>(p.window)]) left = most_targets();
      file.read(p.row, p.place, record.data());
      if (rows_labelled) {
        sum += record[static_cast<size_t>(file.label_at(p.place.length))] != kIgnoredLabel;
        continue;
      }
      const int64_t here = find_targets(p, left);
      left -= here;
      sum += here;
    }
    file.verify();
    return trained = sum;
  }

  // Of the first documents of the step's pairs, or of all that are evaluated.
  void count_chosen() {
    int64_t& known = side == Side::eval ? eval_chosen : chosen;
    if (known >= 0) return;
    const int64_t rows = side == Side::eval ? eval_rows() : count;
    int64_t sum = 0;
    for (int64_t j = 0; j < rows; ++j) {
      const int64_t row = side == Side::eval ? eval_row_of(j) : packed[static_cast<size_t>(j)].row;
      const auto place = file.place(row);
      file.read(row, place, record.data());
      sum += split_of(place.length) - 1;
    }
    if (sum > INT32_MAX)
      fail(ErrorCode::unsupported,
           fmt::format("at most {} tokens of chosen sequences in a step or an evaluation",
                       INT32_MAX),
           fmt::format("{} in {} pairs", sum, rows),
           "a smaller global_batch_size, or max_eval_samples");
    known = sum;
  }

  int64_t most_targets() const {
    return options.max_targets_per_window > 0 ? options.max_targets_per_window : options.T;
  }

  void fill(int64_t first_window, int64_t asked, const RowBlock& out) {
    require(first_window >= 0 && asked >= 0 && asked <= INT32_MAX / options.T,
            "windows of a step from 0 on, whose positions an int32 can say");
    require(out.stride == 0 ||
                (out.stride >= extent(first_window, asked).tokens && out.stride <= options.T),
            "a stride of the tokens of the fullest window to T");
    if (options.whole_chosen && out.pairs) count_chosen();
    for (int64_t w = 0; w < asked; ++w) fill_window(first_window + w, w, out);
    // After the reads: what another program writes before this is noticed before it is used.
    file.verify();
  }

  void fill_window(int64_t window, int64_t w, const RowBlock& out);
  void place_pair(int64_t at, int64_t to, int64_t n, int32_t* document_start,
                  PairPlace* place) const;

  RowFile file;
  RowDatasetOptions options;
  int64_t most_rows, held = 0;
  PermutedOrder held_out, order;
  WindowRoom room;
  std::vector<Packed> packed;  // by window, then as they were placed
  std::vector<int64_t> window_begin;
  std::vector<int64_t> filled;  // tokens of each window
  std::vector<int32_t> record, targets;
  std::vector<TokenMasking> masks;  // of training, of evaluation
  Side side = Side::none;
  int64_t step = -1, count = 0, windows = 0, tokens = 0, trained = -1, chosen = -1,
          eval_chosen = -1;
};

void RowDataset::Impl::fill_window(int64_t window, int64_t w, const RowBlock& out) {
  const int64_t T = out.stride > 0 ? out.stride : options.T, R = options.max_rows_per_window,
                K = file.form().values, M = options.max_targets_per_window;
  const auto clear = [&](auto* to, int64_t n, auto value) {
    if (to) std::fill(to + w * n, to + (w + 1) * n, value);
  };
  clear(out.tokens, T, 0);
  clear(out.types, T, 0);
  clear(out.targets, T, kIgnoredLabel);
  clear(out.first, R, -1);
  clear(out.labels, R, kIgnoredLabel);
  clear(out.values, R * K, 0.0f);
  clear(out.target_at, M, -1);
  clear(out.target_labels, M, kIgnoredLabel);
  clear(out.pairs, R, PairPlace{});
  clear(out.rows, R, int64_t{-1});
  int64_t at = 0, listed = 0;
  const bool none = window >= windows;
  const int64_t begin = none ? 0 : window_begin[static_cast<size_t>(window)];
  const int64_t end = none ? 0 : window_begin[static_cast<size_t>(window) + 1];
  for (int64_t j = begin; j < end; ++j) {
    const Packed& p = packed[static_cast<size_t>(j)];
    const int64_t n = p.place.length, r = w * R + (j - begin), to = w * T + at;
    file.read(p.row, p.place, record.data());
    if (has_token_targets()) {
      find_targets(p, most_targets() - listed);
      if (out.targets) std::copy_n(targets.data(), n, out.targets + to);
      for (int64_t t = 0; t < n; ++t) {
        if (targets[static_cast<size_t>(t)] == kIgnoredLabel) continue;
        const int64_t i = w * M + listed++;
        if (M > 0 && out.target_at) out.target_at[i] = static_cast<int32_t>(to + t);
        if (M > 0 && out.target_labels) out.target_labels[i] = targets[static_cast<size_t>(t)];
      }
    }
    if (out.tokens) std::copy_n(record.data(), n, out.tokens + to);
    if (out.document_start) std::fill_n(out.document_start + to, n, static_cast<int32_t>(at));
    if (options.pairs)
      place_pair(at, to, n, out.document_start, out.pairs ? out.pairs + r : nullptr);
    if (out.types && file.types_at(n) >= 0)
      std::copy_n(record.data() + file.types_at(n), n, out.types + to);
    const int64_t read_at =
        options.last_token ? last_token_of(record.data(), n, options.padding) : 0;
    if (out.first) out.first[r] = static_cast<int32_t>(to + read_at);
    if (out.rows) out.rows[r] = p.row;
    const int32_t* label = record.data() + std::max<int64_t>(file.label_at(n), 0);
    if (out.labels && file.form().label == RowLabel::class_id) out.labels[r] = *label;
    if (out.values && K > 0) std::memcpy(out.values + r * K, label, static_cast<size_t>(4 * K));
    at += n;
  }
  if (!out.document_start) return;
  // What is behind the rows is a row of nothing, or several where positions end before it does.
  const int64_t longest = options.pairs && !options.single ? (T + 1) / 2 : T;
  for (; at < T; at += longest)
    std::fill_n(out.document_start + w * T + at, std::min(longest, T - at),
                static_cast<int32_t>(at));
}

// Of a row of n tokens in `record`, at `at` of its window and `to` of the block.
void RowDataset::Impl::place_pair(int64_t at, int64_t to, int64_t n, int32_t* document_start,
                                  PairPlace* place) const {
  const int64_t split = split_of(n);
  if (document_start)
    std::fill_n(document_start + to + split, n - split, static_cast<int32_t>(at + split));
  if (!place) return;
  const int32_t* labels = record.data() + file.token_labels_at(n);
  const int64_t shift = options.whole_chosen ? 1 : 0;
  const auto trained_of = [&](int64_t begin, int64_t end) {
    begin += shift;
    return static_cast<int32_t>(end - begin -
                                std::count(labels + begin, labels + end, kIgnoredLabel));
  };
  *place = {.chosen = static_cast<int32_t>(to),
            .rejected = static_cast<int32_t>(to + split),
            .end = static_cast<int32_t>(to + n),
            .chosen_tokens = trained_of(0, split),
            .rejected_tokens = trained_of(split, n),
            .answer = static_cast<int32_t>(to),
            .step_targets = 0,
            .step_pairs = 0};
  if (!options.whole_chosen) return;
  // An answer is the end of its sequence, whose last token has no target.
  place->answer = place->rejected - 1 - place->chosen_tokens;
  const bool eval = side == Side::eval;
  place->step_targets = static_cast<int32_t>(eval ? eval_chosen : chosen);
  place->step_pairs = static_cast<int32_t>(eval ? eval_rows() : count);
}

RowDataset::RowDataset(RowFile file, RowDatasetOptions options)
    : impl_(std::make_unique<Impl>(std::move(file), std::move(options))) {}
RowDataset::~RowDataset() = default;
RowDataset::RowDataset(RowDataset&&) noexcept = default;
RowDataset& RowDataset::operator=(RowDataset&&) noexcept = default;

const RowFile& RowDataset::file() const {
  return impl_->file;
}
const RowDatasetOptions& RowDataset::options() const {
  return impl_->options;
}
int64_t RowDataset::train_rows() const {
  return impl_->file.size() - impl_->held;
}
int64_t RowDataset::eval_rows() const {
  return impl_->eval_rows();
}
int64_t RowDataset::eval_steps() const {
  return (eval_rows() - 1) / impl_->options.eval_batch + 1;
}

int64_t RowDataset::windows(int64_t step) {
  impl_->pack(Side::train, step);
  return impl_->windows;
}
int64_t RowDataset::tokens(int64_t step) {
  impl_->pack(Side::train, step);
  return impl_->tokens;
}
RowExtent RowDataset::extent(int64_t step, int64_t first_window, int64_t count) {
  impl_->pack(Side::train, step);
  return impl_->extent(first_window, count);
}
void RowDataset::fill(int64_t step, int64_t first_window, int64_t count, const RowBlock& out) {
  impl_->pack(Side::train, step);
  impl_->fill(first_window, count, out);
}
int64_t RowDataset::trained(int64_t step) {
  impl_->pack(Side::train, step);
  return impl_->count_trained();
}

int64_t RowDataset::eval_windows(int64_t e) {
  impl_->pack(Side::eval, e);
  return impl_->windows;
}
RowExtent RowDataset::eval_extent(int64_t e, int64_t first_window, int64_t count) {
  impl_->pack(Side::eval, e);
  return impl_->extent(first_window, count);
}
void RowDataset::fill_eval(int64_t e, int64_t first_window, int64_t count, const RowBlock& out) {
  impl_->pack(Side::eval, e);
  impl_->fill(first_window, count, out);
}
int64_t RowDataset::eval_trained(int64_t e) {
  impl_->pack(Side::eval, e);
  return impl_->count_trained();
}

int64_t RowDataset::row_of(int64_t k) const {
  return impl_->row_of(k);
}
int64_t RowDataset::eval_row_of(int64_t i) const {
  return impl_->eval_row_of(i);
}

}  // namespace snug
