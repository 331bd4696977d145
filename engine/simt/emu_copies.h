// Copies to shared memory that one emulated thread has begun and not yet waited for.
#pragma once

#include <algorithm>
#include <cstring>
#include <source_location>
#include <vector>

#include "engine/simt/emu.h"

namespace snug::simt::emu {

class Copies {
 public:
  void begin(Region& region, int64_t offset, int bytes, const void* from,
             const std::source_location& at) {
    Copy copy{&region, offset, bytes, group_, {}, at};
    if (from) std::memcpy(copy.values, from, static_cast<size_t>(bytes));
    copies_.push_back(copy);
  }
  void end() { ++group_; }
  void wait(int groups_left) {
    const auto landed = std::stable_partition(copies_.begin(), copies_.end(), [&](const Copy& c) {
      return c.group >= group_ - groups_left;
    });
    for (auto c = landed; c != copies_.end(); ++c)
      std::memcpy(use_shared(*c->region, c->offset, c->bytes, Use::write, c->at), c->values,
                  static_cast<size_t>(c->bytes));
    copies_.erase(landed, copies_.end());
  }
  // At the end of the thread.
  void check_none() const {
    if (!copies_.empty())
      fault("copies to shared memory to be waited for before the kernel ends",
            "one that began at " + to_string(copies_[0].at),
            "wait_copies<0>() behind the last one");
  }

 private:
  struct Copy {
    Region* region;
    int64_t offset;
    int bytes, group;
    std::byte values[16];
    std::source_location at;
  };
  std::vector<Copy> copies_;
  int group_ = 0;  // that the next one joins
};

}  // namespace snug::simt::emu
