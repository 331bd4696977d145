// Windows: runs of the flat range whose states an update has at hand at a time. A parameter that does
// not fit what is left of one is cut, at a multiple of 256 elements and so of blocks of codes; not for
// optimizers that ask for whole ones, whose largest is then the largest window. It changes no bit.
#pragma once

#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

struct WindowCut {
  size_t first = 0, count = 0;  // of the spans
  int64_t begin = 0, end = 0;   // of the flat range
  int part = -1;                // of the table, where windows keep to them
  bool holes = false;           // something between or behind the spans is not trained
};

// About a sixteenth of all elements, between 64 Ki and 4 Mi, or a 2048th where that is more: copies
// of less cost more in waiting than in bytes, and more is memory for nothing.
int64_t usual_window(const ParamTable& table);

// Windows of `window` elements at most, a multiple of 256, and their spans. by_part: none has spans of
// two parts of the table.
std::vector<WindowCut> cut_windows(const ParamTable& table, bool whole, int64_t window,
                                   bool by_part, std::vector<StateSpan>& spans);

}  // namespace snug
