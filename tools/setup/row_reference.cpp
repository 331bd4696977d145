// Pairs whose reference is cached: what an evaluation says of all of them, by their number in the data.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "tools/setup/row_data.h"

namespace snug {

std::string RowData::reference_fingerprint() const {
  return fingerprint() + (eval_ ? "+" + fingerprint_text(eval_->file().fingerprint()) : "");
}

std::vector<int64_t> RowData::reference_rows() {
  std::vector<int64_t> rows = {of(false).file().size()};
  if (eval_) rows.push_back(eval_->file().size());
  return rows;
}

std::vector<std::vector<float>> RowData::compute_reference(Session& s) {
  std::vector<std::vector<float>> all;
  // Rows that nobody asks for stay no numbers: of an evaluation of some alone.
  for (const int64_t rows : reference_rows())
    all.emplace_back(static_cast<size_t>(2 * rows), std::numeric_limits<float>::quiet_NaN());
  set_reference(all, s);  // none yet: fills say which pairs they are
  known_reference_ = false;
  const int64_t B = s.decisions().eval_batch, R = pairs_.per_window,
                G = train_->options().global_batch;
  const auto evaluate = [&](std::vector<float>& to) {
    s.begin_window(0, 0, 0);
    s.evaluate();
    for (int64_t i = 0; i < B * R; ++i) {
      const int64_t row = row_numbers_[static_cast<size_t>(i)];
      if (row < 0) continue;
      const float* logps = s.pair_logps().as<float>() + 2 * i;
      std::copy_n(logps, 2, to.begin() + 2 * row);
    }
  };
  // An epoch has every row that is trained once.
  for (int64_t step = 0; step < (train_rows() - 1) / G + 1; ++step)
    for (int64_t first = 0; first < train_->windows(step); first += B) {
      const RowExtent needed = train_->extent(step, first, B);
      const Session::Extent extent = s.fit(true, needed.windows, needed.tokens);
      s.use(extent);
      RowBlock b = block(s);
      b.stride = extent.tokens;
      train_->fill(step, first, B, b);
      evaluate(all.front());
    }
  for (int64_t e = 0; eval_rows_ > 0 && e < eval_steps(); ++e)
    for (int64_t first = 0; first < eval_windows(e); first += B) {
      fill_eval(e, first, s);
      evaluate(all.back());
    }
  return all;
}

void RowData::set_reference(std::vector<std::vector<float>> of_files, const Session& s) {
  require(of_files.size() == reference_rows().size(), "a reference of every file of rows");
  reference_ = std::move(of_files);
  known_reference_ = true;
  row_numbers_.resize(static_cast<size_t>(s.pairs().shape[0]), -1);
}

void RowData::place_reference(bool evaluation, int64_t count, Session& s) const {
  if (reference_.empty()) return;
  const std::vector<float>& from = evaluation ? reference_.back() : reference_.front();
  float* to = s.pair_reference().as<float>();
  for (int64_t i = 0; i < count * pairs_.per_window; ++i) {
    const int64_t row = row_numbers_[static_cast<size_t>(i)];
    for (int64_t side = 0; side < 2; ++side) {
      const bool some = row >= 0 && known_reference_;
      to[2 * i + side] = some ? from[static_cast<size_t>(2 * row + side)] : 0.0f;
      if (std::isnan(to[2 * i + side]))
        fail(ErrorCode::data, "a reference of every pair that is evaluated",
             fmt::format("none of pair {}: the run was begun with fewer", row),
             "max_eval_samples as the run was begun with, or another output_dir without resume");
    }
  }
}

}  // namespace snug
