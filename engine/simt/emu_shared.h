// Shared memory of an emulated block, and who touched each element last.
//
// A region is cut into cells of one element; dynamic memory into cells of 4 bytes, and of 2 from
// the first access on that needs it, when each half has seen what the whole saw. A cell remembers
// the last write, reads and atomic updates with their block-wide epoch, which a barrier ends, and
// their epoch of the warp, which sync_warp() ends. Two touches of different threads, not both reads
// and not both atomic, are a race unless an epoch ended between them that both belong to. Every
// cell counts as unwritten when a block begins; its bytes are then all ones, a NaN.
#pragma once

#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "engine/simt/emu.h"

namespace snug::simt::emu {

// Who touches, and when.
struct Toucher {
  uint32_t block = 0;       // number of the block, from 1
  uint32_t epoch = 0;       // of the block; never the same in two blocks
  uint32_t warp_epoch = 0;  // of the warp
  int warp = 0, lane = 0;
};

class Region {
 public:
  // Dynamic memory has no name, and granule 4.
  Region(std::string name, int64_t bytes, int granule);

  int64_t bytes() const { return bytes_; }
  void* use(int64_t offset, int64_t bytes, Use use, const Toucher& who,
            const std::source_location& at);

 private:
  struct Touch {
    uint32_t epoch = 0, warp_epoch = 0, lanes = 0;
    int16_t warp = 0;
    Use use = Use::read;
    std::source_location at;
  };
  // The last ones; the second one of another warp than the first.
  struct Pair {
    Touch last[2];
  };
  // What every access looks at lies together.
  struct Cell {
    Touch write;
    Pair reads;
  };

  static bool races(const Touch& earlier, const Toucher& who);
  static void note(Pair& pair, const Touch& now);
  [[noreturn]] void report_race(int64_t cell, const Touch& earlier, const Toucher& who, Use use,
                                const std::source_location& at) const;
  std::string element(int64_t offset) const;
  void halve();
  // Which cell a byte is of; a division takes as long as all the rest of an access.
  int64_t cell_of(int64_t offset) const {
    return shift_ >= 0 ? offset >> shift_ : offset / granule_;
  }

  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{128}); }
  };
  std::string name_;
  int64_t bytes_;
  int granule_, shift_;                   // log2 of the granule; -1: it is no power of two
  uint32_t block_ = 0, first_epoch_ = 0;  // that used it last, and when it did first
  std::unique_ptr<std::byte[], Free> data_;
  std::vector<Cell> cells_;
  std::vector<Pair> atomics_;  // of every cell, if there ever was one
};

}  // namespace snug::simt::emu
