#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "engine/data/row_packing.h"
#include "tests/engine/data/heap_count.h"
#include "tests/engine/data/row_case.h"

namespace snug {
namespace {

using test::all_rows;
using test::Ints;
using test::ReadRow;

// Rows of random lengths: row r is tokens r*16 .. of their own, so that any mistake shows.
RowFile random_rows(const TempFolder& tmp, const RowForm& form, int32_t rows, int32_t longest,
                    uint64_t seed) {
  const std::string path = tmp / ("rows" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  RowFileWriter writer(path, form, 1 << 20);
  for (int32_t r = 0; r < rows; ++r) {
    const auto n = static_cast<int32_t>(1 + rng() % static_cast<uint64_t>(longest));
    ReadRow row;
    for (int32_t t = 0; t < n; ++t) {
      row.tokens.push_back(1 + r * 64 + t);
      if (form.types) row.types.push_back(static_cast<int32_t>(rng() % 2));
      if (form.token_labels)
        row.labels.push_back(rng() % 3 == 0 ? kIgnoredLabel : static_cast<int32_t>(rng() % 9));
    }
    if (form.label == RowLabel::class_id)
      row.class_id = rng() % 5 == 0 ? kIgnoredLabel : static_cast<int32_t>(rng() % 3);
    for (int64_t k = 0; k < form.values; ++k)
      row.values.push_back(static_cast<float>(rng() % 100) / 8);
    writer.append({row.tokens, row.types, row.labels, row.class_id, row.values});
  }
  writer.commit();
  return RowFile(path);
}

// Everything fill may write, of `count` windows.
struct Block {
  Block(const RowDataset& data, int64_t windows, int64_t stride = 0)
      : T(stride > 0 ? stride : data.options().T),
        R(data.options().max_rows_per_window),
        M(data.options().max_targets_per_window),
        K(data.file().form().values) {
    const auto n = [&](int64_t each) { return static_cast<size_t>(windows * each); };
    tokens.assign(n(T), 77), start.assign(n(T), 77), types.assign(n(T), 77);
    targets.assign(n(T), 77), first.assign(n(R), 77), labels.assign(n(R), 77);
    values.assign(n(R * K), 77.0f), at.assign(n(M), 77), listed.assign(n(M), 77);
    rows.assign(n(R), 77);
  }
  RowBlock out() {
    return {tokens.data(),
            start.data(),
            types.data(),
            targets.data(),
            first.data(),
            labels.data(),
            values.data(),
            at.data(),
            listed.data(),
            rows.data(),
            T};
  }
  bool operator==(const Block&) const = default;
  int64_t T, R, M, K;  // T: from one window to the next
  Ints tokens, start, types, targets, first, labels, at, listed;
  std::vector<float> values;
  std::vector<int64_t> rows;
};

using Windows = std::vector<std::vector<int64_t>>;

// First fit, decreasing, as one would write it in a scripting language, into the number of windows and
// the room of one that leave least.
class NaivePacking {
 public:
  NaivePacking(const std::vector<ReadRow>& rows, std::vector<int64_t> order, int64_t T, int64_t R)
      : rows_(rows), order_(std::move(order)), T_(T), R_(R) {
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t a, int64_t b) { return length(a) > length(b); });
  }
  int64_t used(const std::vector<int64_t>& window) const {
    int64_t sum = 0;
    for (const int64_t row : window) sum += length(row);
    return sum;
  }
  int64_t fullest(const Windows& windows) const {
    int64_t most = 0;
    for (const auto& window : windows) most = std::max(most, used(window));
    return most;
  }
  int64_t places(const Windows& windows) const {
    return static_cast<int64_t>(windows.size()) * fullest(windows);
  }
  Windows windows() const {
    const auto count = static_cast<int64_t>(order_.size());
    const Windows first_fit = packed(count, T_);
    Windows best = first_fit;
    const int64_t least = std::max(whole(used(order_), T_), whole(count, R_));
    for (int64_t n = least; n <= static_cast<int64_t>(first_fit.size()) && n <= least + 8; ++n) {
      const int64_t low = std::max(whole(used(order_), n), length(order_.front()));
      for (int64_t room = low; room <= T_; room += (T_ - low) / 64 + 1) {
        if (n * room >= places(best)) break;
        const Windows windows = packed(n, room);
        if (windows.empty()) continue;
        if (places(windows) < places(best)) best = windows;
        break;
      }
    }
    return best;
  }

 private:
  static int64_t whole(int64_t sum, int64_t each) { return (sum + each - 1) / each; }
  int64_t length(int64_t row) const {
    return static_cast<int64_t>(rows_[static_cast<size_t>(row)].tokens.size());
  }
  Windows packed(int64_t most, int64_t room) const {
    Windows windows;
    for (const int64_t row : order_) {
      std::vector<int64_t>* to = nullptr;
      for (auto& window : windows)
        if (to == nullptr && used(window) + length(row) <= room &&
            static_cast<int64_t>(window.size()) < R_)
          to = &window;
      if (to == nullptr && static_cast<int64_t>(windows.size()) == most) return {};
      if (to == nullptr) to = &windows.emplace_back();
      to->push_back(row);
    }
    return windows;
  }

  const std::vector<ReadRow>& rows_;
  std::vector<int64_t> order_;
  int64_t T_, R_;
};

void expect_naive(const Block& got, const std::vector<std::vector<int64_t>>& windows, int64_t count,
                  const std::vector<ReadRow>& rows, const RowForm& form, bool shift) {
  Block want = got;
  std::fill(want.tokens.begin(), want.tokens.end(), 0);
  std::fill(want.types.begin(), want.types.end(), 0);
  for (Ints* v : {&want.targets, &want.labels, &want.listed})
    std::fill(v->begin(), v->end(), kIgnoredLabel);
  for (Ints* v : {&want.first, &want.at}) std::fill(v->begin(), v->end(), -1);
  std::fill(want.values.begin(), want.values.end(), 0.0f);
  std::fill(want.rows.begin(), want.rows.end(), -1);
  for (int64_t w = 0; w < count; ++w) {
    int64_t t = 0, r = 0, m = 0;
    const auto none = std::vector<int64_t>();
    for (const int64_t row :
         w < static_cast<int64_t>(windows.size()) ? windows[static_cast<size_t>(w)] : none) {
      const ReadRow& x = rows[static_cast<size_t>(row)];
      const auto place = static_cast<size_t>(w * want.R + r);
      want.first[place] = static_cast<int32_t>(w * want.T + t);
      want.rows[place] = row;
      if (form.label == RowLabel::class_id) want.labels[place] = x.class_id;
      for (size_t k = 0; k < x.values.size(); ++k)
        want.values[place * x.values.size() + k] = x.values[k];
      const auto begin = static_cast<int32_t>(t);
      for (size_t i = 0; i < x.tokens.size(); ++i, ++t) {
        const auto p = static_cast<size_t>(w * want.T + t);
        want.tokens[p] = x.tokens[i];
        want.start[p] = begin;
        if (form.types) want.types[p] = x.types[i];
        if (!form.token_labels) continue;
        const size_t from = i + (shift ? 1 : 0);
        want.targets[p] = from < x.labels.size() ? x.labels[from] : kIgnoredLabel;
        if (want.targets[p] == kIgnoredLabel || want.M == 0) continue;
        want.at[static_cast<size_t>(w * want.M + m)] = static_cast<int32_t>(p);
        want.listed[static_cast<size_t>(w * want.M + m++)] = want.targets[p];
      }
      ++r;
    }
    for (int64_t tail = t; tail < want.T; ++tail)
      want.start[static_cast<size_t>(w * want.T + tail)] = static_cast<int32_t>(t);
  }
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.start, want.start);
  EXPECT_EQ(got.types, want.types);
  EXPECT_EQ(got.targets, want.targets);
  EXPECT_EQ(got.first, want.first);
  EXPECT_EQ(got.labels, want.labels);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.at, want.at);
  EXPECT_EQ(got.listed, want.listed);
  EXPECT_EQ(got.rows, want.rows);
}

struct Case {
  const char* name;
  RowForm form;
  int64_t T, G, R, M;
  bool shift, shuffle;
  double held;
};

TEST(RowDataset, IsTheNaivePackingOfItsSamples) {
  const Case cases[] = {
      {"classes", {.types = true, .label = RowLabel::class_id}, 32, 16, 0, 0, false, true, 0},
      {"few rows", {.label = RowLabel::class_id}, 64, 20, 3, 0, false, true, 0},
      {"one row", {.label = RowLabel::class_id}, 40, 5, 1, 0, false, false, 0},
      {"values",
       {.types = true, .label = RowLabel::values, .values = 3},
       32,
       7,
       0,
       0,
       false,
       true,
       0},
      {"tokens", {.token_labels = true}, 48, 16, 0, 48, false, true, 0},
      {"shifted", {.token_labels = true}, 48, 16, 5, 48, true, true, 0.2},
      {"held", {.label = RowLabel::class_id}, 32, 9, 0, 0, false, false, 0.3},
      {"all",
       {.types = true, .token_labels = true, .label = RowLabel::class_id},
       33,
       64,
       0,
       0,
       false,
       true,
       0.1},
  };
  uint64_t seed = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TempFolder tmp;
    RowFile file = random_rows(tmp, c.form, 101, 32, ++seed);
    const std::vector<ReadRow> rows = all_rows(file);
    RowDataset data(std::move(file), {.T = c.T,
                                      .global_batch = c.G,
                                      .eval_batch = 10,
                                      .max_rows_per_window = c.R,
                                      .seed = 5,
                                      .shuffle = c.shuffle,
                                      .eval_fraction = c.held,
                                      .shift_labels = c.shift,
                                      .max_targets_per_window = c.M});
    const int64_t R = data.options().max_rows_per_window;
    EXPECT_EQ(R, c.R == 0 ? c.T : c.R);
    for (const int64_t step : {0, 3, 40}) {
      std::vector<int64_t> order;
      for (int64_t j = 0; j < c.G; ++j) order.push_back(data.row_of(step * c.G + j));
      const NaivePacking naive(rows, order, c.T, R);
      const Windows windows = naive.windows();
      const auto n = static_cast<int64_t>(windows.size());
      EXPECT_EQ(data.windows(step), n);
      Block block(data, n + 2);  // two empty ones behind
      data.fill(step, 0, n + 2, block.out());
      expect_naive(block, windows, n + 2, rows, c.form, c.shift);
      int64_t trained = 0;
      for (const int64_t row : order) {
        const ReadRow& x = rows[static_cast<size_t>(row)];
        if (c.form.label == RowLabel::class_id) trained += x.class_id != kIgnoredLabel;
        if (c.form.label == RowLabel::values) ++trained;
        for (size_t i = c.shift ? 1 : 0; i < x.labels.size() && c.form.label == RowLabel::none; ++i)
          trained += x.labels[i] != kIgnoredLabel;
      }
      EXPECT_EQ(data.trained(step), trained);
      // However the windows are asked for, and as near to each other as they can be.
      for (int64_t w = n + 1; w >= 0; --w)
        for (const int64_t count : {1, 3}) {
          Windows some(static_cast<size_t>(count));
          for (int64_t i = w; i < std::min(w + count, n); ++i)
            some[static_cast<size_t>(i - w)] = windows[static_cast<size_t>(i)];
          const RowExtent e = data.extent(step, w, count);
          EXPECT_EQ(e.windows, std::max<int64_t>(1, std::min(count, n - w)));
          EXPECT_EQ(e.tokens, std::max<int64_t>(1, naive.fullest(some)));
          for (const int64_t stride : {int64_t{0}, e.tokens, (e.tokens + c.T) / 2}) {
            Block block_of(data, count, stride);
            data.fill(step, w, count, block_of.out());
            expect_naive(block_of, some, count, rows, c.form, c.shift);
          }
          EXPECT_GT(data.eval_windows(w % data.eval_steps()), 0);  // another step in between
        }
    }
    std::multiset<int64_t> evaluated;
    for (int64_t e = 0; e < data.eval_steps(); ++e) {
      std::vector<int64_t> order;
      for (int64_t i = e * 10; i < std::min<int64_t>(e * 10 + 10, data.eval_rows()); ++i)
        order.push_back(data.eval_row_of(i));
      evaluated.insert(order.begin(), order.end());
      const NaivePacking naive(rows, order, c.T, R);
      const Windows windows = naive.windows();
      const auto n = static_cast<int64_t>(windows.size());
      ASSERT_EQ(data.eval_windows(e), n);
      EXPECT_EQ(data.eval_extent(e, 0, n).tokens, naive.fullest(windows));
      Block block(data, n);
      data.fill_eval(e, 0, n, block.out());
      expect_naive(block, windows, n, rows, c.form, c.shift);
      EXPECT_GE(data.eval_trained(e), 0);
    }
    EXPECT_EQ(static_cast<int64_t>(evaluated.size()), data.eval_rows());
    // Each row is on one side, and on its side once an epoch.
    std::set<int64_t> trained_rows;
    for (int64_t k = 0; k < data.train_rows(); ++k)
      EXPECT_TRUE(trained_rows.insert(data.row_of(k)).second);
    if (c.held > 0) {
      EXPECT_EQ(data.eval_rows(), std::llround(101 * c.held));
      for (const int64_t row : evaluated) EXPECT_TRUE(trained_rows.insert(row).second);
    } else {
      for (int64_t i = 0; i < 101; ++i) EXPECT_EQ(data.eval_row_of(i), i);
    }
    EXPECT_EQ(trained_rows.size(), 101u);
    for (int64_t k = 0; k < 2 * data.train_rows() && !c.shuffle; ++k)
      EXPECT_EQ(data.row_of(k), k % data.train_rows());
  }
}

TEST(RowDataset, EpochsHaveTheirOwnOrderAndSeedsToo) {
  TempFolder tmp;
  const auto make = [&](uint64_t seed) {
    return RowDataset(random_rows(tmp, {}, 500, 8, 1), {.T = 32, .seed = seed});
  };
  const RowDataset a = make(1), b = make(2);
  int64_t same_epoch = 0, same_seed = 0;
  for (int64_t k = 0; k < 500; ++k) {
    same_epoch += a.row_of(k) == a.row_of(k + 500);
    same_seed += a.row_of(k) == b.row_of(k);
    EXPECT_EQ(a.row_of(k), PermutedOrder(500, 1)[k]);
  }
  EXPECT_LE(same_epoch, 12);
  EXPECT_LE(same_seed, 12);
}

MaskingOptions masking(bool whole_words = false) {
  MaskingOptions m;
  m.probability = 0.3;
  m.mask_id = 1 << 19;
  m.vocab_size = 1 << 20;
  if (whole_words) {
    m.continues.assign(1 << 20, false);
    for (size_t id = 0; id < m.continues.size(); id += 3) m.continues[id] = true;
  }
  return m;
}

// A masked row is a function of the seed, the sample and the row: not of the windows, the batch, or
// what was asked before.
TEST(RowDataset, MasksBelongToTheSample) {
  TempFolder tmp;
  for (const bool whole : {false, true}) {
    RowDataset data(random_rows(tmp, {}, 60, 30, 3), {.T = 64,
                                                      .global_batch = 8,
                                                      .seed = 11,
                                                      .masking = masking(whole),
                                                      .max_targets_per_window = 64});
    RowDataset other(random_rows(tmp, {}, 60, 30, 3), {.T = 30,
                                                       .global_batch = 16,
                                                       .max_rows_per_window = 1,
                                                       .seed = 11,
                                                       .masking = masking(whole)});
    const std::vector<ReadRow> rows = all_rows(data.file());
    const TokenMasking truth(masking(whole), 11, false);
    std::map<int64_t, std::pair<Ints, Ints>> seen[2];  // by sample: tokens and targets
    for (int64_t step = 0; step < 30; ++step)
      for (int which = 0; which < 2; ++which) {
        RowDataset& d = which == 0 ? data : other;
        const int64_t G = d.options().global_batch, T = d.options().T,
                      R = d.options().max_rows_per_window;
        const int64_t n = d.windows(step);
        Block block(d, n);
        d.fill(step, 0, n, block.out());
        int64_t targets = 0;
        for (const int32_t t : block.targets) targets += t != kIgnoredLabel;
        EXPECT_EQ(d.trained(step), targets);
        std::map<int64_t, int64_t> sample_of;  // rows of a step differ, G being below an epoch
        for (int64_t j = 0; j < G; ++j) sample_of[d.row_of(step * G + j)] = step * G + j;
        if (sample_of.size() != static_cast<size_t>(G)) continue;  // a row twice: epochs meet
        for (int64_t i = 0; i < n * R; ++i) {
          const int64_t row = block.rows[static_cast<size_t>(i)];
          if (row < 0) continue;
          const auto from = block.first[static_cast<size_t>(i)];
          const auto length = static_cast<int64_t>(rows[static_cast<size_t>(row)].tokens.size());
          seen[which][sample_of[row]] = {
              Ints(block.tokens.begin() + from, block.tokens.begin() + from + length),
              Ints(block.targets.begin() + from, block.targets.begin() + from + length)};
        }
        ASSERT_LE(T, 64);
      }
    int64_t compared = 0;
    for (const auto& [k, got] : seen[0]) {
      Ints tokens = rows[static_cast<size_t>(data.row_of(k))].tokens, targets(tokens.size());
      truth.apply(k, static_cast<int64_t>(tokens.size()), 64, tokens.data(), targets.data());
      EXPECT_EQ(got.first, tokens) << k;
      EXPECT_EQ(got.second, targets) << k;
      const auto at = seen[1].find(k);
      if (at == seen[1].end()) continue;
      ++compared;
      EXPECT_EQ(got, at->second) << k;
    }
    EXPECT_GT(compared, 100);
  }
}

TEST(RowDataset, AWindowHasNoMoreTargetsThanItsList) {
  TempFolder tmp;
  RowDataset all(random_rows(tmp, {}, 60, 30, 4),
                 {.T = 64, .global_batch = 20, .masking = masking(), .max_targets_per_window = 64});
  RowDataset few(random_rows(tmp, {}, 60, 30, 4),
                 {.T = 64, .global_batch = 20, .masking = masking(), .max_targets_per_window = 6});
  int64_t capped = 0;
  for (int64_t step = 0; step < 5; ++step) {
    const int64_t n = all.windows(step);
    ASSERT_EQ(few.windows(step), n);
    Block a(all, n), f(few, n), raw(all, n);
    all.fill(step, 0, n, a.out());
    few.fill(step, 0, n, f.out());
    int64_t trained = 0;
    for (int64_t w = 0; w < n; ++w) {
      int64_t kept = 0;
      for (int64_t t = 0; t < 64; ++t) {
        const auto p = static_cast<size_t>(w * 64 + t);
        if (a.targets[p] == kIgnoredLabel) {
          EXPECT_EQ(f.targets[p], kIgnoredLabel);
          EXPECT_EQ(f.tokens[p], a.tokens[p]);
          continue;
        }
        if (kept == 6) {  // left as it was
          ++capped;
          EXPECT_EQ(f.targets[p], kIgnoredLabel);
          EXPECT_EQ(f.tokens[p], a.targets[p]);
          continue;
        }
        EXPECT_EQ(f.targets[p], a.targets[p]);
        EXPECT_EQ(f.tokens[p], a.tokens[p]);
        EXPECT_EQ(f.at[static_cast<size_t>(w * 6 + kept)], static_cast<int32_t>(p));
        EXPECT_EQ(f.listed[static_cast<size_t>(w * 6 + kept)], a.targets[p]);
        ++kept;
      }
      for (int64_t i = kept; i < 6; ++i) {
        EXPECT_EQ(f.at[static_cast<size_t>(w * 6 + i)], -1);
        EXPECT_EQ(f.listed[static_cast<size_t>(w * 6 + i)], kIgnoredLabel);
      }
      trained += kept;
    }
    EXPECT_EQ(few.trained(step), trained);
  }
  EXPECT_GT(capped, 50);
}

TEST(RowDataset, EvaluationMasksAlike) {
  TempFolder tmp;
  RowDataset data(random_rows(tmp, {}, 40, 30, 5),
                  {.T = 64, .global_batch = 8, .masking = masking()});
  const int64_t n = data.eval_windows(2);
  Block a(data, n), b(data, n), t(data, data.windows(2));
  data.fill_eval(2, 0, n, a.out());
  data.fill(2, 0, data.windows(2), t.out());
  data.fill_eval(2, 0, n, b.out());
  EXPECT_TRUE(a == b);
  int64_t targets = 0;
  for (const int32_t x : a.targets) targets += x != kIgnoredLabel;
  EXPECT_EQ(data.eval_trained(2), targets);
  EXPECT_GT(targets, 0);
  // By a key of their own: the masks of training say nothing of them. Nothing is held out, so the
  // k-th row is the k-th of the evaluation.
  const TokenMasking truth(masking(), data.options().seed, true);
  const std::vector<ReadRow> rows = all_rows(data.file());
  int64_t compared = 0;
  for (size_t i = 0; i < a.rows.size(); ++i) {
    if (a.rows[i] < 0) continue;
    Ints tokens = rows[static_cast<size_t>(a.rows[i])].tokens, wanted(tokens.size());
    const auto length = static_cast<int64_t>(tokens.size());
    truth.apply(a.rows[i], length, length, tokens.data(), wanted.data());
    const auto from = static_cast<int64_t>(i) / a.R * a.T + a.first[i] % a.T;
    EXPECT_EQ(Ints(a.tokens.begin() + from, a.tokens.begin() + from + length), tokens) << i;
    EXPECT_EQ(Ints(a.targets.begin() + from, a.targets.begin() + from + length), wanted) << i;
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

TEST(RowDataset, FillTakesNoMemory) {
  TempFolder tmp;
  RowDataset data(random_rows(tmp, {.types = true, .token_labels = true}, 300, 30, 6),
                  {.T = 64, .global_batch = 32, .masking = masking(true)});
  Block block(data, 32);
  const RowBlock out = block.out();
  const int64_t before = heap_requests();
  for (int64_t step = 0; step < 20; ++step) {
    data.fill(step, 0, data.windows(step), out);
    data.trained(step);
    data.fill_eval(step % data.eval_steps(), 0, 3, out);
  }
  EXPECT_EQ(heap_requests(), before);
  EXPECT_GT(before, 0);
}

TEST(RowDataset, WhatIsNotWantedIsNotWritten) {
  TempFolder tmp;
  RowDataset data(random_rows(tmp, {.types = true, .token_labels = true}, 30, 30, 7), {.T = 32});
  Block block(data, 3);
  data.fill(0, 0, 3, {});
  data.fill(0, 0, 3, {.targets = block.targets.data()});
  EXPECT_EQ(block.tokens, Ints(96, 77));
  EXPECT_NE(block.targets, Ints(96, 77));
}

TEST(RowDataset, RefusesWhatCannotBe) {
  TempFolder tmp;
  const auto make = [&](RowDatasetOptions o, int32_t rows = 10) {
    return RowDataset(random_rows(tmp, {}, rows, 30, 8), std::move(o)).train_rows();
  };
  EXPECT_EQ(make({.T = 30}), 10);
  EXPECT_ERROR(make({.T = 8}), ErrorCode::data, "rows of at most max_length 8 tokens in", "one of",
               "cut to this max_length, or raise it");
  EXPECT_ERROR(make({.T = 0}), ErrorCode::usage, "max_length from 1 to 1073741824 for rows", "0",
               "512");
  EXPECT_ERROR(make({.global_batch = 0}), ErrorCode::usage, "global_batch_size from 1", "0", "32");
  EXPECT_ERROR(make({.max_rows_per_window = 513}), ErrorCode::usage, "rows in a window", "513",
               "as many as there is room for");
  EXPECT_ERROR(make({.max_targets_per_window = 5}), ErrorCode::usage,
               "room for all 512 targets of a window", "5", "only targets that masking draws");
  EXPECT_ERROR(make({.shift_labels = true, .masking = masking()}), ErrorCode::usage,
               "masked targets where they stand", "shift_labels", "learn the next token");
  EXPECT_ERROR(make({.eval_fraction = 1.0}), ErrorCode::usage,
               "an eval_fraction of rows of 0 or more", "1", "0.05");
  EXPECT_ERROR(make({.eval_fraction = 0.96}), ErrorCode::data,
               "a row to train on beside those held", "10 of 10 rows", "eval_data instead");
  EXPECT_ERROR(make({}, 0), ErrorCode::data, "a row to train on or to evaluate", "none in",
               "text that is not empty");
  RowDataset data(random_rows(tmp, {}, 10, 30, 8), {});
  EXPECT_THROW(data.windows(-1), Error);
  EXPECT_THROW(data.eval_windows(1), Error);
  EXPECT_THROW(data.fill(0, -1, 1, {}), Error);
  EXPECT_THROW(data.extent(0, -1, 1), Error);
  EXPECT_THROW(data.fill(0, 0, 1, {.stride = 513}), Error);
  EXPECT_THROW(data.fill(0, 0, 1, {.stride = data.extent(0, 0, 1).tokens - 1}), Error);
}

TEST(RowDataset, AFileThatChangesIsLost) {
  TempFolder tmp;
  RowDataset data(random_rows(tmp, {}, 10, 30, 8), {.T = 32, .global_batch = 4});
  data.fill(0, 0, 1, {});
  std::string bytes = read_file(tmp / "rows8");
  bytes[130] = 9;
  std::ofstream(tmp / "rows8", std::ios::binary | std::ios::trunc) << bytes;
  std::filesystem::last_write_time(
      tmp / "rows8", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_THROW(data.fill(0, 0, 1, {}), DataLost);
  EXPECT_THROW(data.windows(1), DataLost);
}

TEST(RowDataset, AnEvaluationIsOfItsFirstRowsIfItIsToEndEarly) {
  TempFolder tmp;
  for (const double held : {0.0, 0.5}) {
    const RowDatasetOptions all = {.T = 32, .eval_batch = 4, .eval_fraction = held};
    RowDatasetOptions few = all;
    few.max_eval_rows = 6;
    const RowDataset whole(random_rows(tmp, {}, 40, 32, 3), all);
    RowDataset cut(random_rows(tmp, {}, 40, 32, 3), few);
    EXPECT_EQ(whole.eval_rows(), held > 0 ? 20 : 40);
    EXPECT_EQ(cut.eval_rows(), 6);
    EXPECT_EQ(cut.eval_steps(), 2);
    EXPECT_EQ(cut.train_rows(), whole.train_rows());
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(cut.eval_row_of(i), whole.eval_row_of(i));
    const int64_t R = cut.options().max_rows_per_window;
    int64_t rows = 0;
    for (int64_t e = 0; e < 2; ++e) {
      const int64_t n = cut.eval_windows(e);
      std::vector<int64_t> numbers(static_cast<size_t>(n * R));
      cut.fill_eval(e, 0, n, {.rows = numbers.data()});
      rows += std::count_if(numbers.begin(), numbers.end(), [](int64_t r) { return r >= 0; });
    }
    EXPECT_EQ(rows, 6);
    few.max_eval_rows = 99;
    EXPECT_EQ(RowDataset(random_rows(tmp, {}, 40, 32, 3), few).eval_rows(), whole.eval_rows());
  }
}

}  // namespace
}  // namespace snug
