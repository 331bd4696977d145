// Homes: where of one model weights, gradients and optimizer states rest beside the device, and who
// updates them. Whoever plans decides these fields and the stores act on them: nothing between the two
// names one. No home changes a bit, but for delayed_update, which says when. Of ranks each has there what it
// keeps (StorePolicy::zero), whose pieces of the states are updated by their rank or its host.
#pragma once

#include <compare>

namespace snug {

struct Homes {
  // Blocks are updated as backward leaves them (updating_gradients.h).
  bool update_in_backward = false;
  // Optimizer states and master weights rest in the host arena and pass through the device in
  // windows (offloaded_states.h).
  bool offload_optimizer = false;
  // In place of that, optimizer states rest in a file and pass through memory in windows
  // (disk_states.h). On the place cpu, of one rank, not with update_in_backward.
  bool states_on_disk = false;
  // The weights of the blocks rest with the host too, and a block has them on the device while it runs;
  // codes of those that rest in codes as well (streamed_params.h). With offload_optimizer, whose windows
  // update them.
  bool offload_params = false;
  // Frozen tables of rows rest there, in either home of weights, and the device reads the rows that it
  // wants. In training.
  bool offload_tables = false;
  // The gradients of the blocks rest there, and a block's are on the device while backward is at it
  // and when they are summed up and applied (offloaded_gradients.h). Not with update_in_backward, which
  // has none to keep.
  bool offload_gradients = false;
  // The host updates what rests with it, by its own cores, and weights come back: with
  // offload_optimizer and offload_gradients.
  bool update_on_host = false;
  // It does so one step late, beside forward and backward of the device's next step (ZeRO-Offload's
  // delayed parameter update, section 5.2 of Ren et al., 2021, from the first step on). With w_1 the
  // first weights, step k takes its gradient g_k at w_max(1, k-1), where it would else be w_k, and
  // w_{k+1} = update_k(w_k, g_k) with the rate, the clip factor, the loss scale and the count of updates
  // of step k; a step whose g_k is not finite changes nothing. Behind step k the device, evaluations
  // and checkpoints have w_k, and g_k is pending: a checkpoint has it too. With update_on_host, and
  // weights on the device.
  bool delayed_update = false;

  auto operator<=>(const Homes&) const = default;
};

}  // namespace snug
