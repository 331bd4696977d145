#include "engine/stores/state_places.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {

constexpr int64_t kAlign = 64;  // bytes, so that all begin at a cache line

View part(const View& piece, DType dtype, int64_t begin, int64_t elements) {
  View v = piece.rows(begin, elements * size_of(dtype));
  v.dtype = dtype;
  v.shape = {elements};
  return v;
}

}  // namespace

bool lie_flat(const StateSet& set) {
  return !set.form.coded() && set.rows.empty() && set.counts.empty();
}

// Room for whole steps of 256 elements, as the flat range has.
StatePlaces::StatePlaces(std::span<const StateSpan> spans, const StateSet& set, int k) {
  for (const StateSpan& s : spans) {
    const RestForm form = set.names.empty() ? RestForm{} : set.form_of(k, s.param);
    require(!form.coded() || kSpanAlignment % form.block == 0, "blocks that divide 256 elements");
    const int64_t n = set.numbers(k, s.param, s.elements), room = round_up(n, kSpanAlignment);
    const int64_t values = round_up(form.value_bytes(room), kAlign);
    places_.push_back({s.param, s.offset, n, bytes_, bytes_ + values});
    bytes_ += values + round_up(4 * form.scales(room), kAlign);
  }
  // A state that has nothing of all of these is a tensor all the same.
  if (!spans.empty()) bytes_ = std::max(bytes_, kAlign);
}

AllPlaces::AllPlaces(std::span<const StateSpan> spans, const StateSet& set) {
  const int states = set.counts.empty() ? 1 : static_cast<int>(set.names.size());
  for (int k = 0; k < states; ++k) places_.emplace_back(spans, set, k);
}

const StatePlaces::Place& StatePlaces::at(int64_t first) const {
  const auto after = std::upper_bound(places_.begin(), places_.end(), first,
                                      [](int64_t f, const Place& p) { return f < p.first; });
  require(after != places_.begin() && first <= (after - 1)->first + (after - 1)->elements,
          "an element of a span");
  return *(after - 1);
}

View StatePlaces::values(const View& piece, const RestForm& form, int64_t first,
                         int64_t elements) const {
  const Place& p = at(first);
  require(elements <= p.elements - (first - p.first), "elements of one span");
  return part(piece, form.dtype, values_begin(form, first),
              form.value_bytes(elements) / size_of(form.dtype));
}

View StatePlaces::scales(const View& piece, const RestForm& form, int64_t first,
                         int64_t elements) const {
  if (!form.coded()) return {};
  const Place& p = at(first);
  require((first - p.first) % form.block == 0, "a span of whole blocks");
  return part(piece, DType::f32, scales_begin(form, first), form.scales(elements));
}

int64_t StatePlaces::elements_from(int64_t first) const {
  const Place& p = at(first);
  return p.elements - (first - p.first);
}

}  // namespace snug
