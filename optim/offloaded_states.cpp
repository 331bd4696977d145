#include "optim/offloaded_states.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/kernels/kernels.h"

namespace snug {
namespace {

constexpr int64_t kStep = 256;  // elements; spans begin at multiples of it

}  // namespace

int64_t OffloadedStateStore::usual_window(const ParamTable& table) {
  int64_t all = 0;
  for (const StateSpan& s : whole_parameter_spans(table)) all += s.elements;
  // Of the largest models at most 2048 windows: each is copies, ops and tensors of the plan.
  const int64_t most = std::max<int64_t>(4 << 20, round_up(ceil_div(all, 2048), kStep));
  return std::clamp<int64_t>(round_up(ceil_div(all, 16), kStep), 64 << 10, most);
}

OffloadedStateStore::OffloadedStateStore(Context& ctx, const ParamTable& table,
                                         const std::vector<Name>& names, Options options)
    : states_(static_cast<int>(names.size())) {
  const int64_t window = options.window == 0 ? usual_window(table) : options.window;
  require(window > 0 && window % kStep == 0, "windows of a multiple of 256 elements");
  int part = -1;  // of the span before
  for (const StateSpan& s : whole_parameter_spans(table)) {
    const bool cut = options.by_part && table[s.param].part != part;
    part = table[s.param].part;
    for (int64_t done = 0; done < s.elements;) {
      const int64_t begin = s.offset + done;
      // A window bridges what is not trained only where that is little.
      if (windows_.empty() || (cut && done == 0) || begin - windows_.back().begin >= window ||
          begin - windows_.back().end > window / 16) {
        windows_.emplace_back();
        windows_.back().first = spans_.size();
        windows_.back().begin = begin;
      }
      Window& w = windows_.back();
      const int64_t n = std::min(s.elements - done, w.begin + window - begin);
      spans_.push_back({s.param, s.group, begin, n});
      ++w.count;
      w.end = begin + round_up(n, kStep);
      done += n;
    }
  }

  std::vector<int64_t> sizes;
  int64_t elements = 0;
  for (const Window& w : windows_) {
    sizes.push_back(w.end - w.begin);
    elements += sizes.back();
  }
  for (const Name name : names) {
    all_.push_back(ctx.host_tensor(name, {elements}, DType::f32));
    std::vector<Tensor> pieces = ctx.split(all_.back(), sizes);
    for (size_t w = 0; w < windows_.size(); ++w) windows_[w].host.push_back(std::move(pieces[w]));
  }
  if (options.master) make_master(ctx, table.flat_elements(), window);
  for (Window& w : windows_) w.device.resize(w.host.size());
  select({});
}

// The whole flat range: what no window has is never updated, but rounded once like all else.
void OffloadedStateStore::make_master(Context& ctx, int64_t elements, int64_t window) {
  static const Name name("master");
  master_ = ctx.host_tensor(name, {elements}, DType::f32);
  std::vector<int64_t> sizes;
  std::vector<Window*> owner;  // null: none has it
  int64_t end = 0;
  const auto fill = [&](int64_t until) {
    for (; end < until; end += sizes.back()) {
      sizes.push_back(std::min(window, until - end));
      owner.push_back(nullptr);
      gaps_.emplace_back();
      gaps_.back().begin = end;
      gaps_.back().end = end + sizes.back();
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

std::span<const StateSpan> OffloadedStateStore::window(int w) const {
  const Window& x = windows_[static_cast<size_t>(w)];
  return std::span(spans_).subspan(x.first, x.count);
}

void OffloadedStateStore::fetch(Context& ctx, Window& w, size_t from) {
  for (size_t k = from; k < w.host.size(); ++k) {
    const View& host = w.host[k].view();
    const auto category = static_cast<int>(k) < states_ ? Category::optimizer : Category::master;
    w.device[k] = ctx.tensor(host.name, host.shape, host.dtype, category);
  }
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));  // what had these bytes before is done
  for (size_t k = from; k < w.host.size(); ++k) ctx.copy_to_device(w.device[k], w.host[k]);
  w.moved = ctx.record_event(kToDevice);
}

void OffloadedStateStore::settle(Context& ctx, const Window& w) {
  ctx.wait_event(kCompute, w.moved);
}

void OffloadedStateStore::select(WindowRange range) {
  begin_ = static_cast<size_t>(range.first);
  end_ = range.last < 0 ? windows_.size() : static_cast<size_t>(range.last);
}

void OffloadedStateStore::open(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(begin_ <= i && i < end_ && end_ <= windows_.size(), "a window of those selected");
  open_ = w;
  if (i == begin_) fetch(ctx, windows_[i], 0);
  if (i + 1 < end_) fetch(ctx, windows_[i + 1], 0);
  settle(ctx, windows_[i]);
}

void OffloadedStateStore::close(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(open_ == w, "the open window to be closed");
  open_ = -1;
  const auto finish = [&](Window& x) {
    settle(ctx, x);
    for (Tensor& t : x.device) t.reset();
  };
  if (i > begin_) finish(windows_[i - 1]);
  Window& x = windows_[i];
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  for (size_t k = 0; k < x.host.size(); ++k) ctx.copy_to_host(x.host[k], x.device[k]);
  x.moved = ctx.record_event(kToHost);
  if (i + 1 == end_) finish(x);
}

View OffloadedStateStore::place(int k, const StateSpan& span) const {
  require(open_ >= 0, "an open window");
  const Window& w = windows_[static_cast<size_t>(open_)];
  require(span.offset >= w.begin && span.offset + span.elements <= w.end,
          "a span of the open window");
  return w.device[static_cast<size_t>(k)].view().rows(span.offset - w.begin, span.elements);
}

View OffloadedStateStore::acquire(Context&, int k, const StateSpan& span) {
  return place(k, span);
}

View OffloadedStateStore::acquire_master(Context&, const StateSpan& span) {
  return master_.defined() ? place(states_, span) : View{};
}

View OffloadedStateStore::stored(int k, int64_t first) const {
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), first,
                                      [](int64_t f, const Window& w) { return f < w.begin; });
  require(after != windows_.begin() && first < (after - 1)->end, "an element of a span");
  const Window& w = *(after - 1);
  return w.host[static_cast<size_t>(k)].view().rows(first - w.begin, w.end - first);
}

// Piece by piece, one on its way while the one before is rounded.
void OffloadedStateStore::round_master(Context& ctx, const View& weights) {
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
    cast(ctx, weights.rows(x.begin, x.end - x.begin), x.device[k]);
    x.device[k].reset();
  }
}

}  // namespace snug
