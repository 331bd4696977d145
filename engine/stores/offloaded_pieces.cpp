#include "engine/stores/offloaded_pieces.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/kernels/gradient_norm.h"

namespace snug {

OffloadedPieces::OffloadedPieces(Context& ctx, const ParamTable& table, const Shards& shards,
                                 int rank, const std::vector<std::vector<StateSpan>>& own,
                                 std::span<const Cut> windows, Options options)
    : shards_(shards),
      rank_(rank),
      own_(own),
      options_(options),
      all_(ctx.host_tensor(Name("gradients.kept"), {shards.elements()}, options.dtype)) {
  require(options.dtype == DType::f32 || options.dtype == DType::bf16, "gradients in f32 or bf16");
  require(options.on_host || !options.delayed, "updates by the host, to be late");
  for (const ShardRun& r : shards.runs()) {
    Run run{};
    run.name = run_name("gradients.piece", table, r);
    run.first = Shards::first(r, rank);
    run.elements = r.piece;
    const int64_t sums = gradient_norm_ops(own[runs_.size()], NormOps::of_spans);
    if (options.on_host && sums > 0)
      run.slots = ctx.tensor(Name("gradient_sums"), {sums, step_state_shape()[0]}, DType::u8,
                             Category::state);
    runs_.push_back(std::move(run));
  }
  int64_t end = 0;
  for (const Cut& cut : windows) {
    require(cut.first >= end, "windows that go up");
    if (cut.first > end) sizes_.push_back(cut.first - end);
    piece_of_.push_back(sizes_.size());
    sizes_.push_back(cut.elements);
    end = cut.first + cut.elements;
    const ShardRun& r = shards.runs()[shards.run_of_kept(cut.first)];
    require(end <= r.kept + r.piece, "windows of one piece");
    Piece window{};
    window.name = all_.view().name;
    window.first = Shards::first(r, rank) + cut.first - r.kept;
    window.elements = cut.elements;
    windows_.push_back(std::move(window));
  }
  if (end < shards.elements()) sizes_.push_back(shards.elements() - end);
  cut(ctx, all_, &Piece::host);
  if (!options.delayed) return;
  all_late_ = ctx.host_tensor(Name("late_gradients"), {shards.elements()}, options.dtype);
  cut(ctx, all_late_, &Piece::late);
}

// Twice: where runs are, and where windows are.
void OffloadedPieces::cut(Context& ctx, const Tensor& all, Tensor Piece::*to) {
  std::vector<int64_t> of_runs;
  for (const Run& run : runs_) of_runs.push_back(run.elements);
  std::vector<Tensor> pieces = ctx.split(all, of_runs);
  for (size_t i = 0; i < runs_.size(); ++i) runs_[i].*to = std::move(pieces[i]);
  pieces = ctx.split(all, sizes_);
  for (size_t w = 0; w < windows_.size(); ++w) windows_[w].*to = std::move(pieces[piece_of_[w]]);
}

void OffloadedPieces::begin() {
  leaving_ = -1;
  for (Run& run : runs_) run.device.reset();  // of an abandoned program
}

void OffloadedPieces::fetch(Context& ctx, Piece& piece) {
  snug::fetch(ctx, piece, piece.host, options_.dtype, Category::gradients);
}

void OffloadedPieces::fetch(Context& ctx, size_t run) {
  fetch(ctx, runs_[run]);
}

GradView OffloadedPieces::open(Context& ctx, size_t run, bool add) {
  Run& r = runs_[run];
  if (!r.device.defined()) {
    if (add)
      fetch(ctx, r);
    else
      r.device = ctx.tensor(r.name, {r.elements}, options_.dtype, Category::gradients);
  }
  arrive(ctx, r);
  return {r.device, add};
}

void OffloadedPieces::close(Context& ctx, size_t run) {
  Run& r = runs_[run];
  if (r.slots.defined())
    gradient_norm_slots(ctx, r.device, r.first, own_[run], r.slots, NormOps::of_spans);
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  ctx.copy_to_host(r.host, r.device);
  r.moved = ctx.record_event(kToHost);
  settle(ctx);
  leaving_ = static_cast<int>(run);
}

void OffloadedPieces::settle(Context& ctx) {
  if (leaving_ < 0) return;
  Run& run = runs_[static_cast<size_t>(leaving_)];
  arrive(ctx, run);
  run.device.reset();
  leaving_ = -1;
}

void OffloadedPieces::norm(Context& ctx, const View& state) {
  gradient_norm_reset(ctx, state);
  begin();
  for (Piece& w : windows_) w.device.reset();  // of an abandoned program
  for (size_t i = 0; i < runs_.size(); ++i) {
    Run& run = runs_[i];
    if (run.slots.defined()) {
      gradient_norm_join(ctx, run.slots, state);
      continue;
    }
    for (size_t k = i; k < std::min(i + 2, runs_.size()); ++k)
      if (!runs_[k].device.defined()) fetch(ctx, runs_[k]);
    arrive(ctx, run);
    gradient_norm_add(ctx, run.device, run.first, own_[i], state, NormOps::of_spans);
    run.device.reset();
  }
}

GradientWindows::Window OffloadedPieces::open_window(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(i < windows_.size(), "a window of the store");
  Piece& window = windows_[i];
  if (options_.on_host)
    return {(options_.delayed ? window.late : window.host).view(), window.first};
  for (size_t k = i; k < std::min(i + 2, windows_.size()); ++k)
    if (!windows_[k].device.defined()) fetch(ctx, windows_[k]);
  arrive(ctx, window);
  return {window.device.view(), window.first};
}

void OffloadedPieces::close_window(Context&, int w) {
  windows_[static_cast<size_t>(w)].device.reset();
}

void OffloadedPieces::turn() {
  for (Run& run : runs_) std::swap(run.host, run.late);
  for (Piece& window : windows_) std::swap(window.host, window.late);
}

View OffloadedPieces::late(int64_t first) const {
  const size_t i = shards_.run_of(first);
  const int64_t from = shards_.kept(first) - shards_.runs()[i].kept;
  View view = runs_[i].late.view().rows(from, runs_[i].elements - from);
  if (shards_.rank_of(first) != rank_) view.data = nullptr;
  return view;
}

}  // namespace snug
