#include "optim/offloaded_states.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {

constexpr int64_t kStep = 256;  // elements; spans begin at multiples of it
// Copies of less cost more in waiting than in bytes; of more, memory for nothing.
constexpr int64_t kLeastWindow = 64 << 10, kMostWindow = 4 << 20;

int64_t usual_window(const std::vector<StateSpan>& spans) {
  int64_t all = 0;
  for (const StateSpan& s : spans) all += round_up(s.elements, kStep);
  return std::clamp(round_up(ceil_div(all, 16), kStep), kLeastWindow, kMostWindow);
}

}  // namespace

OffloadedStateStore::OffloadedStateStore(Context& ctx, const ParamTable& table,
                                         const std::vector<Name>& names, int64_t window)
    : names_(names) {
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  if (window == 0) window = usual_window(whole);
  require(window > 0 && window % kStep == 0, "windows of a multiple of 256 elements");
  for (const StateSpan& s : whole)
    for (int64_t done = 0; done < s.elements;) {
      if (windows_.empty() || windows_.back().elements == window) {
        windows_.emplace_back();
        windows_.back().first = spans_.size();
      }
      Window& w = windows_.back();
      const int64_t n = std::min(s.elements - done, window - w.elements);
      spans_.push_back({s.param, s.group, s.offset + done, n});
      at_.push_back(w.elements);
      ++w.count;
      w.elements += round_up(n, kStep);
      done += n;
    }
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (const Name name : names_)
      windows_[w].host.push_back(ctx.host_tensor(Name(fmt::format("{}.{}", name.view(), w)),
                                                 {windows_[w].elements}, DType::f32));
    windows_[w].device.resize(names_.size());
  }
}

std::span<const StateSpan> OffloadedStateStore::window(int w) const {
  const Window& x = windows_[static_cast<size_t>(w)];
  return std::span(spans_).subspan(x.first, x.count);
}

void OffloadedStateStore::fetch(Context& ctx, Window& w) {
  for (size_t k = 0; k < names_.size(); ++k) {
    const View& host = w.host[k].view();
    w.device[k] = ctx.tensor(host.name, host.shape, host.dtype, Category::optimizer);
  }
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));  // what had these bytes before is done
  for (size_t k = 0; k < names_.size(); ++k) ctx.copy_to_device(w.device[k], w.host[k]);
  w.moved = ctx.record_event(kToDevice);
}

void OffloadedStateStore::settle(Context& ctx, Window& w) {
  if (ctx.current(w.moved)) ctx.wait_event(kCompute, w.moved);
}

void OffloadedStateStore::open(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(open_ < 0 && i < windows_.size(), "one open window");
  open_ = w;
  if (i == 0) fetch(ctx, windows_[0]);
  if (i + 1 < windows_.size()) fetch(ctx, windows_[i + 1]);
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
  if (i > 0) finish(windows_[i - 1]);
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  for (size_t k = 0; k < names_.size(); ++k)
    ctx.copy_to_host(windows_[i].host[k], windows_[i].device[k]);
  windows_[i].moved = ctx.record_event(kToHost);
  if (i + 1 == windows_.size()) finish(windows_[i]);
}

View OffloadedStateStore::acquire(Context&, int k, const StateSpan& span) {
  const auto i = static_cast<size_t>(&span - spans_.data());
  require(open_ >= 0 && i < spans_.size(), "a span of the open window");
  return windows_[static_cast<size_t>(open_)].device[static_cast<size_t>(k)].view().rows(
      at_[i], span.elements);
}

View OffloadedStateStore::stored(int k, int64_t first) const {
  const auto after = std::upper_bound(spans_.begin(), spans_.end(), first,
                                      [](int64_t f, const StateSpan& s) { return f < s.offset; });
  require(after != spans_.begin(), "an element of a span");
  const auto i = static_cast<size_t>(after - spans_.begin()) - 1;
  const StateSpan& s = spans_[i];
  require(first < s.offset + s.elements, "an element of a span");
  const auto w = std::upper_bound(windows_.begin(), windows_.end(), i,
                                  [](size_t x, const Window& y) { return x < y.first; }) -
                 1;
  return w->host[static_cast<size_t>(k)].view().rows(at_[i] + first - s.offset,
                                                     s.offset + s.elements - first);
}

}  // namespace snug
