// DiskStateStore: states that rest in a file (engine/device/tier_file.h). An update has them in memory
// window by window, three at a time: one is updated while the next is read and the one before written.
//
//   disk       | read w+1 | write w-1 | read w+2 | write w |     memory: 3 windows
//   compute    | w                    | w+1                |     traffic of a step: all once each way
//
// A window is one record of the file, of whole blocks: its states one behind the other, each as in
// state_places.h. Parameters and their f32 masters stay in memory. On the place cpu.
#pragma once

#include <vector>

#include "engine/stores/kept_states.h"
#include "engine/stores/state_places.h"
#include "engine/stores/windows.h"

namespace snug {

class DiskStateStore final : public KeptStates {
 public:
  struct Options {
    int64_t window = 0;    // elements of one at most, a multiple of 256; 0: see usual_window()
    bool by_part = false;  // no window has spans of two parts of the table
  };
  // Call inside the root program.
  DiskStateStore(Context& ctx, const ParamTable& table, StateSet set, Options options);

  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override;
  void select(WindowRange range) override;
  void open(Context& ctx, int w) override;
  void close(Context& ctx, int w) override;
  bool writes_back() const override { return true; }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;
  void read_stored(Context& ctx, void* to, int k, int64_t first, bool scales,
                   int64_t n) const override;
  void write_stored(Context& ctx, const void* from, int k, int64_t first, bool scales,
                    int64_t n) override;

 private:
  struct Window : WindowCut {
    AllPlaces places;
    std::vector<int64_t> states;    // where each begins in the record
    int64_t offset = 0, bytes = 0;  // of the record in the file
    Tensor room;
    Event moved;  // the last transfer that was begun
  };
  // What n numbers of a state, or scales, are in the file.
  struct Piece {
    int64_t offset, bytes;
  };
  void fetch(Context& ctx, Window& w);
  void finish(Context& ctx, Window& w);
  const Window& window_of(int64_t first) const;
  View resting(int k, int64_t first, bool scales) const;
  Piece piece(int k, int64_t first, bool scales, int64_t n) const;
  View part(int k, const StateSpan& span) const;  // of the open window, all of state k

  std::vector<Window> windows_;
  Tensor checksums_, room_;
  int open_ = -1;
  size_t begin_ = 0, end_ = 0;  // of the windows that are gone through
};

}  // namespace snug
