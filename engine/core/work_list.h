// What a graph is on the place emu: launches, copies and fills that were issued while one was being
// captured, with the arguments they had then, to be done in that order as often as wanted.
#pragma once

#include <functional>
#include <vector>

namespace snug {

struct WorkList {
  std::vector<std::function<void()>> work;
  void run() const {
    for (const auto& w : work) w();
  }
};

}  // namespace snug
