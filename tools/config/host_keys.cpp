// Keys of what may be the host's beside a device, behind `offload` in the list of all.
#include "tools/config/keys.h"

namespace snug {

std::vector<Key> host_keys() {
  using C = RunConfig;
  using K = KeyKind;
  return {
      // clang-format off
      {.name = "offload_optimizer", .section = "machine", .kind = K::choice,
       .field = &C::offload_optimizer,
       .doc = "where the optimizer's state rests, and the master weights of a 16-bit model: none (on the "
              "device), cpu (in the host's memory, and an update passes them through the device in "
              "windows) or auto, as in offload; the numbers stay the same bit for bit",
       .example = "cpu", .choices = "auto none cpu"},
      {.name = "offload_params", .section = "machine", .kind = K::choice,
       .field = &C::offload_params,
       .doc = "where the weights of the layers rest: none (on the device), cpu (in the host's memory with "
              "the optimizer's state, and a layer is brought before its forward and before its backward, one "
              "ahead of its use) or auto, as in offload; the numbers stay the same bit for bit",
       .example = "cpu", .aliases = "offload_param", .choices = "auto none cpu"},
      {.name = "offload_embedding", .section = "machine", .kind = K::choice,
       .field = &C::offload_embedding,
       .doc = "where a frozen embedding rests that the head does not share, as of an adapter's base: none (on "
              "the device), cpu (in the host's memory, where the device reads a row for each token of a "
              "micro-step) or auto, as in offload; the numbers stay the same bit for bit",
       .example = "cpu", .choices = "auto none cpu"},
      {.name = "offload_gradients", .section = "machine", .kind = K::choice,
       .field = &C::offload_gradients,
       .doc = "where the gradients of the layers rest: none (on the device), cpu (in the host's memory: a "
              "layer's leave while backward is at the one below, come back to be added to where a step has "
              "several micro-steps, and once more for the norm and for the update) or auto, as in offload; "
              "the numbers stay the same bit for bit",
       .example = "cpu", .aliases = "offload_gradient", .choices = "auto none cpu"},
      {.name = "offload_update", .section = "machine", .kind = K::choice,
       .field = &C::offload_update,
       .doc = "who updates beside a GPU: gpu, cpu (the host: gradients leave as they become final, all "
              "cores update the parameters and states that rest there, and weights come back) or auto (the "
              "host where that is predicted faster than what else fits); the numbers stay the same bit for bit. "
              "On the CPU the host is the device, and there is nothing to choose",
       .example = "cpu", .choices = "auto gpu cpu"},
      // clang-format on
  };
}

}  // namespace snug
