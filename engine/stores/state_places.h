// Where the states of some spans lie in one piece of bytes, when not all of them rest alike: span
// behind span, and of each its values and then its scales. The same places for every state, but where
// states have numbers of a parameter that differ (StateSet::counts).
//
//   | wte f32 ............ | c_attn codes .... | scales | c_fc codes ... | scales | ln_f f32 |
#pragma once

#include <span>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

class StatePlaces {
 public:
  StatePlaces() = default;
  // `spans` go up in the flat range.
  StatePlaces(std::span<const StateSpan> spans, const StateSet& set, int k = 0);

  int64_t bytes() const { return bytes_; }
  // Of `piece`, u8: what a span of these, or part of one, has there. It begins a block.
  View values(const View& piece, const RestForm& form, int64_t first, int64_t elements) const;
  View scales(const View& piece, const RestForm& form, int64_t first, int64_t elements) const;
  // The bytes of a piece that they are: where they begin, and how many.
  int64_t values_begin(const RestForm& form, int64_t first) const {
    return at(first).begin + (first - at(first).first) * form.bits / 8;
  }
  int64_t scales_begin(const RestForm& form, int64_t first) const {
    return at(first).scales + (first - at(first).first) / form.block * 4;
  }
  // From `first` on to the end of its span.
  int64_t elements_from(int64_t first) const;
  int param_at(int64_t first) const { return at(first).param; }
  // Where the values of a span begin.
  int64_t offset_of(int64_t first) const { return at(first).begin; }

 private:
  struct Place {
    int param;
    int64_t first, elements;  // of the flat range
    int64_t begin, scales;    // in bytes
  };
  const Place& at(int64_t first) const;

  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

// Whether all parameters have states of one dtype without scales, which lie as the parameters do.
bool lie_flat(const StateSet& set);

// The places of every state; one for all where they are the same.
class AllPlaces {
 public:
  AllPlaces() = default;
  AllPlaces(std::span<const StateSpan> spans, const StateSet& set);
  const StatePlaces& of(int k) const {
    return places_[places_.size() == 1 ? 0 : static_cast<size_t>(k)];
  }

 private:
  std::vector<StatePlaces> places_;
};

}  // namespace snug
