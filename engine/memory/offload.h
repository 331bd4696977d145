// Offload: slots of passes on their way to the host's memory and back. It keeps, for the passes of
// one micro-batch, what is in flight; what is sent is decided by the policies of the passes.
//
//   forward    pass l     | x  sent ~~~~~~~~~~> |                       a copy has the time of one
//              pass l + 1 |     (x of l ends) x sent ~~~~~~~~~~> |      whole pass
//   backward   pass l + 1 | x of l fetched <~~~~~~~~ |
//              pass l     |                  waits for x when it is needed
//
// So at most one slot more than the offloaded ones of two passes is on the device, in either
// direction: the double buffer. The program's record has it all, and so the plan charges it.
#pragma once

#include <vector>

#include "engine/memory/context.h"

namespace snug {

class Offload {
 public:
  // Of passes 0 .. passes - 1, which run forward in this order, with up to `slots` slots each.
  Offload(int passes, int slots);
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Takes the tensor of a slot and begins its copy to the host. The tensor ends when the same slot
  // of a later pass is sent, when the next pass is over, or in settle().
  void send(Context& ctx, int pass, int slot, Tensor tensor);
  // A pass's forward is over.
  void pass_done(int pass);
  // All forwards are over: compute waits for what is still on its way to the host.
  void settle();

  bool away(int pass, int slot) const { return at(pass, slot).state == State::host; }
  // Begins the copy back. Compute may use the tensor after arrive().
  Tensor fetch(Context& ctx, int pass, int slot, Category category);
  // Compute waits for the slot if it is on its way back.
  void arrive(int pass, int slot);
  // Ends what the host has of a slot.
  void drop(int pass, int slot);

 private:
  enum class State : uint8_t { none, host, coming };
  struct Away {
    State state = State::none;
    Tensor tensor;  // in the host arena
    Event arrived;
  };
  struct Outgoing {
    int pass = 0;
    Tensor tensor;
    Event sent;
  };
  Away& at(int pass, int slot) { return away_[static_cast<size_t>(pass * slots_ + slot)]; }
  const Away& at(int pass, int slot) const {
    return away_[static_cast<size_t>(pass * slots_ + slot)];
  }
  void finish(Outgoing& out);

  int slots_;
  std::vector<Away> away_;
  std::vector<Outgoing> outgoing_;  // one a slot
  Context* ctx_ = nullptr;          // of the passes that are in flight
};

}  // namespace snug
