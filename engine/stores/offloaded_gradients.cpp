#include "engine/stores/offloaded_gradients.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/kernels/gradient_norm.h"

namespace snug {

OffloadedGradSink::OffloadedGradSink(Context& ctx, const ParamTable& table, const StateStore& store,
                                     DType dtype, bool on_host, bool delayed,
                                     std::optional<Ranks> ranks)
    : table_(table),
      dtype_(dtype),
      on_host_(on_host),
      delayed_(delayed),
      ranks_(ranks),
      ops_(ranks ? NormOps::of_spans : NormOps::of_runs),
      run_of_(run_of_params(table)),
      written_(static_cast<size_t>(table.size()), 0) {
  require(dtype == DType::f32 || dtype == DType::bf16, "gradients in f32 or bf16");
  require(!delayed || (on_host && !pieces()), "all gradients here, and updates by the host");
  expect_gradients_here(ctx, dtype);
  std::vector<int64_t> sizes;
  int64_t elements = 0;
  for (const PartRun& r : trained_runs(table)) {
    Run run{};
    run.name = run_name("gradients", table, r);
    run.first = r.first;
    run.elements = r.elements;
    run.part = r.part;
    run.spans =
        ranks ? std::span<const StateSpan>(ranks->own[runs_.size()]) : spans_of(store.spans(), r);
    if (kept(run)) {
      sizes.push_back(run.elements);
      elements += run.elements;
    }
    if (away(run)) {
      const int64_t sums = gradient_norm_ops(run.spans, ops_);
      if (on_host && !pieces() && sums > 0)
        run.slots = ctx.tensor(Name("gradient_sums"), {sums, step_state_shape()[0]}, DType::u8,
                               Category::state);
    } else {
      run.device = ctx.tensor(run.name, {run.elements}, dtype, Category::gradients);
    }
    runs_.push_back(std::move(run));
  }
  static const Name name("gradients");
  all_ = ctx.host_tensor(name, {elements}, dtype);
  std::vector<Tensor> pieces = ctx.split(all_, sizes), of_late;
  if (delayed_) {
    all_late_ = ctx.host_tensor(Name("late_gradients"), {elements}, dtype);
    of_late = ctx.split(all_late_, sizes);
  }
  size_t next = 0;
  for (Run& run : runs_) {
    if (!kept(run)) continue;
    if (delayed_) run.late = std::move(of_late[next]);
    run.host = std::move(pieces[next++]);
  }

  if (!this->pieces()) make_windows(ctx, store);
}

// The same bytes again, cut where the store's windows begin; what of a run is before its first
// window is a piece of its own, which nobody needs.
void OffloadedGradSink::make_windows(Context& ctx, const StateStore& store) {
  std::vector<int64_t> sizes;
  std::vector<size_t> piece_of;  // by window
  size_t r = 0;
  int64_t end = runs_.front().first;  // as far as it is cut
  const auto cut = [&](int64_t until) {
    if (kept(runs_[r]) && until > end) sizes.push_back(until - end);
    end = std::max(end, until);
  };
  const auto end_of_run = [&] { return runs_[r].first + runs_[r].elements; };
  for (int w = 0; w < store.windows(); ++w) {
    const std::span<const StateSpan> spans = store.window(w);
    require(!spans.empty(), "windows of one span or more");
    const int64_t first = spans.front().offset;
    for (; first >= end_of_run(); ++r) cut(end_of_run());
    require(spans.back().offset + spans.back().elements <= end_of_run(),
            "windows of a store that keep to the parts");
    cut(first);
    StoreWindow window{};
    window.name = all_.view().name;
    window.first = first;
    window.run = static_cast<int>(r);
    windows_.push_back(std::move(window));
    piece_of.push_back(sizes.size());
  }
  for (; r < runs_.size(); ++r) cut(end_of_run());
  std::vector<Tensor> pieces = ctx.split(all_, sizes), of_late;
  if (delayed_) of_late = ctx.split(all_late_, sizes);
  for (size_t w = 0; w < windows_.size(); ++w) {
    StoreWindow& window = windows_[w];
    if (!kept(runs_[static_cast<size_t>(window.run)])) continue;
    if (delayed_) window.late = std::move(of_late[piece_of[w]]);
    window.host = std::move(pieces[piece_of[w]]);
    window.elements = window.host.view().elements();
  }
  for (std::vector<Tensor>* list : {&pieces, &of_late})
    for (Tensor& piece : *list)
      if (piece.defined()) unread_.push_back(std::move(piece));
  if (on_host_ && !delayed_) cut_device(ctx);
}

// What is of no part, from the first element of a window to that of the next.
void OffloadedGradSink::cut_device(Context& ctx) {
  for (size_t r = 0; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    std::vector<StoreWindow*> inside;
    for (StoreWindow& w : windows_)
      if (w.run == static_cast<int>(r)) inside.push_back(&w);
    if (away(run) || inside.empty()) continue;
    std::vector<int64_t> sizes = {inside.front()->first - run.first};
    for (size_t i = 0; i < inside.size(); ++i)
      sizes.push_back((i + 1 < inside.size() ? inside[i + 1]->first : run.first + run.elements) -
                      inside[i]->first);
    const bool before = sizes.front() > 0;
    if (!before) sizes.erase(sizes.begin());
    std::vector<Tensor> pieces = ctx.split(run.device, sizes);
    for (size_t i = 0; i < inside.size(); ++i)
      inside[i]->source = std::move(pieces[i + (before ? 1 : 0)]);
  }
}

void OffloadedGradSink::begin(bool first_of_window, bool last_of_window) {
  sums_ = ranks_ && last_of_window;
  if (first_of_window) std::fill(written_.begin(), written_.end(), char{0});
  leaving_ = -1;
  for (Run& run : runs_) {
    if (first_of_window) run.sent = false;
    if (away(run)) run.device.reset();  // of an abandoned program
  }
  if (pieces()) pieces()->begin();
}

void OffloadedGradSink::fetch(Context& ctx, Piece& piece) {
  snug::fetch(ctx, piece, piece.host, dtype_, Category::gradients);
}

void OffloadedGradSink::fetch_part(Context& ctx, int part) {
  for (Run& run : runs_)
    if (run.part == part && away(run) && run.sent) fetch(ctx, run);
}

GradView OffloadedGradSink::open(Context& ctx, int param) {
  require(wants(param), "gradients of trainable parameters only");
  Run& run = runs_[static_cast<size_t>(run_of_[static_cast<size_t>(param)])];
  if (!run.device.defined()) {
    require(!run.sent, "gradients to be fetched before they are added to");
    run.device = ctx.tensor(run.name, {run.elements}, dtype_, Category::gradients);
  }
  arrive(ctx, run);
  char& written = written_[static_cast<size_t>(param)];
  const bool add = written != 0;
  written = 1;
  const ParamInfo& p = table_[param];
  View view = run.device.view().rows(p.offset - run.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return {view, add};
}

void OffloadedGradSink::part_done(Context& ctx, int part) {
  for (size_t i = 0; i < runs_.size(); ++i) {
    Run& run = runs_[i];
    if (run.part != part || !away(run) || !run.device.defined()) continue;
    arrive(ctx, run);
    if (sums_ && pieces()) {
      sum_piece(ctx, i);
      run.device.reset();
      run.sent = true;  // what is recorded next is of a window that had others before
      continue;
    }
    if (sums_) ranks_->comm.all_reduce_sum(ctx, run.device);
    if (run.slots.defined())
      gradient_norm_slots(ctx, run.device, run.first, run.spans, run.slots, ops_);
    ctx.wait_event(kToHost, ctx.record_event(kCompute));
    ctx.copy_to_host(run.host, run.device);
    run.moved = ctx.record_event(kToHost);
    run.sent = true;
    settle(ctx);  // that of the part before has had this one's backward to leave
    leaving_ = static_cast<int>(i);
  }
}

void OffloadedGradSink::sum_rest(Context& ctx) {
  for (size_t i = 0; sums_ && i < runs_.size(); ++i) {
    if (away(runs_[i])) continue;
    if (pieces())
      sum_piece(ctx, i);
    else
      ranks_->comm.all_reduce_sum(ctx, runs_[i].device);
  }
}

void OffloadedGradSink::sum_piece(Context& ctx, size_t run) {
  ranks_->comm.reduce_scatter_sum(ctx, pieces()->open(ctx, run, false), runs_[run].device);
  pieces()->close(ctx, run);
}

void OffloadedGradSink::settle(Context& ctx) {
  if (leaving_ < 0) return;
  Run& run = runs_[static_cast<size_t>(leaving_)];
  arrive(ctx, run);
  run.device.reset();
  leaving_ = -1;
}

void OffloadedGradSink::norm(Context& ctx, const View& state) {
  gradient_norm_reset(ctx, state);
  for (StoreWindow& w : windows_) {  // of an abandoned program
    w.device.reset();
    w.staged.reset();
  }
  const auto fetch_from = [&](size_t i) {
    while (i < runs_.size() && (!away(runs_[i]) || runs_[i].spans.empty())) ++i;
    if (i < runs_.size() && !runs_[i].device.defined()) fetch(ctx, runs_[i]);
  };
  for (Run& run : runs_)
    if (away(run)) run.device.reset();
  for (size_t i = 0; i < runs_.size(); ++i) {
    Run& run = runs_[i];
    if (run.spans.empty()) continue;
    if (run.slots.defined()) {
      gradient_norm_join(ctx, run.slots, state);
      continue;
    }
    if (away(run)) {
      fetch_from(i);
      fetch_from(i + 1);
      arrive(ctx, run);
    }
    gradient_norm_add(ctx, run.device, run.first, run.spans, state, ops_);
    if (away(run)) run.device.reset();
  }
}

GradientWindows::Window OffloadedGradSink::open_window(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(i < windows_.size(), "a window of the store");
  if (on_host_) {
    for (size_t k = i; k < std::min(i + 2, windows_.size()); ++k) stage(ctx, windows_[k]);
    StoreWindow& open = windows_[i];
    if (delayed_) return {open.late.view(), open.first};
    if (open.host.defined()) return {open.host.view(), open.first};
    ctx.wait_event(kCompute, open.moved);
    return {open.staged.view(), open.first};
  }
  for (size_t k = i; k < std::min(i + 2, windows_.size()); ++k)
    if (windows_[k].host.defined() && !windows_[k].device.defined()) fetch(ctx, windows_[k]);
  StoreWindow& window = windows_[i];
  if (!window.host.defined()) {
    const Run& run = runs_[static_cast<size_t>(window.run)];
    return {run.device.view(), run.first};
  }
  arrive(ctx, window);
  return {window.device.view(), window.first};
}

void OffloadedGradSink::stage(Context& ctx, StoreWindow& w) {
  if (!w.source.defined() || w.staged.defined()) return;
  w.staged = ctx.host_tensor(w.name, w.source.view().shape, dtype_);
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  ctx.copy_to_host(w.staged, w.source);
  w.moved = ctx.record_event(kToHost);
}

void OffloadedGradSink::close_window(Context&, int w) {
  windows_[static_cast<size_t>(w)].staged.reset();
  windows_[static_cast<size_t>(w)].device.reset();
}

void OffloadedGradSink::leave(Context& ctx) {
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  for (Run& run : runs_) {
    if (away(run)) continue;
    ctx.copy_to_host(run.host, run.device);
    run.moved = ctx.record_event(kToHost);
  }
}

void OffloadedGradSink::left(Context& ctx) {
  for (Run& run : runs_)
    if (!away(run)) arrive(ctx, run);
}

void OffloadedGradSink::turn() {
  for (Run& run : runs_) std::swap(run.host, run.late);
  for (StoreWindow& window : windows_) std::swap(window.host, window.late);
}

View OffloadedGradSink::late(int64_t first) const {
  const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const Run& r) {
    return r.first <= first && first < r.first + r.elements;
  });
  require(run != runs_.end(), "an element of the trained range");
  return run->late.view().rows(first - run->first, run->first + run->elements - first);
}

View OffloadedGradSink::stored(int param) const {
  const Run& run = runs_[static_cast<size_t>(run_of_[static_cast<size_t>(param)])];
  const ParamInfo& p = table_[param];
  const View& all = away(run) ? run.host.view() : run.device.view();
  return all.rows(p.offset - run.first, p.elements()).reshaped(p.shape);
}

}  // namespace snug
