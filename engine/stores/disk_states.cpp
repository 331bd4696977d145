#include "engine/stores/disk_states.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/tier_file.h"

namespace snug {

DiskStateStore::DiskStateStore(Context& ctx, const ParamTable& table, StateSet set, Options options)
    : KeptStates(std::move(set)) {
  const int64_t window = options.window == 0 ? usual_window(table) : options.window;
  int64_t all = 0;
  for (const WindowCut& cut : cut_windows(table, set_.whole, window, options.by_part, spans_)) {
    Window& w = windows_.emplace_back();
    static_cast<WindowCut&>(w) = cut;
    w.places = AllPlaces(std::span(spans_).subspan(w.first, w.count), set_);
    for (int k = 0; k < states(); ++k) {
      w.states.push_back(w.bytes);
      w.bytes += w.places.of(k).bytes();
    }
    w.bytes = round_up(w.bytes, TierFile::kBlock);
    w.offset = ctx.place_on_disk(w.bytes);
    all += w.bytes;
  }
  require(all > 0, "an optimizer with states, to rest on disk");
  checksums_ =
      ctx.tensor(Name("disk.checksums"), {all / TierFile::kBlock}, DType::i32, Category::optimizer);
  room_ = ctx.tensor(Name("disk.room"), {Context::disk_room(TierFile::kRoomBytes)}, DType::u8,
                     Category::optimizer);
  if (!ctx.planning()) {
    const View room = Context::aligned_for_disk(room_, TierFile::kRoomBytes);
    ctx.disk()->use(static_cast<uint32_t*>(checksums_.view().data),
                    static_cast<std::byte*>(room.data));
  }
  select({});
}

std::span<const StateSpan> DiskStateStore::window(int w) const {
  const Window& x = windows_[static_cast<size_t>(w)];
  return std::span(spans_).subspan(x.first, x.count);
}

void DiskStateStore::select(WindowRange range) {
  begin_ = static_cast<size_t>(range.first);
  end_ = range.last < 0 ? windows_.size() : static_cast<size_t>(range.last);
}

void DiskStateStore::fetch(Context& ctx, Window& w) {
  static const Name name("disk.window");
  w.room = ctx.tensor(name, {Context::disk_room(w.bytes)}, DType::u8, Category::optimizer);
  ctx.wait_event(kToHost, ctx.record_event(kCompute));  // what had these bytes before is done
  ctx.read_disk(w.room, w.offset, w.bytes);
  w.moved = ctx.record_event(kToHost);
}

void DiskStateStore::finish(Context& ctx, Window& w) {
  ctx.wait_event(kCompute, w.moved);
  w.room.reset();
}

void DiskStateStore::open(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(begin_ <= i && i < end_ && end_ <= windows_.size(), "a window of those selected");
  open_ = w;
  if (i == begin_) fetch(ctx, windows_[i]);
  if (i + 1 < end_) fetch(ctx, windows_[i + 1]);
  ctx.wait_event(kCompute, windows_[i].moved);
}

void DiskStateStore::close(Context& ctx, int w) {
  const auto i = static_cast<size_t>(w);
  require(open_ == w, "the open window to be closed");
  open_ = -1;
  if (i > begin_) finish(ctx, windows_[i - 1]);
  Window& x = windows_[i];
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  ctx.write_disk(x.room, x.offset, x.bytes);
  x.moved = ctx.record_event(kToHost);
  if (i + 1 == end_) finish(ctx, x);
}

View DiskStateStore::part(int k, const StateSpan& span) const {
  require(open_ >= 0, "an open window");
  const Window& w = windows_[static_cast<size_t>(open_)];
  require(span.offset >= w.begin && span.offset + span.elements <= w.end,
          "a span of the open window");
  return Context::aligned_for_disk(w.room, w.bytes)
      .rows(w.states[static_cast<size_t>(k)], w.places.of(k).bytes());
}

View DiskStateStore::acquire(Context&, int k, const StateSpan& span) {
  const View all = part(k, span);
  return windows_[static_cast<size_t>(open_)].places.of(k).values(all, form(k, span), span.offset,
                                                                  numbers(k, span));
}

View DiskStateStore::acquire_scales(Context&, int k, const StateSpan& span) {
  const View all = part(k, span);
  return windows_[static_cast<size_t>(open_)].places.of(k).scales(all, form(k, span), span.offset,
                                                                  span.elements);
}

const DiskStateStore::Window& DiskStateStore::window_of(int64_t first) const {
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), first,
                                      [](int64_t f, const Window& w) { return f < w.begin; });
  require(after != windows_.begin() && first < (after - 1)->end, "an element of a span");
  return *(after - 1);
}

View DiskStateStore::resting(int k, int64_t first, bool scales) const {
  const Window& w = window_of(first);
  const StatePlaces& places = w.places.of(k);
  const RestForm form = set_.form_of(k, places.param_at(first));
  if (scales && !form.coded()) return {};
  View v;  // on disk: shape and dtype alone
  v.name = set_.names[static_cast<size_t>(k)];
  const int64_t n = places.elements_from(first);
  v.dtype = scales ? DType::f32 : form.dtype;
  v.shape = {scales ? form.scales(n) : form.value_bytes(n) / size_of(form.dtype)};
  return v;
}

View DiskStateStore::stored(int k, int64_t first) const {
  return resting(k, first, false);
}

View DiskStateStore::stored_scales(int k, int64_t first) const {
  return resting(k, first, true);
}

DiskStateStore::Piece DiskStateStore::piece(int k, int64_t first, bool scales, int64_t n) const {
  const View all = resting(k, first, scales);
  require(n <= all.elements(), "numbers of one span");
  const Window& w = window_of(first);
  const StatePlaces& places = w.places.of(k);
  const RestForm form = set_.form_of(k, places.param_at(first));
  const int64_t begin =
      scales ? places.scales_begin(form, first) : places.values_begin(form, first);
  return {w.offset + w.states[static_cast<size_t>(k)] + begin, n * size_of(all.dtype)};
}

void DiskStateStore::read_stored(Context& ctx, void* to, int k, int64_t first, bool scales,
                                 int64_t n) const {
  const Piece p = piece(k, first, scales, n);
  ctx.disk()->read_part(p.offset, to, p.bytes);
}

void DiskStateStore::write_stored(Context& ctx, const void* from, int k, int64_t first, bool scales,
                                  int64_t n) {
  const Piece p = piece(k, first, scales, n);
  ctx.disk()->write_part(p.offset, from, p.bytes);
}

}  // namespace snug
