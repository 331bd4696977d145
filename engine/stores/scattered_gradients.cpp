#include "engine/stores/scattered_gradients.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"

namespace snug {

ScatteredGradSink::ScatteredGradSink(Context& ctx, const ParamTable& table, const Shards& shards,
                                     DType dtype, Comm& comm, OffloadedPieces* away)
    : table_(table),
      shards_(shards),
      dtype_(dtype),
      comm_(comm),
      away_(away),
      gradients_(shards.runs().size()),
      run_of_(run_of_params(table)),
      written_(static_cast<size_t>(table.size()), 0) {
  require(dtype == DType::f32 || dtype == DType::bf16, "gradients in f32 or bf16");
  expect_gradients_here(ctx, dtype);
  if (away == nullptr)
    kept_ = ctx.tensor(Name("gradients.kept"), {shards.elements()}, dtype, Category::gradients);
  for (const ShardRun& run : shards.runs()) {
    run_of_window_.push_back(names_.size());
    names_.push_back(run_name("gradients", table, run));
  }
}

void ScatteredGradSink::set_windows(const std::vector<WindowRange>& of_runs) {
  run_of_window_.clear();
  for (size_t run = 0; run < of_runs.size(); ++run)
    for (int w = of_runs[run].first; w < of_runs[run].last; ++w) run_of_window_.push_back(run);
}

void ScatteredGradSink::begin(bool first_of_window) {
  first_ = first_of_window;
  flying_ = -1;  // of an abandoned program
  if (away_) away_->begin();
  std::fill(written_.begin(), written_.end(), char{0});
}

// Trained runs come first in the table, so that a parameter's run is that of the shards.
GradView ScatteredGradSink::open(Context& ctx, int param) {
  require(wants(param), "gradients of trainable parameters only");
  const auto run = static_cast<size_t>(run_of_[static_cast<size_t>(param)]);
  const ShardRun& r = shards_.runs()[run];
  if (!gradients_[run].defined())
    gradients_[run] = ctx.tensor(names_[run], {r.elements}, dtype_, Category::gradients);
  char& written = written_[static_cast<size_t>(param)];
  const bool add = written != 0;
  written = 1;
  const ParamInfo& p = table_[param];
  View view = gradients_[run].view().rows(p.offset - r.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return {view, add};
}

void ScatteredGradSink::scatter(Context& ctx, size_t run) {
  if (!gradients_[run].defined()) return;
  land(ctx);
  const GradView mine =
      away_ ? away_->open(ctx, run, !first_) : GradView{shards_.piece(kept_, run), !first_};
  flight_ = comm_.begin_reduce_scatter(ctx, mine, gradients_[run], &gradients_[run]);
  flying_ = static_cast<int>(run);
  if (comm_.in_turn()) land(ctx);
}

void ScatteredGradSink::land(Context& ctx) {
  if (flying_ < 0) return;
  Comm::arrive(ctx, flight_);
  gradients_[static_cast<size_t>(flying_)].reset();
  if (away_) away_->close(ctx, static_cast<size_t>(flying_));
  flying_ = -1;
}

void ScatteredGradSink::fetch_part(Context& ctx, int part) {
  for (size_t i = 0; away_ && !first_ && part >= 0 && i < gradients_.size(); ++i)
    if (shards_.runs()[i].part == part) away_->fetch(ctx, i);
}

void ScatteredGradSink::part_done(Context& ctx, int part) {
  for (size_t i = 0; i < gradients_.size(); ++i)
    if (shards_.runs()[i].part == part && part >= 0) scatter(ctx, i);
}

void ScatteredGradSink::settle(Context& ctx) {
  for (size_t i = 0; i < gradients_.size(); ++i)
    if (static_cast<int>(i) != flying_) scatter(ctx, i);
  land(ctx);
  if (away_) away_->settle(ctx);
}

GradientWindows::Window ScatteredGradSink::open_window(Context&, int w) {
  const size_t run = run_of_window_[static_cast<size_t>(w)];
  return {shards_.piece(kept_, run), Shards::first(shards_.runs()[run], comm_.rank())};
}

}  // namespace snug
