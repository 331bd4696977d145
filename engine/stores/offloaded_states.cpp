#include "engine/stores/offloaded_states.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/kernels/kernels.h"
#include "engine/stores/part_runs.h"

namespace snug {
OffloadedStateStore::OffloadedStateStore(Context& ctx, const ParamTable& table, StateSet set,
                                         Options options)
    : KeptStates(std::move(set)),
      states_(static_cast<int>(set_.names.size())),
      weights_(options.weights),
      on_host_(options.on_host),
      stages_(options.on_host && options.master && options.compute != DType::f32),
      delayed_(options.delayed),
      compute_(options.compute) {
  require(!delayed_ || (on_host_ && !weights_), "a host that updates weights of the device");
  require(!weights_ || options.by_part, "weights that rest with the parameters, part by part");
  const int64_t window = options.window == 0 ? usual_window(table) : options.window;
  for (const WindowCut& cut : cut_windows(table, set_.whole, window, options.by_part, spans_)) {
    Window& w = windows_.emplace_back();
    static_cast<WindowCut&>(w) = cut;
    w.holes = w.holes || (options.holes && options.holes(cut));
  }

  const bool flat = lie_flat(set_) && !options.room;
  for (Window& w : windows_)
    if (!lie_flat(set_)) w.places = AllPlaces(std::span(spans_).subspan(w.first, w.count), set_);
  std::vector<int64_t> sizes(windows_.size());  // elements, or bytes of what does not lie flat
  for (int k = 0; k < states_; ++k) {
    int64_t extent = 0;
    for (size_t i = 0; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      sizes[i] = options.room ? options.room(w) : flat ? w.end - w.begin : w.places.of(k).bytes();
      extent += sizes[i];
    }
    all_.push_back(ctx.host_tensor(set_.names[static_cast<size_t>(k)], {extent},
                                   flat ? set_.form.dtype : DType::u8));
    std::vector<Tensor> pieces = ctx.split(all_.back(), sizes);
    for (size_t w = 0; w < windows_.size(); ++w) windows_[w].host.push_back(std::move(pieces[w]));
  }
  if (options.master || weights_ || on_host_)
    make_master(ctx, table, window, options.master ? DType::f32 : weights_ ? *weights_ : compute_);
  if (options.master && weights_ && *weights_ != DType::f32) make_weights(ctx);
  if (delayed_ && stages_) {
    to_send_ = ctx.host_tensor(Name("weights"), {table.trained_elements()}, compute_);
    const std::vector<Window*> all = pieces();
    std::vector<int64_t> elements;
    for (const Window* w : all) elements.push_back(w->end - w->begin);
    std::vector<Tensor> cut = ctx.split(to_send_, elements);
    for (size_t i = 0; i < all.size(); ++i) all[i]->staged = std::move(cut[i]);
  }
  for (Window& w : windows_) w.device.resize(w.host.size());
  select({});
}

// The whole trained range: what no window has is never updated, but rounded once like all else.
void OffloadedStateStore::make_master(Context& ctx, const ParamTable& table, int64_t window,
                                      DType dtype) {
  static const Name name("master");
  const int64_t elements = table.trained_elements();
  master_ = ctx.host_tensor(name, {elements}, dtype);
  std::vector<int64_t> sizes;
  std::vector<Window*> owner;  // null: none has it
  int64_t end = 0;
  const std::vector<PartRun> runs = trained_runs(table);
  size_t run = 0;  // the one that has `end`
  const auto fill = [&](int64_t until) {
    for (; end < until; end += sizes.back()) {
      while (end >= runs[run].first + runs[run].elements) ++run;
      // Where weights rest here a gap keeps to a part, as windows do.
      const int64_t most = weights_ ? std::min(until, runs[run].first + runs[run].elements) : until;
      sizes.push_back(std::min(window, most - end));
      owner.push_back(nullptr);
      gaps_.emplace_back();
      gaps_.back().begin = end;
      gaps_.back().end = end + sizes.back();
      gaps_.back().part = runs[run].part;
    }
  };
  for (Window& w : windows_) {
    fill(w.begin);
    sizes.push_back(w.end - w.begin);
    owner.push_back(&w);
    end = w.end;
  }
  fill(elements);
  std::vector<Tensor> pieces = ctx.split(master_, sizes);
  size_t gap = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Window& w = owner[i] ? *owner[i] : gaps_[gap++];
    w.host.resize(static_cast<size_t>(states_) + 1);
    w.host.back() = std::move(pieces[i]);
  }
  for (Window& g : gaps_) g.device.resize(g.host.size());
}

std::vector<OffloadedStateStore::Window*> OffloadedStateStore::pieces() {
  std::vector<Window*> all;
  for (std::vector<Window>* list : {&windows_, &gaps_})
    for (Window& w : *list) all.push_back(&w);
  std::sort(all.begin(), all.end(),
            [](const Window* a, const Window* b) { return a->begin < b->begin; });
  return all;
}

// Of the parts alone, in the order of the flat range.
void OffloadedStateStore::make_weights(Context& ctx) {
  static const Name name("weights");
  std::vector<Window*> all = pieces();
  std::erase_if(all, [](const Window* w) { return w->part < 0; });
  std::vector<int64_t> sizes;
  int64_t elements = 0;
  for (const Window* w : all) {
    sizes.push_back(w->end - w->begin);
    elements += sizes.back();
  }
  rounded_ = ctx.host_tensor(name, {elements}, *weights_);
  std::vector<Tensor> pieces = ctx.split(rounded_, sizes);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->host.push_back(std::move(pieces[i]));
    all[i]->device.resize(all[i]->host.size());
  }
}

std::vector<Tensor*> OffloadedStateStore::weight_pieces(int64_t begin, int64_t elements) {
  std::vector<Tensor*> host;
  int64_t end = begin;
  for (Window* w : pieces()) {
    if (w->end <= begin || w->begin >= begin + elements) continue;
    require(w->begin == end, "pieces of whole runs of a part");
    end = w->end;
    host.push_back(&w->host.back());
  }
  require(end == begin + elements, "pieces of whole runs of a part");
  return host;
}

std::span<const StateSpan> OffloadedStateStore::window(int w) const {
  const Window& x = windows_[static_cast<size_t>(w)];
  return std::span(spans_).subspan(x.first, x.count);
}

void OffloadedStateStore::fetch(Context& ctx, Window& w, size_t from) {
  for (size_t k = from; k < w.host.size(); ++k) {
    const View& host = w.host[k].view();
    const auto category = static_cast<int>(k) < states_    ? Category::optimizer
                          : static_cast<int>(k) == states_ ? Category::master
                                                           : Category::weights;
    w.device[k] = ctx.tensor(host.name, host.shape, host.dtype, category);
  }
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));  // what had these bytes before is done
  const size_t read = static_cast<size_t>(states_) + (w.holes ? 2 : 1);
  for (size_t k = from; k < std::min(read, w.host.size()); ++k)
    ctx.copy_to_device(w.device[k], w.host[k]);
  w.moved = ctx.record_event(kToDevice);
}

void OffloadedStateStore::send(Context& ctx, Window& w, size_t from) {
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  for (size_t k = from; k < w.host.size(); ++k) ctx.copy_to_host(w.host[k], w.device[k]);
  w.moved = ctx.record_event(kToHost);
}

void OffloadedStateStore::settle(Context& ctx, const Window& w) {
  ctx.wait_event(kCompute, w.moved);
}

void OffloadedStateStore::finish(Context& ctx, Window& w) {
  settle(ctx, w);
  for (Tensor& t : w.device) t.reset();
}

void OffloadedStateStore::select(WindowRange range) {
  begin_ = static_cast<size_t>(range.first);
  end_ = range.last < 0 ? windows_.size() : static_cast<size_t>(range.last);
}

void OffloadedStateStore::open(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(begin_ <= i && i < end_ && end_ <= windows_.size(), "a window of those selected");
  open_ = w;
  if (on_host_) return stage(ctx, windows_[i]);
  if (i == begin_) fetch(ctx, windows_[i], 0);
  if (i + 1 < end_) fetch(ctx, windows_[i + 1], 0);
  settle(ctx, windows_[i]);
}

void OffloadedStateStore::close(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(open_ == w, "the open window to be closed");
  open_ = -1;
  if (delayed_) return;
  if (on_host_) {
    if (i > begin_) landed(ctx, windows_[i - 1]);
    land(ctx, windows_[i]);
    if (i + 1 == end_) landed(ctx, windows_[i]);
    return;
  }
  if (i > begin_) finish(ctx, windows_[i - 1]);
  send(ctx, windows_[i], 0);
  if (i + 1 == end_) finish(ctx, windows_[i]);
}

const OffloadedStateStore::Window& OffloadedStateStore::opened(const StateSpan& span) const {
  require(open_ >= 0, "an open window");
  const Window& w = windows_[static_cast<size_t>(open_)];
  require(span.offset >= w.begin && span.offset + span.elements <= w.end,
          "a span of the open window");
  return w;
}

const View& OffloadedStateStore::held(const Window& w, int k) const {
  return (on_host_ ? w.host : w.device)[static_cast<size_t>(k)].view();
}

View OffloadedStateStore::place(int k, const StateSpan& span) const {
  const Window& w = opened(span);
  return held(w, k).rows(span.offset - w.begin, span.elements);
}

View OffloadedStateStore::acquire(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return place(k, span);
  const Window& w = opened(span);
  return w.places.of(k).values(held(w, k), form(k, span), span.offset, numbers(k, span));
}

View OffloadedStateStore::acquire_scales(Context&, int k, const StateSpan& span) {
  if (lie_flat(set_)) return {};
  const Window& w = opened(span);
  return w.places.of(k).scales(held(w, k), form(k, span), span.offset, span.elements);
}

View OffloadedStateStore::acquire_master(Context&, const StateSpan& span) {
  return master_.defined() ? place(states_, span) : View{};
}

View OffloadedStateStore::acquire_weights(Context&, const StateSpan& span) {
  const Window& w = windows_[static_cast<size_t>(open_)];
  if (w.staged.defined()) return w.staged.view().rows(span.offset - w.begin, span.elements);
  if (!weights_) return {};
  if (on_host_ && w.part < 0) return {};
  if (w.part < 0) return on_device_(span.offset, span.elements);
  return rounds_weights() ? place(states_ + 1, span) : View{};
}

const OffloadedStateStore::Window& OffloadedStateStore::window_of(int64_t first) const {
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), first,
                                      [](int64_t f, const Window& w) { return f < w.begin; });
  require(after != windows_.begin() && first < (after - 1)->end, "an element of a span");
  return *(after - 1);
}

OffloadedStateStore::Rested OffloadedStateStore::rested_room(int k, int64_t first) const {
  const Window& w = window_of(first);
  return {static_cast<size_t>(&w - windows_.data()), w.host[static_cast<size_t>(k)].view()};
}

View OffloadedStateStore::stored(int k, int64_t first) const {
  if (is_late(k)) return late_(first);
  const Window& w = window_of(first);
  const View& all = w.host[static_cast<size_t>(k)].view();
  if (lie_flat(set_)) return all.rows(first - w.begin, w.end - first);
  const StatePlaces& places = w.places.of(k);
  return places.values(all, set_.form_of(k, places.param_at(first)), first,
                       places.elements_from(first));
}

View OffloadedStateStore::stored_scales(int k, int64_t first) const {
  if (lie_flat(set_) || is_late(k)) return {};
  const Window& w = window_of(first);
  const StatePlaces& places = w.places.of(k);
  return places.scales(w.host[static_cast<size_t>(k)].view(),
                       set_.form_of(k, places.param_at(first)), first, places.elements_from(first));
}

void OffloadedStateStore::set_device_weights(Context& ctx, const Tensor& weights, int64_t first) {
  require(on_host_ && weights.view().dtype == compute_, "weights that the host writes");
  const int64_t end = first + weights.view().elements();
  std::vector<Window*> inside;
  std::vector<int64_t> sizes;
  int64_t at = first;
  for (Window* w : pieces()) {
    if (w->begin < first || w->begin >= end) continue;
    require(w->begin == at && w->end <= end, "whole runs of windows");
    inside.push_back(w);
    sizes.push_back(w->end - w->begin);
    at = w->end;
  }
  if (at < end) sizes.push_back(end - at);
  std::vector<Tensor> cut = ctx.split(weights, sizes);
  for (size_t i = 0; i < inside.size(); ++i) inside[i]->weights = std::move(cut[i]);
}

void OffloadedStateStore::stage(Context& ctx, Window& w) {
  static const Name name("staged_weights");
  if (delayed_) return;
  w.staged.reset();  // of an abandoned program
  if (!stages_ || !w.weights.defined()) return;
  w.staged = ctx.host_tensor(name, {w.end - w.begin}, compute_);
  if (!w.holes) return;
  const Context::OnHost host(ctx);
  cast(ctx, w.staged, w.host[static_cast<size_t>(states_)]);
}

void OffloadedStateStore::land(Context& ctx, Window& w) {
  if (!w.weights.defined()) return;
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));
  ctx.copy_to_device(w.weights,
                     w.staged.defined() ? w.staged : w.host[static_cast<size_t>(states_)]);
  w.moved = ctx.record_event(kToDevice);
}

void OffloadedStateStore::landed(Context& ctx, Window& w) {
  if (!w.weights.defined()) return;
  settle(ctx, w);
  if (!delayed_) w.staged.reset();
}

void OffloadedStateStore::send_weights(Context& ctx) {
  const std::vector<Window*> all = pieces();
  for (Window* w : all) land(ctx, *w);
  for (Window* w : all) landed(ctx, *w);
}

void OffloadedStateStore::load_weights(Context& ctx) {
  Window* before = nullptr;
  for (Window* w : pieces()) {
    const bool here = w->part >= 0 && rounds_weights();
    if (here || (stages_ && w->weights.defined())) {
      static const Name name("staged_weights");
      if (!delayed_) w->staged.reset();
      if (!here && !delayed_) w->staged = ctx.host_tensor(name, {w->end - w->begin}, compute_);
      const Context::OnHost host(ctx);
      cast(ctx, here ? w->host.back() : w->staged, w->host[static_cast<size_t>(states_)]);
    }
    land(ctx, *w);
    if (before) landed(ctx, *before);
    before = w;
  }
  if (before) landed(ctx, *before);
}

// Piece by piece, one on its way while the one before is rounded.
void OffloadedStateStore::round_master(Context& ctx, const View& weights) {
  round_master(ctx, [&](int64_t first, int64_t n) { return weights.rows(first, n); });
}

void OffloadedStateStore::round_master(Context& ctx, const OnDevice& weights) {
  const auto k = static_cast<size_t>(states_);
  const size_t pieces = windows_.size() + gaps_.size();
  const auto piece = [&](size_t i) -> Window& {
    return i < windows_.size() ? windows_[i] : gaps_[i - windows_.size()];
  };
  for (size_t i = 0; i < pieces; ++i) {
    if (i == 0) fetch(ctx, piece(0), k);
    if (i + 1 < pieces) fetch(ctx, piece(i + 1), k);
    Window& x = piece(i);
    settle(ctx, x);
    cast(ctx, weights(x.begin, x.end - x.begin), x.device[k]);
    x.device[k].reset();
  }
}

void OffloadedStateStore::round_weights(Context& ctx) {
  const auto k = static_cast<size_t>(states_);
  const size_t pieces = windows_.size() + gaps_.size();
  const auto piece = [&](size_t i) -> Window& {
    return i < windows_.size() ? windows_[i] : gaps_[i - windows_.size()];
  };
  Window* sent = nullptr;
  for (size_t i = 0; i < pieces; ++i) {
    if (i == 0) fetch(ctx, piece(0), k);
    if (i + 1 < pieces) fetch(ctx, piece(i + 1), k);
    Window& x = piece(i);
    settle(ctx, x);
    cast(ctx, x.part < 0 ? on_device_(x.begin, x.end - x.begin) : x.device.back().view(),
         x.device[k]);
    x.device[k].reset();
    if (sent) finish(ctx, *sent);
    sent = x.part < 0 ? nullptr : &x;
    if (sent) send(ctx, x, k + 1);
  }
  if (sent) finish(ctx, *sent);
}

}  // namespace snug
