// Pairs whose reference is cached: what an evaluation says of all of them, by their number in the data. And
// what single answers are compared with: what an evaluation says of mismatched ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "engine/memory/step_state.h"
#include "tools/setup/row_data.h"

namespace snug {

// The same records, each prompt with another's answer: of nothing to learn.
RowFile RowData::read_others(const std::vector<std::string>& given, const RunConfig& config,
                             const std::optional<Tokenizer>& tokenizer, RowOptions options,
                             const PrepareRoom& room) {
  options.seen = nullptr;
  const std::string path = fmt::format("{}/{}_others.rows", folder_.path(),
                                       &given == &config.train_data ? "train" : "eval");
  const std::vector<CorpusFile> files = expand_corpus(given, config.output_dir);
  apply_room(room, files, false, options);
  write_rows(files, tokenizer ? &*tokenizer : nullptr, options, path);
  return RowFile(path, tokenizer ? std::optional(tokenizer->fingerprint()) : std::nullopt);
}

std::string balance_note(int64_t desirable, int64_t rows, double desirable_weight,
                         double undesirable_weight) {
  const int64_t others = rows - desirable;
  if (desirable == 0 || others == 0)
    return fmt::format("all answers of train_data are {}",
                       others == 0 ? "desirable" : "undesirable");
  if (desirable_weight == 0 || undesirable_weight == 0) return "";
  const double least =
      static_cast<double>(others) * undesirable_weight / static_cast<double>(desirable);
  if (desirable == others || (desirable_weight >= 0.99 * least && desirable_weight <= 1.34 * least))
    return "";
  return fmt::format(
      "{} desirable answers of {} are given, each of weight {:.3g}: a desirable_weight of {:.3g} "
      "to "
      "{:.3g} lets both kinds weigh about the same",
      desirable, rows, desirable_weight, least, 4 * least / 3);
}

std::string RowData::reference_fingerprint() const {
  return fingerprint() + (eval_ ? "+" + fingerprint_text(eval_->file().fingerprint()) : "");
}

// Of one file alone where eval_data is none of its own.
std::vector<RowData::ReferenceFile> RowData::reference_files() {
  std::vector<ReferenceFile> files = {{"train", of(false).file().size()}};
  if (eval_) files.push_back({"eval", eval_->file().size()});
  if (train_others_) files.push_back({"train_others", train_others_->file().size()});
  if (eval_others_) files.push_back({"eval_others", eval_others_->file().size()});
  return files;
}

const std::vector<float>* RowData::reference_of(bool evaluation, bool others) const {
  if (reference_.empty() || !known_reference_) return nullptr;
  const size_t first = others ? reference_.size() / 2 : 0;
  return &reference_[first + (evaluation && eval_ ? 1 : 0)];
}

template <class F>
void RowData::evaluate_pairs(RowDataset& rows, bool evaluation, int64_t step,
                             const std::vector<float>* reference, Session& s, F&& each) {
  const int64_t B = s.decisions().eval_batch, R = pairs_.per_window;
  const int64_t windows = evaluation ? rows.eval_windows(step) : rows.windows(step);
  for (int64_t first = 0; first < windows; first += B) {
    const RowExtent needed =
        evaluation ? rows.eval_extent(step, first, B) : rows.extent(step, first, B);
    const Session::Extent extent = s.fit(true, needed.windows, needed.tokens);
    s.use(extent);
    RowBlock b = block(s);
    b.stride = extent.tokens;
    if (evaluation)
      rows.fill_eval(step, first, B, b);
    else
      rows.fill(step, first, B, b);
    place_reference(reference, B, s);
    s.evaluate();
    for (int64_t i = 0; i < B * R; ++i)
      if (b.pairs[i].chosen >= 0) each(i, b.rows ? b.rows[i] : -1);
  }
}

// TRL takes the mean of a micro-batch, and compares with it where it is above 0.
void RowData::compare(bool evaluation, int64_t step, Session& s) {
  if (!pairs_.compared()) return;
  const StepState saved = s.state();
  double sum = 0;
  int64_t count = 0;
  const auto add = [&](int64_t i, int64_t) {
    const int64_t side = s.pairs().as<int32_t>()[kPairWords * i + 3] > 0 ? 0 : 1;
    sum += double{s.pair_logps().as<float>()[2 * i + side]} -
           double{s.pair_reference().as<float>()[2 * i + side]};
    ++count;
  };
  RowDataset& others = others_of(evaluation);
  const int64_t end = evaluation ? others.eval_steps() : step + 1;
  for (int64_t at = evaluation ? 0 : step; at < end; ++at)
    evaluate_pairs(others, evaluation, at, reference_of(evaluation, true), s, add);
  s.state() = saved;
  const double mean = sum / static_cast<double>(count);
  compared_ = static_cast<float>(mean < 0 ? 0 : mean);  // NaN stays one
}

void RowData::place_compared(int64_t count, Session& s) const {
  if (!pairs_.compared()) return;
  int32_t* to = s.pairs().as<int32_t>();
  for (int64_t i = 0; i < count * pairs_.per_window; ++i, to += kPairWords)
    if (*to >= 0) std::memcpy(to + 6, &compared_, sizeof compared_);
}

std::vector<std::vector<float>> RowData::compute_reference(Session& s) {
  std::vector<std::vector<float>> all;
  // Rows that nobody asks for stay no numbers: of an evaluation of some alone.
  for (const ReferenceFile& file : reference_files())
    all.emplace_back(static_cast<size_t>(2 * file.rows), std::numeric_limits<float>::quiet_NaN());
  set_reference(all, s);  // none yet: fills say which pairs they are
  known_reference_ = false;
  const auto learn = [&](RowDataset& rows, bool evaluation, std::vector<float>& to) {
    // An epoch has every row that is trained once.
    const int64_t steps =
        evaluation ? rows.eval_steps() : (rows.train_rows() - 1) / rows.options().global_batch + 1;
    for (int64_t step = 0; step < steps; ++step) {
      s.begin_window(0, 0, 0);
      evaluate_pairs(rows, evaluation, step, nullptr, s, [&](int64_t i, int64_t row) {
        std::copy_n(s.pair_logps().as<float>() + 2 * i, 2, to.begin() + 2 * row);
      });
    }
  };
  const size_t others = all.size() / 2, last = eval_ ? 1 : 0;
  learn(*train_, false, all[0]);
  if (eval_rows_ > 0) learn(evaluated(), true, all[last]);
  if (!train_others_) return all;
  learn(*train_others_, false, all[others]);
  if (eval_rows_ > 0) learn(others_of(true), true, all[others + last]);
  return all;
}

void RowData::set_reference(std::vector<std::vector<float>> of_files, const Session& s) {
  require(of_files.size() == reference_files().size(), "a reference of every file of rows");
  reference_ = std::move(of_files);
  known_reference_ = true;
  row_numbers_.resize(static_cast<size_t>(s.pairs().shape[0]), -1);
}

void RowData::place_reference(const std::vector<float>* from, int64_t count, Session& s) const {
  if (reference_.empty()) return;
  float* to = s.pair_reference().as<float>();
  for (int64_t i = 0; i < count * pairs_.per_window; ++i) {
    const int64_t row = row_numbers_[static_cast<size_t>(i)];
    for (int64_t side = 0; side < 2; ++side) {
      const bool some = row >= 0 && from;
      to[2 * i + side] = some ? (*from)[static_cast<size_t>(2 * row + side)] : 0.0f;
      if (std::isnan(to[2 * i + side]))
        fail(ErrorCode::data,
             fmt::format("a reference of every {} that is evaluated", pairs_.noun()),
             fmt::format("none of {} {}: the run was begun with fewer", pairs_.noun(), row),
             "max_eval_samples as the run was begun with, or another output_dir without resume");
    }
  }
}

}  // namespace snug
