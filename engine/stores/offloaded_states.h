// OffloadedStateStore: states, and the fp32 parameters of a 16-bit model, that rest in the host
// arena. An update has them on the device window by window, three at a time: one is updated
// while the next comes and the one before leaves.
//
//   to_device  | w+1 ~~~~> | w+2 ~~~~> |            device memory: 3 windows of each
//   compute    | w         | w+1       |            traffic of a step: all of them once each way
//   to_host    | w-1 ~~~~> | w ~~~~>   |
//
// A window is a run of the flat range; a parameter that does not fit what is left of one is cut, at a
// multiple of 256 elements and so of blocks of codes; not for optimizers that ask for whole ones,
// whose largest is then the largest window. It changes no bit.
//
// The weights that layers read may rest here too, those of the parts of the table (blocks), beside
// an f32 master or in its place: those beside it go to the host with the window that has updated
// them. Layers get them through a StreamedParamStore; all other weights are on the device, with it.
//
// With Options::on_host the host updates them, by its own cores (Ren et al., "ZeRO-Offload:
// Democratizing Billion-Scale Model Training", 2021): parameters and states never leave it, and the
// weights that layers read go to the device behind each window, while the next is updated. Those in
// 16 bits beside a master are rounded to a window's room with the host first, of which there are two.
//
//   host       | w         | w+1       |            device memory: weights alone
//   to_device  | w-1 ~~~~> | w ~~~~>   |            traffic of a step: the weights once
//
// With Options::delayed it does so beside a step of the device, which reads its weights meanwhile: so
// they do not follow the windows, but go all at once when the step is over (send_weights). Those in 16
// bits beside a master have room with the host for all of them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/stores/kept_states.h"
#include "engine/stores/state_places.h"
#include "engine/stores/windows.h"

namespace snug {

class OffloadedStateStore final : public KeptStates {
 public:
  struct Options {
    bool master = false;   // the parameters too
    int64_t window = 0;    // elements of one at most, a multiple of 256; 0: see usual_window()
    bool by_part = false;  // no window has spans of two parts of the table
    // The weights of the parts too, in this dtype. By part; without a master they are the parameters.
    std::optional<DType> weights = {};
    // The update is the host's; the parameters rest here in any case, those without a master in the
    // dtype that layers read, `compute`.
    bool on_host = false;
    DType compute = DType::f32;
    bool delayed = false;  // with on_host, without `weights`
    // Bytes of a window of a state, where they are another store's to say what lies where in them.
    std::function<int64_t(const WindowCut&)> room = {};
    // Whether some of a window's elements are not updated, where another store has its spans.
    std::function<bool(const WindowCut&)> holes = {};
  };
  // Call inside the root program.
  OffloadedStateStore(Context& ctx, const ParamTable& table, StateSet set, Options options);

  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override;
  void select(WindowRange range) override;
  void open(Context& ctx, int w) override;
  void close(Context& ctx, int w) override;
  bool on_host() const override { return on_host_; }
  bool writes_back() const override { return !on_host_; }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  View acquire_master(Context& ctx, const StateSpan& span) override;
  bool has_weights() const override { return weights_.has_value() || stages_; }
  View acquire_weights(Context& ctx, const StateSpan& span) override;
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;

  // With Options::room, u8: of the open window where it is updated; and where that of an element rests, of
  // which window.
  const View& opened_room(int k) const { return held(windows_[static_cast<size_t>(open_)], k); }
  struct Rested {
    size_t window;
    View room;
  };
  Rested rested_room(int k, int64_t first) const;

  // The parameters where they rest, the trained range, f32 or Options::weights; else undefined.
  const View& master() const { return master_.view(); }
  // In a program: weights (from the trained range on, 16 bits) = the rounded parameters.
  void round_master(Context& ctx, const View& weights);
  // The same to wherever those of (offset, elements) are.
  using OnDevice = std::function<View(int64_t, int64_t)>;
  void round_master(Context& ctx, const OnDevice& weights);

  // With Options::weights. Where the weights of [begin, begin + elements) of the flat range rest,
  // whole runs of neighbours of one part, piece by piece; of those of no part the master.
  std::vector<Tensor*> weight_pieces(int64_t begin, int64_t elements);
  // Where the weights of no part are on the device: f(offset, elements).
  void set_on_device(OnDevice f) { on_device_ = std::move(f); }
  // In a program: 16-bit weights = the rounded parameters, on the host and on the device.
  void round_weights(Context& ctx);
  bool rounds_weights() const { return rounded_.defined(); }

  // With Options::on_host. Weights on the device, resident, that windows write: whole runs of the
  // flat range from element `first` on; what follows the trained range is not written.
  void set_device_weights(Context& ctx, const Tensor& weights, int64_t first);
  // In a program: all weights, on the device and with the host, = the rounded parameters.
  void load_weights(Context& ctx);
  // With Options::delayed, in a program: those on the device = those with the host.
  void send_weights(Context& ctx);

 private:
  struct Window : WindowCut {
    // One a state, then the parameters, then the 16-bit weights of a part.
    std::vector<Tensor> host, device;
    Event moved;       // the last copy that was begun
    AllPlaces places;  // of states that do not lie flat
    // With on_host: a piece of the device's weights, if some are there, and what is sent to it.
    Tensor weights, staged;
  };
  void make_master(Context& ctx, const ParamTable& table, int64_t window, DType dtype);
  void make_weights(Context& ctx);
  // Begins the copies of the states from number `from` on, and of the parameters. Weights are
  // written only; where a window has holes they come too, for all of it goes back.
  void fetch(Context& ctx, Window& w, size_t from);
  void send(Context& ctx, Window& w, size_t from);  // begins the copies back
  void finish(Context& ctx, Window& w);
  void settle(Context& ctx, const Window& w);  // compute waits for the copy that was begun
  std::vector<Window*> pieces();               // windows and gaps, in the order of the flat range
  void stage(Context& ctx, Window& w);         // room for its weights, with those that no span has
  void land(Context& ctx, Window& w);          // begins their copy to the device
  void landed(Context& ctx, Window& w);
  const View& held(const Window& w, int k) const;  // its piece where it is updated
  View place(int k, const StateSpan& span) const;
  const Window& opened(const StateSpan& span) const;
  const Window& window_of(int64_t first) const;

  int states_;
  std::optional<DType> weights_;
  bool on_host_, stages_, delayed_;
  DType compute_;
  OnDevice on_device_;
  std::vector<Window> windows_;
  std::vector<Tensor> all_;  // of every state, the windows one behind the other
  Tensor master_, rounded_, to_send_;
  std::vector<Window> gaps_;  // what of master_ no window has
  int open_ = -1;
  size_t begin_ = 0, end_ = 0;  // of the windows that are gone through
};

}  // namespace snug
