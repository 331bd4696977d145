// What a run may ask of the decisions of a plan: fields that the configuration and the request of a plan
// have alike, and the keys that set them. What becomes of a key stands in the planner's table of
// decisions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

struct Asked {
  std::string offload_optimizer = "auto";  // auto | none | cpu | disk
  std::string offload_params = "auto";     // auto | none | cpu
  std::string offload_embedding = "auto";  // the same, of frozen tables of rows
  std::string offload_gradients = "auto";  // the same
  std::string offload_update = "auto";     // auto | gpu | cpu
  int64_t head_rows = 0;                   // rows of a chunk of logits; 0: auto
};

// A key of a word that is one of `choices`, auto among them; in the section of the machine.
struct AskedKey {
  std::string_view name;
  std::string Asked::*field;
  std::string_view choices, example, aliases = {}, doc = {};  // as in Key
};
inline constexpr AskedKey kAskedKeys[] = {
    // clang-format off
    {.name = "offload_optimizer", .field = &Asked::offload_optimizer, .choices = "auto none cpu disk", .example = "cpu",
     .doc = "where the optimizer's state rests, and the master weights of a 16-bit model: none (on the "
            "device), cpu (in the host's memory, and an update passes them through the device in "
            "windows), disk (the state alone, in a file that an update reads and writes in windows; device: "
            "cpu) or auto, as in offload, never on disk; the numbers stay the same bit for bit"},
    {.name = "offload_params", .field = &Asked::offload_params, .choices = "auto none cpu", .example = "cpu", .aliases = "offload_param",
     .doc = "where the weights of the layers rest: none (on the device), cpu (in the host's memory with "
            "the optimizer's state, and a layer is brought before its forward and before its backward, one "
            "ahead of its use) or auto, as in offload; the numbers stay the same bit for bit"},
    {.name = "offload_embedding", .field = &Asked::offload_embedding, .choices = "auto none cpu", .example = "cpu",
     .doc = "where a frozen embedding rests that the head does not share, as of an adapter's base: none (on "
            "the device), cpu (in the host's memory, where the device reads a row for each token of a "
            "micro-step) or auto, as in offload; the numbers stay the same bit for bit"},
    {.name = "offload_gradients", .field = &Asked::offload_gradients, .choices = "auto none cpu", .example = "cpu", .aliases = "offload_gradient",
     .doc = "where the gradients of the layers rest: none (on the device), cpu (in the host's memory: a "
            "layer's leave while backward is at the one below, come back to be added to where a step has "
            "several micro-steps, and once more for the norm and for the update) or auto, as in offload; "
            "the numbers stay the same bit for bit"},
    {.name = "offload_update", .field = &Asked::offload_update, .choices = "auto gpu cpu", .example = "cpu",
     .doc = "who updates beside a GPU: gpu, cpu (the host: gradients leave as they become final, all "
            "cores update the parameters and states that rest there, and weights come back) or auto (the "
            "host where that is predicted faster than what else fits); the numbers stay the same bit for bit. "
            "On the CPU the host is the device, and there is nothing to choose"},
    // clang-format on
};

}  // namespace snug
