// OffloadedStateStore: fp32 states that rest in the host arena. An update has them on the device
// window by window, three at a time: one is updated while the next comes and the one before leaves.
//
//   to_device  | w+1 ~~~~> | w+2 ~~~~> |            device memory: 3 windows of every state
//   compute    | w         | w+1       |            traffic a step: every state once each way
//   to_host    | w-1 ~~~~> | w ~~~~>   |
//
// A window is a run of the flat range of trainable parameters; a parameter that does not fit what
// is left of one is cut. So it serves optimizers that treat every element alike, and changes no
// bit.
#pragma once

#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

class OffloadedStateStore final : public StateStore {
 public:
  // Call inside the root program. `window`: elements of one at most, a multiple of 256; 0: about a
  // sixteenth of all, between 64 Ki and 4 Mi elements.
  OffloadedStateStore(Context& ctx, const ParamTable& table, const std::vector<Name>& names,
                      int64_t window = 0);

  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(names_.size()); }
  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override;
  void open(Context& ctx, int w) override;
  void close(Context& ctx, int w) override;
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  void release(Context&, int, const StateSpan&) override {}
  View stored(int k, int64_t first) const override;

 private:
  struct Window {
    size_t first = 0, count = 0;  // of spans_
    int64_t elements = 0;
    std::vector<Tensor> host, device;  // one a state
    Event moved;                       // the last copy that was begun
  };
  void fetch(Context& ctx, Window& w);
  void settle(Context& ctx, Window& w);  // compute waits for the copy that was begun

  std::vector<Name> names_;
  std::vector<StateSpan> spans_;
  std::vector<int64_t> at_;  // of every span: its first element in its window
  std::vector<Window> windows_;
  int open_ = -1;
};

}  // namespace snug
